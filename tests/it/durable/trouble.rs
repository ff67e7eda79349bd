//! What a durable store must survive: restarts, stalls, cuts, poolers, refusals.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use umavez::ledger::durable::{Override, State, Trouble, Unfit};

use super::*;
use crate::support::postgres::PgBouncer;

/// Passes bytes on to a database; on command it passes a request on and breaks the connection before its answer.
pub(super) struct Wire {
    port: u16,
    /// How many answers are left to the one that is cut; none at zero.
    cut_answer: Arc<AtomicUsize>,
}

impl Wire {
    pub(super) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let wire = Self { port: listener.local_addr().unwrap().port(), cut_answer: Arc::default() };
        let cut = Arc::clone(&wire.cut_answer);
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                tokio::spawn(pass(client, server, Arc::clone(&cut)));
            }
        });
        wire
    }

    pub(super) fn url(&self) -> String {
        format!("postgres://umavez@127.0.0.1:{}/postgres", self.port)
    }

    pub(super) fn cut_next_answer(&self) {
        self.cut_answer(1);
    }

    /// The nth from now on.
    fn cut_answer(&self, nth: usize) {
        self.cut_answer.store(nth, Ordering::SeqCst);
    }

    fn has_cut(&self) -> bool {
        self.cut_answer.load(Ordering::SeqCst) == 0
    }
}

async fn pass(client: TcpStream, server: TcpStream, cut: Arc<AtomicUsize>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let requests = tokio::spawn(async move { drop(tokio::io::copy(&mut from_client, &mut to_server).await) });
    let mut buffer = vec![0; 1 << 16];
    loop {
        match from_server.read(&mut buffer).await {
            Ok(read) if read > 0 && !is_cut(&cut) => {
                if to_client.write_all(&buffer[..read]).await.is_err() {
                    break;
                }
            }
            Ok(_) | Err(_) => break,
        }
    }
    requests.abort();
}

fn is_cut(cut: &AtomicUsize) -> bool {
    cut.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)) == Ok(1)
}

