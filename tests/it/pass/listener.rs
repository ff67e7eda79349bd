//! What the listener lets in, what it refuses, and how it ends.

use std::time::Duration;

use umavez::config::Limits;

use super::wire::{App, Gateway, PATIENCE, Wire, limits, target};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

#[tokio::test]
async fn ambiguous_requests_are_refused_and_never_reach_the_app() {
    let app = App::answering(OK).await;
    let gateway = Gateway::passing(target(app.address));
    let table: &[(&str, u16)] = &[
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: +3\r\n\r\nabc", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3, 3\r\n\r\nabc", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n", 400),
        ("POST / HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a\r\nx: 1\r\n folded\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a\r\nx : 1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a\r\nx: 1\r2\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a\r\nx: \0\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a/b\r\n\r\n", 400),
        ("GET a.example:80 HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("GET  / HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("TRACE / HTTP/1.1\r\nhost: a\r\n\r\n", 405),
        ("CONNECT a.example:443 HTTP/1.1\r\nhost: a\r\n\r\n", 405),
    ];
    for (bytes, status) in table {
        let mut wire = Wire::connect(gateway.address).await;
        wire.write(bytes).await;
        let answer = wire.message().await.unwrap_or_else(|| panic!("no answer to {bytes:?}"));
        assert_eq!(answer.status(), *status, "{bytes:?}");
        assert!(wire.ended().await, "{bytes:?}");
    }
    assert_eq!(app.connections(), 0);
}

#[tokio::test]
async fn a_body_with_a_length_and_chunks_hides_no_second_request() {
    for head in [
        "content-length: 15\r\ntransfer-encoding: chunked",
        "transfer-encoding: chunked\r\ncontent-length: 15",
    ] {
        let app = App::echoing().await;
        let gateway = Gateway::passing(target(app.address));
        let mut wire = Wire::connect(gateway.address).await;
        wire.write(format!(
            "POST /h/x HTTP/1.1\r\nhost: a\r\n{head}\r\n\r\n0\r\n\r\nGET /admin HTTP/1.1\r\nhost: a\r\n\r\n"
        ))
        .await;
        let answer = wire.rest().await;
        let answer = String::from_utf8(answer).unwrap();
        assert!(!answer.contains("/admin"), "{answer}");
        assert_eq!(answer.matches("HTTP/1.1 200").count(), 1, "{answer}");
        assert!(!answer.contains("content-length: 15"), "{answer}");
    }
}

#[tokio::test]
async fn a_bad_chunk_ends_the_request() {
    let app = App::echoing().await;
    let gateway = Gateway::collecting(target(app.address), 1000);
    for chunk in ["zz\r\nabc\r\n0\r\n\r\n", "3\r\nabcd\r\n0\r\n\r\n", "-1\r\n\r\n", "ffffffffffffffffff\r\n"]
    {
        let answer = gateway
            .send(format!("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n{chunk}"))
            .await;
        assert_eq!(answer.status(), 400, "{chunk:?}");
    }
    assert_eq!(app.connections(), 0);
}

#[tokio::test]
async fn an_absolute_target_reaches_the_app_as_a_path_and_its_host() {
    let app = App::echoing().await;
    let gateway = Gateway::passing(target(app.address));
    let answer = gateway.send("GET http://b.example/x?y HTTP/1.1\r\nhost: a.example\r\n\r\n").await;
    let seen = String::from_utf8(answer.body).unwrap();
    assert!(seen.starts_with("GET /x?y HTTP/1.1\r\nhost: b.example\r\n"), "{seen}");
}

#[tokio::test]
async fn a_head_that_is_too_long_is_told_so() {
    let app = App::answering(OK).await;
    let gateway = Gateway::passing(target(app.address));
    let long = "x".repeat(20_000);
    let many: String = (0..150).map(|n| format!("x-{n}: 1\r\n")).collect();
    for headers in [format!("x: {long}\r\n"), many] {
        let answer = gateway.send(format!("GET / HTTP/1.1\r\nhost: a\r\n{headers}\r\n")).await;
        assert_eq!(answer.status(), 431);
    }
}

#[tokio::test]
async fn who_expects_a_continue_gets_exactly_one() {
    let app = App::echoing().await;
    for gateway in [Gateway::passing(target(app.address)), Gateway::collecting(target(app.address), 10_000)] {
        let mut wire = Wire::connect(gateway.address).await;
        wire.write("POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2048\r\n\r\n")
            .await;
        assert_eq!(wire.head().await.unwrap(), "HTTP/1.1 100 Continue\r\n\r\n");
        wire.write([b'x'; 2048]).await;
        let answer = wire.message().await.unwrap();
        assert_eq!(answer.status(), 200);
        assert!(answer.body.ends_with(&[b'x'; 2048]));
    }
}

#[tokio::test]
async fn who_expects_a_continue_for_too_much_is_refused_at_once() {
    let app = App::answering(OK).await;
    let gateway = Gateway::collecting(target(app.address), 1000);
    let mut wire = Wire::connect(gateway.address).await;
    wire.write("POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2048\r\n\r\n").await;
    assert_eq!(wire.message().await.unwrap().status(), 413);
}

#[tokio::test]
async fn a_body_over_the_limit_gets_a_readable_413() {
    const LIMIT: usize = 1 << 20;
    let app = App::answering(OK).await;
    let gateway = Gateway::collecting(target(app.address), LIMIT);
    for (size, status) in [(LIMIT - 1, 200), (LIMIT, 200), (LIMIT + 1, 413), (8 * LIMIT, 413)] {
        for chunked in [false, true] {
            let mut wire = Wire::connect(gateway.address).await;
            let framing = if chunked {
                "transfer-encoding: chunked".to_owned()
            } else {
                format!("content-length: {size}")
            };
            wire.write(format!("POST / HTTP/1.1\r\nhost: a\r\n{framing}\r\n\r\n")).await;
            // Sends everything before it reads anything, as simple senders do.
            let body = vec![b'x'; size];
            for piece in body.chunks(64 * 1024) {
                if chunked {
                    assert!(wire.try_write(format!("{:x}\r\n", piece.len()).as_bytes()).await);
                }
                assert!(wire.try_write(piece).await, "the sender must be able to finish");
                if chunked {
                    assert!(wire.try_write(b"\r\n").await);
                }
            }
            if chunked {
                assert!(wire.try_write(b"0\r\n\r\n").await);
            }
            assert_eq!(wire.message().await.expect("an answer").status(), status, "{size} {framing}");
        }
    }
}

#[tokio::test]
async fn a_slow_head_is_cut_off_while_others_are_served() {
    let app = App::answering(OK).await;
    let gateway = Gateway::passing_within(
        target(app.address),
        Limits { header_timeout: Duration::from_millis(300), ..limits() },
    );
    let mut silent = Wire::connect(gateway.address).await;
    let mut begun = Wire::connect(gateway.address).await;
    begun.write("GET / HTT").await;
    let mut second = Wire::connect(gateway.address).await;
    second.write("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(second.message().await.unwrap().status(), 200);
    second.write("GET / HT").await; // the second head on a connection, slowly
    assert_eq!(gateway.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.status(), 200);
    for wire in [&mut silent, &mut begun, &mut second] {
        assert!(wire.ended().await);
    }
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_a_slow_answer_is_not() {
    let app = App::start(|_, mut wire| async move {
        while wire.message().await.is_some() {
            wire.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\no").await;
            tokio::time::sleep(Duration::from_millis(600)).await;
            wire.write("k").await;
        }
    })
    .await;
    let short = Duration::from_millis(150);
    let gateway = Gateway::passing_within(
        target(app.address),
        Limits { header_timeout: short, idle_timeout: short, ..limits() },
    );
    let mut wire = Wire::connect(gateway.address).await;
    wire.write("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(wire.message().await.unwrap().body, b"ok");
    assert!(wire.ended().await);
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let app = App::echoing().await;
    let gateway = Gateway::passing(target(app.address));
    let mut wire = Wire::connect(gateway.address).await;
    let requests: String = (0..10).map(|n| format!("GET /{n} HTTP/1.1\r\nhost: a\r\n\r\n")).collect();
    wire.write(requests).await;
    for n in 0..10 {
        let answer = wire.message().await.unwrap();
        assert!(answer.body.starts_with(format!("GET /{n} ").as_bytes()));
    }
}

#[tokio::test]
async fn http_2_reaches_the_app_as_http_1_with_one_host_and_one_cookie() {
    use http_body_util::BodyExt;
    let app = App::echoing().await;
    let gateway = Gateway::passing(target(app.address));
    let stream = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http2::handshake(
        hyper_util::rt::TokioExecutor::new(),
        hyper_util::rt::TokioIo::new(stream),
    )
    .await
    .unwrap();
    tokio_util::task::TaskTracker::new().spawn(connection);
    for host in [None, Some("hooks.example")] {
        let mut request =
            http::Request::post("http://hooks.example/x?y").header("cookie", "a=1").header("cookie", "b=2");
        if let Some(host) = host {
            request = request.header("host", host);
        }
        let request = request.body(umavez::upstream::Body::from("body")).unwrap();
        let answer = sender.send_request(request).await.unwrap();
        let seen = answer.into_body().collect().await.unwrap().to_bytes();
        let seen = String::from_utf8(seen.to_vec()).unwrap();
        assert!(seen.starts_with("POST /x?y HTTP/1.1\r\n"), "{seen}");
        assert_eq!(seen.matches("\r\nhost: hooks.example\r\n").count(), 1, "{seen}");
        assert_eq!(seen.matches("\r\ncookie: a=1; b=2\r\n").count(), 1, "{seen}");
        assert!(!seen.contains("\r\n:"), "{seen}");
    }
}

#[tokio::test]
async fn a_stop_finishes_what_is_under_way_and_takes_nothing_new() {
    let (arrived, mut arrivals) = tokio::sync::mpsc::channel(4);
    let go = tokio_util::sync::CancellationToken::new();
    let script = go.clone();
    let app = App::start(move |_, mut wire| {
        let (arrived, go) = (arrived.clone(), script.clone());
        async move {
            wire.message().await;
            arrived.send(()).await.unwrap();
            go.cancelled().await;
            wire.write(OK).await;
        }
    })
    .await;
    let gateway = Gateway::passing(target(app.address));
    let mut idle = Wire::connect(gateway.address).await;
    let mut busy = Wire::connect(gateway.address).await;
    busy.write("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    arrivals.recv().await.unwrap();
    gateway.shutdown.cancel();
    assert!(idle.ended().await);
    go.cancel();
    let answer = busy.message().await.unwrap();
    assert_eq!((answer.status(), answer.all("connection")), (200, vec!["close"]));
    assert!(busy.ended().await);
    gateway.drained().await;
    assert!(tokio::net::TcpStream::connect(gateway.address).await.is_err());
}

#[tokio::test]
async fn a_panic_ends_one_connection_only() {
    let app = App::answering(OK).await;
    let gateway = Gateway::panicking(target(app.address));
    let mut wire = Wire::connect(gateway.address).await;
    wire.write("GET /panic HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert!(wire.ended().await);
    assert_eq!(gateway.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.status(), 200);
}

#[tokio::test]
async fn more_connections_than_allowed_wait_for_their_turn() {
    let app = App::answering(OK).await;
    let gateway = Gateway::passing_within(target(app.address), Limits { connections_max: 1, ..limits() });
    let mut first = Wire::connect(gateway.address).await;
    first.write("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(first.message().await.unwrap().status(), 200);
    let mut second = Wire::connect(gateway.address).await;
    second.write("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    drop(first);
    let answer = tokio::time::timeout(PATIENCE, second.message()).await.unwrap();
    assert_eq!(answer.unwrap().status(), 200);
}

#[tokio::test]
async fn a_kept_connection_ends_after_its_idle_timeout_however_long_a_head_may_take() {
    // An `idle_timeout` below `header_timeout` did nothing: the connection was first looked at after the longer one.
    let app = App::answering(OK).await;
    let limits =
        Limits { idle_timeout: Duration::from_millis(300), header_timeout: 10 * PATIENCE, ..limits() };
    let gateway = Gateway::passing_within(target(app.address), limits);
    let mut wire = Wire::connect(gateway.address).await;
    wire.write("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(wire.message().await.unwrap().status(), 200);
    assert!(wire.ended().await);
    // One without a request is given the time of a head.
    let mut waiting = Wire::connect(gateway.address).await;
    waiting.write("GET / HTTP/1.1\r\n").await;
    tokio::time::timeout(Duration::from_millis(900), waiting.head()).await.unwrap_err();
    waiting.write("host: a\r\n\r\n").await;
    assert_eq!(waiting.message().await.unwrap().status(), 200);
}
