//! Builds every part from a Config, runs both listeners, drains.
//!
//! One thread per core serves: its own runtime, its own socket on the shared port, its own connections to the app and
//! to Redis. The calling thread's runtime runs what is shared: the durable store's writer, the sweeper, the admin
//! listener and the signals.

mod files;
mod handover;
mod housekeeping;
mod notify;
mod probe;
mod reload;
mod sockets;
mod workers;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use http::{Request, Response};
use hyper::body::Incoming;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::{TcpListener, UnixStream};
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use files::too_few_files;
use handover::Predecessor;
pub use notify::Notify;
pub use probe::{Asked, Probed, probe};
use reload::Reloader;
use sockets::Sockets;

use crate::admin::{Admin, Token, WAITING_RELOADS_MAX};
use crate::clock::Clock;
use crate::config::{self, Config, ConfigFile, Limits, Listen};
use crate::flow::{Flow, Live, Rooms, Tunnels};
use crate::ledger::Ledger;
use crate::ledger::durable::Durable;
use crate::ledger::hot::Hot;
use crate::listen::{self, Handler, Inherited, Listening, Peer, Slots};
use crate::metrics::{self, Reloads, Stores};
use crate::tls::Tls;
use crate::upstream::{Body, Upstream};

/// Connections that the admin listener serves at once.
const ADMIN_CONNECTIONS_MAX: usize = 64;
/// How long a stop leaves kept-alive connections for one more request, at most.
const IDLE_LINGER: Duration = Duration::from_secs(1);
/// How long the last settlements may take after the last request has ended.
const FLUSH_MAX: Duration = Duration::from_secs(10);
/// How long an end waits for whoever still reads or writes a file: a file system may hang.
const FILES_MAX: Duration = Duration::from_secs(1);

/// A gateway that serves.
pub struct Gateway {
    /// Where providers come; with the port that was chosen, where the configuration left it open.
    pub public: SocketAddr,
    pub admin: SocketAddr,
    draining: CancellationToken,
    stopping: CancellationToken,
    /// Ends the admin listener; before `stopping` only where another process has its socket.
    admin_closing: CancellationToken,
    /// Comes when a new process has the sockets and serves; kept, it tells that process how long this one lives.
    successor: oneshot::Receiver<UnixStream>,
    tracker: TaskTracker,
    /// What people ask of the event API: work under way like any request.
    decisions: TaskTracker,
    workers: Vec<oneshot::Receiver<()>>,
    ledger: Ledger,
    grace: Duration,
}

/// What a gateway is started with besides its configuration.
#[derive(Default)]
pub struct Start {
    /// Where the configuration came from, to read it again; `None` where it was no file.
    pub file: Option<ConfigFile>,
    /// What asks for that, besides the admin listener.
    pub hangup: Option<Signal>,
    /// The sockets that systemd passed.
    pub passed: Inherited,
    /// Take the sockets over from the gateway that runs, if one does.
    pub takeover: bool,
    pub notify: Notify,
}

/// Runs until SIGTERM or SIGINT, then drains. Blocks the calling thread.
///
/// # Errors
/// When a socket can't be bound, a store can't be opened, or the drain took longer than its grace.
pub fn run(config: Config, mut start: Start) -> anyhow::Result<()> {
    let prometheus = metrics::install().context("the metrics recorder")?;
    files::raise();
    if let Some(doubt) = too_few_files(&config) {
        tracing::warn!("{doubt}");
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        start.hangup = Some(signal(SignalKind::hangup())?);
        let notify = start.notify.clone();
        let mut gateway = tokio::select! {
            gateway = Gateway::start(config, prometheus, start) => gateway?,
            _ = terminate.recv() => anyhow::bail!("stopped before it served"),
            _ = interrupt.recv() => anyhow::bail!("stopped before it served"),
        };
        notify.ready();
        let successor = tokio::select! {
            _ = terminate.recv() => None,
            _ = interrupt.recv() => None,
            Ok(line) = &mut gateway.successor => Some(line),
        };
        notify.stopping();
        tracing::info!("stopping: no new connections; finishing what is under way");
        if successor.is_some() {
            tracing::info!("a new process has taken over");
            gateway.admin_closing.cancel();
        }
        tokio::select! {
            stopped = gateway.stop() => stopped,
            _ = terminate.recv() => anyhow::bail!("stopped at once by a second signal"),
            _ = interrupt.recv() => anyhow::bail!("stopped at once by a second signal"),
        }
    });
    runtime.shutdown_timeout(FILES_MAX);
    ended
}

