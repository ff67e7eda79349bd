//! Stores that are down, slow, refused or forgetful: never a wrong verdict, and what the policy says.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::support::postgres::PgBouncer;
use crate::support::{
    Delivery, Gate, Gateway, Line, ORDERS, Pair, Reply, Stores, Upstream, Wire, durable_toml, eventually,
    hot_toml, on_every_store, order, send_until_success,
};

on_every_store! {
    keys_in_redis_always_expire,
    a_database_that_refuses_to_write_is_no_verdict,
}

async fn keys_in_redis_always_expire(pair: Pair) {
    // RED-1: SETNX and EXPIRE as two commands; a crash between them left a key for ever.
    let stores = Stores::open(pair).await;
    if !stores.has_redis() {
        return;
    }
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
    let waiting: Vec<_> = (0..20).map(|n| gateway.sending(&order(&format!("w{n}")))).collect();
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
    for send in load {
        send.await.unwrap();
    }
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    let keys = stores.redis().keys().await;
    assert!(keys.len() >= 120, "{} keys", keys.len());
    for key in keys {
        let ttl = stores.redis().command(&["TTL", &key]).await.integer();
        assert!(ttl > 0, "{key} has TTL {ttl}");
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
    crate::support::try_send(address, &order(&id)).await.ok();
}

async fn a_database_that_refuses_to_write_is_no_verdict(pair: Pair) {
    // CLM-8: any database error was read as "somebody else has it".
    let stores = Stores::open(pair).await;
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).on(&stores).start().await;
    assert_eq!(gateway.send(&order("before")).await.status, 200);
    let unlock = Refusing::begin(&stores, &gateway).await;
    for id in ["new-1", "new-2", "new-1"] {
        let answer = gateway.send(&order(id)).await;
        assert_eq!((answer.status, answer.verdict().as_str()), (503, "unavailable"), "{id}");
        assert!(answer.header("retry-after").is_some());
    }
    assert_eq!(upstream.received(), 1, "nothing is forwarded without a claim");
    let metrics = gateway.metrics().await;
    assert!(metrics.value("umavez_store_errors_total", &[("store", "durable")]) >= 1.0);
    let unavailable = [("route", "orders"), ("verdict", "unavailable")];
    assert_eq!(metrics.value("umavez_items_total", &unavailable), 3.0);
    unlock.end(&stores).await;
    eventually("the database to take claims again", async || {
        gateway.send(&order("new-1")).await.status == 200
    })
    .await;
    assert_eq!(upstream.received(), 2);
}

/// A database that answers every write with an error.
enum Refusing {
    Postgres {
        tables: Vec<String>,
    },
    /// Another process holds SQLite's write lock.
    Sqlite {
        lock: std::process::Child,
    },
}

impl Refusing {
    async fn begin(stores: &Stores, gateway: &Gateway) -> Self {
        if stores.has_postgres() {
            let tables = stores.sql("select tablename from pg_tables where schemaname = 'public'");
            let tables: Vec<String> = tables.lines().map(str::to_owned).collect();
            for table in &tables {
                stores.sql(&format!("alter table \"{table}\" rename to \"{table}_away\""));
            }
            return Self::Postgres { tables };
        }
        let file = gateway.folder().join("umavez.db");
        let script = "import sqlite3, sys, time\n\
            db = sqlite3.connect(sys.argv[1], timeout=20, isolation_level=None)\n\
            db.execute('begin immediate')\nprint('locked', flush=True)\ntime.sleep(600)\n";
        let mut lock = std::process::Command::new("python3")
            .args(["-c", script])
            .arg(&file)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut told = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(lock.stdout.take().unwrap()), &mut told)
            .unwrap();
        assert_eq!(told.trim(), "locked");
        Self::Sqlite { lock }
    }

    async fn end(self, stores: &Stores) {
        match self {
            Self::Postgres { tables } => {
                for table in tables {
                    stores.sql(&format!("alter table \"{table}_away\" rename to \"{table}\""));
                }
            }
            Self::Sqlite { mut lock } => {
                lock.kill().unwrap();
                lock.wait().unwrap();
            }
        }
    }
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
    let begun = Instant::now();
    for n in 0..40 {
        assert_eq!(gateway.send(&order(&format!("s{n}"))).await.verdict(), "duplicate");
    }
    assert!(
        begun.elapsed() < Duration::from_secs(12),
        "{:?} for 40 requests of at most 500 ms",
        begun.elapsed()
    );
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

