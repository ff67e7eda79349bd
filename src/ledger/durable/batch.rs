//! What one batch carries, and what came of it. In SQLite a batch is one transaction; in Postgres it is one statement,
//! or a second one after that for the claims that met a row: each statement commits for itself. Pure.

use std::time::Duration;

use super::row::Row;
use super::{ClaimAsk, Seen, SettleAsk, Settled};
use crate::ledger::claim::{Digest, DigestMap, DigestSet};

/// Claims and settlements of one batch, each sorted by digest; no digest twice among both.
#[derive(Debug, Default)]
pub(super) struct Batch<'a> {
    pub(super) claims: Vec<&'a ClaimAsk>,
    pub(super) settles: Vec<&'a SettleAsk>,
    /// Rows that somebody has locked are hardly waited for: others wait for this batch, and one like it has waited.
    pub(super) hasty: bool,
}

impl Batch<'_> {
    /// Sorted, so that two nodes lock rows in one order and cannot wait for each other.
    pub(super) fn sort(&mut self) {
        self.claims.sort_unstable_by_key(|ask| ask.key.digest());
        self.settles.sort_unstable_by_key(|ask| ask.digest);
    }
}

/// What one batch said, once it is committed.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) now: i64,
    /// Every claim is the first of its event.
    pub(super) all_new: bool,
    /// Where not every one is: those that are.
    pub(super) new: DigestSet,
    /// Every settlement ended its claim.
    pub(super) all_ended: bool,
    /// Rows that a claim wrote.
    pub(super) won: DigestMap<Row>,
    /// Rows that were there and kept.
    pub(super) met: DigestMap<Row>,
    /// Where not every one did: rows that a settlement ended.
    pub(super) ended: DigestSet,
}

impl Outcome {
    /// What a claim got; `None` where the row changed hands meanwhile, and it has to be asked again.
    pub(super) fn claim(&self, ask: &ClaimAsk) -> Option<Seen> {
        let digest = ask.key.digest();
        if self.is_new(digest) {
            return Some(Seen::Claimed { attempt: 1, age: Duration::ZERO });
        }
        match self.won.get(&digest) {
            Some(row) => Some(row.clone().won(self.now)),
            None => self.met.get(&digest)?.clone().seen(Some(ask.fence), self.now),
        }
    }

    /// Whether this claim is known to be the first of its event.
    pub(super) fn is_new(&self, digest: Digest) -> bool {
        self.all_new || self.new.contains(&digest)
    }

    /// What a settlement got. Rows that were not ended must have been read into `met`.
    pub(super) fn settle(&self, ask: &SettleAsk) -> Settled {
        let recorded = self.all_ended
            || self.ended.contains(&ask.digest)
            || self.met.get(&ask.digest).is_some_and(|row| row.records(ask));
        if recorded { Settled::Recorded } else { Settled::LeaseLost }
    }

    /// Rows that the transaction neither wrote nor met: they have to be read.
    pub(super) fn unknown(&self, batch: &Batch<'_>) -> Vec<Digest> {
        let claims = batch.claims.iter().map(|ask| ask.key.digest());
        let settles = if self.all_ended { [].as_slice() } else { &batch.settles };
        let settles = settles.iter().map(|ask| ask.digest);
        let decided = |digest: &Digest| {
            self.is_new(*digest) || self.won.contains_key(digest) || self.met.contains_key(digest)
        };
        claims
            .filter(|digest| !decided(digest))
            .chain(settles.filter(|digest| !self.ended.contains(digest)))
            .collect()
    }
}
