//! What one request came to, and its last word to counters, log and trace.

use std::time::Duration;

use bytes::Bytes;
use http::Response;

use crate::metrics::Answer;
use crate::trace::{Event, Trace};

/// What one request came to, for the log and the counters.
pub(super) struct Done {
    pub(super) answer: Response<Bytes>,
    pub(super) class: Answer,
    pub(super) said: &'static str,
    /// The key, shortened, of the first item that was forwarded; where none was, of the first item.
    pub(super) key: Option<String>,
    /// How many items the request had, and how many of them the app was spared.
    pub(super) items: usize,
    pub(super) removed: usize,
    pub(super) attempt: u32,
    /// How long the app had it, and how long it waited for another copy: not the gateway's own time.
    pub(super) elsewhere: Duration,
    pub(super) trace: Trace,
}

impl Done {
    /// Its answer; its trace is told how it ended, and is on its way.
    pub(super) fn traced(self) -> Response<Bytes> {
        let Self { answer, class, said, key, attempt, trace, .. } = self;
        trace.finish(answer.status(), Event { verdict: said, answer: class.label(), key, attempt });
        answer
    }
}
