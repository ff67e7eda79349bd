//! The closed choice of databases, and a connection that keeps itself: lost ones are replaced, late ones dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::batch::{Batch, Outcome};
use super::desk::{Ask, Reply};
use super::error::{Mend, Trouble, Unfit, chain};
use super::postgres::{self, Postgres};
use super::sqlite::{self, Sqlite};
use crate::config;

/// How often a database that is down is tried again.
pub(super) const PROBE_EVERY: Duration = Duration::from_millis(500);
/// How often one transaction is tried that the database undid to let another one pass.
const TRIES_MAX: u32 = 5;

#[derive(Debug)]
pub(super) enum Store {
    Postgres(Postgres),
    Sqlite(Box<Sqlite>),
}

impl Store {
    pub(super) fn new(config: &config::Durable) -> Result<Self, Unfit> {
        match config {
            config::Durable::Postgres(config) => Postgres::new(config).map(Self::Postgres),
            config::Durable::Sqlite { path, timeout } => {
                Sqlite::new(path, *timeout).map(Box::new).map(Self::Sqlite)
            }
        }
    }

    /// How long one statement, or connecting, may take.
    pub(super) fn timeout(&self) -> Duration {
        match self {
            Self::Postgres(postgres) => postgres.timeout,
            Self::Sqlite(sqlite) => sqlite.timeout,
        }
    }

    /// How many batches may be under way at once, each on a connection of its own.
    fn batches_max(&self) -> usize {
        match self {
            Self::Postgres(_) => postgres::BATCHES_MAX,
            // It has one writer at a time.
            Self::Sqlite(_) => 1,
        }
    }

    /// Whether what is connected to is still what was opened.
    fn in_place(&self) -> Result<(), Trouble> {
        match self {
            Self::Postgres(_) => Ok(()),
            Self::Sqlite(sqlite) => sqlite.in_place(),
        }
    }

    async fn connect(&self) -> Result<Connection, Trouble> {
        match self {
            Self::Postgres(postgres) => postgres.connect().await.map(Connection::Postgres),
            Self::Sqlite(sqlite) => sqlite.connect().await.map(Connection::Sqlite),
        }
    }
}

/// One connection to either.
#[derive(Debug)]
enum Connection {
    Postgres(postgres::Link),
    Sqlite(sqlite::Link),
}

impl Connection {
    async fn run(&mut self, work: &Work<'_>) -> Result<Done, sqlx::Error> {
        match (self, work) {
            (Self::Postgres(link), Work::Batch(batch)) => link.commit_batch(batch).await.map(Done::Batch),
            (Self::Postgres(link), Work::Ask(ask)) => link.answer(ask).await.map(Done::Reply),
            (Self::Sqlite(link), Work::Batch(batch)) => link.commit_batch(batch).await.map(Done::Batch),
            (Self::Sqlite(link), Work::Ask(ask)) => link.answer(ask).await.map(Done::Reply),
        }
    }

    async fn warm_up(&mut self) -> Result<(), sqlx::Error> {
        match self {
            Self::Postgres(link) => link.warm_up().await,
            Self::Sqlite(_) => Ok(()),
        }
    }

    async fn roll_back(&mut self) -> Result<(), sqlx::Error> {
        match self {
            Self::Postgres(link) => link.roll_back().await,
            Self::Sqlite(link) => link.roll_back().await,
        }
    }
}

enum Work<'a> {
    Batch(&'a Batch<'a>),
    Ask(&'a Ask),
}

enum Done {
    Batch(Outcome),
    Reply(Reply),
}

/// Why work was not done.
#[derive(Debug)]
pub(super) enum Failure {
    /// The database, or the way to it, is in trouble.
    Trouble(Trouble),
    /// The database is there, and did not do it: perhaps for one of the batch's rows.
    Apart(sqlx::Error),
}

impl Failure {
    pub(super) fn trouble(self) -> Trouble {
        match self {
            Self::Trouble(trouble) => trouble,
            Self::Apart(error) => Trouble::Refused(error),
        }
    }
}

/// A connection that one task uses, for as long as the store lives.
#[derive(Debug)]
pub(super) struct Keeper {
    store: Arc<Store>,
    connection: Option<Connection>,
    /// Whether the database answered last; shared with the handle.
    up: Arc<AtomicBool>,
}

impl Keeper {
    pub(super) fn new(store: Arc<Store>, up: Arc<AtomicBool>) -> Self {
        Self { store, connection: None, up }
    }

    /// Another connection to the same database, not connected yet.
    pub(super) fn another(&self) -> Self {
        Self::new(Arc::clone(&self.store), Arc::clone(&self.up))
    }

