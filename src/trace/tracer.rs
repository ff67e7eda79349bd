//! Decides which requests are traced, and under which parent.

use std::sync::Arc;

use http::header::HOST;
use http::{HeaderMap, Request};
use tokio::sync::mpsc;

use super::Trace;
use super::context::{Context, state_of, trace_id};
use super::record::{Asked, Kind, Record, bounded};
use crate::config::{Parent, Paths, Traces};
use crate::metrics;
use crate::upstream::headers::Caller;

/// Makes the records of requests.
#[derive(Clone, Debug)]
pub struct Tracer(Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    sample_ratio: f64,
    parent: Parent,
    paths: Paths,
    queue: mpsc::Sender<Box<Record>>,
    metrics: metrics::Spans,
}

impl Tracer {
    pub(super) fn new(config: &Traces, queue: mpsc::Sender<Box<Record>>, metrics: metrics::Spans) -> Self {
        let Traces { sample_ratio, parent, paths, .. } = *config;
        Self(Arc::new(Inner { sample_ratio, parent, paths, queue, metrics }))
    }

    /// The record of a request that has just come.
    pub fn begin<B>(&self, request: &Request<B>, caller: &Caller) -> Trace {
        let headers = request.headers();
        let theirs = Context::of(headers);
        let taken = theirs.filter(|_| match self.0.parent {
            Parent::TrustedProxies => caller.trusted,
            Parent::Anyone => true,
            Parent::Nobody => false,
        });
        let context = taken.map_or_else(|| self.new_trace(), Context::child);
        let asked = Asked {
            method: request.method().clone(),
            secure: caller.secure,
            version: request.version(),
            host: if context.is_sampled() { host(request) } else { String::new() },
            path: match self.0.paths {
                Paths::Whole if context.is_sampled() => bounded(request.uri().path()),
                Paths::Whole | Paths::Patterns => String::new(),
            },
        };
        let mut record = Record::new(Arc::clone(&self.0), context, Kind::Request(asked));
        record.parent = taken.map(|parent| parent.span);
        if taken.is_some() {
            record.state = state_of(headers);
        } else {
            record.link = theirs;
        }
        Trace(Some(Box::new(record)))
    }

    /// The record of a held event that is sent again; `headers` are those of its stored request, which belonged to the
    /// trace that it came with.
    pub fn replay(&self, headers: &HeaderMap) -> Trace {
        let mut record = Record::new(Arc::clone(&self.0), self.new_trace(), Kind::Replay);
        record.link = Context::of(headers);
        Trace(Some(Box::new(record)))
    }

    fn new_trace(&self) -> Context {
        let trace = trace_id();
        Context::begin(trace, self.0.samples(trace))
    }
}

impl Inner {
    /// By the id, as other tracers do, so that all come to the same.
    fn samples(&self, trace: u128) -> bool {
        let draw = u32::try_from((trace >> 32) & u128::from(u32::MAX)).expect("32 bits");
        f64::from(draw) < self.sample_ratio * 4_294_967_296.0
    }

    /// Never waits.
    pub(super) fn send(&self, record: Box<Record>) {
        if let Err(unsent) = self.queue.try_send(record) {
            self.metrics.dropped(unsent.into_inner().spans());
        }
    }
}

fn host<B>(request: &Request<B>) -> String {
    let named = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let named = named.or_else(|| request.uri().authority().map(|authority| authority.as_str()));
    bounded(named.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inner(sample_ratio: f64) -> Inner {
        let (queue, _) = mpsc::channel(1);
        Inner {
            sample_ratio,
            parent: Parent::Nobody,
            paths: Paths::Patterns,
            queue,
            metrics: metrics::Spans::new(),
        }
    }

    #[test]
    fn a_share_of_the_traces_is_sampled_whatever_their_ids_begin_with() {
        for (ratio, low, high) in [(0.0, 0, 0), (0.25, 2300, 2700), (1.0, 10_000, 10_000)] {
            let inner = inner(ratio);
            let sampled = (0..10_000).filter(|_| inner.samples(trace_id())).count();
            assert!((low..=high).contains(&sampled), "{ratio}: {sampled}");
        }
        assert!(inner(0.5).samples(0x7fff_ffff_ffff_ffff) && !inner(0.5).samples(0x8000_0000_0000_0000));
    }
}
