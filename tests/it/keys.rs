//! What names an event: reading, building and scoping keys, of generic routes and of the four presets.

use std::io::Write;

use crate::support::{Delivery, Gateway, ORDERS, Pair, Stores, Upstream, on_every_store, order};

on_every_store! {
    what_changes_between_retries_is_not_in_the_key,
    a_blank_id_is_no_key,
    neighbouring_big_numbers_are_two_events,
    parts_never_run_into_one_another,
    equal_ids_of_two_routes_are_two_events,
    an_id_of_six_thousand_characters_works,
    a_nul_in_an_id_works,
}

/// Sends each once and says how many of them were forwarded.
async fn forwarded(gateway: &Gateway, upstream: &Upstream, deliveries: &[Delivery]) -> usize {
    let before = upstream.received();
    for delivery in deliveries {
        let answer = gateway.send(delivery).await;
        assert_eq!(answer.status, 200, "{}: {}", delivery.target, answer.text());
    }
    upstream.received() - before
}

async fn what_changes_between_retries_is_not_in_the_key(pair: Pair) {
    // KEY-1: arrival time was mixed into the key, so no repeat ever matched; dedup existed in code only.
    let stores = Stores::open(pair).await;
    let upstream = Upstream::answering(200, "").await;
    let route = "[[route]]\nname = \"d\"\npath = \"/d\"\nkey = [\"header:X-Delivery-Id\"]\n";
    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(route).start().await;
    for attempt in 1..=3 {
        let delivery = Delivery::json("/d", format!(r#"{{"sent_at":{attempt}00,"attempt":{attempt}}}"#))
            .header("X-Delivery-Id", "d-100")
            .header("Date", &format!("Mon, 10 Aug 2026 12:00:0{attempt} GMT"));
        let answer = gateway.send(&delivery).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.verdict(), if attempt == 1 { "first" } else { "duplicate" });
        assert_eq!(answer.is_replayed(), attempt != 1);
    }
    assert_eq!(upstream.received(), 1);
}

async fn a_blank_id_is_no_key(pair: Pair) {
    // KEY-2: a blank id claimed the empty key once; every later event was dropped with a 2xx.
    let stores = Stores::open(pair).await;
    let upstream = Upstream::answering(200, "").await;
    let reject =
        "[[route]]\nname = \"strict\"\npath = \"/strict\"\nkey = [\"$.id\"]\non_keyless = \"reject\"\n";
    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(ORDERS).route(reject).start().await;
    let blanks = [r#"{"id":"","n":1}"#, r#"{"id":"","n":2}"#, r#"{"id":"   ","n":3}"#];
    for blank in blanks {
        let answer = gateway.send(&Delivery::json("/hooks", blank)).await;
        assert_eq!((answer.status, answer.verdict().as_str()), (200, "keyless"));
    }
    assert_eq!(gateway.send(&Delivery::json("/hooks", r#"{"id":"a1","n":4}"#)).await.verdict(), "first");
    assert_eq!(upstream.received(), 4);
    let keyless = [("route", "orders"), ("verdict", "keyless")];
    assert_eq!(gateway.metrics().await.value("umavez_items_total", &keyless), 3.0);

    for blank in blanks {
        let status = gateway.send(&Delivery::json("/strict", blank)).await.status;
        assert!((400..500).contains(&status), "{status}");
    }
    assert_eq!(gateway.send(&Delivery::json("/strict", r#"{"id":"a1","n":4}"#)).await.status, 200);
    assert_eq!(upstream.received(), 5);
}

async fn neighbouring_big_numbers_are_two_events(pair: Pair) {
    // KEY-3: ids above 2^53 were read as floats; neighbouring ids collapsed into one.
    let stores = Stores::open(pair).await;
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).on(&stores).start().await;
    let big = ["9007199254740992", "9007199254740993"]
        .map(|id| Delivery::json("/hooks", format!(r#"{{"id":{id}}}"#)));
    assert_eq!(forwarded(&gateway, &upstream, &big).await, 2);
    assert_eq!(forwarded(&gateway, &upstream, &big).await, 0);
}

async fn parts_never_run_into_one_another(pair: Pair) {
    // KEY-4: parts joined with ":"; two different tuples made one key, and the second event vanished.
    let stores = Stores::open(pair).await;
    let upstream = Upstream::answering(200, "").await;
    let route = "[[route]]\nname = \"t\"\npath = \"/t\"\nkey = [\"$.acct\", \"$.msg\", \"$.status\"]\n";
    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(route).start().await;
    let tuples = [
        ("a:b", "c"),
        ("a", "b:c"),
        ("a|b", "c"),
        ("a", "b|c"),
        (r"a\\", "c"),
        ("a", r"\\c"),
        (r"a\\:", ":c"),
    ];
    let deliveries = tuples.map(|(acct, msg)| {
        Delivery::json("/t", format!(r#"{{"acct":"{acct}","msg":"{msg}","status":"sent"}}"#))
    });
    assert_eq!(forwarded(&gateway, &upstream, &deliveries).await, deliveries.len());
    assert_eq!(forwarded(&gateway, &upstream, &deliveries).await, 0);
}

async fn equal_ids_of_two_routes_are_two_events(pair: Pair) {
    // KEY-5: the unique key lacked the integration's name; two sources with the same id dropped each other.
    let stores = Stores::open(pair).await;
    let upstream = Upstream::answering(200, "").await;
    let a = "[[route]]\nname = \"a\"\npath = \"/h/a\"\nkey = [\"$.id\"]\n";
    let b = "[[route]]\nname = \"b\"\npath = \"/h/b\"\nkey = [\"$.id\"]\n";
    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(a).route(b).start().await;
    let both = ["/h/a", "/h/b"].map(|target| Delivery::json(target, r#"{"id":"evt-1"}"#));
    assert_eq!(forwarded(&gateway, &upstream, &both).await, 2);
    assert_eq!(forwarded(&gateway, &upstream, &both).await, 0);
}

async fn an_id_of_six_thousand_characters_works(pair: Pair) {
    // KEY-6: a unique index entry larger than 2704 bytes made the insert fail.
    let stores = Stores::open(pair).await;
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).on(&stores).start().await;
    // Random, so that no store can compress it below its limit.
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~:!*()$&+,;=@ #|";
    let id: String = (0..6000).map(|_| char::from(alphabet[rand::random_range(0..alphabet.len())])).collect();
    assert_eq!(forwarded(&gateway, &upstream, &[order(&id), order(&id)]).await, 1);
    let other = format!("{id}x");
    assert_eq!(forwarded(&gateway, &upstream, &[order(&other)]).await, 1);
}

async fn a_nul_in_an_id_works(pair: Pair) {
    // KEY-7: a NUL in the payload made the Postgres insert fail, and the webhook got 500 for ever.
    let stores = Stores::open(pair).await;
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).on(&stores).start().await;
    let ids = [r"ev\u0000t", r"ev\u0000t", "evt", "ev", r"\ud800", r"\ud800"].map(order);
    assert_eq!(forwarded(&gateway, &upstream, &ids).await, 4);
    assert_eq!(upstream.requests()[0].text(), r#"{"id":"ev\u0000t"}"#);
}

#[tokio::test]
async fn a_header_that_is_not_ascii_names_an_event() {
    // KEY-8: a header value that is not ASCII or UTF-8 crashed the proxy.
    let upstream = Upstream::answering(200, "").await;
    let route = "[[route]]\nname = \"l\"\npath = \"/l\"\nkey = [\"header:X-Event-Id\"]\n";
    let gateway = Gateway::in_front_of(&upstream).route(route).start().await;
    let latin = Delivery::json("/l", "{}").raw_header("X-Event-Id", b"k\xe91");
    assert_eq!(gateway.send(&latin).await.verdict(), "first");
    assert_eq!(gateway.send(&latin).await.verdict(), "duplicate");
    let sent = upstream.last();
    let id = sent.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("x-event-id")).unwrap();
    assert_eq!(id.1, b"k\xe91");
    let note = Delivery::json("/l", "{}").header("X-Event-Id", "k2").raw_header("X-Note", b"\xff");
    assert_eq!(gateway.send(&note).await.verdict(), "first");
    let sent = upstream.last();
    let note = sent.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("x-note")).unwrap();
    assert_eq!(note.1, b"\xff");
}

#[tokio::test]
async fn an_id_in_a_compressed_body_is_found() {
    // KEY-9: compressed request bodies were not decoded, and the key was not found.
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).start().await;
    let zipped = gzip(br#"{"id":"g1"}"#);
    let delivery = Delivery::json("/hooks", zipped.clone()).header("Content-Encoding", "gzip");
    assert_eq!(gateway.send(&delivery).await.verdict(), "first");
    assert_eq!(gateway.send(&delivery).await.verdict(), "duplicate");
    // The same event sent plainly is still the same event.
    assert_eq!(gateway.send(&order("g1")).await.verdict(), "duplicate");
    assert_eq!(upstream.received(), 1);
    assert_eq!(upstream.last().body, zipped);
    assert_eq!(upstream.last().headers_named("content-encoding"), ["gzip"]);
}

#[tokio::test]
async fn a_body_that_expands_past_the_limit_is_refused_in_bounded_memory() {
    // KEY-10: the limit applied to the compressed size only; 130 KB became 128 MB in memory.
    let upstream = Upstream::answering(200, "").await;
    let route = format!("{ORDERS}body_limit = \"1MiB\"\n");
    let gateway = Gateway::in_front_of(&upstream).route(&route).start().await;
    gateway.send(&order("warm")).await;
    let (_, before) = gateway.memory();
    let bomb = Delivery::json("/hooks", gzip(&vec![b' '; 128 << 20])).header("Content-Encoding", "gzip");
    assert!(bomb.body.len() < 1 << 20);
    for answer in gateway.send_copies(&bomb, 10).await {
        assert_eq!(answer.status, 413);
    }
    let (_, peak) = gateway.memory();
    assert!(peak - before < 40 * 1024, "grew by {} KiB", peak - before);
    assert_eq!(upstream.received(), 1);
    assert_eq!(gateway.metrics().await.value("umavez_items_total", &[]), 1.0);
    assert_eq!(gateway.send(&order("next")).await.status, 200);
}

#[tokio::test]
async fn keys_are_read_from_every_place_a_rule_may_name() {
    // Query, path, form, JSON and literals; what a rule does not name does not matter.
    let upstream = Upstream::answering(200, "").await;
    let route = r#"
[[route]]
name = "pix"
path = "/pix/{tenant}"
scope = "pix:{tenant}"
key = ["reminder", "query:step", "path:tenant", "$.tx.ids[0]"]
"#;
    let gateway = Gateway::in_front_of(&upstream).route(route).start().await;
    let send = |target: &str, body: &str| Delivery::json(target, body);
    let different = [
        send("/pix/a?step=1", r#"{"tx":{"ids":[7]}}"#),
        send("/pix/b?step=1", r#"{"tx":{"ids":[7]}}"#),
        send("/pix/a?step=2", r#"{"tx":{"ids":[7]}}"#),
        send("/pix/a?step=1", r#"{"tx":{"ids":[8]}}"#),
    ];
    assert_eq!(forwarded(&gateway, &upstream, &different).await, 4);
    let same = [
        send("/pix/a?other=x&step=1", r#"{ "n": 1, "tx": { "ids": ["7", 9] } }"#),
        send("/pix/a?step=1", r#"{"tx":{"ids":[0]},"tx":{"ids":[7]}}"#),
    ];
    assert_eq!(forwarded(&gateway, &upstream, &same).await, 0);
}

#[tokio::test]
async fn form_fields_name_events() {
    // PRV-3: status callbacks keyed on the message's id alone skipped "delivered"; the body is a form, not JSON.
    let upstream = Upstream::answering(200, "").await;
    let route =
        "[[route]]\nname = \"sms\"\npath = \"/sms\"\nkey = [\"form:MessageSid\", \"form:MessageStatus\"]\n";
    let gateway = Gateway::in_front_of(&upstream).route(route).start().await;
    let form = |body: &str| {
        Delivery::new("POST", "/sms").header("Content-Type", "application/x-www-form-urlencoded").body(body)
    };
    let both = [form("MessageSid=SM01&MessageStatus=sent"), form("MessageSid=SM01&MessageStatus=delivered")];
    assert_eq!(forwarded(&gateway, &upstream, &both).await, 2);
    assert_eq!(forwarded(&gateway, &upstream, &both).await, 0);
    assert_eq!(upstream.last().text(), "MessageSid=SM01&MessageStatus=delivered");
}

#[tokio::test]
async fn the_header_that_names_the_event_decides_not_the_one_that_names_the_subscription() {
    // PRV-5: the per-subscription id differs while the event is the same; copies arrive in the same instant.
    let upstream = Upstream::answering(200, "").await;
    let route = "[[route]]\nname = \"shop\"\npath = \"/shop\"\n\
        key = [\"header:X-Shopify-Topic\", \"header:X-Shopify-Event-Id\"]\n";
    let gateway = Gateway::in_front_of(&upstream).route(route).start().await;
    let copy = |webhook: &str| {
        let copy = Delivery::json("/shop", "{}").header("X-Shopify-Topic", "orders/updated");
        copy.header("X-Shopify-Event-Id", "e-1").header("X-Shopify-Webhook-Id", webhook)
    };
    let (one, two) = tokio::join!(gateway.sending(&copy("w-1")), gateway.sending(&copy("w-2")));
    assert!(one.unwrap().is_success() && two.unwrap().is_success());
    assert_eq!(upstream.received(), 1);
}

#[tokio::test]
async fn status_steps_of_one_evolution_message_are_four_events() {
    // PRV-1: status steps of one message shared a cache key; real updates were "duplicated, ignored".
    let upstream = Upstream::answering(200, "").await;
    let route = "[[route]]\nname = \"evo\"\npath = \"/evo\"\nprovider = \"evolution\"\n";
    let gateway = Gateway::in_front_of(&upstream).route(route).start().await;
    let mut series = vec![Delivery::json(
        "/evo",
        r#"{"event":"messages.upsert","instance":"loja","data":{"key":{"id":"3EB0AA","fromMe":false},"message":{}}}"#,
    )];
    for status in ["SERVER_ACK", "DELIVERY_ACK", "READ"] {
        let body = format!(
            r#"{{"event":"messages.update","instance":"loja","data":{{"keyId":"3EB0AA","remoteJid":"5511987654321@s.whatsapp.net","fromMe":true,"status":"{status}"}}}}"#
        );
        series.push(Delivery::json("/evo", body));
    }
    assert_eq!(forwarded(&gateway, &upstream, &series).await, 4);
    assert_eq!(forwarded(&gateway, &upstream, &series).await, 0);
}

#[tokio::test]
async fn sent_delivered_and_read_of_one_message_are_three_events() {
    // PRV-2: sent, delivered and read carry the same message id; keying on the id alone drops two of them.
    let upstream = Upstream::answering(200, "").await;
    let route = "[[route]]\nname = \"wa\"\npath = \"/wa\"\nprovider = \"meta\"\nsecret = \"s3cret\"\n";
    let gateway = Gateway::in_front_of(&upstream).route(route).start().await;
    let change = |items: &str| {
        let body = format!(
            r#"{{"object":"whatsapp_business_account","entry":[{{"id":"1","changes":[{{"value":{{"metadata":{{"phone_number_id":"2"}},{items}}},"field":"messages"}}]}}]}}"#
        );
        Delivery::json("/wa", body).signed_by_meta("s3cret")
    };
    let mut series: Vec<Delivery> = ["sent", "delivered", "read"]
        .map(|status| change(&format!(r#""statuses":[{{"id":"wamid.T1","status":"{status}"}}]"#)))
        .into();
    series.push(change(r#""messages":[{"id":"wamid.T1","type":"text"}]"#));
    assert_eq!(forwarded(&gateway, &upstream, &series).await, 4);
    assert_eq!(forwarded(&gateway, &upstream, &series).await, 0);
}

#[tokio::test]
async fn a_sale_has_many_hotmart_events_and_a_retry_changes_only_volatile_fields() {
    let upstream = Upstream::answering(200, "").await;
    let route = "[[route]]\nname = \"hot\"\npath = \"/hot\"\nprovider = \"hotmart\"\nsecret = \"tok\"\n";
    let gateway = Gateway::in_front_of(&upstream).route(route).start().await;
    let event = |id: &str, created: u64| {
        let body = format!(
            r#"{{"id":"{id}","creation_date":{created},"event":"PURCHASE_APPROVED","data":{{"purchase":{{"transaction":"HP1"}}}}}}"#
        );
        Delivery::json("/hot", body).header("X-HOTMART-HOTTOK", "tok")
    };
    let sale = [event("e-1", 1), event("e-2", 1)];
    assert_eq!(forwarded(&gateway, &upstream, &sale).await, 2);
    assert_eq!(forwarded(&gateway, &upstream, &[event("e-1", 2), event("e-2", 9)]).await, 0);
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}
