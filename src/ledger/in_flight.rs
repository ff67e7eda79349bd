//! Who on this node is busy with which event, and who waits for it. Parallel copies of one event meet here first,
//! so that one of them asks the stores and the others hear what became of it, at once. Holds no verdict of its own:
//! a seat is only a place to wait, the stores decide.

use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};

use super::claim::{Digest, DigestMap, DigestSet, Fingerprint, Layer, Receipt};

/// A power of two: the top bits of a digest pick the shard.
const SHARDS: usize = 64;

/// What became of the event that a copy waited for.
#[derive(Clone, Debug)]
pub(super) enum Ended {
    /// Done; the layer is the one that knew, or `Waited` where it was processed meanwhile. The fingerprint is that of
    /// the item that was processed.
    Done(Arc<Receipt>, Layer, Fingerprint),
    /// Not processed: the next copy passes.
    Released,
    /// With the fingerprint of the item that is held.
    Held(Fingerprint),
    /// The one who sat here gave up or vanished; nobody knows.
    Unknown,
}

/// All seats of this node.
#[derive(Debug)]
pub(super) struct InFlight {
    shards: [Mutex<DigestMap<Waiting>>; SHARDS],
    /// Seats with a bell.
    listening: AtomicUsize,
}

#[derive(Debug)]
struct Waiting {
    copies: Vec<oneshot::Sender<Ended>>,
    /// Rung when another node says that it settled the event.
    bell: Option<Arc<Bell>>,
}

/// What a request hears that listens to other nodes: which of its events they have settled.
#[derive(Debug, Default)]
pub(super) struct Bell {
    /// No more than the request's seats.
    rung: Mutex<DigestSet>,
    wake: Notify,
}

impl Bell {
    fn ring(&self, digest: Digest) {
        lock(&self.rung).insert(digest);
        self.wake.notify_one();
    }

    /// Waits until it is rung; for which events.
    pub(super) async fn rung(&self) -> DigestSet {
        self.wake.notified().await;
        std::mem::take(&mut *lock(&self.rung))
    }
}

/// The outcome of [`InFlight::sit`].
#[derive(Debug)]
pub(super) enum Place {
    /// Nobody else here is busy with the event: ask the stores, then say how it ended.
    Seat(Seat),
    /// Somebody is; this hears how it ended.
    Queue(oneshot::Receiver<Ended>),
}

/// The one place per event on this node. Dropped without [`Seat::leave`], it tells the queue `Unknown`.
#[derive(Debug)]
pub(super) struct Seat {
    all: Arc<InFlight>,
    digest: Digest,
    left: bool,
}

/// A seat that was taken before the event is claimed: whoever claims it sits down there. Let go, it is free again.
#[derive(Clone, Debug, Default)]
pub struct Reserved(Arc<Mutex<Option<Seat>>>);

impl Reserved {
    pub(super) fn of(seat: Seat) -> Self {
        Self(Arc::new(Mutex::new(Some(seat))))
    }

    pub(super) fn take(&self) -> Option<Seat> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl InFlight {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { shards: std::array::from_fn(|_| Mutex::default()), listening: AtomicUsize::new(0) })
    }

    /// Takes the event's seat, or queues behind whoever has it.
    pub(super) fn sit(self: &Arc<Self>, digest: Digest) -> Place {
        match self.shard(digest).entry(digest) {
            Entry::Vacant(free) => {
                free.insert(Waiting { copies: Vec::new(), bell: None });
                Place::Seat(Seat { all: Arc::clone(self), digest, left: false })
            }
            Entry::Occupied(mut taken) => {
                let (tell, hear) = oneshot::channel();
                taken.get_mut().copies.push(tell);
                Place::Queue(hear)
            }
        }
    }

    /// Another node settled this event: whoever sits here waiting for that looks now.
    pub(super) fn ring(&self, digest: Digest) {
        if let Some(bell) = self.shard(digest).get(&digest).and_then(|waiting| waiting.bell.as_ref()) {
            bell.ring(digest);
        }
    }

    /// Events that this node is busy with.
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    /// Events that requests of this node listen for to other nodes.
    pub(super) fn listening(&self) -> usize {
        self.listening.load(Ordering::Relaxed)
    }

    fn shard(&self, digest: Digest) -> MutexGuard<'_, DigestMap<Waiting>> {
        // The other end of the digest is what the shard's map goes by.
        let low = usize::try_from(digest.0 & 0xff).expect("eight bits fit");
        lock(&self.shards[low % SHARDS])
    }

    fn end(&self, digest: Digest, ended: &Ended) {
        let waiting = self.shard(digest).remove(&digest);
        if waiting.as_ref().is_some_and(|waiting| waiting.bell.is_some()) {
            self.listening.fetch_sub(1, Ordering::Relaxed);
        }
        for copy in waiting.into_iter().flat_map(|waiting| waiting.copies) {
            // A copy whose sender hung up meanwhile doesn't listen any more.
            drop(copy.send(ended.clone()));
        }
    }
}

impl Seat {
    /// Ends the wait of everyone queued here.
    pub(super) fn leave(mut self, ended: &Ended) {
        self.left = true;
        self.all.end(self.digest, ended);
    }

    /// Tells those who wait so far, and keeps the seat: the event is done, but not yet recorded.
    pub(super) fn tell(&self, ended: &Ended) {
        let copies = match self.all.shard(self.digest).get_mut(&self.digest) {
            Some(waiting) => std::mem::take(&mut waiting.copies),
            None => Vec::new(),
        };
        for copy in copies {
            drop(copy.send(ended.clone()));
        }
    }

    /// Has this rung when another node says that it settled this event.
    pub(super) fn hear_by(&self, bell: &Arc<Bell>) {
        let mut shard = self.all.shard(self.digest);
        if let Some(waiting) = shard.get_mut(&self.digest)
            && waiting.bell.replace(Arc::clone(bell)).is_none()
        {
            self.all.listening.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if !self.left {
            self.all.end(self.digest, &Ended::Unknown);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A poisoned map is still a map: every change to it is one call.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_seat_tells_its_queue_and_frees_the_place() {
        let all = InFlight::new();
        let Place::Seat(seat) = all.sit(Digest(1)) else { panic!("the place was free") };
        let Place::Queue(mut hear) = all.sit(Digest(1)) else { panic!("the place was taken") };
        drop(seat);
        assert!(matches!(hear.try_recv(), Ok(Ended::Unknown)));
        assert!(matches!(all.sit(Digest(1)), Place::Seat(_)));
    }

    #[test]
    fn telling_keeps_the_seat_for_later_copies() {
        let all = InFlight::new();
        let Place::Seat(seat) = all.sit(Digest(u128::MAX)) else { panic!("the place was free") };
        let Place::Queue(mut early) = all.sit(Digest(u128::MAX)) else { panic!("the place was taken") };
        seat.tell(&Ended::Held(Fingerprint(1)));
        assert!(matches!(early.try_recv(), Ok(Ended::Held(Fingerprint(1)))));
        let Place::Queue(mut late) = all.sit(Digest(u128::MAX)) else { panic!("the place was taken") };
        assert!(late.try_recv().is_err());
        seat.leave(&Ended::Released);
        assert!(matches!(late.try_recv(), Ok(Ended::Released)));
        assert_eq!(all.len(), 0);
    }
}
