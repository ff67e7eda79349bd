//! Brings the file's schema up to what this version knows.

use sqlx::{Executor as _, Row as _};

use super::Link;
use crate::ledger::durable::error::{Trouble, Unfit};

/// Every step of the schema so far, in order; step n makes version n + 1.
const STEPS: [&str; 1] = [include_str!("../migrations/sqlite/0001_ledger.sql")];

const CREATE_TABLE: &str = "create table if not exists umavez_migration (
    version integer not null primary key,
    applied integer not null default (unixepoch())
) strict";
const VERSION: &str = "select coalesce(max(version), 0) from umavez_migration";
const HAS_EVENTS: &str =
    "select exists (select 1 from sqlite_master where type = 'table' and name = 'umavez_event')";
const APPLIED: &str = "insert into umavez_migration (version) select coalesce(max(version), 0) + 1
    from umavez_migration";

/// Leaves the schema at this version, or says what stands in the way.
pub(super) async fn bring_up(link: &mut Link) -> Result<(), Trouble> {
    let known = i64::try_from(STEPS.len()).expect("steps are few");
    let found = migrate(link).await.map_err(Trouble::Lost)?;
    if found > known {
        return Err(Unfit::Newer { found, known }.into());
    }
    // Made anew, it would let every copy pass: that is for a person to decide.
    let events = link.connection.fetch_one(sqlx::raw_sql(HAS_EVENTS)).await.map_err(Trouble::Lost)?;
    let there: bool = events.try_get(0).map_err(Trouble::Lost)?;
    if there { Ok(()) } else { Err(Unfit::Gone { table: "umavez_event" }.into()) }
}

async fn migrate(link: &mut Link) -> Result<i64, sqlx::Error> {
    let (_pen, _) = link.begin().await?;
    link.connection.execute(sqlx::raw_sql(CREATE_TABLE)).await?;
    let found: i64 = link.connection.fetch_one(sqlx::raw_sql(VERSION)).await?.try_get(0)?;
    for step in STEPS.into_iter().skip(usize::try_from(found).unwrap_or(0)) {
        link.connection.execute(sqlx::raw_sql(step)).await?;
        link.connection.execute(sqlx::raw_sql(APPLIED)).await?;
    }
    link.commit().await?;
    Ok(found)
}
