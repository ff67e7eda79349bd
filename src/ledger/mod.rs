//! The ledger: keys, claims, verdicts and receipts across both stores. Knows no HTTP server, route or provider.
//!
//! The order of a claim: what this node knows to be done, a seat among its requests, then the hot store for all keys in one round trip, then
//! the durable store for whatever the hot store doesn't know as done. The durable store decides; the hot store may
//! make the answer sooner, never different.

mod background;
mod claim;
mod claiming;
pub mod durable;
mod exposed;
pub mod hot;
mod in_flight;
mod near;
mod settle;
mod wait;

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::{Clock, monotonic};
use crate::metrics::Stores;
use background::Background;
pub use claim::{
    Claim, Digest, EventKey, Fence, Fingerprint, Layer, OnUnknown, Payload, READABLE_TEXT_MAX, Receipt,
    Settlement, Terms,
};
use claiming::{Claiming, Item};
use durable::{ClaimAsk, Durable, DurableError, Override, Record, Seen, State};
use hot::{Hot, HotAsk, HotSeen, Told};
use in_flight::InFlight;
pub use in_flight::Reserved;
use near::{Near, Since};
pub use settle::Landed;
pub use wait::{Waited, Waiter};

/// How long copies wait for receipts that are too long for the hot store: less than any sender's patience.
const RECEIPTS_WAIT: Duration = Duration::from_secs(2);

/// One item to claim.
#[derive(Clone, Debug)]
pub struct Ask {
    pub key: EventKey,
    pub fingerprint: Fingerprint,
}

impl Ask {
    /// The fingerprint of what was processed under its key, unless it is this ask's own.
    fn unless(&self, processed: Fingerprint) -> Option<Fingerprint> {
        (processed != self.fingerprint).then_some(processed)
    }
}

/// On what conditions a request's items are claimed.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// The route's name, kept with the event for people.
    pub route: Arc<str>,
    pub terms: Terms,
    pub without_durable: WithoutDurable,
    /// The request to store with the claims; present exactly where `terms.on_unknown` is `Hold`.
    pub payload: Option<Arc<Payload>>,
    pub claimed: Option<Claimed>,
}

/// An event that a person has claimed anew already, for a window that begins now ([`Override::Replay`]).
#[derive(Clone, Debug)]
pub struct Claimed {
    pub digest: Digest,
    pub fence: Fence,
    pub attempt: u32,
    pub seat: Reserved,
}

/// What may happen while the durable store can't be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WithoutDurable {
    /// Nothing: the items are `Unavailable`.
    #[default]
    Refuse,
    /// The hot store alone decides; its claims are exposed to what it forgets.
    HotOnly,
}

/// What claiming said of one item.
#[derive(Debug)]
pub enum Verdict {
    First(Claim),
    Duplicate {
        receipt: Arc<Receipt>,
        layer: Layer,
        /// Set where the item's bytes differ from those that were processed: the fingerprint of those.
        conflict: Option<Fingerprint>,
    },
    /// In flight elsewhere, on this node or another; [`Ledger::wait`] hears how it ends.
    InFlight(Waiter),
    /// Parked for a person.
    Held {
        /// As above: the fingerprint of what is parked.
        conflict: Option<Fingerprint>,
    },
    /// No verdict was possible: an error is not a verdict.
    Unavailable(Arc<LedgerError>),
}

/// Why there is no verdict.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    #[error("the durable store cannot be reached")]
    DurableDown(#[source] DurableError),
    #[error("too many writes wait for the durable store")]
    Full,
}

/// One serving thread's handle on the ledger.
#[derive(Clone, Debug)]
pub struct Ledger {
    hot: Hot,
    durable: Durable,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    in_flight: Arc<InFlight>,
    near: Near,
    background: Background,
    clock: Clock,
    metrics: Stores,
    /// Cancelled when the background has ended, after `stop`.
    flushed: CancellationToken,
}

impl Shared {
    /// A person changed the event.
    fn changed(&self, digest: Digest) {
        self.near.forget(digest);
        self.in_flight.dissolve(digest);
    }
}

