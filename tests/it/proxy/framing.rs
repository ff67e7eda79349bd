//! Where messages begin and end, and how large they may get: smuggling, slowness, limits and nonsense.

use std::time::{Duration, Instant};

use crate::support::{Connection, Delivery, Gateway, ORDERS, Upstream, order, send_h2, within};

#[tokio::test]
async fn a_sender_that_expects_100_continue_gets_it_once() {
    // PRX-4: Expect: 100-continue hung, or gave two 100s and no final answer.
    let upstream = Upstream::answering(200, "got it").await;
    let gateway = Gateway::in_front_of(&upstream).start().await;
    for target in ["/hooks", "/elsewhere"] {
        let body = format!(r#"{{"id":"expect","pad":"{}"}}"#, "x".repeat(2048));
        let delivery = Delivery::json(target, body.as_str()).header("Expect", "100-continue");
        let bytes = delivery.to_bytes("hooks.example");
        let (head, rest) = bytes.split_at(bytes.len() - body.len());
        let mut connection = gateway.connect().await;
        connection.write(head).await.unwrap();
        let interim = within("100 Continue", connection.any_answer("POST")).await.unwrap();
        assert_eq!(interim.status, 100, "{target}");
        connection.write(rest).await.unwrap();
        let answer = within("the final answer", connection.any_answer("POST")).await.unwrap();
        assert_eq!((answer.status, answer.text().as_str()), (200, "got it"), "{target}");
        assert_eq!(upstream.last().text(), body);
    }
}

#[tokio::test]
async fn smuggled_requests_never_reach_the_app() {
    // PRX-6: Content-Length and Transfer-Encoding together.
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).start().await;
    let smuggled = "0\r\n\r\nGET /admin HTTP/1.1\r\nHost: x\r\n\r\n";
    let heads = [
        "POST /hooks HTTP/1.1\r\nHost: x\r\nContent-Length: 15\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST /hooks HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 15\r\n\r\n",
        "POST /hooks HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 15\r\n\r\n",
        "POST /hooks HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, identity\r\n\r\n",
        "POST /elsewhere HTTP/1.1\r\nHost: x\r\nContent-Length: 15\r\nTransfer-Encoding: chunked\r\n\r\n",
    ];
    for head in heads {
        let mut connection = gateway.connect().await;
        connection.write(format!("{head}{smuggled}").as_bytes()).await.unwrap();
        let answer = within("an answer or a close", connection.answer("POST")).await;
        if let Ok(answer) = answer
            && answer.status != 400
        {
            // Allowed is also: the chunked framing counts, and the connection ends after it.
            assert!(connection.is_closed_within(Duration::from_secs(5)).await, "{head}: {}", answer.status);
        }
    }
    assert!(upstream.requests().iter().all(|request| request.target != "/admin"));
}

#[tokio::test]
async fn an_http2_request_has_one_host_upstream() {
    // PRX-8: HTTP/2 in, HTTP/1.1 out gave no Host, or two.
    let upstream = Upstream::answering(200, "ok").await;
    let gateway = Gateway::in_front_of(&upstream).start().await;
    for (n, host) in [None, Some("hooks.example")].into_iter().enumerate() {
        for path in ["/hooks", "/elsewhere?x=1"] {
            let mut request = http::Request::post(format!("http://hooks.example{path}"))
                .header("content-type", "application/json")
                .header("cookie", "a=1")
                .header("cookie", "b=2");
            if let Some(host) = host {
                request = request.header("host", host);
            }
            let body = if n == 0 { r#"{"id":"h2-alone"}"# } else { r#"{"id":"h2-both"}"# };
            let answer = send_h2(gateway.address(), request.body(body).unwrap()).await;
            assert_eq!((answer.status().as_u16(), answer.body().as_ref()), (200, b"ok".as_slice()));
            let received = upstream.last();
            assert_eq!(received.headers_named("host"), ["hooks.example"]);
            assert_eq!(received.target, path);
            assert_eq!(received.headers_named("cookie"), ["a=1; b=2"]);
            assert!(received.headers.iter().all(|(name, _)| !name.starts_with(':')));
            assert_eq!(received.text(), body);
        }
    }
}

#[tokio::test]
async fn slow_senders_of_headers_are_closed_while_others_are_served() {
    // PRX-9: a slow header sender held connections.
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).table("[limits]\nheader_timeout = \"2s\"").start().await;
    let mut slow = Vec::new();
    for _ in 0..200 {
        let mut connection = gateway.connect().await;
        connection.write(b"POST /hooks HTTP/1.1\r\nHo").await.unwrap();
        slow.push(connection);
    }
    assert_eq!(gateway.send(&order("served")).await.status, 200);
    let begun = Instant::now();
    for connection in &mut slow {
        connection.write(b"s").await.ok();
        // Closed, or answered 408 and closed.
        within("the end of a slow sender", connection.answer("POST")).await.ok();
        assert!(connection.is_closed_within(Duration::from_secs(20)).await);
    }
    assert!(begun.elapsed() < Duration::from_secs(25));
    assert_eq!(gateway.send(&order("still served")).await.status, 200);
}

