//! Who on this node is busy with which event, and who waits for it. Parallel copies of one event meet here first,
//! so that one of them asks the stores and the others hear what became of it, at once. Holds no verdict of its own:
//! a seat is only a place to wait, the stores decide. A person's change of the event dissolves its seat: whoever sat there
//! speaks for it no more.

use std::collections::hash_map::{Entry, OccupiedEntry};
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
    /// A person changed the event, or the one who sat here has lost its claim: the stores know.
    Changed,
}

/// All seats of this node.
#[derive(Debug)]
pub(super) struct InFlight {
    shards: [Mutex<Shard>; SHARDS],
    /// Seats with a bell.
    listening: AtomicUsize,
}

#[derive(Debug, Default)]
struct Shard {
    events: DigestMap<Waiting>,
    /// How many seats were given here: each has its number, so that one that was dissolved isn't taken for the next one.
    given: u64,
}

#[derive(Debug)]
struct Waiting {
    /// The seat that this queue is behind.
    number: u64,
    /// The one who sits there asks the stores, and hasn't heard of them yet.
    asking: bool,
    /// A person changed the event meanwhile: what the stores say may be from before or after.
    changed: bool,
    copies: Vec<oneshot::Sender<Ended>>,
    /// Rung when another node says that it settled the event, or a person changed it.
    bell: Option<Arc<Bell>>,
}

impl Waiting {
    fn behind(number: u64) -> Self {
        Self { number, asking: true, changed: false, copies: Vec::new(), bell: None }
    }
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

/// The one place per event on this node. Dropped without [`Seat::leave`], it tells the queue `Unknown`. Once it is
/// dissolved it tells nobody anything.
#[derive(Debug)]
pub(super) struct Seat {
    all: Arc<InFlight>,
    digest: Digest,
    number: u64,
    left: bool,
}

/// A seat that was taken before the event is claimed: whoever claims it sits down there. Let go, it is free again.
#[derive(Clone, Debug)]
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
        let mut shard = self.shard(digest);
        let Shard { events, given } = &mut *shard;
        match events.entry(digest) {
            Entry::Vacant(free) => {
                *given += 1;
                free.insert(Waiting::behind(*given));
                Place::Seat(Seat { all: Arc::clone(self), digest, number: *given, left: false })
            }
            Entry::Occupied(mut taken) => {
                let (tell, hear) = oneshot::channel();
                taken.get_mut().copies.push(tell);
                Place::Queue(hear)
            }
        }
    }

    /// Takes the event's seat whoever has it: that one is dissolved, though it may be asking the stores. Only for an event
    /// that nobody who is asking can claim.
    pub(super) fn take_over(self: &Arc<Self>, digest: Digest) -> Seat {
        let mut shard = self.shard(digest);
        let Shard { events, given } = &mut *shard;
        *given += 1;
        let number = *given;
        let before = events.insert(digest, Waiting::behind(number));
        drop(shard);
        if let Some(before) = before {
            self.dissolved(digest, before);
        }
        Seat { all: Arc::clone(self), digest, number, left: false }
    }

    /// Another node settled this event: whoever sits here waiting for that looks now.
    pub(super) fn ring(&self, digest: Digest) {
        if let Some(bell) = self.shard(digest).events.get(&digest).and_then(|waiting| waiting.bell.as_ref()) {
            bell.ring(digest);
        }
    }

    /// A person changed the event: the next copy takes a new seat, and who waits so far asks the stores anew. Where a copy
    /// is asking them now, that is put off until it has heard: it may claim the event, and who waits for it shall see that
    /// claim. Of a claim since the change, copies then hear as they do of one on another node.
    pub(super) fn dissolve(&self, digest: Digest) {
        let mut shard = self.shard(digest);
        let Entry::Occupied(mut taken) = shard.events.entry(digest) else { return };
        if taken.get().asking {
            taken.get_mut().changed = true;
            return;
        }
        let waiting = taken.remove();
        drop(shard);
        self.dissolved(digest, waiting);
    }

    fn dissolved(&self, digest: Digest, waiting: Waiting) {
        if let Some(bell) = &waiting.bell {
            bell.ring(digest);
        }
        self.tell(waiting, &Ended::Changed);
    }

    /// Events that this node is busy with.
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).events.len()).sum()
    }

    /// Events that requests of this node listen for to other nodes.
    pub(super) fn listening(&self) -> usize {
        self.listening.load(Ordering::Relaxed)
    }

    fn shard(&self, digest: Digest) -> MutexGuard<'_, Shard> {
        lock(&self.shards[digest.shard() % SHARDS])
    }

    /// Ends the wait of these copies, whose seat is gone.
    fn tell(&self, waiting: Waiting, ended: &Ended) {
        if waiting.bell.is_some() {
            self.listening.fetch_sub(1, Ordering::Relaxed);
        }
        for copy in waiting.copies {
            // A copy whose sender hung up meanwhile doesn't listen any more.
            drop(copy.send(ended.clone()));
        }
    }
}

impl Seat {
    /// Ends the wait of everyone queued here.
    pub(super) fn leave(mut self, ended: &Ended) {
        self.left = true;
        self.end(ended);
    }

    /// Tells those who wait so far, and keeps the seat: the event is done, but not yet recorded.
    pub(super) fn tell(&self, ended: &Ended) {
        let copies = self.here(&mut self.all.shard(self.digest)).map(|mut here| {
            let waiting = here.get_mut();
            std::mem::take(&mut waiting.copies)
        });
        for copy in copies.into_iter().flatten() {
            drop(copy.send(ended.clone()));
        }
    }

