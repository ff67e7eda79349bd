//! Handles for the configuration's file, read again.

use std::time::Duration;

use metrics::{Counter, Gauge, counter, gauge};

use super::{RELOADED, RELOADED_AT, RELOADS};

/// What became of the configuration file.
#[derive(Clone, Debug)]
pub struct Reloads {
    good: Counter,
    bad: Counter,
    last_good: Gauge,
    last_at: Gauge,
}

impl Reloads {
    /// The start counts as read, not as read again. Times are since the Unix epoch.
    pub fn new(read_at: Duration) -> Self {
        let reloads = Self {
            good: counter!(RELOADS, "result" => "success"),
            bad: counter!(RELOADS, "result" => "failure"),
            last_good: gauge!(RELOADED),
            last_at: gauge!(RELOADED_AT),
        };
        reloads.runs_since(read_at);
        reloads
    }

    pub fn succeeded(&self, at: Duration) {
        self.good.increment(1);
        self.runs_since(at);
    }

    pub fn failed(&self) {
        self.bad.increment(1);
        self.last_good.set(0.0);
    }

    fn runs_since(&self, at: Duration) {
        self.last_good.set(1.0);
        self.last_at.set(at.as_secs_f64());
    }
}
