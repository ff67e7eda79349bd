//! TLS towards apps: whom we trust, what we show, and the handshake as their client.

use std::cell::Cell;
use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use hyper_rustls::ConfigBuilderExt;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::ServerName;
use rustls::sign::CertifiedKey;
use rustls::{AlertDescription, ClientConfig, ProtocolVersion, RootCertStore, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::certificate::Certificate;
use super::{AppFiles, Trouble, Troubles, pem};
use crate::metrics;

/// How long an app that asked for our certificate may take to judge it before we write to it all the same.
const JUDGEMENT_MAX: Duration = Duration::from_millis(250);

/// Why there is no encrypted connection to an app.
pub type Refused = Box<dyn Error + Send + Sync>;

/// What apps behind `https://` are reached with. Nothing is read before the first use.
#[derive(Debug)]
pub struct AppTls {
    state: RwLock<Arc<State>>,
    metrics: metrics::Certificates,
}

/// What was read last, and is in use.
#[derive(Debug, Default)]
struct State {
    files: AppFiles,
    client: Option<Arc<Certificate>>,
    /// Those of `files.ca`; the system's where there are none.
    roots: Option<Arc<RootCertStore>>,
    /// Made at the first use.
    ready: OnceLock<Arc<Ready>>,
}

/// What handshakes that begin now use, by what they offer.
struct Ready {
    http1: TlsConnector,
    http2: TlsConnector,
    either: TlsConnector,
}

tokio::task_local! {
    /// Whether the handshake under way was asked for a certificate.
    static ASKED: Cell<bool>;
}

impl std::fmt::Debug for Ready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ready")
    }
}

/// Which versions of HTTP we offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaking {
    Http1,
    Http2,
    Either,
}

impl AppTls {
    /// The system's roots, and no certificate of our own; metrics tell of its files under the name of this side.
    pub fn towards(side: &'static str) -> Self {
        Self { state: RwLock::default(), metrics: metrics::Certificates::new(side) }
    }

    /// Reads these files and makes sure that there is something to trust. Nothing is told of it until [`Self::tell`].
    pub(super) fn opened(side: &'static str, files: &AppFiles) -> Result<Self, Troubles> {
        let state = State::read(files)?;
        state.ready().map_err(|error| rootless(&error))?;
        Ok(Self { state: RwLock::new(Arc::new(state)), ..Self::towards(side) })
    }

    /// Puts these files into use in place of what was. The system's roots are read where they were in use before, else
    /// at the first use.
    ///
    /// # Errors
    /// When one of them is of no use: then nothing changes.
    pub fn replace(&self, files: &AppFiles) -> Result<(), Troubles> {
        let (before, fresh) = (self.state(), State::read(files)?);
        if before.ready.get().is_some() {
            drop(fresh.ready()); // who has need of it hears why there is none
        }
        self.metrics.replaced(&before.files.shown(), &fresh.files.shown());
        self.put(fresh);
        self.tell();
        Ok(())
    }

    /// Reads the files again. What is of no use leaves what was before it in use.
    ///
    /// # Errors
    /// With what could not be put into use.
    pub(super) fn reload(&self) -> Result<(), Troubles> {
        let before = self.state();
        let (mut client, mut roots, mut troubles) = (before.client.clone(), before.roots.clone(), Vec::new());
        if let Some(pair) = &before.files.client {
            match Certificate::load(pair) {
                Ok(fresh) => {
                    self.metrics.certificate(&pair.chain, fresh.not_after);
                    client = Some(Arc::new(fresh));
                }
                Err(trouble) => {
                    self.metrics.current(&pair.chain, false);
                    troubles.push(trouble);
                }
            }
        }
        if let Some(ca) = &before.files.ca {
            let read = pem::roots(ca);
            self.metrics.current(ca, read.is_ok());
            match read {
                Ok(fresh) => roots = Some(Arc::new(fresh)),
                Err(trouble) => troubles.push(trouble),
            }
        }
        let fresh = State { files: before.files.clone(), client, roots, ready: OnceLock::new() };
        // Where it is in use it is made here: no thread that serves waits for files.
        match before.ready.get().map(|_| fresh.ready()) {
            Some(Err(error)) => troubles.extend(rootless(&error).0),
            Some(Ok(_)) | None => self.put(fresh),
        }
        Troubles::none_or(troubles)
    }

