//! PEM files, bounded, with a word on how to mend what is wrong with one.

use std::io::Read as _;
use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::pem::{Error, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::Trouble;

/// Longest file that is read, bytes: the system's whole bundle of roots is a quarter of it.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// Longest chain.
const CHAIN_MAX: usize = 16;

/// A chain as it will be sent.
pub(super) fn chain(file: &Path) -> Result<Vec<CertificateDer<'static>>, Trouble> {
    let chain = certificates(file)?;
    if chain.len() > CHAIN_MAX {
        let mend = "name the file with one holder's chain, not a bundle of roots";
        return Err(Trouble::new(file, format!("holds {} certificates", chain.len()), mend));
    }
    Ok(chain)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, Trouble> {
    let bytes = read(file)?;
    let certificates: Result<Vec<_>, Error> = CertificateDer::pem_slice_iter(&bytes).collect();
    let certificates = certificates.map_err(|error| {
        Trouble::new(file, format!("is no PEM: {error}"), "was it written to its end? copy it again")
    })?;
    if certificates.is_empty() {
        let mend = if PrivateKeyDer::from_pem_slice(&bytes).is_ok() {
            "it holds a key: are chain and key in each other's place?"
        } else {
            "write it as PEM (-----BEGIN CERTIFICATE-----), the holder's own certificate first"
        };
        return Err(Trouble::new(file, "holds no certificate", mend));
    }
    Ok(certificates)
}

pub(super) fn key(file: &Path) -> Result<PrivateKeyDer<'static>, Trouble> {
    let bytes = read(file)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| {
        let text = String::from_utf8_lossy(&bytes);
        if text.contains("ENCRYPTED") {
            let mend =
                "write it without a passphrase (openssl pkey -in KEY -out PLAIN), readable by umavez only";
            return Trouble::new(file, "the key is encrypted", mend);
        }
        if !matches!(error, Error::NoItemsFound) {
            let mend = "was it written to its end? copy it again";
            return Trouble::new(file, format!("is no PEM: {error}"), mend);
        }
        let mend = if text.contains("CERTIFICATE") {
            "it holds a certificate: are chain and key in each other's place?"
        } else {
            "write it as PEM (-----BEGIN PRIVATE KEY-----)"
        };
        Trouble::new(file, "holds no private key", mend)
    })
}

/// The certificates of a file as roots of trust.
///
/// # Errors
/// When it can't be read, or holds none.
pub fn roots(file: &Path) -> Result<RootCertStore, Trouble> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots.add(certificate).map_err(|error| {
            let mend = "take it out of the file, or write it anew";
            Trouble::new(file, format!("holds a certificate that can't be a root: {error}"), mend)
        })?;
    }
    Ok(roots)
}

fn read(file: &Path) -> Result<Vec<u8>, Trouble> {
    let mut bytes = Vec::new();
    let read =
        std::fs::File::open(file).and_then(|open| open.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes));
    match read {
        Ok(length) if u64::try_from(length).is_ok_and(|length| length <= FILE_BYTES_MAX) => Ok(bytes),
        Ok(_) => Err(Trouble::new(file, "is longer than 1MiB", "name a PEM file")),
        Err(error) => {
            let mend = "mend the path, or let umavez's user read it";
            Err(Trouble::new(file, format!("cannot be read: {error}"), mend))
        }
    }
}
