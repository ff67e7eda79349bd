//! TLS of one listener: what it shows now, and how that is replaced while connections come and go. A handshake takes
//! what is in use when it begins; connections that are up keep what they have.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::certificate::{Certificate, client_names};
use super::sni::Sni;
use super::{Clients, ListenerFiles, Oldest, Trouble, Troubles, pem};
use crate::metrics;

/// One listener's TLS; off where it has no certificates.
#[derive(Debug)]
pub struct ListenerTls {
    state: Mutex<Option<State>>,
    current: RwLock<Option<Arc<ServerConfig>>>,
    metrics: metrics::Certificates,
    handshakes: metrics::Handshakes,
}

/// What was read last, and is in use.
#[derive(Debug)]
struct State {
    files: ListenerFiles,
    certificates: Vec<Arc<Certificate>>,
    roots: Option<Arc<RootCertStore>>,
}

/// What an encrypted connection is told of by its handshake.
#[derive(Debug)]
pub struct Secure<S> {
    pub stream: TlsStream<S>,
    /// Names of the caller's certificate, which was verified; none where it presented none.
    pub client_names: Vec<String>,
}

impl ListenerTls {
    /// Without certificates.
    pub fn off(listener: &'static str) -> Self {
        Self {
            state: Mutex::default(),
            current: RwLock::default(),
            metrics: metrics::Certificates::new(listener),
            handshakes: metrics::Handshakes::new(listener),
        }
    }

    /// Puts these files into use in place of what was; `None` ends TLS for new connections.
    ///
    /// # Errors
    /// When one of them is of no use: then nothing changes.
    pub fn replace(&self, files: Option<&ListenerFiles>) -> Result<(), Troubles> {
        let fresh = files.map(State::read).transpose()?;
        let config =
            fresh.as_ref().map(State::config).transpose().map_err(|trouble| Troubles(vec![trouble]))?;
        let mut state = self.state();
        let shown = |files: Option<&ListenerFiles>| files.map(ListenerFiles::shown).unwrap_or_default();
        self.metrics.replaced(&shown(state.as_ref().map(|state| &state.files)), &shown(files));
        if let Some(fresh) = &fresh {
            fresh.certificates.iter().for_each(|certificate| self.tell(certificate));
        }
        *state = fresh;
        self.put(config);
        Ok(())
    }

    /// Reads the files again. A pair that is of no use leaves the one before it in use; the others are replaced.
    ///
    /// # Errors
    /// With what could not be put into use.
    pub fn reload(&self) -> Result<(), Troubles> {
        let mut guard = self.state();
        let Some(state) = guard.as_mut() else { return Ok(()) };
        let mut troubles = Vec::new();
        for certificate in &mut state.certificates {
            match Certificate::load(&certificate.pair) {
                Ok(fresh) => {
                    if !fresh.is_same(certificate) {
                        tracing::info!(
                            file = %fresh.pair.chain.display(),
                            not_after = %crate::clock::UnixMillis(fresh.not_after * 1000).rfc3339(),
                            "a new certificate is in use"
                        );
                    }
                    *certificate = Arc::new(fresh);
                    self.tell(certificate);
                }
                Err(trouble) => {
                    self.metrics.current(&certificate.pair.chain, false);
                    troubles.push(trouble);
                }
            }
        }
        if let Some(clients) = &state.files.clients {
            let read = pem::roots(&clients.ca);
            self.metrics.current(&clients.ca, read.is_ok());
            match read {
                Ok(roots) => state.roots = Some(Arc::new(roots)),
                Err(trouble) => troubles.push(trouble),
            }
        }
        match state.config() {
            Ok(config) => self.put(Some(config)),
            Err(trouble) => troubles.push(trouble),
        }
        Troubles::none_or(troubles)
    }

    /// What handshakes that begin now use; `None` where connections are not encrypted.
    pub fn acceptor(&self) -> Option<TlsAcceptor> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().map(|config| TlsAcceptor::from(Arc::clone(config)))
    }

    pub fn is_on(&self) -> bool {
        self.acceptor().is_some()
    }

    /// The handshake, counted. The caller bounds its time.
    ///
    /// # Errors
    /// When the two don't agree, or the caller's certificate is of no use.
    pub async fn accept<S>(&self, acceptor: TlsAcceptor, stream: S) -> std::io::Result<Secure<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let accepted = acceptor.accept(stream).await;
        self.handshakes.ended(match &accepted {
            Ok(_) => metrics::Handshake::Ok,
            Err(_) => metrics::Handshake::Failed,
        });
        let stream = accepted?;
        let presented = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let client_names = presented.map(client_names).unwrap_or_default();
        Ok(Secure { stream, client_names })
    }

    /// Counts a handshake that did not end in time.
    pub fn was_too_slow(&self) {
        self.handshakes.ended(metrics::Handshake::TooSlow);
    }

    /// Counts a caller that spoke something else.
    pub fn was_plain(&self) {
        self.handshakes.ended(metrics::Handshake::Plain);
    }

    pub(super) fn paths(&self) -> Vec<PathBuf> {
        self.state().as_ref().map(|state| state.files.paths()).unwrap_or_default()
    }

    fn put(&self, config: Option<Arc<ServerConfig>>) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = config;
    }

    fn tell(&self, certificate: &Certificate) {
        self.metrics.not_after(&certificate.pair.chain, certificate.not_after);
        self.metrics.current(&certificate.pair.chain, true);
    }

    fn state(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn read(files: &ListenerFiles) -> Result<Self, Troubles> {
        let mut troubles = Vec::new();
        let mut certificates = Vec::new();
        for pair in &files.pairs {
            match Certificate::load(pair) {
                Ok(certificate) => certificates.push(Arc::new(certificate)),
                Err(trouble) => troubles.push(trouble),
            }
        }
        let roots = match files.clients.as_ref().map(|clients| pem::roots(&clients.ca)).transpose() {
            Ok(roots) => roots.map(Arc::new),
            Err(trouble) => {
                troubles.push(trouble);
                None
            }
        };
        Troubles::none_or(troubles)?;
        Ok(Self { files: files.clone(), certificates, roots })
    }

    fn config(&self) -> Result<Arc<ServerConfig>, Trouble> {
        let of_no_use = |error: &dyn std::fmt::Display| {
            let file = self.files.clients.as_ref().map(|clients| clients.ca.clone()).unwrap_or_default();
            Trouble::new(file, format!("can't be put into use: {error}"), "mend the file")
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = match self.files.oldest {
            Oldest::Tls12 => rustls::ALL_VERSIONS,
            Oldest::Tls13 => &[&rustls::version::TLS13],
        };
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)
            .map_err(|error| of_no_use(&error))?;
        let builder = match (&self.files.clients, &self.roots) {
            (Some(Clients { required, .. }), Some(roots)) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), provider);
                let verifier = if *required { verifier } else { verifier.allow_unauthenticated() };
                builder.with_client_cert_verifier(verifier.build().map_err(|error| of_no_use(&error))?)
            }
            (Some(_) | None, None) | (None, Some(_)) => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(Arc::new(Sni::new(self.certificates.clone())));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        // Senders come back often: a ticket spares both sides a full handshake, whichever thread they meet. Early
        // data stays off: it can be replayed.
        config.ticketer = rustls::crypto::ring::Ticketer::new().map_err(|error| of_no_use(&error))?;
        Ok(Arc::new(config))
    }
}
