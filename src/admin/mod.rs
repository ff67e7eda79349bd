//! The admin listener: /metrics, /live, /ready, /reload and the event API. Never the public listener's business.

mod events;
mod payload;
mod reload;
mod stranger;

use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use http::header::{ACCEPT, ALLOW, AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use events::Decision;
pub use reload::{Reload, Reloaded, WAITING_RELOADS_MAX};
use stranger::{Stranger, stranger};

use crate::config::Secret;
use crate::flow::Flow;
use crate::ledger::Ledger;
use crate::ledger::hot::BreakerState;
use crate::metrics::{OPENMETRICS, Stores, openmetrics, prefers_openmetrics};

const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// What the admin listener answers from.
pub struct Admin {
    pub ledger: Ledger,
    /// For replays.
    pub flow: Arc<Flow>,
    pub prometheus: PrometheusHandle,
    pub stores: Stores,
    pub token: Token,
    pub reloads: mpsc::Sender<Reload>,
    /// Cancelled when the gateway drains.
    pub draining: CancellationToken,
    /// What people ask for runs here, and the drain waits for it; closed when nothing more may begin.
    pub decisions: TaskTracker,
}

/// What is asked for everything but /live and /ready; set on a listener that isn't loopback. A reload swaps it.
#[derive(Clone, Debug)]
pub struct Token(Arc<ArcSwapOption<Secret>>);

impl Token {
    pub fn new(token: Option<Secret>) -> Self {
        Self(Arc::new(ArcSwapOption::from_pointee(token)))
    }

    pub fn swap(&self, token: Option<Secret>) {
        self.0.store(token.map(Arc::new));
    }
}

impl Admin {
    /// Answers one request of the admin listener.
    pub async fn receive<B>(self: Arc<Self>, request: Request<B>, peer: SocketAddr) -> Response<Bytes> {
        let path = request.uri().path();
        if let Some(stranger) = self.stranger(&request) {
            return json(StatusCode::FORBIDDEN, &serde_json::json!({"error": stranger.text()}));
        }
        if !matches!(path, "/live" | "/ready") && !self.allows(&request) {
            let mut answer =
                json(StatusCode::UNAUTHORIZED, &serde_json::json!({"error": "a bearer token is needed"}));
            answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            return answer;
        }
        // What HEAD is answered beyond the headers stays with the listener.
        let method = if request.method() == Method::HEAD { &Method::GET } else { request.method() };
        match (method, path) {
            (&Method::GET, "/live") => json(StatusCode::OK, &serde_json::json!({"live": true})),
            (&Method::GET, "/ready") => self.ready().await,
            (&Method::GET, "/metrics") => self.metrics(&request),
            (&Method::GET, "/events") => self.show(&request).await,
            (&Method::GET, "/events/held") => self.held(&request).await,
            (&Method::GET, "/actions") => self.actions(&request).await,
            (&Method::POST, "/reload") => self.reload(peer).await,
            (&Method::POST, path) => match Decision::of(path) {
                Some(decision) => self.decide(decision, request.map(drop), peer).await,
                None => unknown(path),
            },
            _ => unknown(path),
        }
    }

    /// A web page that had the operator's browser ask. Probes ask under any name, and learn nothing by it.
    fn stranger<B>(&self, request: &Request<B>) -> Option<Stranger> {
        let asks = matches!(*request.method(), Method::GET | Method::HEAD);
        let probed = asks && matches!(request.uri().path(), "/live" | "/ready");
        if probed { None } else { stranger(request.headers(), self.token.0.load().is_some()) }
    }

    /// Compared in constant time: the answer's delay tells nothing about the token.
    fn allows<B>(&self, request: &Request<B>) -> bool {
        let token = self.token.0.load();
        let Some(token) = &*token else { return true };
        let given = request.headers().get(AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
        given.is_some_and(|given| {
            let hash = |bytes: &[u8]| ring::digest::digest(&ring::digest::SHA256, bytes);
            let (given, right) = (hash(given), hash(token.expose().as_bytes()));
            given.as_ref().iter().zip(right.as_ref()).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
        })
    }

    async fn ready(&self) -> Response<Bytes> {
        let draining = self.draining.is_cancelled();
        // One connection reads and another writes: a full disk gives what is read, and takes nothing.
        let durable = self.ledger.durable().ping().await.is_ok() && self.ledger.durable().is_up();
        let hot = self.ledger.hot().breaker_state() == BreakerState::Closed;
        // The hot store may rest: the durable store decides alone, so the node still serves.
        let status = if durable && !draining { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        json(
            status,
            &serde_json::json!({"ready": status.is_success(), "draining": draining, "durable": durable, "hot": hot}),
        )
    }

    /// With traces, in the format that has room for exemplars, where the scraper asks for it.
    fn metrics<B>(&self, request: &Request<B>) -> Response<Bytes> {
        let resting = self.ledger.hot().breaker_state() == BreakerState::Open;
        let buffered = self.flow.buffered_bytes();
        self.stores.sample(self.ledger.unsettled(), self.ledger.in_flight(), buffered, resting);
        let queued = self.ledger.durable().queued();
        self.stores.waiting.sample(queued.claims, queued.settlements, queued.max);
        let accepted = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
        let open = self.flow.traces() && accepted.is_some_and(prefers_openmetrics);
        let text = self.prometheus.render();
        let (text, kind) = if open { (openmetrics(&text), OPENMETRICS) } else { (text, PLAIN) };
        let mut answer = Response::new(Bytes::from(text));
        answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        answer
    }
}

/// The token of `Authorization: Bearer TOKEN`. The scheme's case means nothing (RFC 9110, 11.1).
fn bearer(authorization: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = authorization.split_at_checked(b"Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
}

/// No page, or not with this method.
fn unknown(path: &str) -> Response<Bytes> {
    const READ: [&str; 6] = ["/live", "/ready", "/metrics", "/events", "/events/held", "/actions"];
    let written = path == "/reload" || Decision::of(path).is_some();
    let allowed = match (READ.contains(&path), written) {
        (true, _) => "GET, HEAD",
        (false, true) => "POST",
        (false, false) => {
            let pages = READ.into_iter().chain(["/reload"]).collect::<Vec<_>>();
            let told = serde_json::json!({"error": "no such page", "pages": pages});
            return json(StatusCode::NOT_FOUND, &told);
        }
    };
    let told = serde_json::json!({"error": "not with this method", "allowed": allowed});
    let mut answer = json(StatusCode::METHOD_NOT_ALLOWED, &told);
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    answer
}

fn json(status: StatusCode, body: &serde_json::Value) -> Response<Bytes> {
    let mut answer = Response::new(Bytes::from(format!("{body}\n")));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, JSON);
    answer
}
