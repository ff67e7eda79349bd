//! A request's items on their way to their verdicts: each has its seat and its fence, and is open until one of the
//! stores has decided it. Asks no store itself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::claim::{Claim, Digest, Fence, Fingerprint, Layer, Receipt};
use super::durable::Seen;
use super::hot::{Done, HotAsk, HotDone, HotError, HotSeen, Long};
use super::in_flight::{Ended, InFlight, Place, Seat};
use super::{Ask, Claimed, Conditions, LedgerError, Verdict, Waiter, WithoutDurable};
use crate::clock::monotonic;

/// A request's items on their way to their verdicts.
pub(super) struct Claiming {
    pub(super) items: Vec<Item>,
}

pub(super) struct Item {
    pub(super) ask: Ask,
    pub(super) fence: Fence,
    seat: Option<Seat>,
    pub(super) hot_said: Option<HotSeen>,
    /// Done, says the hot store, which has no more of the receipt.
    pub(super) long: Option<Long>,
    /// The hot store has taken its time in vain: this request waits for it no more.
    hot_silent: bool,
    verdict: Option<Verdict>,
}

impl Claiming {
    /// Seats the items, but those that this node knows to be done already (`near`). `claimed` is an event that has its
    /// seat, and is not done.
    pub(super) fn sit(
        in_flight: &Arc<InFlight>,
        asks: Vec<Ask>,
        claimed: Option<&Claimed>,
        near: impl Fn(Digest) -> Option<(Arc<Receipt>, Fingerprint)>,
    ) -> Self {
        let items = asks.into_iter().map(|ask| {
            let mut item = Item {
                fence: Fence::draw(),
                seat: None,
                hot_said: None,
                long: None,
                hot_silent: false,
                verdict: None,
                ask,
            };
            let digest = item.ask.key.digest();
            let reserved = claimed.filter(|claimed| claimed.digest == digest);
            if reserved.is_none()
                && let Some((receipt, processed)) = near(digest)
            {
                item.done(receipt, Layer::Hot, processed);
                return item;
            }
            let place = match reserved.and_then(|claimed| claimed.seat.take()) {
                Some(seat) => Place::Seat(seat),
                None => in_flight.sit(digest),
            };
            match place {
                Place::Seat(seat) => item.seat = Some(seat),
                Place::Queue(hear) => {
                    item.verdict = Some(Verdict::InFlight(Waiter::queued(item.ask.clone(), hear)));
                }
            }
            item
        });
        Self { items: items.collect() }
    }

    /// The stores needn't be asked for what is claimed already.
    pub(super) fn take(&mut self, claimed: &Claimed, on: &Conditions) {
        let mut items = self.items.iter_mut();
        if let Some(item) = items.find(|item| item.seat.is_some() && item.ask.key.digest() == claimed.digest)
        {
            item.fence = claimed.fence;
            item.first(claimed.attempt, Duration::ZERO, on, monotonic(), true);
        }
    }

    /// The items that have no verdict yet.
    pub(super) fn open(&self) -> impl Iterator<Item = &Item> {
        self.items.iter().filter(|item| item.verdict.is_none() && item.long.is_none())
    }

    pub(super) fn open_mut(&mut self) -> impl Iterator<Item = &mut Item> {
        self.items.iter_mut().filter(|item| item.verdict.is_none() && item.long.is_none())
    }

    /// The hot store gave no answer. Where it took its whole time, the request is spared from waiting again.
    pub(super) fn unheard(&mut self, error: &HotError) {
        if matches!(error, HotError::Slow(_)) {
            self.items.iter_mut().for_each(|item| item.hot_silent = true);
        }
    }

    pub(super) fn hears_hot(&self) -> bool {
        self.items.iter().all(|item| !item.hot_silent)
    }

    /// The items that are done, of which the durable store has the receipts.
    pub(super) fn long(&self) -> impl Iterator<Item = &Item> {
        self.items.iter().filter(|item| item.long.is_some())
    }

