//! Records as spans, by OpenTelemetry's conventions for HTTP; what is ours is named `umavez.…`. Pure.

use std::time::Duration;

use http::{Method, Version};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::{Link, SpanKind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};

use super::context::{Context, span_id};
use super::record::{Answer, Asked, End, Kind, Record, Step, Verdicts, What};
use crate::config::{Target, Traces};

/// Methods that spans name; any other is the sender's own text.
const METHODS: [Method; 9] = [
    Method::GET,
    Method::HEAD,
    Method::POST,
    Method::PUT,
    Method::DELETE,
    Method::CONNECT,
    Method::OPTIONS,
    Method::TRACE,
    Method::PATCH,
];

/// In a span's flags: that it is known whether its parent is elsewhere, and that it is.
const REMOTE_KNOWN: u32 = 0x100;
const REMOTE: u32 = 0x200;

/// What is told of this process with every batch.
pub(super) fn resource(config: &Traces) -> Resource {
    let mut attributes = Attributes::default();
    attributes.text("service.name", &config.service_name);
    attributes.text("service.version", env!("CARGO_PKG_VERSION"));
    for (name, value) in &config.resource {
        attributes.0.retain(|known| known.key != *name);
        attributes.text(name, value);
    }
    Resource { attributes: attributes.0, ..Resource::default() }
}

