//! One certificate and its key: that they belong together, whom they name, and until when.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{Pair, Trouble, pem};
use crate::clock::UnixMillis;

/// Nearer to its end than this, a certificate is warned of. Renewal is due long before: at a third of its time.
const SOON_SECONDS: u64 = 14 * 86_400;

/// A certificate with its key, fit for use.
#[derive(Debug)]
pub struct Certificate {
    pub(super) pair: Pair,
    pub(super) key: Arc<CertifiedKey>,
    /// The host names it is for, in lower case, wildcards as they are written.
    pub names: Vec<String>,
    /// Seconds since the epoch.
    not_before: u64,
    pub(super) not_after: u64,
}

impl Certificate {
    /// Reads a pair.
    ///
    /// # Errors
    /// When a file can't be read, or the two don't belong together.
    pub fn load(pair: &Pair) -> Result<Self, Trouble> {
        let chain = pem::chain(&pair.chain)?;
        let key = pem::key(&pair.key)?;
        let signing = rustls::crypto::ring::sign::any_supported_type(&key).map_err(|error| {
            let mend = "make an ECDSA (P-256, P-384), Ed25519 or RSA key of at least 2048 bits";
            Trouble::new(&pair.key, format!("the key is of no use here: {error}"), mend)
        })?;
        let key = CertifiedKey::new(chain, signing);
        key.keys_match().map_err(|error| mismatch(pair, &key, &error))?;
        let leaf = key.cert.first().ok_or_else(|| unreadable(pair))?;
        let (_, read) = X509Certificate::from_der(leaf).map_err(|_| unreadable(pair))?;
        let seconds = |at: x509_parser::time::ASN1Time| u64::try_from(at.timestamp()).unwrap_or(0);
        let (not_before, not_after) =
            (seconds(read.validity().not_before), seconds(read.validity().not_after));
        let names = dns_names(&read);
        Ok(Self { pair: pair.clone(), key: Arc::new(key), names, not_before, not_after })
    }

    /// What works and is risky about it at that time.
    pub fn risk(&self, now: UnixMillis) -> Option<String> {
        let at = |seconds: u64| UnixMillis(seconds.saturating_mul(1000)).rfc3339();
        let file = self.pair.chain.display();
        let now = now.seconds();
        if now >= self.not_after {
            Some(format!("{file}: the certificate expired at {}: renew it", at(self.not_after)))
        } else if now < self.not_before {
            Some(format!("{file}: the certificate is valid only from {}", at(self.not_before)))
        } else if self.not_after - now < SOON_SECONDS {
            let days = (self.not_after - now) / 86_400;
            let end = at(self.not_after);
            Some(format!("{file}: the certificate expires in {days} days, at {end}: renew it"))
        } else {
            None
        }
    }

    /// Fails where it names other hosts.
    pub(super) fn is_for(&self, name: &str) -> Result<(), Trouble> {
        if self.names.iter().any(|own| own == name) {
            return Ok(());
        }
        let what = format!("the certificate is not for {name}, but for {}", self.names.join(", "));
        Err(Trouble::new(&self.pair.chain, what, "take the file away"))
    }

    /// When a third of its life is left, or up to a thirtieth earlier: `spread` of a thousand parts of that.
    pub(super) fn renewal_due(&self, spread: u64) -> UnixMillis {
        let life = self.not_after.saturating_sub(self.not_before).saturating_mul(1000);
        let end = self.not_after.saturating_mul(1000);
        UnixMillis(end.saturating_sub(life / 3).saturating_sub((life / 30).saturating_mul(spread) / 1000))
    }

    pub(super) fn tell_in_use(&self) {
        tracing::info!(
            file = %self.pair.chain.display(),
            not_after = %UnixMillis(self.not_after.saturating_mul(1000)).rfc3339(),
            "a new certificate is in use"
        );
    }

    /// Whether it is what the other is, byte for byte.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.pair == other.pair && self.key.cert == other.key.cert
    }
}

/// The names of a caller's certificate: its DNS names, and its subject's common name.
pub fn client_names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, read)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let mut names = dns_names(&read);
    for name in read.subject().iter_common_name().filter_map(|name| name.as_str().ok()) {
        let name = name.to_ascii_lowercase();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn dns_names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(extension)) = certificate.subject_alternative_name() else { return Vec::new() };
    let names = extension.value.general_names.iter();
    let dns = names.filter_map(|name| if let GeneralName::DNSName(name) = name { Some(name) } else { None });
    dns.map(|name| name.trim_end_matches('.').to_ascii_lowercase()).collect()
}

fn unreadable(pair: &Pair) -> Trouble {
    Trouble::new(&pair.chain, "the first certificate can't be read", "have it issued again")
}

fn mismatch(pair: &Pair, key: &CertifiedKey, error: &rustls::Error) -> Trouble {
    if !matches!(error, rustls::Error::InconsistentKeys(_)) {
        return Trouble::new(
            &pair.chain,
            format!("the first certificate is of no use: {error}"),
            "issue it again",
        );
    }
    let fits = |certificate: &CertificateDer<'static>| {
        CertifiedKey::new(vec![certificate.clone()], Arc::clone(&key.key)).keys_match().is_ok()
    };
    if key.cert.iter().skip(1).any(fits) {
        let mend = "put the holder's own certificate first, then the one that signed it, and so on";
        return Trouble::new(&pair.chain, "the chain is out of order", mend);
    }
    let what = format!("the key does not belong to the certificate in {}", pair.chain.display());
    Trouble::new(&pair.key, what, "name the key that the certificate was issued for; were both renewed?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_is_due_when_a_third_is_left_or_somewhat_earlier() {
        let made = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.pem");
        std::fs::write(&file, made.cert.pem() + &made.signing_key.serialize_pem()).unwrap();
        let mut certificate = Certificate::load(&Pair { chain: file.clone(), key: file }).unwrap();
        for (life, spread, left) in [(90, 0, 30), (90, 1000, 33), (90, 500, 31), (6, 0, 2), (0, 999, 0)] {
            (certificate.not_before, certificate.not_after) = (1000 * 86_400, (1000 + life) * 86_400);
            let due = certificate.renewal_due(spread).seconds();
            assert_eq!((certificate.not_after - due) / 86_400, left, "{life} days, {spread}");
        }
        assert!(certificate.is_for("a.example").is_ok() && certificate.is_for("b.example").is_err());
    }
}