impl Ledger {
    /// Joins the two stores. `pushes` are what other nodes tell of events; background settling runs on
    /// the calling runtime until `stop`, and is waited for through `tracker`.
    pub fn new(
        (hot, mut pushes): (Hot, tokio::sync::mpsc::Receiver<Told>),
        durable: Durable,
        clock: Clock,
        metrics: Stores,
        (tracker, stop): (&TaskTracker, &CancellationToken),
    ) -> Self {
        let in_flight = InFlight::new();
        let (background, work) = Background::new(metrics.clone());
        let flushed = CancellationToken::new();
        let near = Near::new(hot.near_ttl());
        let flushing = flushed.clone();
        let shared = Arc::new(Shared { in_flight, near, background, clock, metrics, flushed: flushing });
        let ledger = Self { hot, durable, shared };
        let work = work.run(ledger.clone(), stop.clone());
        tracker.spawn(async move {
            work.await;
            flushed.cancel();
        });
        let shared = Arc::clone(&ledger.shared);
        let stop = stop.clone();
        tracker.spawn(async move {
            while let Some(Some(told)) = stop.run_until_cancelled(pushes.recv()).await {
                match told {
                    Told::Ended(digest) => {
                        shared.near.forget(digest);
                        shared.in_flight.ring(digest);
                    }
                    Told::Changed(digest) => shared.changed(digest),
                }
            }
        });
        ledger
    }

    /// A handle whose hot connection, and whose answers, belong to the calling thread's runtime.
    pub async fn on_this_worker(&self, tracker: &TaskTracker) -> Self {
        Self {
            hot: self.hot.on_this_worker().await,
            durable: self.durable.on_this_worker(tracker),
            shared: Arc::clone(&self.shared),
        }
    }

    /// The durable store, for the event API and the sweeper.
    pub fn durable(&self) -> &Durable {
        &self.durable
    }

    /// The hot store, for health and the event API.
    pub fn hot(&self) -> &Hot {
        &self.hot
    }

    /// Events that this node is busy with.
    pub fn in_flight(&self) -> usize {
        self.shared.in_flight.len()
    }

    /// Settlements that the durable store has not recorded yet.
    pub fn unsettled(&self) -> usize {
        self.shared.background.waiting()
    }

    /// Waits until the background has ended, after `stop`: every settlement is recorded or given up.
    pub async fn flushed(&self) {
        self.shared.flushed.cancelled().await;
    }

    /// A person's decision about an event: recorded, and the hot store forgets what it knew. It forgets before, so that
    /// it never knows better than the durable store, whatever becomes of this call; and once more after, for what other
    /// nodes have learned in between. Then nobody waits any more, on any node, for whoever was busy with the event before.
    ///
    /// # Errors
    /// When the durable store gives no answer: then most likely nothing was changed.
    pub async fn change(
        &self,
        record: &Record,
        to: Override,
        actor: &str,
    ) -> Result<Option<(State, Option<State>)>, DurableError> {
        let key = record.event_key();
        self.forget_hot(&key).await;
        let changed = self.durable.change(record.digest, to, actor).await;
        self.forget_hot(&key).await;
        // Nobody was busy with what is replayed, and its own seat is taken already.
        if !matches!(to, Override::Replay { .. }) {
            self.shared.changed(record.digest);
            // A node that isn't told hears of it when the claim that a person ended can't be settled there.
            if let Err(error) = self.hot.changed(&key).await {
                self.shared.metrics.hot_failed(&error);
            }
        }
        changed
    }

    /// Sits down at the place of an event that is held before it is claimed anew: copies that come from then on wait for
    /// what becomes of it. A copy that asks the stores just now doesn't keep the place, however long they take: it can't
    /// claim what is held, and whoever waits behind it looks at the stores, and then waits here.
    pub fn reserve(&self, digest: Digest) -> Reserved {
        Reserved::of(self.shared.in_flight.take_over(digest))
    }

    /// Has the hot store forget an event; where it doesn't answer, as soon as it does: what it remembers of a done
    /// event would go against the person's decision.
    async fn forget_hot(&self, key: &EventKey) {
        self.shared.near.forget(key.digest());
        if let Err(error) = self.hot.forget(key).await {
            self.shared.metrics.hot_failed(&error);
            self.shared.background.forget(key.clone());
        }
    }

    /// Keeps the fingerprint of a copy that differs from the event processed under its key, for people.
    pub fn note_conflict(&self, ask: &Ask) {
        self.durable.note_conflict(ask.key.digest(), ask.fingerprint);
    }

