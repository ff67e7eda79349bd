//! Waiting for an event that is in flight elsewhere. On one node a waiter is woken at once; across nodes by a push,
//! with a look at the durable store as the fallback. A waiter never takes the event over: if the first one wasn't
//! processed, the next copy is forwarded.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::claim::{Fingerprint, Layer, Receipt};
use super::durable::Seen;
use super::hot::Watched;
use super::in_flight::{Ended, Place, Seat};
use super::{Ask, Ledger};
use crate::clock::monotonic;

/// How often the durable store is looked at while no push can be expected.
const POLL: Duration = Duration::from_millis(30);
/// The same while another node promised a push.
const POLL_PUSHED: Duration = Duration::from_millis(500);

/// A copy of an event that is in flight.
#[derive(Debug)]
pub struct Waiter {
    ask: Ask,
    place: Waiting,
}

#[derive(Debug)]
enum Waiting {
    /// Behind another request of this node.
    Queued(oneshot::Receiver<Ended>),
    /// Another node has it; this is the request of this node that listens.
    Elsewhere(Seat),
}

/// How waiting ended.
#[derive(Debug)]
pub enum Waited {
    Done {
        receipt: Arc<Receipt>,
        layer: Layer,
        conflict: Option<Fingerprint>,
    },
    Held,
    /// Still in flight, or not processed: the sender must come again.
    NotDone,
}

impl Waiter {
    pub(super) fn queued(ask: Ask, hear: oneshot::Receiver<Ended>) -> Self {
        Self { ask, place: Waiting::Queued(hear) }
    }

    /// What waits.
    pub fn ask(&self) -> &Ask {
        &self.ask
    }

    pub(super) fn elsewhere(ask: Ask, seat: Seat) -> Self {
        Self { ask, place: Waiting::Elsewhere(seat) }
    }
}

impl Ledger {
    /// Waits until the event ended, at most until `deadline` (on this process's monotonic clock).
    pub async fn wait(&self, waiter: Waiter, deadline: Instant) -> Waited {
        let Waiter { ask, mut place } = waiter;
        loop {
            let ended = match place {
                Waiting::Elsewhere(seat) => {
                    let ended = self.listen(&ask, &seat, deadline).await;
                    seat.leave(&ended);
                    return waited(&ask, ended);
                }
                Waiting::Queued(hear) => tokio::time::timeout_at(deadline.into(), hear).await,
            };
            match ended {
                Err(_late) => return Waited::NotDone,
                // The one who sat there gave up before this copy's patience ended: sit down instead.
                Ok(Ok(Ended::Unknown) | Err(_)) if monotonic() < deadline => {
                    place = match self.shared.in_flight.sit(ask.key.digest()) {
                        Place::Seat(seat) => Waiting::Elsewhere(seat),
                        Place::Queue(hear) => Waiting::Queued(hear),
                    };
                }
                Ok(Ok(ended)) => return waited(&ask, ended),
                Ok(Err(_gone)) => return Waited::NotDone,
            }
        }
    }

    /// Hears how an event ends that another node is processing.
    async fn listen(&self, ask: &Ask, seat: &Seat, deadline: Instant) -> Ended {
        let bell = seat.bell();
        loop {
            let mut exposed = false;
            let pause = match self.hot.watch(&ask.key).await {
                Ok(Watched::Done(done)) => {
                    return Ended::Done(Arc::new(done.receipt), Layer::Waited, done.fingerprint);
                }
                Ok(Watched::Watching) => POLL_PUSHED,
                Ok(Watched::WatchingExposed) => {
                    exposed = true;
                    POLL_PUSHED
                }
                Ok(Watched::Long(_) | Watched::Absent) | Err(_) => POLL,
            };
            match self.durable.peek(vec![ask.key.digest()]).await.map(|mut seen| seen.pop().flatten()) {
                Ok(Some(Seen::Done { receipt, fingerprint, .. })) => {
                    return Ended::Done(Arc::new(receipt), Layer::Waited, fingerprint);
                }
                Ok(Some(Seen::Held)) => return Ended::Held,
                // The durable store can't tell of a claim that it knows nothing of.
                Ok(Some(Seen::Processing { .. } | Seen::Claimed { .. }) | None) if exposed => {}
                Ok(Some(Seen::Processing { lease_left })) if lease_left.is_zero() => return Ended::Released,
                Ok(Some(Seen::Claimed { .. }) | None) => return Ended::Released,
                Ok(Some(Seen::Processing { .. })) | Err(_) => {}
            }
            let now = monotonic();
            if now >= deadline {
                return Ended::Unknown;
            }
            let until = deadline.min(now + pause);
            // Rung or not, the next round looks.
            drop(tokio::time::timeout_at(until.into(), bell.notified()).await);
        }
    }
}

fn waited(ask: &Ask, ended: Ended) -> Waited {
    match ended {
        Ended::Done(receipt, layer, processed) => Waited::Done {
            receipt,
            layer,
            conflict: (processed != ask.fingerprint).then_some(processed),
        },
        Ended::Held => Waited::Held,
        Ended::Released | Ended::Unknown => Waited::NotDone,
    }
}