    /// Makes sure that there is something to trust.
    ///
    /// # Errors
    /// When the system has no roots.
    pub fn prepare(&self) -> Result<(), Refused> {
        self.state().ready().map(|_| ())
    }

    /// The handshake with the app of this name or address; the caller bounds its time.
    ///
    /// # Errors
    /// When the app's certificate is of no use, or it doesn't agree to ours.
    pub async fn connect(
        &self,
        host: &str,
        speaking: Speaking,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, Refused> {
        let state = self.state();
        let ready = match state.ready.get() {
            Some(ready) => Arc::clone(ready),
            // The system's roots are many files.
            None => tokio::task::spawn_blocking(move || state.ready()).await??,
        };
        let name = ServerName::try_from(host.to_owned())?;
        let connector = match speaking {
            Speaking::Http1 => &ready.http1,
            Speaking::Http2 => &ready.http2,
            Speaking::Either => &ready.either,
        };
        let handshake = async { (connector.connect(name, stream).await, ASKED.with(Cell::get)) };
        let (stream, asked) = ASKED.scope(Cell::new(false), handshake).await;
        let mut stream = stream.map_err(Unagreed::of)?;
        if asked && stream.get_ref().1.protocol_version() == Some(ProtocolVersion::TLSv1_3) {
            judged(&mut stream).await?;
        }
        Ok(stream)
    }

    pub(super) fn paths(&self) -> Vec<PathBuf> {
        self.state().files.paths()
    }

    /// Its files are not in use any more.
    pub(super) fn gone(&self, still: &[PathBuf]) {
        self.metrics.replaced(&self.state().files.shown(), still);
    }

    pub(super) fn shown(&self) -> Vec<PathBuf> {
        self.state().files.shown()
    }

    /// Says that its files are in use.
    pub(super) fn tell(&self) {
        let state = self.state();
        state.files.shown().iter().for_each(|file| self.metrics.current(file, true));
        if let Some(certificate) = &state.client {
            self.metrics.certificate(&certificate.pair.chain, certificate.not_after);
        }
    }

    fn put(&self, state: State) {
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(state);
    }

    fn state(&self) -> Arc<State> {
        Arc::clone(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }
}

fn rootless(error: &Refused) -> Troubles {
    Troubles(vec![Trouble::new("the system's trusted certificates", error.to_string(), "set the app's ca")])
}

impl State {
    fn read(files: &AppFiles) -> Result<Self, Troubles> {
        let roots = files.ca.as_deref().map(pem::roots).transpose();
        let client = files.client.as_ref().map(Certificate::load).transpose();
        let troubles: Vec<Trouble> =
            [roots.as_ref().err(), client.as_ref().err()].into_iter().flatten().cloned().collect();
        let (Ok(roots), Ok(client)) = (roots, client) else { return Err(Troubles(troubles)) };
        let (client, roots) = (client.map(Arc::new), roots.map(Arc::new));
        Ok(Self { files: files.clone(), client, roots, ready: OnceLock::new() })
    }

    /// What was made before; else made now, which reads the system's roots where no others are named.
    fn ready(&self) -> Result<Arc<Ready>, Refused> {
        if let Some(ready) = self.ready.get() {
            return Ok(Arc::clone(ready));
        }
        let made = Arc::new(self.make()?);
        Ok(Arc::clone(self.ready.get_or_init(|| made)))
    }

    fn make(&self) -> Result<Ready, Refused> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let builder = match &self.roots {
            Some(roots) => builder.with_root_certificates(Arc::clone(roots)),
            None => builder.with_native_roots().map_err(|error| {
                format!("the system's trusted certificates: {error}; install them, or set [upstream] ca")
            })?,
        };
        let client = self.client.as_ref().map(|certificate| Arc::clone(&certificate.key));
        let config = builder.with_client_cert_resolver(Arc::new(Shown(client)));
        let speaking = |protocols: &[&[u8]]| {
            let mut config = config.clone();
            config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
            TlsConnector::from(Arc::new(config))
        };
        Ok(Ready {
            http1: speaking(&[b"http/1.1"]),
            http2: speaking(&[b"h2"]),
            either: speaking(&[b"h2", b"http/1.1"]),
        })
    }
}

/// The certificate that we show where an app asks for one.
#[derive(Debug)]
struct Shown(Option<Arc<CertifiedKey>>);

impl ResolvesClientCert for Shown {
    fn resolve(&self, _hints: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        // Handshakes elsewhere than under `connect` need not know.
        ASKED.try_with(|asked| asked.set(true)).ok();
        self.0.clone().filter(|key| key.key.choose_scheme(schemes).is_some())
    }