    /// The stores have answered, and who sits here stays: with its claim, or to listen to another node.
    pub(super) fn asked(&self) {
        let mut shard = self.all.shard(self.digest);
        let Some(mut here) = self.here(&mut shard) else { return };
        here.get_mut().asking = false;
        if here.get().changed {
            let waiting = here.remove();
            drop(shard);
            self.all.tell(waiting, &Ended::Changed);
        }
    }

    /// Has this rung when another node says that it settled this event, or a person changed it; false where the seat is
    /// dissolved already.
    pub(super) fn hear_by(&self, bell: &Arc<Bell>) -> bool {
        self.asked();
        let mut shard = self.all.shard(self.digest);
        let Some(mut here) = self.here(&mut shard) else { return false };
        if here.get_mut().bell.replace(Arc::clone(bell)).is_none() {
            self.all.listening.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    /// Whether a person changed the event since it was taken.
    pub(super) fn is_dissolved(&self) -> bool {
        self.here(&mut self.all.shard(self.digest)).is_none()
    }

    fn end(&self, ended: &Ended) {
        let waiting = self.here(&mut self.all.shard(self.digest)).map(OccupiedEntry::remove);
        if let Some(waiting) = waiting {
            let ended = if waiting.changed { &Ended::Changed } else { ended };
            self.all.tell(waiting, ended);
        }
    }

    /// The queue behind this seat, which a later one of the same event isn't.
    fn here<'a>(&self, shard: &'a mut Shard) -> Option<OccupiedEntry<'a, Digest, Waiting>> {
        match shard.events.entry(self.digest) {
            Entry::Occupied(taken) if taken.get().number == self.number => Some(taken),
            Entry::Occupied(_) | Entry::Vacant(_) => None,
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if !self.left {
            self.end(&Ended::Unknown);
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

    #[test]
    fn who_sat_at_a_dissolved_seat_has_no_say_at_the_next_one() {
        let all = InFlight::new();
        let digest = Digest(5);
        let Place::Seat(old) = all.sit(digest) else { panic!("the place was free") };
        let Place::Queue(mut early) = all.sit(digest) else { panic!("the place was taken") };
        old.asked();
        all.dissolve(digest);
        assert!(matches!(early.try_recv(), Ok(Ended::Changed)));
        assert!(old.is_dissolved());
        let Place::Seat(new) = all.sit(digest) else { panic!("the place was free again") };
        let Place::Queue(mut late) = all.sit(digest) else { panic!("the place was taken") };
        old.tell(&Ended::Released);
        assert!(!old.hear_by(&Arc::default()));
        old.leave(&Ended::Released);
        assert!(late.try_recv().is_err(), "the old one has told the new one's copy");
        assert!(!new.is_dissolved());
        new.leave(&Ended::Held(Fingerprint(1)));
        assert!(matches!(late.try_recv(), Ok(Ended::Held(Fingerprint(1)))));
        assert_eq!((all.len(), all.listening()), (0, 0));
    }

    #[test]
    fn a_change_while_the_stores_are_asked_is_heard_with_their_answer() {
        // Told at once, a copy looked before the one that it was behind had claimed the event, and gave up.
        let all = InFlight::new();
        let sit = || {
            let Place::Seat(seat) = all.sit(Digest(5)) else { panic!("the place was free") };
            let Place::Queue(mut hear) = all.sit(Digest(5)) else { panic!("the place was taken") };
            all.dissolve(Digest(5));
            assert!(hear.try_recv().is_err(), "the stores have not answered");
            (seat, hear)
        };
        let (claimed, mut hear) = sit();
        claimed.asked();
        assert!(matches!(hear.try_recv(), Ok(Ended::Changed)));
        let (done, mut hear) = sit();
        done.leave(&Ended::Released);
        assert!(matches!(hear.try_recv(), Ok(Ended::Changed)), "that may be from before the change");
        let (listens, mut hear) = sit();
        assert!(!listens.hear_by(&Arc::default()));
        assert!(matches!(hear.try_recv(), Ok(Ended::Changed)));
        drop(claimed);
        assert_eq!((all.len(), all.listening()), (0, 0));
    }

    #[test]
    fn who_asks_the_stores_does_not_keep_the_place_of_what_is_replayed() {
        let all = InFlight::new();
        let Place::Seat(asking) = all.sit(Digest(5)) else { panic!("the place was free") };
        let Place::Queue(mut early) = all.sit(Digest(5)) else { panic!("the place was taken") };
        let replay = all.take_over(Digest(5));
        assert!(matches!(early.try_recv(), Ok(Ended::Changed)));
        let Place::Queue(mut late) = all.sit(Digest(5)) else { panic!("the place was taken") };
        assert!(!asking.hear_by(&Arc::default()));
        asking.leave(&Ended::Held(Fingerprint(1)));
        assert!(late.try_recv().is_err(), "the one before has told the replay's copy");
        replay.leave(&Ended::Released);
        assert!(matches!(late.try_recv(), Ok(Ended::Released)));
        drop(all.take_over(Digest(5)));
        assert_eq!((all.len(), all.listening()), (0, 0));
    }

    #[test]
    fn who_listens_at_a_dissolved_seat_is_rung() {
        let all = InFlight::new();
        let bell: Arc<Bell> = Arc::default();
        let Place::Seat(seat) = all.sit(Digest(5)) else { panic!("the place was free") };
        assert!(seat.hear_by(&bell));
        assert_eq!(all.listening(), 1);
        all.dissolve(Digest(5));
        assert_eq!((all.len(), all.listening()), (0, 0));
        assert!(lock(&bell.rung).contains(&Digest(5)));
        drop(seat);
        assert_eq!(all.listening(), 0);
    }
}
