//! One caller's write that the database does not take: it fails, alone and soon, and nobody else's does.

use umavez::ledger::durable::{State, Unfit};

use super::*;
use crate::support::eventually;
use crate::support::postgres::PgBouncer;

/// Claims so many events of nobody's at once, and in their midst an odd one; all else must be as if it were not there,
/// to the settlements. What the odd one got.
async fn amid_others(store: &Durable, round: usize, odd: ClaimAsk) -> Result<Seen, DurableError> {
    let others: Vec<_> = (0..40).map(|n| ask(&format!("other:{round}:{n}"))).collect();
    let mut asks = others.clone();
    asks.insert(20, odd.clone());
    let claims = asks.into_iter().map(|ask| store.claim(vec![ask]));
    let claims = tokio::time::timeout(MINUTE, futures_util::future::join_all(claims));
    let mut claims = claims.await.expect("everybody is answered");
    let answer = claims.remove(20);
    for seen in claims {
        assert_eq!(attempt(&seen.unwrap()[0]), 1);
    }
    let mut digests: Vec<_> = others.iter().map(|other| other.key.digest()).collect();
    digests.insert(20, odd.key.digest());
    let peeks = digests.into_iter().map(|digest| store.peek(vec![digest]));
    let mut peeks = futures_util::future::join_all(peeks).await;
    drop(peeks.remove(20));
    for seen in peeks {
        assert!(matches!(seen.unwrap()[..], [Some(Seen::Processing { .. })]));
    }
    let settles = others.iter().map(|other| store.settle(vec![end(other, End::Commit(receipt("made")))]));
    for settled in futures_util::future::join_all(settles).await {
        assert_eq!(settled.unwrap(), [Settled::Recorded]);
    }
    assert!(store.is_up());
    answer.map(|mut seen| seen.pop().unwrap())
}

/// One row that no version can read failed its batch, and the release of what had been claimed in that batch went with
/// every later one and failed it too, for ever: nobody was served any more.
async fn a_row_that_cannot_be_read_fails_nobody_else(database: Database) {
    let store = database.open().await;
    let odd = |n: usize| ask(&format!("odd:{}", n % 5));
    for n in 0..5 {
        claim(&store, &odd(n)).await;
    }
    database.sql("update umavez_event set state = 7 where key like 'odd:%'");
    for round in 0..15 {
        unavailable(amid_others(&store, round, odd(round)).await);
    }
    database.sql("update umavez_event set state = 2 where key like 'odd:%'");
    for n in 0..5 {
        assert_eq!(attempt(&claim(&store, &odd(n)).await), 2);
    }
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_cannot_be_read_fails_nobody_else_on_postgres() {
    a_row_that_cannot_be_read_fails_nobody_else(postgres()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_cannot_be_read_fails_nobody_else_on_sqlite() {
    a_row_that_cannot_be_read_fails_nobody_else(sqlite()).await;
}

/// A role without the right to store payloads, which only routes that hold need, served nobody after the first event of
/// such a route.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_right_fails_only_those_who_need_it() {
    let postgres = Postgres::start();
    drop(open(&at(&postgres.url())).await);
    postgres.sql("create role app login; grant all on all tables in schema public to app");
    let store = open(&at(&postgres.url_as("app"))).await;
    postgres.sql("revoke insert on umavez_payload from app");
    for round in 0..10 {
        unavailable(amid_others(&store, round, hold(&format!("held:{round}"), MINUTE)).await);
    }
    postgres.sql("grant insert on umavez_payload to app");
    for round in 0..10 {
        assert_eq!(attempt(&claim(&store, &hold(&format!("held:{round}"), MINUTE)).await), 1);
    }
}

/// What a trigger of the database's owner refused, one event each time, took its whole batch down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_trigger_refuses_fails_alone() {
    let postgres = Postgres::start();
    let store = open(&at(&postgres.url())).await;
    postgres.sql(
        "create function refuse() returns trigger language plpgsql as
            $$ begin if new.key like 'odd:%' then raise exception 'not that one'; end if; return new; end $$;
         create trigger refuse before insert on umavez_event for each row execute function refuse()",
    );
    for round in 0..10 {
        unavailable(amid_others(&store, round, ask(&format!("odd:{}", round / 2))).await);
    }
    postgres.sql("drop trigger refuse on umavez_event");
    assert_eq!(attempt(&claim(&store, &ask("odd:0")).await), 1);
}

/// One row that somebody else had locked kept its whole batch for the timeout, and then failed it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_row_fails_nobody_else() {
    let postgres = Postgres::start();
    let pooler = PgBouncer::in_front_of(&postgres);
    for (n, url) in [postgres.url(), pooler.url()].iter().enumerate() {
        let store = open(&at(url)).await;
        let odd = || ask(&format!("odd:{n}"));
        let first = odd();
        claim(&store, &first).await;
        assert_eq!(settle(&store, &first, End::Release).await, Settled::Recorded);
        let lock =
            postgres.session(&format!("begin; select from umavez_event where key = 'odd:{n}' for update"));
        for round in 0..5 {
            unavailable(amid_others(&store, 10 * n + round, odd()).await);
        }
        drop(lock);
        eventually("the row is free again", async || match store.claim(vec![odd()]).await {
            Ok(seen) => attempt(&seen[0]) == 2,
            Err(_) => false,
        })
        .await;
    }
}

/// A claim whose caller was told "unavailable" was released once, at once; where its statement was still under way, and landed
/// only then, the event was in flight for nobody until the lease ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_lands_after_its_caller_was_told_otherwise_is_released() {
    let postgres = Postgres::start();
    let store = open(&within(&postgres.url(), Duration::from_secs(2))).await;
    postgres.sql(
        "create function refuse() returns trigger language plpgsql as $$ begin raise exception 'no'; end $$;
         create trigger refuse before insert on umavez_event for each row execute function refuse()",
    );
    let odd = ask("odd");
    unavailable(store.claim(vec![odd.clone()]).await);
    // What the statement would write that is still under way.
    postgres.sql(&format!(
        "drop trigger refuse on umavez_event;
         insert into umavez_event (id, first_claimed, lease_until, expires, fence, fingerprint, attempts, state, hold, route, key)
         values ('{}', now, now + 3600000, now + 3600000, {}, 0, 1, 0, false, 'route', 'odd')",
        odd.key.digest(), odd.fence.0
    ).replace("now", "(extract(epoch from clock_timestamp()) * 1000)::bigint"));
    eventually("it is released", async || {
        store.look(odd.key.digest()).await.unwrap().unwrap().state == State::Released
    })
    .await;
}

/// A database whose encoding can't hold a key's characters was taken, and such events were refused for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_cannot_hold_every_character_is_told_so() {
    let postgres = Postgres::start();
    let url = |name: &str| postgres.url().replace("/postgres", &format!("/{name}"));
    for encoding in ["LATIN1", "SQL_ASCII"] {
        postgres
            .sql(&format!("create database {encoding} encoding '{encoding}' locale 'C' template template0"));
    }
    let Err(DurableError::Unfit(unfit)) = try_open(&at(&url("latin1"))).await else { panic!() };
    assert!(matches!(&*unfit, Unfit::Encoding { found } if found == "LATIN1"), "{unfit}");
    assert!(unfit.to_string().contains("encoding 'UTF8'"), "{unfit}");
    // One that holds any bytes is as good.
    let store = open(&at(&url("sql_ascii"))).await;
    let odd = ask("odd:日本\u{1f600}é");
    assert_eq!(attempt(&claim(&store, &odd).await), 1);
    assert_eq!(store.look(odd.key.digest()).await.unwrap().unwrap().key, odd.key.text());
}