    fn has_certs(&self) -> bool {
        self.0.is_some()
    }
}

/// With TLS 1.3 our side of the handshake is done before the app has judged our certificate. What it says next (a
/// ticket, HTTP/2's settings, an alert) tells; what we sent before that would be of an unknown outcome.
async fn judged(stream: &mut TlsStream<TcpStream>) -> Result<(), Refused> {
    let (tcp, tls) = stream.get_mut();
    if tokio::time::timeout(JUDGEMENT_MAX, tcp.readable()).await.is_err() {
        return Ok(()); // it says nothing before it is asked
    }
    match tls.read_tls(&mut Arrived(tcp)) {
        Ok(0) => return Err("the app ended the connection after our handshake".into()),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
        Err(error) => return Err(error.into()),
    }
    tls.process_new_packets().map_err(|error| Unagreed::of(io::Error::other(error)))?;
    Ok(())
}

/// What a socket has ready.
struct Arrived<'a>(&'a TcpStream);

impl io::Read for Arrived<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(buffer)
    }
}

/// Whether certificates can be for this name: a host's, or an address.
pub fn is_server_name(name: &str) -> bool {
    ServerName::try_from(name).is_ok()
}

/// A handshake that came to nothing, in words for who can mend it; the library's own ride behind.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
struct Unagreed {
    why: &'static str,
    #[source]
    source: io::Error,
}

impl Unagreed {
    fn of(source: io::Error) -> Self {
        let inner = source.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        let why = inner.map_or("the connection ended during the TLS handshake", told);
        Self { why, source }
    }
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the library's errors are many, and most are told as they are"
)]
fn told(error: &rustls::Error) -> &'static str {
    use rustls::CertificateError as Bad;
    match error {
        rustls::Error::InvalidCertificate(bad) => match bad {
            Bad::UnknownIssuer => "the app's certificate is from no authority that is trusted here",
            Bad::BadSignature => "the app's certificate is not signed by the authority that it names",
            Bad::Expired | Bad::ExpiredContext { .. } => "the app's certificate has expired",
            Bad::NotValidYet | Bad::NotValidYetContext { .. } => "the app's certificate is not valid yet",
            Bad::NotValidForName | Bad::NotValidForNameContext { .. } => {
                "the app's certificate is for another name"
            }
            _ => "the app's certificate is of no use",
        },
        rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol)
        | rustls::Error::NoApplicationProtocol => {
            "the app speaks no version of HTTP that is asked of it (ALPN)"
        }
        rustls::Error::AlertReceived(alert) if REFUSALS.contains(alert) => {
            "the app does not take our certificate, or misses one"
        }
        rustls::Error::InvalidMessage(_) => "the app does not speak TLS there",
        rustls::Error::AlertReceived(AlertDescription::ProtocolVersion)
        | rustls::Error::PeerIncompatible(_) => "the app speaks no TLS that is spoken here",
        _ => "the TLS handshake with the app failed",
    }
}

/// Whether an app turned our handshake down after we had taken it for done and written, which is later than we waited
/// for it. It reads nothing of what we wrote before that, so nothing was processed.
pub fn is_refusal(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if let Some(rustls::Error::AlertReceived(alert)) = inner.and_then(|inner| inner.downcast_ref()) {
            return REFUSALS.contains(alert);
        }
        next = error.source();
    }
    false
}

/// What an app says that doesn't take our certificate, or misses it.
const REFUSALS: [AlertDescription; 10] = [
    AlertDescription::BadCertificate,
    AlertDescription::UnsupportedCertificate,
    AlertDescription::CertificateRevoked,
    AlertDescription::CertificateExpired,
    AlertDescription::CertificateUnknown,
    AlertDescription::CertificateRequired,
    AlertDescription::UnknownCA,
    AlertDescription::AccessDenied,
    AlertDescription::HandshakeFailure,
    AlertDescription::DecryptError,
];