    /// Claims all items of a request at once; verdicts come in the order of the asks. The asks' keys must differ.
    pub async fn claim(&self, asks: Vec<Ask>, on: &Conditions) -> Vec<Verdict> {
        let since = self.since();
        let near = |digest| self.shared.near.known(digest, since.hearing);
        let mut claiming = Claiming::sit(&self.shared.in_flight, asks, on.claimed.as_ref(), near);
        if let Some(claimed) = &on.claimed {
            claiming.take(claimed, on);
        }
        self.ask_hot(&mut claiming, on, since).await;
        self.ask_durable(&mut claiming, on, since).await;
        claiming.verdicts()
    }

    async fn ask_hot(&self, claiming: &mut Claiming, on: &Conditions, since: Since) {
        let asks: Vec<HotAsk> = claiming.open().map(|item| item.hot_ask(on)).collect();
        if asks.is_empty() {
            return;
        }
        let began = monotonic();
        let said = self.hot.claim(&asks).await;
        self.shared.metrics.hot_took(began.elapsed());
        match said {
            Ok(seen) => {
                for (item, seen) in claiming.open_mut().zip(seen) {
                    if let HotSeen::Done(done) = &seen {
                        // How much of the window is left isn't told: the thousandth part can't be much too long.
                        let window = on.terms.hot_ttl / 1000;
                        self.shared.near.remember(item.ask.key.digest(), done, window, since);
                    }
                    item.hot(seen);
                }
            }
            Err(error) => {
                self.shared.metrics.hot_failed(&error);
                claiming.unheard(&error);
            }
        }
        if claiming.long().next().is_some() {
            self.ask_receipts(claiming, on).await;
        }
    }

    /// Receipts that were too long for the hot store are the durable store's to give. It decides where it says that an
    /// event is not done after all; where it says nothing, the copies are answered with what the hot store has.
    async fn ask_receipts(&self, claiming: &mut Claiming, on: &Conditions) {
        let digests = claiming.long().map(|item| item.ask.key.digest()).collect();
        let said = tokio::time::timeout(RECEIPTS_WAIT, self.durable.peek(digests)).await;
        let said = match said {
            Ok(Ok(seen)) => Some(seen),
            Ok(Err(error)) => {
                self.shared.metrics.durable_failed(&error);
                None
            }
            Err(_late) => None,
        };
        let mut seen = said.map(Vec::into_iter);
        let items: Vec<&mut Item> = claiming.long_mut().collect();
        for item in items {
            let Some(long) = item.long.take() else { continue };
            match seen.as_mut().map(|seen| seen.next().flatten()) {
                Some(Some(Seen::Done { receipt, fingerprint, .. })) => {
                    item.done(Arc::new(receipt), Layer::Hot, fingerprint);
                }
                // What the hot store has decided alone, the durable store may not have heard of yet.
                Some(None) if on.without_durable == WithoutDurable::Refuse => {}
                Some(Some(Seen::Claimed { .. } | Seen::Processing { .. } | Seen::Held { .. })) => {}
                Some(None) | None => {
                    let receipt =
                        long.receipt.unwrap_or_else(|| settle::empty_receipt(self.shared.clock.now()));
                    item.done(Arc::new(receipt), Layer::Hot, long.fingerprint);
                }
            }
        }
    }

    async fn ask_durable(&self, claiming: &mut Claiming, on: &Conditions, since: Since) {
        let asks: Vec<ClaimAsk> = claiming
            .open()
            .map(|item| ClaimAsk {
                key: item.ask.key.clone(),
                route: Arc::clone(&on.route),
                fence: item.fence,
                lease: on.terms.lease,
                durable_ttl: on.terms.durable_ttl,
                on_unknown: on.terms.on_unknown,
                fingerprint: item.ask.fingerprint,
                payload: on.payload.clone(),
            })
            .collect();
        if asks.is_empty() {
            return;
        }
        let began = monotonic();
        let said = self.durable.claim(asks).await;
        self.shared.metrics.durable_took(began.elapsed());
        match said {
            Ok(mut seen) => {
                self.yield_to_exposed(claiming, &mut seen, on).await;
                let mut warm = Vec::new();
                for (item, seen) in claiming.open_mut().zip(seen) {
                    warm.extend(item.decided(seen, on, began));
                }
                self.remember(&warm, since);
                if claiming.hears_hot() {
                    self.tell_hot(warm, Vec::new()).await;
                }
            }
            Err(error) => {
                self.shared.metrics.durable_failed(&error);
                self.without_durable(claiming, on, error, began).await;
            }
        }
    }

    /// For what the stores are asked now.
    fn since(&self) -> Since {
        Since { hearing: self.hot.hearing(), asked: monotonic() }
    }
}
