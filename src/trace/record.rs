//! What one request leaves behind for its spans: times that were taken anyway and a few small facts. Turned into spans
//! elsewhere and later (`spans.rs`), so that the request doesn't pay for it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Method, Version};

use super::context::{Context, span_id};
use super::tracer::Inner;
use crate::clock::{monotonic, since_epoch};
use crate::config::{RouteConfig, Target};

/// Longest text that is taken from a request, bytes.
const TEXT_BYTES_MAX: usize = 1024;

/// One request under way, or at its end.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) tracer: Arc<Inner>,
    pub(super) context: Context,
    /// The span that the app sees as its parent.
    pub(super) forward: u64,
    /// The span before ours, elsewhere.
    pub(super) parent: Option<u64>,
    /// Said by vendors before us; passed on.
    pub(super) state: String,
    /// A trace that this one is no part of, though it has to do with it.
    pub(super) link: Option<Context>,
    pub(super) kind: Kind,
    pub(super) began: Instant,
    pub(super) wall: Duration,
    pub(super) route: Option<Arc<RouteConfig>>,
    /// When the step under way began.
    pub(super) since: Option<Instant>,
    pub(super) steps: Vec<Step>,
    pub(super) end: Option<End>,
}

/// What the record is of.
#[derive(Debug)]
pub(super) enum Kind {
    Request(Asked),
    /// A person lets a held event through.
    Replay,
    /// Steps beside a request that has its own record.
    Beside,
}

/// The request as it came, as far as spans tell of it.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) method: Method,
    pub(super) secure: bool,
    pub(super) version: Version,
    pub(super) host: String,
    /// Empty where paths are not told.
    pub(super) path: String,
}

/// How a request was answered.
#[derive(Debug)]
pub(super) struct End {
    pub(super) at: Instant,
    pub(super) status: u16,
    pub(super) event: Option<Event>,
}

/// What came of a request of a dedup route.
#[derive(Debug)]
pub struct Event {
    pub verdict: &'static str,
    pub answer: &'static str,
    /// The first item's key, shortened.
    pub key: Option<String>,
    pub attempt: u32,
}

/// One step on the way.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) began: Instant,
    pub(super) took: Duration,
    pub(super) what: What,
}

#[derive(Debug)]
pub(super) enum What {
    Verify { right: bool },
    Claim(Verdicts),
    Forward { target: Target, answer: Answer },
    Settle { settlement: &'static str, items: usize, lease_lost: usize, unsettled: usize },
    Wait { items: usize, late: bool },
}

/// The verdicts on a request's items, counted.
#[derive(Debug, Default)]
pub(super) struct Verdicts {
    pub(super) items: usize,
    pub(super) first: usize,
    /// First, and only the hot store knows.
    pub(super) exposed: usize,
    pub(super) hot: usize,
    pub(super) durable: usize,
    pub(super) waited: usize,
    pub(super) in_flight: usize,
    pub(super) held: usize,
    pub(super) unavailable: usize,
}

/// What the app said.
#[derive(Debug)]
pub(super) enum Answer {
    Status(u16),
    Nothing { outcome: &'static str, error: &'static str },
}

impl Record {
    pub(super) fn new(tracer: Arc<Inner>, context: Context, kind: Kind) -> Self {
        Self {
            tracer,
            context,
            forward: span_id(),
            parent: None,
            state: String::new(),
            link: None,
            kind,
            began: monotonic(),
            wall: since_epoch(),
            route: None,
            since: None,
            steps: Vec::new(),
            end: None,
        }
    }

    /// A record for steps beside this one's.
    pub(super) fn beside(&self) -> Self {
        Self {
            tracer: Arc::clone(&self.tracer),
            parent: self.parent,
            state: self.state.clone(),
            link: self.link,
            began: self.began,
            wall: self.wall,
            route: self.route.clone(),
            forward: self.forward,
            context: self.context,
            kind: Kind::Beside,
            since: None,
            steps: Vec::new(),
            end: None,
        }
    }

    /// How many spans it makes.
    pub(super) fn spans(&self) -> usize {
        let own = match self.kind {
            Kind::Request(_) | Kind::Replay => 1,
            Kind::Beside => 0,
        };
        own + self.steps.len()
    }

    /// The wall time of a moment, in nanoseconds since the Unix epoch.
    pub(super) fn nanos(&self, at: Instant) -> u64 {
        let wall = self.wall + at.saturating_duration_since(self.began);
        u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Ends the step under way.
    pub(super) fn step(&mut self, what: What) {
        if let Some(began) = self.since.take() {
            self.steps.push(Step { began, took: began.elapsed(), what });
        }
    }
}

/// A text of the sender's, within bounds.
pub(super) fn bounded(text: &str) -> String {
    text.get(..text.floor_char_boundary(TEXT_BYTES_MAX)).unwrap_or_default().to_owned()
}
