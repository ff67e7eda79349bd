//! Spans on their way to the collector: a bounded queue, batches, and what is tried again. What doesn't fit, and what
//! the collector doesn't take in time, is dropped and counted; no request waits.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER, USER_AGENT};
use http::{Method, Request, Response, StatusCode, Uri};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::record::Record;
use super::spans;
use super::tracer::Tracer;
use crate::config::{Limits, Target, Traces};
use crate::metrics;
use crate::tls::Apps;
use crate::upstream::{Outcome, Upstream};

/// Requests whose spans wait for the collector; those of more are dropped.
const WAITING_MAX: usize = 4096;
/// Requests of one export.
const BATCH_MAX: usize = 512;
/// How long a batch waits to be full, and how often it is looked at meanwhile: requests wake nobody.
const LINGER: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often a batch is tried; the pause after the first try, which doubles, and the longest.
const TRIES_MAX: u32 = 5;
const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// How long a stop waits for what is left.
const LAST_MAX: Duration = Duration::from_secs(3);
/// Longest answer of the collector that is read, bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Sends batches.
pub struct Exporter {
    queue: mpsc::Receiver<Box<Record>>,
    upstream: Upstream,
    target: Target,
    headers: HeaderMap,
    timeout: Duration,
    resource: Resource,
    metrics: metrics::Spans,
    /// What was told last of the collector: told again where it changes.
    well: bool,
}

/// The collector didn't take an export.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotTaken(String);

/// What one try came to.
enum Sent {
    /// Taken, less so many spans.
    Taken {
        rejected: usize,
    },
    /// It may be taken later; the collector may have said when.
    Later {
        why: String,
        after: Option<Duration>,
    },
    Refused {
        why: String,
    },
}

/// A tracer, and what has to run beside it; neither where traces are off. A collector behind TLS is trusted by `tls`.
pub fn open(config: Option<&Traces>, limits: &Limits, tls: &Arc<Apps>) -> Option<(Tracer, Exporter)> {
    let metrics = metrics::Spans::new();
    let config = config?;
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("umavez/", env!("CARGO_PKG_VERSION"))));
    for (name, secret) in &config.headers {
        let mut value = HeaderValue::from_str(secret.expose()).expect("checked where it was read");
        value.set_sensitive(true);
        headers.insert(name.clone(), value);
    }
    let (sender, queue) = mpsc::channel(WAITING_MAX);
    let tracer = Tracer::new(config, sender, metrics.clone());
    let exporter = Exporter {
        queue,
        upstream: Upstream::new(limits, Arc::clone(tls)),
        target: config.endpoint.clone(),
        headers,
        timeout: config.timeout,
        resource: spans::resource(config),
        metrics,
        well: true,
    };
    Some((tracer, exporter))
}

/// Sends the collector an export without spans, once.
///
/// # Errors
/// When the collector doesn't take it within `[traces] timeout`.
pub async fn probe(config: &Traces, limits: &Limits, tls: &Arc<Apps>) -> Result<(), NotTaken> {
    let Some((_tracer, exporter)) = open(Some(config), limits, tls) else { return Ok(()) };
    let empty = spans::request(exporter.resource.clone(), &[]).encode_to_vec();
    match exporter.post(empty.into()).await {
        Sent::Taken { .. } => Ok(()),
        Sent::Later { why, .. } | Sent::Refused { why } => Err(NotTaken(why)),
    }
}

