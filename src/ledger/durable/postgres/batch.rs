//! Claims and settlements of one batch: one round trip where all is new, one or two more where copies are in it.

use std::collections::BTreeMap;

use sqlx::{PgConnection, Row as _};
use uuid::Uuid;

use super::{Link, row, sql, uuid};
use crate::ledger::claim::{Digest, OnUnknown};
use crate::ledger::durable::batch::{Batch, Outcome};
use crate::ledger::durable::row::{Row, span, stored_text};
use crate::ledger::durable::{ClaimAsk, End, SettleAsk, receipt};

impl Link {
    /// Decides and commits the batch. After an error some of it may be committed all the same: the answer alone was lost, or
    /// copies were refused after what was new; another try recognises that by its fences.
    pub(in crate::ledger::durable) async fn commit_batch(
        &mut self,
        batch: &Batch<'_>,
    ) -> Result<Outcome, sqlx::Error> {
        self.hasty = batch.hasty;
        let payloads = batch.claims.iter().any(|ask| ask.payload.is_some())
            || batch.settles.iter().any(|ask| ask.payload.is_some());
        let outcome = if payloads || self.copies_expected {
            self.decide(batch, payloads).await?
        } else {
            let mut outcome = self.write_new(batch).await?;
            if !outcome.all_new {
                let seen = |ask: &&ClaimAsk| !outcome.new.contains(&ask.key.digest());
                let claims = batch.claims.iter().copied().filter(seen).collect();
                let copies = self.decide(&Batch { claims, ..Batch::default() }, false).await?;
                outcome = Outcome { now: copies.now, won: copies.won, met: copies.met, ..outcome };
            }
            outcome
        };
        // The hot store knows nearly all copies, unless it was emptied or is away: then many come here.
        let copy =
            |ask: &&&ClaimAsk| outcome.met.get(&ask.key.digest()).is_some_and(|row| row.fence != ask.fence);
        self.copies_expected = batch.claims.iter().filter(copy).count() * 8 > batch.claims.len();
        self.complete(batch, outcome).await
    }

    /// Has the session know the statements of the usual batches before the first: they write nothing here.
    pub(in crate::ledger::durable) async fn warm_up(&mut self) -> Result<(), sqlx::Error> {
        if !self.pooled {
            self.hasty = false;
            self.counted_alone(bind_new(self.query(sql::NEW), &[])).await?;
            self.alone(bind_settles(self.query(sql::SETTLE), &[])).await?;
        }
        Ok(())
    }

    /// Writes what is new, and settles: of the claims, only those are answered that nobody ever made before.
    async fn write_new(&mut self, batch: &Batch<'_>) -> Result<Outcome, sqlx::Error> {
        let mut outcome = Outcome { all_new: true, all_ended: true, ..Outcome::default() };
        let digests = |ids: Vec<Uuid>| ids.into_iter().map(|id| Digest(id.as_u128())).collect();
        if batch.settles.is_empty() {
            let written = self.counted_alone(bind_new(self.query(sql::NEW), &batch.claims)).await?;
            // Which of them were written need not be known: a row with the claim's own fence says so.
            outcome.all_new = written == batch.claims.len();
        } else if batch.claims.is_empty() {
            let ended = self.alone(bind_settles(self.query(sql::SETTLE), &batch.settles)).await?;
            if ended.len() < batch.settles.len() {
                outcome.all_ended = false;
                outcome.ended =
                    digests(ended.iter().map(|from| from.try_get(0)).collect::<Result<_, sqlx::Error>>()?);
            }
        } else {
            let query = bind_new(self.query(sql::NEW_AND_SETTLE), &batch.claims);
            for from in &self.alone(bind_settles(query, &batch.settles)).await? {
                let (new, ended): (Option<Vec<Uuid>>, Option<Vec<Uuid>>) =
                    (from.try_get(0)?, from.try_get(1)?);
                (outcome.all_new, outcome.all_ended) = (new.is_none(), ended.is_none());
                outcome.new = digests(new.unwrap_or_default());
                outcome.ended = digests(ended.unwrap_or_default());
            }
        }
        Ok(outcome)
    }

    /// Decides every claim, whatever its row is like, and settles.
    async fn decide(&mut self, batch: &Batch<'_>, payloads: bool) -> Result<Outcome, sqlx::Error> {
        let query = if payloads {
            let query = bind_claims(self.query(sql::BATCH_WITH_PAYLOADS), &batch.claims);
            bind_payloads(bind_settles(query, &batch.settles), batch)
        } else {
            bind_settles(bind_claims(self.query(sql::BATCH), &batch.claims), &batch.settles)
        };
        let rows = self.alone(query).await?;
        let mut outcome = Outcome::default();
        for from in &rows {
            let (list, now, row) = row(from)?;
            outcome.now = now;
            match list {
                1 => drop(outcome.won.insert(row.digest, row)),
                2 => drop(outcome.met.insert(row.digest, row)),
                _ => drop(outcome.ended.insert(row.digest)),
            }
        }
        Ok(outcome)
    }

    /// Reads the rows that were neither written nor met.
    async fn complete(&mut self, batch: &Batch<'_>, mut outcome: Outcome) -> Result<Outcome, sqlx::Error> {
        let unknown = outcome.unknown(batch);
        if !unknown.is_empty() {
            let (now, rows) = self.peek(&unknown).await?;
            outcome.now = outcome.now.max(now);
            outcome.met.extend(rows.into_iter().map(|row| (row.digest, row)));
        }
        Ok(outcome)
    }

