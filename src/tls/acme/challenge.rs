//! TLS-ALPN-01: the authority connects as any caller does, offers `acme-tls/1` and nothing else, and looks at the
//! certificate that it is shown. No HTTP is spoken on such a connection, and no certificate is asked of it.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::sync::Semaphore;

use super::{Acme, Cache};
use crate::tls::pem;

const PROTOCOL: &[u8] = b"acme-tls/1";

/// Challenges whose files are read at once: a file system that hangs takes no more threads than this.
const READING_MAX: usize = 4;

/// What proves a listener's names.
#[derive(Debug)]
pub(crate) struct Challenges {
    names: BTreeSet<String>,
    cache: Cache,
    reading: Arc<Semaphore>,
}

/// Whether this is an authority's question, and not a caller.
pub(crate) fn asks_for_proof(hello: &ClientHello<'_>) -> bool {
    let mut protocols = hello.alpn().into_iter().flatten();
    protocols.next() == Some(PROTOCOL) && protocols.next().is_none()
}

/// A certificate, with its key, that holds this proof for this name; PEM.
pub(super) fn proof(name: &str, digest: &[u8]) -> Result<String, rcgen::Error> {
    let mut params = CertificateParams::new(vec![name.to_owned()])?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    Ok(certificate.pem() + &key.serialize_pem())
}

impl Challenges {
    pub(crate) fn new(acme: &Acme) -> Self {
        let names = acme.names.iter().cloned().collect();
        Self { names, cache: Cache::of(acme), reading: Arc::new(Semaphore::new(READING_MAX)) }
    }

    /// What a handshake that asks for proof of a name is to be gone through with; it fails where nothing is proved.
    pub(crate) async fn config(&self, name: Option<&str>) -> Result<Arc<ServerConfig>, rustls::Error> {
        let shown = match name.and_then(|name| self.names.get(name)) {
            Some(name) => self.answer(name).await,
            None => None,
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::new(Answer(shown)));
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }

    async fn answer(&self, name: &str) -> Option<Arc<CertifiedKey>> {
        let reading = Arc::clone(&self.reading).acquire_owned().await.ok()?;
        let file = self.cache.challenge(name);
        let read = tokio::task::spawn_blocking(move || {
            let read = read(&file);
            drop(reading);
            read
        });
        read.await.ok().flatten()
    }
}

/// None where nothing is to be proved.
fn read(file: &Path) -> Option<Arc<CertifiedKey>> {
    let (chain, key) = (pem::chain(file).ok()?, pem::key(file).ok()?);
    let signing = rustls::crypto::ring::sign::any_supported_type(&key).ok()?;
    Some(Arc::new(CertifiedKey::new(chain, signing)))
}

#[derive(Debug)]
struct Answer(Option<Arc<CertifiedKey>>);

impl ResolvesServerCert for Answer {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.clone()
    }
}