impl Gateway {
    /// Starts to serve. What is shared runs on the calling runtime.
    ///
    /// # Errors
    /// When a socket can't be bound or a store can't be opened.
    pub async fn start(config: Config, prometheus: PrometheusHandle, start: Start) -> anyhow::Result<Self> {
        // Fails only where a provider is installed already, which is then the same one.
        drop(rustls::crypto::ring::default_provider().install_default());
        let tls = Tls::open(&config.tls)?;
        reload::prepare(&config, &tls)?;
        let listen = &config.listen;
        let before = if start.takeover { take_over(listen)? } else { None };
        let (mut before, taken) =
            before.map_or((None, Inherited::default()), |(line, sockets)| (Some(line), sockets));
        let took_over = before.is_some();
        let sockets = Sockets::open(listen, start.passed, taken)?;
        let (public, admin) = (sockets.public_address, sockets.admin_address);
        // SQLite is one process's: the one before ends first, and who knocks meanwhile waits in the kernel.
        let alone = matches!(config.durable, config::Durable::Sqlite { .. });
        if let Some(mut line) = before.take_if(|_| alone) {
            line.stop().context("the gateway that runs can't be told to stop")?;
            line.ended().await?;
        }
        let tracker = TaskTracker::new();
        let (draining, stopping) = (CancellationToken::new(), CancellationToken::new());
        let stores = Stores::new();
        let durable =
            Durable::open(&config.durable, &config.limits, &tracker).await.context("the durable store")?;
        let hot = Hot::open(&config.hot, &tracker).await.context("the hot store")?;
        let ledger = Ledger::new(hot, durable, Clock::System, stores.clone(), (&tracker, &stopping));
        let (shared, exporter) = reload::shared(&config, &tls)?;
        reload::spawn(exporter, &tracker, &stopping);
        let live = Live::new(shared);
        let next = match &listen.handover {
            Some(path) => Some(
                handover::listen(path, took_over)
                    .with_context(|| format!("[listen] handover: can't listen on {}", path.display()))?,
            ),
            None => None,
        };
        let (taken, successor) = oneshot::channel();
        if let Some(at) = next {
            tracker.spawn(handover::offer(at, sockets.offered, taken, draining.clone()));
        }
        let mut gateway = Self {
            public,
            admin,
            admin_closing: stopping.child_token(),
            draining,
            stopping,
            successor,
            tracker,
            decisions: TaskTracker::new(),
            workers: Vec::new(),
            ledger: ledger.clone(),
            grace: listen.grace,
        };
        let rooms = Rooms::default();
        gateway.spawn_workers(&config, sockets.public, &ledger, &live, &tls, &rooms)?;
        gateway.spawn_housekeeping(&ledger, &stores, &prometheus);
        gateway.tracker.spawn(gateway.stopping.clone().run_until_cancelled_owned(Arc::clone(&tls).watch()));
        gateway.tracker.spawn(gateway.draining.clone().run_until_cancelled_owned(Arc::clone(&tls).order()));
        let (reloads, wishes) = mpsc::channel(WAITING_RELOADS_MAX);
        let token = Token::new(listen.admin_token.clone());
        let upstream = Upstream::new(&config.limits, Arc::clone(&tls.apps));
        let tunnels = Tunnels { tracker: gateway.tracker.clone(), shutdown: gateway.stopping.clone() };
        let admin_room = Admin {
            flow: Flow::new(ledger.clone(), upstream, live.clone(), Clock::System, tunnels, rooms),
            ledger,
            prometheus,
            stores,
            token: token.clone(),
            reloads,
            draining: gateway.draining.clone(),
            decisions: gateway.decisions.clone(),
        };
        gateway.spawn_admin(&config.limits, &tls, TcpListener::from_std(sockets.admin)?, admin_room);
        if is_single(&config) {
            tracing::warn!(
                "the stores are embedded: this is a single instance, a second gateway would not see its events"
            );
        }
        tracing::info!(listener = "public", address = %public, tls = tls.public.is_on(), "listening");
        tracing::info!(listener = "admin", address = %admin, tls = tls.admin.is_on(), "listening");
        let reloader = Reloader {
            file: start.file,
            running: config,
            live,
            token,
            metrics: Reloads::new(Duration::from_millis(Clock::System.now().0)),
            tls,
            tracker: gateway.tracker.clone(),
            stop: gateway.stopping.clone(),
        };
        gateway.tracker.spawn(reloader.run(start.hangup, wishes));
        if let Some(mut line) = before
            && let Err(error) = line.stop()
        {
            tracing::warn!(%error, "the gateway before can't be told to stop; perhaps it has ended");
        }
        Ok(gateway)
    }