impl Exporter {
    /// Ends when its tracer is gone and all is sent, or soon after `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let late = async {
            stop.cancelled().await;
            tokio::time::sleep(LAST_MAX).await;
        };
        tokio::select! {
            () = self.serve(&stop) => {}
            () = late => tracing::warn!("stopped with spans that the collector has not taken"),
        }
    }

    async fn serve(&mut self, stop: &CancellationToken) {
        loop {
            let first = tokio::select! {
                biased;
                first = self.queue.recv() => first,
                () = stop.cancelled() => None,
            };
            let Some(first) = first else { return };
            let mut batch = vec![*first];
            let gathered = async {
                for _ in 0..LINGER.as_millis() / LOOK_EVERY.as_millis() {
                    if self.queue.len() + 1 >= BATCH_MAX {
                        return;
                    }
                    tokio::time::sleep(LOOK_EVERY).await;
                }
            };
            stop.run_until_cancelled(gathered).await;
            while batch.len() < BATCH_MAX
                && let Ok(next) = self.queue.try_recv()
            {
                batch.push(*next);
            }
            self.export(batch, stop).await;
        }
    }

    async fn export(&mut self, batch: Vec<Record>, stop: &CancellationToken) {
        let spans: usize = batch.iter().map(Record::spans).sum();
        let resource = self.resource.clone();
        // Beside this runtime, which writes for the durable store.
        let encoding = move || Bytes::from(spans::request(resource, &batch).encode_to_vec());
        let Ok(body) = tokio::task::spawn_blocking(encoding).await else {
            return self.metrics.failed(spans);
        };
        let mut pause = PAUSE;
        let mut tries = 0;
        loop {
            let stopping = stop.is_cancelled();
            tries += 1;
            let why = match self.post(body.clone()).await {
                Sent::Taken { rejected } => {
                    self.metrics.exported(spans.saturating_sub(rejected));
                    self.metrics.failed(rejected.min(spans));
                    return self.tell(None);
                }
                Sent::Later { why, after } if tries < TRIES_MAX && !stopping => {
                    self.tell(Some(&why));
                    let pause_now = after.unwrap_or(pause).min(PAUSE_MAX);
                    stop.run_until_cancelled(tokio::time::sleep(pause_now)).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                    continue;
                }
                Sent::Later { why, .. } | Sent::Refused { why } => why,
            };
            self.metrics.failed(spans);
            return self.tell(Some(&why));
        }
    }

    async fn post(&self, body: Bytes) -> Sent {
        let mut request = Request::new(body);
        *request.method_mut() = Method::POST;
        *request.uri_mut() = Uri::from_static("/v1/traces");
        *request.headers_mut() = self.headers.clone();
        match self.upstream.forward(&self.target, request, self.timeout, ANSWER_BYTES_MAX).await {
            Outcome::Answered(answer) => judged(&answer),
            Outcome::NeverSent(error) | Outcome::Unknown(error) => {
                let told = error.told().replace("the app", "it");
                Sent::Later { why: told, after: None }
            }
        }
    }

    /// One line when it begins to fail and one when it is well again, not one for each batch.
    fn tell(&mut self, trouble: Option<&str>) {
        match (trouble, self.well) {
            (Some(error), true) => {
                tracing::warn!(collector = %self.target, error, "the collector takes no spans; they are tried again, then dropped");
            }
            (None, false) => tracing::info!(collector = %self.target, "the collector takes spans again"),
            (Some(_), false) | (None, true) => {}
        }
        self.well = trouble.is_none();
    }
}

/// What an answer means, by the OTLP specification.
fn judged(answer: &Response<Bytes>) -> Sent {
    let status = answer.status();
    if status.is_success() {
        let partial =
            ExportTraceServiceResponse::decode(answer.body().clone()).ok().and_then(|a| a.partial_success);
        let rejected = partial.map_or(0, |partial| partial.rejected_spans);
        return Sent::Taken { rejected: usize::try_from(rejected).unwrap_or(0) };
    }
    let why = format!("it answered {status}");
    let later = [
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::BAD_GATEWAY,
        StatusCode::SERVICE_UNAVAILABLE,
        StatusCode::GATEWAY_TIMEOUT,
    ];
    if !later.contains(&status) {
        return Sent::Refused { why };
    }
    let after = answer.headers().get(RETRY_AFTER).and_then(|after| after.to_str().ok()?.parse().ok());
    Sent::Later { why, after: after.map(Duration::from_secs) }
}
