//! Builds every part from a Config, runs both listeners, drains.
//!
//! One thread per core serves: its own runtime, its own socket on the shared port, its own connections to the app and
//! to Redis. The calling thread's runtime runs what is shared: the durable store's writer, the sweeper, the admin
//! listener and the signals.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use http::{Request, Response};
use hyper::body::Incoming;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admin::Admin;
use crate::clock::Clock;
use crate::config::{self, Config};
use crate::flow::{Flow, Route, Routes, Shared, Tunnels};
use crate::ledger::Ledger;
use crate::ledger::durable::{Durable, DurableError, Unfit};
use crate::ledger::hot::Hot;
use crate::listen::{self, Handler, Listening, Peer, Slots};
use crate::metrics::{self, Stores};
use crate::tls::Tls;
use crate::upstream::headers::Caller;
use crate::upstream::{Body, Upstream};

/// How often expired rows are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
/// Rows deleted by one statement of the sweeper.
const SWEEP_ROWS: usize = 1000;
/// Past so many held events the gauge stands still: somebody must look long before.
const HELD_COUNTED_MAX: usize = 1000;
/// How often histograms are folded, so that they stay small between two scrapes.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);
/// Connections that the admin listener serves at once.
const ADMIN_CONNECTIONS_MAX: usize = 64;
/// How long a store may take to answer a probe.
const PROBE_MAX: Duration = Duration::from_secs(10);
/// How long the last settlements may take after the last request has ended.
const FLUSH_MAX: Duration = Duration::from_secs(10);

/// A gateway that serves.
pub struct Gateway {
    /// Where providers come; with the port that was chosen, where the configuration left it open.
    pub public: SocketAddr,
    pub admin: SocketAddr,
    draining: CancellationToken,
    stopping: CancellationToken,
    tracker: TaskTracker,
    workers: Vec<oneshot::Receiver<()>>,
    ledger: Ledger,
    grace: Duration,
}

/// Runs until SIGTERM or SIGINT, then drains. Blocks the calling thread.
///
/// # Errors
/// When a socket can't be bound, a store can't be opened, or the drain took longer than its grace.
pub fn run(config: Config) -> anyhow::Result<()> {
    let prometheus = metrics::install().context("the metrics recorder")?;
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let gateway = Gateway::start(config, prometheus).await?;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping: no new connections; finishing what is under way");
        tokio::select! {
            stopped = gateway.stop() => stopped,
            _ = terminate.recv() => anyhow::bail!("stopped at once by a second signal"),
            _ = interrupt.recv() => anyhow::bail!("stopped at once by a second signal"),
        }
    })
}

impl Gateway {
    /// Starts to serve. What is shared runs on the calling runtime.
    ///
    /// # Errors
    /// When a socket can't be bound or a store can't be opened.
    pub async fn start(config: Config, prometheus: PrometheusHandle) -> anyhow::Result<Self> {
        // Fails only where a provider is installed already, which is then the same one.
        drop(rustls::crypto::ring::default_provider().install_default());
        let tls = Tls::open(&config.tls)?;
        if config.has_encrypted_apps() {
            tls.app.prepare().map_err(anyhow::Error::from_boxed).context("TLS to the app")?;
        }
        let listen = &config.listen;
        let sockets = listen::reuse_port_listeners(listen.public, listen.workers)
            .with_context(|| format!("[listen] public: can't listen on {}", listen.public))?;
        let public = sockets.first().context("[listen] workers: at least 1")?.local_addr()?;
        let admin_socket = TcpListener::bind(listen.admin)
            .await
            .with_context(|| format!("[listen] admin: can't listen on {}", listen.admin))?;
        let admin = admin_socket.local_addr()?;

        let tracker = TaskTracker::new();
        let (draining, stopping) = (CancellationToken::new(), CancellationToken::new());
        let stores = Stores::new();
        let durable =
            Durable::open(&config.durable, &config.limits, &tracker).await.context("the durable store")?;
        let hot = Hot::open(&config.hot, &tracker).await.context("the hot store")?;
        let ledger = Ledger::new(hot, durable, Clock::System, stores.clone(), (&tracker, &stopping));
        let shared = Arc::new(Shared {
            routes: Routes::new(
                config.routes.iter().map(|route| Route::new(Arc::clone(route))).collect::<Result<_, _>>()?,
            )?,
            default: config.upstream.clone(),
            limits: config.limits.clone(),
            clock: Clock::System,
        });
        let mut gateway = Self {
            public,
            admin,
            draining,
            stopping,
            tracker,
            workers: Vec::new(),
            ledger: ledger.clone(),
            grace: listen.grace,
        };
        gateway.spawn_workers(&config, sockets, &ledger, &shared, &tls)?;
        gateway.spawn_housekeeping(&ledger, &stores, &prometheus);
        gateway.spawn_admin(&config, admin_socket, ledger, shared, (prometheus, stores), &tls);
        gateway.tracker.spawn(gateway.stopping.clone().run_until_cancelled_owned(Arc::clone(&tls).watch()));
        if is_single(&config) {
            tracing::warn!(
                "the stores are embedded: this is a single instance, a second gateway would not see its events"
            );
        }
        tracing::info!(listener = "public", address = %public, tls = tls.public.is_on(), "listening");
        tracing::info!(listener = "admin", address = %admin, tls = tls.admin.is_on(), "listening");
        Ok(gateway)
    }

