//! Turns the verdicts on a request's items into what to forward, what to replay and whom to wait for. Pure.

use std::sync::Arc;

use super::proxy::Keyed;
use crate::ledger::{Ask, Claim, Fingerprint, Layer, LedgerError, Receipt, Verdict, Waiter};

/// What to do with one request.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The rights to process; they end together, with the one forward.
    pub(super) claims: Vec<Claim>,
    /// Items that are forwarded without a claim: they have no key, or the stores are bypassed.
    pub(super) unclaimed: usize,
    /// Items that are left out of the forward, by their place in the request's list.
    pub(super) removed: Vec<usize>,
    /// Copies of done events.
    pub(super) duplicates: Vec<Duplicate>,
    /// Copies of events in flight elsewhere.
    pub(super) waiting: Vec<(usize, Waiter)>,
    pub(super) held: usize,
    pub(super) unavailable: Option<Arc<LedgerError>>,
    pub(super) unavailable_items: usize,
    pub(super) conflicts: Vec<Conflict>,
}

/// An item under the key of another event than its own: its bytes differ.
#[derive(Debug)]
pub(super) struct Conflict {
    pub(super) ask: Ask,
    /// The fingerprint of what is processed under the key, or held.
    pub(super) processed: Fingerprint,
}

#[derive(Debug)]
pub(super) struct Duplicate {
    /// The item's place in the request's list.
    pub(super) item: usize,
    pub(super) receipt: Arc<Receipt>,
    pub(super) layer: Layer,
}

impl Plan {
    /// `verdicts` belong to the items that have keys, in order; twins are the same event as the item whose key came before
    /// in the same request, and the rest of the `items` have no key.
    pub(super) fn of(items: usize, keyed: &Keyed, verdicts: Vec<Verdict>) -> Self {
        let Keyed { places, asks, twins } = keyed;
        let mut plan = Self { unclaimed: items - places.len() - twins.len(), ..Self::default() };
        // What each key stands for; none where no verdict was possible, and the sender comes again.
        let mut processed = Vec::with_capacity(if twins.is_empty() { 0 } else { asks.len() });
        for ((&item, ask), verdict) in places.iter().zip(asks).zip(verdicts) {
            let mut known = Some(ask.fingerprint);
            match verdict {
                Verdict::First(claim) => plan.claims.push(claim),
                Verdict::Duplicate { receipt, layer, conflict } => {
                    plan.removed.push(item);
                    plan.duplicates.push(Duplicate { item, receipt, layer });
                    known = plan.conflicting(ask, conflict);
                }
                Verdict::InFlight(waiter) => {
                    plan.removed.push(item);
                    plan.waiting.push((item, waiter));
                }
                Verdict::Held { conflict } => {
                    plan.removed.push(item);
                    plan.held += 1;
                    known = plan.conflicting(ask, conflict);
                }
                Verdict::Unavailable(error) => {
                    plan.unavailable.get_or_insert(error);
                    plan.unavailable_items += 1;
                    known = None;
                }
            }
            if !twins.is_empty() {
                processed.push(known);
            }
        }
        // A twin goes where its first goes, except that the app sees the event once.
        plan.removed.extend(twins.iter().map(|twin| twin.place));
        plan.removed.sort_unstable();
        for twin in twins {
            let Ok(first) = places.binary_search(&twin.first) else { continue };
            let ask = Ask { fingerprint: twin.fingerprint, ..asks[first].clone() };
            let other = processed.get(first).copied().flatten().filter(|known| *known != twin.fingerprint);
            plan.conflicting(&ask, other);
        }
        plan
    }

    /// Notes a conflict, if there is one; gives what the ask's key stands for.
    fn conflicting(&mut self, ask: &Ask, conflict: Option<Fingerprint>) -> Option<Fingerprint> {
        if let Some(processed) = conflict {
            self.conflicts.push(Conflict { ask: ask.clone(), processed });
        }
        conflict.or(Some(ask.fingerprint))
    }

    /// Whether anything goes to the app. A request without items is forwarded: there is nothing to deduplicate.
    pub(super) fn forwards(&self, items: usize) -> bool {
        items == 0 || !self.claims.is_empty() || self.unclaimed > 0
    }
}
