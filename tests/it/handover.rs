//! One process follows another on the same sockets, and nobody who sends notices: not on new connections, not on kept
//! ones, not over HTTP/2.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::support::{
    Answer, Connection, Gate, Gateway, Pair, Reply, Stores, Upstream, order, try_send, within,
};

/// The folder is where the configuration is.
const HANDOVER: &str = "handover = \"handover.sock\"";

/// Senders that send until they are told to stop, each event once.
struct Load {
    stop: Arc<AtomicBool>,
    senders: Vec<JoinHandle<Sent>>,
}

#[derive(Default)]
struct Sent {
    answered: usize,
    /// Answers that said that they were the connection's last.
    last: usize,
    failures: Vec<String>,
}

impl Sent {
    fn note(&mut self, id: &str, answer: std::io::Result<Answer>) {
        match answer {
            Ok(answer) if answer.complete && (answer.status, &*answer.verdict()) == (200, "first") => {
                self.answered += 1;
            }
            Ok(answer) => {
                self.failures.push(format!("{id}: {} {} {}", answer.status, answer.verdict(), answer.text()));
            }
            Err(error) => self.failures.push(format!("{id}: {error}")),
        }
    }
}

impl Load {
    fn on(address: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut senders = Vec::new();
        for n in 0..3 {
            senders.push(tokio::spawn(on_new_connections(address, n, Arc::clone(&stop))));
            senders.push(tokio::spawn(on_kept_connections(address, n, Arc::clone(&stop))));
        }
        senders.push(tokio::spawn(over_http2(address, Arc::clone(&stop))));
        Self { stop, senders }
    }

    /// How many were answered; a failure fails the story.
    async fn ended(self) -> Sent {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Sent::default();
        for sender in self.senders {
            let sent = within("a sender", sender).await.unwrap();
            all.answered += sent.answered;
            all.last += sent.last;
            all.failures.extend(sent.failures);
        }
        assert!(all.failures.is_empty(), "{} failed:\n{}", all.failures.len(), all.failures.join("\n"));
        all
    }
}

async fn on_new_connections(address: SocketAddr, sender: usize, stop: Arc<AtomicBool>) -> Sent {
    let mut sent = Sent::default();
    for n in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let id = format!("new-{sender}-{n}");
        sent.note(&id, try_send(address, &order(&id)).await);
    }
    sent
}

/// As an HTTP client does: a connection that was closed, or that said so, is left before the next request.
async fn on_kept_connections(address: SocketAddr, sender: usize, stop: Arc<AtomicBool>) -> Sent {
    let mut sent = Sent::default();
    let mut kept: Option<Connection> = None;
    for n in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let id = format!("kept-{sender}-{n}");
        let mut open = kept.take();
        if let Some(connection) = &mut open
            && connection.is_closed_within(Duration::from_millis(2)).await
        {
            open = None;
        }
        let mut connection = match open {
            Some(connection) => connection,
            None => match Connection::try_to(address).await {
                Ok(connection) => connection,
                Err(error) => {
                    sent.failures.push(format!("{id}: {error}"));
                    continue;
                }
            },
        };
        let answer = connection.try_send(&order(&id)).await;
        let last =
            answer.as_ref().is_ok_and(|answer| answer.header("connection").as_deref() == Some("close"));
        sent.last += usize::from(last);
        kept = (!last).then_some(connection);
        sent.note(&id, answer);
    }
    sent
}

async fn over_http2(address: SocketAddr, stop: Arc<AtomicBool>) -> Sent {
    let mut sent = Sent::default();
    let mut kept: Option<http2::SendRequest<Full<Bytes>>> = None;
    for n in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let body = Bytes::from(format!(r#"{{"id":"h2-{n}"}}"#));
        let mut request =
            http::Request::post(format!("http://{address}/hooks")).body(Full::new(body)).unwrap();
        // A request that goodbye kept from being sent goes out on the next connection.
        let answer = loop {
            let mut sender = match kept.take() {
                Some(sender) if !sender.is_closed() => sender,
                Some(_) | None => {
                    let stream = TcpStream::connect(address).await.unwrap();
                    let made = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
                    tokio::spawn(made.1);
                    made.0
                }
            };
            match sender.try_send_request(request).await {
                Ok(answer) => {
                    kept = Some(sender);
                    break Ok(answer);
                }
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => break Err(error.into_error()),
                },
            }
        };
        match answer {
            Ok(answer) if answer.status() == 200 && answer.headers()["umavez"] == "first" => {
                match answer.into_body().collect().await {
                    Ok(_) => sent.answered += 1,
                    Err(error) => sent.failures.push(format!("h2-{n}: {error}")),
                }
            }
            Ok(answer) => sent.failures.push(format!("h2-{n}: {answer:?}")),
            Err(error) => sent.failures.push(format!("h2-{n}: {error}")),
        }
    }
    sent
}

/// An app that takes a while, so that requests are under way whenever a process goes.
async fn app() -> Upstream {
    Upstream::deciding(|_, _| Reply::new(200, "done").after(Duration::from_millis(20))).await
}

/// Every request reached the app once, and each is known by whoever serves now.
async fn all_is_well(gateway: &Gateway, upstream: &Upstream, sent: &Sent) {
    assert_eq!(upstream.received(), sent.answered);
    for id in ["new-0-0", "kept-0-0", "h2-0"] {
        assert_eq!(gateway.send(&order(id)).await.verdict(), "duplicate", "{id}");
    }
}

