//! Redis that is gone, stalled, flushed or killed: the durable store decides alone.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::support::{Gate, Gateway, ORDERS, Pair, Reply, Stores, Upstream, eventually, order, try_send};

#[tokio::test]
async fn keys_in_redis_always_expire() {
    // RED-1: SETNX and EXPIRE as two commands; a crash between them left a key for ever.
    let stores = Stores::open(Pair::RedisPostgres).await;
    let gate = Gate::closed();
    let held = gate.clone();
    let upstream = Upstream::deciding(move |request, _| match request.text().as_bytes()[7] {
        b'f' => Reply::new(500, ""),
        b'w' => Reply::new(200, "").behind(&held),
        _ => Reply::new(200, ""),
    })
    .await;
    let mut gateway = Gateway::in_front_of(&upstream).on(&stores).start().await;
    let mut monitor = stores.redis().connect().await.unwrap();
    monitor.ask(&[b"MONITOR"]).await.unwrap();
    let waiting: Vec<_> =
        (0..20).map(|n| tokio::spawn(sent_or_not(gateway.address(), format!("w{n}")))).collect();
    upstream.until_received(20).await;
    for n in 0..100 {
        gateway.send(&order(&format!("d{n}"))).await;
        gateway.send(&order(&format!("f{n}"))).await;
    }
    // kill -9 under load: some claims are in flight for good.
    let load: Vec<_> =
        (0..50).map(|n| tokio::spawn(sent_or_not(gateway.address(), format!("k{n}")))).collect();
    upstream.until_received(225).await;
    gateway.kill();
    for send in load.into_iter().chain(waiting) {
        send.await.unwrap();
    }
    let keys = stores.redis().keys().await;
    assert!(keys.len() >= 120, "{} keys", keys.len());
    for key in keys {
        // -2: gone meanwhile; -1: would stay for ever.
        let ttl = stores.redis().command(&["PTTL", &key]).await.integer();
        assert_ne!(ttl, -1, "{key} has no time to live");
    }
    // Each claim was one command or script: no key was ever told to expire after the fact.
    stores.redis().command(&["PING", "the-end"]).await;
    loop {
        let line = monitor.next().await.unwrap().text().to_lowercase();
        if line.contains("the-end") {
            break;
        }
        for word in ["\"setnx\"", "\"expire\"", "\"pexpire\"", "\"expireat\"", "\"pexpireat\""] {
            assert!(!line.contains(word), "{line}");
        }
    }
}

async fn sent_or_not(address: SocketAddr, id: String) {
    try_send(address, &order(&id)).await.ok();
}

#[tokio::test]
async fn without_redis_the_durable_store_decides_alone() {
    // RED-2: Redis unreachable meant 500 for everything, or silently unprotected.
    for pair in [Pair::RedisSqlite, Pair::RedisPostgres] {
        let mut stores = Stores::open(pair).await;
        let upstream = Upstream::answering(200, "").await;
        let gateway = Gateway::in_front_of(&upstream).on(&stores).start().await;
        assert_eq!(gateway.send(&order("before")).await.verdict(), "first");
        stores.redis_mut().kill().await;
        assert_eq!(gateway.send(&order("before")).await.verdict(), "duplicate");
        for n in 0..20 {
            let id = format!("down-{n}");
            assert_eq!(gateway.send(&order(&id)).await.verdict(), "first");
            assert_eq!(gateway.send(&order(&id)).await.verdict(), "duplicate");
        }
        assert_eq!(upstream.received(), 21);
        let metrics = gateway.metrics().await;
        assert!(metrics.value("umavez_store_errors_total", &[("store", "hot")]) >= 1.0);
        assert_eq!(metrics.value("umavez_hot_breaker_open", &[]), 1.0);
        assert_eq!(metrics.value("umavez_exposed_total", &[]), 0.0);

        // RED-4: no reconnect after the store came back.
        stores.redis_mut().restart().await;
        let back = Instant::now();
        gateway.until_metric("umavez_hot_breaker_open", &[], 0.0).await;
        assert!(back.elapsed() < Duration::from_secs(8), "closed {:?} after Redis came back", back.elapsed());
        gateway.send(&order("after")).await;
        assert_eq!(gateway.send(&order("after")).await.verdict(), "duplicate");
        let hot = [("route", "orders"), ("layer", "hot")];
        assert!(
            gateway.metrics().await.value("umavez_duplicates_total", &hot) >= 1.0,
            "Redis is in use again"
        );
        // A lost connection was told three times more, in the notation of a library.
        assert!(!gateway.logs().contains("Broadcasting error"), "{}", gateway.logs());
    }
}

