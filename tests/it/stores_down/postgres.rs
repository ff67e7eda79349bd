//! Postgres restarted under traffic, and behind a transaction pooler.

use std::collections::BTreeMap;

use crate::support::postgres::PgBouncer;
use crate::support::{
    Gateway, ORDERS, Pair, Stores, Upstream, durable_toml, eventually, order, send_until_success,
};

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

/// `/ready` asked the connection that only reads: while Postgres took no writes (made read-only; so with a full disk under
/// SQLite) every new event got 503, and the node said that it was ready.
#[tokio::test]
async fn a_database_that_takes_no_writes_is_not_ready() {
    let stores = Stores::open_own(Pair::RedisPostgres).await;
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).on(&stores).start().await;
    assert_eq!(gateway.send(&order("before")).await.verdict(), "first");
    let ready = async || gateway.ask_admin("GET", "/ready").await;
    assert_eq!(ready().await.status, 200);
    stores.sql("alter system set default_transaction_read_only = on");
    stores.sql("select pg_reload_conf()");
    eventually("Postgres to take no writes", async || {
        gateway.send(&order("meanwhile")).await.verdict() == "unavailable"
    })
    .await;
    eventually("/ready to say so", async || {
        let answer = ready().await;
        answer.status == 503 && answer.text().contains("\"durable\":false")
    })
    .await;
    stores.sql("alter system reset default_transaction_read_only");
    stores.sql("select pg_reload_conf()");
    eventually("/ready again", async || ready().await.status == 200).await;
}

/// Each write of a batch that Postgres did not take had a line of its own: a table that was locked for a moment filled the
/// log with hundreds of the same.
#[tokio::test]
async fn what_postgres_did_not_take_is_logged_once_for_each_reason() {
    let mut stores = Stores::open_own(Pair::MemoryPostgres).await;
    let upstream = Upstream::answering(200, "").await;
    let toml = format!("{}timeout = \"1s\"\n", durable_toml(&stores.postgres_url()));
    let gateway = Gateway::in_front_of(&upstream).stores_toml(&toml).start().await;
    let lock = "begin; lock table umavez_event in access exclusive mode";
    let session = stores.postgres_mut().session(lock);
    let sends: Vec<_> = (0..40).map(|n| gateway.sending(&order(&format!("locked-{n}")))).collect();
    for send in sends {
        assert_eq!(send.await.unwrap().verdict(), "unavailable");
    }
    drop(session);
    let told: Vec<_> =
        gateway.log_lines().into_iter().filter(|line| line["message"] == "a batch was not written").collect();
    let writes: u64 = told.iter().map(|line| line["writes"].as_u64().unwrap()).sum();
    assert!(!told.is_empty() && told.len() < 20, "{} lines: {told:#?}", told.len());
    assert!(writes > 20, "of 40 writes {writes} are told of: {told:#?}");
    eventually("Postgres again", async || gateway.send(&order("after")).await.status == 200).await;
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
