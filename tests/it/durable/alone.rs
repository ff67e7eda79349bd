//! A write that is the only one goes over its thread's own connection: sooner, and no less sure.

use std::net::SocketAddr;

use super::*;
use crate::support::{Line, Wire, eventually};

/// Has the table note which connections claim.
fn note_connections(postgres: &Postgres) {
    postgres.sql(
        "create table claimed_by (pid integer not null);
         create function note() returns trigger language plpgsql as $$ begin
            insert into claimed_by select pg_backend_pid() where exists (select from fresh);
            return null;
         end $$;
         create trigger note after insert on umavez_event referencing new table as fresh
            for each statement execute function note()",
    );
}

/// The connections that claimed since the last call, in order.
fn claimed_by(postgres: &Postgres) -> Vec<String> {
    let pids = postgres.sql("with gone as (delete from claimed_by returning pid) select pid from gone");
    pids.lines().map(str::to_owned).collect()
}

/// Claims until that is done over another connection than the writer's, which may still be at work at first.
async fn until_alone(store: &Durable, postgres: &Postgres, writers: &[String]) {
    let mut n = 0;
    eventually("a lone write has its own connection", async || {
        n += 1;
        claim(store, &ask(&format!("one:{n}"))).await;
        claimed_by(postgres) != writers
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_one_by_one_goes_over_the_threads_connection_and_what_comes_at_once_over_the_writers() {
    let postgres = Postgres::start();
    let writer = open(&at(&postgres.url())).await;
    note_connections(&postgres);
    claim(&writer, &ask("by:writer")).await;
    let writers = claimed_by(&postgres);
    let store = alone(&writer, &postgres).await;
    until_alone(&store, &postgres, &writers).await;
    let asks = (0..100).map(|n| ask(&format!("many:{n}")));
    let claims = asks.map(|ask| {
        let store = store.clone();
        async move { claim(&store, &ask).await }
    });
    for seen in futures_util::future::join_all(claims).await {
        assert_eq!(attempt(&seen), 1);
    }
    let batches = claimed_by(&postgres);
    assert!(batches.len() < 50, "{} batches", batches.len());
    assert!(
        batches.iter().filter(|pid| !writers.contains(pid)).count() <= 1,
        "only the first was the only one"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lone_write_whose_acknowledgement_is_lost_is_recognised_by_its_fence() {
    let postgres = Postgres::start();
    let wire = trouble::Wire::to(postgres.port()).await;
    let writer = open(&at(&wire.url())).await;
    let store = alone(&writer, &postgres).await;
    for round in 0..20 {
        let first = ask(&format!("shop:{round}"));
        wire.cut_next_answer();
        assert_eq!(attempt(&claim(&store, &first).await), 1);
        wire.cut_next_answer();
        assert_eq!(settle(&store, &first, End::Commit(receipt("made"))).await, Settled::Recorded);
        assert!(matches!(claim(&store, &ask(&format!("shop:{round}"))).await, Seen::Done { .. }));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lone_write_waits_no_longer_for_a_stalled_database_than_any_other_and_leaves_no_claim() {
    let postgres = Postgres::start();
    let writer = open(&within(&postgres.url(), Duration::from_secs(2))).await;
    let store = alone(&writer, &postgres).await;
    claim(&store, &ask("before")).await;
    postgres.stall();
    for n in 0..4 {
        unavailable(store.claim(vec![ask(&format!("event:{n}"))]).await);
    }
    // Known to be down, it keeps nobody.
    while !matches!(*unavailable(store.claim(vec![ask("during")]).await), Trouble::Down(_)) {}
    postgres.resume();
    for n in 0..4 {
        eventually("what was claimed without an answer is released", async || {
            let retry = store.claim(vec![ask(&format!("event:{n}"))]).await;
            matches!(retry.as_deref(), Ok([Seen::Claimed { .. }]))
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lone_write_that_the_database_refuses_fails_and_those_after_it_do_not() {
    let postgres = Postgres::start();
    let writer = open(&at(&postgres.url())).await;
    let store = alone(&writer, &postgres).await;
    postgres.sql(
        "create function refuse() returns trigger language plpgsql as $$ begin raise exception 'no'; end $$;
         create trigger refuse before insert on umavez_event for each row when (new.key = 'odd')
            execute function refuse()",
    );
    for n in 0..10 {
        unavailable(store.claim(vec![ask("odd")]).await);
        assert_eq!(attempt(&claim(&store, &ask(&format!("even:{n}"))).await), 1);
    }
}

/// A lone write whose connection was lost while the database was away went on to the writer, which refused it: its claim had
/// landed, and the event was in flight for nobody until the lease ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lone_claim_that_landed_before_the_database_went_away_is_released_when_it_is_back() {
    let postgres = Postgres::start();
    let wire = Wire::to(SocketAddr::from(([127, 0, 0, 1], postgres.port()))).await;
    let writer = open(&at(&format!("postgres://umavez@{}/postgres", wire.address()))).await;
    note_connections(&postgres);
    claim(&writer, &ask("by:writer")).await;
    let writers = claimed_by(&postgres);
    let store = alone(&writer, &postgres).await;
    until_alone(&store, &postgres, &writers).await;
    wire.set(Line::Deaf);
    // The first goes alone; the other, beside it, by the writer, which so knows that the database is away.
    let mut told = Vec::new();
    for key in ["lost", "other"] {
        let store = store.clone();
        told.push(tokio::spawn(async move { store.claim(vec![ask(key)]).await }));
        let landed = format!("select count(*) from umavez_event where key = '{key}'");
        eventually("the claim to land", async || postgres.sql(&landed) == "1").await;
    }
    wire.cut();
    for told in told {
        unavailable(told.await.unwrap());
    }
    wire.resume();
    eventually("the claims to be released", async || {
        postgres.sql("select count(*) from umavez_event where state = 2") == "2"
    })
    .await;
}
