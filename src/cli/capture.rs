//! `umavez capture`: takes deliveries and writes them to files, in front of an app or alone. No key, no store, no
//! dedup: this is for finding out what a provider sends.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use clap::Args;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use umavez::clock::Clock;
use umavez::config::{self, Config, Environment, Target};
use umavez::flow::Rooms;
use umavez::flow::body;
use umavez::flow::capture::{Album, Snapshot};
use umavez::listen::{self, Handler, Listening, Peer, Slots};
use umavez::providers::{Provider, Redactor};
use umavez::tls::Tls;
use umavez::upstream::headers::{self, Caller};
use umavez::upstream::{Arriving, Body, Outcome, Upstream, public_url};

use super::providers::BuiltIn;
use super::{Failure, print, tell};

/// Longest delivery that is taken, bytes.
const BODY_BYTES_MAX: usize = 25 * 1024 * 1024;
/// Connections at once: this is no gateway.
const CONNECTIONS_MAX: usize = 100;
/// How long the app may take.
const APP_MAX: Duration = Duration::from_secs(60);
/// How long a stop waits for deliveries under way.
const GRACE: Duration = Duration::from_secs(5);

const EXAMPLES: &str = "\
Examples:
  umavez capture --listen 127.0.0.1:8080 --dir captures
      answer every delivery with 200 and keep it
  umavez capture --answer 503
      refuse every delivery: most providers then send copies, which is what `umavez keydiff` compares
  umavez capture --upstream http://127.0.0.1:3000 --provider evolution
      keep what passes on its way to the app, without what that provider's file marks as credentials

A delivery is three files: NAME.request (`METHOD URL`), NAME.headers (one `Name: value` a line) and NAME.body. Credentials
are redacted in them; a body that can't be read, so that nobody knows what is secret in it, is withheld. A
Content-Encoding is undone. A redacted body does not verify under its signature any more.";

/// Take deliveries and write them to files, for finding a key
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Capture {
    /// Where deliveries come to
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// The folder for them; made where there is none
    #[arg(long, value_name = "FOLDER", default_value = "captures")]
    dir: PathBuf,
    /// Pass them on to this app, and its answers back
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// Who sends: what its file marks as credentials is redacted too
    #[arg(long, value_name = "NAME", value_parser = BuiltIn, hide_possible_values = true)]
    provider: Option<String>,
    /// Without --upstream: the status that each is answered
    #[arg(long, value_name = "STATUS", default_value_t = 200, conflicts_with = "upstream",
        value_parser = clap::value_parser!(u16).range(200..=599))]
    answer: u16,
    /// End after so many deliveries
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,
    /// Keep at most so many; the oldest go
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    files: u32,
    /// Keep at most so many bytes; the oldest go
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    bytes: String,
}

impl Capture {
    pub(super) fn run(self) -> Result<(), Failure> {
        let provider = self.provider.as_deref().map(Provider::named).transpose();
        let provider = provider.map_err(|error| Failure::Usage(format!("--provider: {error}")))?;
        let wrong = |argument: &str, fault: config::Fault| {
            Failure::Usage(format!("{argument}: {}; {}", fault.what, fault.mend))
        };
        let target = self.upstream.as_deref().map(Target::parse).transpose();
        let target = target.map_err(|fault| wrong("--upstream", fault))?;
        let bytes = config::parse_size(&self.bytes).map_err(|fault| wrong("--bytes", fault))?;
        let (defaults, _) = Config::parse(std::path::Path::new(""), "", &Environment::new())?;
        let name = provider.as_ref().map_or("capture", |provider| provider.name.as_str());
        let bounds = config::Capture {
            folder: self.dir.clone(),
            deliveries_max: usize::try_from(self.files).unwrap_or(usize::MAX),
            bytes_max: usize::try_from(bytes).unwrap_or(usize::MAX),
        };
        let redactor =
            Redactor::new(provider.as_deref(), provider.as_deref().map(|provider| &provider.rules));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.context("cannot start")?.block_on(async move {
            drop(rustls::crypto::ring::default_provider().install_default());
            let album = Album::new(name, bounds, redactor);
            self.serve(album, target, defaults).await
        })
    }

    async fn serve(&self, album: Album, target: Option<Target>, defaults: Config) -> Result<(), Failure> {
        let socket = tokio::net::TcpListener::bind(self.listen).await;
        let socket = socket.map_err(|error| Failure::Usage(format!("--listen: {}: {error}", self.listen)))?;
        let address = socket.local_addr().context("the listener has no address")?;
        let secure = target.as_ref().is_some_and(|target| target.scheme == http::uri::Scheme::HTTPS);
        let (limits, tls) = (defaults.limits, Tls::open(&defaults.tls).context("TLS")?);
        if secure {
            tls.apps.shared.prepare().map_err(anyhow::Error::from_boxed).context("TLS to the app")?;
        }
        let stop = CancellationToken::new();
        let tracker = TaskTracker::new();
        let door = Door(Arc::new(Inside {
            album: Mutex::new(album),
            app: target.map(|target| (target, Upstream::new(&limits, Arc::clone(&tls.apps)))),
            answer: StatusCode::from_u16(self.answer).unwrap_or_default(),
            left: AtomicUsize::new(
                self.count.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX)),
            ),
            limits: limits.clone(),
            rooms: Rooms::default(),
            stop: stop.clone(),
        }));
        let slots = Slots::new("capture", CONNECTIONS_MAX);
        let (shutdown, tls) = (stop.clone(), Arc::clone(&tls.public));
        let idle_linger = Duration::ZERO;
        let listening = Listening { limits, slots, tls, shutdown, idle_linger, tracker: tracker.clone() };
        let mut terminate = signal(SignalKind::terminate()).context("signals")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("signals")?;
        print(&format!("listening on {address}, writing to {}\n", self.dir.display()))?;
        tokio::select! {
            () = listen::serve(socket, door, listening) => {}
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stop.cancel();
        tracker.close();
        // What isn't done by then was a sender that didn't finish.
        tokio::time::timeout(GRACE, tracker.wait()).await.ok();
        Ok(())
    }
}

