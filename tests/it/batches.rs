//! Many events in one request: new ones pass, known ones are cut out, and the rest keeps its bytes.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{
    Delivery, Gate, Gateway, Line, Pair, Reply, Stores, Upstream, Wire, durable_toml, eventually, hub_sha1,
    hub_sha256, on_every_store, send_all,
};

on_every_store! {
    every_item_of_a_batch_is_claimed,
    only_what_is_new_of_a_batch_is_forwarded,
    batches_that_overlap_in_opposite_order_settle,
    a_thousand_items_are_one_request_each_way,
    items_of_two_overlapping_batches_reach_the_app_once,
}

const META: &str = r#"
[[route]]
name = "wa"
path = "/wa"
provider = "meta"
secret = "s3cret"
timeout = "20s"
lease = "40s"
"#;

/// A signed WhatsApp delivery with messages of these ids, under one entry.
fn messages(ids: &[&str]) -> Delivery {
    signed(&format!(
        r#"{{"object":"whatsapp_business_account", "entry":[{{"id":"10","changes":[{{"value":{{"messaging_product":"whatsapp","metadata":{{"phone_number_id":"11"}},"contacts":[{{"wa_id":"55"}}],"messages":[{}]}},"field":"messages"}}]}}]}}"#,
        ids.iter().map(|id| message(id)).collect::<Vec<_>>().join(", ")
    ))
}

