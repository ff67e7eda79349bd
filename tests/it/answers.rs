//! What the provider is answered: the app's answer, the receipt, and how to tell them apart.

use std::time::Duration;

use umavez::providers::Provider;

use crate::support::fixtures::{Fixture, expected};
use crate::support::{Delivery, Gate, Gateway, ORDERS, Pair, Reply, Stores, Upstream, on_every_store, order};

on_every_store! {
    a_transient_failure_is_not_replayed,
    a_copy_gets_the_first_answer_again,
    a_streamed_answer_is_replayed_whole,
    a_copy_of_a_compressed_answer_says_how_it_is_encoded,
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

async fn a_copy_of_a_compressed_answer_says_how_it_is_encoded(pair: Pair) {
    // A copy got the gzip bytes of the first answer without `Content-Encoding`: Twilio read no TwiML, Salesforce no Ack.
    let stores = Stores::open(pair).await;
    let gate = Gate::closed();
    let answered = gate.clone();
    let headers = [("Content-Type", "text/xml"), ("Content-Encoding", "gzip"), ("Content-Encoding", "br")];
    let upstream = Upstream::deciding(move |_, _| {
        Reply::with_headers(200, &headers, b"\x1f\x8b not quite").behind(&answered)
    })
    .await;
    let mut gateway = Gateway::in_front_of(&upstream).on(&stores).start().await;
    let told = |answer: &crate::support::Answer| {
        assert_eq!(answer.body, b"\x1f\x8b not quite", "{}", answer.verdict());
        assert_eq!(answer.headers_named("content-type"), ["text/xml"], "{}", answer.verdict());
        assert_eq!(answer.headers_named("content-encoding"), ["gzip", "br"], "{}", answer.verdict());
    };
    let first = gateway.sending(&order("packed"));
    upstream.until_received(1).await;
    let waiting = gateway.sending(&order("packed"));
    gate.open();
    told(&first.await.unwrap());
    told(&waiting.await.unwrap());
    // From the hot store, then from the durable one alone.
    told(&gateway.send(&order("packed")).await);
    if stores.has_redis() {
        stores.redis().flush().await;
    }
    gateway.restart().await;
    let copy = gateway.send(&order("packed")).await;
    told(&copy);
    assert!(copy.is_replayed());
    assert_eq!(upstream.received(), 1);
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
async fn where_no_body_is_replayed_none_is_said_to_be_encoded() {
    // An empty body under `Content-Encoding: gzip` is no gzip: who reads it fails, and takes the copy for refused.
    let headers = [("Content-Type", "text/plain"), ("Content-Encoding", "gzip")];
    let upstream =
        Upstream::deciding(move |_, _| Reply::with_headers(201, &headers, b"\x1f\x8b not quite")).await;
    let kept = "receipt_headers = [\"Content-Encoding\", \"Content-Type\"]\n";
    let routes = format!(
        "{ORDERS}receipt_limit = \"5B\"\n{kept}\
         [[route]]\nname = \"discord\"\npath = \"/discord\"\nprovider = \"discord\"\n{kept}\
         [[route]]\nname = \"listed\"\npath = \"/listed\"\nkey = [\"$.id\"]\n{kept}"
    );
    let gateway = Gateway::in_front_of(&upstream).route(&routes).start().await;
    let discord = r#"{"application_id":"1","event":{"type":"E","timestamp":"t","data":{"id":"9"}}}"#;
    for (delivery, status, types, encodings) in [
        (order("packed"), 201, 1, 0),
        (Delivery::json("/discord", discord), 204, 0, 0),
        (Delivery::json("/listed", r#"{"id":"packed"}"#), 201, 1, 1),
    ] {
        let first = gateway.send(&delivery).await;
        assert_eq!(first.headers_named("content-encoding"), ["gzip"], "the app's answer passes unchanged");
        let copy = gateway.send(&delivery).await;
        assert_eq!((copy.status, copy.is_replayed()), (status, true), "{}", delivery.target);
        assert_eq!(copy.body.is_empty(), encodings == 0, "{}", delivery.target);
        // Once each, also where the route lists what is kept anyway.
        assert_eq!(copy.headers_named("content-type").len(), types, "{}", delivery.target);
        assert_eq!(copy.headers_named("content-encoding").len(), encodings, "{}", delivery.target);
    }
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
async fn the_app_is_told_a_keys_text_also_where_that_has_spaces() {
    // Any key with a space appeared as its digest, though a header's value may have spaces within.
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).start().await;
    for (id, text) in [("a b", Some("orders:a b")), ("a  b", Some("orders:a  b")), ("a ", None), ("é", None)]
    {
        gateway.send(&order(id)).await;
        let received = upstream.last();
        let [key, idempotency] = ["umavez-key", "idempotency-key"].map(|name| received.header(name).unwrap());
        assert_eq!(key, idempotency);
        match text {
            Some(text) => assert_eq!(key, text),
            None => assert!(key.starts_with('#') && key.len() == 33, "{id:?}: {key}"),
        }
    }
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

/// What each provider takes for success, as its documentation says it; any 2xx where nothing is written here.
const TAKES: [(&str, &[u16]); 10] = [
    ("asaas", &[200]),
    ("discord", &[204]),
    ("google-pubsub", &[200, 201, 202, 204]),
    ("linear", &[200]),
    ("mailgun", &[200]),
    ("mercadopago", &[200, 201]),
    ("meta", &[200]),
    ("paddle", &[200]),
    ("salesforce", &[200]),
    ("zoom", &[200, 204]),
];

/// Those that read the answer's body, and what has to be in it.
const READS: [(&str, &str, &str); 3] = [
    ("adyen", "text/plain", "[accepted]"),
    ("salesforce", "text/xml; charset=utf-8", "<Ack>true</Ack>"),
    ("twilio", "text/xml", "<Response/>"),
];

/// The whole of it for Salesforce: an Ack counts in its envelope only.
fn what_salesforce_reads() -> String {
    Provider::shipped("salesforce").unwrap().duplicate_answer.as_ref().unwrap().body.clone()
}

/// One fixture, sent to `/PROVIDER`.
struct Case {
    provider: String,
    name: String,
    delivery: Delivery,
    /// The parts of each item's key, and what is said of it.
    items: Vec<(Option<String>, String)>,
}

/// Every fixture that isn't a handshake, from the table at the end of EXPECT.md.
fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for row in expected().lines().skip_while(|line| !line.starts_with("| case |")).skip(2) {
        let cells: Vec<&str> =
            row.trim_matches('|').split(" | ").map(|cell| cell.trim().trim_matches('`')).collect();
        let item = (cells[3].starts_with('[').then(|| cells[3].to_owned()), cells[4].to_owned());
        if let Some(case) = cases.iter_mut().find(|case| case.name == cells[0]) {
            case.items.push(item);
            continue;
        }
        let fixture = Fixture::named(cells[0]);
        let provider = fixture.provider().to_owned();
        let (method, url) = cells[1].split_once(' ').unwrap_or(("POST", "/"));
        let query = url.split_once('?').map(|(_, query)| format!("?{query}")).unwrap_or_default();
        let delivery = Delivery::new(method, &format!("/{provider}{query}")).body(fixture.body.clone());
        let names = fixture.headers.iter().filter(|(name, _)| *name != "host" && *name != "content-length");
        let delivery = names
            .fold(delivery, |delivery, (name, value)| delivery.raw_header(name.as_str(), value.as_bytes()));
        cases.push(Case { provider, name: cells[0].to_owned(), delivery, items: vec![item] });
    }
    let handshake = |case: &Case| {
        let Some(provider) = Provider::shipped(&case.provider) else { return false };
        let (headers, body) = {
            let Fixture { headers, body, .. } = Fixture::named(&case.name);
            (headers, body)
        };
        let delivery = umavez::providers::Delivery {
            method: &case.delivery.method.parse().unwrap(),
            url: &format!("https://hooks.example{}", case.delivery.target),
            headers: &headers,
            path_params: &[],
            raw_body: &body,
            body: &body,
        };
        provider.handshakes.iter().any(|handshake| handshake.is(&delivery))
    };
    cases.retain(|case| !handshake(case));
    cases
}

/// The first delivery with a key among a provider's fixtures.
fn delivery_of(provider: &str) -> Delivery {
    let keyed =
        |case: &Case| case.provider == provider && case.items.iter().any(|(parts, _)| parts.is_some());
    cases().into_iter().find(keyed).unwrap().delivery
}

fn is_taken(provider: &str, answer: &crate::support::Answer) {
    let takes = TAKES.iter().find(|(name, _)| *name == provider).map(|(_, statuses)| *statuses);
    let taken = takes.map_or(answer.is_success(), |statuses| statuses.contains(&answer.status));
    assert!(taken, "{provider} is told {} {}", answer.status, answer.verdict());
    if let Some((_, content_type, body)) = READS.iter().find(|(name, ..)| *name == provider) {
        assert_eq!(answer.headers_named("content-type"), [*content_type], "{provider} {}", answer.verdict());
        assert!(answer.text().contains(body), "{provider}: {}", answer.text());
    } else {
        assert_eq!(answer.text(), "", "{provider}");
    }
}

#[tokio::test]
async fn what_no_answer_of_the_app_is_known_of_is_told_as_each_provider_takes_it() {
    // A held event was told an empty 200, also to those for whom that is a failure (Discord wants 204, Salesforce an
    // Ack, Adyen `[accepted]`): they sent it again until they gave up. A copy of one that a person had marked done, or
    // whose answer was too long to keep, was told the same.
    let upstream = Upstream::deciding(|request, _| match request.header("x-long") {
        Some(_) => Reply::new(200, &"long ".repeat(100)),
        None => Reply::hang_up(),
    })
    .await;
    let names = Provider::names();
    let route = |name: &&str| {
        format!(
            "[[route]]\nname = \"{name}\"\npath = \"/{name}\"\nprovider = \"{name}\"\non_unknown = \"hold\"\n\
             receipt_limit = \"100B\"\n\
             [[route]]\nname = \"{name}-again\"\npath = \"/again/{name}\"\nprovider = \"{name}\"\n\
             receipt_limit = \"100B\"\n"
        )
    };
    let routes: String = names.iter().map(route).collect();
    let gateway = Gateway::in_front_of(&upstream).route(&routes).start().await;
    for name in &names {
        let delivery = delivery_of(name);
        let answers = [gateway.send(&delivery).await, gateway.send(&delivery).await];
        for answer in answers {
            assert_eq!(answer.verdict(), "held", "{name} {}", answer.status);
            is_taken(name, &answer);
        }
    }
    loop {
        let held = gateway.ask_admin("GET", "/events/held?limit=1000").await.json();
        let keys: Vec<_> =
            held["held"].as_array().unwrap().iter().map(|event| event["digest"].clone()).collect();
        if keys.is_empty() {
            break;
        }
        for digest in keys {
            let target = format!("/events/mark-done?digest={}", digest.as_str().unwrap());
            assert_eq!(gateway.ask_admin("POST", &target).await.status, 200, "{target}");
        }
    }
    for name in &names {
        let delivery = delivery_of(name);
        let copy = gateway.send(&delivery).await;
        assert_eq!((copy.verdict().as_str(), copy.is_replayed()), ("duplicate", true), "{name}");
        is_taken(name, &copy);

        let mut long = delivery.header("X-Long", "1");
        long.target.insert_str(0, "/again");
        assert_eq!(gateway.send(&long).await.text().len(), 500, "{name}");
        let copy = gateway.send(&long).await;
        assert_eq!((copy.verdict().as_str(), copy.is_replayed()), ("duplicate", true), "{name}");
        is_taken(name, &copy);
    }
}

#[tokio::test]
async fn every_fixture_is_forwarded_once_and_its_copy_is_told_as_its_provider_takes_it() {
    // Which deliveries are copies of which, and what copies are told, was written down for people and held by nothing.
    let cases = cases();
    for case in &cases {
        for (parts, why) in &case.items {
            let Some((_, of)) = why.split_once("DUPLICATE of ") else { continue };
            let of = of.split([' ', ':']).next().unwrap();
            let first = cases.iter().find(|case| case.name == of).unwrap();
            assert!(first.items.iter().any(|(known, _)| known == parts), "{} of {of}", case.name);
        }
    }
    let upstream = Upstream::deciding(|request, _| {
        let provider = request.target.trim_matches('/').split('?').next().unwrap();
        let status =
            TAKES.iter().find(|(name, _)| *name == provider).map_or(200, |(_, statuses)| statuses[0]);
        match READS.iter().find(|(name, ..)| *name == provider) {
            Some((_, content_type, body)) => {
                let whole =
                    if provider == "salesforce" { what_salesforce_reads() } else { (*body).to_owned() };
                Reply::with_headers(status, &[("Content-Type", content_type)], whole.as_bytes())
            }
            None => Reply::new(status, ""),
        }
    })
    .await;
    let names = Provider::names();
    let routes = names
        .iter()
        .map(|name| format!("[[route]]\nname = \"{name}\"\npath = \"/{name}\"\nprovider = \"{name}\"\n"));
    let gateway = Gateway::in_front_of(&upstream).route(&routes.collect::<String>()).start().await;
    let mut seen = std::collections::BTreeSet::new();
    let mut counts = std::collections::BTreeMap::new();
    for copy in [false, true] {
        for case in &cases {
            let mut new = false;
            for (parts, _) in &case.items {
                let verdict = match parts {
                    None => "keyless",
                    Some(parts) if seen.insert((case.provider.clone(), parts.clone())) => "first",
                    Some(_) => "duplicate",
                };
                new |= verdict != "duplicate";
                *counts.entry((case.provider.clone(), verdict)).or_insert(0) += 1;
            }
            let before = upstream.received();
            let answer = gateway.send(&case.delivery).await;
            assert_eq!(answer.verdict() == "duplicate", !new, "{} copy {copy}", case.name);
            assert_eq!(upstream.received() - before, usize::from(new), "{} copy {copy}", case.name);
            is_taken(&case.provider, &answer);
        }
    }
    let metrics = gateway.metrics().await;
    for name in names {
        for verdict in ["first", "duplicate", "keyless"] {
            let counted = counts.get(&(name.to_owned(), verdict)).copied().unwrap_or_default();
            let labels = [("route", name), ("verdict", verdict)];
            assert_eq!(metrics.value("umavez_items_total", &labels), f64::from(counted), "{name} {verdict}");
        }
        assert!(counts.contains_key(&(name.to_owned(), "first")), "{name}");
    }
}

#[tokio::test]
async fn a_slow_body_is_told_in_a_status_after_which_its_provider_comes_again() {
    // 408 and 400 are a client's errors, after which Amazon SNS and Evolution never send again: one slow connection
    // cost the event.
    let upstream = Upstream::answering(200, "").await;
    let routes = ["aws-sns", "evolution", "stripe"]
        .map(|name| format!("[[route]]\nname = \"{name}\"\npath = \"/{name}\"\nprovider = \"{name}\"\n"));
    let gateway = Gateway::in_front_of(&upstream)
        .route(&routes.concat())
        .table("[limits]\nbody_timeout = \"200ms\"")
        .start()
        .await;
    for (name, slow, broken) in [("aws-sns", 503, 503), ("evolution", 408, 503), ("stripe", 408, 400)] {
        let half = format!("POST /{name} HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{{");
        let bad = format!("POST /{name} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n");
        for (bytes, status) in [(half, slow), (bad, broken)] {
            let mut line = gateway.connect().await;
            line.write(bytes.as_bytes()).await.unwrap();
            let answer = line.answer("POST").await.unwrap();
            assert_eq!((answer.status, answer.verdict().as_str()), (status, "refused"), "{name}");
            assert_eq!(answer.header("retry-after").is_some(), status == 503, "{name}");
        }
    }
    assert_eq!(upstream.received(), 0);
    let slow = gateway
        .metrics()
        .await
        .value("umavez_requests_total", &[("route", "aws-sns"), ("answer", "refused")]);
    assert_eq!(slow, 2.0);
}

#[test]
fn no_answer_of_ours_to_an_event_that_is_not_done_ends_a_providers_retries() {
    // In flight, store away, app away or too slow: each of these is a promise that the sender comes again.
    for name in Provider::names() {
        let provider = Provider::shipped(name).unwrap();
        for status in [500, 502, 503, 504] {
            let ends =
                |ranges: &[std::ops::RangeInclusive<u16>]| ranges.iter().any(|range| range.contains(&status));
            assert!(!ends(&provider.final_statuses), "{name} never sends again after {status}");
            assert!(!provider.success.as_deref().is_some_and(ends), "{name} takes {status} for success");
        }
        // What the data file says of success is what the documentation says.
        let success = |status: u16| match (&provider.success, &provider.done) {
            (Some(ranges), _) | (None, Some(ranges)) => ranges.iter().any(|range| range.contains(&status)),
            (None, None) => (200..300).contains(&status),
        };
        let takes = TAKES.iter().find(|(known, _)| *known == name);
        for status in 200..300 {
            assert_eq!(
                success(status),
                takes.is_none_or(|(_, statuses)| statuses.contains(&status)),
                "{name} {status}"
            );
        }
    }
}