/// Takes deliveries.
#[derive(Clone)]
struct Door(Arc<Inside>);

struct Inside {
    album: Mutex<Album>,
    app: Option<(Target, Upstream)>,
    answer: StatusCode,
    /// How many deliveries are still to come.
    left: AtomicUsize,
    limits: config::Limits,
    rooms: Rooms,
    stop: CancellationToken,
}

impl Handler for Door {
    async fn handle(self, request: Request<Incoming>, peer: Peer) -> Response<Body> {
        let caller =
            Caller { address: peer.address.ip().to_canonical(), secure: peer.secure, trusted: false };
        let (parts, incoming) = request.into_parts();
        let mut room = self.0.rooms.room(self.0.limits.buffered_bytes_max);
        let incoming = Arriving::new(incoming, parts.version);
        let raw = match body::read(incoming, BODY_BYTES_MAX, self.0.limits.body_timeout, &mut room).await {
            Ok(body::Came::Whole(raw)) => raw,
            Ok(body::Came::Longer(..)) => return refuse(&body::BodyError::TooLarge(BODY_BYTES_MAX)),
            Ok(body::Came::Crowded(..)) => return status(StatusCode::SERVICE_UNAVAILABLE),
            Err(error) => return refuse(&error),
        };
        let request = Request::from_parts(parts, raw);
        self.keep(&request, &caller).await;
        match &self.0.app {
            Some((target, upstream)) => forward(upstream, target, request, &caller).await,
            None => status(self.0.answer),
        }
    }
}

impl Door {
    /// A delivery that can't be written is answered all the same.
    async fn keep(&self, request: &Request<Bytes>, caller: &Caller) {
        let raw = request.body().clone();
        let decoded = body::decoded(request.headers(), &raw, BODY_BYTES_MAX).unwrap_or_else(|_| raw.clone());
        let snapshot = Snapshot {
            at: Clock::System.now(),
            method: request.method().clone(),
            url: public_url(request.uri(), request.headers(), caller, None),
            path_params: Vec::new(),
            headers: request.headers().clone(),
            raw,
            decoded,
        };
        let inside = Arc::clone(&self.0);
        let kept = tokio::task::spawn_blocking(move || {
            let length = snapshot.raw.len();
            let mut album = inside.album.lock().unwrap_or_else(PoisonError::into_inner);
            let path = album.keep(&snapshot)?;
            Ok::<_, std::io::Error>(format!("{}  {} {length} bytes\n", path.display(), snapshot.method))
        });
        match kept.await {
            Ok(Ok(line)) => {
                // Who asked may have stopped reading.
                print(&line).ok();
            }
            Ok(Err(error)) => tell(&format!("umavez: not captured: {error}")),
            Err(error) => tell(&format!("umavez: not captured: {error}")),
        }
        let count_down = |left: usize| if left == usize::MAX { Some(left) } else { left.checked_sub(1) };
        if self.0.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count_down) == Ok(1) {
            self.0.stop.cancel();
        }
    }
}

async fn forward(
    upstream: &Upstream,
    target: &Target,
    mut request: Request<Bytes>,
    caller: &Caller,
) -> Response<Body> {
    let version = request.version();
    headers::to_app(request.headers_mut(), version, caller);
    match upstream.forward(target, request, APP_MAX, BODY_BYTES_MAX).await {
        Outcome::Answered(answer) => answer.map(Body::from),
        Outcome::NeverSent(error) | Outcome::Unknown(error) => {
            tell(&format!("umavez: the app gave no answer: {error}"));
            status(StatusCode::BAD_GATEWAY)
        }
    }
}

fn refuse(error: &body::BodyError) -> Response<Body> {
    tell(&format!("umavez: not captured: {error}"));
    status(match error {
        body::BodyError::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
        body::BodyError::Timeout(_) => StatusCode::REQUEST_TIMEOUT,
        body::BodyError::Broken(_) | body::BodyError::NotUnderstood => StatusCode::BAD_REQUEST,
        body::BodyError::TooManyLayers(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        body::BodyError::TooMuchWork => StatusCode::SERVICE_UNAVAILABLE,
    })
}

fn status(status: StatusCode) -> Response<Body> {
    let mut answer = Response::new(Body::from(Bytes::new()));
    *answer.status_mut() = status;
    answer
}
