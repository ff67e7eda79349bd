//! A toy app that says what it got, and a toy provider's HTTP client.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::TaskTracker;

use super::META_SECRET;

/// How long the slow app takes: longer than the second copy waits before it comes.
const SLOW: Duration = Duration::from_millis(300);

/// How the app is doing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Mood {
    #[default]
    Well,
    Slow,
    Failing,
}

/// The app behind the gateway.
#[derive(Clone)]
pub(super) struct App {
    pub(super) address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    mood: Mood,
    received: Vec<String>,
}

impl App {
    pub(super) async fn start(tracker: &TaskTracker) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let app = Self { address: listener.local_addr()?, state: Arc::default() };
        let (serving, tasks) = (app.clone(), tracker.clone());
        tracker.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let app = serving.clone();
                tasks.spawn(async move {
                    let service = service_fn(move |request| app.clone().answer(request));
                    // A connection that breaks is the gateway's to notice.
                    drop(
                        hyper::server::conn::http1::Builder::new()
                            .serve_connection(TokioIo::new(stream), service)
                            .await,
                    );
                });
            }
        });
        Ok(app)
    }

    pub(super) fn mood(&self, mood: Mood) {
        self.state().mood = mood;
    }

    /// How many requests it has received.
    pub(super) fn received(&self) -> usize {
        self.state().received.len()
    }

    /// What it made of the latest.
    pub(super) fn last(&self) -> String {
        self.state().received.last().cloned().unwrap_or_default()
    }

    async fn answer(self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let signature = head.headers.get("x-hub-signature-256").and_then(|value| value.to_str().ok());
        let note = summary(&body, signature);
        let mood = {
            let mut state = self.state();
            state.received.push(note);
            state.mood
        };
        let (status, text) = match mood {
            Mood::Well => (200, "ok"),
            Mood::Slow => {
                tokio::time::sleep(SLOW).await;
                (200, "ok")
            }
            Mood::Failing => (500, "database is locked"),
        };
        let answer = Response::builder().status(status).body(Full::from(text)).expect("a valid answer");
        Ok(answer)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The ids in a body, and whether the app's own check of Meta's signature passes.
fn summary(body: &[u8], signature: Option<&str>) -> String {
    let parsed: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let mut ids = Vec::new();
    let changes = parsed["entry"].as_array().into_iter().flatten();
    for change in changes.flat_map(|entry| entry["changes"].as_array().into_iter().flatten()) {
        let messages = change["value"]["messages"].as_array().into_iter().flatten();
        ids.extend(messages.filter_map(|message| message["id"].as_str().map(str::to_owned)));
    }
    if ids.is_empty() {
        return parsed["id"].as_str().map(|id| format!("purchase {id}")).unwrap_or_default();
    }
    let checked = match signature {
        Some(signature) if signature == self::signature(META_SECRET, body) => "signature good",
        Some(_) => "signature BAD",
        None => "signature missing",
    };
    format!("{} ({checked})", ids.join(" "))
}

/// Meta's signature of a body.
pub(super) fn signature(secret: &str, body: &[u8]) -> String {
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret.as_bytes());
    format!("sha256={}", hex::encode(ring::hmac::sign(&key, body)))
}

/// One delivery of the toy provider.
pub(super) struct Sent {
    pub(super) path: &'static str,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: String,
}

/// What the toy provider was answered.
pub(super) struct Answered {
    pub(super) status: u16,
    pub(super) verdict: String,
    pub(super) replayed: bool,
    pub(super) body: String,
}

/// Sends one delivery on a connection of its own.
pub(super) async fn send(gateway: SocketAddr, sent: Sent) -> anyhow::Result<Answered> {
    let stream = TcpStream::connect(gateway).await.context("the gateway takes no connection")?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let mut request = Request::post(sent.path)
        .header("host", gateway.to_string())
        .header("content-type", "application/json");
    for (name, value) in sent.headers {
        request = request.header(name, value);
    }
    let request = request.body(Full::new(Bytes::from(sent.body)))?;
    let exchange = async {
        let answer = sender.send_request(request).await?;
        let (head, body) = answer.into_parts();
        let body = body.collect().await?.to_bytes();
        drop(sender);
        Ok::<_, hyper::Error>((head, body))
    };
    let (answer, _closed) = tokio::join!(exchange, connection);
    let (head, body) = answer?;
    let text = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    Ok(Answered {
        status: head.status.as_u16(),
        verdict: text("umavez").unwrap_or_default(),
        replayed: text("idempotency-replayed").as_deref() == Some("true"),
        body: String::from_utf8_lossy(&body).into_owned(),
    })
}
