//! The only caller of the system clock. Leases and windows are judged by the durable store's clock, never
//! by this one: what is read here stamps logs and receipts, and checks how old a signature is.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Milliseconds since the Unix epoch, UTC. Zero for a clock set before 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnixMillis(pub u64);

impl UnixMillis {
    /// Whole seconds since the Unix epoch.
    pub fn seconds(self) -> u64 {
        self.0 / 1000
    }

    /// RFC 3339, UTC, with milliseconds: `2026-08-10T12:00:00.000Z`.
    pub fn rfc3339(self) -> String {
        let (days, rest) = (self.seconds() / 86_400, self.seconds() % 86_400);
        let (year, month, day) = civil(days);
        let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
        let millis = self.0 % 1000;
        let mut text = String::with_capacity(24);
        // By hand: every request's log line carries one, and the formatting machinery costs ten times this.
        for (number, width, after) in [
            (year, 4, '-'),
            (month, 2, '-'),
            (day, 2, 'T'),
            (hour, 2, ':'),
            (minute, 2, ':'),
            (second, 2, '.'),
            (millis, 3, 'Z'),
        ] {
            for place in (0..width).rev() {
                let digit = number / 10_u64.pow(place) % 10;
                text.push(char::from(b'0' + u8::try_from(digit).expect("a digit")));
            }
            text.push(after);
        }
        text
    }
}

/// Year, month and day of a count of days since 1970-01-01, by the Gregorian calendar.
fn civil(days: u64) -> (u64, u64, u64) {
    // Counted from 0000-03-01, a leap day is the last day of its year, and a 400-year era has a fixed length.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day_of_year - (153 * shifted + 2) / 5 + 1)
}

/// Where the wall time comes from; the fixed one is for checks that replay a recorded delivery.
#[derive(Clone, Copy, Debug, Default)]
pub enum Clock {
    #[default]
    System,
    Fixed(UnixMillis),
}

impl Clock {
    /// The wall time now.
    pub fn now(self) -> UnixMillis {
        match self {
            Self::System => system_now(),
            Self::Fixed(at) => at,
        }
    }
}

/// A monotonic reading, for durations within one process.
#[expect(clippy::disallowed_methods, reason = "this file is the one place that may")]
pub fn monotonic() -> Instant {
    Instant::now()
}

/// Says of something that may happen very often when it is due to be told again: a log line once in a while, not
/// thousands.
#[derive(Debug)]
pub struct Seldom {
    every: Duration,
    last: Mutex<Option<Instant>>,
}

impl Seldom {
    pub const fn every(every: Duration) -> Self {
        Self { every, last: Mutex::new(None) }
    }

    /// True at first, and then at most once in each period. For what is rare or slow anyway: it takes a lock.
    pub fn is_due(&self) -> bool {
        let now = monotonic();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.is_none_or(|last| now.duration_since(last) >= self.every);
        if due {
            *last = Some(now);
        }
        due
    }
}

/// The wall time as precisely as the system tells it, since the Unix epoch: what spans are dated with.
#[expect(clippy::disallowed_methods, reason = "this file is the one place that may")]
pub fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO)
}

fn system_now() -> UnixMillis {
    UnixMillis(u64::try_from(since_epoch().as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_often_is_told_once_in_a_while() {
        let (seldom, always) = (Seldom::every(Duration::from_secs(3600)), Seldom::every(Duration::ZERO));
        assert_eq!([seldom.is_due(), seldom.is_due(), seldom.is_due()], [true, false, false]);
        assert_eq!([always.is_due(), always.is_due()], [true, true]);
    }

    #[test]
    fn times_are_written_as_rfc_3339() {
        let table = [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_786_363_200_000, "2026-08-10T12:00:00.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ];
        for (millis, text) in table {
            assert_eq!(UnixMillis(millis).rfc3339(), text);
        }
    }
}