#[tokio::test]
async fn a_stalled_redis_costs_little_and_then_nothing() {
    let stores = Stores::open(Pair::RedisPostgres).await;
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).on(&stores).start().await;
    gateway.send(&order("warm")).await;
    stores.redis().stall().await;
    for n in 0..40 {
        assert_eq!(gateway.send(&order(&format!("s{n}"))).await.verdict(), "first");
    }
    // Not one timeout per request: once open, the breaker keeps requests from waiting.
    let waited =
        async || gateway.metrics().await.value("umavez_store_duration_seconds_sum", &[("store", "hot")]);
    let before = waited().await;
    assert!(before < 8.0, "{before} s on Redis for 40 requests with a patience of 500 ms");
    for n in 0..40 {
        assert_eq!(gateway.send(&order(&format!("s{n}"))).await.verdict(), "duplicate");
    }
    let more = waited().await - before;
    assert!(more < 0.5, "{more} s on Redis for 40 requests: at least one still waited");
    assert_eq!(gateway.metrics().await.value("umavez_hot_breaker_open", &[]), 1.0);
    stores.redis().resume().await;
    gateway.until_metric("umavez_hot_breaker_open", &[], 0.0).await;
    assert_eq!(gateway.send(&order("s1")).await.verdict(), "duplicate");
    assert_eq!(upstream.received(), 41);
}

#[tokio::test]
async fn a_flushed_redis_forgets_no_event() {
    // RED-3: a restart of the fast layer forgot everything.
    for pair in [Pair::RedisSqlite, Pair::RedisPostgres] {
        let stores = Stores::open(pair).await;
        let gate = Gate::closed();
        let held = gate.clone();
        let upstream = Upstream::deciding(move |request, _| match request.text().contains("slow") {
            true => Reply::new(200, "kept").behind(&held),
            false => Reply::new(200, "kept"),
        })
        .await;
        let route = format!("{ORDERS}in_flight_wait = \"200ms\"\n");
        let gateway = Gateway::in_front_of(&upstream).on(&stores).route(&route).start().await;
        gateway.send(&order("done")).await;
        let slow = gateway.sending(&order("slow"));
        upstream.until_received(2).await;
        stores.redis().flush().await;
        let copy = gateway.send(&order("done")).await;
        assert_eq!((copy.text().as_str(), copy.verdict().as_str()), ("kept", "duplicate"));
        let durable = [("route", "orders"), ("layer", "durable")];
        assert_eq!(gateway.metrics().await.value("umavez_duplicates_total", &durable), 1.0);
        assert_eq!(
            gateway.send(&order("slow")).await.verdict(),
            "in_flight",
            "a claim in flight is not lost either"
        );
        gate.open();
        assert_eq!(slow.await.unwrap().verdict(), "first");
        // Redis is warm again: it answers the next copy.
        assert_eq!(gateway.send(&order("done")).await.verdict(), "duplicate");
        let hot = [("route", "orders"), ("layer", "hot")];
        assert!(gateway.metrics().await.value("umavez_duplicates_total", &hot) >= 1.0);
        assert_eq!(upstream.received(), 2);
    }
}

/// A request that had waited for Redis in vain when it claimed waited once more when it settled, and a copy when it told
/// Redis what the durable store knew.
#[tokio::test]
async fn a_stalled_redis_takes_one_patience_of_a_request() {
    for pair in [Pair::RedisSqlite, Pair::RedisPostgres] {
        let stores = Stores::open(pair).await;
        let upstream = Upstream::answering(200, "").await;
        let gateway = Gateway::in_front_of(&upstream).on(&stores).start().await;
        let waits = async || gateway.metrics().await.value("umavez_store_errors_total", &[("store", "hot")]);
        assert_eq!(gateway.send(&order("before")).await.verdict(), "first");
        let before = waits().await;
        stores.redis().stall().await;
        assert_eq!(gateway.send(&order("new")).await.verdict(), "first");
        assert_eq!(gateway.send(&order("before")).await.verdict(), "duplicate");
        assert_eq!(waits().await - before, 2.0, "one for each request");
        stores.redis().resume().await;
        // What Redis was not told costs a question to the durable store.
        assert_eq!(gateway.send(&order("new")).await.verdict(), "duplicate");
        assert_eq!(upstream.received(), 2);
    }
}

/// The key that a probe writes was left to expire: for its last half second `TTL` said zero, as of a key for ever to who
/// looks for such.
#[tokio::test]
async fn probes_leave_no_key() {
    let stores = Stores::open(Pair::RedisSqlite).await;
    let upstream = Upstream::answering(200, "").await;
    let _gateway = Gateway::in_front_of(&upstream).on(&stores).start().await;
    // The start waits for the probe's answer, and not for its key to go.
    eventually("the probe's key to be deleted", async || {
        stores.redis().command(&["INFO", "commandstats"]).await.text().contains("cmdstat_del:")
    })
    .await;
    let keys = stores.redis().keys().await;
    assert!(keys.iter().all(|key| !key.contains("#probe")), "{keys:?}");
}
