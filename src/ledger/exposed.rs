//! Claims that the hot store alone holds while the durable store is away (`hot_only`). One node may reach that store while
//! another doesn't, and it may come back at any moment: so nodes keep out of each other's way by the mark, which says
//! that the claim is nowhere else. Who set it first goes on. On other routes a mark stays a hint.

use std::sync::Arc;
use std::time::Duration;

use super::claiming::Claiming;
use super::durable::{DurableError, End, Seen, SettleAsk};
use super::hot::{HotAsk, HotSeen, Marking};
use super::{Conditions, Ledger, LedgerError, WithoutDurable};

impl Ledger {
    /// The durable store gave no answer: an error is not a verdict, and the route's policy decides.
    pub(super) async fn without_durable(
        &self,
        claiming: &mut Claiming,
        on: &Conditions,
        error: DurableError,
        began: std::time::Instant,
    ) {
        let error = Arc::new(match error {
            DurableError::Full => LedgerError::Full,
            down @ (DurableError::Unavailable(_) | DurableError::Unfit(_)) => LedgerError::DurableDown(down),
        });
        if on.without_durable == WithoutDurable::HotOnly {
            self.expose(claiming, on).await;
        }
        let mut unmark = Vec::new();
        for item in claiming.open_mut() {
            match (on.without_durable, &item.hot_said) {
                (WithoutDurable::HotOnly, Some(HotSeen::Claimed)) => {
                    item.first(1, Duration::ZERO, on, began, false)
                }
                (WithoutDurable::HotOnly, Some(HotSeen::Processing | HotSeen::Exposed)) => item.in_flight(),
                (WithoutDurable::HotOnly, Some(HotSeen::Done(_) | HotSeen::Long(_)) | None)
                | (WithoutDurable::Refuse, _) => {
                    if item.hot_said == Some(HotSeen::Claimed) {
                        unmark.push((item.ask.key.clone(), item.fence));
                    }
                    item.unavailable(Arc::clone(&error));
                }
            }
        }
        if !unmark.is_empty()
            && let Err(error) = self.hot.release(unmark).await
        {
            self.shared.metrics.hot_failed(&error);
        }
    }

    /// Says in its mark that a claim is nowhere else; where the mark is another's by now, that one goes on.
    async fn expose(&self, claiming: &mut Claiming, on: &Conditions) {
        let marked = |said: &Option<HotSeen>| *said == Some(HotSeen::Claimed);
        let asks: Vec<HotAsk> =
            claiming.open().filter(|item| marked(&item.hot_said)).map(|item| item.hot_ask(on)).collect();
        if asks.is_empty() {
            return;
        }
        let said = self.hot.mark(Marking::Expose, &asks).await;
        let said = said.inspect_err(|error| self.shared.metrics.hot_failed(error));
        // No answer is no claim.
        let mut said = said.unwrap_or_default().into_iter();
        for item in claiming.open_mut().filter(|item| marked(&item.hot_said)) {
            item.hot_said = None;
            match said.next() {
                // Its receipt is the durable store's to give, which is away.
                Some(HotSeen::Long(_)) | None => {}
                Some(seen) => item.hot(seen),
            }
        }
    }

    /// Claims that the durable store gave, though the hot store has another's mark: taken over where they can be, and
    /// given back where that mark is the only claim there is.
    pub(super) async fn yield_to_exposed(&self, claiming: &mut Claiming, seen: &mut [Seen], on: &Conditions) {
        if on.without_durable != WithoutDurable::HotOnly {
            return;
        }
        let claimed = |seen: &Seen| matches!(seen, Seen::Claimed { .. });
        let contested: Vec<_> = claiming
            .open()
            .zip(seen.iter_mut())
            .filter(|(item, seen)| item.hot_said == Some(HotSeen::Processing) && claimed(seen))
            .collect();
        if contested.is_empty() {
            return;
        }
        let asks: Vec<HotAsk> = contested.iter().map(|(item, _)| item.hot_ask(on)).collect();
        let said = match self.hot.mark(Marking::Take, &asks).await {
            Ok(said) => said,
            Err(error) => {
                drop(contested);
                claiming.unheard(&error);
                return self.shared.metrics.hot_failed(&error);
            }
        };
        let mut back = Vec::new();
        for ((item, seen), said) in contested.into_iter().zip(said) {
            if said != HotSeen::Claimed {
                *seen = Seen::Processing { lease_left: on.terms.lease };
                back.push(SettleAsk {
                    digest: item.ask.key.digest(),
                    fence: item.fence,
                    end: End::Release,
                    payload: on.payload.as_ref().map(|payload| payload.id),
                });
            }
        }
        if let Err(error) = self.durable.settle(back).await {
            self.shared.metrics.durable_failed(&error);
        }
    }
}
