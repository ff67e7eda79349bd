//! Handles for deliveries that routes keep in files.

use std::sync::Arc;

use metrics::{Counter, counter};

use super::CAPTURES;

/// What became of deliveries that a route keeps in files.
#[derive(Clone, Debug)]
pub struct Captures {
    pub written: Counter,
    /// Too many were waiting for the disk.
    pub dropped: Counter,
    pub failed: Counter,
}

impl Captures {
    pub(super) fn new(route: &Arc<str>) -> Self {
        let counter =
            |result: &'static str| counter!(CAPTURES, "route" => route.to_string(), "result" => result);
        Self { written: counter("written"), dropped: counter("dropped"), failed: counter("failed") }
    }
}
