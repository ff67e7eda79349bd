//! When another batch may leave although one is under way. Pure: durations come from outside.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

/// Fewer waiting writes never leave beside a batch: a commit costs as much processor time as some twenty rows, and what
/// waits shares the next one.
const WORTH_A_COMMIT: usize = 16;
/// Where even the quickest of the recent batches took so long, a disk or a replica is slow, and not the processor.
const SLOW: Duration = Duration::from_micros(2500);
/// On such a database batches leave this far apart at the least …
const APART_MIN: Duration = Duration::from_millis(2);
/// … and are no smaller than this part of the largest one under way.
const SLOW_SHARE: usize = 4;
/// Batches after which an older one's duration is forgotten: at the latest after twice as many.
const RECENT: u32 = 32;

/// What recent batches tell.
#[derive(Debug)]
pub(super) struct Pace {
    quickest_before: Duration,
    quickest: Duration,
    counted: u32,
}

impl Default for Pace {
    fn default() -> Self {
        Self { quickest_before: Duration::ZERO, quickest: Duration::MAX, counted: 0 }
    }
}

impl Pace {
    /// Notes how long a batch took.
    pub(super) fn took(&mut self, duration: Duration) {
        self.quickest = self.quickest.min(duration);
        self.counted += 1;
        if self.counted == RECENT {
            *self = Self { quickest_before: self.quickest, ..Self::default() };
        }
    }

    /// How long after another one a small batch may leave; `None` where commits are quick, and it had better wait for what
    /// is under way.
    pub(super) fn apart(&self) -> Option<Duration> {
        let quickest = self.quickest.min(self.quickest_before);
        (quickest >= SLOW).then(|| APART_MIN.max(quickest / 2))
    }
}

/// Tells the writer that enough writes wait for another batch.
#[derive(Debug)]
pub(super) struct Crowd {
    enough: AtomicUsize,
    told: Notify,
}

impl Default for Crowd {
    fn default() -> Self {
        Self { enough: AtomicUsize::new(usize::MAX), told: Notify::new() }
    }
}

impl Crowd {
    /// Sets how many are enough beside a batch of so many writes: as many, so that two at once don't make batches smaller;
    /// fewer where the database is slow and the last one left a while ago.
    pub(super) fn beside(&self, largest: usize, slow: bool) {
        let enough = if slow { (largest / SLOW_SHARE).max(1) } else { largest.max(WORTH_A_COMMIT) };
        self.enough.store(enough, Ordering::Relaxed);
    }

    pub(super) fn is_enough(&self, waiting: usize) -> bool {
        waiting >= self.enough.load(Ordering::Relaxed)
    }

    pub(super) fn tell(&self, waiting: usize) {
        if self.is_enough(waiting) {
            self.told.notify_one();
        }
    }

    pub(super) async fn told(&self) {
        self.told.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    #[test]
    fn one_quick_batch_among_the_recent_shows_that_commits_are_quick() {
        let mut pace = Pace::default();
        for _ in 0..RECENT {
            assert_eq!(pace.apart(), None);
            pace.took(6 * MILLI);
        }
        assert_eq!(pace.apart(), Some(3 * MILLI));
        pace.took(MILLI);
        for _ in 0..RECENT {
            assert_eq!(pace.apart(), None);
            pace.took(3 * MILLI);
        }
        for _ in 0..RECENT {
            pace.took(3 * MILLI);
        }
        assert_eq!(pace.apart(), Some(APART_MIN));
    }

    #[test]
    fn enough_is_as_many_as_are_under_way_and_on_a_slow_database_a_share_of_them() {
        let crowd = Crowd::default();
        for (largest, slow, enough) in
            [(3, false, WORTH_A_COMMIT), (40, false, 40), (40, true, 40 / SLOW_SHARE), (3, true, 1)]
        {
            crowd.beside(largest, slow);
            assert!(crowd.is_enough(enough) && !crowd.is_enough(enough - 1), "{largest} {slow}");
        }
    }
}
