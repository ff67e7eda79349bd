//! A durable store that is cut off, stalled, full or read-only: an error is not a verdict.

use super::wired;
use crate::cli::{code, stderr, umavez};
use crate::support::{
    Gate, Gateway, Line, ORDERS, Pair, Reply, Stores, Upstream, eventually, on_every_store, order, send,
    within,
};

on_every_store! {
    a_database_that_refuses_to_write_is_no_verdict,
    a_table_that_is_gone_is_named_with_its_mend,
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
    // Each refused statement was rolled back though no transaction was open, and Postgres's warning of it filled the log.
    assert!(!gateway.logs().contains("no transaction in progress"));
}

/// A table that somebody had dropped by hand left every request at 503 for good, while `/ready` and `umavez check` said that
/// all was well.
async fn a_table_that_is_gone_is_named_with_its_mend(pair: Pair) {
    let stores = Stores::open(pair).await;
    let upstream = Upstream::answering(200, "").await;
    let mut gateway = Gateway::in_front_of(&upstream).on(&stores).start().await;
    assert_eq!(gateway.send(&order("before")).await.verdict(), "first");
    let told = "the table umavez_event is gone, though umavez_migration says that it was made: restore it from a backup";
    rename(&stores, &gateway, "umavez_event", "away");
    eventually("a clear word of it", async || {
        let refused = gateway.send(&order("new")).await;
        assert_eq!((refused.status, refused.verdict().as_str()), (503, "unavailable"));
        gateway.logs().contains(told)
    })
    .await;
    assert_eq!(gateway.ask_admin("GET", "/ready").await.status, 503);
    // Restored, it is used again, and no copy has passed.
    rename(&stores, &gateway, "away", "umavez_event");
    eventually("claims again", async || gateway.send(&order("new")).await.status == 200).await;
    assert_eq!(gateway.send(&order("before")).await.verdict(), "duplicate");
    assert_eq!(gateway.ask_admin("GET", "/ready").await.status, 200);

    // Others that are missing keep from their work only those who need them.
    rename(&stores, &gateway, "umavez_action", "action_away");
    gateway.restart().await;
    assert_eq!(gateway.send(&order("meanwhile")).await.verdict(), "first");
    rename(&stores, &gateway, "umavez_event", "away");
    gateway.kill();
    let (status, started) = gateway.fail_to_start().await;
    assert_eq!(status, Some(1), "{started}");
    assert!(started.contains(told), "{started}");
    let config = gateway.folder().join("umavez.toml").display().to_string();
    let checked = umavez(&["check", "--config", &config]);
    assert_eq!(code(&checked), 1);
    assert!(stderr(&checked).contains(told), "{}", stderr(&checked));
    rename(&stores, &gateway, "away", "umavez_event");
    let checked = umavez(&["check", "--config", &config]);
    assert_eq!(code(&checked), 0, "{}", stderr(&checked));
    assert!(stderr(&checked).contains("the table umavez_action is gone"), "{}", stderr(&checked));
    assert_eq!(upstream.received(), 3);
}

/// As somebody does by hand.
fn rename(stores: &Stores, gateway: &Gateway, table: &str, to: &str) {
    let sql = format!("alter table {table} rename to {to}");
    if stores.has_postgres() {
        stores.sql(&sql);
        return;
    }
    let script = "import sqlite3, sys\n\
        db = sqlite3.connect(sys.argv[1], timeout=20, isolation_level=None)\ndb.execute(sys.argv[2])\n";
    let file = gateway.folder().join("umavez.db");
    let status = std::process::Command::new("python3").args(["-c", script]).arg(file).arg(sql).status();
    assert!(status.unwrap().success());
}

/// A database that answers every write with an error.
pub(super) enum Refusing {
    Postgres {
        tables: Vec<String>,
    },
    /// Another process holds SQLite's write lock.
    Sqlite {
        lock: std::process::Child,
    },
}