async fn until_up(store: &Durable) {
    let begun = umavez::clock::monotonic();
    while !store.is_up() {
        assert!(begun.elapsed() < MINUTE, "the store never came back");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_acknowledgement_is_recognised_by_its_fence() {
    let postgres = Postgres::start();
    let wire = Wire::to(postgres.port()).await;
    let store = open(&at(&wire.url())).await;
    for round in 0..5 {
        let first = ask(&format!("shop:{round}"));
        wire.cut_next_answer();
        assert_eq!(attempt(&claim(&store, &first).await), 1);
        assert!(wire.has_cut(), "the answer was cut");
        wire.cut_next_answer();
        assert_eq!(settle(&store, &first, End::Commit(receipt("made"))).await, Settled::Recorded);
        assert!(wire.has_cut(), "the answer was cut");
        assert!(matches!(claim(&store, &ask(&format!("shop:{round}"))).await, Seen::Done { .. }));
    }
}

/// A replay whose acknowledgement was lost was tried again, met its own claim as a stranger's, and was refused: nothing was
/// sent, and the event waited for its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_recognises_itself_wherever_its_connection_breaks() {
    let postgres = Postgres::start();
    let wire = Wire::to(postgres.port()).await;
    let store = open(&at(&wire.url())).await;
    // The connection for chores is there.
    store.sweep(1).await.unwrap();
    for nth in 1.. {
        let held = hold(&format!("pix:{nth}"), MINUTE);
        claim(&store, &held).await;
        settle(&store, &held, End::Hold).await;
        wire.cut_answer(nth);
        let replay = Override::Replay { fence: Fence::draw(), lease: MINUTE };
        let changed = store.change(held.key.digest(), replay, "ana").await.unwrap();
        assert_eq!(changed, Some((State::Held, Some(State::Processing))), "{nth}");
        let cut = wire.has_cut();
        wire.cut_answer(0);
        let key = held.key.text();
        let recorded = store.actions(1000).await.unwrap();
        assert_eq!(recorded.iter().filter(|action| action.key == key).count(), 1, "{nth}");
        if !cut {
            assert!(nth > 5, "begin, find, change, record, commit");
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_under_traffic_loses_and_doubles_nothing() {
    let mut postgres = Postgres::start();
    let nodes = [open(&at(&postgres.url())).await, open(&at(&postgres.url())).await];
    let effects = Arc::new(Mutex::new(HashMap::new()));
    let workers: Vec<_> = (0..20)
        .map(|worker| {
            let (store, effects) = (nodes[worker % 2].clone(), Arc::clone(&effects));
            tokio::spawn(async move {
                for n in 0..100 {
                    deliver_on_a_long_lease(&store, &format!("event:{}:{n}", worker / 2), &effects).await;
                }
            })
        })
        .collect();
    for ungentle in [false, true] {
        let before = effects.lock().unwrap().len();
        while effects.lock().unwrap().len() < before + 100 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if ungentle {
            postgres.kill();
        }
        postgres.restart();
    }
    for worker in workers {
        worker.await.unwrap();
    }
    let effects = effects.lock().unwrap();
    assert_eq!(effects.len(), 1000);
    assert!(effects.values().all(|count| *count == 1));
    assert_eq!(postgres.sql("select count(*) from umavez_event where state = 1"), "1000");
}

/// Like `deliver`, but a claim whose answer got lost for good would block its event for a minute.
async fn deliver_on_a_long_lease(store: &Durable, text: &str, effects: &Mutex<HashMap<String, u32>>) {
    loop {
        let first = ask(text);
        match store.claim(vec![first.clone()]).await.map(|mut seen| seen.pop().unwrap()) {
            Ok(Seen::Claimed { .. }) => {
                *effects.lock().unwrap().entry(text.to_owned()).or_default() += 1;
                while store.settle(vec![end(&first, End::Commit(receipt(text)))]).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                return;
            }
            Ok(Seen::Done { .. }) => return,
            Ok(Seen::Processing { .. } | Seen::Held { .. }) | Err(_) => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_pooler_in_transaction_mode_the_counts_are_exact() {
    let postgres = Postgres::start();
    let pooler = PgBouncer::in_front_of(&postgres);
    // Several nodes migrate through it at once.
    let nodes =
        futures_util::future::join_all((0..3).map(|_| async { open(&at(&pooler.url())).await })).await;
    let effects = Arc::new(Mutex::new(HashMap::new()));
    let clients: Vec<_> = (0..20)
        .map(|client| {
            let (store, effects) = (nodes[client % 3].clone(), Arc::clone(&effects));
            tokio::spawn(async move {
                for n in 0..100 {
                    // Half of them are repeats of another client's.
                    deliver(&store, &format!("event:{}:{n}", client / 2), &effects).await;
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    for node in &nodes {
        node.sweep(10).await.unwrap();
        node.change(EventKey::from_text("event:0:0").digest(), Override::Forget, "ana").await.unwrap();
    }
    assert_eq!(effects.lock().unwrap().len(), 1000);
    assert!(effects.lock().unwrap().values().all(|count| *count == 1));
    assert!(!postgres.log().contains("prepared statement"), "{}", postgres.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_start_at_once_on_an_empty_database_all_start() {
    let postgres = Postgres::start();
    let config = at(&postgres.url());
    let nodes = futures_util::future::join_all((0..8).map(|_| open(&config))).await;
    for (n, node) in nodes.iter().enumerate() {
        assert_eq!(attempt(&claim(node, &ask(&format!("event:{n}"))).await), 1);
    }
    assert_eq!(postgres.sql("select count(*) from umavez_migration"), "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_schema_and_a_role_without_rights_are_told_so() {
    let postgres = Postgres::start();
    postgres.sql("create role app login");
    let app = at(&postgres.url_as("app"));
    let Err(DurableError::Unfit(unfit)) = try_open(&app).await else { panic!() };
    assert!(matches!(*unfit, Unfit::NoCreate(_)), "{unfit}");
    drop(open(&at(&postgres.url())).await);
    postgres.sql(
        "grant select, insert, update, delete on umavez_event, umavez_payload, umavez_action, umavez_migration
         to app",
    );
    assert_eq!(attempt(&claim(&open(&app).await, &ask("shop:1")).await), 1);
    postgres.sql("insert into umavez_migration (version) values (99)");
    let Err(DurableError::Unfit(unfit)) = try_open(&app).await else { panic!() };
    assert!(matches!(*unfit, Unfit::Newer { found: 99, .. }), "{unfit}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusing_database_is_unavailable_and_never_a_verdict() {
    let postgres = Postgres::start();
    drop(open(&at(&postgres.url())).await);
    postgres.sql("create role app login; grant all on all tables in schema public to app");
    let store = open(&at(&postgres.url_as("app"))).await;
    for (n, (broken, mended)) in [
        ("revoke insert on umavez_event from app", "grant insert on umavez_event to app"),
        ("alter table umavez_event rename to gone", "alter table gone rename to umavez_event"),
        (
            "alter database postgres set default_transaction_read_only = on",
            "set transaction read write; alter database postgres set default_transaction_read_only = off",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        postgres.sql(broken);
        postgres.sql("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'app'");
        unavailable(store.claim(vec![ask(&format!("shop:{n}"))]).await);
        postgres.sql(mended);
        until_up(&store).await;
        loop {
            // The next connection is the first one that sees the setting changed.
            match store.claim(vec![ask(&format!("shop:{n}"))]).await {
                Ok(seen) => break assert_eq!(attempt(&seen[0]), 1),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_database_is_unavailable_in_bounded_time_and_comes_back_by_itself() {
    let postgres = Postgres::start();
    let timeout = Duration::from_millis(700);
    let store = open(&within(&postgres.url(), timeout)).await;
    let before = ask("before");
    claim(&store, &before).await;
    postgres.stall();
    let waiting = (0..200).map(|n| {
        let store = store.clone();
        async move { store.claim(vec![ask(&format!("event:{n}"))]).await }
    });
    let answers = tokio::time::timeout(MINUTE, futures_util::future::join_all(waiting)).await.unwrap();
    for answer in answers {
        unavailable(answer);
    }
    // Known to be down, it keeps nobody.
    while !matches!(*unavailable(store.claim(vec![ask("during")]).await), Trouble::Down(_)) {}
    postgres.resume();
    until_up(&store).await;
    assert_eq!(settle(&store, &before, End::Commit(receipt("made"))).await, Settled::Recorded);
    // What had been claimed without an answer was released, not left to its lease.
    for n in 0..200 {
        let retry = ask(&format!("event:{n}"));
        while let Seen::Processing { .. } = claim(&store, &retry).await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_down_at_the_start_is_found_when_it_comes() {
    let mut postgres = Postgres::start();
    postgres.stop();
    let store = open(&at(&postgres.url())).await;
    unavailable(store.claim(vec![ask("shop:1")]).await);
    unavailable(store.ping().await);
    postgres.restart();
    until_up(&store).await;
    assert_eq!(attempt(&claim(&store, &ask("shop:1")).await), 1);
    store.ping().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_the_database_cannot_store_fails_alone() {
    let postgres = Postgres::start();
    let store = open(&at(&postgres.url())).await;
    let writes = (0..40).map(|n| {
        let store = store.clone();
        // No key is like this; if one ever were, it would not take others down with it.
        let text = if n == 20 { "nul\0".to_owned() } else { format!("event:{n}") };
        async move { store.claim(vec![ask(&text)]).await }
    });
    for (n, answer) in futures_util::future::join_all(writes).await.into_iter().enumerate() {
        match n {
            20 => drop(unavailable(answer)),
            _ => assert_eq!(attempt(&answer.unwrap()[0]), 1),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_slow_database_commits_one_batch_others_leave_and_the_counts_are_exact() {
    let postgres = Postgres::start();
    let store = open(&at(&postgres.url())).await;
    postgres.sql(
        "create function linger() returns trigger language plpgsql as
            $$ begin perform pg_sleep(0.005); return null; end $$;
         create trigger linger after insert or update on umavez_event
            for each statement execute function linger()",
    );
    let effects = Arc::new(Mutex::new(HashMap::new()));
    let seen = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..40)
        .map(|client| {
            let (store, effects, seen) = (store.clone(), Arc::clone(&effects), Arc::clone(&seen));
            tokio::spawn(async move {
                for n in 0.. {
                    // Half of them are repeats of another client's; all at once they would share every batch.
                    tokio::time::sleep(Duration::from_millis(client)).await;
                    deliver_on_a_long_lease(&store, &format!("event:{}:{n}", client / 2), &effects).await;
                    if seen.load(Ordering::SeqCst) {
                        break;
                    }
                }
            })
        })
        .collect();
    let begun = umavez::clock::monotonic();
    while postgres.sql(
        "select count(*) > 1 from pg_stat_activity where state = 'active' and query ~ '^-- umavez: (claims|settl|batch)'",
    ) != "t"
    {
        assert!(begun.elapsed() < MINUTE, "one batch always waits for the other");
    }
    seen.store(true, Ordering::SeqCst);
    for client in clients {
        client.await.unwrap();
    }
    let effects = effects.lock().unwrap();
    assert!(effects.values().all(|count| *count == 1));
    assert_eq!(postgres.sql("select count(*) from umavez_event where state = 1"), effects.len().to_string());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_writes_no_index_entry() {
    let postgres = Postgres::start();
    let store = open(&at(&postgres.url())).await;
    for round in 0..20 {
        let asks: Vec<_> = (0..64).map(|n| ask(&format!("event:{round}:{n}"))).collect();
        store.claim(asks.clone()).await.unwrap();
        store.settle(asks.iter().map(|ask| end(ask, End::Commit(receipt("ok")))).collect()).await.unwrap();
    }
    store.close().await;
    let share = "select coalesce(100 * n_tup_hot_upd / nullif(n_tup_upd, 0), 0) from pg_stat_user_tables
        where relname = 'umavez_event'";
    let mut percent = 0;
    for _ in 0..200 {
        percent = postgres.sql(share).parse().unwrap();
        if percent > 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(percent >= 80, "{percent} % of settlements were heap-only");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_process_on_the_same_file_is_told_so() {
    let database = sqlite();
    let store = database.open().await;
    let Err(DurableError::Unfit(unfit)) = try_open(&database.config()).await else { panic!() };
    assert!(unfit.to_string().contains("used by another umavez process"));
    store.close().await;
    drop(store);
    assert_eq!(attempt(&claim(&database.open().await, &ask("shop:1")).await), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_file_stays_bounded_while_events_come_and_expire() {
    let database = sqlite();
    let store = database.open().await;
    let Database::Sqlite(dir) = &database else { unreachable!() };
    let bytes = || -> u64 {
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
    };
    let mut after = Vec::new();
    for round in 0..6 {
        for request in 0..20 {
            let asks: Vec<_> = (0..100)
                .map(|n| ask_for(&format!("{round}:{request}:{n}"), MINUTE, Duration::from_millis(1)))
                .collect();
            store.claim(asks.clone()).await.unwrap();
            store
                .settle(asks.iter().map(|ask| end(ask, End::Commit(receipt("ok")))).collect())
                .await
                .unwrap();
        }
        while store.sweep(500).await.unwrap().deleted > 0 {}
        after.push(bytes());
    }
    assert!(after[5] <= after[1] * 3 / 2, "{after:?}");
}
