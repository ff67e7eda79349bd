//! The threads that serve the public listener: each with a runtime, a socket and connections of its own.

use std::sync::Arc;
use std::thread;

use http::{Request, Response};
use hyper::body::Incoming;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use super::{Gateway, IDLE_LINGER};
use crate::clock::Clock;
use crate::config::Config;
use crate::flow::{Flow, Live, Rooms, Tunnels};
use crate::ledger::Ledger;
use crate::listen::{self, Handler, Listening, Peer, Slots};
use crate::tls::Tls;
use crate::upstream::{Body, Upstream};

impl Gateway {
    pub(super) fn spawn_workers(
        &mut self,
        config: &Config,
        sockets: Vec<Vec<std::net::TcpListener>>,
        ledger: &Ledger,
        live: &Live,
        tls: &Tls,
        rooms: &Rooms,
    ) -> anyhow::Result<()> {
        let slots = Slots::new("public", config.limits.connections_max);
        for (index, sockets) in sockets.into_iter().enumerate() {
            let (ended, end) = oneshot::channel();
            let tracker = TaskTracker::new();
            let listening = Listening {
                limits: config.limits.clone(),
                slots: slots.clone(),
                tls: Arc::clone(&tls.public),
                shutdown: self.draining.clone(),
                idle_linger: IDLE_LINGER.min(self.grace / 2),
                tracker: tracker.clone(),
            };
            let (ledger, live, rooms) = (ledger.clone(), live.clone(), rooms.clone());
            let upstream = Upstream::new(&config.limits, Arc::clone(&tls.apps));
            let runtime = Builder::new_current_thread().enable_all().build()?;
            thread::Builder::new().name(format!("serve-{index}")).spawn(move || {
                runtime.block_on(async move {
                    let served = serve(sockets, listening, upstream, ledger, live, rooms).await;
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
    sockets: Vec<std::net::TcpListener>,
    listening: Listening,
    upstream: Upstream,
    ledger: Ledger,
    live: Live,
    rooms: Rooms,
) -> anyhow::Result<()> {
    let ledger = ledger.on_this_worker(&listening.tracker).await;
    let tunnels = Tunnels { tracker: listening.tracker.clone(), shutdown: listening.shutdown.clone() };
    let flow = Flow::new(ledger, upstream, live, Clock::System, tunnels, rooms);
    let door = PublicDoor(flow);
    let mut accepting = Vec::new();
    for socket in sockets {
        accepting.push(listen::serve(TcpListener::from_std(socket)?, door.clone(), listening.clone()));
    }
    futures_util::future::join_all(accepting).await;
    Ok(())
}

/// The public listener's handler.
#[derive(Clone)]
struct PublicDoor(Arc<Flow>);

impl Handler for PublicDoor {
    async fn handle(self, mut request: Request<Incoming>, peer: Peer) -> Response<Body> {
        if let Some(client) = &peer.client {
            request.extensions_mut().insert(client.clone());
        }
        self.0.receive(request, peer).await
    }

    fn turned_away(&self, request: &Request<Incoming>, answer: &mut Response<Body>) {
        answer.headers_mut().extend(self.0.turned_away(request));
    }
}
