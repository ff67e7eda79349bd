//! What the provider is answered: the app's answer, the receipt, and how to tell them apart.

use std::time::Duration;

use crate::support::{Delivery, Gateway, ORDERS, Pair, Reply, Stores, Upstream, on_every_store, order};

on_every_store! {
    a_transient_failure_is_not_replayed,
    a_copy_gets_the_first_answer_again,
    a_streamed_answer_is_replayed_whole,
    a_replayed_answer_can_be_told_from_a_fresh_one,
}

async fn a_transient_failure_is_not_replayed(pair: Pair) {
    // RSP-1: a transient 5xx was stored and replayed for a day.
    let stores = Stores::open(pair).await;
    let upstream = Upstream::scripted([Reply::new(503, "busy"), Reply::new(200, "done")]).await;
    let gateway = Gateway::in_front_of(&upstream).on(&stores).start().await;
    let mut answers = Vec::new();
    for _ in 0..3 {
        let answer = gateway.send(&order("r1")).await;
        answers.push((answer.status, answer.text(), answer.is_replayed()));
    }
    let expected = [(503, "busy", false), (200, "done", false), (200, "done", true)];
    assert_eq!(answers, expected.map(|(status, text, replayed)| (status, text.to_owned(), replayed)));
}

async fn a_copy_gets_the_first_answer_again(pair: Pair) {
    // RSP-2: a replay lost Location and Content-Type, or turned 201 into 200.
    let stores = Stores::open(pair).await;
    let headers = [("Location", "/o/5"), ("Content-Type", "application/xml"), ("X-Not-Kept", "1")];
    let upstream = Upstream::scripted([Reply::with_headers(201, &headers, b"<ok/>")]).await;
    let gateway = Gateway::in_front_of(&upstream).on(&stores).start().await;
    let first = gateway.send(&order("r2")).await;
    let copy = gateway.send(&order("r2")).await;
    for answer in [&first, &copy] {
        assert_eq!((answer.status, answer.text().as_str()), (201, "<ok/>"));
        assert_eq!(answer.headers_named("location"), ["/o/5"]);
        assert_eq!(answer.headers_named("content-type"), ["application/xml"]);
        assert_eq!(answer.headers_named("content-length"), ["5"]);
    }
    assert_eq!(first.headers_named("x-not-kept"), ["1"], "the app's answer passes unchanged");
    assert!(copy.headers_named("x-not-kept").is_empty());
}

async fn a_streamed_answer_is_replayed_whole(pair: Pair) {
    // RSP-3: a streamed (chunked) first answer was stored empty.
    let stores = Stores::open(pair).await;
    let streamed = Reply::raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n")
        .then(Duration::from_millis(200), b"2\r\nlo\r\n0\r\n\r\n");
    let upstream = Upstream::scripted([streamed]).await;
    let gateway = Gateway::in_front_of(&upstream).on(&stores).start().await;
    let mut connection = gateway.connect().await;
    for _ in 0..2 {
        let answer = connection.send(&order("r3")).await;
        assert_eq!((answer.status, answer.text().as_str(), answer.complete), (200, "hello", true));
    }
}

async fn a_replayed_answer_can_be_told_from_a_fresh_one(pair: Pair) {
    // RSP-5: a replayed answer could not be told from a fresh one; a forged marker passed through.
    let stores = Stores::open(pair).await;
    let forged = [("Idempotency-Replayed", "true"), ("Umavez", "duplicate")];
    let upstream = Upstream::scripted([Reply::with_headers(200, &forged, b"ok")]).await;
    let gateway = Gateway::in_front_of(&upstream).on(&stores).start().await;
    let delivery = order("r5").header("Idempotency-Replayed", "true").header("Umavez", "duplicate");
    let first = gateway.send(&delivery).await;
    assert!(first.headers_named("idempotency-replayed").is_empty());
    assert_eq!(first.headers_named("umavez"), ["first"]);
    let copy = gateway.send(&delivery).await;
    assert_eq!(copy.headers_named("idempotency-replayed"), ["true"]);
    assert_eq!(copy.headers_named("umavez"), ["duplicate"]);
    let received = upstream.last();
    assert!(received.headers_named("idempotency-replayed").is_empty(), "a sender's own marker is removed");
}

