//! Postgres that fails over to its replica under load: what it acknowledged is what the replica has, as long as it waits
//! for it.

use std::time::Duration;

use super::{addresses, patient_route, two_nodes};
use crate::support::postgres::{PgBouncer, Postgres};
use crate::support::redis::Redis;
use crate::support::{Gateway, Load, ORDERS, Upstream, durable_toml, eventually, hot_toml, order};

#[tokio::test]
async fn a_failover_to_a_synchronous_replica_loses_and_doubles_no_event() {
    // The URL names both, as libpq's do; the one that takes writes is found.
    let Pairing { mut primary, replica } = Pairing::start(Commits::WaitForReplica).await;
    let redis = Redis::start().await;
    let url = format!(
        "postgres://umavez@127.0.0.1:{},127.0.0.1:{}/postgres?target_session_attrs=read-write",
        replica.port(),
        primary.port()
    );
    let toml = format!("{}{}timeout = \"2s\"\n", hot_toml(&redis.url()), durable_toml(&url));
    let upstream = Upstream::answering(200, "done").await;
    let nodes = two_nodes(&upstream, &toml, &patient_route()).await;
    let load = Load::on(addresses(&nodes));
    load.carries(100).await;
    let replica = blocking(move || {
        primary.kill();
        replica.promote();
        replica
    })
    .await;
    load.carries(100).await;
    // Redis has no say in it.
    redis.flush().await;
    load.balances_exactly(&upstream).await;
    assert_eq!(replica.sql("select count(*) from umavez_event where state <> 1"), "0");
}

#[tokio::test]
async fn a_failover_behind_a_pooler_that_is_led_elsewhere_loses_and_doubles_no_event() {
    let Pairing { mut primary, replica } = Pairing::start(Commits::WaitForReplica).await;
    let pooler = PgBouncer::in_front_of(&primary);
    let toml = format!("{}timeout = \"2s\"\n", durable_toml(&pooler.url()));
    let upstream = Upstream::answering(200, "done").await;
    let nodes = two_nodes(&upstream, &toml, &patient_route()).await;
    let load = Load::on(addresses(&nodes));
    load.carries(100).await;
    let replica = blocking(move || {
        primary.kill();
        replica.promote();
        pooler.lead_to(&replica);
        (replica, pooler)
    })
    .await;
    load.carries(100).await;
    load.balances_exactly(&upstream).await;
    drop(replica);
}

#[tokio::test]
async fn a_commit_that_the_synchronous_replica_never_got_is_no_claim() {
    // It waits in Postgres for good, and so do the connections that it came on: only a few, however long that takes.
    let Pairing { primary, replica } = Pairing::start(Commits::WaitForReplica).await;
    let toml = format!("{}timeout = \"500ms\"\n", durable_toml(&primary.url()));
    let upstream = Upstream::answering(200, "done").await;
    let route = format!("{ORDERS}in_flight_wait = \"100ms\"\n");
    let gateway = Gateway::in_front_of(&upstream).stores_toml(&toml).route(&route).start().await;
    gateway.send(&order("before")).await;
    replica.stall();
    for n in 0..4 {
        let answer = gateway.send(&order(&format!("waits-{n}"))).await;
        assert_eq!((answer.status, answer.verdict().as_str()), (503, "unavailable"));
    }
    assert_eq!(upstream.received(), 1, "forwarded, though a fail-over would forget the claim");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let waiting = primary.sql("select count(*) from pg_stat_activity where wait_event = 'SyncRep'");
    assert!(waiting.parse::<u32>().unwrap() <= 3, "{waiting} commits wait");
    replica.resume();
    for n in 0..4 {
        // What was committed after all is released by its fence: nobody waits for a lease.
        let id = format!("waits-{n}");
        eventually("the event to pass", async || gateway.send(&order(&id)).await.verdict() == "first").await;
        assert_eq!(gateway.send(&order(&id)).await.verdict(), "duplicate");
    }
    assert_eq!(upstream.received(), 5);
    drop(replica);
}

#[tokio::test]
async fn an_asynchronous_replica_forgets_its_last_moments_and_redis_still_knows_them() {
    // What the pages say of it: copies of what the replica never heard of pass again, unless Redis remembers.
    let Pairing { mut primary, replica } = Pairing::start(Commits::DoNotWait).await;
    let redis = Redis::start().await;
    let url = format!("postgres://umavez@127.0.0.1:{},127.0.0.1:{}/postgres", primary.port(), replica.port());
    let toml = format!("{}{}timeout = \"2s\"\n", hot_toml(&redis.url()), durable_toml(&url));
    let upstream = Upstream::answering(200, "done").await;
    let gateway = Gateway::in_front_of(&upstream).stores_toml(&toml).start().await;
    gateway.send(&order("heard")).await;
    let has_it = || replica.sql("select count(*) from umavez_event where state = 1") == "1";
    eventually("the replica to have it", async || has_it()).await;
    replica.sql("alter system set primary_conninfo = ''");
    replica.sql("select pg_reload_conf()");
    eventually("the replica to hear nothing", async || {
        primary.sql("select count(*) from pg_stat_replication") == "0"
    })
    .await;
    for id in ["unheard-1", "unheard-2"] {
        assert_eq!(gateway.send(&order(id)).await.verdict(), "first");
    }
    let replica = blocking(move || {
        primary.kill();
        replica.promote();
        replica
    })
    .await;
    eventually("the gateway to find it", async || gateway.send(&order("new")).await.is_success()).await;
    assert_eq!(gateway.send(&order("unheard-1")).await.verdict(), "duplicate");
    redis.flush().await;
    assert_eq!(gateway.send(&order("heard")).await.verdict(), "duplicate");
    assert_eq!(gateway.send(&order("unheard-2")).await.verdict(), "first");
    drop(replica);
}

/// A server and the replica that follows it.
struct Pairing {
    primary: Postgres,
    replica: Postgres,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Commits {
    WaitForReplica,
    DoNotWait,
}

impl Pairing {
    async fn start(commits: Commits) -> Self {
        blocking(move || {
            let primary = Postgres::start();
            let replica = primary.replica();
            if commits == Commits::WaitForReplica {
                primary.wait_for_replica();
            }
            Self { primary, replica }
        })
        .await
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}
