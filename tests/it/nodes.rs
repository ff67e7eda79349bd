//! Many copies at once, on one node and on two that share their stores.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::{
    Delivery, Gate, Gateway, ORDERS, Pair, Reply, Stores, Upstream, on_every_store, order, send, send_all,
};

on_every_store! {
    of_fifty_copies_at_once_one_reaches_the_app,
}

async fn of_fifty_copies_at_once_one_reaches_the_app(pair: Pair) {
    // CLM-1: check-then-set; two copies in the same second both ran.
    let stores = Stores::open(pair).await;
    let upstream = Upstream::deciding(|_, _| Reply::new(200, "once").after(Duration::from_millis(50))).await;
    let gateway = Gateway::in_front_of(&upstream).on(&stores).start().await;
    for round in 0..15 {
        let copies = gateway.send_copies(&order(&format!("r{round}")), 50).await;
        for answer in &copies {
            assert_eq!((answer.status, answer.text().as_str()), (200, "once"));
        }
        assert_eq!(copies.iter().filter(|answer| answer.verdict() == "first").count(), 1);
        assert_eq!(upstream.received(), round + 1);
    }
}

/// How often the app got each event.
fn per_event(upstream: &Upstream) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for request in upstream.requests() {
        *counts.entry(request.text()).or_default() += 1;
    }
    counts
}

#[tokio::test]
async fn two_nodes_on_redis_and_postgres_do_every_event_exactly_once() {
    // CLM-11, and the project's own proof: 50 parallel copies of each event over two nodes, one effect each.
    // 120 events by default; UMAVEZ_TEST_EVENTS=1000 for the full size.
    let events = std::env::var("UMAVEZ_TEST_EVENTS").map_or(120, |events| events.parse().unwrap());
    two_nodes_do_every_event_exactly_once(Pair::RedisPostgres, events).await;
}

#[tokio::test]
async fn two_nodes_on_postgres_alone_do_every_event_exactly_once() {
    // CLM-11 with each node's own hot store: the durable store is the arbiter.
    two_nodes_do_every_event_exactly_once(Pair::MemoryPostgres, 40).await;
}

async fn two_nodes_do_every_event_exactly_once(pair: Pair, events: usize) {
    let stores = Stores::open(pair).await;
    let upstream = Upstream::answering(200, "").await;
    let one = Gateway::in_front_of(&upstream).stores_toml(&stores.near_toml()).start().await;
    let two = Gateway::in_front_of(&upstream).stores_toml(&stores.near_toml()).start().await;
    // A few events at a time, so that the copies of each are truly parallel.
    assert_eq!(events % 4, 0);
    for round in 0..events / 4 {
        let mut deliveries = Vec::new();
        for copy in 0..50 {
            for event in 0..4 {
                let node = if copy % 2 == 0 { one.address() } else { two.address() };
                deliveries.push((node, order(&format!("{round}-{event}"))));
            }
        }
        for answer in send_all(deliveries).await {
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
    }
    let counts = per_event(&upstream);
    assert_eq!(counts.len(), events);
    assert!(counts.values().all(|count| *count == 1), "{counts:?}");
}

#[tokio::test]
async fn copies_that_alternate_between_nodes_are_duplicates() {
    // CLM-11: in-process memory; the second replica knew nothing.
    for pair in [Pair::RedisPostgres, Pair::MemoryPostgres] {
        let stores = Stores::open(pair).await;
        let upstream = Upstream::answering(201, "made").await;
        let one = Gateway::in_front_of(&upstream).on(&stores).start().await;
        let two = Gateway::in_front_of(&upstream).on(&stores).start().await;
        for copy in 0..10 {
            let node = if copy % 2 == 0 { &one } else { &two };
            let answer = node.send(&order("turns")).await;
            assert_eq!((answer.status, answer.text().as_str()), (201, "made"));
            assert_eq!(answer.verdict(), if copy == 0 { "first" } else { "duplicate" });
        }
        assert_eq!(upstream.received(), 1);
    }
}

#[tokio::test]
async fn a_copy_on_another_node_waits_for_the_first_and_is_woken() {
    // In flight on one node, a copy on the other: it waits, and learns of the end within tens of milliseconds.
    for pair in [Pair::RedisPostgres, Pair::MemoryPostgres] {
        let stores = Stores::open(pair).await;
        let gate = Gate::closed();
        let held = gate.clone();
        let upstream = Upstream::deciding(move |_, _| Reply::new(200, "done").behind(&held)).await;
        let route = format!("{ORDERS}in_flight_wait = \"30s\"\n");
        let one = Gateway::in_front_of(&upstream).on(&stores).route(&route).start().await;
        let two = Gateway::in_front_of(&upstream).on(&stores).route(&route).start().await;
        let first = one.sending(&order("far"));
        upstream.until_received(1).await;
        let copy = two.sending(&order("far"));
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(!copy.is_finished(), "{pair:?}: it waits");
        gate.open();
        assert_eq!(first.await.unwrap().verdict(), "first");
        let opened = std::time::Instant::now();
        let copy = copy.await.unwrap();
        assert_eq!((copy.status, copy.text().as_str(), copy.verdict().as_str()), (200, "done", "duplicate"));
        assert!(opened.elapsed() < Duration::from_secs(3), "{pair:?}: woken after {:?}", opened.elapsed());
        assert_eq!(upstream.received(), 1);
    }
}

#[tokio::test]
async fn nodes_that_start_together_on_an_empty_database_all_serve() {
    // Migrations are safe when several nodes start at once.
    let stores = Stores::open(Pair::RedisPostgres).await;
    let upstream = Upstream::answering(200, "").await;
    let start = || Gateway::in_front_of(&upstream).on(&stores).start();
    let (one, two, three) = tokio::join!(start(), start(), start());
    for node in [&one, &two, &three] {
        assert!(node.send(&order("m")).await.is_success());
    }
    assert_eq!(upstream.received(), 1);
}

#[tokio::test]
async fn a_node_says_when_its_ledger_is_its_own() {
    // CLM-11: with the embedded store the log says plainly that it is for a single instance.
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).start().await;
    assert_eq!(send(gateway.address(), &Delivery::json("/hooks", r#"{"id":"1"}"#)).await.status, 200);
    assert!(gateway.logs().contains("one gateway only"), "{}", gateway.logs());
}
