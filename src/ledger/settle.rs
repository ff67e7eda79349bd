//! Ending claims: durably first, then in the hot store, then for those who wait. What can't be recorded now goes to
//! the background, and the answer doesn't wait for it.

use std::sync::Arc;

use super::Ledger;
use super::claim::{Claim, EventKey, Fence, Layer, Receipt, Settlement};
use super::durable::{End, SettleAsk, Settled};
use super::hot::{Done, HotDone};
use super::in_flight::Ended;
use super::near::Since;
use crate::clock::{UnixMillis, monotonic};

/// How many of a request's settlements came to what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Landed {
    pub recorded: usize,
    /// The lease had lapsed: someone else may have processed the event again.
    pub lease_lost: usize,
    /// Not recorded yet; retried in the background until it lands or the lease lapses.
    pub unsettled: usize,
}

/// The receipt of an event that ended without an answer of the app, or whose receipt can't be had now.
pub(super) fn empty_receipt(at: UnixMillis) -> Receipt {
    Receipt { status: 200, headers: Vec::new(), body: None, at }
}

impl Ledger {
    /// Ends all claims of a request the same way.
    pub async fn settle(&self, claims: Vec<Claim>, settlement: Settlement) -> Landed {
        let (mut claims, exposed): (Vec<_>, Vec<_>) = claims.into_iter().partition(|claim| claim.durable);
        let mut landed = Landed { recorded: exposed.len(), ..Landed::default() };
        if !exposed.is_empty() {
            self.settle_hot_only(exposed, &settlement).await;
        }
        if claims.is_empty() {
            return landed;
        }
        let since = self.since();
        match self.record(&claims, &settlement).await {
            Some(settled) => {
                landed.recorded += settled.iter().filter(|settled| **settled == Settled::Recorded).count();
                landed.lease_lost = settled.iter().filter(|settled| **settled == Settled::LeaseLost).count();
                self.finish(claims, settled, &settlement, since).await;
            }
            None => {
                landed.unsettled = claims.len();
                self.tell_hot_alone(&claims, &settlement).await;
                for claim in &mut claims {
                    claim.seat.tell(&ended(claim, &settlement));
                    // By the time it is recorded nobody waits.
                    claim.hot_silent = false;
                }
                self.shared.background.retry(claims, settlement);
            }
        }
        landed
    }

    /// Asks the durable store; `None` where it gave no answer.
    pub(super) async fn record(&self, claims: &[Claim], settlement: &Settlement) -> Option<Vec<Settled>> {
        let asks = claims.iter().map(|claim| SettleAsk {
            digest: claim.key.digest(),
            fence: claim.fence,
            end: match settlement {
                Settlement::Commit(receipt) => End::Commit(Arc::clone(receipt)),
                Settlement::Release => End::Release,
                Settlement::Hold => End::Hold,
            },
            payload: claim.payload,
        });
        let began = monotonic();
        let said = self.durable.settle(asks.collect()).await;
        self.shared.metrics.durable_took(began.elapsed());
        said.inspect_err(|error| self.shared.metrics.durable_failed(error)).ok()
    }

    /// Tells the hot store and those who wait what the durable store has recorded; `since` is from before it was
    /// asked, so that no change of a person is missed that came after.
    pub(super) async fn finish(
        &self,
        claims: Vec<Claim>,
        settled: Vec<Settled>,
        settlement: &Settlement,
        since: Since,
    ) {
        let (mut done, mut unmark) = (Vec::new(), Vec::new());
        for (claim, settled) in claims.iter().zip(&settled) {
            match (settlement, settled) {
                (Settlement::Commit(receipt), Settled::Recorded) => done.extend(hot_done(claim, receipt)),
                (Settlement::Release | Settlement::Hold, _) | (Settlement::Commit(_), Settled::LeaseLost) => {
                    unmark.push((claim.key.clone(), claim.fence));
                }
            }
        }
        self.remember(&done, since);
        // What it isn't told costs the next copy a question to the durable store.
        if claims.iter().all(|claim| !claim.hot_silent) {
            self.tell_hot(done, unmark).await;
        }
        for (claim, settled) in claims.into_iter().zip(settled) {
            let ended = match settled {
                Settled::Recorded => ended(&claim, settlement),
                // A person changed the event, or the lease lapsed: what became of it is not this claim's to say.
                Settled::LeaseLost => Ended::Changed,
            };
            claim.seat.leave(&ended);
        }
    }

    /// Keeps near what the durable store said is done; `since` as above.
    pub(super) fn remember(&self, done: &[HotDone], since: Since) {
        for HotDone { key, done, ttl } in done {
            self.shared.near.remember(key.digest(), done, *ttl, since);
        }
    }

    /// Ends claims that only the hot store holds, and has the durable store learn of them when it returns.
    async fn settle_hot_only(&self, claims: Vec<Claim>, settlement: &Settlement) {
        let (mut done, mut unmark) = (Vec::new(), Vec::new());
        for claim in &claims {
            match settlement {
                Settlement::Commit(receipt) if !claim.seat.is_dissolved() => {
                    done.extend(hot_done(claim, receipt));
                    self.shared.background.catch_up(claim, receipt);
                }
                // A person has changed the event since, and this claim has no say any more.
                Settlement::Commit(_) | Settlement::Release => unmark.push((claim.key.clone(), claim.fence)),
                // The mark stays until its lease ends: nothing else could park the event.
                Settlement::Hold => {}
            }
        }
        self.tell_hot(done, unmark).await;
        for claim in claims {
            let ended = ended(&claim, settlement);
            claim.seat.leave(&ended);
        }
    }

    /// The durable store hasn't recorded what is done. Where the hot store decides alone meanwhile, its mark ends with the
    /// lease, and the next copy would be the first again: so it learns of the end before the durable store does.
    async fn tell_hot_alone(&self, claims: &[Claim], settlement: &Settlement) {
        if let Settlement::Commit(receipt) = settlement {
            // What a person changed meanwhile is theirs.
            let deciding = claims.iter().filter(|claim| claim.hot_decides && !claim.seat.is_dissolved());
            self.tell_hot(deciding.filter_map(|claim| hot_done(claim, receipt)).collect(), Vec::new()).await;
        }
    }

    pub(super) async fn tell_hot(&self, done: Vec<HotDone>, unmark: Vec<(EventKey, Fence)>) {
        let done = async {
            if done.is_empty() {
                return;
            }
            let began = monotonic();
            if let Err(error) = self.hot.done(done).await {
                self.shared.metrics.hot_failed(&error);
            }
            self.shared.metrics.hot_took(began.elapsed());
        };
        let unmark = async {
            if !unmark.is_empty()
                && let Err(error) = self.hot.release(unmark).await
            {
                self.shared.metrics.hot_failed(&error);
            }
        };
        tokio::join!(done, unmark);
    }
}

/// What the hot store learns of a done event; `None` where its hot window is over already.
fn hot_done(claim: &Claim, receipt: &Receipt) -> Option<HotDone> {
    let ttl = claim.terms.hot_ttl.checked_sub(claim.age + claim.taken.elapsed())?;
    (!ttl.is_zero()).then(|| HotDone {
        key: claim.key.clone(),
        done: Done { fingerprint: claim.fingerprint, receipt: receipt.clone() },
        ttl,
    })
}

pub(super) fn ended(claim: &Claim, settlement: &Settlement) -> Ended {
    match settlement {
        Settlement::Commit(receipt) => Ended::Done(Arc::clone(receipt), Layer::Waited, claim.fingerprint),
        Settlement::Release => Ended::Released,
        Settlement::Hold => Ended::Held(claim.fingerprint),
    }
}
