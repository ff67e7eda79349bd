//! A sender that speaks TLS as a story says: which roots, which versions, which protocols, which certificate.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme, SupportedProtocolVersion};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::pki::{Authority, Issued};
use crate::support::{Delivery, PATIENCE};

pub(crate) const HTTP_2: &[u8] = b"h2";
pub(crate) const HTTP_1: &[u8] = b"http/1.1";

#[derive(Clone)]
pub(crate) struct Caller {
    config: ClientConfig,
    name: String,
}

impl Caller {
    /// Trusts this authority, asks for this name, speaks either HTTP.
    pub(crate) fn trusting(authority: &Authority, name: &str) -> Self {
        Self::made(authority.roots(), name, rustls::ALL_VERSIONS, None)
    }

    /// Trusts one root, PEM, whose key is elsewhere.
    pub(crate) fn trusting_pem(root: &str, name: &str) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(root.as_bytes()).unwrap()).unwrap();
        Self::made(roots, name, rustls::ALL_VERSIONS, None)
    }

    pub(crate) fn showing(authority: &Authority, name: &str, client: &Issued) -> Self {
        Self::made(authority.roots(), name, rustls::ALL_VERSIONS, Some(client))
    }

    pub(crate) fn of_version(
        authority: &Authority,
        name: &str,
        version: &'static SupportedProtocolVersion,
    ) -> Self {
        Self::made(authority.roots(), name, &[version], None)
    }

    /// Takes whatever certificate it is shown.
    pub(crate) fn blind(name: &str) -> Self {
        let mut caller = Self::trusting(&Authority::new(), name);
        caller.config.dangerous().set_certificate_verifier(Arc::new(Blind));
        caller
    }

    fn made(
        roots: RootCertStore,
        name: &str,
        versions: &[&'static SupportedProtocolVersion],
        client: Option<&Issued>,
    ) -> Self {
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match client {
            None => builder.with_no_client_auth(),
            Some(client) => builder.with_client_auth_cert(vec![client.der()], client.key_der()).unwrap(),
        };
        config.alpn_protocols = vec![HTTP_2.to_vec(), HTTP_1.to_vec()];
        Self { config, name: name.to_owned() }
    }

    pub(crate) fn presenting(mut self, client: &Issued) -> Self {
        let key = rustls::crypto::ring::sign::any_supported_type(&client.key_der()).unwrap();
        let shown = rustls::sign::CertifiedKey::new(vec![client.der()], key);
        self.config.client_auth_cert_resolver = Arc::new(rustls::sign::SingleCertAndKey::from(shown));
        self
    }

    pub(crate) fn offering(mut self, protocols: &[&[u8]]) -> Self {
        self.config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        self
    }

    pub(crate) async fn connect(&self, address: SocketAddr) -> io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from(self.name.clone()).unwrap();
        let connecting = TlsConnector::from(Arc::new(self.config.clone())).connect(name, stream);
        tokio::time::timeout(PATIENCE, connecting).await?
    }

    /// The certificate that it is shown.
    pub(crate) async fn shown(&self, address: SocketAddr) -> CertificateDer<'static> {
        let stream = self.connect(address).await.unwrap();
        stream.get_ref().1.peer_certificates().unwrap()[0].clone()
    }

    /// Sends on a connection of its own.
    pub(crate) async fn send(
        &self,
        address: SocketAddr,
        delivery: &Delivery,
    ) -> anyhow::Result<Response<Bytes>> {
        self.open(address).await?.send(delivery).await
    }

    pub(crate) async fn open(&self, address: SocketAddr) -> anyhow::Result<Open> {
        let stream = self.connect(address).await?;
        let http2 = stream.get_ref().1.alpn_protocol() == Some(HTTP_2);
        let authority = format!("{}:{}", self.name, address.port());
        let io = TokioIo::new(stream);
        let sender = if http2 {
            let (sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await?;
            tokio::spawn(connection);
            Sender::Http2(sender)
        } else {
            let (sender, connection) = hyper::client::conn::http1::handshake(io).await?;
            tokio::spawn(connection);
            Sender::Http1(sender)
        };
        Ok(Open { authority, sender })
    }
}

/// A connection to send on, again and again.
pub(crate) struct Open {
    authority: String,
    sender: Sender,
}

enum Sender {
    Http1(hyper::client::conn::http1::SendRequest<Full<Bytes>>),
    Http2(hyper::client::conn::http2::SendRequest<Full<Bytes>>),
}

impl Open {
    pub(crate) fn is_http2(&self) -> bool {
        matches!(self.sender, Sender::Http2(_))
    }

    /// What the sender takes itself to have called.
    pub(crate) fn base(&self) -> String {
        format!("https://{}", self.authority)
    }

    pub(crate) async fn send(&mut self, delivery: &Delivery) -> anyhow::Result<Response<Bytes>> {
        let uri: Uri = if self.is_http2() {
            format!("https://{}{}", self.authority, delivery.target).parse()?
        } else {
            delivery.target.parse()?
        };
        let mut request = Request::builder().method(delivery.method.as_str()).uri(uri);
        if !self.is_http2() {
            request = request.header(header::HOST, &self.authority);
        }
        for (name, value) in &delivery.headers {
            request = request.header(name, value.as_slice());
        }
        let request = request.body(Full::from(delivery.body.clone()))?;
        let exchange = async {
            let answer = match &mut self.sender {
                Sender::Http1(sender) => sender.send_request(request).await?,
                Sender::Http2(sender) => sender.send_request(request).await?,
            };
            let (head, body) = answer.into_parts();
            anyhow::Ok(Response::from_parts(head, body.collect().await?.to_bytes()))
        };
        tokio::time::timeout(PATIENCE, exchange).await?
    }
}

/// Looks at nothing.
#[derive(Debug)]
struct Blind;

impl ServerCertVerifier for Blind {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}