async fn takeovers_under_load(pair: Pair, takeovers: usize) {
    let stores = Stores::open(pair).await;
    let upstream = app().await;
    let mut gateway = Gateway::in_front_of(&upstream).on(&stores).listen(HANDOVER).start().await;
    let load = Load::on(gateway.address());
    for _ in 0..takeovers {
        upstream.until_received(upstream.received() + 30).await;
        assert_eq!(gateway.take_over().await, Some(0), "the one before ends by itself, in good order");
    }
    upstream.until_received(upstream.received() + 30).await;
    let sent = load.ended().await;
    assert!(sent.last > 0, "kept connections are told that they end");
    all_is_well(&gateway, &upstream, &sent).await;
    assert_eq!(gateway.ask_admin("GET", "/ready").await.status, 200);
    assert!(gateway.logs().contains("took over the sockets of the gateway that runs"));
}

#[tokio::test]
async fn takeovers_under_load_fail_no_request() {
    takeovers_under_load(Pair::RedisPostgres, 5).await;
}

#[tokio::test]
async fn takeovers_of_an_sqlite_file_fail_no_request_either() {
    // One process to a file: who comes meanwhile waits until the one before has ended.
    takeovers_under_load(Pair::Embedded, 3).await;
}

#[tokio::test]
async fn restarts_with_sockets_of_systemd_fail_no_request() {
    let upstream = app().await;
    let mut gateway = Gateway::in_front_of(&upstream).with_sockets_of_its_own().start().await;
    let load = Load::on(gateway.address());
    for _ in 0..3 {
        upstream.until_received(upstream.received() + 30).await;
        gateway.terminate();
        assert_eq!(gateway.wait_exit().await, Some(0));
        gateway.restart().await;
    }
    upstream.until_received(upstream.received() + 30).await;
    let sent = load.ended().await;
    all_is_well(&gateway, &upstream, &sent).await;
}

#[tokio::test]
async fn a_socket_of_systemd_that_nobody_wants_is_a_mistake() {
    let upstream = Upstream::answering(200, "").await;
    let mut gateway = Gateway::in_front_of(&upstream).with_sockets_of_its_own().start().await;
    gateway.terminate();
    gateway.wait_exit().await;
    let elsewhere = format!("127.0.0.1:{}", crate::support::free_port());
    gateway.edit(&gateway.admin().to_string(), &elsewhere);
    let (code, said) = gateway.fail_to_start().await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&format!("systemd passed a socket on {}", gateway.admin())), "{said}");
}

#[tokio::test]
async fn a_new_process_that_cannot_start_leaves_the_old_one_as_it_was() {
    let stores = Stores::open(Pair::MemoryPostgres).await;
    let upstream = app().await;
    let mut gateway = Gateway::in_front_of(&upstream).on(&stores).listen(HANDOVER).start().await;
    let load = Load::on(gateway.address());
    upstream.until_received(10).await;
    // It has the sockets already when it finds that it may not listen there.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (old, new) = (gateway.admin().to_string(), taken.local_addr().unwrap().to_string());
    gateway.edit(&old, &new);
    let (code, said) = gateway.fail_to_take_over().await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("[listen] admin: can't listen on"), "{said}");
    upstream.until_received(upstream.received() + 30).await;
    // And it can still be followed.
    gateway.edit(&new, &old);
    assert_eq!(gateway.take_over().await, Some(0));
    let sent = load.ended().await;
    all_is_well(&gateway, &upstream, &sent).await;
}

#[tokio::test]
async fn without_the_setting_or_without_a_gateway_there_is_nothing_to_take_over() {
    let upstream = Upstream::answering(200, "").await;
    let mut gateway = Gateway::in_front_of(&upstream).start().await;
    let (code, said) = gateway.fail_to_take_over().await;
    assert_eq!(code, Some(64), "{said}");
    assert!(said.contains("--takeover: the file names no [listen] handover"), "{said}");
    // A second process that doesn't ask is refused, as ever.
    let (code, said) = gateway.fail_to_start().await;
    assert_eq!(code, Some(1), "{said}");
    gateway.kill();
    gateway.edit("[listen]", &format!("[listen]\n{HANDOVER}"));
    assert_eq!(gateway.take_over().await, None, "the one before was killed; the new one listens by itself");
    assert_eq!(gateway.send(&order("1")).await.verdict(), "first");
}

#[tokio::test]
async fn a_kept_connection_sends_on_after_the_signal_until_it_is_told_to_end() {
    let gate = Gate::closed();
    let held = gate.clone();
    let upstream = Upstream::deciding(move |request, _| {
        let reply = Reply::new(200, "");
        if request.text().contains("slow") { reply.behind(&held) } else { reply }
    })
    .await;
    let mut gateway = Gateway::in_front_of(&upstream).start().await;
    let mut kept = gateway.connect().await;
    assert_eq!(kept.send(&order("before")).await.status, 200);
    // Something under way, so that the stop waits.
    let slow = gateway.sending(&order("slow"));
    upstream.until_received(2).await;
    gateway.terminate();
    // Idle between two requests when the stop comes, and none of them is lost.
    for n in 0.. {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let answer = kept.try_send(&order(&format!("after-{n}"))).await.unwrap();
        assert_eq!((answer.status, answer.verdict().as_str()), (200, "first"));
        if answer.header("connection").as_deref() == Some("close") {
            break;
        }
    }
    assert!(kept.is_closed_within(Duration::from_secs(5)).await);
    gate.open();
    assert_eq!(slow.await.unwrap().status, 200);
    assert_eq!(gateway.wait_exit().await, Some(0));
}