    /// Accepts nothing more, finishes what is under way, records what is unsettled, closes the stores.
    ///
    /// # Errors
    /// When requests were still under way after the grace.
    pub async fn stop(self) -> anyhow::Result<()> {
        self.draining.cancel();
        let workers = async {
            for worker in self.workers {
                // A worker that is gone has ended too.
                drop(worker.await);
            }
        };
        let drained = tokio::time::timeout(self.grace, workers).await;
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

    fn spawn_workers(
        &mut self,
        config: &Config,
        sockets: Vec<std::net::TcpListener>,
        ledger: &Ledger,
        shared: &Arc<Shared>,
        tls: &Tls,
    ) -> anyhow::Result<()> {
        let slots = Slots::new(config.limits.connections_max);
        let trusted: Arc<[ipnet::IpNet]> = config.listen.trusted_proxies.clone().into();
        for (index, socket) in sockets.into_iter().enumerate() {
            let (ended, end) = oneshot::channel();
            let tracker = TaskTracker::new();
            let listening = Listening {
                limits: config.limits.clone(),
                slots: slots.clone(),
                tls: Arc::clone(&tls.public),
                shutdown: self.draining.clone(),
                tracker: tracker.clone(),
            };
            let (ledger, shared, trusted) = (ledger.clone(), Arc::clone(shared), Arc::clone(&trusted));
            let upstream = Upstream::new(&config.limits, Arc::clone(&tls.app));
            let runtime = Builder::new_current_thread().enable_all().build()?;
            thread::Builder::new().name(format!("serve-{index}")).spawn(move || {
                runtime.block_on(async move {
                    let served = serve(socket, listening, upstream, ledger, shared, trusted).await;
                    if let Err(error) = served {
                        tracing::error!(error = format!("{error:#}"), "a serving thread ended");
                    }
                    tracker.close();
                    tracker.wait().await;
                });
                // Nobody listens any more if the gateway has given up waiting.
                ended.send(()).ok();
            })?;
            self.workers.push(end);
        }
        Ok(())
    }

    fn spawn_housekeeping(&self, ledger: &Ledger, stores: &Stores, prometheus: &PrometheusHandle) {
        let (durable, stores, stop) = (ledger.durable().clone(), stores.clone(), self.stopping.clone());
        self.tracker.spawn(async move { stop.run_until_cancelled(sweep(durable, stores)).await });
        let (prometheus, stop) = (prometheus.clone(), self.stopping.clone());
        self.tracker.spawn(async move {
            let mut every = tokio::time::interval(UPKEEP_EVERY);
            while stop.run_until_cancelled(every.tick()).await.is_some() {
                prometheus.run_upkeep();
            }
        });
    }

    fn spawn_admin(
        &self,
        config: &Config,
        socket: TcpListener,
        ledger: Ledger,
        shared: Arc<Shared>,
        (prometheus, stores): (PrometheusHandle, Stores),
        tls: &Tls,
    ) {
        let upstream = Upstream::new(&config.limits, Arc::clone(&tls.app));
        let tunnels = Tunnels { tracker: self.tracker.clone(), shutdown: self.stopping.clone() };
        let admin = Admin {
            flow: Flow::new(ledger.clone(), upstream, shared, tunnels),
            ledger,
            prometheus,
            stores,
            token: config.listen.admin_token.clone(),
            draining: self.draining.clone(),
        };
        let listening = Listening {
            limits: config.limits.clone(),
            slots: Slots::new(ADMIN_CONNECTIONS_MAX),
            tls: Arc::clone(&tls.admin),
            shutdown: self.stopping.clone(),
            tracker: self.tracker.clone(),
        };
        self.tracker.spawn(listen::serve(socket, AdminDoor(Arc::new(admin)), listening));
    }
}

/// One serving thread.
async fn serve(
    socket: std::net::TcpListener,
    listening: Listening,
    upstream: Upstream,
    ledger: Ledger,
    shared: Arc<Shared>,
    trusted: Arc<[ipnet::IpNet]>,
) -> anyhow::Result<()> {
    let ledger = ledger.on_this_worker(&listening.tracker).await;
    let tunnels = Tunnels { tracker: listening.tracker.clone(), shutdown: listening.shutdown.clone() };
    let flow = Flow::new(ledger, upstream, shared, tunnels);
    listen::serve(TcpListener::from_std(socket)?, PublicDoor { flow, trusted }, listening).await;
    Ok(())
}

/// Whether the events are known to this process, or this machine, alone.
fn is_single(config: &Config) -> bool {
    match (&config.hot, &config.durable) {
        (_, config::Durable::Sqlite { .. }) => true,
        (config::Hot::Memory { .. } | config::Hot::Redis(_), config::Durable::Postgres(_)) => false,
    }
}

/// Deletes what expired, parks what lapsed, and tells how far behind it is.
async fn sweep(durable: Durable, stores: Stores) {
    let mut every = tokio::time::interval(SWEEP_EVERY);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        loop {
            let swept = match durable.sweep(SWEEP_ROWS).await {
                Ok(swept) => swept,
                Err(error) => {
                    stores.durable_failed(&error);
                    break;
                }
            };
            if swept.held > 0 {
                tracing::warn!(
                    events = swept.held,
                    "held: their leases lapsed, and nobody knows whether the app has processed them"
                );
            }
            stores.swept(swept.deleted, swept.lag);
            if usize::try_from(swept.deleted).is_ok_and(|deleted| deleted < SWEEP_ROWS) {
                break;
            }
        }
        match durable.held(HELD_COUNTED_MAX).await {
            Ok(held) => stores.held(held.len()),
            Err(error) => stores.durable_failed(&error),
        }
    }
}

