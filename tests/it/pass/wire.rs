//! Bytes on real sockets for these stories: a scripted app, a raw sender, and a listener that passes on.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use umavez::config::{Limits, Target};
use umavez::flow::body;
use umavez::flow::pass::{self, Tunnels};
use umavez::listen::{Handler, Listening, Peer, Slots, reuse_port_listeners, serve};
use umavez::tls::ListenerTls;
use umavez::trace::Trace;
use umavez::upstream::headers::Caller;
use umavez::upstream::{Body, Upstream};

/// Longer than anything here takes, shorter than a person waits.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn limits() -> Limits {
    Limits {
        connections_max: 100,
        header_timeout: Duration::from_secs(10),
        header_bytes_max: 16 * 1024,
        body_timeout: Duration::from_secs(10),
        idle_timeout: Duration::from_secs(30),
        connect_timeout: Duration::from_secs(2),
        answer_bytes_max: 1 << 20,
        buffered_bytes_max: 64 << 20,
        waiting_writes_max: 100,
    }
}

pub(crate) fn target(address: SocketAddr) -> Target {
    Target {
        scheme: http::uri::Scheme::HTTP,
        authority: address.to_string().parse().unwrap(),
        prefix: String::new(),
        http2: false,
        files: None,
        server_name: None,
    }
}

/// One end of a connection, read as HTTP/1.1 by hand.
pub(crate) struct Wire {
    stream: TcpStream,
    unread: Vec<u8>,
}

/// A message as it was on the wire.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Message {
    pub(crate) fn line(&self) -> &str {
        self.head.lines().next().unwrap_or_default()
    }

    pub(crate) fn status(&self) -> u16 {
        self.line().split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default()
    }

    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        self.head
            .lines()
            .skip(1)
            .filter_map(|line| line.split_once(": "))
            .filter(|(seen, _)| seen.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
            .collect()
    }
}

impl Wire {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self::of(TcpStream::connect(address).await.unwrap())
    }

    fn of(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        Self { stream, unread: Vec::new() }
    }

    pub(crate) async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
    }

    /// True if the bytes could be written.
    pub(crate) async fn try_write(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).await.is_ok()
    }

    async fn more(&mut self) -> bool {
        let read = tokio::time::timeout(PATIENCE, self.stream.read_buf(&mut self.unread)).await;
        matches!(read.expect("something should have come by now"), Ok(1..))
    }

    pub(crate) async fn exactly(&mut self, count: usize) -> Vec<u8> {
        while self.unread.len() < count {
            assert!(self.more().await, "the connection ended early");
        }
        self.unread.drain(..count).collect()
    }

    async fn until(&mut self, end: &[u8]) -> Option<Vec<u8>> {
        loop {
            if let Some(at) = self.unread.windows(end.len()).position(|window| window == end) {
                return Some(self.unread.drain(..at + end.len()).collect());
            }
            if !self.more().await {
                return None;
            }
        }
    }

    /// A head alone; none when the other end has closed.
    pub(crate) async fn head(&mut self) -> Option<String> {
        // Byte for byte, so that no value is lost.
        Some(self.until(b"\r\n\r\n").await?.iter().map(|&byte| char::from(byte)).collect())
    }

    /// A whole message, framed by its length or by chunks.
    pub(crate) async fn message(&mut self) -> Option<Message> {
        let mut message = Message { head: self.head().await?, body: Vec::new() };
        if message.all("transfer-encoding") == ["chunked"] {
            loop {
                let line = self.until(b"\r\n").await?;
                let size = usize::from_str_radix(std::str::from_utf8(&line).unwrap().trim(), 16).unwrap();
                message.body.extend(self.exactly(size).await);
                self.exactly(2).await;
                if size == 0 {
                    return Some(message);
                }
            }
        }
        let length = message.all("content-length").first().map_or(0, |length| length.parse().unwrap());
        message.body = self.exactly(length).await;
        Some(message)
    }

    /// Everything until the other end closes.
    pub(crate) async fn rest(&mut self) -> Vec<u8> {
        while self.more().await {}
        std::mem::take(&mut self.unread)
    }

    /// True once the other end has closed with nothing more to say.
    pub(crate) async fn ended(&mut self) -> bool {
        self.rest().await.is_empty()
    }
}

/// A scripted app.
pub(crate) struct App {
    pub(crate) address: SocketAddr,
    connections: Arc<AtomicUsize>,
    stop: CancellationToken,
}

