//! TLS towards apps: whom we trust, what we show, and the handshake as their client.

use std::error::Error;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use hyper_rustls::ConfigBuilderExt;
use rustls::pki_types::ServerName;
use rustls::sign::SingleCertAndKey;
use rustls::{AlertDescription, ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::certificate::Certificate;
use super::{AppFiles, Trouble, Troubles, pem};
use crate::metrics;

/// Why there is no encrypted connection to an app.
pub type Refused = Box<dyn Error + Send + Sync>;

/// What apps behind `https://` are reached with. Nothing is read before the first use.
#[derive(Debug)]
pub struct AppTls {
    state: Mutex<State>,
    current: RwLock<Option<Offers>>,
    metrics: metrics::Certificates,
}

#[derive(Debug, Default)]
struct State {
    files: AppFiles,
    client: Option<Arc<Certificate>>,
    /// Those of `files.ca`; the system's where there are none.
    roots: Option<Arc<RootCertStore>>,
}

/// Which versions of HTTP we offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaking {
    Http1,
    Http2,
    Either,
}

/// The same for each that we may offer.
#[derive(Clone)]
struct Offers {
    http1: TlsConnector,
    http2: TlsConnector,
    either: TlsConnector,
}

impl std::fmt::Debug for Offers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Offers")
    }
}

impl AppTls {
    /// The system's roots, and no certificate of our own.
    pub fn new() -> Self {
        let metrics = metrics::Certificates::new("upstream");
        Self { state: Mutex::default(), current: RwLock::default(), metrics }
    }

    /// Puts these files into use in place of what was. The system's roots are read at the first use.
    ///
    /// # Errors
    /// When one of them is of no use: then nothing changes.
    pub fn replace(&self, files: &AppFiles) -> Result<(), Troubles> {
        let fresh = State::read(files)?;
        let mut state = self.state();
        self.metrics.replaced(&state.files.shown(), &files.shown());
        if let Some(certificate) = &fresh.client {
            self.tell(certificate);
        }
        *state = fresh;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = None;
        Ok(())
    }

    /// Reads the files again. What is of no use leaves what was before it in use.
    ///
    /// # Errors
    /// With what could not be put into use.
    pub fn reload(&self) -> Result<(), Troubles> {
        let mut state = self.state();
        let mut troubles = Vec::new();
        if let Some(pair) = state.files.client.clone() {
            match Certificate::load(&pair) {
                Ok(fresh) => {
                    self.tell(&fresh);
                    state.client = Some(Arc::new(fresh));
                }
                Err(trouble) => {
                    self.metrics.current(&pair.chain, false);
                    troubles.push(trouble);
                }
            }
        }
        if let Some(ca) = state.files.ca.clone() {
            let read = pem::roots(&ca);
            self.metrics.current(&ca, read.is_ok());
            match read {
                Ok(roots) => state.roots = Some(Arc::new(roots)),
                Err(trouble) => troubles.push(trouble),
            }
        }
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = None;
        Troubles::none_or(troubles)
    }

    /// Makes sure that there is something to trust.
    ///
    /// # Errors
    /// When the system has no roots.
    pub fn prepare(&self) -> Result<(), Refused> {
        self.offers().map(|_| ())
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
        let offers = self.offers()?;
        let name = ServerName::try_from(host.to_owned())?;
        let connector = match speaking {
            Speaking::Http1 => &offers.http1,
            Speaking::Http2 => &offers.http2,
            Speaking::Either => &offers.either,
        };
        Ok(connector.connect(name, stream).await?)
    }

    pub(super) fn paths(&self) -> Vec<PathBuf> {
        self.state().files.paths()
    }

    fn offers(&self) -> Result<Offers, Refused> {
        if let Some(offers) = &*self.current.read().unwrap_or_else(PoisonError::into_inner) {
            return Ok(offers.clone());
        }
        let state = self.state();
        let offers = state.offers()?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Some(offers.clone());
        Ok(offers)
    }

    fn tell(&self, certificate: &Certificate) {
        self.metrics.not_after(&certificate.pair.chain, certificate.not_after);
        self.metrics.current(&certificate.pair.chain, true);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for AppTls {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    fn read(files: &AppFiles) -> Result<Self, Troubles> {
        let roots = files.ca.as_deref().map(pem::roots).transpose();
        let client = files.client.as_ref().map(Certificate::load).transpose();
        let troubles: Vec<Trouble> =
            [roots.as_ref().err(), client.as_ref().err()].into_iter().flatten().cloned().collect();
        let (Ok(roots), Ok(client)) = (roots, client) else { return Err(Troubles(troubles)) };
        Ok(Self { files: files.clone(), client: client.map(Arc::new), roots: roots.map(Arc::new) })
    }

    fn offers(&self) -> Result<Offers, Refused> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let builder = match &self.roots {
            Some(roots) => builder.with_root_certificates(Arc::clone(roots)),
            None => builder.with_native_roots().map_err(|error| {
                format!("the system's trusted certificates: {error}; install them, or set [upstream] ca")
            })?,
        };
        let config = match &self.client {
            Some(certificate) => builder
                .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(&certificate.key)))),
            None => builder.with_no_client_auth(),
        };
        let speaking = |protocols: &[&[u8]]| {
            let mut config = config.clone();
            config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
            TlsConnector::from(Arc::new(config))
        };
        Ok(Offers {
            http1: speaking(&[b"http/1.1"]),
            http2: speaking(&[b"h2"]),
            either: speaking(&[b"h2", b"http/1.1"]),
        })
    }
}

/// Whether an app turned our handshake down after we had taken it for done: with TLS 1.3 it judges our certificate
/// after we may have written. It reads nothing of what we wrote before that, so nothing was processed.
pub fn is_refusal(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let inner = inner.and_then(|inner| inner.downcast_ref::<rustls::Error>());
        if let Some(rustls::Error::AlertReceived(alert)) = inner {
            return matches!(
                alert,
                AlertDescription::BadCertificate
                    | AlertDescription::UnsupportedCertificate
                    | AlertDescription::CertificateRevoked
                    | AlertDescription::CertificateExpired
                    | AlertDescription::CertificateUnknown
                    | AlertDescription::CertificateRequired
                    | AlertDescription::UnknownCA
                    | AlertDescription::AccessDenied
                    | AlertDescription::HandshakeFailure
                    | AlertDescription::DecryptError
            );
        }
        next = error.source();
    }
    false
}
