//! Traces: W3C trace context in and out, one small record per request, and its spans to a collector by OTLP. A request
//! never waits for any of it. Off, a [`Trace`] is an empty pointer.
//!
//! Spans tell statuses, times, counts, and names from the configuration; of a request its method, host and, where the
//! configuration says so, its path. Never queries, headers, bodies, keys or secrets.

mod context;
mod export;
mod record;
mod spans;
mod tracer;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderMap, Response, StatusCode};

use crate::clock::monotonic;
use crate::config::{RouteConfig, Target};
use crate::ledger::{Landed, Layer, Settlement, Verdict};
use crate::upstream::{Outcome, UpstreamError};
use context::{Context, TRACEPARENT, TRACESTATE};
pub use export::{Exporter, NotTaken, open, probe};
pub use record::Event;
use record::{Answer, End, Record, Step, Verdicts, What};
pub use tracer::Tracer;

/// One request's trace. Empty where traces are off; then nothing here does anything. Dropped, it is on its way to the
/// collector; where nobody has said how the request ended, its sender has hung up.
#[derive(Debug, Default)]
pub struct Trace(Option<Box<Record>>);

impl Trace {
    /// For log lines.
    pub fn id(&self) -> Option<String> {
        self.0.as_ref().map(|record| format!("{:032x}", record.context.trace))
    }

    /// The trace's id, where spans of it are exported.
    pub fn sampled(&self) -> Option<u128> {
        self.0.as_ref().map(|record| record.context).filter(|context| context.is_sampled()).map(|c| c.trace)
    }

    /// The request is this route's.
    pub fn on(&mut self, route: &Arc<RouteConfig>) {
        if let Some(record) = &mut self.0 {
            record.route = Some(Arc::clone(route));
        }
    }

    /// Tells the app which span is its parent. Where traces are off, what the sender said stays.
    pub fn propagate(&self, headers: &mut HeaderMap) {
        let Some(record) = &self.0 else { return };
        headers.insert(TRACEPARENT, Context { span: record.forward, ..record.context }.header());
        if record.state.is_empty() {
            headers.remove(TRACESTATE);
        }
    }