    /// These events' rows as they are now, and the database's clock (zero where no row is there).
    pub(in crate::ledger::durable) async fn peek(
        &mut self,
        digests: &[Digest],
    ) -> Result<(i64, Vec<Row>), sqlx::Error> {
        let ids: Vec<Uuid> = digests.iter().map(|digest| uuid(digest.0)).collect();
        let query = self.query(sql::PEEK).bind(ids);
        let mut now = 0;
        let mut rows = Vec::with_capacity(digests.len());
        for from in &self.alone(query).await? {
            let (_, at, row) = row(from)?;
            now = at;
            rows.push(row);
        }
        Ok((now, rows))
    }
}

type Query<'q> =
    sqlx::query::Query<'q, <PgConnection as sqlx::Connection>::Database, sqlx::postgres::PgArguments>;

/// What claims of one route have in common. A batch has few of them.
#[derive(PartialEq)]
struct Terms<'a> {
    lease: i64,
    ttl: i64,
    hold: bool,
    route: &'a str,
}

/// How many of the terms met last are looked through for a claim's: any more would cost more than they save.
const TERMS_COMPARED: usize = 16;

fn bind_new<'q>(query: Query<'q>, asks: &[&'q ClaimAsk]) -> Query<'q> {
    let mut all: Vec<Terms<'_>> = Vec::new();
    let mut numbers = Vec::with_capacity(asks.len());
    for ask in asks {
        let terms = Terms {
            lease: span(ask.lease),
            ttl: span(ask.durable_ttl),
            hold: ask.on_unknown == OnUnknown::Hold,
            route: &ask.route,
        };
        let oldest = all.len().saturating_sub(TERMS_COMPARED);
        let known = all.iter().skip(oldest).position(|other| *other == terms);
        let at = known.map_or(all.len(), |at| oldest + at);
        if at == all.len() {
            all.push(terms);
        }
        // Arrays of the database begin at 1.
        numbers.push(i32::try_from(at + 1).expect("a batch is bounded"));
    }
    query
        .bind(column(asks, |ask| uuid(ask.key.digest().0)))
        .bind(column(asks, |ask| stored_text(&ask.key)))
        .bind(column(asks, |ask| ask.fence.0))
        .bind(column(asks, |ask| ask.fingerprint.0))
        .bind(numbers)
        .bind(all.iter().map(|terms| terms.route).collect::<Vec<_>>())
        .bind(all.iter().map(|terms| terms.lease).collect::<Vec<_>>())
        .bind(all.iter().map(|terms| terms.ttl).collect::<Vec<_>>())
        .bind(all.iter().map(|terms| terms.hold).collect::<Vec<_>>())
}

fn column<'a, T>(asks: &[&'a ClaimAsk], of: impl Fn(&'a ClaimAsk) -> T) -> Vec<T> {
    asks.iter().map(|ask| of(ask)).collect()
}

fn bind_claims<'q>(query: Query<'q>, asks: &[&'q ClaimAsk]) -> Query<'q> {
    query
        .bind(column(asks, |ask| uuid(ask.key.digest().0)))
        .bind(column(asks, |ask| stored_text(&ask.key)))
        .bind(column(asks, |ask| &*ask.route))
        .bind(column(asks, |ask| ask.fence.0))
        .bind(column(asks, |ask| span(ask.lease)))
        .bind(column(asks, |ask| span(ask.durable_ttl)))
        .bind(column(asks, |ask| ask.on_unknown == OnUnknown::Hold))
        .bind(column(asks, |ask| ask.fingerprint.0))
        .bind(column(asks, |ask| ask.payload.as_ref().map(|payload| uuid(payload.id))))
}

fn bind_settles<'q>(query: Query<'q>, asks: &[&'q SettleAsk]) -> Query<'q> {
    query
        .bind(asks.iter().map(|ask| uuid(ask.digest.0)).collect::<Vec<_>>())
        .bind(asks.iter().map(|ask| ask.fence.0).collect::<Vec<_>>())
        .bind(asks.iter().map(|ask| ask.end.state().number()).collect::<Vec<_>>())
        .bind(asks.iter().map(|ask| encoded(&ask.end)).collect::<Vec<_>>())
}

fn bind_payloads<'q>(query: Query<'q>, batch: &Batch<'q>) -> Query<'q> {
    // All items of one request share one payload: it travels once.
    let stored: BTreeMap<u128, &[u8]> = batch
        .claims
        .iter()
        .filter_map(|ask| ask.payload.as_ref())
        .map(|payload| (payload.id, payload.request.as_ref()))
        .collect();
    let dropped = |ask: &&SettleAsk| match ask.end {
        End::Commit(_) | End::Release => ask.payload.map(uuid),
        End::Hold => None,
    };
    query
        .bind(stored.keys().copied().map(uuid).collect::<Vec<_>>())
        .bind(stored.into_values().collect::<Vec<_>>())
        .bind(batch.settles.iter().filter_map(dropped).collect::<Vec<_>>())
}

fn encoded(end: &End) -> Option<Vec<u8>> {
    match end {
        End::Commit(receipt) => Some(receipt::encode(receipt)),
        End::Release | End::Hold => None,
    }
}
