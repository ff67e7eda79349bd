//! What is counted and logged of a request's items, and of the app's answer. Decides nothing.

use super::plan::{Conflict, Plan};
use super::proxy::Run;
use crate::ledger::{Ask, Fingerprint};
use crate::metrics::Said;
use crate::upstream::Outcome;

impl Run<'_> {
    pub(super) fn count(&self, said: Said, items: usize) {
        self.work.route.metrics.items(said, items);
    }

    /// Items in flight are counted when it is known what became of them.
    pub(super) fn count_plan(&self, plan: &Plan, twins: usize) {
        self.count(Said::First, plan.claims.len());
        self.count(Said::Keyless, plan.unclaimed);
        self.count(Said::Duplicate, plan.duplicates.len() + twins);
        self.count(Said::Held, plan.held);
        self.count(Said::Unavailable, plan.unavailable_items);
        for copy in &plan.duplicates {
            self.work.route.metrics.duplicate(copy.layer);
        }
        for Conflict { ask, processed } in &plan.conflicts {
            self.count_conflict(ask, Some(*processed));
        }
    }

    /// The same key with another body: an id that is reused would otherwise swallow events unseen.
    pub(super) fn count_conflict(&self, ask: &Ask, conflict: Option<Fingerprint>) {
        let Some(processed) = conflict else { return };
        self.work.route.metrics.conflicts.increment(1);
        self.flow.ledger.note_conflict(ask);
        tracing::warn!(
            route = %self.work.route.config.name, key = ask.key.digest().short(),
            processed = %processed, copy = %ask.fingerprint, trace_id = self.work.trace.id(),
            "a copy differs from the event that was processed under its key"
        );
    }

    pub(super) fn count_outcome(&self, outcome: &Outcome) {
        let metrics = &self.work.route.metrics;
        match outcome {
            Outcome::Answered(_) => metrics.answered.increment(1),
            Outcome::NeverSent(error) | Outcome::Unknown(error) => {
                match outcome {
                    Outcome::Unknown(_) => metrics.unknown.increment(1),
                    Outcome::NeverSent(_) | Outcome::Answered(_) => metrics.never_sent.increment(1),
                }
                tracing::warn!(
                    route = %self.work.route.config.name, key = self.key, app = %self.work.route.config.upstream.authority, error = error.told(),
                    trace_id = self.work.trace.id(),
                    "no complete answer from the app"
                );
            }
        }
    }
}