    /// The headers of a request that is stored: a replay tells of this trace.
    pub fn stored<'a>(&self, headers: &'a HeaderMap) -> Cow<'a, HeaderMap> {
        let mut headers = Cow::Borrowed(headers);
        if self.0.is_some() {
            self.propagate(headers.to_mut());
        }
        headers
    }

    /// A step begins; it ends where it is told what came of it.
    pub fn step(&mut self) {
        if let Some(record) = self.recorded() {
            record.since = Some(monotonic());
        }
    }

    /// The signature, and who presented a certificate. Nothing is told where the route checks neither.
    pub fn verified(&mut self, right: bool) {
        let Some(record) = self.under_way() else { return };
        let checks = record.route.as_ref().is_some_and(|route| {
            !route.secrets.is_empty() || route.public_key.is_some() || !route.client_names.is_empty()
        });
        if checks || !right {
            record.step(What::Verify { right });
        }
    }

    pub fn claimed(&mut self, verdicts: &[Verdict]) {
        let Some(record) = self.under_way() else { return };
        let mut counts = Verdicts { items: verdicts.len(), ..Verdicts::default() };
        for verdict in verdicts {
            match verdict {
                Verdict::First(claim) => {
                    counts.first += 1;
                    counts.exposed += usize::from(!claim.is_durable());
                }
                Verdict::Duplicate { layer: Layer::Hot, .. } => counts.hot += 1,
                Verdict::Duplicate { layer: Layer::Durable, .. } => counts.durable += 1,
                Verdict::Duplicate { layer: Layer::Waited, .. } => counts.waited += 1,
                Verdict::InFlight(_) => counts.in_flight += 1,
                Verdict::Held { .. } => counts.held += 1,
                Verdict::Unavailable(_) => counts.unavailable += 1,
            }
        }
        record.step(What::Claim(counts));
    }

    /// The request was sent to its route's app.
    pub fn forwarded(&mut self, began: Instant, took: Duration, outcome: &Outcome) {
        let Some(record) = self.recorded() else { return };
        let Some(route) = &record.route else { return };
        let answer = match outcome {
            Outcome::Answered(answer) => Answer::Status(answer.status().as_u16()),
            Outcome::NeverSent(error) => Answer::Nothing { outcome: "never_sent", error: cause(error) },
            Outcome::Unknown(error) => Answer::Nothing { outcome: "unknown", error: cause(error) },
        };
        let what = What::Forward { target: route.upstream.clone(), answer };
        record.steps.push(Step { began, took, what });
    }

    pub fn settled(&mut self, settlement: &Settlement, items: usize, landed: Landed) {
        let Some(record) = self.under_way() else { return };
        let settlement = match settlement {
            Settlement::Commit(_) => "commit",
            Settlement::Release => "release",
            Settlement::Hold => "hold",
        };
        let Landed { lease_lost, unsettled, .. } = landed;
        record.step(What::Settle { settlement, items, lease_lost, unsettled });
    }

    /// So many items were in flight elsewhere.
    pub fn waited(&mut self, began: Instant, items: usize, late: bool) {
        let Some(record) = self.recorded() else { return };
        if items > 0 {
            record.steps.push(Step { began, took: began.elapsed(), what: What::Wait { items, late } });
        }
    }

    /// The request goes to the app without being an event.
    pub fn passing(&mut self, headers: &mut HeaderMap) {
        self.propagate(headers);
        self.step();
    }

    /// It was answered.
    pub fn passed<B>(mut self, target: &Target, answer: Response<B>) -> Response<B> {
        if let Some(record) = self.under_way() {
            let told = match answer.extensions().get::<Unanswered>() {
                Some(Unanswered(outcome, error)) => Answer::Nothing { outcome, error },
                None => Answer::Status(answer.status().as_u16()),
            };
            record.step(What::Forward { target: target.clone(), answer: told });
        }
        self.answered(answer)
    }

    /// Leaves a trace for steps beside this one's, which may end later; gives this one.
    pub fn split(&mut self) -> Self {
        let beside = self.0.as_ref().map(|record| Box::new(record.beside()));
        std::mem::replace(self, Self(beside))
    }

    /// The request was answered without being an event.
    pub fn answered<B>(self, answer: Response<B>) -> Response<B> {
        self.end(answer.status().as_u16(), None);
        answer
    }

    /// A request of a dedup route was answered.
    pub fn finish(self, status: StatusCode, event: Event) {
        self.end(status.as_u16(), Some(event));
    }

    /// The record, where spans are made of it.
    fn recorded(&mut self) -> Option<&mut Record> {
        self.0.as_deref_mut().filter(|record| record.context.is_sampled())
    }

    /// The same, within a step.
    fn under_way(&mut self) -> Option<&mut Record> {
        self.0.as_deref_mut().filter(|record| record.since.is_some())
    }

    fn end(mut self, status: u16, event: Option<Event>) {
        if let Some(record) = &mut self.0 {
            record.end = Some(End { at: monotonic(), status, event });
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if let Some(record) = self.0.take()
            && record.context.is_sampled()
            && record.spans() > 0
        {
            let tracer = Arc::clone(&record.tracer);
            tracer.send(record);
        }
    }
}

/// Marks an answer that stands for the one that the app didn't give: outcome and cause, of closed lists.
#[derive(Clone, Copy, Debug)]
pub struct Unanswered(&'static str, &'static str);

impl Unanswered {
    pub fn of(error: &UpstreamError) -> Self {
        let outcome = match error {
            UpstreamError::Connect(_) => "never_sent",
            UpstreamError::Timeout(_)
            | UpstreamError::Broken(_)
            | UpstreamError::TooLong(_)
            | UpstreamError::Switched => "unknown",
        };
        Self(outcome, cause(error))
    }
}

fn cause(error: &UpstreamError) -> &'static str {
    match error {
        UpstreamError::Connect(_) => "connect",
        UpstreamError::Timeout(_) => "timeout",
        UpstreamError::Broken(_) => "broken",
        UpstreamError::TooLong(_) => "too_long",
        UpstreamError::Switched => "switched",
    }
}
