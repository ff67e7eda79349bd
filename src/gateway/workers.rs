//! The threads that serve the public listener: each with a runtime, a socket and connections of its own.

use std::sync::Arc;
use std::thread;

use http::{Request, Response};
use hyper::body::Incoming;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use super::{Gateway, tls};
use crate::config::Config;
use crate::flow::{Flow, Shared, Tunnels};
use crate::ledger::Ledger;
use crate::listen::{self, Handler, Listening, Peer, Slots};
use crate::upstream::headers::Caller;
use crate::upstream::{Body, Upstream};

impl Gateway {
    pub(super) fn spawn_workers(
        &mut self,
        config: &Config,
        sockets: Vec<std::net::TcpListener>,
        ledger: &Ledger,
        shared: &Arc<Shared>,
    ) -> anyhow::Result<()> {
        let slots = Slots::new(config.limits.connections_max);
        let tls = tls(config)?;
        let trusted: Arc<[ipnet::IpNet]> = config.listen.trusted_proxies.clone().into();
        for (index, socket) in sockets.into_iter().enumerate() {
            let (ended, end) = oneshot::channel();
            let tracker = TaskTracker::new();
            let listening = Listening {
                limits: config.limits.clone(),
                slots: slots.clone(),
                shutdown: self.draining.clone(),
                tracker: tracker.clone(),
            };
            let (ledger, shared, trusted) = (ledger.clone(), Arc::clone(shared), Arc::clone(&trusted));
            let upstream = Upstream::new(&config.limits, tls.clone());
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

/// The public listener's handler.
#[derive(Clone)]
struct PublicDoor {
    flow: Flow,
    trusted: Arc<[ipnet::IpNet]>,
}

impl Handler for PublicDoor {
    async fn handle(self, request: Request<Incoming>, peer: Peer) -> Response<Body> {
        let address = peer.address.ip().to_canonical();
        let trusted = self.trusted.iter().any(|network| network.contains(&address));
        let caller = Caller { address, secure: peer.secure, trusted };
        self.flow.receive(request, caller, peer.slot()).await
    }
}