impl Refusing {
    pub(super) async fn begin(stores: &Stores, gateway: &Gateway) -> Self {
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

    pub(super) async fn end(self, stores: &Stores) {
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

/// `[durable] timeout` was not kept by SQLite while another process held its write lock: requests were refused, and answers
/// of the app went out, after five seconds whatever it said.
#[tokio::test]
async fn a_locked_file_is_waited_for_as_long_as_the_timeout_says() {
    let stores = Stores::open(Pair::Embedded).await;
    let gate = Gate::closed();
    let held = gate.clone();
    let upstream = Upstream::deciding(move |_, _| Reply::new(200, "").behind(&held)).await;
    let toml = "[durable]\ntimeout = \"150ms\"\n";
    let gateway = Gateway::in_front_of(&upstream).stores_toml(toml).start().await;
    let claimed = gateway.sending(&order("claimed"));
    upstream.until_received(1).await;
    let unlock = Refusing::begin(&stores, &gateway).await;
    gate.open();
    // It is done, though not recorded yet.
    assert_eq!(claimed.await.unwrap().status, 200);
    let slow = "the database did not answer within 150ms";
    eventually("word of it in the log", async || gateway.logs().contains(slow)).await;
    assert_eq!(gateway.send(&order("new")).await.verdict(), "unavailable");
    unlock.end(&stores).await;
    eventually("claims again", async || gateway.send(&order("new")).await.status == 200).await;
    assert_eq!(gateway.send(&order("claimed")).await.verdict(), "duplicate");
    assert_eq!(upstream.received(), 2);
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
    eventually("the claim in the database", async || {
        stores.sql("select count(*) from umavez_event where key like '%:lost'") == "1"
    })
    .await;
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

/// A hundred things that waited for Redis kept every settlement from the durable store, which was there: their leases lapsed,
/// and events that the app had answered were forwarded again.
#[tokio::test]
async fn a_settlement_does_not_wait_behind_what_waits_for_redis() {
    const CHANGED: usize = 70;
    let mut stores = Stores::open(Pair::RedisPostgres).await;
    let (wire, toml) = wired(&stores, "2s").await;
    let gate = Gate::closed();
    let held = gate.clone();
    let upstream = Upstream::deciding(move |request, _| match request.text().contains("late") {
        true => Reply::new(201, "made").behind(&held),
        false => Reply::new(200, ""),
    })
    .await;
    let gateway = Gateway::in_front_of(&upstream).stores_toml(&toml).start().await;
    for n in 0..CHANGED {
        assert_eq!(gateway.send(&order(&format!("e{n}"))).await.verdict(), "first");
    }
    stores.redis_mut().kill().await;
    for n in 0..CHANGED {
        let forgot = gateway.ask_admin("POST", &format!("/events/forget?key=orders:e{n}")).await;
        assert_eq!(forgot.status, 200, "{}", forgot.text());
    }
    let send = gateway.sending(&order("late"));
    upstream.until_received(CHANGED + 1).await;
    wire.cut();
    gate.open();
    assert_eq!(send.await.unwrap().status, 201);
    wire.resume();
    eventually("the settlement", async || {
        stores.sql("select state from umavez_event where key = 'orders:late'") == "1"
    })
    .await;
    let waiting = gateway.metrics().await.value("umavez_unsettled", &[]);
    assert!(waiting > 128.0, "Redis was not missed: {waiting} wait");
    stores.redis_mut().restart().await;
    gateway.until_metric("umavez_unsettled", &[], 0.0).await;
}

#[tokio::test]
async fn what_the_app_has_answered_is_done_although_its_lease_lapsed_in_an_outage() {
    // The durable store was away for longer than the lease; back again, it parked the lapsed claim before the settlement
    // landed, which then came too late: the event was held, though its app had answered 200.
    let stores = Stores::open_own(Pair::RedisPostgres).await;
    let gate = Gate::closed();
    let upstream = Upstream::scripted([Reply::new(201, "made").behind(&gate)]).await;
    let route = format!("{ORDERS}timeout = \"30s\"\nlease = \"40s\"\non_unknown = \"hold\"\n");
    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(&route).start().await;
    let send = gateway.sending(&order("late"));
    upstream.until_received(1).await;
    // What the sweeper does to a lapsed claim.
    stores.sql("update umavez_event set state = 3, lease_until = 1");
    gate.open();
    assert_eq!(send.await.unwrap().status, 201);
    let copy = gateway.send(&order("late")).await;
    assert_eq!((copy.status, copy.verdict().as_str()), (201, "duplicate"));
    assert_eq!(upstream.received(), 1);
    assert_eq!(stores.sql("select count(*) from umavez_payload"), "0", "a done event's payload is kept");
}

#[tokio::test]
async fn more_writes_than_may_wait_are_refused_at_once() {
    // A stalled database must not gather requests without bound: past the limit there is no wait, only the policy.
    let stores = Stores::open(Pair::MemoryPostgres).await;
    let (wire, toml) = wired(&stores, "40s").await;
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream)
        .stores_toml(&toml)
        .table("[limits]\nwaiting_writes_max = 16")
        .start()
        .await;
    gateway.send(&order("warm")).await;
    wire.set(Line::Stalled);
    // One that is being written, sixteen that wait, and the rest.
    let mut sends = tokio::task::JoinSet::new();
    let sending = |id: String| {
        let address = gateway.address();
        async move { (send(address, &order(&id)).await, id) }
    };
    sends.spawn(sending("e0".to_owned()));
    gateway.until_metric("umavez_in_flight", &[], 1.0).await;
    for n in 1..=40 {
        sends.spawn(sending(format!("e{n}")));
    }
    let mut refused = Vec::new();
    while refused.len() < 24 {
        let (answer, id) = within("a refusal", sends.join_next()).await.unwrap().unwrap();
        assert_eq!((answer.status, answer.verdict().as_str()), (503, "unavailable"), "{id}");
        assert!(answer.header("retry-after").is_some());
        refused.push(id);
    }
    assert_eq!(upstream.received(), 1, "nothing is forwarded without a claim");
    wire.resume();
    while let Some(answer) = within("those that waited", sends.join_next()).await {
        let (answer, id) = answer.unwrap();
        assert_eq!((answer.status, answer.verdict().as_str()), (200, "first"), "{id}");
    }
    for id in refused {
        assert_eq!(gateway.send(&order(&id)).await.verdict(), "first", "{id}");
    }
    assert_eq!(upstream.received(), 42);
}