    pub(super) fn long_mut(&mut self) -> impl Iterator<Item = &mut Item> {
        self.items.iter_mut().filter(|item| item.long.is_some())
    }

    pub(super) fn verdicts(self) -> Vec<Verdict> {
        self.items.into_iter().map(|item| item.verdict.expect("every open item was decided")).collect()
    }
}

impl Item {
    pub(super) fn hot_ask(&self, on: &Conditions) -> HotAsk {
        let mark_ttl = on.terms.lease.min(on.terms.hot_ttl);
        HotAsk { key: self.ask.key.clone(), fence: self.fence, mark_ttl }
    }

    pub(super) fn hot(&mut self, seen: HotSeen) {
        match seen {
            HotSeen::Done(Done { fingerprint, receipt }) => {
                self.done(Arc::new(receipt), Layer::Hot, fingerprint);
            }
            HotSeen::Long(long) => self.long = Some(long),
            HotSeen::Exposed => self.in_flight(),
            HotSeen::Claimed | HotSeen::Processing => self.hot_said = Some(seen),
        }
    }

    /// Takes the durable store's word; returns what the hot store should learn from it.
    pub(super) fn decided(&mut self, seen: Seen, on: &Conditions, began: Instant) -> Option<HotDone> {
        match seen {
            Seen::Claimed { attempt, age } => self.first(attempt, age, on, began, true),
            Seen::Processing { .. } => self.in_flight(),
            Seen::Held { fingerprint } => self.held(fingerprint),
            Seen::Done { receipt, age, fingerprint } => {
                let ttl = on.terms.hot_ttl.saturating_sub(age);
                let warm = (!ttl.is_zero()).then(|| HotDone {
                    key: self.ask.key.clone(),
                    done: Done { fingerprint, receipt: receipt.clone() },
                    ttl,
                });
                self.done(Arc::new(receipt), Layer::Durable, fingerprint);
                return warm;
            }
        }
        None
    }

    pub(super) fn first(
        &mut self,
        attempt: u32,
        age: Duration,
        on: &Conditions,
        began: Instant,
        durable: bool,
    ) {
        let seat = self.seat.take().expect("only a seated item is asked for");
        seat.asked();
        self.verdict = Some(Verdict::First(Claim {
            key: self.ask.key.clone(),
            fence: self.fence,
            attempt,
            terms: on.terms,
            route: Arc::clone(&on.route),
            fingerprint: self.ask.fingerprint,
            age,
            taken: began,
            payload: on.payload.as_ref().map(|payload| payload.id),
            durable,
            hot_decides: on.without_durable == WithoutDurable::HotOnly,
            hot_silent: self.hot_silent,
            seat,
        }));
    }

    pub(super) fn done(&mut self, receipt: Arc<Receipt>, layer: Layer, processed: Fingerprint) {
        self.long = None;
        let conflict = self.ask.unless(processed);
        if let Some(seat) = self.seat.take() {
            seat.leave(&Ended::Done(Arc::clone(&receipt), layer, processed));
        }
        self.verdict = Some(Verdict::Duplicate { receipt, layer, conflict });
    }

    pub(super) fn in_flight(&mut self) {
        let seat = self.seat.take().expect("only a seated item is asked for");
        seat.asked();
        self.verdict = Some(Verdict::InFlight(Waiter::elsewhere(self.ask.clone(), seat)));
    }

    pub(super) fn held(&mut self, parked: Fingerprint) {
        if let Some(seat) = self.seat.take() {
            seat.leave(&Ended::Held(parked));
        }
        self.verdict = Some(Verdict::Held { conflict: self.ask.unless(parked) });
    }

    pub(super) fn unavailable(&mut self, error: Arc<LedgerError>) {
        drop(self.seat.take());
        self.verdict = Some(Verdict::Unavailable(error));
    }
}