    /// Accepts nothing more, finishes what is under way, records what is unsettled, closes the stores.
    ///
    /// # Errors
    /// When requests, or replays, were still under way after the grace.
    pub async fn stop(self) -> anyhow::Result<()> {
        self.draining.cancel();
        let under_way = async {
            for worker in self.workers {
                // A worker that is gone has ended too.
                drop(worker.await);
            }
            // Until then a person may still decide; from here on nobody begins to, and who has is waited for.
            self.decisions.close();
            self.decisions.wait().await;
        };
        let drained = tokio::time::timeout(self.grace, under_way).await;
        self.decisions.close();
        self.stopping.cancel();
        self.tracker.close();
        let flushed = tokio::time::timeout(FLUSH_MAX, async {
            self.ledger.flushed().await;
            self.ledger.durable().close().await;
            self.ledger.hot().close();
            self.tracker.wait().await;
        });
        let flushed = flushed.await;
        anyhow::ensure!(drained.is_ok(), "requests were still under way after the grace of {:?}", self.grace);
        anyhow::ensure!(flushed.is_ok(), "the stores did not close within {FLUSH_MAX:?}");
        tracing::info!("stopped");
        Ok(())
    }

    fn spawn_admin(&self, limits: &Limits, tls: &Tls, socket: TcpListener, admin: Admin) {
        let listening = Listening {
            limits: limits.clone(),
            // Whoever holds them all idle must not keep a probe waiting.
            slots: Slots::yielding("admin", ADMIN_CONNECTIONS_MAX),
            tls: Arc::clone(&tls.admin),
            shutdown: self.admin_closing.clone(),
            idle_linger: Duration::ZERO,
            tracker: self.tracker.clone(),
        };
        self.tracker.spawn(listen::serve(socket, AdminDoor(Arc::new(admin)), listening));
    }
}

/// The sockets of the gateway that runs, if one does.
fn take_over(listen: &Listen) -> anyhow::Result<Option<(Predecessor, Inherited)>> {
    let path =
        listen.handover.as_deref().context("a takeover needs [listen] handover, here and where it runs")?;
    Predecessor::ask(path)
        .with_context(|| format!("[listen] handover: no sockets can be had through {}", path.display()))
}

/// Whether the events are known to this process, or this machine, alone.
fn is_single(config: &Config) -> bool {
    match (&config.hot, &config.durable) {
        (_, config::Durable::Sqlite { .. }) => true,
        (config::Hot::Memory { .. } | config::Hot::Redis(_), config::Durable::Postgres(_)) => false,
    }
}

/// The admin listener's handler.
#[derive(Clone)]
struct AdminDoor(Arc<Admin>);

impl Handler for AdminDoor {
    async fn handle(self, request: Request<Incoming>, peer: Peer) -> Response<Body> {
        self.0.receive(request, peer.address).await.map(Body::from)
    }
}