/// The public listener's handler.
#[derive(Clone)]
struct PublicDoor {
    flow: Flow,
    trusted: Arc<[ipnet::IpNet]>,
}

impl Handler for PublicDoor {
    async fn handle(self, mut request: Request<Incoming>, peer: Peer) -> Response<Body> {
        if let Some(client) = &peer.client {
            request.extensions_mut().insert(client.clone());
        }
        let address = peer.address.ip().to_canonical();
        let trusted = self.trusted.iter().any(|network| network.contains(&address));
        let caller = Caller { address, secure: peer.secure, trusted };
        self.flow.receive(request, caller, peer.slot()).await
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

/// What a store said to [`probe`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probed {
    Answers,
    /// Another process, most likely the running gateway, has the file.
    InUse,
    /// The file is not there yet; a start creates it.
    NotYet,
}

/// Asks both stores whether they would serve this configuration; each answer with the store's section. Creates no
/// file.
///
/// # Errors
/// When no runtime can be had.
pub fn probe(config: &Config) -> anyhow::Result<[(&'static str, anyhow::Result<Probed>); 2]> {
    drop(rustls::crypto::ring::default_provider().install_default());
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let tracker = TaskTracker::new();
        let hot = async {
            let (hot, _pushes) = Hot::open(&config.hot, &tracker).await?;
            let answer = hot.ping().await;
            hot.close();
            answer?;
            Ok(Probed::Answers)
        };
        let hot = tokio::time::timeout(PROBE_MAX, hot).await;
        let durable = tokio::time::timeout(PROBE_MAX, probe_durable(config, &tracker)).await;
        let late = |_| Err(anyhow::anyhow!("no answer within {PROBE_MAX:?}"));
        Ok([("hot", hot.unwrap_or_else(late)), ("durable", durable.unwrap_or_else(late))])
    })
}

async fn probe_durable(config: &Config, tracker: &TaskTracker) -> anyhow::Result<Probed> {
    if let config::Durable::Sqlite { path } = &config.durable
        && !path.try_exists().with_context(|| format!("the file {}", path.display()))?
    {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let there = folder.is_none_or(std::path::Path::is_dir);
        anyhow::ensure!(there, "the folder of {} is not there", path.display());
        return Ok(Probed::NotYet);
    }
    let durable = match Durable::open(&config.durable, &config.limits, tracker).await {
        Err(DurableError::Unfit(unfit)) if matches!(*unfit, Unfit::Shared { .. }) => {
            return Ok(Probed::InUse);
        }
        opened => opened?,
    };
    let answer = durable.ping().await;
    durable.close().await;
    answer?;
    Ok(Probed::Answers)
}
