//! Certificates for stories: authorities, what they issue, and a folder to keep it in.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::support::unix_seconds;

const DAY: u64 = 86_400;

/// Signs certificates.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its own certificate, PEM.
    pub(crate) pem: String,
}

/// A certificate and its key, both PEM.
#[derive(Clone)]
pub(crate) struct Issued {
    pub(crate) chain: String,
    pub(crate) key: String,
    /// Seconds since the epoch.
    pub(crate) not_after: u64,
}

impl Authority {
    /// Of one name, like the others made so: only their keys tell them apart.
    pub(crate) fn new() -> Self {
        Self::named("stories' own authority")
    }

    pub(crate) fn named(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// For these names, from yesterday for ninety days.
    pub(crate) fn issue(&self, names: &[&str]) -> Issued {
        self.issue_until(names, unix_seconds() + 90 * DAY)
    }

    /// For these names, from a hundred days ago until this second.
    pub(crate) fn issue_until(&self, names: &[&str], not_after: u64) -> Issued {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        self.sign(CertificateParams::new(names).unwrap(), not_after)
    }

    /// For a client that is known by its common name alone.
    pub(crate) fn issue_common_name(&self, name: &str) -> Issued {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        self.sign(params, unix_seconds() + 90 * DAY)
    }

    fn sign(&self, mut params: CertificateParams, not_after: u64) -> Issued {
        let at = |seconds| date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds);
        params.not_before = at(unix_seconds() - 100 * DAY);
        params.not_after = at(not_after);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Issued { chain: certificate.pem(), key: key.serialize_pem(), not_after }
    }

    pub(crate) fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.pem.as_bytes()).unwrap()).unwrap();
        roots
    }
}

impl Issued {
    /// The certificate's own bytes.
    pub(crate) fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.chain.as_bytes()).unwrap()
    }

    pub(crate) fn key_der(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap()
    }
}

/// Where a story keeps its files.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Puts a whole file in place at once, as whoever renews certificates does.
    pub(crate) fn put(&self, name: &str, text: &str) -> PathBuf {
        let (path, new) = (self.0.path().join(name), self.0.path().join(format!("{name}.new")));
        std::fs::write(&new, text).unwrap();
        std::fs::rename(&new, &path).unwrap();
        path
    }

    /// `NAME.pem` and `NAME.key`; as a table that names them.
    pub(crate) fn pair(&self, name: &str, issued: &Issued) -> String {
        let chain = self.put(&format!("{name}.pem"), &issued.chain);
        let key = self.put(&format!("{name}.key"), &issued.key);
        format!("{{ chain = \"{}\", key = \"{}\" }}", chain.display(), key.display())
    }
}

/// `NAME.pem` and `NAME.key` in this folder: a certificate that vouches for itself.
pub(crate) fn pair(folder: &Path, name: &str) -> (PathBuf, PathBuf) {
    let made = rcgen::generate_simple_self_signed(["hooks.example.com".to_owned()]).unwrap();
    let (chain, key) = (folder.join(format!("{name}.pem")), folder.join(format!("{name}.key")));
    std::fs::write(&chain, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    (chain, key)
}
