//! What doesn't come off: the listener goes on with what it has, says why, and tries again.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::pebble::{NAME, Pebble, Settings, errors, file_of, shown};
use crate::support::{Gateway, Upstream, eventually, order};
use crate::tls::caller::Caller;
use crate::tls::pki::{Authority, Folder};

const CURRENT: &str = "umavez_certificate_current";
const ORDERS: &str = "umavez_acme_orders_total";

#[tokio::test]
async fn without_the_directory_the_listener_is_up_and_only_that_name_has_to_wait() {
    let mut pebble = Pebble::down(Settings::default());
    let (authority, folder) = (Authority::new(), Folder::new());
    let app = Upstream::answering(200, "").await;
    let pair = folder.pair("files", &authority.issue(&["files.example"]));
    let table = pebble.table(&format!("\"{NAME}\""), &folder.path().join("acme"));
    let tls = format!("[public_tls]\ncertificates = {pair}\n{table}");
    let gateway = Gateway::in_front_of(&app).at(pebble.proving).table(&tls).start().await;
    gateway.until_metric(ORDERS, &[("result", "failed")], 1.0).await;
    let file = file_of(&gateway, NAME).await;
    assert_eq!(gateway.metrics().await.value(CURRENT, &[("file", &file)]), 0.0);
    let line = errors(&gateway, 1).await.remove(0);
    assert_eq!((&line["name"], line["mend"].is_string()), (&NAME.into(), true), "{line}");
    assert!(line.to_string().contains("the directory can't be used"), "{line}");

    // The authority has to come through, so a balancer has to send people here: it is ready.
    assert_eq!(gateway.ask_admin("GET", "/ready").await.status, 200);
    let awaited = Caller::blind(NAME).connect(gateway.address()).await.map(|_| ()).unwrap_err();
    assert!(awaited.to_string().contains("AccessDenied"), "an alert, not a reset: {awaited}");
    let other = Caller::trusting(&authority, "files.example");
    assert_eq!(other.send(gateway.address(), &order("1")).await.unwrap().status(), 200);

    pebble.come_up().await;
    assert_eq!(gateway.reload().await.status, 200, "it is told to try at once");
    shown(&pebble, NAME, gateway.address()).await;
    gateway.until_metric(CURRENT, &[("file", &file)], 1.0).await;
}

#[tokio::test]
async fn a_renewal_that_fails_leaves_the_old_certificate_in_use() {
    let mut pebble = Pebble::of(Settings { seconds: 15, ..Settings::default() }).await;
    let (app, folder) = (Upstream::answering(200, "").await, Folder::new());
    let table = pebble.table(&format!("\"{NAME}\""), &folder.path().join("acme"));
    let gateway = Gateway::in_front_of(&app).at(pebble.proving).table(&table).start().await;
    shown(&pebble, NAME, gateway.address()).await;
    pebble.go_down();
    let file = file_of(&gateway, NAME).await;
    // Whatever was under way when it went ends first.
    gateway.until_metric(CURRENT, &[("file", &file)], 0.0).await;
    let old = Caller::blind(NAME).shown(gateway.address()).await;
    let failed = gateway.metrics().await.value(ORDERS, &[("result", "failed")]);
    assert_eq!(gateway.reload().await.status, 200);
    gateway.until_metric(ORDERS, &[("result", "failed")], failed + 1.0).await;
    assert_eq!(Caller::blind(NAME).shown(gateway.address()).await, old);
    assert_eq!(
        gateway.metrics().await.value(CURRENT, &[("file", &file)]),
        0.0,
        "a reload mends nothing by itself"
    );

    // It comes back without its memory: our account is unknown there, and a new one is made.
    pebble.come_up().await;
    assert_eq!(gateway.reload().await.status, 200);
    gateway.until_metric(CURRENT, &[("file", &file)], 1.0).await;
    let caller = pebble.caller(NAME).await;
    eventually("the new root's certificate is shown", async || {
        caller.connect(gateway.address()).await.is_ok()
    })
    .await;
    eventually("it is said", async || gateway.logs().contains("the directory does not know our account"))
        .await;
}

#[tokio::test]
async fn a_name_that_leads_elsewhere_is_told_with_a_mend_and_holds_up_no_other() {
    let pebble = Pebble::start().await;
    let (app, folder) = (Upstream::answering(200, "").await, Folder::new());
    // Where the authority looks nobody speaks TLS.
    let elsewhere = TcpListener::bind(pebble.proving).unwrap();
    let cache = folder.path().join("acme");
    let table = pebble.table("\"a.example\", \"b.example\"", &cache);
    let gateway = Gateway::in_front_of(&app).table(&table).start().await;
    let hanging_up = std::thread::spawn(move || {
        for stream in elsewhere.incoming().take(2) {
            drop(stream);
        }
    });
    gateway.until_metric(ORDERS, &[("result", "failed")], 2.0).await;
    hanging_up.join().unwrap();
    let errors = errors(&gateway, 2).await;
    let names: Vec<&str> = errors.iter().filter_map(|line| line["name"].as_str()).collect();
    assert_eq!(names, ["a.example", "b.example"], "each was tried");
    for line in errors {
        assert!(line["mend"].as_str().unwrap().contains("port 443"), "{line}");
        let pause = line["next_try_in_seconds"].as_u64().unwrap();
        assert!((290..=330).contains(&pause), "{line}");
    }
    assert_eq!(pebble.orders(), 2, "not again at once");
}

