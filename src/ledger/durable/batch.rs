//! What one transaction carries, and what came of it. Pure.

use std::collections::HashMap;

use super::row::Row;
use super::{ClaimAsk, Seen, SettleAsk, Settled};
use crate::ledger::claim::Digest;

/// Claims and settlements of one transaction, each sorted by digest; no digest twice among both.
#[derive(Debug, Default)]
pub(super) struct Batch<'a> {
    pub(super) claims: Vec<&'a ClaimAsk>,
    pub(super) settles: Vec<&'a SettleAsk>,
}

impl Batch<'_> {
    /// Sorted, so that two nodes lock rows in one order and cannot wait for each other.
    pub(super) fn sort(&mut self) {
        self.claims.sort_unstable_by_key(|ask| ask.key.digest());
        self.settles.sort_unstable_by_key(|ask| ask.digest);
    }
}

/// What one transaction said, once it is committed.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) now: i64,
    /// Rows that a claim wrote.
    pub(super) won: HashMap<Digest, Row>,
    /// Rows that were there and kept.
    pub(super) met: HashMap<Digest, Row>,
    /// Rows that a settlement ended.
    pub(super) ended: std::collections::HashSet<Digest>,
}

impl Outcome {
    /// What a claim got; `None` where the row changed hands meanwhile, and it has to be asked again.
    pub(super) fn claim(&self, ask: &ClaimAsk) -> Option<Seen> {
        let digest = ask.key.digest();
        match self.won.get(&digest) {
            Some(row) => Some(row.clone().won(self.now)),
            None => self.met.get(&digest)?.clone().seen(Some(ask.fence), self.now),
        }
    }

    /// What a settlement got. Rows that were not ended must have been read into `met`.
    pub(super) fn settle(&self, ask: &SettleAsk) -> Settled {
        let recorded =
            self.ended.contains(&ask.digest) || self.met.get(&ask.digest).is_some_and(|row| row.records(ask));
        if recorded { Settled::Recorded } else { Settled::LeaseLost }
    }

    /// Rows that the transaction neither wrote nor met: they have to be read.
    pub(super) fn unknown(&self, batch: &Batch<'_>) -> Vec<Digest> {
        let claims = batch.claims.iter().map(|ask| ask.key.digest());
        let settles = batch.settles.iter().map(|ask| ask.digest);
        claims
            .filter(|digest| !self.won.contains_key(digest) && !self.met.contains_key(digest))
            .chain(settles.filter(|digest| !self.ended.contains(digest)))
            .collect()
    }
}
