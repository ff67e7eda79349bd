//! What an attempt to forward meant: answered, never sent, or unknown.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use umavez::config::Target;
use umavez::upstream::{Outcome, Upstream, UpstreamError};

use super::wire::{App, Gateway, PATIENCE, limits, target};

fn upstream() -> Upstream {
    Upstream::new(&limits(), Arc::default())
}

fn request(method: &str) -> Request<Bytes> {
    let body = if method == "POST" { Bytes::from_static(b"body") } else { Bytes::new() };
    Request::builder().method(method).uri("/h/x?y").header("host", "hooks.example").body(body).unwrap()
}

async fn forward(upstream: &Upstream, target: &Target, method: &str) -> Outcome {
    upstream.forward(target, request(method), PATIENCE, 1000).await
}

#[tokio::test]
async fn a_post_that_the_app_read_is_never_sent_again() {
    let seen = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&seen);
    let app = App::start(move |_, mut wire| {
        let seen = Arc::clone(&counter);
        async move {
            while wire.message().await.is_some() {
                if seen.fetch_add(1, Ordering::SeqCst) % 2 == 1 {
                    return; // read the whole second request, then closes without a word
                }
                wire.write("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
            }
        }
    })
    .await;
    let upstream = upstream();
    for round in 0..20 {
        let first = forward(&upstream, &target(app.address), "POST").await;
        assert!(matches!(first, Outcome::Answered(_)), "{first:?}");
        let second = forward(&upstream, &target(app.address), "POST").await;
        assert!(matches!(second, Outcome::Unknown(UpstreamError::Broken(_))), "{second:?}");
        assert_eq!(seen.load(Ordering::SeqCst), 2 * (round + 1));
    }
}

