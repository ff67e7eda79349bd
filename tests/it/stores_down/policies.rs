//! What a route may choose while the durable store is away: `hot_only` and `bypass`, seen and counted.

use super::wired;
use crate::support::{Delivery, Gateway, ORDERS, Pair, Stores, Upstream, eventually, order};

#[tokio::test]
async fn hot_only_lets_redis_decide_alone_and_catches_up() {
    let stores = Stores::open(Pair::RedisPostgres).await;
    let (wire, toml) = wired(&stores, "1s").await;
    let upstream = Upstream::answering(200, "").await;
    let route = format!("{ORDERS}on_durable_down = \"hot_only\"\n");
    let gateway = Gateway::in_front_of(&upstream).stores_toml(&toml).route(&route).start().await;
    gateway.send(&order("before")).await;
    wire.cut();
    for id in ["a", "b", "c"] {
        assert_eq!(gateway.send(&order(id)).await.verdict(), "first", "{id}");
        assert_eq!(gateway.send(&order(id)).await.verdict(), "duplicate", "{id}");
    }
    assert_eq!(gateway.metrics().await.value("umavez_exposed_total", &[("route", "orders")]), 3.0);
    assert_eq!(upstream.received(), 4);
    wire.resume();
    eventually("the durable store to be caught up", async || {
        stores.sql("select count(*) from umavez_event where state = 1") == "4"
    })
    .await;
    stores.redis().flush().await;
    for id in ["before", "a", "b", "c"] {
        assert_eq!(gateway.send(&order(id)).await.verdict(), "duplicate", "{id}");
    }
    assert_eq!(upstream.received(), 4);
}

#[tokio::test]
async fn bypass_forwards_unprotected_marked_and_counted() {
    // RED-2, OBS-2: with both stores down, policy `bypass` forwards without dedup, and everybody can see it.
    let mut stores = Stores::open(Pair::RedisPostgres).await;
    let (wire, toml) = wired(&stores, "1s").await;
    let upstream = Upstream::answering(200, "").await;
    let bypass = format!("{ORDERS}on_durable_down = \"bypass\"\n");
    let strict = "[[route]]\nname = \"strict\"\npath = \"/strict\"\nkey = [\"$.id\"]\n";
    let gateway =
        Gateway::in_front_of(&upstream).stores_toml(&toml).route(&bypass).route(strict).start().await;
    gateway.send(&order("before")).await;
    wire.cut();
    stores.redis_mut().kill().await;
    for _ in 0..3 {
        let answer = gateway.send(&order("open")).await;
        assert_eq!((answer.status, answer.verdict().as_str()), (200, "unavailable"));
        assert_eq!(gateway.send(&Delivery::json("/strict", r#"{"id":"s"}"#)).await.status, 503);
    }
    assert_eq!(upstream.received(), 4);
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.value("umavez_bypassed_total", &[("route", "orders")]), 3.0);
    assert_eq!(metrics.value("umavez_duplicates_total", &[]), 0.0);
    assert!(metrics.value("umavez_store_errors_total", &[("store", "durable")]) >= 1.0);
    stores.redis_mut().restart().await;
    wire.resume();
    eventually("protection again", async || gateway.send(&order("protected")).await.verdict() == "duplicate")
        .await;
}
