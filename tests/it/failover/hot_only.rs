//! Two nodes on a route that lets Redis decide while Postgres is away, when Postgres is there for one of them or comes back
//! in the middle of an event.

use crate::stores_down::wired;
use crate::support::{
    Gate, Gateway, Line, ORDERS, Pair, Reply, Stores, Upstream, Wire, eventually, forwards, order,
};

#[tokio::test]
async fn an_event_in_flight_while_postgres_returns_is_not_another_nodes_first() {
    let stores = Stores::open(Pair::RedisPostgres).await;
    let gate = Gate::closed();
    let held = gate.clone();
    let upstream = Upstream::deciding(move |request, _| match request.text().contains("mid") {
        true => Reply::new(200, "once").behind(&held),
        false => Reply::new(200, ""),
    })
    .await;
    let (wire_one, one) = node(&stores, &upstream).await;
    let (wire_two, two) = node(&stores, &upstream).await;
    wire_one.cut();
    wire_two.cut();
    let first = one.sending(&order("mid"));
    upstream.until_received(1).await;
    assert_eq!(exposed(&one).await, 1.0);
    wire_one.resume();
    wire_two.resume();
    until_durable(&one).await;
    until_durable(&two).await;
    // The durable store knows nothing of it, and says so to whoever asks.
    assert_eq!(stores.sql("select count(*) from umavez_event where key = 'orders:mid'"), "0");
    let copy = two.send(&order("mid")).await;
    assert_eq!(copy.verdict(), "in_flight", "{}", copy.status);
    assert!(copy.asks_for_a_retry());
    gate.open();
    assert_eq!(first.await.unwrap().verdict(), "first");
    assert_eq!(two.send(&order("mid")).await.verdict(), "duplicate");
    one.until_metric("umavez_unsettled", &[], 0.0).await;
    stores.redis().flush().await;
    for node in [&one, &two] {
        let copy = node.send(&order("mid")).await;
        assert_eq!((copy.text().as_str(), copy.verdict().as_str()), ("once", "duplicate"));
    }
    assert_eq!(forwards(&upstream)["mid"], [1]);
}

pub(crate) async fn exposed(node: &Gateway) -> f64 {
    node.metrics().await.value("umavez_exposed_total", &[("route", "orders")])
}

/// Waits until the node's claims go to Postgres again.
pub(crate) async fn until_durable(node: &Gateway) {
    let mut tries = 0;
    eventually("a durable claim", async || {
        tries += 1;
        let before = exposed(node).await;
        let answer = node.send(&order(&format!("{}-{tries}", node.id()))).await;
        answer.verdict() == "first" && exposed(node).await == before
    })
    .await;
}

#[tokio::test]
async fn a_node_that_reaches_postgres_and_one_that_does_not_forward_an_event_once() {
    let stores = Stores::open(Pair::RedisPostgres).await;
    let gate = Gate::closed();
    let upstream = Upstream::scripted([Reply::new(200, "warm"), Reply::new(200, "once").behind(&gate)]).await;
    let (wire, hindered) = node(&stores, &upstream).await;
    let (_open, free) = node(&stores, &upstream).await;
    hindered.send(&order("warm")).await;
    // It has marked the event in Redis, and asks Postgres in vain.
    wire.set(Line::Stalled);
    let copy = hindered.sending(&order("both"));
    eventually("the mark", async || {
        stores.redis().command(&["GET", "dedup:orders:both"]).await.text().starts_with("processing")
    })
    .await;
    let first = free.sending(&order("both"));
    upstream.until_received(2).await;
    // Its patience with Postgres ends: Redis alone would decide now, and Redis knows the other's claim.
    hindered.until_metric("umavez_in_flight", &[], 0.0).await;
    assert_ne!(copy.await.unwrap().verdict(), "first");
    gate.open();
    assert_eq!(first.await.unwrap().verdict(), "first");
    assert_eq!(hindered.send(&order("both")).await.verdict(), "duplicate");
    assert_eq!(upstream.received(), 2);
    assert_eq!(exposed(&hindered).await, 0.0);
    wire.resume();
}

async fn node(stores: &Stores, upstream: &Upstream) -> (Wire, Gateway) {
    let (wire, toml) = wired(stores, "1s").await;
    let route = format!("{ORDERS}on_durable_down = \"hot_only\"\nin_flight_wait = \"200ms\"\n");
    (wire, Gateway::in_front_of(upstream).stores_toml(&toml).route(&route).start().await)
}