/// A Postgres behind a wire, and the configuration that goes through it.
async fn wired(stores: &Stores, timeout: &str) -> (Wire, String) {
    let url = stores.postgres_url();
    let (before, database) = url.rsplit_once('/').unwrap();
    let (_, server) = before.rsplit_once('@').unwrap();
    let wire = Wire::to(server.parse().unwrap()).await;
    let durable = durable_toml(&format!("postgres://umavez@{}/{database}", wire.address()));
    let hot = if stores.has_redis() { hot_toml(&stores.redis_url()) } else { String::new() };
    (wire, format!("{hot}{durable}timeout = \"{timeout}\"\n"))
}

#[tokio::test]
async fn without_the_durable_store_new_events_are_refused_and_known_ones_answered() {
    // The policy `reject`, the default: 503 with Retry-After, nothing forwarded; hot duplicates are still answered.
    let stores = Stores::open(Pair::RedisPostgres).await;
    let (wire, toml) = wired(&stores, "2s").await;
    let upstream = Upstream::answering(200, "first time").await;
    let gateway = Gateway::in_front_of(&upstream).stores_toml(&toml).start().await;
    gateway.send(&order("known")).await;
    wire.cut();
    for _ in 0..3 {
        let refused = gateway.send(&order("new")).await;
        assert_eq!((refused.status, refused.verdict().as_str()), (503, "unavailable"));
        assert!(refused.header("retry-after").is_some());
        let known = gateway.send(&order("known")).await;
        assert_eq!(
            (known.status, known.text().as_str(), known.verdict().as_str()),
            (200, "first time", "duplicate")
        );
    }
    eventually("the gateway to say that it is not ready", async || {
        gateway.ask_admin("GET", "/ready").await.status == 503
    })
    .await;
    assert_eq!(gateway.ask_admin("GET", "/live").await.status, 200);
    assert_eq!(upstream.received(), 1);
    wire.resume();
    eventually("claims again", async || gateway.send(&order("new")).await.status == 200).await;
    assert_eq!(gateway.send(&order("new")).await.verdict(), "duplicate");
    assert_eq!(upstream.received(), 2);
}

#[tokio::test]
async fn a_stalled_durable_store_is_no_verdict_either() {
    let stores = Stores::open(Pair::RedisPostgres).await;
    let (wire, toml) = wired(&stores, "500ms").await;
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).stores_toml(&toml).start().await;
    gateway.send(&order("warm")).await;
    wire.set(Line::Stalled);
    for answer in gateway.send_copies(&order("stuck"), 5).await {
        assert!(!answer.is_success(), "{}", answer.status);
    }
    assert_eq!(upstream.received(), 1);
    wire.resume();
    // The claim may have landed although nobody was told: the event is claimable again, by its fence or its lease.
    eventually("the event to pass", async || gateway.send(&order("stuck")).await.status == 200).await;
    assert_eq!(gateway.send(&order("stuck")).await.verdict(), "duplicate");
    assert_eq!(upstream.received(), 2);
}

#[tokio::test]
async fn a_claim_whose_acknowledgement_was_lost_is_recognised_by_its_fence() {
    // It committed, the answer was lost, and the connection broke: the same request's second try knows its own row.
    let stores = Stores::open(Pair::MemoryPostgres).await;
    let (wire, toml) = wired(&stores, "5s").await;
    let upstream = Upstream::answering(200, "").await;
    let route = format!("{ORDERS}timeout = \"3s\"\nlease = \"6s\"\n");
    let gateway = Gateway::in_front_of(&upstream).stores_toml(&toml).route(&route).start().await;
    gateway.send(&order("warm")).await;
    wire.set(Line::Deaf);
    let send = gateway.sending(&order("lost"));
    eventually("the claim in the database", async || stores.sql("select count(*) from event") == "2").await;
    wire.cut();
    wire.resume();
    let told = send.await.unwrap();
    // Recognised: forwarded at once. Or given up: the sender is told to come again, and passes after the lease.
    if told.status != 200 {
        assert_eq!(told.status, 503, "never a wrong verdict");
        eventually("the event to pass", async || gateway.send(&order("lost")).await.status == 200).await;
    }
    assert_eq!(gateway.send(&order("lost")).await.verdict(), "duplicate");
    assert_eq!(upstream.received(), 2);
}

