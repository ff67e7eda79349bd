//! A Redis Cluster of six processes that loses a master under load. What the dead master's replica had not heard yet is
//! forgotten, and Redis may forget: no verdict changes.

use std::time::{Duration, Instant};

use super::{addresses, patient_route, two_nodes};
use crate::support::redis::{Cluster, Redis};
use crate::support::{Gateway, Load, Pair, Stores, Upstream, eventually, hot_toml, order};

#[tokio::test]
async fn a_cluster_that_loses_a_master_under_load_loses_and_doubles_no_event() {
    let stores = Stores::open(Pair::MemoryPostgres).await;
    let mut cluster = Box::pin(Cluster::start()).await;
    let upstream = Upstream::answering(200, "done").await;
    let toml = format!("{}{}", hot_toml(&cluster.url()), stores.toml());
    let nodes = two_nodes(&upstream, &toml, &patient_route()).await;
    let load = Load::on(addresses(&nodes));
    load.carries(100).await;
    // The first one is the only one that the URL names.
    cluster.nodes[0].kill().await;
    until_promoted(&cluster.nodes[3]).await;
    load.carries(100).await;
    for node in &nodes {
        node.until_metric("umavez_hot_breaker_open", &[], 0.0).await;
    }
    load.carries(100).await;
    load.balances_exactly(&upstream).await;
    for node in &nodes {
        answers_from_the_slots_of(&cluster.nodes[3], node).await;
    }
}

#[tokio::test]
async fn a_master_that_falls_silent_costs_a_bounded_time_and_its_replica_is_found() {
    // A machine that dies says no farewell: TCP keeps the connection for minutes, and the other masters answer well.
    let stores = Stores::open(Pair::MemoryPostgres).await;
    let cluster = Box::pin(Cluster::start()).await;
    let upstream = Upstream::answering(200, "done").await;
    let toml = format!("{}{}", hot_toml(&cluster.url()), stores.toml());
    let gateway = Gateway::in_front_of(&upstream).stores_toml(&toml).start().await;
    gateway.send(&order("warm")).await;
    let waited =
        async || gateway.metrics().await.value("umavez_store_duration_seconds_sum", &[("store", "hot")]);
    let before = waited().await;
    cluster.nodes[0].stall().await;
    let stalled = Instant::now();
    let mut sent = 0;
    while stalled.elapsed() < Duration::from_secs(3) || sent < 60 {
        assert_eq!(gateway.send(&order(&format!("s{sent}"))).await.verdict(), "first");
        sent += 1;
    }
    // A third of them are that master's. Each would have paid the patience of 500 ms twice.
    let cost = waited().await - before;
    assert!(cost < 12.0, "{cost} s on Redis for {sent} requests");
    until_promoted(&cluster.nodes[3]).await;
    gateway.until_metric("umavez_hot_breaker_open", &[], 0.0).await;
    answers_from_the_slots_of(&cluster.nodes[3], &gateway).await;
    for n in 0..sent {
        assert_eq!(gateway.send(&order(&format!("s{n}"))).await.verdict(), "duplicate");
    }
    cluster.nodes[0].resume().await;
}

async fn until_promoted(replica: &Redis) {
    eventually("the replica to be promoted", async || {
        replica.command(&["ROLE"]).await.text().starts_with("master")
    })
    .await;
}

/// Events whose keys lie on this node are known from Redis.
async fn answers_from_the_slots_of(redis: &Redis, gateway: &Gateway) {
    let route_hot = [("route", "orders"), ("layer", "hot")];
    let hot = async || gateway.metrics().await.value("umavez_duplicates_total", &route_hot);
    for tag in 0.. {
        let id = format!("again-{}-{tag}", gateway.id());
        let slot = redis.command(&["CLUSTER", "KEYSLOT", &format!("dedup:orders:{id}")]).await.integer();
        if slot > 5460 {
            continue;
        }
        assert_eq!(gateway.send(&order(&id)).await.verdict(), "first");
        eventually("Redis to know it", async || {
            let before = hot().await;
            assert_eq!(gateway.send(&order(&id)).await.verdict(), "duplicate");
            hot().await > before
        })
        .await;
        assert!(redis.keys().await.contains(&format!("dedup:orders:{id}")));
        return;
    }
}
