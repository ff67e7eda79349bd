//! Reads, overrides, catch-up and sweeping: everything that is not a batch of claims and settlements.

use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::{Link, row, sql, unknown_state, uuid};
use crate::ledger::claim::{Digest, Fingerprint, OnUnknown, Payload};
use crate::ledger::durable::desk::{Ask, HotOnly, Reply, gone};
use crate::ledger::durable::row::{FullRow, millis, span, stored_text, unix};
use crate::ledger::durable::{Action, Override, Record, State, Swept, receipt};

impl Link {
    pub(in crate::ledger::durable) async fn answer(&mut self, ask: &Ask) -> Result<Reply, sqlx::Error> {
        self.hasty = false;
        match ask {
            Ask::Peek(digests) => self.peek(digests).await.map(|(now, rows)| Reply::Peek(now, rows)),
            Ask::Look { first, last } => {
                let query = self.query(sql::LOOK).bind(uuid(first.0)).bind(uuid(last.0));
                let rows = self.alone(query).await?;
                rows.iter().map(record).collect::<Result<_, _>>().map(Reply::Look)
            }
            Ask::Held { limit } => {
                let rows = self.alone(self.query(sql::HELD).bind(*limit)).await?;
                rows.iter().map(record).collect::<Result<_, _>>().map(Reply::Held)
            }
            Ask::Actions { limit } => {
                let rows = self.alone(self.query(sql::ACTIONS).bind(*limit)).await?;
                rows.iter().map(action).collect::<Result<_, _>>().map(Reply::Actions)
            }
            Ask::Payload(id) => {
                let rows = self.alone(self.query(sql::PAYLOAD).bind(uuid(*id))).await?;
                let Some(from) = rows.first() else { return Ok(Reply::Payload(None)) };
                let request: Vec<u8> = from.try_get(0)?;
                Ok(Reply::Payload(Some(Payload { id: *id, request: request.into() })))
            }
            Ask::Ping => self.alone(self.query(sql::PING)).await.map(|_| Reply::Done),
            Ask::Doubts => {
                let rows = self.alone(self.query(sql::UNSAFE_SETTINGS)).await?;
                let mut doubts = rows.iter().map(doubt).collect::<Result<Vec<_>, _>>()?;
                for missing in self.alone(self.query(sql::MISSING)).await? {
                    doubts.push(gone(missing.try_get(0)?));
                }
                Ok(Reply::Doubts(doubts))
            }
            Ask::Change { digest, change, actor } => {
                self.change(*digest, *change, actor).await.map(Reply::Change)
            }
            Ask::Conflicts(conflicts) => self.note_conflicts(conflicts).await.map(|()| Reply::Done),
            Ask::CatchUp(events) => self.catch_up(events).await.map(|()| Reply::Done),
            Ask::Sweep { limit } => self.sweep(*limit).await.map(Reply::Swept),
        }
    }

    async fn change(
        &mut self,
        digest: Digest,
        change: Override,
        actor: &str,
    ) -> Result<Option<(State, Option<State>)>, sqlx::Error> {
        let id = uuid(digest.0);
        self.begin().await?;
        let found = self.query(sql::LOCK).bind(id).fetch_optional(&mut self.connection).await?;
        let (before, key, payload) = match &found {
            None => (None, digest.to_string(), None),
            Some(from) => (Some(state(from, 0)?), from.try_get(1)?, from.try_get::<Option<Uuid>, _>(2)?),
        };
        if let (Override::Replay { fence, .. }, Some(State::Processing), Some(from)) =
            (change, before, &found)
            && from.try_get::<i64, _>(3)? == fence.0
        {
            // An earlier try was committed, and only its acknowledgement lost.
            self.commit().await?;
            return Ok(Some((State::Held, before)));
        }
        let after = before.and_then(|before| change.after(before));
        match after {
            None if before.is_some() => {
                self.query(sql::FORGET).bind(id).execute(&mut self.connection).await?;
            }
            Some(State::Processing) if before == Some(State::Held) => {
                let Override::Replay { fence, lease } = change else {
                    unreachable!("nothing else brings an event back to processing")
                };
                let set = self.query(sql::REPLAY).bind(id).bind(fence.0).bind(span(lease));
                set.execute(&mut self.connection).await?;
            }
            Some(after) if Some(after) != before => {
                let receipt = (after == State::Done).then(|| receipt::encode(&receipt::empty()));
                let set = self.query(sql::CHANGE).bind(id).bind(after.number()).bind(receipt);
                set.execute(&mut self.connection).await?;
            }
            None | Some(_) => {}
        }
        if let Some(payload) = payload.filter(|_| after != before) {
            self.query(sql::DROP_PAYLOAD).bind(payload).execute(&mut self.connection).await?;
        }
        self.query(sql::RECORD)
            .bind(change.label())
            .bind(id)
            .bind(key)
            .bind(actor)
            .bind(before.map(State::number))
            .bind(after.map(State::number))
            .execute(&mut self.connection)
            .await?;
        self.commit().await?;
        Ok(before.map(|before| (before, after)))
    }

