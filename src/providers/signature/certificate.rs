//! Public keys out of PEM text: certificates and bare keys, one or several, as a provider publishes them. Whether a
//! certificate is still valid, and who vouches for it, is for the one who put it into the configuration.

use x509_parser::certificate::X509Certificate;
use x509_parser::pem::Pem;
use x509_parser::prelude::FromDer as _;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

/// A file with more is no key ring.
const KEYS_MAX: usize = 16;
/// What checks take.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

/// A key as the check wants it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PublicBytes {
    Ed25519(Vec<u8>),
    /// An uncompressed point.
    P256(Vec<u8>),
    /// PKCS #1 DER.
    Rsa(Vec<u8>),
}

/// Every key of the text's PEM blocks; `None` where it holds none, or one that isn't understood.
pub(super) fn keys(text: &str) -> Option<Vec<PublicBytes>> {
    let mut keys = Vec::new();
    for block in Pem::iter_from_buffer(text.as_bytes()) {
        let block = block.ok()?;
        let key = match block.label.as_str() {
            "CERTIFICATE" => {
                let (rest, certificate) = X509Certificate::from_der(&block.contents).ok()?;
                rest.is_empty().then(|| key_of(certificate.public_key()))?
            }
            "PUBLIC KEY" => {
                let (rest, info) = SubjectPublicKeyInfo::from_der(&block.contents).ok()?;
                rest.is_empty().then(|| key_of(&info))?
            }
            _ => None,
        };
        keys.push(key?);
        if keys.len() > KEYS_MAX {
            return None;
        }
    }
    (!keys.is_empty()).then_some(keys)
}

fn key_of(info: &SubjectPublicKeyInfo<'_>) -> Option<PublicBytes> {
    let bytes = info.subject_public_key.data.to_vec();
    match info.algorithm.algorithm.to_id_string().as_str() {
        "1.3.101.112" => (bytes.len() == 32).then_some(PublicBytes::Ed25519(bytes)),
        "1.2.840.10045.2.1" => point(bytes),
        "1.2.840.113549.1.1.1" => match info.parsed() {
            Ok(PublicKey::RSA(key)) => RSA_BITS.contains(&key.key_size()).then_some(PublicBytes::Rsa(bytes)),
            Ok(_) | Err(_) => None,
        },
        _ => None,
    }
}

/// A point of P-256, which alone of the usual curves has this length.
pub(super) fn point(bytes: Vec<u8>) -> Option<PublicBytes> {
    (bytes.len() == 65 && bytes.first() == Some(&4)).then_some(PublicBytes::P256(bytes))
}
