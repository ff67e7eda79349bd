//! What a route may choose while the durable store is away: `hot_only` and `bypass`, seen and counted.

use std::collections::HashMap;
use std::sync::Mutex;

use super::durable::Refusing;
use super::wired;
use crate::failover::{exposed, until_durable};
use crate::support::{
    Delivery, Gate, Gateway, ORDERS, Pair, Reply, Stores, Upstream, eventually, on_every_store, order,
};

on_every_store! {
    a_persons_change_outlasts_what_the_hot_store_decided_alone,
}

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
async fn hot_only_knows_as_done_what_postgres_claimed_and_could_not_settle() {
    // Postgres had claimed the event and went away while the app worked. Redis kept the mark alone, until the lease ended;
    // the next copy was then the first again, and the app did the event twice while Redis was well.
    let stores = Stores::open(Pair::RedisPostgres).await;
    let (wire, toml) = wired(&stores, "1s").await;
    let gate = Gate::closed();
    let upstream = Upstream::scripted([Reply::new(201, "made").behind(&gate)]).await;
    let route = format!("{ORDERS}on_durable_down = \"hot_only\"\n");
    let one = Gateway::in_front_of(&upstream).stores_toml(&toml).route(&route).start().await;
    let two = Gateway::in_front_of(&upstream).stores_toml(&toml).route(&route).start().await;
    let send = one.sending(&order("late"));
    upstream.until_received(1).await;
    wire.cut();
    gate.open();
    assert_eq!(send.await.unwrap().status, 201);
    one.until_metric("umavez_unsettled", &[], 1.0).await;
    // A node that has nothing to go by but Redis, which holds no mark that could end.
    assert!(stores.redis().command(&["get", "dedup:orders:late"]).await.text().starts_with("done 201 "));
    let copy = two.send(&order("late")).await;
    assert_eq!((copy.status, copy.text().as_str(), copy.verdict().as_str()), (201, "made", "duplicate"));
    wire.resume();
    one.until_metric("umavez_unsettled", &[], 0.0).await;
    stores.redis().flush().await;
    assert_eq!(two.send(&order("late")).await.verdict(), "duplicate");
    assert_eq!(upstream.received(), 1);
}

/// An app's answer that Postgres could not record was told to Redis as done, also where a person had forgotten the event
/// meanwhile: the copy that was to pass was a duplicate.
#[tokio::test]
async fn what_a_person_forgot_is_not_brought_back_by_an_end_that_only_redis_hears_of() {
    let stores = Stores::open(Pair::RedisPostgres).await;
    let (wire, toml) = wired(&stores, "1s").await;
    let gate = Gate::closed();
    let upstream = Upstream::scripted([Reply::new(200, "old").behind(&gate), Reply::new(200, "new")]).await;
    let route = format!("{ORDERS}on_durable_down = \"hot_only\"\n");
    let gateway = Gateway::in_front_of(&upstream).stores_toml(&toml).route(&route).start().await;
    let send = gateway.sending(&order("a"));
    upstream.until_received(1).await;
    assert_eq!(gateway.ask_admin("POST", "/events/forget?key=orders:a").await.status, 200);
    // What a change leaves there has its time.
    stores.redis().command(&["DEL", "dedup:orders:a"]).await;
    wire.cut();
    gate.open();
    assert_eq!(send.await.unwrap().text(), "old");
    assert_eq!(stores.redis().command(&["EXISTS", "dedup:orders:a"]).await.integer(), 0);
    wire.resume();
    gateway.until_metric("umavez_unsettled", &[], 0.0).await;
    let copy = gateway.send(&order("a")).await;
    assert_eq!((copy.text().as_str(), copy.verdict().as_str()), ("new", "first"));
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

/// What the hot store alone had decided was written over what a person had decided since, and brought back what one had
/// forgotten: the copy that was to pass was answered as a duplicate.
async fn a_persons_change_outlasts_what_the_hot_store_decided_alone(pair: Pair) {
    let stores = Stores::open(pair).await;
    let wired = if stores.has_postgres() { Some(wired(&stores, "2s").await) } else { None };
    let toml = match &wired {
        Some((_, toml)) => toml.clone(),
        None => format!("{}[durable]\ntimeout = \"2s\"\n", stores.toml()),
    };
    let gate = Gate::closed();
    let held = gate.clone();
    let seen = Mutex::new(HashMap::<String, usize>::new());
    let upstream = Upstream::deciding(move |request, _| {
        let mut seen = seen.lock().unwrap();
        let times = seen.entry(request.text()).or_default();
        *times += 1;
        match times {
            1 => Reply::new(200, "old"),
            2 => Reply::new(200, "late").behind(&held),
            _ => Reply::new(200, "new"),
        }
    })
    .await;
    let route = format!("{ORDERS}on_durable_down = \"hot_only\"\n");
    let mut gateway = Gateway::in_front_of(&upstream).stores_toml(&toml).route(&route).start().await;
    let changes = ["allow-once", "forget"];
    for change in changes {
        assert_eq!(gateway.send(&order(change)).await.verdict(), "first");
    }
    // The hot store forgets both, and then they come again while the durable store is away.
    gateway.restart().await;
    if stores.has_redis() {
        stores.redis().flush().await;
    }
    let refusing = match &wired {
        Some((wire, _)) => {
            wire.cut();
            None
        }
        None => Some(Refusing::begin(&stores, &gateway).await),
    };
    let alone = changes.map(|change| gateway.sending(&order(change)));
    upstream.until_received(4).await;
    assert_eq!(exposed(&gateway).await, 2.0);
    match (&wired, refusing) {
        (Some((wire, _)), _) => wire.resume(),
        (None, Some(refusing)) => refusing.end(&stores).await,
        (None, None) => unreachable!("one of the two is away"),
    }
    until_durable(&gateway).await;
    // Through another node where there can be one: without Redis, this one isn't told.
    let other = match stores.has_postgres() {
        true => Some(Gateway::in_front_of(&upstream).on(&stores).route(&route).start().await),
        false => None,
    };
    let asked = other.as_ref().unwrap_or(&gateway);
    for change in changes {
        let changed = asked.ask_admin("POST", &format!("/events/{change}?key=orders:{change}")).await;
        assert_eq!(changed.status, 200, "{}", changed.text());
        if stores.has_redis() {
            // What a change leaves there has its time.
            stores.redis().command(&["DEL", &format!("dedup:orders:{change}")]).await;
        }
    }
    if pair != Pair::MemoryPostgres {
        gateway.until_metric("umavez_in_flight", &[], 0.0).await;
    }
    gate.open();
    for late in alone {
        assert_eq!(late.await.unwrap().text(), "late");
    }
    gateway.until_metric("umavez_unsettled", &[], 0.0).await;
    for change in changes {
        for verdict in ["first", "duplicate"] {
            let copy = asked.send(&order(change)).await;
            assert_eq!((copy.text().as_str(), copy.verdict().as_str()), ("new", verdict), "{change}");
        }
    }
}