#[tokio::test]
async fn a_settlement_lands_when_the_durable_store_comes_back() {
    // Lost between forward and settlement: the app's answer is given, and the settlement retried in the background.
    let stores = Stores::open(Pair::RedisPostgres).await;
    let (wire, toml) = wired(&stores, "1s").await;
    let gate = Gate::closed();
    let upstream = Upstream::scripted([Reply::new(201, "made").behind(&gate)]).await;
    let gateway = Gateway::in_front_of(&upstream).stores_toml(&toml).start().await;
    let send = gateway.sending(&order("settle"));
    upstream.until_received(1).await;
    wire.cut();
    gate.open();
    let answer = send.await.unwrap();
    assert_eq!((answer.status, answer.text().as_str()), (201, "made"));
    gateway.until_metric("umavez_unsettled", &[], 1.0).await;
    wire.resume();
    gateway.until_metric("umavez_unsettled", &[], 0.0).await;
    let copy = gateway.send(&order("settle")).await;
    assert_eq!((copy.status, copy.text().as_str(), copy.verdict().as_str()), (201, "made", "duplicate"));
    assert_eq!(upstream.received(), 1);
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
        stores.sql("select count(*) from event where state = 'done'") == "4"
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

#[tokio::test]
async fn a_restart_of_postgres_under_traffic_loses_and_doubles_nothing() {
    // PGS-2: database restart under traffic; errors misread, events lost or doubled. RED-4 for Postgres.
    let mut stores = Stores::open_own(Pair::RedisPostgres).await;
    let upstream = Upstream::answering(200, "").await;
    let route = format!("{ORDERS}timeout = \"2s\"\nlease = \"4s\"\n");
    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(&route).start().await;
    let address = gateway.address();
    let sends: Vec<_> = (0..20)
        .map(|worker| {
            tokio::spawn(async move {
                for n in 0..15 {
                    send_until_success(address, &order(&format!("p{worker}-{n}"))).await;
                }
            })
        })
        .collect();
    upstream.until_received(60).await;
    stores = tokio::task::spawn_blocking(move || {
        stores.postgres_mut().restart();
        stores
    })
    .await
    .unwrap();
    for send in sends {
        send.await.unwrap();
    }
    let mut counts: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for request in upstream.requests() {
        counts.entry(request.text()).or_default().push(request.attempt());
    }
    assert_eq!(counts.len(), 300);
    let doubled: Vec<_> = counts.iter().filter(|(_, attempts)| attempts.len() > 1).collect();
    assert!(doubled.is_empty(), "{doubled:?}");
    for worker in 0..20 {
        let copy = gateway.send(&order(&format!("p{worker}-14"))).await;
        assert_eq!((copy.status, copy.verdict().as_str()), (200, "duplicate"));
    }
    drop(gateway);
    drop(stores);
}

#[tokio::test]
async fn postgres_behind_a_transaction_pooler_works() {
    // PGS-1: named prepared statements break behind PgBouncer's transaction pooling, at start-up as well.
    let mut stores = Stores::open_own(Pair::MemoryPostgres).await;
    let pooler = PgBouncer::in_front_of(stores.postgres_mut());
    let toml = durable_toml(&pooler.url());
    let upstream = Upstream::answering(200, "").await;
    let one = Gateway::in_front_of(&upstream).stores_toml(&toml).start().await;
    let two = Gateway::in_front_of(&upstream).stores_toml(&toml).start().await;
    let sends: Vec<_> = (0..20)
        .map(|worker| {
            let (one, two) = (one.address(), two.address());
            tokio::spawn(async move {
                for n in 0..20 {
                    for address in [one, two] {
                        let answer = crate::support::send(address, &order(&format!("g{worker}-{n}"))).await;
                        assert_eq!(answer.status, 200, "{}", answer.text());
                    }
                }
            })
        })
        .collect();
    for send in sends {
        send.await.unwrap();
    }
    assert_eq!(upstream.received(), 400);
    for gateway in [one, two] {
        assert!(!gateway.logs().contains("prepared statement"), "{}", gateway.logs());
    }
}