impl App {
    /// Runs `script` on every connection, given its number.
    pub(crate) async fn start<F, Fut>(script: F) -> Self
    where
        F: Fn(usize, Wire) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (connections, stop) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
        let (counter, stopped, tasks) = (Arc::clone(&connections), stop.clone(), TaskTracker::new());
        TaskTracker::new().spawn(async move {
            while let Some(Ok((stream, _))) = stopped.run_until_cancelled(listener.accept()).await {
                tasks.spawn(script(counter.fetch_add(1, Ordering::SeqCst), Wire::of(stream)));
            }
        });
        Self { address, connections, stop }
    }

    /// Answers every request alike.
    pub(crate) async fn answering(answer: &'static [u8]) -> Self {
        Self::start(move |_, mut wire| async move {
            while wire.message().await.is_some() {
                wire.write(answer).await;
            }
        })
        .await
    }

    /// Answers with the request itself: its head and body as the answer's body.
    pub(crate) async fn echoing() -> Self {
        Self::start(|_, mut wire| async move {
            while let Some(message) = wire.message().await {
                let mut echo: Vec<u8> = message.head.chars().map(|c| u8::try_from(c).unwrap()).collect();
                echo.extend(message.body);
                wire.write(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", echo.len())).await;
                wire.write(echo).await;
            }
        })
        .await
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

impl Drop for App {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// How the listener's handler treats a request.
#[derive(Clone)]
enum Treatment {
    Pass,
    /// Collects up to so many bytes, then forwards.
    Collect(usize),
    Panic,
}

#[derive(Clone)]
struct Front {
    upstream: Arc<Upstream>,
    target: Target,
    tunnels: Tunnels,
    treatment: Treatment,
    trusted: bool,
}

impl Handler for Front {
    async fn handle(self, request: Request<Incoming>, peer: Peer) -> Response<Body> {
        let caller = Caller { address: peer.address.ip(), secure: peer.secure, trusted: self.trusted };
        let limit = match self.treatment {
            Treatment::Panic if request.uri().path() == "/panic" => panic!("as asked"),
            Treatment::Panic | Treatment::Pass => {
                return pass::pass(
                    &self.upstream,
                    &self.target,
                    (Bytes::new(), request),
                    &caller,
                    &mut Trace::default(),
                    &self.tunnels,
                    peer.slot(),
                )
                .await;
            }
            Treatment::Collect(limit) => limit,
        };
        let (parts, incoming) = request.into_parts();
        let mut room = umavez::flow::Rooms::default().room(limits().buffered_bytes_max);
        let incoming = umavez::upstream::Arriving::new(incoming, parts.version);
        let bytes = match body::read(incoming, limit, limits().body_timeout, &mut room).await {
            Ok(body::Came::Whole(bytes)) => bytes,
            Ok(body::Came::Longer(_, _)) => return status(413),
            Ok(body::Came::Crowded(_, _)) => return status(503),
            Err(body::BodyError::Timeout(_)) => return status(408),
            Err(_) => return status(400),
        };
        let request = Request::from_parts(parts, bytes);
        match self.upstream.forward(&self.target, request, PATIENCE, 1 << 20).await {
            umavez::upstream::Outcome::Answered(answer) => answer.map(Body::from),
            umavez::upstream::Outcome::NeverSent(_) | umavez::upstream::Outcome::Unknown(_) => status(502),
        }
    }
}

fn status(status: u16) -> Response<Body> {
    Response::builder().status(status).body(Body::from(Bytes::from(status.to_string()))).unwrap()
}

/// The listener and the pass-through, in this process.
pub(crate) struct Gateway {
    pub(crate) address: SocketAddr,
    pub(crate) shutdown: CancellationToken,
    pub(crate) tracker: TaskTracker,
}

impl Gateway {
    pub(crate) fn passing(target: Target) -> Self {
        Self::start(target, Treatment::Pass, limits(), false)
    }

    pub(crate) fn passing_within(target: Target, limits: Limits) -> Self {
        Self::start(target, Treatment::Pass, limits, false)
    }

    pub(crate) fn behind_a_trusted_proxy(target: Target) -> Self {
        Self::start(target, Treatment::Pass, limits(), true)
    }

    pub(crate) fn collecting(target: Target, limit: usize) -> Self {
        Self::start(target, Treatment::Collect(limit), limits(), false)
    }

    pub(crate) fn panicking(target: Target) -> Self {
        Self::start(target, Treatment::Panic, limits(), false)
    }

    fn start(target: Target, treatment: Treatment, limits: Limits, trusted: bool) -> Self {
        let socket = reuse_port_listeners("127.0.0.1:0".parse().unwrap(), 1).unwrap().remove(0);
        let address = socket.local_addr().unwrap();
        let (shutdown, tracker) = (CancellationToken::new(), TaskTracker::new());
        let front = Front {
            upstream: Arc::new(Upstream::new(&limits, Arc::default())),
            target,
            tunnels: Tunnels { tracker: tracker.clone(), shutdown: shutdown.clone() },
            treatment,
            trusted,
        };
        let listening = Listening {
            slots: Slots::new("public", limits.connections_max),
            limits,
            tls: Arc::new(ListenerTls::off("public")),
            shutdown: shutdown.clone(),
            idle_linger: Duration::ZERO,
            tracker: tracker.clone(),
        };
        tracker.spawn(serve(TcpListener::from_std(socket).unwrap(), front, listening));
        Self { address, shutdown, tracker }
    }

    /// Sends raw bytes on a new connection and reads one answer.
    pub(crate) async fn send(&self, bytes: impl AsRef<[u8]>) -> Message {
        let mut wire = Wire::connect(self.address).await;
        wire.write(bytes).await;
        wire.message().await.expect("an answer")
    }

    pub(crate) async fn drained(&self) {
        self.tracker.close();
        tokio::time::timeout(PATIENCE, self.tracker.wait()).await.expect("drained");
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}