    pub(super) fn batches_max(&self) -> usize {
        self.store.batches_max()
    }

    pub(super) fn connected(&self) -> bool {
        self.connection.is_some()
    }

    pub(super) fn timeout(&self) -> Duration {
        self.store.timeout()
    }

    /// Gives the connection up; the next work makes another one.
    pub(super) fn disconnect(&mut self) {
        self.connection = None;
    }

    /// Connects where there is no connection.
    pub(super) async fn connect(&mut self) -> Result<(), Trouble> {
        if self.connection.is_some() {
            return Ok(());
        }
        match self.reach().await {
            Ok(connection) => {
                self.connection = Some(connection);
                self.up.store(true, Ordering::Relaxed);
                Ok(())
            }
            Err(trouble) => {
                self.up.store(false, Ordering::Relaxed);
                Err(trouble)
            }
        }
    }

    /// Connects, or does not: the database may have none to spare, and is up all the same. A connection that is made so is
    /// as quick for its first batch as for any other.
    pub(super) async fn connect_spare(&mut self) {
        let timeout = self.timeout();
        let warm = async {
            let mut connection = self.store.connect().await?;
            connection.warm_up().await.map_err(Trouble::Lost)?;
            Ok(connection)
        };
        let reached = tokio::time::timeout(timeout, warm).await;
        match reached.unwrap_or(Err(Trouble::Slow(timeout))) {
            Ok(connection) => self.connection = Some(connection),
            Err(trouble) => tracing::debug!(error = %chain(&trouble), "no further connection was had"),
        }
    }

    async fn reach(&self) -> Result<Connection, Trouble> {
        let timeout = self.timeout();
        let attempt = tokio::time::timeout(timeout, self.store.connect()).await;
        attempt.unwrap_or(Err(Trouble::Slow(timeout)))
    }

    pub(super) async fn commit(&mut self, batch: &Batch<'_>) -> Result<Outcome, Failure> {
        match self.run(&Work::Batch(batch)).await? {
            Done::Batch(outcome) => Ok(outcome),
            Done::Reply(_) => unreachable!("a batch gives an outcome"),
        }
    }

    pub(super) async fn answer(&mut self, ask: &Ask) -> Result<Reply, Failure> {
        match self.run(&Work::Ask(ask)).await? {
            Done::Reply(reply) => Ok(reply),
            Done::Batch(_) => unreachable!("a question gives a reply"),
        }
    }

    /// Runs the work, once more on a fresh connection where the connection was lost: whatever the first try
    /// committed is recognised by its fence. All tries together share one timeout.
    async fn run(&mut self, work: &Work<'_>) -> Result<Done, Failure> {
        let timeout = self.timeout();
        let Ok(done) = tokio::time::timeout(timeout, self.tries(work)).await else {
            // The answer may still come, to nobody: a connection in that state is of no use.
            self.connection = None;
            self.up.store(false, Ordering::Relaxed);
            return Err(Failure::Trouble(Trouble::Slow(timeout)));
        };
        done
    }

    async fn tries(&mut self, work: &Work<'_>) -> Result<Done, Failure> {
        let mut reconnected = false;
        for tried in 1.. {
            if let Err(moved) = self.store.in_place() {
                self.connection = None;
                self.up.store(false, Ordering::Relaxed);
                return Err(Failure::Trouble(moved));
            }
            self.connect().await.map_err(Failure::Trouble)?;
            let connection = self.connection.as_mut().expect("it was just made sure of");
            let error = match connection.run(work).await {
                Ok(done) => {
                    // Another connection's silence says nothing of this one.
                    self.up.store(true, Ordering::Relaxed);
                    return Ok(done);
                }
                Err(error) => error,
            };
            match Mend::of(&error) {
                Mend::Again if tried < TRIES_MAX => self.undo().await,
                Mend::Reconnect if !reconnected => {
                    self.connection = None;
                    reconnected = true;
                }
                Mend::Reconnect => {
                    self.connection = None;
                    self.up.store(false, Ordering::Relaxed);
                    return Err(Failure::Trouble(Trouble::Lost(error)));
                }
                Mend::Again | Mend::Apart => {
                    self.undo().await;
                    return Err(Failure::Apart(error));
                }
                Mend::Refuse => {
                    // A new connection may meet a server that does not refuse: addresses move at a failover.
                    self.connection = None;
                    return Err(Failure::Trouble(Trouble::Refused(error)));
                }
            }
        }
        unreachable!("every error ends the tries, or is counted")
    }

    async fn undo(&mut self) {
        if let Some(connection) = self.connection.as_mut()
            && connection.roll_back().await.is_err()
        {
            self.connection = None;
        }
    }
}
