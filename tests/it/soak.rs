//! A long steady load over TLS while everything that may change changes: configuration and certificates are read
//! again, Redis is emptied and restarted, Postgres is restarted. No event may be lost or doubled, and neither memory
//! nor descriptors may grow.
//!
//! Seconds in every test run; `UMAVEZ_SOAK_MINUTES=30 cargo test --test it soak -- --nocapture` for as long as wanted,
//! at `UMAVEZ_SOAK_RATE` events a second (100). The last line of the report is what `docs/operations.md` quotes.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio_util::sync::CancellationToken;

use crate::support::{Gateway, ORDERS, PATIENCE, Pair, Stores, goes_on, nobody, order};
use crate::tls::caller::{Caller, HTTP_1, HTTP_2, Open};
use crate::tls::pki::{Authority, Folder};

const NAME: &str = "hooks.example";
const SENDERS: u64 = 8;
/// Every so many events, one is sent again at once, as providers do.
const COPY_EVERY: u64 = 3;
/// The longest that one event may take to be accepted: an outage, a lease, and a busy machine.
const EVENT_MAX: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
enum Change {
    Reload,
    RenewCertificate,
    FlushRedis,
    RestartRedis,
    RestartPostgres,
}

const CHANGES: [Change; 7] = [
    Change::Reload,
    Change::FlushRedis,
    Change::RenewCertificate,
    Change::RestartPostgres,
    Change::Reload,
    Change::RestartRedis,
    Change::RenewCertificate,
];

#[tokio::test]
async fn a_steady_load_loses_and_doubles_nothing_while_everything_around_it_changes() {
    let minutes: f64 = number("UMAVEZ_SOAK_MINUTES").unwrap_or(0.25);
    let rate: f64 = number("UMAVEZ_SOAK_RATE").unwrap_or(100.0);
    let length = Duration::from_secs_f64(minutes * 60.0);
    let app = App::start().await;
    let (authority, folder) = (Authority::new(), Folder::new());
    let pair = folder.pair("hooks", &authority.issue(&[NAME]));
    let mut stores = Stores::open_own(Pair::RedisPostgres).await;
    let gateway = Gateway::in_front_of_url(&format!("http://{}", app.address))
        .stores_toml(&stores.near_toml())
        .route(&format!("{ORDERS}timeout = \"5s\"\nlease = \"10s\"\nin_flight_wait = \"500ms\"\n"))
        .table(&format!("[public_tls]\ncertificates = {pair}"))
        .start()
        .await;
    let over = CancellationToken::new();
    let pace = Duration::from_secs_f64(f64::from(u32::try_from(SENDERS).unwrap()) / rate);
    let senders: Vec<_> = (0..SENDERS)
        .map(|sender| {
            let offered = if sender % 2 == 0 { HTTP_1 } else { HTTP_2 };
            let caller = Caller::trusting(&authority, NAME).offering(&[offered]);
            tokio::spawn(send(sender, caller, gateway.address(), pace, over.clone()))
        })
        .collect();

    let began = Instant::now();
    let mut changes = Vec::new();
    let mut samples = vec![Sample::of(&gateway)];
    // Twice round all changes in a short run; a change every half a minute in a long one.
    let pause = (length / 14).min(Duration::from_secs(30));
    for change in CHANGES.iter().cycle() {
        if began.elapsed() >= length {
            break;
        }
        goes_on();
        tokio::time::sleep(pause).await;
        samples.push(Sample::of(&gateway));
        stores = apply(*change, stores, &gateway, &authority, &folder).await;
        changes.push(*change);
    }
    over.cancel();
    let mut sent = Vec::new();
    for sender in senders {
        sent.extend(sender.await.unwrap());
    }
    samples.push(Sample::of(&gateway));
    let report = Report { length: began.elapsed(), changes, samples, sent };
    report.print(&app);
    report.hold(&app);
}

/// What the app did, by event.
struct App {
    address: SocketAddr,
    effects: Arc<Mutex<HashMap<String, u32>>>,
}

impl App {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind(nobody()).await.unwrap();
        let app = Self { address: listener.local_addr().unwrap(), effects: Arc::default() };
        let effects = Arc::clone(&app.effects);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let effects = Arc::clone(&effects);
                let service = service_fn(move |request| answer(Arc::clone(&effects), request));
                let connection = hyper::server::conn::http1::Builder::new();
                tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
            }
        });
        app
    }
}

async fn answer(
    effects: Arc<Mutex<HashMap<String, u32>>>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    // A request that breaks off has no effect.
    let Ok(body) = request.into_body().collect().await else { return Ok(Response::default()) };
    let body: serde_json::Value = serde_json::from_slice(&body.to_bytes()).unwrap();
    let id = body["id"].as_str().unwrap().to_owned();
    *effects.lock().unwrap().entry(id).or_default() += 1;
    Ok(Response::new(Full::from("done")))
}

