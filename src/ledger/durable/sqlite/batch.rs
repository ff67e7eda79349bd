//! Claims and settlements of one batch in one transaction.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::{Link, blob, number, row, sql};
use crate::ledger::claim::{Digest, OnUnknown};
use crate::ledger::durable::batch::{Batch, Outcome};
use crate::ledger::durable::row::{Row, span, stored_text};
use crate::ledger::durable::{ClaimAsk, End, SettleAsk, State, receipt};

impl Link {
    /// Decides and commits the batch. An error leaves nothing decided.
    pub(in crate::ledger::durable) async fn commit_batch(
        &mut self,
        batch: &Batch<'_>,
    ) -> Result<Outcome, sqlx::Error> {
        let (_pen, now) = self.begin().await?;
        let mut outcome = Outcome { now, ..Outcome::default() };
        if !batch.settles.is_empty() {
            self.settle(&batch.settles, &mut outcome).await?;
        }
        if !batch.claims.is_empty() {
            self.claim(&batch.claims, &mut outcome).await?;
        }
        let unknown = outcome.unknown(batch);
        if !unknown.is_empty() {
            outcome.met.extend(self.rows(&unknown).await?.into_iter().map(|row| (row.digest, row)));
        }
        self.commit().await?;
        Ok(outcome)
    }

    /// These events' rows as they are now, and the clock.
    pub(in crate::ledger::durable) async fn peek(
        &mut self,
        digests: &[Digest],
    ) -> Result<(i64, Vec<Row>), sqlx::Error> {
        let rows = self.rows(digests).await?;
        Ok((self.now().await?, rows))
    }

    async fn settle(&mut self, asks: &[&SettleAsk], outcome: &mut Outcome) -> Result<(), sqlx::Error> {
        let elements: Vec<_> = asks
            .iter()
            .map(|ask| {
                let receipt = match &ask.end {
                    End::Commit(receipt) => Some(hex::encode(receipt::encode(receipt))),
                    End::Release | End::Hold => None,
                };
                json!([ask.digest.to_string(), ask.fence.0, ask.end.state().number(), receipt])
            })
            .collect();
        let query = sqlx::query(sql::SETTLE).bind(array(&elements));
        for from in &query.fetch_all(&mut self.connection).await? {
            let id: Vec<u8> = sqlx::Row::try_get(from, 0)?;
            outcome.ended.insert(Digest(number(&id)?));
        }
        let ended = |ask: &&&SettleAsk| outcome.ended.contains(&ask.digest) && ask.end.state() != State::Held;
        let payloads: BTreeSet<u128> = asks.iter().filter(ended).filter_map(|ask| ask.payload).collect();
        for payload in payloads {
            self.drop_payload(payload).await?;
        }
        Ok(())
    }

    pub(super) async fn drop_payload(&mut self, payload: u128) -> Result<(), sqlx::Error> {
        self.run(sqlx::query(sql::DROP_PAYLOAD).bind(blob(payload))).await?;
        self.run(sqlx::query(sql::DROP_PAYLOAD_EVENTS).bind(blob(payload))).await.map(drop)
    }

    async fn claim(&mut self, asks: &[&ClaimAsk], outcome: &mut Outcome) -> Result<(), sqlx::Error> {
        let elements: Vec<_> = asks
            .iter()
            .map(|ask| {
                json!([
                    ask.key.digest().to_string(),
                    stored_text(&ask.key),
                    &*ask.route,
                    ask.fence.0,
                    span(ask.lease),
                    span(ask.durable_ttl),
                    i32::from(ask.on_unknown == OnUnknown::Hold),
                    ask.fingerprint.0,
                    ask.payload.as_ref().map(|payload| hex::encode(payload.id.to_be_bytes())),
                ])
            })
            .collect();
        let query = sqlx::query(sql::CLAIM).bind(array(&elements)).bind(outcome.now);
        for from in &query.fetch_all(&mut self.connection).await? {
            let row = row(from)?;
            outcome.won.insert(row.digest, row);
        }
        self.store_payloads(asks, outcome).await
    }

    /// Stores the payloads of the claims that stand; a duplicate's is not needed.
    async fn store_payloads(&mut self, asks: &[&ClaimAsk], outcome: &Outcome) -> Result<(), sqlx::Error> {
        let stands = |ask: &ClaimAsk| {
            outcome.won.get(&ask.key.digest()).is_some_and(|row| row.state == State::Processing)
        };
        let mut payloads = BTreeMap::new();
        for ask in asks.iter().filter(|ask| stands(ask)) {
            if let Some(payload) = &ask.payload {
                payloads.insert(payload.id, payload);
                let event = sqlx::query(sql::STORE_PAYLOAD_EVENT);
                self.run(event.bind(blob(payload.id)).bind(blob(ask.key.digest().0))).await?;
            }
        }
        for (id, payload) in payloads {
            let store = sqlx::query(sql::STORE_PAYLOAD).bind(blob(id)).bind(outcome.now);
            self.run(store.bind(payload.request.to_vec())).await?;
        }
        Ok(())
    }

    async fn rows(&mut self, digests: &[Digest]) -> Result<Vec<Row>, sqlx::Error> {
        let elements: Vec<_> = digests.iter().map(|digest| json!(digest.to_string())).collect();
        let query = sqlx::query(sql::PEEK).bind(array(&elements));
        query.fetch_all(&mut self.connection).await?.iter().map(row).collect()
    }
}

pub(super) fn array(elements: &[serde_json::Value]) -> String {
    serde_json::to_string(elements).expect("values of ours have string keys only")
}
