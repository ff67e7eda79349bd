//! The durable store: one suite on both databases, and what each of them must survive besides.
#![expect(clippy::disallowed_methods, reason = "a story's copies and clients are tasks of its own")]
#![expect(clippy::wildcard_enum_match_arm, reason = "a story names what it expects; all else ends it")]

mod alone;
mod apart;
mod suite;
mod trouble;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio_util::task::TaskTracker;
use umavez::clock::UnixMillis;
use umavez::config::{self, PostgresConfig, Secret};
use umavez::ledger::durable::{ClaimAsk, Durable, DurableError, End, Seen, SettleAsk, Settled, Trouble};
use umavez::ledger::{EventKey, Fence, Fingerprint, OnUnknown, Payload, Receipt};

use crate::support::postgres::Postgres;

const MINUTE: Duration = Duration::from_secs(60);

/// A database of the test's own.
enum Database {
    Postgres(Postgres),
    /// As a serving thread sees it, which writes by itself while it is the only one.
    Alone(Postgres),
    Sqlite(tempfile::TempDir),
}

impl Database {
    fn config(&self) -> config::Durable {
        match self {
            Self::Postgres(postgres) | Self::Alone(postgres) => at(&postgres.url()),
            Self::Sqlite(dir) => {
                let timeout = Duration::from_secs(5);
                config::Durable::Sqlite { path: dir.path().join("umavez.db"), timeout }
            }
        }
    }

    async fn open(&self) -> Durable {
        let store = open(&self.config()).await;
        match self {
            Self::Alone(postgres) => alone(&store, postgres).await,
            Self::Postgres(_) | Self::Sqlite(_) => store,
        }
    }

    /// Changes the database behind the store's back.
    fn sql(&self, sql: &str) {
        let dir = match self {
            Self::Postgres(postgres) | Self::Alone(postgres) => return drop(postgres.sql(sql)),
            Self::Sqlite(dir) => dir,
        };
        let script = "import sqlite3, sys\n\
            db = sqlite3.connect(sys.argv[1], timeout=20, isolation_level=None)\ndb.execute(sys.argv[2])\n";
        let status = std::process::Command::new("python3")
            .args(["-c", script])
            .arg(dir.path().join("umavez.db"))
            .arg(sql)
            .status()
            .unwrap();
        assert!(status.success());
    }
}

fn postgres() -> Database {
    Database::Postgres(Postgres::start())
}

fn alone_on_postgres() -> Database {
    Database::Alone(Postgres::start())
}

fn sqlite() -> Database {
    Database::Sqlite(tempfile::tempdir().unwrap())
}

fn at(url: &str) -> config::Durable {
    within(url, Duration::from_secs(5))
}

fn within(url: &str, timeout: Duration) -> config::Durable {
    config::Durable::Postgres(PostgresConfig { url: Secret(url.into()), timeout })
}

fn limits(waiting_writes_max: usize) -> config::Limits {
    config::Limits { waiting_writes_max, ..config::Limits::default() }
}

async fn open(config: &config::Durable) -> Durable {
    try_open(config).await.unwrap()
}

/// A serving thread's handle, which has its connection.
async fn alone(store: &Durable, postgres: &Postgres) -> Durable {
    let connections = || -> u32 {
        let count = "select count(*) from pg_stat_activity where application_name = 'umavez'";
        postgres.sql(count).parse().unwrap()
    };
    let before = connections();
    let store = store.on_this_worker(&TaskTracker::new());
    // A write that changes nothing has it made.
    while connections() == before {
        let nothing = end(&ask("nobody's"), End::Release);
        assert_eq!(store.settle(vec![nothing]).await.unwrap(), [Settled::LeaseLost]);
    }
    store
}

async fn try_open(config: &config::Durable) -> Result<Durable, DurableError> {
    Durable::open(config, &limits(10_000), &TaskTracker::new()).await
}

fn ask(text: &str) -> ClaimAsk {
    ClaimAsk {
        key: EventKey::from_text(text),
        route: "route".into(),
        fence: Fence::draw(),
        lease: MINUTE,
        durable_ttl: 10 * MINUTE,
        on_unknown: OnUnknown::Retry,
        fingerprint: Fingerprint::of([text.as_bytes()]),
        payload: None,
    }
}

fn ask_for(text: &str, lease: Duration, ttl: Duration) -> ClaimAsk {
    ClaimAsk { lease, durable_ttl: ttl, ..ask(text) }
}

fn hold(text: &str, lease: Duration) -> ClaimAsk {
    let payload =
        Payload { id: rand::random(), request: Bytes::from(format!("POST / HTTP/1.1\r\n\r\n{text}")) };
    ClaimAsk { lease, on_unknown: OnUnknown::Hold, payload: Some(Arc::new(payload)), ..ask(text) }
}

fn receipt(body: &str) -> Arc<Receipt> {
    Arc::new(Receipt {
        status: 201,
        headers: vec![(http::header::CONTENT_TYPE, http::HeaderValue::from_static("text/plain"))],
        body: Some(Bytes::from(body.to_owned())),
        at: UnixMillis(1_700_000_000_000),
    })
}

fn end(ask: &ClaimAsk, end: End) -> SettleAsk {
    let payload = ask.payload.as_ref().map(|payload| payload.id);
    SettleAsk { digest: ask.key.digest(), fence: ask.fence, end, payload }
}

async fn claim(store: &Durable, ask: &ClaimAsk) -> Seen {
    store.claim(vec![ask.clone()]).await.unwrap().pop().unwrap()
}

async fn settle(store: &Durable, ask: &ClaimAsk, how: End) -> Settled {
    store.settle(vec![end(ask, how)]).await.unwrap().pop().unwrap()
}

/// Claims under new fences until something else than "in flight" is said.
async fn claim_after_lapse(store: &Durable, like: &ClaimAsk) -> (ClaimAsk, Seen) {
    loop {
        let next = ClaimAsk { fence: Fence::draw(), ..like.clone() };
        match claim(store, &next).await {
            Seen::Processing { lease_left } => tokio::time::sleep(lease_left).await,
            other => return (next, other),
        }
    }
}

fn attempt(seen: &Seen) -> u32 {
    match seen {
        Seen::Claimed { attempt, .. } => *attempt,
        other => panic!("claimed, not {other:?}"),
    }
}

fn unavailable<T: std::fmt::Debug>(answer: Result<T, DurableError>) -> Arc<Trouble> {
    match answer {
        Err(DurableError::Unavailable(trouble)) => trouble,
        other => panic!("unavailable, not {other:?}"),
    }
}

/// What every sender does: claims, "forwards", settles, and comes again until the event is done. Counts effects.
async fn deliver(store: &Durable, text: &str, effects: &std::sync::Mutex<HashMap<String, u32>>) {
    loop {
        let ask = ask_for(text, Duration::from_secs(2), 10 * MINUTE);
        match store.claim(vec![ask.clone()]).await.map(|mut seen| seen.pop().unwrap()) {
            Ok(Seen::Claimed { .. }) => {
                *effects.lock().unwrap().entry(text.to_owned()).or_default() += 1;
                loop {
                    match store.settle(vec![end(&ask, End::Commit(receipt(text)))]).await {
                        Ok(settled) => {
                            assert_eq!(settled, [Settled::Recorded], "{text}");
                            return;
                        }
                        Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                    }
                }
            }
            Ok(Seen::Done { .. }) => return,
            Ok(Seen::Processing { .. }) | Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            Ok(Seen::Held { .. }) => panic!("nothing here is held"),
        }
    }
}