/// Sends event after event at its pace, each until it is accepted; the events it sent.
async fn send(
    sender: u64,
    caller: Caller,
    gateway: SocketAddr,
    pace: Duration,
    over: CancellationToken,
) -> Vec<String> {
    let mut sent = Vec::new();
    let mut line = None;
    let mut clock = tokio::time::interval(pace);
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for number in 0.. {
        if over.run_until_cancelled(clock.tick()).await.is_none() {
            break;
        }
        let id = format!("{sender}-{number}");
        let delivering = deliver(&caller, gateway, &id, &mut line);
        tokio::time::timeout(EVENT_MAX, delivering).await.unwrap_or_else(|_| panic!("no 2xx for {id}"));
        if number % COPY_EVERY == 0 {
            let copy = deliver(&caller, gateway, &id, &mut line);
            let verdict = tokio::time::timeout(EVENT_MAX, copy).await.unwrap();
            assert_eq!(verdict, "duplicate", "the copy of {id}");
        }
        sent.push(id);
    }
    sent
}

/// Tries until 2xx, on the line where there is one; the verdict that came with it.
async fn deliver(caller: &Caller, gateway: SocketAddr, id: &str, line: &mut Option<Open>) -> String {
    loop {
        if line.is_none() {
            *line = caller.open(gateway).await.ok();
        }
        if let Some(open) = line {
            match tokio::time::timeout(PATIENCE, open.send(&order(id))).await {
                Ok(Ok(answer)) if answer.status().is_success() => {
                    return answer.headers()["umavez"].to_str().unwrap().to_owned();
                }
                Ok(Ok(_)) => {}
                Ok(Err(_)) | Err(_) => *line = None,
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn apply(
    change: Change,
    mut stores: Stores,
    gateway: &Gateway,
    authority: &Authority,
    folder: &Folder,
) -> Stores {
    match change {
        Change::Reload => gateway.signal("HUP"),
        Change::RenewCertificate => drop(folder.pair("hooks", &authority.issue(&[NAME]))),
        Change::FlushRedis => stores.redis().flush().await,
        Change::RestartRedis => {
            stores.redis_mut().kill().await;
            stores.redis_mut().restart().await;
        }
        Change::RestartPostgres => {
            stores = tokio::task::spawn_blocking(move || {
                stores.postgres_mut().kill();
                stores.postgres_mut().restart();
                stores
            })
            .await
            .unwrap();
        }
    }
    stores
}

/// What the gateway's process holds at one moment.
#[derive(Clone, Copy, Debug)]
struct Sample {
    resident_kib: u64,
    descriptors: usize,
}

impl Sample {
    fn of(gateway: &Gateway) -> Self {
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", gateway.id())).unwrap().count();
        Self { resident_kib: gateway.memory().0, descriptors }
    }
}

struct Report {
    length: Duration,
    changes: Vec<Change>,
    samples: Vec<Sample>,
    sent: Vec<String>,
}

impl Report {
    fn print(&self, app: &App) {
        let effects = app.effects.lock().unwrap();
        let lost = self.sent.iter().filter(|id| !effects.contains_key(*id)).count();
        let doubled = effects.values().filter(|count| **count > 1).count();
        let [middle, last] = self.thirds();
        println!(
            "{{\"seconds\":{:.0},\"events\":{},\"changes\":{},\"lost\":{lost},\"doubled\":{doubled},\
             \"resident_mib\":[{:.1},{:.1}],\"descriptors\":[{},{}]}}",
            self.length.as_secs_f64(),
            self.sent.len(),
            self.changes.len(),
            mib(middle.resident_kib),
            mib(last.resident_kib),
            middle.descriptors,
            last.descriptors,
        );
    }

    fn hold(&self, app: &App) {
        let effects = app.effects.lock().unwrap();
        assert!(self.changes.len() >= CHANGES.len(), "only {:?} came", self.changes);
        for id in &self.sent {
            let times = effects.get(id).copied().unwrap_or(0);
            assert_eq!(times, 1, "{id} happened {times} times");
        }
        assert_eq!(effects.len(), self.sent.len(), "the app saw events that nobody sent");
        let [middle, last] = self.thirds();
        let bound = middle.resident_kib + middle.resident_kib / 4 + 8 * 1024;
        assert!(last.resident_kib <= bound, "memory grows: {:?}", self.samples);
        assert!(last.descriptors <= middle.descriptors + 16, "descriptors grow: {:?}", self.samples);
    }

    /// The most of the second third, when everything is warm, and of the last.
    fn thirds(&self) -> [Sample; 2] {
        let third = self.samples.len() / 3;
        [&self.samples[third..2 * third], &self.samples[2 * third..]].map(|samples| Sample {
            resident_kib: samples.iter().map(|sample| sample.resident_kib).max().unwrap(),
            descriptors: samples.iter().map(|sample| sample.descriptors).max().unwrap(),
        })
    }
}

fn mib(kib: u64) -> f64 {
    Duration::from_millis(kib).as_secs_f64() * 1000.0 / 1024.0
}

fn number(name: &str) -> Option<f64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}