pub(super) fn request(resource: Resource, records: &[Record]) -> ExportTraceServiceRequest {
    let scope = InstrumentationScope {
        name: "umavez".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let spans = records.iter().flat_map(spans).collect();
    let scope_spans = ScopeSpans { scope: Some(scope), spans, ..ScopeSpans::default() };
    let resource_spans = ResourceSpans {
        resource: Some(resource),
        scope_spans: vec![scope_spans],
        ..ResourceSpans::default()
    };
    ExportTraceServiceRequest { resource_spans: vec![resource_spans] }
}

fn spans(record: &Record) -> Vec<Span> {
    let mut spans = Vec::with_capacity(record.spans());
    match &record.kind {
        Kind::Request(asked) => spans.push(server(record, asked)),
        Kind::Replay => spans.push(replay(record)),
        Kind::Beside => {}
    }
    spans.extend(record.steps.iter().map(|step| child(record, step)));
    spans
}

fn server(record: &Record, asked: &Asked) -> Span {
    let method = known(&asked.method);
    let pattern = record.route.as_ref().map(|route| &*route.path.0);
    let name = method.unwrap_or("HTTP");
    let mut span = own(record, pattern.map_or_else(|| name.to_owned(), |path| format!("{name} {path}")));
    span.kind = SpanKind::Server.into();
    let mut attributes = Attributes::default();
    attributes.text("http.request.method", method.unwrap_or("_OTHER"));
    attributes.text("url.scheme", if asked.secure { "https" } else { "http" });
    let path = if asked.path.is_empty() { pattern.unwrap_or_default() } else { &asked.path };
    attributes.text("url.path", path);
    attributes.text("http.route", pattern.unwrap_or_default());
    attributes.address(&asked.host);
    attributes.text("network.protocol.version", if asked.version == Version::HTTP_2 { "2" } else { "1.1" });
    ended(&mut span, attributes, record);
    span
}

fn replay(record: &Record) -> Span {
    let mut span = own(record, "replay".to_owned());
    span.kind = SpanKind::Internal.into();
    ended(&mut span, Attributes::default(), record);
    span
}

/// The span of the whole, as far as it says what any says.
fn own(record: &Record, name: String) -> Span {
    let remote = if record.parent.is_some() { REMOTE } else { 0 };
    let link = record.link.map(|Context { trace, span, flags }| Link {
        trace_id: trace.to_be_bytes().to_vec(),
        span_id: span.to_be_bytes().to_vec(),
        flags: REMOTE_KNOWN | REMOTE | u32::from(flags),
        ..Link::default()
    });
    Span {
        span_id: record.context.span.to_be_bytes().to_vec(),
        parent_span_id: record.parent.map(|parent| parent.to_be_bytes().to_vec()).unwrap_or_default(),
        flags: REMOTE_KNOWN | remote | u32::from(record.context.flags),
        links: link.into_iter().collect(),
        ..bare(record, name)
    }
}

fn bare(record: &Record, name: String) -> Span {
    Span {
        trace_id: record.context.trace.to_be_bytes().to_vec(),
        trace_state: record.state.clone(),
        name,
        flags: REMOTE_KNOWN | u32::from(record.context.flags),
        start_time_unix_nano: record.nanos(record.began),
        ..Span::default()
    }
}

fn ended(span: &mut Span, mut attributes: Attributes, record: &Record) {
    if let Some(route) = &record.route {
        attributes.text("umavez.route", &route.name);
        attributes.text("umavez.provider", route.provider.as_ref().map_or("none", |provider| &provider.name));
        attributes.text("umavez.mode", route.mode.label());
    }
    match &record.end {
        Some(End { at, status, event }) => {
            span.end_time_unix_nano = record.nanos(*at);
            attributes.count("http.response.status_code", usize::from(*status));
            if *status >= 500 {
                fail(span, &mut attributes, &status.to_string(), "");
            }
            if let Some(event) = event {
                attributes.text("umavez.verdict", event.verdict);
                attributes.text("umavez.answer", event.answer);
                attributes.text("umavez.key", event.key.as_deref().unwrap_or_default());
                attributes.some("umavez.attempt", usize::try_from(event.attempt).unwrap_or(usize::MAX));
            }
        }
        None => {
            let last = record.steps.iter().map(|step| step.began + step.took).max();
            span.end_time_unix_nano = record.nanos(last.unwrap_or(record.began));
            fail(span, &mut attributes, "cancelled", "the sender hung up before its answer");
        }
    }
    span.attributes = attributes.0;
}

fn child(record: &Record, step: &Step) -> Span {
    let mut attributes = Attributes::default();
    let mut span = bare(record, String::new());
    span.span_id = span_id().to_be_bytes().to_vec();
    span.parent_span_id = record.context.span.to_be_bytes().to_vec();
    span.start_time_unix_nano = record.nanos(step.began);
    span.end_time_unix_nano = record.nanos(step.began + step.took.max(Duration::from_nanos(1)));
    span.kind = SpanKind::Internal.into();
    match &step.what {
        What::Verify { right } => {
            "verify".clone_into(&mut span.name);
            if !right {
                fail(&mut span, &mut attributes, "unsigned", "the signature is missing or wrong");
            }
        }
        What::Claim(verdicts) => claim(&mut span, &mut attributes, verdicts),
        What::Forward { target, answer } => {
            span.span_id = record.forward.to_be_bytes().to_vec();
            if let Kind::Request(asked) = &record.kind {
                attributes.text("http.request.method", known(&asked.method).unwrap_or("_OTHER"));
            }
            forward(&mut span, &mut attributes, target, answer);
        }
        What::Settle { settlement, items, lease_lost, unsettled } => {
            "settle".clone_into(&mut span.name);
            attributes.text("umavez.settlement", settlement);
            attributes.count("umavez.items", *items);
            attributes.some("umavez.settled.lease_lost", *lease_lost);
            attributes.some("umavez.settled.later", *unsettled);
            if *lease_lost > 0 {
                fail(&mut span, &mut attributes, "lease_lost", "the lease had lapsed");
            } else if *unsettled > 0 {
                let text = "not recorded yet: retried in the background";
                fail(&mut span, &mut attributes, "unsettled", text);
            }
        }
        What::Wait { items, late } => {
            "wait".clone_into(&mut span.name);
            attributes.count("umavez.items", *items);
            attributes.flag("umavez.late", *late);
        }
    }
    span.attributes = attributes.0;
    span
}

fn claim(span: &mut Span, attributes: &mut Attributes, verdicts: &Verdicts) {
    "claim".clone_into(&mut span.name);
    attributes.count("umavez.items", verdicts.items);
    for (name, count) in [
        ("umavez.claimed.first", verdicts.first),
        ("umavez.claimed.exposed", verdicts.exposed),
        ("umavez.duplicate.hot", verdicts.hot),
        ("umavez.duplicate.durable", verdicts.durable),
        ("umavez.duplicate.waited", verdicts.waited),
        ("umavez.claimed.in_flight", verdicts.in_flight),
        ("umavez.claimed.held", verdicts.held),
        ("umavez.claimed.unavailable", verdicts.unavailable),
    ] {
        attributes.some(name, count);
    }
    if verdicts.unavailable > 0 {
        fail(span, attributes, "unavailable", "no verdict was possible");
    }
}

fn forward(span: &mut Span, attributes: &mut Attributes, target: &Target, answer: &Answer) {
    "forward".clone_into(&mut span.name);
    span.kind = SpanKind::Client.into();
    attributes.text("url.scheme", target.scheme.as_str());
    attributes.address(target.authority.as_str());
    match answer {
        Answer::Status(status) => {
            attributes.text("umavez.outcome", "answered");
            attributes.count("http.response.status_code", usize::from(*status));
            if *status >= 400 {
                fail(span, attributes, &status.to_string(), "");
            }
        }
        Answer::Nothing { outcome, error } => {
            attributes.text("umavez.outcome", outcome);
            fail(span, attributes, error, "no complete answer from the app");
        }
    }
}

fn fail(span: &mut Span, attributes: &mut Attributes, error: &str, message: &str) {
    attributes.text("error.type", error);
    span.status = Some(Status { code: StatusCode::Error.into(), message: message.to_owned() });
}

fn known(method: &Method) -> Option<&str> {
    METHODS.contains(method).then(|| method.as_str())
}

/// A span's attributes in the making. What is empty is left out.
#[derive(Default)]
struct Attributes(Vec<KeyValue>);

impl Attributes {
    fn add(&mut self, name: &str, value: Value) {
        let value = Some(AnyValue { value: Some(value) });
        self.0.push(KeyValue { key: name.to_owned(), value, ..KeyValue::default() });
    }

    fn text(&mut self, name: &str, value: &str) {
        if !value.is_empty() {
            self.add(name, Value::StringValue(value.to_owned()));
        }
    }

    fn flag(&mut self, name: &str, value: bool) {
        self.add(name, Value::BoolValue(value));
    }

    fn count(&mut self, name: &str, value: usize) {
        self.add(name, Value::IntValue(i64::try_from(value).unwrap_or(i64::MAX)));
    }

    fn some(&mut self, name: &str, value: usize) {
        if value > 0 {
            self.count(name, value);
        }
    }

    /// A host, with or without a port.
    fn address(&mut self, host: &str) {
        let Ok(authority) = host.parse::<http::uri::Authority>() else { return };
        self.text("server.address", authority.host());
        self.some("server.port", usize::from(authority.port_u16().unwrap_or_default()));
    }
}
