//! Whether what other nodes tell is heard, and whether anything may have been missed since. Counts; hears nothing itself.

use std::sync::atomic::{AtomicU64, Ordering};

/// Odd while other nodes are heard; another number after each break. One task changes it.
#[derive(Debug, Default)]
pub(super) struct Hearing(AtomicU64);

impl Hearing {
    /// The subscription stands: whatever is told from now on is heard.
    pub(super) fn begins(&self) {
        self.ends();
        self.0.fetch_add(1, Ordering::Release);
    }

    pub(super) fn ends(&self) {
        if self.0.load(Ordering::Acquire) % 2 == 1 {
            self.0.fetch_add(1, Ordering::Release);
        }
    }

    /// Something was told that couldn't be taken in: what was learned before doesn't count.
    pub(super) fn missed(&self) {
        if self.0.load(Ordering::Acquire) % 2 == 1 {
            self.0.fetch_add(2, Ordering::Release);
        }
    }

    /// The number of the present hearing.
    pub(super) fn unbroken(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Acquire)).filter(|number| number % 2 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_break_makes_another_hearing() {
        let hearing = Hearing::default();
        assert_eq!(hearing.unbroken(), None);
        hearing.begins();
        let first = hearing.unbroken();
        hearing.missed();
        let second = hearing.unbroken();
        hearing.ends();
        hearing.missed();
        assert_eq!(hearing.unbroken(), None);
        hearing.begins();
        let third = hearing.unbroken();
        hearing.begins();
        let seen = [first, second, third, hearing.unbroken()];
        assert!(seen.iter().all(Option::is_some));
        assert!((1..seen.len()).all(|at| !seen[..at].contains(&seen[at])), "{seen:?}");
    }
}
