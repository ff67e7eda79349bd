//! Reads, overrides, catch-up and sweeping: everything that is not a batch of claims and settlements.

use serde_json::json;
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use super::batch::array;
use super::{Link, blob, number, row, sql, state};
use crate::ledger::claim::{Digest, Fingerprint, OnUnknown, Payload};
use crate::ledger::durable::desk::{Ask, HotOnly, Reply, gone};
use crate::ledger::durable::row::{FullRow, millis, span, stored_text, unix};
use crate::ledger::durable::{Action, Override, Record, State, Swept, receipt};

impl Link {
    pub(in crate::ledger::durable) async fn answer(&mut self, ask: &Ask) -> Result<Reply, sqlx::Error> {
        match ask {
            Ask::Peek(digests) => self.peek(digests).await.map(|(now, rows)| Reply::Peek(now, rows)),
            Ask::Look { first, last } => {
                let query = sqlx::query(sql::LOOK).bind(blob(first.0)).bind(blob(last.0));
                let rows = query.fetch_all(&mut self.connection).await?;
                rows.iter().map(record).collect::<Result<_, _>>().map(Reply::Look)
            }
            Ask::Held { limit } => {
                let query = sqlx::query(sql::HELD).bind(*limit);
                let rows = query.fetch_all(&mut self.connection).await?;
                rows.iter().map(record).collect::<Result<_, _>>().map(Reply::Held)
            }
            Ask::Actions { limit } => {
                let query = sqlx::query(sql::ACTIONS).bind(*limit);
                let rows = query.fetch_all(&mut self.connection).await?;
                rows.iter().map(action).collect::<Result<_, _>>().map(Reply::Actions)
            }
            Ask::Payload(id) => {
                let query = sqlx::query(sql::PAYLOAD).bind(blob(*id));
                let found = query.fetch_optional(&mut self.connection).await?;
                let request: Option<Vec<u8>> = found.map(|from| from.try_get(0)).transpose()?;
                Ok(Reply::Payload(request.map(|request| Payload { id: *id, request: request.into() })))
            }
            Ask::Ping => sqlx::query(sql::PING).fetch_all(&mut self.connection).await.map(|_| Reply::Done),
            // Its settings are ours.
            Ask::Doubts => {
                let missing = sqlx::query(sql::MISSING).fetch_all(&mut self.connection).await?;
                let doubts = missing.iter().map(|missing| missing.try_get(0).map(gone));
                doubts.collect::<Result<_, _>>().map(Reply::Doubts)
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
        let id = blob(digest.0);
        let (_pen, now) = self.begin().await?;
        let found = sqlx::query(sql::FIND).bind(id.clone()).fetch_optional(&mut self.connection).await?;
        let (before, key, payload) = match &found {
            None => (None, digest.to_string(), None),
            Some(from) => {
                (Some(state(from.try_get(0)?)?), from.try_get(1)?, from.try_get::<Option<Vec<u8>>, _>(2)?)
            }
        };
        let after = before.and_then(|before| change.after(before));
        match after {
            None if before.is_some() => {
                self.run(sqlx::query(sql::FORGET).bind(id.clone())).await?;
            }
            Some(State::Processing) if before == Some(State::Held) => {
                let Override::Replay { fence, lease } = change else {
                    unreachable!("nothing else brings an event back to processing")
                };
                let set = sqlx::query(sql::REPLAY).bind(id.clone()).bind(now).bind(fence.0).bind(span(lease));
                self.run(set).await?;
            }
            Some(after) if Some(after) != before => {
                let receipt = (after == State::Done).then(|| receipt::encode(&receipt::empty()));
                let set =
                    sqlx::query(sql::CHANGE).bind(id.clone()).bind(after.number()).bind(receipt).bind(now);
                self.run(set).await?;
            }
            None | Some(_) => {}
        }
        if let Some(payload) = payload.filter(|_| after != before) {
            self.drop_payload(number(&payload)?).await?;
        }
        let record = sqlx::query(sql::RECORD).bind(now).bind(change.label()).bind(id).bind(key).bind(actor);
        self.run(record.bind(before.map(State::number)).bind(after.map(State::number))).await?;
        self.commit().await?;
        Ok(before.map(|before| (before, after)))
    }

    async fn note_conflicts(&mut self, conflicts: &[(Digest, Fingerprint)]) -> Result<(), sqlx::Error> {
        let elements: Vec<_> = conflicts
            .iter()
            .map(|(digest, fingerprint)| json!([digest.to_string(), fingerprint.0]))
            .collect();
        let (_pen, _) = self.begin().await?;
        self.run(sqlx::query(sql::CONFLICTS).bind(array(&elements))).await?;
        self.commit().await
    }

    async fn catch_up(&mut self, events: &[HotOnly]) -> Result<(), sqlx::Error> {
        let elements: Vec<_> = events
            .iter()
            .map(|event| {
                json!([
                    event.key.digest().to_string(),
                    stored_text(&event.key),
                    &*event.route,
                    event.fence.0,
                    span(event.lease),
                    span(event.durable_ttl),
                    i32::from(event.on_unknown == OnUnknown::Hold),
                    event.fingerprint.0,
                    span(event.age),
                    event.receipt.as_deref().map(|receipt| hex::encode(receipt::encode(receipt))),
                ])
            })
            .collect();
        let (_pen, now) = self.begin().await?;
        self.run(sqlx::query(sql::CATCH_UP).bind(array(&elements)).bind(now)).await?;
        self.commit().await
    }

    async fn sweep(&mut self, limit: i64) -> Result<Swept, sqlx::Error> {
        let (pen, now) = self.begin().await?;
        let held = self.run(sqlx::query(sql::PARK).bind(limit).bind(now)).await?;
        let deleted = self.run(sqlx::query(sql::SWEEP).bind(limit).bind(now)).await?;
        let orphans = self.run(sqlx::query(sql::ORPHANS).bind(limit).bind(now)).await?;
        if orphans > 0 {
            self.run(sqlx::query(sql::ORPHANED_EVENTS)).await?;
        }
        self.commit().await?;
        let slack = sqlx::query(sql::SLACK).fetch_one(&mut self.connection).await?;
        if slack.try_get::<i64, _>(0)? < slack.try_get::<i64, _>(1)? * 3 {
            sqlx::query(sql::GIVE_BACK).fetch_all(&mut self.connection).await?;
        }
        drop(pen);
        let lag = sqlx::query(sql::LAG).bind(1_i64).bind(now).fetch_optional(&mut self.connection).await?;
        let lag: i64 = lag.map_or(Ok(0), |from| from.try_get(0))?;
        Ok(Swept { deleted, held, lag: millis(lag) })
    }
}

fn record(from: &SqliteRow) -> Result<Record, sqlx::Error> {
    let payload: Option<Vec<u8>> = from.try_get(12)?;
    let full = FullRow {
        row: row(from)?,
        key: from.try_get(9)?,
        route: from.try_get(10)?,
        conflicting: from.try_get(11)?,
        payload: payload.as_deref().map(number).transpose()?,
    };
    Ok(full.record())
}

fn action(from: &SqliteRow) -> Result<Action, sqlx::Error> {
    let state = |column: usize| -> Result<Option<State>, sqlx::Error> {
        let number: Option<i64> = from.try_get(column)?;
        Ok(number.and_then(State::from_number))
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