    async fn note_conflicts(&mut self, conflicts: &[(Digest, Fingerprint)]) -> Result<(), sqlx::Error> {
        let ids: Vec<Uuid> = conflicts.iter().map(|(digest, _)| uuid(digest.0)).collect();
        let fingerprints: Vec<i64> = conflicts.iter().map(|(_, fingerprint)| fingerprint.0).collect();
        self.alone(self.query(sql::CONFLICTS).bind(ids).bind(fingerprints)).await.map(drop)
    }

    async fn catch_up(&mut self, events: &[HotOnly]) -> Result<(), sqlx::Error> {
        fn column<'a, T>(events: &'a [HotOnly], of: impl Fn(&'a HotOnly) -> T) -> Vec<T> {
            events.iter().map(of).collect()
        }
        let query = self
            .query(sql::CATCH_UP)
            .bind(column(events, |event| uuid(event.key.digest().0)))
            .bind(column(events, |event| stored_text(&event.key)))
            .bind(column(events, |event| &*event.route))
            .bind(column(events, |event| event.fence.0))
            .bind(column(events, |event| span(event.lease)))
            .bind(column(events, |event| span(event.durable_ttl)))
            .bind(column(events, |event| event.on_unknown == OnUnknown::Hold))
            .bind(column(events, |event| event.fingerprint.0))
            .bind(column(events, |event| span(event.age)))
            .bind(column(events, |event| event.receipt.as_deref().map(receipt::encode)));
        self.alone(query).await.map(drop)
    }

    async fn sweep(&mut self, limit: i64) -> Result<Swept, sqlx::Error> {
        let held = self.counted(sql::PARK, limit).await?;
        let deleted = self.counted(sql::SWEEP, limit).await?;
        self.counted(sql::ORPHANS, limit).await?;
        let rows = self.alone(self.query(sql::LAG)).await?;
        let lag: i64 = rows.first().map_or(Ok(0), |from| from.try_get(0))?;
        Ok(Swept { deleted, held, lag: millis(lag) })
    }

    async fn counted(&mut self, sql: &'static str, limit: i64) -> Result<u64, sqlx::Error> {
        self.begin().await?;
        let done = self.query(sql).bind(limit).execute(&mut self.connection).await?;
        self.commit().await?;
        Ok(done.rows_affected())
    }
}

fn record(from: &PgRow) -> Result<Record, sqlx::Error> {
    let (_, _, row) = row(from)?;
    let payload: Option<Uuid> = from.try_get(14)?;
    let full = FullRow {
        row,
        key: from.try_get(11)?,
        route: from.try_get(12)?,
        conflicting: from.try_get(13)?,
        payload: payload.map(|id| id.as_u128()),
    };
    Ok(full.record())
}

/// A setting that is off, and what that costs.
fn doubt(from: &PgRow) -> Result<String, sqlx::Error> {
    let name: String = from.try_get(0)?;
    let risk =
        "after a crash it may have forgotten what it had recorded, and copies of that pass; set it to on";
    Ok(format!("Postgres has {name} = off: {risk}"))
}

fn action(from: &PgRow) -> Result<Action, sqlx::Error> {
    let state = |column: usize| -> Result<Option<State>, sqlx::Error> {
        let number: Option<i16> = from.try_get(column)?;
        Ok(number.and_then(|number| State::from_number(number.into())))
    };
    Ok(Action {
        at: unix(from.try_get(0)?),
        action: from.try_get(1)?,
        key: from.try_get(2)?,
        actor: from.try_get(3)?,
        before: state(4)?,
        after: state(5)?,
    })
}

fn state(from: &PgRow, column: usize) -> Result<State, sqlx::Error> {
    let number: i16 = from.try_get(column)?;
    State::from_number(number.into()).ok_or_else(|| unknown_state(number.into()))
}