#[tokio::test]
async fn refused_nonces_are_asked_for_anew() {
    let pebble = Pebble::of(Settings { nonces_refused: 30, ..Settings::default() }).await;
    let (app, folder) = (Upstream::answering(200, "").await, Folder::new());
    let names: Vec<String> = (0..6).map(|n| format!("\"n{n}.example\"")).collect();
    let table = pebble.table(&names.join(", "), &folder.path().join("acme"));
    let gateway = Gateway::in_front_of(&app).at(pebble.proving).table(&table).start().await;
    // Three refusals in a row end an order: now and then it takes another try.
    eventually("each name is served", async || {
        for n in 0..6 {
            let caller = pebble.caller(&format!("n{n}.example")).await;
            if caller.connect(gateway.address()).await.is_err() {
                if gateway.metrics().await.value(ORDERS, &[("result", "failed")]) > 0.0 {
                    gateway.reload().await;
                }
                return false;
            }
        }
        true
    })
    .await;
    // Each was sent at least once, and what was refused once more.
    let steps = ["order-plz", "chalZ/", "finalize-order/", "certZ/"];
    let sent = pebble
        .log()
        .lines()
        .filter(|line| steps.iter().any(|step| line.contains(&format!("POST /{step}"))))
        .count();
    assert!(sent > steps.len() * names.len(), "none was refused: {sent}");
}

#[tokio::test]
async fn a_cache_that_holds_rubbish_is_ordered_anew() {
    let pebble = Pebble::start().await;
    let (app, folder) = (Upstream::answering(200, "").await, Folder::new());
    let table = pebble.table(&format!("\"{NAME}\""), &folder.path().join("acme"));
    let mut gateway = Gateway::in_front_of(&app).at(pebble.proving).table(&table).start().await;
    let first = shown(&pebble, NAME, gateway.address()).await;
    let file = file_of(&gateway, NAME).await;
    // While it runs, what was read before stays; a start has nothing else, and orders.
    std::fs::write(&file, "rubbish").unwrap();
    gateway.until_metric(CURRENT, &[("file", &file)], 0.0).await;
    assert_eq!(pebble.caller(NAME).await.shown(gateway.address()).await, first);
    gateway.restart().await;
    assert_ne!(shown(&pebble, NAME, gateway.address()).await, first);
    gateway.until_metric(CURRENT, &[("file", &file)], 1.0).await;
}

#[tokio::test]
async fn a_directory_that_asks_to_be_left_alone_is_left_alone() {
    let (authority, folder) = (Authority::new(), Folder::new());
    let app = Upstream::answering(200, "").await;
    let busy = Busy::start(&authority).await;
    let roots = folder.put("roots.pem", &authority.pem);
    let table = format!(
        "[public_tls.acme]\nnames = [\"{NAME}\"]\nterms_agreed = true\ncache = \"{}\"\ndirectory_ca = \"{}\"\n\
         directory = \"https://127.0.0.1:{}/dir\"",
        folder.path().join("acme").display(),
        roots.display(),
        busy.address.port()
    );
    let gateway = Gateway::in_front_of(&app).table(&table).start().await;
    gateway.until_metric(ORDERS, &[("result", "failed")], 1.0).await;
    let line = errors(&gateway, 1).await.remove(0);
    assert!(line["message"].as_str().unwrap().contains("503 Service Unavailable: come back later"), "{line}");
    assert!((7190..=7200).contains(&line["next_try_in_seconds"].as_u64().unwrap()), "{line}");
    // Not even a person who reads the configuration again hurries it; what can be used at once is.
    gateway.edit(&format!("names = [\"{NAME}\"]"), &format!("names = [\"{NAME}\", \"more.example\"]"));
    assert_eq!(gateway.reload().await.status, 200);
    let more = file_of(&gateway, "more.example").await;
    gateway.until_metric(CURRENT, &[("file", &more)], 0.0).await;
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    assert_eq!(busy.asked.load(Ordering::Relaxed), 1);
}

/// A directory that is too busy for two hours.
struct Busy {
    address: SocketAddr,
    asked: Arc<AtomicUsize>,
}

impl Busy {
    async fn start(authority: &Authority) -> Self {
        let issued = authority.issue(&["127.0.0.1"]);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![issued.der()], issued.key_der())
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, asked) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&asked);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                count.fetch_add(1, Ordering::Relaxed);
                let body = r#"{"type":"urn:ietf:params:acme:error:rateLimited","detail":"come back later"}"#;
                let head = "HTTP/1.1 503 Service Unavailable\r\nretry-after: 7200\r\nconnection: close";
                let answer = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                let mut request = [0; 1024];
                let Ok(1..) = stream.read(&mut request).await else { continue };
                // Who has gone needs no answer.
                stream.write_all(answer.as_bytes()).await.ok();
                stream.shutdown().await.ok();
            }
        });
        Self { address, asked }
    }
}

#[tokio::test]
async fn a_certificate_that_is_due_at_once_is_not_ordered_again_and_again() {
    let pebble = Pebble::of(Settings { seconds: 1, ..Settings::default() }).await;
    let (app, folder) = (Upstream::answering(200, "").await, Folder::new());
    let table = pebble.table(&format!("\"{NAME}\""), &folder.path().join("acme"));
    let gateway = Gateway::in_front_of(&app).at(pebble.proving).table(&table).start().await;
    // It may have had a moment left the first time.
    gateway.until_metric(ORDERS, &[("result", "failed")], 1.0).await;
    let orders = pebble.orders();
    let line = errors(&gateway, 1).await.remove(0);
    assert!(line["mend"].as_str().unwrap().contains("clock"), "{line}");
    assert!(line["next_try_in_seconds"].as_u64().unwrap() > 290, "{line}");
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    assert_eq!(pebble.orders(), orders);
}
