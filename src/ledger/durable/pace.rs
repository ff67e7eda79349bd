//! When another batch may leave although one is under way. Pure: durations come from outside.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

/// What a row adds to a batch's duration where processors are in short supply.
const ROW: Duration = Duration::from_micros(30);
/// Where even the quickest of the recent batches took so long, less its rows, a disk or a replica is slow. Elsewhere the
/// processor is: there a second batch would only make both smaller, and a commit costs as much as some twenty rows.
const SLOW: Duration = Duration::from_micros(2500);
/// On a slow database batches leave this far apart at the least …
const APART_MIN: Duration = Duration::from_millis(2);
/// … and are no smaller than this part of the largest one under way.
const SHARE: usize = 4;
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
    /// Notes how long a batch of so many rows took.
    pub(super) fn took(&mut self, duration: Duration, rows: usize) {
        let work = ROW * u32::try_from(rows).unwrap_or(u32::MAX);
        self.quickest = self.quickest.min(duration.saturating_sub(work));
        self.counted += 1;
        if self.counted == RECENT {
            *self = Self { quickest_before: self.quickest, ..Self::default() };
        }
    }

    /// How long after another one a batch may leave; `None` where commits are quick, and it waits for what is under way.
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
    /// Sets how many are enough beside a batch of so many writes; none where it isn't time yet.
    pub(super) fn beside(&self, largest: usize, due: bool) {
        let enough = if due { (largest / SHARE).max(1) } else { usize::MAX };
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
            pace.took(7 * MILLI, 10);
        }
        assert_eq!(pace.apart(), Some(3350 * MILLI / 1000));
        pace.took(5 * MILLI, 100);
        for _ in 0..RECENT {
            assert_eq!(pace.apart(), None);
            pace.took(3 * MILLI, 1);
        }
        for _ in 0..RECENT {
            pace.took(3 * MILLI, 1);
        }
        assert_eq!(pace.apart(), Some(APART_MIN));
    }

    #[test]
    fn a_share_of_what_is_under_way_is_enough_once_it_is_time() {
        let crowd = Crowd::default();
        assert!(!crowd.is_enough(1000));
        for (largest, enough) in [(3, 1), (40, 40 / SHARE)] {
            crowd.beside(largest, true);
            assert!(crowd.is_enough(enough) && !crowd.is_enough(enough - 1), "{largest}");
        }
        crowd.beside(3, false);
        assert!(!crowd.is_enough(1000));
    }
}
