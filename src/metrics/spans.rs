//! Handles for the spans of traces.

use metrics::{Counter, counter};

use super::{SPANS, wide};

/// What became of spans.
#[derive(Clone, Debug)]
pub struct Spans {
    exported: Counter,
    dropped: Counter,
    failed: Counter,
}

impl Spans {
    pub fn new() -> Self {
        let result = |result: &'static str| counter!(SPANS, "result" => result);
        Self { exported: result("exported"), dropped: result("dropped"), failed: result("failed") }
    }

    /// The collector has taken them.
    pub fn exported(&self, spans: usize) {
        self.exported.increment(wide(spans));
    }

    /// Too many were waiting for the collector.
    pub fn dropped(&self, spans: usize) {
        self.dropped.increment(wide(spans));
    }

    /// The collector refused them, or could not be reached.
    pub fn failed(&self, spans: usize) {
        self.failed.increment(wide(spans));
    }
}

impl Default for Spans {
    fn default() -> Self {
        Self::new()
    }
}
