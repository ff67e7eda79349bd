//! TLS of one listener: what it shows now, and how that is replaced while connections come and go. A handshake takes
//! what is in use when it begins; connections that are up keep what they have.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use rustls::server::{Acceptor as HelloReader, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::watch;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{LazyConfigAcceptor, TlsAcceptor};

use super::acme::{Acme, Challenges, Ordered, asks_for_proof};
use super::certificate::{Certificate, client_names};
use super::sni::Sni;
use super::{Clients, ListenerFiles, Oldest, Pair, Trouble, Troubles, pem};
use crate::metrics;

/// One listener's TLS; off where it has no certificates.
#[derive(Debug)]
pub struct ListenerTls {
    /// Held while files are read, which may take as long as a file system hangs, and by nobody who serves: what was read
    /// later is never replaced by what was read before.
    reading: Mutex<()>,
    /// Nobody who holds it waits for a file.
    state: Mutex<Option<State>>,
    current: RwLock<Option<Acceptor>>,
    metrics: metrics::Certificates,
    handshakes: metrics::Handshakes,
    /// Tells whoever orders that the settings were read again.
    acme_read: watch::Sender<()>,
}

/// What was read last, and is in use.
#[derive(Clone, Debug)]
struct State {
    files: ListenerFiles,
    certificates: Vec<Arc<Certificate>>,
    ordered: Vec<Ordered>,
    roots: Option<Arc<RootCertStore>>,
    challenges: Option<Arc<Challenges>>,
}

/// What handshakes that begin now use.
#[derive(Clone)]
pub struct Acceptor {
    usual: TlsAcceptor,
    /// Where names are proved to an authority.
    challenges: Option<Arc<Challenges>>,
}

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Acceptor")
    }
}

