//! The ledger in Postgres: connections, and what a pooler in front of it changes. Keeps no session state.

mod batch;
mod desk;
mod schema;
mod servers;
mod sql;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sqlx::postgres::{PgArguments, PgConnectOptions, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, Row as _};
use uuid::Uuid;

use super::State;
use super::error::{Trouble, Unfit};
use super::row::Row;
use crate::config::PostgresConfig;
use crate::ledger::claim::{Digest, Fence, Fingerprint};

/// Batches under way at once where commits are slow: while one is flushed, others are worked on.
pub(super) const BATCHES_MAX: usize = 4;
/// A start-up option of our own: a session that shows it is ours alone; behind a pooler it is refused or lost.
const SESSION_MARK: (&str, &str) = ("umavez.session", "own");
/// Plans that read a whole table look right while it is empty, and are kept while it grows. Left to itself the
/// planner may also plan each batch anew, by the number of its rows, for as long as running it takes.
const PLAN_BY_INDEX: [(&str, &str); 6] = [
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("enable_bitmapscan", "off"),
    ("jit", "off"),
];
/// What a row's lock is waited for at most, as a part of the timeout; and in a batch that must be quick. Another node has a
/// row for as long as a commit takes. Somebody else may have it for longer, and must not keep the batch's other rows.
const LOCK_WAIT_PART: u32 = 5;
const LOCK_WAIT_PART_HASTY: u32 = 100;
/// Those that hold any text: the second one holds any bytes, and gives them back.
const ENCODINGS: [&str; 2] = ["UTF8", "SQL_ASCII"];
const COMMIT: &str = "commit";
const ROLLBACK: &str = "rollback";

/// How to reach the database.
#[derive(Debug)]
pub(super) struct Postgres {
    /// The servers that the URL names; the one that takes writes is used.
    servers: Vec<PgConnectOptions>,
    /// Which of them did last.
    last: AtomicUsize,
    pub(super) timeout: Duration,
}

impl Postgres {
    pub(super) fn new(config: &PostgresConfig) -> Result<Self, Unfit> {
        let servers = servers::of(config.url.expose()).map_err(Unfit::Url)?;
        Ok(Self { servers, last: AtomicUsize::new(0), timeout: config.timeout })
    }

    /// A new connection to a server that takes writes, and the schema behind it made sure of.
    pub(super) async fn connect(&self) -> Result<Link, Trouble> {
        let (count, last) = (self.servers.len(), self.last.load(Ordering::Relaxed));
        // One that doesn't answer must leave time for the others.
        let patience = self.timeout / u32::try_from(count).unwrap_or(u32::MAX);
        let mut trouble = Trouble::Slow(patience);
        for at in (0..count).map(|step| (last + step) % count) {
            let connecting = tokio::time::timeout(patience, self.connect_to(&self.servers[at])).await;
            match connecting.unwrap_or(Err(Trouble::Slow(patience))) {
                Ok(link) => {
                    self.last.store(at, Ordering::Relaxed);
                    return Ok(link);
                }
                Err(Trouble::Unfit(unfit)) => return Err(Trouble::Unfit(unfit)),
                Err(other) => trouble = other,
            }
        }
        Err(trouble)
    }

    /// Whose session it is, whether it takes writes, what characters it can hold, and whether a commit that its gateway has
    /// given up still waits for a synchronous replica. One more would only wait too, each in a connection that nobody can
    /// end; and until it is visible what it wrote can't be released.
    fn read_session(&self) -> String {
        format!(
            "select current_setting('umavez.session', true), current_setting('transaction_read_only') = 'on',
                current_setting('server_encoding'),
                exists (select from pg_stat_activity where application_name = 'umavez' and wait_event = 'SyncRep'
                        and query_start < clock_timestamp() - interval '{} ms')",
            self.timeout.as_millis()
        )
    }

    async fn connect_to(&self, server: &PgConnectOptions) -> Result<Link, Trouble> {
        let statement_timeout = self.timeout.as_millis().max(1).to_string();
        let lock_wait = (self.timeout / LOCK_WAIT_PART).as_millis().max(1);
        let lock_wait_hasty = (self.timeout / LOCK_WAIT_PART_HASTY).as_millis().max(1);
        let begin = Begin::new(lock_wait, lock_wait_hasty);
        let own = server
            .clone()
            .options([SESSION_MARK, ("statement_timeout", statement_timeout.as_str())])
            .options([("lock_timeout", lock_wait.to_string())])
            .options(PLAN_BY_INDEX);
        let away = |source| {
            let server = format!("{}:{}", server.get_host(), server.get_port());
            Trouble::Away { server, source }
        };
        let mut link = match PgConnection::connect_with(&own).await {
            Ok(connection) => {
                Link { connection, begin, pooled: false, hasty: false, begun: false, copies_expected: false }
            }
            Err(error) if refuses_options(&error) => {
                let connection = PgConnection::connect_with(server).await.map_err(away)?;
                Link { connection, begin, pooled: true, hasty: false, begun: false, copies_expected: false }
            }
            Err(error) => return Err(away(error)),
        };
        let session = sqlx::raw_sql(AssertSqlSafe(self.read_session()));
        let session = link.connection.fetch_one(session).await.map_err(Trouble::Lost)?;
        let mark: Option<String> = session.try_get(0).map_err(Trouble::Lost)?;
        link.pooled = mark.as_deref() != Some(SESSION_MARK.1);
        if session.try_get(1).map_err(Trouble::Lost)? {
            return Err(Trouble::ReadOnly);
        }
        let found: String = session.try_get(2).map_err(Trouble::Lost)?;
        if !ENCODINGS.contains(&found.as_str()) {
            return Err(Unfit::Encoding { found }.into());
        }
        if session.try_get(3).map_err(Trouble::Lost)? {
            return Err(Trouble::Unconfirmed);
        }
        schema::bring_up(&mut link).await?;
        Ok(link)
    }
}

