//! Turns the verdicts on a request's items into what to forward, what to replay and whom to wait for. Pure.

use std::sync::Arc;

use crate::ledger::{Claim, Fingerprint, Layer, LedgerError, Receipt, Verdict, Waiter};

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
}

#[derive(Debug)]
pub(super) struct Duplicate {
    /// The item's place in the request's list.
    pub(super) item: usize,
    pub(super) receipt: Arc<Receipt>,
    pub(super) layer: Layer,
    pub(super) conflict: Option<Fingerprint>,
}

impl Plan {
    /// `verdicts` belong to the items at `keyed`, in order; `twins` are items whose key came before in the same
    /// request, which are the same event; the rest of the `items` have no key.
    pub(super) fn of(
        items: usize,
        keyed: &[usize],
        twins: &[(usize, usize)],
        verdicts: Vec<Verdict>,
    ) -> Self {
        let mut plan = Self { unclaimed: items - keyed.len() - twins.len(), ..Self::default() };
        for (&item, verdict) in keyed.iter().zip(verdicts) {
            match verdict {
                Verdict::First(claim) => plan.claims.push(claim),
                Verdict::Duplicate { receipt, layer, conflict } => {
                    plan.removed.push(item);
                    plan.duplicates.push(Duplicate { item, receipt, layer, conflict });
                }
                Verdict::InFlight(waiter) => {
                    plan.removed.push(item);
                    plan.waiting.push((item, waiter));
                }
                Verdict::Held => {
                    plan.removed.push(item);
                    plan.held += 1;
                }
                Verdict::Unavailable(error) => {
                    plan.unavailable.get_or_insert(error);
                    plan.unavailable_items += 1;
                }
            }
        }
        // A twin goes where its first goes, except that the app sees the event once.
        plan.removed.extend(twins.iter().map(|(twin, _)| *twin));
        plan.removed.sort_unstable();
        plan
    }

    /// Whether anything goes to the app. A request without items is forwarded: there is nothing to deduplicate.
    pub(super) fn forwards(&self, items: usize) -> bool {
        items == 0 || !self.claims.is_empty() || self.unclaimed > 0
    }
}
