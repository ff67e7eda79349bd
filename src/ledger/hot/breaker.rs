//! Keeps requests from waiting on a Redis that does not answer. Decides by counting only; who probes is
//! somebody else's work, off the request path.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};

use tokio::sync::Notify;

/// How many failures in a row open it. A lost connection opens it at once.
const FAILURES_MAX: u32 = 3;
/// The nodes of a cluster fail one by one, and an answer of one says nothing of another. So failures are counted by
/// where the key lies, this many slots together: nodes own long runs of them.
const PART_SLOTS: u16 = 256;
const PARTS: usize = 64;

/// Whether Redis is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    Closed,
    Open,
}

/// What the connections to Redis went through since the start, for the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HotCounts {
    /// Calls that met their deadline.
    pub slow: u64,
    /// Calls that Redis, or the lost connection to it, refused.
    pub refused: u64,
    /// Calls that an open breaker turned away.
    pub rested: u64,
    /// Times that a breaker opened.
    pub opened: u64,
    /// Ends told by other nodes that found no room in our queue; the fallback poll finds them.
    pub pushes_dropped: u64,
    /// Values in Redis that we did not write.
    pub unreadable: u64,
}

/// The counters of one node, shared by its connections.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) slow: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) rested: AtomicU64,
    pub(super) opened: AtomicU64,
    pub(super) pushes_dropped: AtomicU64,
    pub(super) unreadable: AtomicU64,
    /// How many connections rest now.
    open_now: AtomicU32,
}

impl Counters {
    pub(super) fn read(&self) -> HotCounts {
        HotCounts {
            slow: self.slow.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            rested: self.rested.load(Ordering::Relaxed),
            opened: self.opened.load(Ordering::Relaxed),
            pushes_dropped: self.pushes_dropped.load(Ordering::Relaxed),
            unreadable: self.unreadable.load(Ordering::Relaxed),
        }
    }

    /// Open while any connection of the node rests.
    pub(super) fn state(&self) -> BreakerState {
        match self.open_now.load(Ordering::Relaxed) {
            0 => BreakerState::Closed,
            _ => BreakerState::Open,
        }
    }
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// One connection's breaker. Each connection has its own: one that is cut must not rest the others, nor may
/// their health send requests into it.
#[derive(Debug)]
pub(super) struct Breaker {
    open: AtomicBool,
    /// Failures since the last answer from the same part; `by_part` has each part's share.
    failures: AtomicU32,
    by_part: [AtomicU32; PARTS],
    /// The slot that failed last: where a probe has to ask.
    suspect: AtomicU16,
    changed: Notify,
    counters: Arc<Counters>,
}

impl Breaker {
    /// Open until the first probe says otherwise.
    pub(super) fn new(counters: Arc<Counters>) -> Self {
        counters.open_now.fetch_add(1, Ordering::Relaxed);
        Self {
            open: AtomicBool::new(true),
            failures: AtomicU32::new(0),
            by_part: std::array::from_fn(|_| AtomicU32::new(0)),
            suspect: AtomicU16::new(0),
            changed: Notify::new(),
            counters,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// Redis answered a call on a key of this slot, which is worked out only where something failed before.
    pub(super) fn answered(&self, slot: impl FnOnce() -> u16) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            let redeemed = self.part(slot()).swap(0, Ordering::Relaxed);
            self.failures.fetch_sub(redeemed.min(self.failures.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
    }

    /// A call on a key of this slot failed; `lost` where no later one can fare better.
    pub(super) fn failed(&self, slot: u16, lost: bool) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        self.part(slot).fetch_add(1, Ordering::Relaxed);
        self.suspect.store(slot, Ordering::Relaxed);
        if (lost || failures >= FAILURES_MAX) && self.open() {
            count(&self.counters.opened);
            tracing::warn!("redis does not answer: the durable store decides alone until it does");
        }
    }

    /// The slot that failed last.
    pub(super) fn suspect(&self) -> u16 {
        self.suspect.load(Ordering::Relaxed)
    }

    fn part(&self, slot: u16) -> &AtomicU32 {
        &self.by_part[usize::from(slot / PART_SLOTS) % PARTS]
    }

    /// Opens it; false where it was open.
    pub(super) fn open(&self) -> bool {
        let opened = !self.open.swap(true, Ordering::Relaxed);
        if opened {
            self.counters.open_now.fetch_add(1, Ordering::Relaxed);
            self.changed.notify_waiters();
        }
        opened
    }

    /// A probe succeeded.
    pub(super) fn close(&self) {
        self.failures.store(0, Ordering::Relaxed);
        self.by_part.iter().for_each(|part| part.store(0, Ordering::Relaxed));
        if self.open.swap(false, Ordering::Relaxed) {
            self.counters.open_now.fetch_sub(1, Ordering::Relaxed);
            self.changed.notify_waiters();
        }
    }

    /// Waits until it is open, or closed.
    pub(super) async fn wait_until(&self, open: bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Registered before looking, so that a change in between is not missed.
            changed.as_mut().enable();
            if self.is_open() == open {
                return;
            }
            changed.await;
        }
    }
}

impl Drop for Breaker {
    fn drop(&mut self) {
        if self.is_open() {
            self.counters.open_now.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closed() -> Breaker {
        let breaker = Breaker::new(Arc::default());
        breaker.close();
        breaker
    }

    #[test]
    fn one_silent_node_of_a_cluster_opens_it_though_the_others_answer() {
        let breaker = closed();
        for _ in 0..FAILURES_MAX {
            assert!(!breaker.is_open());
            breaker.failed(9000, false);
            breaker.answered(|| 100);
        }
        assert!(breaker.is_open());
        assert_eq!(breaker.suspect(), 9000);
    }

    #[test]
    fn an_answer_redeems_the_failures_of_its_own_part() {
        let breaker = closed();
        for _ in 0..10 {
            breaker.failed(9000, false);
            breaker.failed(9001, false);
            breaker.answered(|| 9002);
        }
        assert!(!breaker.is_open());
        breaker.failed(1, true);
        assert!(breaker.is_open(), "a lost connection opens it at once");
    }
}
