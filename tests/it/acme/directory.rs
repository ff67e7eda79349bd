//! A directory that does as a story says what Pebble never does: puts off, says nothing, takes some orders and not others.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::support::{Gate, within};
use crate::tls::pki::{Authority, Folder};

/// How it answers.
#[derive(Clone)]
pub(super) enum Manner {
    /// Too busy for two hours, whatever it is asked.
    Busy,
    /// Not at all until the gate opens; then as one that is down.
    Silent(Gate),
    /// Makes accounts and signs nothing; of one name it wants to hear again in two hours.
    Picky { later: &'static str },
}

pub(super) struct Directory {
    address: SocketAddr,
    /// Vouches for its own HTTPS.
    authority: Authority,
    seen: Arc<Seen>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
struct Seen {
    requests: watch::Sender<usize>,
    /// Names whose certificate it was asked for.
    orders: Mutex<Vec<String>>,
}

impl Directory {
    pub(super) async fn start(manner: Manner) -> Self {
        let authority = Authority::new();
        let issued = authority.issue(&["127.0.0.1"]);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![issued.der()], issued.key_der())
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, seen) = (listener.local_addr().unwrap(), Arc::<Seen>::default());
        let noting = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, manner, seen) = (acceptor.clone(), manner.clone(), Arc::clone(&noting));
                connections.spawn(serve(stream, acceptor, address, manner, seen));
            }
        });
        Self { address, authority, seen, task }
    }

    pub(super) fn url(&self) -> String {
        format!("https://{}/dir", self.address)
    }

    /// The root of its own certificate, PEM.
    pub(super) fn root(&self) -> &str {
        &self.authority.pem
    }

    /// `[public_tls.acme]` for these names, as a TOML list's content. Its root is `roots.pem`, its cache `acme`.
    pub(super) fn table(&self, names: &str, folder: &Folder) -> String {
        let roots = folder.put("roots.pem", self.root());
        format!(
            "[public_tls.acme]\nnames = [{names}]\nterms_agreed = true\ncache = \"{}\"\ndirectory_ca = \"{}\"\n\
             directory = \"{}\"\n",
            folder.path().join("acme").display(),
            roots.display(),
            self.url()
        )
    }

    /// How many requests came.
    pub(super) fn asked(&self) -> usize {
        *self.seen.requests.borrow()
    }

    pub(super) async fn until_asked(&self, count: usize) {
        let mut requests = self.seen.requests.subscribe();
        within("the directory is asked", requests.wait_for(|seen| *seen >= count)).await.unwrap();
    }

    /// Names whose certificate it was asked for, in order.
    pub(super) fn ordered(&self) -> Vec<String> {
        self.seen.orders.lock().unwrap().clone()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    address: SocketAddr,
    manner: Manner,
    seen: Arc<Seen>,
) {
    let Ok(stream) = acceptor.accept(stream).await else { return };
    let service = service_fn(|request: Request<Incoming>| {
        let (manner, seen) = (manner.clone(), Arc::clone(&seen));
        async move {
            seen.requests.send_modify(|count| *count += 1);
            Ok::<_, Infallible>(answer(request, address, manner, &seen).await)
        }
    });
    // Who has gone needs no answer.
    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await.ok();
}

async fn answer(
    request: Request<Incoming>,
    address: SocketAddr,
    manner: Manner,
    seen: &Seen,
) -> Response<Full<Bytes>> {
    let later = match manner {
        Manner::Busy => return told(503, "rateLimited", "come back later", Some(7200)),
        Manner::Silent(gate) => {
            gate.passed().await;
            return told(503, "serverInternal", "down", None);
        }
        Manner::Picky { later } => later,
    };
    let at = |path: &str| format!("https://{address}/{path}");
    match request.uri().path() {
        "/dir" => {
            let urls = serde_json::json!({
                "newNonce": at("nonce"), "newAccount": at("account"), "newOrder": at("order"),
            });
            Response::new(Full::from(urls.to_string()))
        }
        "/nonce" => Response::builder().header("replay-nonce", "bm9uY2U").body(Full::default()).unwrap(),
        "/account" => {
            let made = Response::builder().status(201).header("location", at("account/1"));
            made.header("replay-nonce", "bm9uY2U").body(Full::from(r#"{"status":"valid"}"#)).unwrap()
        }
        _ => {
            let name = name_of(request).await;
            let later = (name == later).then_some(7200);
            seen.orders.lock().unwrap().push(name);
            match later {
                Some(_) => told(429, "rateLimited", "too many certificates", later),
                None => told(403, "rejectedIdentifier", "no such name is signed", None),
            }
        }
    }
}

fn told(status: u16, kind: &str, detail: &str, later: Option<u64>) -> Response<Full<Bytes>> {
    let problem = format!(r#"{{"type":"urn:ietf:params:acme:error:{kind}","detail":"{detail}"}}"#);
    let answer = Response::builder().status(status).header("replay-nonce", "bm9uY2U");
    let answer = answer.header("content-type", "application/problem+json");
    let answer = later.into_iter().fold(answer, |answer, seconds| answer.header("retry-after", seconds));
    answer.body(Full::from(problem)).unwrap()
}

/// The one name that an order is for.
async fn name_of(request: Request<Incoming>) -> String {
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let signed: serde_json::Value = serde_json::from_slice(&body).unwrap();
    let payload = BASE64_URL_SAFE_NO_PAD.decode(signed["payload"].as_str().unwrap()).unwrap();
    let payload: serde_json::Value = serde_json::from_slice(&payload).unwrap();
    payload["identifiers"][0]["value"].as_str().unwrap().to_owned()
}
