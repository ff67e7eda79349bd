//! Answers too long for the hot store: it keeps their status and headers, and the durable store has their bodies.

use std::time::{Duration, Instant};

use crate::stores_down::wired;
use crate::support::{
    Answer, Gateway, Line, ORDERS, Pair, Reply, Stores, Upstream, on_every_store, on_stores, order,
};
use crate::waiting::{batch, log_statements, looks};

on_every_store! {
    copies_in_a_batch_get_the_long_answer,
}

on_stores! {
    a_silent_database_costs_a_batch_of_copies_one_short_wait:
    memory_postgres MemoryPostgres, redis_postgres RedisPostgres
}

on_stores! {
    what_the_durable_store_says_is_not_done_is_no_duplicate:
    memory_postgres MemoryPostgres, redis_sqlite RedisSqlite, redis_postgres RedisPostgres
}

const META: &str = r#"
[[route]]
name = "wa"
path = "/wa"
provider = "meta"
"#;

fn long() -> String {
    format!("<ok>{}</ok>", "x".repeat(5000))
}

fn answering(status: u16) -> Reply {
    let headers = [("Location", "/o/5"), ("Content-Type", "application/xml")];
    Reply::with_headers(status, &headers, long().as_bytes())
}

fn is_a_copy(answer: &Answer, status: u16, body: &str) {
    assert_eq!((answer.status, answer.verdict().as_str()), (status, "duplicate"), "{}", answer.text());
    assert!(answer.is_replayed());
    assert_eq!(answer.headers_named("location"), ["/o/5"]);
    assert_eq!(answer.headers_named("content-type"), ["application/xml"]);
    assert_eq!(answer.text(), body);
}

/// The durable store was asked for the receipts one by one: of 1,000 copies each answer took seconds.
async fn copies_in_a_batch_get_the_long_answer(pair: Pair) {
    let mut stores = Stores::open_own(pair).await;
    let upstream = Upstream::deciding(|_, _| answering(200)).await;
    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(META).start().await;
    assert_eq!(gateway.send(&batch(300)).await.verdict(), "first");
    if stores.has_postgres() {
        log_statements(&mut stores).await;
    }
    is_a_copy(&gateway.send(&batch(300)).await, 200, &long());
    if stores.has_postgres() {
        let asked = looks(&mut stores);
        assert!((1..20).contains(&asked), "asked {asked} times");
    }
    assert_eq!(upstream.received(), 1);
}

/// Each copy waited for the database by itself, thirty seconds for three, and was then told `200` with nothing else.
async fn a_silent_database_costs_a_batch_of_copies_one_short_wait(pair: Pair) {
    let stores = Stores::open(pair).await;
    let upstream = Upstream::deciding(|request, _| match request.target.as_str() {
        "/wa" => answering(200),
        _ => answering(201),
    })
    .await;
    let (wire, toml) = wired(&stores, "30s").await;
    let setup = Gateway::in_front_of(&upstream).stores_toml(&toml);
    let gateway = setup.route(META).route(ORDERS).start().await;
    assert_eq!(gateway.send(&batch(3)).await.verdict(), "first");
    assert_eq!(gateway.send(&order("long")).await.verdict(), "first");
    wire.set(Line::Stalled);
    let began = Instant::now();
    let copy = gateway.send(&batch(3)).await;
    assert_eq!((copy.status, copy.verdict().as_str()), (200, "duplicate"));
    is_a_copy(&gateway.send(&order("long")).await, 201, "");
    // One patience of the database's would be thirty seconds.
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    wire.resume();
    crate::support::eventually("the whole answer", async || {
        gateway.send(&order("long")).await.text() == long()
    })
    .await;
    assert_eq!(upstream.received(), 2);
}

/// A hot store that remembered what a person had changed was believed, though the durable store, asked for the
/// receipt, said otherwise.
async fn what_the_durable_store_says_is_not_done_is_no_duplicate(pair: Pair) {
    let stores = Stores::open(pair).await;
    let upstream = Upstream::deciding(|_, _| answering(201)).await;
    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(ORDERS).start().await;
    assert_eq!(gateway.send(&order("stale")).await.verdict(), "first");
    let other = if stores.has_redis() {
        let name = "dedup:orders:stale";
        let remembered = stores.redis().command(&["GET", name]).await.text();
        assert!(remembered.starts_with("done 201 ") && remembered.len() < 200, "{remembered}");
        forget(&gateway).await;
        // As a replica does that has not heard of it when it takes over.
        stores.redis().command(&["SET", name, &remembered, "EX", "600"]).await;
        None
    } else {
        // In the process each node remembers for itself.
        let other = Gateway::in_front_of(&upstream).on(&stores).route(ORDERS).start().await;
        forget(&other).await;
        Some(other)
    };
    let again = gateway.send(&order("stale")).await;
    assert_eq!((again.status, again.verdict().as_str()), (201, "first"));
    assert_eq!(upstream.received(), 2);
    is_a_copy(&gateway.send(&order("stale")).await, 201, &long());
    drop(other);
}

async fn forget(gateway: &Gateway) {
    let forgotten = gateway.ask_admin("POST", "/events/forget?key=orders:stale").await;
    assert_eq!(forgotten.status, 200, "{}", forgotten.text());
}

#[tokio::test]
async fn what_redis_decided_alone_is_a_duplicate_before_the_durable_store_hears_of_it() {
    // On a route that lets Redis decide: the durable store's "not done" is no word against it.
    let stores = Stores::open(Pair::RedisPostgres).await;
    let upstream = Upstream::deciding(|_, _| answering(201)).await;
    let (wire, toml) = wired(&stores, "1s").await;
    let route = format!("{ORDERS}on_durable_down = \"hot_only\"\n");
    let gateway = Gateway::in_front_of(&upstream).stores_toml(&toml).route(&route).start().await;
    wire.cut();
    assert_eq!(gateway.send(&order("alone")).await.verdict(), "first");
    is_a_copy(&gateway.send(&order("alone")).await, 201, "");
    wire.resume();
    gateway.until_metric("umavez_unsettled", &[], 0.0).await;
    is_a_copy(&gateway.send(&order("alone")).await, 201, &long());
    // The same where the other one would be asked before it has caught up.
    stores.sql("delete from umavez_event");
    is_a_copy(&gateway.send(&order("alone")).await, 201, "");
    assert_eq!(upstream.received(), 1);
}