#[tokio::test]
async fn a_connection_that_was_closed_while_idle_costs_no_event() {
    let app = App::start(|_, mut wire| async move {
        wire.message().await;
        wire.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    })
    .await;
    let upstream = upstream();
    for _ in 0..20 {
        let outcome = forward(&upstream, &target(app.address), "POST").await;
        assert!(matches!(outcome, Outcome::Answered(_)), "{outcome:?}");
        // Longer than the close takes to arrive; if it doesn't, the outcome above is allowed to be unknown only
        // where the request was written, which this app never lets happen.
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    assert_eq!(app.connections(), 20);
}

#[tokio::test]
async fn a_refused_connection_and_an_unknown_name_never_sent_anything() {
    let closed = App::answering(b"").await.address;
    let mut nowhere = target(closed);
    nowhere.authority = "no-such-name.invalid:80".parse().unwrap();
    // The app above was dropped with its listener; wait until the port refuses.
    while tokio::net::TcpStream::connect(closed).await.is_ok() {
        tokio::task::yield_now().await;
    }
    for target in [target(closed), nowhere] {
        let outcome = forward(&upstream(), &target, "POST").await;
        assert!(matches!(outcome, Outcome::NeverSent(UpstreamError::Connect(_))), "{outcome:?}");
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_no_answer() {
    for cut in [
        &b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf"[..],
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-",
        b"nonsense\r\n\r\n",
        b"",
    ] {
        let app = App::start(move |_, mut wire| async move {
            wire.message().await;
            wire.write(cut).await;
        })
        .await;
        let outcome = forward(&upstream(), &target(app.address), "POST").await;
        assert!(matches!(outcome, Outcome::Unknown(UpstreamError::Broken(_))), "{outcome:?}");
    }
}

#[tokio::test]
async fn an_answer_that_came_before_the_request_was_read_is_the_answer() {
    // An app that answers 413 and closes with most of the body unread counted as one that broke off: the event was parked,
    // or its sender got 502.
    let app = App::start(|_, mut wire| async move {
        wire.head().await;
        wire.write("HTTP/1.1 413 Too Large\r\nconnection: close\r\ncontent-length: 4\r\n\r\nlong").await;
    })
    .await;
    let upstream = upstream();
    for _ in 0..20 {
        let request = request("POST").map(|_| Bytes::from(vec![b'x'; 16 << 20]));
        let outcome = upstream.forward(&target(app.address), request, PATIENCE, 1000).await;
        let Outcome::Answered(answer) = &outcome else { panic!("{outcome:?}") };
        assert_eq!((answer.status().as_u16(), &answer.body()[..]), (413, &b"long"[..]));
    }
    // Without an answer it is as before.
    let app = App::start(|_, mut wire| async move {
        wire.head().await;
    })
    .await;
    let request = request("POST").map(|_| Bytes::from(vec![b'x'; 16 << 20]));
    let outcome = upstream.forward(&target(app.address), request, PATIENCE, 1000).await;
    assert!(matches!(outcome, Outcome::Unknown(UpstreamError::Broken(_))), "{outcome:?}");
}

#[tokio::test]
async fn an_app_that_does_not_answer_in_time_leaves_us_not_knowing() {
    let app = App::start(|_, mut wire| async move {
        wire.message().await;
        wire.rest().await;
    })
    .await;
    let timeout = Duration::from_millis(100);
    let outcome = upstream().forward(&target(app.address), request("POST"), timeout, 1000).await;
    assert!(matches!(outcome, Outcome::Unknown(UpstreamError::Timeout(_))), "{outcome:?}");
}

#[tokio::test]
async fn an_answer_past_its_bound_is_unknown() {
    let app = App::answering(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabcde").await;
    let outcome = upstream().forward(&target(app.address), request("POST"), PATIENCE, 4).await;
    assert!(matches!(outcome, Outcome::Unknown(UpstreamError::TooLong(4))), "{outcome:?}");
}

#[tokio::test]
async fn complete_answers_of_every_framing_are_answers_and_keep_the_connection() {
    let table: [(&str, &'static [u8], u16, &str); 8] = [
        ("POST", b"HTTP/1.1 204 No Content\r\n\r\n", 204, ""),
        ("GET", b"HTTP/1.1 304 Not Modified\r\ncontent-length: 1234\r\n\r\n", 304, ""),
        ("HEAD", b"HTTP/1.1 200 OK\r\ncontent-length: 1234\r\n\r\n", 200, ""),
        ("POST", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", 200, ""),
        ("POST", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n", 200, "hello"),
        ("POST", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 201 Made\r\ncontent-length: 2\r\n\r\nok", 201, "ok"),
        ("POST", b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:9/\xe9\r\ncontent-length: 0\r\n\r\n", 302, ""),
        ("POST", b"HTTP/1.1 500 Oops\r\ncontent-length: 4\r\n\r\noops", 500, "oops"),
    ];
    for (method, answer, status, body) in table {
        let app = App::answering(answer).await;
        let upstream = upstream();
        for _ in 0..3 {
            let Outcome::Answered(answer) = forward(&upstream, &target(app.address), method).await else {
                panic!("{method} {status}: not answered");
            };
            assert_eq!((answer.status().as_u16(), answer.body().as_ref()), (status, body.as_bytes()));
            assert!(!answer.headers().contains_key("transfer-encoding"));
        }
        assert_eq!(app.connections(), 1, "{method} {status}");
    }
}

#[tokio::test]
async fn an_answer_that_ends_with_the_connection_is_complete() {
    let app = App::start(|_, mut wire| async move {
        wire.message().await;
        wire.write("HTTP/1.0 200 OK\r\n\r\nall of it").await;
    })
    .await;
    let outcome = forward(&upstream(), &target(app.address), "POST").await;
    assert!(matches!(&outcome, Outcome::Answered(answer) if answer.body() == "all of it"), "{outcome:?}");
}

#[tokio::test]
async fn an_app_may_speak_http_2_with_prior_knowledge() {
    let app = App::echoing().await;
    let between = Gateway::passing(target(app.address)); // speaks both
    let mut target = target(between.address);
    target.http2 = true;
    target.prefix = "/base".to_owned();
    let upstream = upstream();
    for _ in 0..3 {
        let Outcome::Answered(answer) = forward(&upstream, &target, "POST").await else {
            panic!("not answered")
        };
        let seen = String::from_utf8_lossy(answer.body()).into_owned();
        assert!(seen.starts_with("POST /base/h/x?y HTTP/1.1\r\n"), "{seen}");
        assert_eq!(seen.matches("\r\nhost: hooks.example\r\n").count(), 1, "{seen}");
        assert!(seen.ends_with("\r\n\r\nbody"), "{seen}");
    }
}