/// With what a re-serialisation would change: white space, an escape, a float, the order of members.
fn message(id: &str) -> String {
    format!(r#"{{"from":"55", "id":"wamid.{id}","z":1.0,"a":"\u00e9\/","timestamp":"1786363197"}}"#)
}

fn signed(body: &str) -> Delivery {
    Delivery::json("/wa", body).signed_by_meta("s3cret")
}

/// The ids that a body carries, in order.
fn ids(body: &[u8]) -> Vec<String> {
    let mut ids = Vec::new();
    let body: serde_json::Value = serde_json::from_slice(body).unwrap();
    for entry in body["entry"].as_array().unwrap() {
        for change in entry["changes"].as_array().unwrap() {
            for message in change["value"]["messages"].as_array().unwrap() {
                ids.push(message["id"].as_str().unwrap().trim_start_matches("wamid.").to_owned());
            }
        }
    }
    ids
}

async fn every_item_of_a_batch_is_claimed(pair: Pair) {
    // BAT-1: only the first element of a batched POST was looked at.
    let stores = Stores::open(pair).await;
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(META).start().await;
    let change = |a: &str, b: &str| {
        let items = [a, b].map(message).join(",");
        format!(
            r#"{{"value":{{"metadata":{{"phone_number_id":"11"}},"messages":[{items}]}},"field":"messages"}}"#
        )
    };
    let entry = |id: u32, a: String, b: String| format!(r#"{{"id":"{id}","changes":[{a},{b}]}}"#);
    let body = format!(
        r#"{{"object":"whatsapp_business_account","entry":[{},{}]}}"#,
        entry(1, change("1", "2"), change("3", "4")),
        entry(2, change("5", "6"), change("7", "8"))
    );
    assert_eq!(gateway.send(&signed(&body)).await.verdict(), "first");
    assert_eq!(upstream.last().text(), body);

    let copy = gateway.send(&messages(&["7"])).await;
    assert_eq!((copy.status, copy.verdict().as_str()), (200, "duplicate"));
    assert_eq!(upstream.received(), 1);

    assert_eq!(gateway.send(&messages(&["8", "9"])).await.status, 200);
    assert_eq!(upstream.received(), 2);
    assert_eq!(ids(&upstream.last().body), ["9"]);
}

/// The log line of a cut batch had the key of its first item, a copy that the app never got, and nothing of the event
/// that it did get.
#[tokio::test]
async fn the_log_names_what_the_app_got_of_a_batch() {
    let upstream = Upstream::answering(200, "took it").await;
    let gateway = Gateway::in_front_of(&upstream).route(META).start().await;
    gateway.send(&messages(&["1"])).await;
    gateway.send(&messages(&["1", "2", "3"])).await;
    let event = gateway.ask_admin("GET", "/events?key=wa:11:messages:wamid.2").await.json();
    let mut cut = Vec::new();
    eventually("its log line", async || {
        cut = gateway.log_lines();
        cut.retain(|line| !line["removed"].is_null());
        !cut.is_empty()
    })
    .await;
    assert!(
        event["digest"].as_str().unwrap().starts_with(cut[0]["key"].as_str().unwrap()),
        "{event} {cut:?}"
    );
    assert_eq!((&cut[0]["items"], &cut[0]["removed"]), (&3.into(), &1.into()));
}

async fn only_what_is_new_of_a_batch_is_forwarded(pair: Pair) {
    // BAT-2: a claim over the whole batch threw away new items next to old ones.
    let stores = Stores::open(pair).await;
    let upstream = Upstream::answering(200, "took it").await;
    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(META).start().await;
    let whole = messages(&["1", "2"]);
    gateway.send(&whole).await;
    assert_eq!(upstream.last().body, whole.body, "an all-new batch passes byte for byte");
    assert_eq!(upstream.last().header("umavez-removed"), None);

    assert_eq!(gateway.send(&messages(&["2", "3"])).await.status, 200);
    let filtered = upstream.last();
    // White space between items is the list's; everything else of the rest keeps its bytes.
    let (head, list) =
        filtered.text().split_once("\"messages\":[").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let (list, tail) = list.split_once("]}").unwrap();
    assert_eq!(list.trim(), message("3"));
    let whole = String::from_utf8(whole.body).unwrap();
    assert!(whole.starts_with(&head) && whole.ends_with(&format!("]}}{tail}")), "{head} … {tail}");
    assert_eq!(filtered.header("umavez-removed").as_deref(), Some("1"));
    assert_eq!(filtered.header("content-length"), Some(filtered.body.len().to_string()));

    let nothing_new = gateway.send(&messages(&["1", "2", "3"])).await;
    assert_eq!((nothing_new.status, nothing_new.text().as_str()), (200, "took it"));
    assert_eq!(nothing_new.verdict(), "duplicate");
    assert!(nothing_new.is_replayed());
    assert_eq!(upstream.received(), 2);
}

async fn batches_that_overlap_in_opposite_order_settle(pair: Pair) {
    // BAT-4: multi-row inserts in different order deadlocked (40P01).
    let stores = Stores::open(pair).await;
    let upstream = Upstream::answering(200, "").await;
    let one = Gateway::in_front_of(&upstream).on(&stores).route(META).start().await;
    // Where the stores are shared between nodes, the opposite order comes through another node.
    let other = if pair == Pair::RedisPostgres || pair == Pair::MemoryPostgres {
        Some(Gateway::in_front_of(&upstream).on(&stores).route(META).start().await)
    } else {
        None
    };
    let second = other.as_ref().unwrap_or(&one).address();
    let mut deliveries = Vec::new();
    for round in 0..25 {
        let ids: Vec<String> = (0..20).map(|n| format!("{round}-{n:02}")).collect();
        let up: Vec<&str> = ids.iter().map(String::as_str).collect();
        let down: Vec<&str> = up.iter().rev().copied().collect();
        deliveries.push((one.address(), messages(&up)));
        deliveries.push((second, messages(&down)));
    }
    for answer in send_all(deliveries).await {
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let mut seen: Vec<String> = upstream.requests().iter().flat_map(|request| ids(&request.body)).collect();
    assert_eq!(seen.len(), 500);
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 500);
}

async fn a_thousand_items_are_one_request_each_way(pair: Pair) {
    // BAT-5: default body limits of the framework (2 MB), one store round trip per item.
    let stores = Stores::open(pair).await;
    let upstream = Upstream::answering(200, "").await;
    let mut toml = stores.toml();
    let mut _wires = Vec::new();
    if stores.has_postgres() {
        let url = stores.postgres_url();
        let (before, database) = url.rsplit_once('/').unwrap();
        let server = before.rsplit_once('@').unwrap().1.parse().unwrap();
        let wire = Wire::to(server).await;
        wire.set(Line::Slow(Duration::from_millis(5)));
        let slow = durable_toml(&format!("postgres://umavez@{}/{database}", wire.address()));
        toml = format!("{}{slow}", toml.split("[durable]").next().unwrap());
        _wires.push(wire);
    }
    let gateway = Gateway::in_front_of(&upstream).stores_toml(&toml).route(META).start().await;
    let ids: Vec<String> = (0..1000).map(|n| format!("{n:04}")).collect();
    let padding = "x".repeat(2900);
    let items: Vec<String> = ids
        .iter()
        .map(|id| format!(r#"{{"id":"wamid.{id}","type":"text","text":{{"body":"{padding}"}}}}"#))
        .collect();
    let body = format!(
        r#"{{"object":"whatsapp_business_account","entry":[{{"id":"10","changes":[{{"value":{{"metadata":{{"phone_number_id":"11"}},"messages":[{}]}},"field":"messages"}}]}}]}}"#,
        items.join(",")
    );
    assert!(body.len() > 2_900_000);
    let delivery = signed(&body);
    for verdict in ["first", "duplicate"] {
        let begun = Instant::now();
        let answer = gateway.send(&delivery).await;
        assert_eq!((answer.status, answer.verdict().as_str()), (200, verdict));
        // One round trip per item would take 5 s at the very least; the rest is a debug build on a busy machine.
        assert!(begun.elapsed() < Duration::from_secs(5), "{verdict} took {:?}", begun.elapsed());
    }
    assert_eq!(upstream.received(), 1);
    assert_eq!(upstream.last().body, delivery.body);
    let first = [("route", "wa"), ("verdict", "first")];
    assert_eq!(gateway.metrics().await.value("umavez_items_total", &first), 1000.0);
}

async fn items_of_two_overlapping_batches_reach_the_app_once(pair: Pair) {
    // Own items are forwarded before waiting on others', so two overlapping batches can't wait for each other.
    let stores = Stores::open(pair).await;
    let gate = Gate::closed();
    let held = gate.clone();
    let upstream = Upstream::deciding(move |_, _| Reply::new(200, "").behind(&held)).await;
    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(META).start().await;
    let first = gateway.sending(&messages(&["a", "b"]));
    upstream.until_received(1).await;
    let second = gateway.sending(&messages(&["b", "c"]));
    upstream.until_received(2).await;
    assert_eq!(ids(&upstream.last().body), ["c"], "what is in flight elsewhere is not forwarded again");
    assert!(!second.is_finished());
    gate.open();
    for answer in [first.await.unwrap(), second.await.unwrap()] {
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    assert_eq!(upstream.received(), 2);
}

#[tokio::test]
async fn a_batch_with_an_item_in_flight_is_not_answered_before_that_item_is_done() {
    // CLM-2 for batches: a 2xx says that every event of the batch is done.
    let gate = Gate::closed();
    let held = gate.clone();
    let upstream = Upstream::deciding(move |_, nth| match nth {
        1 => Reply::new(500, "broken").behind(&held),
        _ => Reply::new(200, ""),
    })
    .await;
    let gateway = Gateway::in_front_of(&upstream).route(META).start().await;
    let first = gateway.sending(&messages(&["a"]));
    upstream.until_received(1).await;
    let second = gateway.sending(&messages(&["a", "b"]));
    upstream.until_received(2).await;
    assert_eq!(ids(&upstream.last().body), ["b"]);
    gate.open();
    assert_eq!(first.await.unwrap().status, 500);
    let second = second.await.unwrap();
    assert!(second.asks_for_a_retry(), "a failed, so the batch is not done: {}", second.status);
    assert_eq!(gateway.send(&messages(&["a", "b"])).await.status, 200);
    assert_eq!(ids(&upstream.last().body), ["a"], "b was done with the batch that failed for a");
}

#[tokio::test]
async fn a_batch_that_is_parked_is_not_answered_before_an_item_in_flight_is_done() {
    // The same where the route holds: "it is safe" is said of every event of the batch, or not at all.
    let gate = Gate::closed();
    let held = gate.clone();
    let upstream = Upstream::deciding(move |_, nth| match nth {
        1 => Reply::new(500, "broken").behind(&held),
        2 => Reply::hang_up(),
        _ => Reply::new(200, ""),
    })
    .await;
    let route = format!("{META}on_unknown = \"hold\"\n");
    let gateway = Gateway::in_front_of(&upstream).route(&route).start().await;
    let first = gateway.sending(&messages(&["a"]));
    upstream.until_received(1).await;
    let second = gateway.sending(&messages(&["a", "b"]));
    upstream.until_received(2).await;
    gateway.until_metric("umavez_settlements_total", &[("settlement", "hold")], 1.0).await;
    gate.open();
    assert_eq!(first.await.unwrap().status, 500);
    let second = second.await.unwrap();
    assert!(second.asks_for_a_retry(), "b is parked, and a failed: {}", second.status);
    assert_eq!(gateway.send(&messages(&["a", "b"])).await.status, 200);
    assert_eq!(ids(&upstream.last().body), ["a"]);
}

#[tokio::test]
async fn the_same_event_twice_in_one_batch_is_forwarded_once() {
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).route(META).start().await;
    assert_eq!(gateway.send(&messages(&["x", "y", "x"])).await.status, 200);
    assert_eq!(upstream.received(), 1);
    assert_eq!(ids(&upstream.last().body), ["x", "y"]);
    assert_eq!(gateway.send(&messages(&["y", "x"])).await.verdict(), "duplicate");
}

#[tokio::test]
async fn a_filtered_batch_is_signed_anew() {
    // BAT-3: handlers check an HMAC over the raw bytes; a rewritten body failed it.
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).route(META).start().await;
    for (batch, left) in [(["1", "2"], vec!["1", "2"]), (["2", "3"], vec!["3"])] {
        gateway.send(&messages(&batch)).await;
        let received = upstream.last();
        assert_eq!(ids(&received.body), left);
        assert_eq!(received.headers_named("x-hub-signature-256"), [hub_sha256("s3cret", &received.body)]);
        assert_eq!(received.headers_named("x-hub-signature"), [hub_sha1("s3cret", &received.body)]);
    }
}

#[tokio::test]
async fn without_the_secret_a_batch_never_goes_out_with_a_stale_signature() {
    // BAT-3 (c): the choice is to forward such a batch whole.
    let upstream = Upstream::answering(200, "").await;
    let route = "[[route]]\nname = \"wa\"\npath = \"/wa\"\nprovider = \"meta\"\n";
    let gateway = Gateway::in_front_of(&upstream).route(route).start().await;
    gateway.send(&messages(&["1", "2"])).await;
    let mixed = messages(&["2", "3"]);
    gateway.send(&mixed).await;
    let received = upstream.last();
    assert_eq!(received.body, mixed.body);
    assert_eq!(received.headers_named("x-hub-signature-256"), [hub_sha256("s3cret", &mixed.body)]);
    let copy = gateway.send(&mixed).await;
    assert_eq!((copy.status, copy.verdict().as_str()), (200, "duplicate"), "both are done now");
    assert_eq!(upstream.received(), 2);
}

#[tokio::test]
async fn items_that_have_no_key_are_never_cut_out() {
    // An error without any id is no event; a change with neither messages nor statuses is not "empty".
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).route(META).start().await;
    gateway.send(&messages(&["1"])).await;
    let body = format!(
        r#"{{"object":"whatsapp_business_account","entry":[{{"id":"10","changes":[{{"value":{{"metadata":{{"phone_number_id":"11"}},"errors":[{{"code":130429}}]}},"field":"messages"}},{{"value":{{"metadata":{{"phone_number_id":"11"}},"messages":[{}]}},"field":"messages"}}]}}]}}"#,
        message("1")
    );
    for _ in 0..2 {
        assert_eq!(gateway.send(&signed(&body)).await.status, 200);
        let received = upstream.last().json();
        let changes = received["entry"][0]["changes"].as_array().unwrap();
        assert!(
            changes.iter().any(|change| change["value"]["errors"] == json!([{"code": 130429}])),
            "{received}"
        );
        assert!(!upstream.last().text().contains("wamid.1"));
    }
    assert_eq!(upstream.received(), 3);
}

#[tokio::test]
async fn a_thousand_items_are_claimed_in_one_round_trip_and_one_transaction() {
    let stores = Stores::open(Pair::RedisPostgres).await;
    let app = Gate::closed();
    let upstream = Upstream::scripted([Reply::new(200, ""), Reply::new(200, "").behind(&app)]).await;
    let wire = Wire::to(format!("127.0.0.1:{}", stores.redis().port()).parse().unwrap()).await;
    // A patience that outlasts a busy machine: what is counted is what goes out before any answer comes.
    let hot = format!("[hot]\nurl = \"redis://{}\"\ntimeout = \"5s\"\n", wire.address());
    let toml = format!("{hot}{}", durable_toml(&stores.postgres_url()));
    let gateway = Gateway::in_front_of(&upstream).stores_toml(&toml).route(META).start().await;
    // The first of all opens connections, and teaches Redis what it must know.
    gateway.send(&messages(&["warm"])).await;
    let sets = async || {
        let told = stores.redis().command(&["INFO", "commandstats"]).await.text();
        let line = told.lines().find_map(|line| line.strip_prefix("cmdstat_set:calls="));
        line.and_then(|line| line.split(',').next()).map_or(0, |calls| calls.parse::<u64>().unwrap())
    };
    // Which transactions wrote the batch's rows as they stand: those of its claim, then those of its settlement.
    let writers = || {
        stores.sql(
            "select count(*), array_agg(distinct xmin::text) from umavez_event where key like '%wamid.n%'",
        )
    };
    eventually("the first event is settled in both stores", async || sets().await >= 2).await;

    let ids: Vec<String> = (0..1000).map(|n| format!("n{n}")).collect();
    let delivery = messages(&ids.iter().map(String::as_str).collect::<Vec<_>>());
    let sets_before = sets().await;
    wire.set(Line::Deaf);
    let answer = gateway.sending(&delivery);
    eventually("every claim went out, though none was answered", async || sets().await - sets_before >= 1000)
        .await;
    wire.resume();
    upstream.until_received(2).await;
    let claimed = writers();
    assert!(claimed.starts_with("1000|{") && !claimed.contains(','), "claimed by one transaction: {claimed}");
    app.open();
    assert_eq!(answer.await.unwrap().verdict(), "first");
    assert_eq!(upstream.last().body, delivery.body);
    let settled = writers();
    assert!(settled.starts_with("1000|{") && !settled.contains(','), "settled by one transaction: {settled}");
    assert_ne!(claimed, settled);

    assert_eq!(gateway.send(&delivery).await.verdict(), "duplicate");
    assert_eq!(writers(), settled, "copies of what is done write nothing");
    assert_eq!(upstream.received(), 2);
}

#[tokio::test]
async fn more_events_than_any_provider_sends_are_refused_before_a_store_is_asked() {
    // Some megabytes of `{},{},…` were a quarter of a million claims: a gigabyte of memory, and everybody else waited.
    let stores = Stores::open_own(Pair::MemoryPostgres).await;
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(META).start().await;
    let batch = |count: usize| {
        let ids: Vec<String> = (0..count).map(|number| number.to_string()).collect();
        messages(&ids.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let answer = gateway.send(&batch(20_001)).await;
    assert_eq!((answer.status, answer.verdict().as_str()), (413, "refused"));
    assert_eq!(upstream.received(), 0);
    assert_eq!(stores.sql("select count(*) from umavez_event"), "0");
    let refused = [("route", "wa"), ("answer", "too_large")];
    assert_eq!(gateway.metrics().await.value("umavez_requests_total", &refused), 1.0);
}
