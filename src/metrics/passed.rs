//! Counts what passes through without dedup.

use metrics::{Counter, counter};

use super::PASSED;

const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Requests that were passed through without dedup, by the class of their answers.
#[derive(Clone, Debug)]
pub struct Passed([Counter; CLASSES.len()]);

impl Passed {
    pub fn new() -> Self {
        Self(CLASSES.map(|class| counter!(PASSED, "answer" => class)))
    }

    /// One was answered with this status.
    pub fn answered(&self, status: http::StatusCode) {
        let class = usize::from(status.as_u16() / 100).clamp(1, CLASSES.len());
        self.0[class - 1].increment(1);
    }
}

impl Default for Passed {
    fn default() -> Self {
        Self::new()
    }
}