#[tokio::test]
async fn a_redirect_is_passed_on_and_is_no_success() {
    // RSP-6: the client followed redirects by itself, and panicked on an odd Location.
    let upstream = Upstream::deciding(|_, nth| match nth {
        1 => Reply::with_headers(302, &[("Location", "http://127.0.0.1:9/x")], b""),
        2 => Reply::with_headers(307, &[("Location", "http://127.0.0.1:9/x")], b""),
        3 => Reply::with_headers(308, &[("Location", "http://127.0.0.1:9/x")], b""),
        4 => Reply::raw(b"HTTP/1.1 302 Found\r\nLocation: /caf\xe9\r\nContent-Length: 0\r\n\r\n"),
        _ => Reply::new(200, ""),
    })
    .await;
    let gateway = Gateway::in_front_of(&upstream).start().await;
    for status in [302, 307, 308] {
        let answer = gateway.send(&order("moved")).await;
        assert_eq!(answer.status, status);
        assert_eq!(answer.headers_named("location"), ["http://127.0.0.1:9/x"]);
    }
    let odd = gateway.send(&order("moved")).await;
    let location = odd.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("location")).unwrap();
    assert_eq!((odd.status, location.1.as_slice()), (302, b"/caf\xe9".as_slice()));
    assert_eq!(gateway.send(&order("moved")).await.verdict(), "first", "a redirect released the claim");
}

#[tokio::test]
async fn a_route_may_fix_the_answer_to_duplicates() {
    // PRV-4: the sender expects a set body for duplicates, not an empty 200.
    let upstream = Upstream::answering(200, "whatever").await;
    let route = format!(
        "{ORDERS}duplicate_answer = {{ status = 200, content_type = \"text/plain\", body = \"[accepted]\" }}\n"
    );
    let gateway = Gateway::in_front_of(&upstream).route(&route).start().await;
    assert_eq!(gateway.send(&order("n1")).await.text(), "whatever");
    let copy = gateway.send(&order("n1")).await;
    assert_eq!((copy.status, copy.text().as_str()), (200, "[accepted]"));
    assert_eq!(copy.headers_named("content-length"), ["10"]);
    assert_eq!(copy.headers_named("content-type"), ["text/plain"]);
}

#[tokio::test]
async fn a_body_over_the_receipt_limit_is_not_replayed_but_its_status_is() {
    let upstream = Upstream::answering(201, &"long ".repeat(100)).await;
    let route = format!("{ORDERS}receipt_limit = \"100B\"\nreceipt_headers = [\"X-Kept\"]\n");
    let gateway = Gateway::in_front_of(&upstream).route(&route).start().await;
    assert_eq!(gateway.send(&order("big")).await.body.len(), 500);
    let copy = gateway.send(&order("big")).await;
    assert_eq!((copy.status, copy.body.len()), (201, 0));
    assert!(copy.is_replayed());
}

