//! Whoever takes nothing: of a download, of an upload, of the log. What they may cost, and what must go on all the same.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::support::{
    Delivery, Gateway, Reply, Upstream, eventually, free_port, nobody, order, send, try_send, within,
};

/// Connections that are stuck at once, and the most that each may add to the gateway's memory.
const STUCK: u64 = 128;
const EACH_KIB_MAX: u64 = 384;

/// Counts what is written to a connection that nobody reads, and never stops to.
async fn write_for_ever(mut stream: TcpStream, written: Arc<AtomicU64>) {
    let chunk = vec![b'x'; 64 * 1024];
    while let Ok(()) = stream.write_all(&chunk).await {
        written.fetch_add(1, Ordering::Relaxed);
    }
}

/// Waits until nothing more of it is taken: for a second the count stays as it is.
async fn until_stuck(written: &AtomicU64) {
    let (mut last, mut same) = (0, 0);
    eventually("everything to be stuck", async || {
        let now = written.load(Ordering::Relaxed);
        same = if now == last && now >= STUCK { same + 1 } else { 0 };
        last = now;
        same > 50
    })
    .await;
}

/// A connection that takes little into the kernel's own memory.
async fn narrow(address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(address).await.unwrap()
}

/// Each download that nobody read kept a MiB of the gateway's memory: a few hundred strangers took what its container
/// had, and `buffered_bytes_max` knew nothing of it.
#[tokio::test]
async fn downloads_that_nobody_reads_take_little_memory() {
    let app = TcpListener::bind(nobody()).await.unwrap();
    let url = format!("http://{}", app.local_addr().unwrap());
    let written = Arc::<AtomicU64>::default();
    let counted = Arc::clone(&written);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = app.accept().await.unwrap();
            let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n";
            let written = Arc::clone(&counted);
            tokio::spawn(async move {
                stream.readable().await.unwrap();
                stream.write_all(head).await.unwrap();
                write_for_ever(stream, written).await;
            });
        }
    });
    let gateway = Gateway::in_front_of_url(&url).start().await;
    let (before, _) = gateway.memory();
    let mut senders = Vec::new();
    for _ in 0..STUCK {
        let mut sender = narrow(gateway.address()).await;
        sender.write_all(b"GET /big HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        senders.push(sender);
    }
    until_stuck(&written).await;
    let (now, _) = gateway.memory();
    let each = (now - before) / STUCK;
    assert!(each < EACH_KIB_MAX, "each takes {each} KiB");
    assert_eq!(senders.len() as u64, STUCK);
}

/// Each upload to an app that didn't read kept half a MiB.
#[tokio::test]
async fn uploads_that_the_app_does_not_read_take_little_memory() {
    let app = TcpListener::bind(nobody()).await.unwrap();
    let url = format!("http://{}", app.local_addr().unwrap());
    tokio::spawn(async move {
        let mut unread = Vec::new();
        loop {
            unread.push(app.accept().await.unwrap());
        }
    });
    let gateway = Gateway::in_front_of_url(&url).start().await;
    let (before, _) = gateway.memory();
    let written = Arc::<AtomicU64>::default();
    for _ in 0..STUCK {
        let mut sender = TcpStream::connect(gateway.address()).await.unwrap();
        sender
            .write_all(b"POST /up HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n")
            .await
            .unwrap();
        tokio::spawn(write_for_ever(sender, Arc::clone(&written)));
    }
    until_stuck(&written).await;
    let (now, _) = gateway.memory();
    let each = (now - before) / STUCK;
    assert!(each < EACH_KIB_MAX, "each takes {each} KiB");
}

/// Of an app behind `h2c://` one download that nobody read held up every other request: they share a connection, whose
/// window its bytes filled.
#[tokio::test]
async fn an_answer_that_nobody_reads_holds_up_no_other_on_its_connection() {
    let listener = TcpListener::bind(nobody()).await.unwrap();
    let url = format!("h2c://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = service_fn(|request: Request<Incoming>| async move {
                let length = if request.uri().path() == "/big" { 8 << 20 } else { 200_000 };
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(vec![b'x'; length]))))
            });
            let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service);
            tokio::spawn(connection);
        }
    });
    let gateway = Gateway::in_front_of_url(&url).listen("workers = 1").start().await;
    let mut senders = Vec::new();
    for _ in 0..8 {
        let mut sender = narrow(gateway.address()).await;
        sender.write_all(b"GET /big HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        sender.readable().await.unwrap();
        senders.push(sender);
    }
    for _ in 0..3 {
        let answer = gateway.send(&Delivery::new("GET", "/other")).await;
        assert_eq!((answer.status, answer.body.len(), answer.complete), (200, 200_000, true));
    }
    drop(senders);
}

/// A gateway whose log nobody reads.
struct Unread {
    process: Child,
    public: SocketAddr,
    admin: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Unread {
    async fn in_front_of(app: &Upstream, grace: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = || SocketAddr::from(([127, 0, 0, 1], free_port()));
        let (public, admin) = (at(), at());
        let config = folder.path().join("umavez.toml");
        let text = format!(
            "[listen]\npublic = \"{public}\"\nadmin = \"{admin}\"\ngrace = \"{grace}\"\n[upstream]\nurl = \"{}\"\n{}",
            app.url(),
            crate::support::ORDERS
        );
        std::fs::write(&config, text).unwrap();
        let process = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", env!("CARGO_BIN_EXE_umavez"), "run", "--config"])
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let started = Self { process, public, admin, _folder: folder };
        eventually("the gateway", async || TcpStream::connect(public).await.is_ok()).await;
        // More lines than a pipe holds.
        for n in 0..600 {
            assert_eq!(send(public, &order(&format!("{n}"))).await.status, 200);
        }
        started
    }

    fn terminate(&self) {
        let sent = Command::new("kill").args(["-s", "TERM", &self.process.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    /// Its exit code, once it has ended.
    async fn ended(&mut self) -> Option<i32> {
        let mut status = None;
        eventually("its end", async || {
            status = self.process.try_wait().unwrap();
            status.is_some()
        })
        .await;
        status.unwrap().code()
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// SIGTERM never ended a gateway whose log's reader was stuck: it waited for the reader.
#[tokio::test]
async fn a_stop_does_not_wait_for_whoever_reads_the_log() {
    let app = Upstream::answering(200, "").await;
    let mut gateway = Unread::in_front_of(&app, "2s").await;
    gateway.terminate();
    assert_eq!(gateway.ended().await, Some(0));
}

/// Nor did a second one, which ends a gateway at once.
#[tokio::test]
async fn a_second_signal_does_not_wait_for_whoever_reads_the_log_either() {
    let app = Upstream::deciding(|request, _| match request.target.as_str() {
        "/silence" => Reply::silence(),
        _ => Reply::new(200, ""),
    })
    .await;
    let mut gateway = Unread::in_front_of(&app, "1h").await;
    let mut sender = TcpStream::connect(gateway.public).await.unwrap();
    sender.write_all(b"GET /silence HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    app.until_received(601).await;
    gateway.terminate();
    let (admin, ready) = (gateway.admin, Delivery::new("GET", "/ready"));
    eventually("the drain", async || {
        within("an answer", try_send(admin, &ready)).await.is_ok_and(|answer| answer.status == 503)
    })
    .await;
    assert!(gateway.process.try_wait().unwrap().is_none());
    gateway.terminate();
    assert_eq!(gateway.ended().await, Some(1));
    drop(sender);
}
