//! The public side: accepts connections, speaks HTTP/1.1 and HTTP/2 on them, and bounds what each may cost.
//! Knows no route: every request that makes sense goes to the handler it was given.

mod admit;
mod connection;
mod secure;
mod slots;
mod socket;
mod watch;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use slots::Slots;
pub use socket::{Inherited, dealt, reuse_port_listeners};

use crate::clock::Seldom;
use crate::config::Limits;
use crate::tls::ListenerTls;
use crate::upstream::Body;
use slots::Place;
use watch::{Watch, Watched};

/// How long to wait when the process may not open another socket.
const OUT_OF_SOCKETS_PAUSE: Duration = Duration::from_millis(50);

/// Tells of that, once in a while for all threads together.
static OUT_OF_SOCKETS: Seldom = Seldom::every(Duration::from_secs(10));

/// Connections that are taken in after the stop: as many as a socket's queue may hold.
const KNOCKED_MAX: usize = 1024;

/// Whoever is at the other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    pub address: SocketAddr,
    pub secure: bool,
    /// Whose verified certificate the peer presented.
    pub client: Option<ClientNames>,
    slot: Arc<Place>,
}

/// The names of a certificate that was verified: its DNS names and its common name, in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientNames(pub Arc<[String]>);

impl Peer {
    /// The connection's place among those allowed, for who keeps it beyond HTTP (an upgrade).
    pub fn slot(&self) -> Slot {
        Slot(Arc::clone(&self.slot))
    }
}

/// A place among the connections allowed; free again when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Slot(#[expect(dead_code, reason = "held, not read")] Arc<Place>);

/// What a listener needs besides its socket.
#[derive(Clone, Debug)]
pub struct Listening {
    pub limits: Limits,
    pub slots: Slots,
    pub tls: Arc<ListenerTls>,
    /// Cancelled when the gateway stops: no new connection, requests under way are finished.
    pub shutdown: CancellationToken,
    /// How long a kept-alive connection may wait for one more request then, which is answered and told to be the last.
    pub idle_linger: Duration,
    /// Drain waits for what is spawned here: connections, and streams of HTTP/2.
    pub tracker: TaskTracker,
}

/// Answers requests. A panic in it ends its connection, not the loop.
pub trait Handler: Clone + Send + Sync + 'static {
    /// By value: the future outlives the call, and a clone is cheap.
    fn handle(self, request: Request<Incoming>, peer: Peer) -> impl Future<Output = Response<Body>> + Send;

    /// The listener answers this request itself: adds to the answer what every answer of its path carries.
    fn turned_away(&self, _request: &Request<Incoming>, _answer: &mut Response<Body>) {}
}

/// Accepts connections until shutdown, and then those that have knocked before: closing the socket would reset them.
/// The tracker tells when the last one has ended.
pub async fn serve<H: Handler>(listener: TcpListener, handler: H, listening: Listening) {
    let listening = Arc::new(listening);
    loop {
        let accepted = tokio::select! {
            biased;
            () = listening.shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, address)) => take_in(stream, address, &handler, &listening).await,
            Err(error) => pause_after(&error).await,
        }
    }
    // Asked directly: what the runtime knows of the socket may be older than the last one who knocked.
    let Ok(listener) = listener.into_std() else { return };
    for _ in 0..KNOCKED_MAX {
        let Ok((stream, address)) = listener.accept() else { return };
        let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
        if let Ok(stream) = stream {
            take_in(stream, address, &handler, &listening).await;
        }
    }
}

/// Past the limit this one waits, and the rest wait in the kernel's backlog.
async fn take_in<H: Handler>(
    stream: TcpStream,
    address: SocketAddr,
    handler: &H,
    listening: &Arc<Listening>,
) {
    let slot = listening.slots.take().await;
    start(stream, address, slot, handler, listening);
}

fn start<H: Handler>(
    stream: TcpStream,
    address: SocketAddr,
    slot: Place,
    handler: &H,
    listening: &Arc<Listening>,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection was gone before it began");
        return;
    }
    let mut peer = Peer { address, secure: false, client: None, slot: Arc::new(slot) };
    let (handler, ours) = (handler.clone(), Arc::clone(listening));
    let watch = Watch::new();
    let watched = Watched::new(stream, Arc::clone(&watch));
    match listening.tls.acceptor() {
        None => listening.tracker.spawn(connection::begin(watched, watch, peer, handler, ours)),
        Some(acceptor) => {
            peer.secure = true;
            listening.tracker.spawn(secure::drive(watched, watch, acceptor, peer, handler, ours))
        }
    };
}

/// A connection that died before we took it costs nothing; running out of sockets needs patience.
async fn pause_after(error: &std::io::Error) {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    if matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted) {
        return;
    }
    if OUT_OF_SOCKETS.is_due() {
        tracing::warn!(%error, "no connection can be accepted; those who come wait in the kernel");
    }
    tokio::time::sleep(OUT_OF_SOCKETS_PAUSE).await;
}