#[tokio::test]
async fn answers_without_a_body_keep_their_framing() {
    // PRX-7: 204, 304 and HEAD waited for a body, or their Content-Length was rewritten.
    let upstream = Upstream::deciding(|request, _| match request.target.as_str() {
        "/204" => Reply::raw(b"HTTP/1.1 204 No Content\r\n\r\n"),
        "/304" => Reply::raw(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 1234\r\n\r\n"),
        "/head" => Reply::raw(b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n"),
        "/hooks" => Reply::raw(b"HTTP/1.1 204 No Content\r\n\r\n"),
        _ => Reply::raw(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
    })
    .await;
    let gateway = Gateway::in_front_of(&upstream).start().await;
    let mut connection = gateway.connect().await;
    let cases = [
        ("GET", "/204", 204, None),
        ("GET", "/304", 304, Some("1234")),
        ("HEAD", "/head", 200, Some("1234")),
        ("GET", "/empty", 200, Some("0")),
        ("POST", "/empty", 200, Some("0")),
    ];
    // All on one connection: it stays usable after each.
    for (method, target, status, length) in cases {
        let answer = connection.send(&Delivery::new(method, target)).await;
        assert_eq!((answer.status, answer.body.len()), (status, 0), "{method} {target}");
        assert_eq!(answer.header("content-length").as_deref(), length, "{method} {target}");
    }
    for verdict in ["first", "duplicate"] {
        let answer = connection.send(&order("nothing")).await;
        assert_eq!((answer.status, answer.body.len(), answer.verdict().as_str()), (204, 0, verdict));
        assert_eq!(answer.header("content-length"), None);
    }
}

#[tokio::test]
async fn the_app_is_told_what_it_gets() {
    // `Umavez-Key`, `Umavez-Attempt` and `Idempotency-Key` on single items; a sender's own key stays.
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).start().await;
    gateway.send(&order("told").header("Umavez-Key", "forged").header("Umavez-Attempt", "9")).await;
    let received = upstream.last();
    assert_eq!(received.headers_named("umavez-key"), ["orders:told"]);
    assert_eq!(received.headers_named("umavez-attempt"), ["1"]);
    assert_eq!(received.headers_named("idempotency-key").len(), 1);
    gateway.send(&order("own").header("Idempotency-Key", "mine")).await;
    assert_eq!(upstream.last().headers_named("idempotency-key"), ["mine"]);
}

#[tokio::test]
async fn a_provider_that_takes_only_200_for_success_is_told_of_a_copy_in_these_words() {
    // The app answers 201 or 204, which some providers take for a failure: their copies were answered the same, came
    // without end, and paused the provider's queue.
    let upstream = Upstream::deciding(|request, _| match request.text().contains("evt_204") {
        true => Reply::new(204, ""),
        false => Reply::with_headers(201, &[("Content-Type", "application/json")], b"{\"made\":1}"),
    })
    .await;
    let routes = ["asaas", "discord", "stripe"]
        .map(|name| format!("[[route]]\nname = \"{name}\"\npath = \"/{name}\"\nprovider = \"{name}\"\n"));
    let gateway = Gateway::in_front_of(&upstream).route(&routes.concat()).start().await;
    let discord = r#"{"application_id":"1","event":{"type":"E","timestamp":"t","data":{"id":"9"}}}"#;
    for (target, body, first, copy, text) in [
        ("/asaas", r#"{"id":"evt_201"}"#, 201, 200, "{\"made\":1}"),
        ("/asaas", r#"{"id":"evt_204"}"#, 204, 200, ""),
        ("/discord", discord, 201, 204, ""),
        ("/stripe", r#"{"id":"evt_201"}"#, 201, 201, "{\"made\":1}"),
    ] {
        let delivery = Delivery::json(target, body);
        let answer = gateway.send(&delivery).await;
        assert_eq!(
            (answer.status, answer.verdict().as_str()),
            (first, "first"),
            "{target}: the app's, unchanged"
        );
        let answer = gateway.send(&delivery).await;
        assert_eq!((answer.status, answer.verdict().as_str()), (copy, "duplicate"), "{target}");
        assert_eq!((answer.text().as_str(), answer.is_replayed()), (text, true), "{target}");
    }
    assert_eq!(upstream.received(), 4);
}

#[tokio::test]
async fn an_answer_with_two_lengths_is_passed_on_with_the_right_one() {
    // `Transfer-Encoding` overrides `Content-Length` (RFC 9112, 6.3); both came through as the wrong length, and on a
    // kept connection the next answer was read as the rest of this one.
    let both =
        b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
    let upstream = Upstream::scripted([Reply::raw(both), Reply::raw(both), Reply::new(200, "next")]).await;
    let gateway = Gateway::in_front_of(&upstream).route(ORDERS).start().await;
    let mut line = gateway.connect().await;
    let inline = line.send(&order("both")).await;
    assert_eq!((inline.text().as_str(), inline.complete), ("ok", true));
    assert_ne!(inline.header("content-length").as_deref(), Some("50"));
    let passed = line.send(&Delivery::new("GET", "/page")).await;
    assert_eq!((passed.text().as_str(), passed.complete), ("ok", true));
    assert_ne!(passed.header("content-length").as_deref(), Some("50"));
    assert_eq!(line.send(&order("next")).await.text(), "next");
}
