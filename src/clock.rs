//! The only caller of the system clock. Leases and windows are judged by the durable store's clock, never
//! by this one: what is read here stamps logs and receipts, and checks how old a signature is.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Milliseconds since the Unix epoch, UTC. Zero for a clock set before 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnixMillis(pub u64);

impl UnixMillis {
    /// Whole seconds since the Unix epoch.
    pub fn seconds(self) -> u64 {
        self.0 / 1000
    }
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

#[expect(clippy::disallowed_methods, reason = "this file is the one place that may")]
fn system_now() -> UnixMillis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    UnixMillis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