#[tokio::test]
async fn a_body_over_the_limit_is_told_so() {
    // PRX-10: a framework's default body limit gave a reset without an answer, or 500.
    let upstream = Upstream::answering(200, "").await;
    let limited = "[[route]]\nname = \"small\"\npath = \"/small\"\nkey = [\"$.id\"]\nbody_limit = \"1MiB\"\n";
    let gateway = Gateway::in_front_of(&upstream).route(ORDERS).route(limited).start().await;
    let limit = 1 << 20;
    let sized = |target: &str, id: String, size: usize| {
        let start = format!(r#"{{"id":"{id}","pad":""#);
        let pad = "x".repeat(size - start.len() - 2);
        Delivery::json(target, format!("{start}{pad}\"}}"))
    };
    for size in [limit - 1, limit, limit + 1, 8 * limit] {
        for chunked in [false, true] {
            let mut delivery = sized("/small", format!("{size}-{chunked}"), size);
            if chunked {
                delivery = delivery.chunked();
            }
            let before = upstream.received();
            let answer = gateway.send(&delivery).await;
            let expected = if size > limit { (413, before) } else { (200, before + 1) };
            assert_eq!((answer.status, upstream.received()), expected, "{size} chunked {chunked}");
        }
    }
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.value("umavez_items_total", &[("route", "small")]), 4.0, "nothing claimed");
    assert_eq!(metrics.value("umavez_requests_total", &[("route", "small"), ("answer", "too_large")]), 4.0);
    assert_eq!(gateway.send(&sized("/hooks", "25MB".to_owned(), 25_000_000)).await.status, 200);
}

#[tokio::test]
async fn malformed_requests_are_answered_and_nothing_panics() {
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).start().await;
    let bad: [&[u8]; 6] = [
        b"nonsense\r\n\r\n",
        b"POST /hooks HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"POST /hooks HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n",
        b"POST /hooks HTTP/1.1\r\nHost: x\r\nBad Header: 1\r\nContent-Length: 0\r\n\r\n",
        b"POST /hooks HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnope",
        b"POST /hooks HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{\"id\":",
    ];
    for bytes in bad {
        let mut connection = Connection::to(gateway.address()).await;
        connection.write(bytes).await.unwrap();
        connection.half_close().await;
        let ended = within("an answer or a close", connection.answer("POST")).await;
        assert!(
            ended.is_err() || (400..500).contains(&ended.as_ref().unwrap().status) || {
                // What can't be read has no key: it passes, for the app to refuse.
                ended.as_ref().unwrap().verdict() == "keyless"
            }
        );
    }
    assert_eq!(gateway.send(&order("alive")).await.status, 200);
    assert!(!gateway.logs().contains("panicked"));
}

#[tokio::test]
async fn a_sender_that_breaks_off_is_no_fault_of_the_app() {
    // The log warned of an app that could not be reached, once for each sender that hung up within its body.
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).start().await;
    let mut connection = gateway.connect().await;
    let half = "POST /elsewhere HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n";
    connection.write(half.as_bytes()).await.unwrap();
    connection.half_close().await;
    let answer = within("the refusal", connection.answer("POST")).await.unwrap();
    assert_eq!(answer.status, 400);
    assert!(!gateway.logs().contains("could not be passed to the app"), "{}", gateway.logs());
}
