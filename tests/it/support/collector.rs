//! An OTLP collector: takes batches of spans over HTTP and keeps them, read by the protocol's own messages.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span as Proto;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::Message as _;

use super::upstream::{Received, Reply, Upstream};
use super::within;

/// One span, as it is looked at.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) name: String,
    pub(crate) trace: String,
    pub(crate) id: String,
    /// Empty where it is the first of its trace.
    pub(crate) parent: String,
    pub(crate) kind: SpanKind,
    pub(crate) attributes: BTreeMap<String, String>,
    /// Traces that it has to do with.
    pub(crate) links: Vec<String>,
    pub(crate) state: String,
    pub(crate) failed: bool,
    /// Nanoseconds since the Unix epoch.
    pub(crate) began: u64,
    pub(crate) ended: u64,
}

impl Span {
    /// What an attribute says; empty where there is none.
    pub(crate) fn says(&self, attribute: &str) -> &str {
        self.attributes.get(attribute).map_or("", |value| value)
    }
}

pub(crate) struct Collector {
    upstream: Upstream,
}

impl Collector {
    /// Takes everything.
    pub(crate) async fn taking() -> Self {
        Self::replying([Reply::new(200, "")]).await
    }

    /// Answers the first batch with the first reply and so on; the last one repeats.
    pub(crate) async fn replying(replies: impl IntoIterator<Item = Reply>) -> Self {
        Self { upstream: Upstream::scripted(replies).await }
    }

    /// An answer that takes a batch less so many spans.
    pub(crate) fn rejecting(rejected_spans: i64) -> Reply {
        let partial = ExportTracePartialSuccess { rejected_spans, error_message: "too many".to_owned() };
        let body = ExportTraceServiceResponse { partial_success: Some(partial) }.encode_to_vec();
        Reply::with_headers(200, &[("Content-Type", "application/x-protobuf")], &body)
    }

    /// `[traces]` with this collector as endpoint, open for more lines.
    pub(crate) fn table(&self) -> String {
        format!("[traces]\nendpoint = \"{}\"\n", self.upstream.url())
    }

    pub(crate) fn url(&self) -> String {
        self.upstream.url()
    }

    pub(crate) fn batches(&self) -> Vec<Received> {
        self.upstream.requests()
    }

    pub(crate) async fn until_received(&self, batches: usize) {
        self.upstream.until_received(batches).await;
    }

    /// Every span that came, by its beginning.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let mut spans: Vec<Span> = self.batches().iter().flat_map(|batch| decoded(&batch.body)).collect();
        spans.sort_by_key(|span| span.began);
        spans
    }

    /// What every batch says of its sender.
    pub(crate) fn resource(&self) -> BTreeMap<String, String> {
        let batch = self.batches().pop().unwrap();
        let request = ExportTraceServiceRequest::decode(&*batch.body).unwrap();
        attributes(&request.resource_spans[0].resource.as_ref().unwrap().attributes)
    }

    /// Waits for so many spans, and no more.
    pub(crate) async fn until_spans(&self, count: usize) -> Vec<Span> {
        within(&format!("{count} spans"), async {
            loop {
                let seen = self.batches().len();
                let spans = self.spans();
                assert!(spans.len() <= count, "{spans:#?}");
                if spans.len() == count {
                    return spans;
                }
                self.until_received(seen + 1).await;
            }
        })
        .await
    }
}

fn decoded(body: &[u8]) -> Vec<Span> {
    let request = ExportTraceServiceRequest::decode(body).expect("an export of spans");
    let scopes = request.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
    scopes.flat_map(|scope| scope.spans).map(Span::from).collect()
}

impl From<Proto> for Span {
    fn from(span: Proto) -> Self {
        assert_eq!((span.trace_id.len(), span.span_id.len()), (16, 8), "{span:?}");
        let failed = span.status.as_ref().is_some_and(|status| status.code() == StatusCode::Error);
        Self {
            trace: hex::encode(&span.trace_id),
            id: hex::encode(&span.span_id),
            parent: hex::encode(&span.parent_span_id),
            kind: span.kind(),
            attributes: attributes(&span.attributes),
            links: span.links.iter().map(|link| hex::encode(&link.trace_id)).collect(),
            failed,
            began: span.start_time_unix_nano,
            ended: span.end_time_unix_nano,
            name: span.name,
            state: span.trace_state,
        }
    }
}

fn attributes(list: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |pair: &KeyValue| match pair.value.as_ref().and_then(|value| value.value.clone()) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::BoolValue(flag)) => flag.to_string(),
        other => panic!("{}: {other:?}", pair.key),
    };
    let map: BTreeMap<_, _> = list.iter().map(|pair| (pair.key.clone(), text(pair))).collect();
    assert_eq!(map.len(), list.len(), "an attribute is there twice: {list:?}");
    map
}
