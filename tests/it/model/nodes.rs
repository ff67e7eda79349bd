//! Two nodes' ledgers over the same stores, and the ways in which those stores fail.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use umavez::clock::Clock;
use umavez::config::{self, PostgresConfig, RedisConfig, Secret};
use umavez::ledger::Ledger;
use umavez::ledger::durable::Durable;
use umavez::ledger::hot::Hot;
use umavez::metrics;

use crate::support::redis::Redis;
use crate::support::{Line, Pair, Stores, Wire, eventually};

/// Who has the events.
pub(super) enum Beneath {
    /// One process: both ledgers share the handles.
    Embedded(tempfile::TempDir),
    /// Each ledger has connections of its own, over wires that break.
    Servers(Box<Stores>),
}

pub(super) struct Node {
    pub(super) ledger: Ledger,
    pub(super) durable_wire: Option<Wire>,
    pub(super) hot_wire: Option<Wire>,
    pub(super) durable_line: Line,
    pub(super) hot_line: Line,
    stop: CancellationToken,
    tracker: TaskTracker,
}

impl Beneath {
    pub(super) fn embedded() -> Self {
        Self::Embedded(tempfile::tempdir().unwrap())
    }

    pub(super) async fn servers() -> Self {
        Self::Servers(Box::new(Stores::open(Pair::RedisPostgres).await))
    }

    pub(super) fn redis(&self) -> Option<&Redis> {
        match self {
            Self::Embedded(_) => None,
            Self::Servers(stores) => Some(stores.redis()),
        }
    }

    pub(super) async fn nodes(&self) -> [Node; 2] {
        match self {
            Self::Embedded(folder) => {
                let tracker = TaskTracker::new();
                let path = folder.path().join("umavez.db");
                let durable = config::Durable::Sqlite { path, timeout: Duration::from_secs(5) };
                let durable = Durable::open(&durable, &limits(), &tracker).await.unwrap();
                let hot = config::Hot::Memory { bytes_max: 1 << 20 };
                let (hot, pushes) = Hot::open(&hot, &tracker).await.unwrap();
                let (_nothing, none) = mpsc::channel(1);
                [
                    Node::new((hot.clone(), pushes), durable.clone(), (None, None)),
                    Node::new((hot, none), durable, (None, None)),
                ]
            }
            Self::Servers(stores) => [server_node(stores).await, server_node(stores).await],
        }
    }
}

async fn server_node(stores: &Stores) -> Node {
    let hot_wire = Wire::to(address(&stores.redis_url())).await;
    let durable_wire = Wire::to(address(&stores.postgres_url())).await;
    let over = |url: &str, wire: &Wire| {
        Secret(url.replace(&address(url).to_string(), &wire.address().to_string()).into())
    };
    let durable = config::Durable::Postgres(PostgresConfig {
        url: over(&stores.postgres_url(), &durable_wire),
        timeout: Duration::from_secs(1),
    });
    let hot = config::Hot::Redis(RedisConfig {
        url: over(&stores.redis_url(), &hot_wire),
        prefix: "dedup".to_owned(),
        timeout: Duration::from_millis(300),
        near_ttl: Duration::ZERO,
    });
    let tracker = TaskTracker::new();
    let durable = Durable::open(&durable, &limits(), &tracker).await.unwrap();
    let hot = Hot::open(&hot, &tracker).await.unwrap();
    Node::new(hot, durable, (Some(hot_wire), Some(durable_wire)))
}

/// The `host:port` of a URL.
fn address(url: &str) -> std::net::SocketAddr {
    let (_, rest) = url.split_once("://").unwrap();
    let authority = rest.split('/').next().unwrap();
    authority.rsplit('@').next().unwrap().parse().unwrap()
}

impl Node {
    fn new(
        hot: (Hot, mpsc::Receiver<umavez::ledger::hot::Told>),
        durable: Durable,
        (hot_wire, durable_wire): (Option<Wire>, Option<Wire>),
    ) -> Self {
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        let ledger = Ledger::new(hot, durable, Clock::System, metrics::Stores::new(), (&tracker, &stop));
        let (durable_line, hot_line) = (Line::Open, Line::Open);
        Self { ledger, durable_wire, hot_wire, durable_line, hot_line, stop, tracker }
    }

    pub(super) fn durable_line(&mut self, line: Line) {
        self.durable_line = line;
        if let Some(wire) = &self.durable_wire {
            wire.set(line);
        }
    }

    pub(super) fn hot_line(&mut self, line: Line) {
        self.hot_line = line;
        if let Some(wire) = &self.hot_wire {
            wire.set(line);
        }
    }

    /// Mends both wires, and waits until the node has noticed and caught up.
    pub(super) async fn mend(&mut self) {
        self.durable_line(Line::Open);
        self.hot_line(Line::Open);
        let ledger = &self.ledger;
        eventually("the node to catch up", async || {
            ledger.durable().ping().await.is_ok()
                && ledger.durable().is_up()
                && ledger.hot().ping().await.is_ok()
                && ledger.unsettled() == 0
        })
        .await;
    }

    /// An orderly stop, as the gateway's.
    pub(super) async fn stop(self) {
        self.stop.cancel();
        self.tracker.close();
        self.ledger.flushed().await;
        self.ledger.durable().close().await;
        self.ledger.hot().close();
        self.tracker.wait().await;
    }
}

fn limits() -> config::Limits {
    config::Limits { waiting_writes_max: 1000, ..config::Limits::default() }
}
