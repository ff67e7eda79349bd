//! An app behind `https://`: HTTP/1.1 or HTTP/2 as agreed; it tells what it was asked and how.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response, Version};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::pki::{Authority, Issued};

/// What came with one request.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) version: Version,
    /// The name that the connection asked for.
    pub(crate) name: Option<String>,
    pub(crate) host: String,
    pub(crate) attempt: Option<String>,
}

pub(crate) struct App {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    connections: Arc<AtomicUsize>,
    acceptor: Arc<Mutex<TlsAcceptor>>,
    task: tokio::task::JoinHandle<()>,
}

impl App {
    pub(crate) async fn showing(issued: &Issued, protocols: &[&[u8]]) -> Self {
        Self::start(acceptor(issued, protocols, None)).await
    }

    pub(crate) async fn requiring(issued: &Issued, clients: &Authority, protocols: &[&[u8]]) -> Self {
        Self::start(acceptor(issued, protocols, Some(clients))).await
    }

    async fn start(acceptor: TlsAcceptor) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (asked, acceptor) = (Arc::default(), Arc::new(Mutex::new(acceptor)));
        let connections = Arc::new(AtomicUsize::new(0));
        let task = tokio::spawn(accept(
            listener,
            Arc::clone(&acceptor),
            Arc::clone(&asked),
            Arc::clone(&connections),
        ));
        Self { address, asked, connections, acceptor, task }
    }

    /// Shows another certificate from now on.
    pub(crate) fn show(&self, issued: &Issued) {
        *self.acceptor.lock().unwrap() = acceptor(issued, &[b"h2", b"http/1.1"], None);
    }

    /// How many were accepted.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for App {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn acceptor(issued: &Issued, protocols: &[&[u8]], clients: Option<&Authority>) -> TlsAcceptor {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(clients) => {
            let roots = Arc::new(clients.roots());
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build().unwrap();
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(vec![issued.der()], issued.key_der()).unwrap();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    Arc::new(config).into()
}

async fn accept(
    listener: TcpListener,
    acceptor: Arc<Mutex<TlsAcceptor>>,
    asked: Arc<Mutex<Vec<Asked>>>,
    connections: Arc<AtomicUsize>,
) {
    let mut tasks = tokio::task::JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        connections.fetch_add(1, Ordering::SeqCst);
        let acceptor = acceptor.lock().unwrap().clone();
        tasks.spawn(serve(stream, acceptor, Arc::clone(&asked)));
    }
}

async fn serve(stream: TcpStream, acceptor: TlsAcceptor, asked: Arc<Mutex<Vec<Asked>>>) {
    let Ok(stream) = acceptor.accept(stream).await else { return };
    let name = stream.get_ref().1.server_name().map(str::to_owned);
    let service = service_fn(move |request: Request<Incoming>| {
        let text = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        let host = request.uri().authority().map(ToString::to_string).or_else(|| text("host"));
        asked.lock().unwrap().push(Asked {
            version: request.version(),
            name: name.clone(),
            host: host.unwrap(),
            attempt: text("umavez-attempt"),
        });
        std::future::ready(Ok::<_, std::convert::Infallible>(Response::new(Full::new(Bytes::from("made")))))
    });
    auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await.ok();
}