/// PgBouncer's answer to a start-up parameter that it cannot carry.
fn refuses_options(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(refusal)
        if refusal.code().as_deref() == Some("08P01") || refusal.message().contains("startup parameter"))
}

/// One connection.
#[derive(Debug)]
pub(super) struct Link {
    connection: PgConnection,
    /// Something pools behind the URL: consecutive transactions may meet different sessions, so statements are
    /// not prepared by name, and everything runs inside an explicit transaction.
    pooled: bool,
    /// Many of the last batch's claims were copies.
    copies_expected: bool,
    /// The batch under way must not wait for locks.
    hasty: bool,
    /// A transaction was begun, and has not ended.
    begun: bool,
    begin: Begin,
}

/// How transactions begin.
#[derive(Debug)]
struct Begin {
    hasty: String,
    /// Behind a pooler nothing outlives the transaction; so the settings go with each.
    pooled: String,
    pooled_hasty: String,
}

impl Begin {
    fn new(lock_wait: u128, lock_wait_hasty: u128) -> Self {
        let plans: String =
            PLAN_BY_INDEX[1..].iter().map(|(name, value)| format!("; set local {name} = {value}")).collect();
        Self {
            hasty: format!("begin; set local lock_timeout = {lock_wait_hasty}"),
            pooled: format!("begin; set local lock_timeout = {lock_wait}{plans}"),
            pooled_hasty: format!("begin; set local lock_timeout = {lock_wait_hasty}{plans}"),
        }
    }
}

impl Link {
    fn query(&self, sql: &'static str) -> Query<'static, sqlx::Postgres, PgArguments> {
        sqlx::query(sql).persistent(!self.pooled)
    }

    /// One statement as one transaction.
    async fn alone(
        &mut self,
        query: Query<'_, sqlx::Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        if !self.pooled && !self.hasty {
            return query.fetch_all(&mut self.connection).await;
        }
        self.begin().await?;
        let rows = query.fetch_all(&mut self.connection).await?;
        self.commit().await?;
        Ok(rows)
    }

    /// The same for a statement that gives no rows; how many it wrote.
    async fn counted_alone(
        &mut self,
        query: Query<'_, sqlx::Postgres, PgArguments>,
    ) -> Result<usize, sqlx::Error> {
        let transaction = self.pooled || self.hasty;
        if transaction {
            self.begin().await?;
        }
        let done = query.execute(&mut self.connection).await?;
        if transaction {
            self.commit().await?;
        }
        Ok(usize::try_from(done.rows_affected()).unwrap_or(usize::MAX))
    }

    async fn begin(&mut self) -> Result<(), sqlx::Error> {
        let begin: &str = match (self.pooled, self.hasty) {
            (false, false) => "begin",
            (false, true) => &self.begin.hasty,
            (true, false) => &self.begin.pooled,
            (true, true) => &self.begin.pooled_hasty,
        };
        self.begun = true;
        self.connection.execute(sqlx::raw_sql(AssertSqlSafe(begin))).await.map(drop)
    }

    async fn commit(&mut self) -> Result<(), sqlx::Error> {
        self.connection.execute(sqlx::raw_sql(COMMIT)).await?;
        self.begun = false;
        Ok(())
    }

    /// Makes the connection usable again after a statement failed.
    pub(super) async fn roll_back(&mut self) -> Result<(), sqlx::Error> {
        // Of a statement on its own nothing is left to undo; the server would warn of it, and the log with it.
        if std::mem::take(&mut self.begun) {
            self.connection.execute(sqlx::raw_sql(ROLLBACK)).await?;
        }
        Ok(())
    }
}

/// A row of the shape that every reading statement here gives: which list it is of, the database's clock, and
/// the event.
fn row(from: &PgRow) -> Result<(i16, i64, Row), sqlx::Error> {
    let state: i16 = from.try_get(3)?;
    let attempts: i32 = from.try_get(5)?;
    let row = Row {
        digest: Digest(from.try_get::<Uuid, _>(2)?.as_u128()),
        state: State::from_number(state.into()).ok_or_else(|| unknown_state(state.into()))?,
        fence: Fence(from.try_get(4)?),
        attempts: u32::try_from(attempts).unwrap_or(0),
        first_claimed: from.try_get(6)?,
        lease_until: from.try_get(7)?,
        expires: from.try_get(8)?,
        fingerprint: Fingerprint(from.try_get(9)?),
        receipt: from.try_get(10)?,
    };
    Ok((from.try_get(0)?, from.try_get(1)?, row))
}

fn unknown_state(number: i64) -> sqlx::Error {
    sqlx::Error::Decode(format!("state {number} is of no version this one knows").into())
}

fn uuid(number: u128) -> Uuid {
    Uuid::from_u128(number)
}