/// What became of a handshake.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly every one is the large one, and it is moved once")]
pub enum Accepted<S> {
    Secure(Secure<S>),
    /// An authority looked at the proof of a name: the connection is over.
    Challenge,
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
            reading: Mutex::default(),
            state: Mutex::default(),
            current: RwLock::default(),
            metrics: metrics::Certificates::new(listener),
            handshakes: metrics::Handshakes::new(listener),
            acme_read: watch::Sender::new(()),
        }
    }

    /// Puts these files into use in place of what was; `None` ends TLS for new connections.
    ///
    /// # Errors
    /// When one of them is of no use: then nothing changes.
    pub fn replace(&self, files: Option<&ListenerFiles>) -> Result<(), Troubles> {
        let _reading = self.reading();
        let mut fresh = files.map(State::read).transpose()?;
        if let (Some(fresh), Some(before)) = (&mut fresh, &*self.state()) {
            fresh.ordered.iter_mut().for_each(|ordered| ordered.adopt(&before.ordered));
        }
        let config =
            fresh.as_ref().map(State::config).transpose().map_err(|trouble| Troubles(vec![trouble]))?;
        let shown = |files: Option<&ListenerFiles>| files.map(ListenerFiles::shown).unwrap_or_default();
        let mut state = self.state();
        self.metrics.replaced(&shown(state.as_ref().map(|state| &state.files)), &shown(files));
        if let Some(fresh) = &fresh {
            fresh.certificates.iter().for_each(|certificate| self.tell(certificate));
            fresh.ordered.iter().for_each(|ordered| self.tell_ordered(ordered));
        }
        *state = fresh;
        self.put(config);
        self.acme_read.send_replace(());
        Ok(())
    }

    /// Reads the files again. A pair that is of no use leaves the one before it in use; the others are replaced.
    ///
    /// # Errors
    /// With what could not be put into use.
    pub fn reload(&self) -> Result<(), Troubles> {
        let _reading = self.reading();
        let Some(mut fresh) = self.state().clone() else { return Ok(()) };
        let mut troubles = self.read_again(&mut fresh);
        let config = fresh.config();
        let mut state = self.state();
        // Whoever ordered meanwhile has told of it; from here on nobody does.
        fresh.ordered.iter().for_each(|ordered| self.tell_ordered(ordered));
        *state = Some(fresh);
        match config {
            Ok(config) => self.put(Some(config)),
            Err(trouble) => troubles.push(trouble),
        }
        Troubles::none_or(troubles)
    }

    /// What is of no use stays as it was.
    fn read_again(&self, state: &mut State) -> Vec<Trouble> {
        let mut troubles = Vec::new();
        for certificate in &mut state.certificates {
            match Certificate::load(&certificate.pair) {
                Ok(fresh) => {
                    if !fresh.is_same(certificate) {
                        fresh.tell_in_use();
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
        for ordered in &mut state.ordered {
            troubles.extend(ordered.read().err());
        }
        if let Some(clients) = &state.files.clients {
            let read = pem::roots(&clients.ca);
            self.metrics.current(&clients.ca, read.is_ok());
            match read {
                Ok(roots) => state.roots = Some(Arc::new(roots)),
                Err(trouble) => troubles.push(trouble),
            }
        }
        troubles
    }

    /// What handshakes that begin now use; `None` where connections are not encrypted.
    pub fn acceptor(&self) -> Option<Acceptor> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn is_on(&self) -> bool {
        self.acceptor().is_some()
    }

    /// The handshake, counted. The caller bounds its time.
    ///
    /// # Errors
    /// When the two don't agree, or the caller's certificate is of no use.
    pub async fn accept<S>(&self, acceptor: Acceptor, stream: S) -> std::io::Result<Accepted<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let accepted = acceptor.accept(stream).await;
        self.handshakes.ended(match &accepted {
            Ok(Accepted::Secure(_)) => metrics::Handshake::Ok,
            Ok(Accepted::Challenge) => metrics::Handshake::Challenge,
            Err(_) => metrics::Handshake::Failed,
        });
        accepted
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

    /// What is ordered for this listener.
    pub(super) fn acme(&self) -> Option<Acme> {
        self.state().as_ref().and_then(|state| state.files.acme.clone())
    }

    /// Changes whenever the settings are read from now on, whether they differ or not.
    pub(super) fn acme_read(&self) -> watch::Receiver<()> {
        self.acme_read.subscribe()
    }

    /// The certificate that is in use of those that are kept there, if it is one that is ordered.
    pub(super) fn ordered(&self, pair: &Pair) -> Option<Arc<Certificate>> {
        let state = self.state();
        state.as_ref()?.ordered.iter().find(|ordered| ordered.pair == *pair)?.certificate.clone()
    }

    /// What an order came to whose certificate is kept there; of one that is ordered no more nothing is told.
    pub(super) fn order_ended(&self, pair: &Pair, well: bool) {
        let state = self.state();
        let mut ordered = state.iter().flat_map(|state| &state.ordered);
        if let Some(ordered) = ordered.find(|ordered| ordered.pair == *pair) {
            ordered.ended(well);
            self.tell_ordered(ordered);
        }
    }

    fn put(&self, acceptor: Option<Acceptor>) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = acceptor;
    }

    fn tell_ordered(&self, ordered: &Ordered) {
        if let Some(certificate) = &ordered.certificate {
            self.metrics.not_after(&ordered.pair.chain, certificate.not_after);
        }
        self.metrics.current(&ordered.pair.chain, ordered.is_current());
    }

    fn tell(&self, certificate: &Certificate) {
        self.metrics.certificate(&certificate.pair.chain, certificate.not_after);
    }

    fn reading(&self) -> MutexGuard<'_, ()> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Acceptor {
    /// A caller gets the usual handshake; an authority that asks for proof, one that asks nothing of it.
    async fn accept<S>(self, stream: S) -> std::io::Result<Accepted<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        match self.challenges {
            None => self.usual.accept(stream).await.map(Accepted::secure),
            // In a box of its own: it is larger than what nearly every listener needs.
            Some(challenges) => Box::pin(proving(self.usual, challenges, stream)).await,
        }
    }
}

async fn proving<S>(
    usual: TlsAcceptor,
    challenges: Arc<Challenges>,
    stream: S,
) -> std::io::Result<Accepted<S>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let begun = LazyConfigAcceptor::new(HelloReader::default(), stream).await?;
    let hello = begun.client_hello();
    if !asks_for_proof(&hello) {
        return begun.into_stream(Arc::clone(usual.config())).await.map(Accepted::secure);
    }
    let name = hello.server_name().map(str::to_ascii_lowercase);
    let config = challenges.config(name.as_deref()).await.map_err(std::io::Error::other)?;
    let mut stream = begun.into_stream(config).await?;
    // It has seen what it came for; whether it waits for our farewell is its affair.
    stream.shutdown().await.ok();
    Ok(Accepted::Challenge)
}

impl<S> Accepted<S> {
    fn secure(stream: TlsStream<S>) -> Self {
        let presented = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let client_names = presented.map(client_names).unwrap_or_default();
        Self::Secure(Secure { stream, client_names })
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
        let ordered = match files.acme.as_ref().map(Ordered::all).transpose() {
            Ok(ordered) => ordered.unwrap_or_default(),
            Err(trouble) => {
                troubles.push(trouble);
                Vec::new()
            }
        };
        Troubles::none_or(troubles)?;
        let challenges = files.acme.as_ref().map(|acme| Arc::new(Challenges::new(acme)));
        Ok(Self { files: files.clone(), certificates, ordered, roots, challenges })
    }

    fn config(&self) -> Result<Acceptor, Trouble> {
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
        let sni = Sni::new(self.certificates.clone(), &self.ordered);
        let mut config = builder.with_cert_resolver(Arc::new(sni));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        // Senders come back often: a ticket spares both sides a full handshake, whichever thread they meet. Early
        // data stays off: it can be replayed.
        config.ticketer = rustls::crypto::ring::Ticketer::new().map_err(|error| of_no_use(&error))?;
        Ok(Acceptor { usual: TlsAcceptor::from(Arc::new(config)), challenges: self.challenges.clone() })
    }
}
