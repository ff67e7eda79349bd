//! Brings the schema up to what this version knows: any number of nodes at once, through a pooler too.

use sqlx::{Executor as _, Row as _};

use super::Link;
use crate::ledger::durable::error::{Trouble, Unfit};

/// Every step of the schema so far, in order; step n makes version n + 1.
const STEPS: [&str; 1] = [include_str!("../migrations/postgres/0001_ledger.sql")];

/// Held to the end of the transaction: one node migrates, the others find its work done. The number is ours.
const LOCK: &str = "select pg_advisory_xact_lock(8315180285127518)";
/// However long it takes.
const WAIT: &str = "set local lock_timeout = 0";
const HAS_TABLE: &str = "select to_regclass('umavez_migration') is not null";
const HAS_EVENTS: &str = "select to_regclass('umavez_event') is not null";
const CREATE_TABLE: &str = "create table umavez_migration (
    version bigint not null primary key,
    applied timestamptz not null default now()
)";
const VERSION: &str = "select coalesce(max(version), 0)::text from umavez_migration";
const APPLIED: &str = "insert into umavez_migration (version) select coalesce(max(version), 0) + 1
    from umavez_migration";

/// Leaves the schema at this version, or says what stands in the way.
pub(super) async fn bring_up(link: &mut Link) -> Result<(), Trouble> {
    let known = i64::try_from(STEPS.len()).expect("steps are few");
    match version(link).await.map_err(Trouble::Lost)? {
        found if found > known => Err(Unfit::Newer { found, known }.into()),
        // Made anew, it would let every copy pass: that is for a person to decide.
        found if found == known => match has(link, HAS_EVENTS).await.map_err(Trouble::Lost)? {
            true => Ok(()),
            false => Err(Unfit::Gone { table: "umavez_event" }.into()),
        },
        _ => match migrate(link).await {
            Ok(()) => Ok(()),
            Err(sqlx::Error::Database(refusal)) if refusal.code().as_deref() == Some("42501") => {
                Err(Unfit::NoCreate(sqlx::Error::Database(refusal)).into())
            }
            Err(error) => Err(Trouble::Lost(error)),
        },
    }
}

async fn migrate(link: &mut Link) -> Result<(), sqlx::Error> {
    link.begin().await?;
    link.connection.execute(sqlx::raw_sql(WAIT)).await?;
    link.connection.execute(sqlx::raw_sql(LOCK)).await?;
    if !has(link, HAS_TABLE).await? {
        link.connection.execute(sqlx::raw_sql(CREATE_TABLE)).await?;
    }
    let found = usize::try_from(version(link).await?).unwrap_or(0);
    for step in STEPS.into_iter().skip(found) {
        link.connection.execute(sqlx::raw_sql(step)).await?;
        link.connection.execute(sqlx::raw_sql(APPLIED)).await?;
    }
    link.commit().await
}

/// The version that the database is at; zero where nothing of ours is there.
async fn version(link: &mut Link) -> Result<i64, sqlx::Error> {
    if !has(link, HAS_TABLE).await? {
        return Ok(0);
    }
    let version: String = link.connection.fetch_one(sqlx::raw_sql(VERSION)).await?.try_get(0)?;
    version.parse().map_err(|error| sqlx::Error::Decode(Box::new(error)))
}

async fn has(link: &mut Link, table: &'static str) -> Result<bool, sqlx::Error> {
    link.connection.fetch_one(sqlx::raw_sql(table)).await?.try_get(0)
}
