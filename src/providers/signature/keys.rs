//! Secrets and public keys: read as a provider writes them, kept in the form that checks use. Comparisons take the
//! same time wherever the difference is. Nothing here can be printed.

use std::fmt;

use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use ring::digest;
use ring::hmac;
use ring::signature::{
    ECDSA_P256_SHA256_ASN1, ED25519, RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY,
    RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey, VerificationAlgorithm,
};
use serde::Deserialize;

use super::Scheme;
use super::certificate::{self, PublicBytes, point};
use super::format::BASE64;
use super::place::BadSignature;
use super::template::{Scene, Template};

const BASE64_URL: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::URL_SAFE,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// What stands before the key itself in the usual container (SubjectPublicKeyInfo).
const P256_SPKI: &[u8] = &[
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
const ED25519_SPKI: &[u8] = &[0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// Why secrets and a provider's signature don't go together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CannotPrepare {
    #[error(transparent)]
    Key(#[from] BadKey),
    #[error("the provider's signature needs {wanted}")]
    Nothing { wanted: &'static str },
    #[error("the provider's signature has no use for {given}; it needs {wanted}")]
    NotUsed { given: &'static str, wanted: &'static str },
}

/// What is wrong with a secret or public key, without showing it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadKey {
    #[error("the secret is empty")]
    Empty,
    #[error("the secret should begin with `{0}`")]
    NoPrefix(String),
    #[error("the secret should be base64 text")]
    NotBase64,
    #[error("the secret should be hex digits")]
    NotHex,
    #[error("the secret should be written user:password")]
    NotUserAndPassword,
    #[error("the public key should be an Ed25519 key of 32 bytes, in {0} or PEM")]
    NotEd25519(&'static str),
    #[error("the public key should be a P-256 key, in {0} or PEM")]
    NotP256(&'static str),
    #[error(
        "the public key should be PEM text: the provider's certificates, each with an RSA key of 2048 bits or more"
    )]
    NotRsa,
}

/// How a provider writes the key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KeyText {
    pub(super) encoding: KeyEncoding,
    /// Stripped where it stands.
    pub(super) prefix: Option<String>,
    /// Whether secrets without the prefix belong to another method.
    pub(super) only_prefixed: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum KeyEncoding {
    #[default]
    Raw,
    Base64,
    Hex,
}

pub(super) enum Key {
    Hmac(hmac::Key),
    /// Hashed in front of the text.
    Prefix(Vec<u8>),
    Token(Vec<u8>),
    Public(UnparsedPublicKey<Vec<u8>>),
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl KeyText {
    pub(super) fn secret(&self, scheme: Scheme, secret: &[u8]) -> Result<Key, BadKey> {
        let bytes = self.decode(secret)?;
        if bytes.is_empty() {
            return Err(BadKey::Empty);
        }
        match scheme {
            Scheme::HmacSha256 | Scheme::JwtHs256 => Ok(Key::Hmac(hmac::Key::new(hmac::HMAC_SHA256, &bytes))),
            Scheme::HmacSha1 => Ok(Key::Hmac(hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &bytes))),
            Scheme::Sha256 => Ok(Key::Prefix(bytes)),
            Scheme::Basic if !bytes.contains(&b':') => Err(BadKey::NotUserAndPassword),
            Scheme::Token | Scheme::Basic => Ok(Key::Token(bytes)),
            Scheme::Ed25519 => Err(BadKey::NotEd25519(self.encoding.name())),
            Scheme::EcdsaP256 => Err(BadKey::NotP256(self.encoding.name())),
            Scheme::RsaSha256 | Scheme::RsaSha1 => Err(BadKey::NotRsa),
        }
    }

    /// Every key of the text: one as the provider writes it, or PEM blocks, each a certificate or a key.
    pub(super) fn public(&self, scheme: Scheme, text: &str) -> Result<Vec<Key>, BadKey> {
        let wrong = || match scheme {
            Scheme::Ed25519 => BadKey::NotEd25519(self.encoding.name()),
            Scheme::EcdsaP256 => BadKey::NotP256(self.encoding.name()),
            Scheme::RsaSha256 | Scheme::RsaSha1 => BadKey::NotRsa,
            Scheme::HmacSha256
            | Scheme::HmacSha1
            | Scheme::Sha256
            | Scheme::Token
            | Scheme::Basic
            | Scheme::JwtHs256 => BadKey::Empty,
        };
        let read = if text.contains("-----BEGIN") {
            certificate::keys(text)
        } else {
            self.decode(text.trim().as_bytes())
                .ok()
                .and_then(|bytes| bare(scheme, &bytes))
                .map(|key| vec![key])
        };
        let keys = read.ok_or_else(wrong)?.into_iter().map(|key| match (key, scheme) {
            (PublicBytes::Ed25519(bytes), Scheme::Ed25519) => Ok(public(&ED25519, bytes)),
            (PublicBytes::P256(bytes), Scheme::EcdsaP256) => Ok(public(&ECDSA_P256_SHA256_ASN1, bytes)),
            (PublicBytes::Rsa(bytes), Scheme::RsaSha256) => Ok(public(&RSA_PKCS1_2048_8192_SHA256, bytes)),
            (PublicBytes::Rsa(bytes), Scheme::RsaSha1) => {
                Ok(public(&RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY, bytes))
            }
            (PublicBytes::Ed25519(_) | PublicBytes::P256(_) | PublicBytes::Rsa(_), _) => Err(wrong()),
        });
        keys.collect()
    }

    fn decode(&self, text: &[u8]) -> Result<Vec<u8>, BadKey> {
        let stripped = self.prefix.as_ref().and_then(|prefix| text.strip_prefix(prefix.as_bytes()));
        if let (None, Some(prefix), true) = (stripped, &self.prefix, self.only_prefixed) {
            return Err(BadKey::NoPrefix(prefix.clone()));
        }
        let text = stripped.unwrap_or(text);
        match self.encoding {
            KeyEncoding::Raw => Ok(text.to_vec()),
            KeyEncoding::Hex => hex::decode(text).map_err(|_| BadKey::NotHex),
            KeyEncoding::Base64 => {
                BASE64.decode(text).or_else(|_| BASE64_URL.decode(text)).map_err(|_| BadKey::NotBase64)
            }
        }
    }
}

impl KeyEncoding {
    fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw bytes",
            Self::Base64 => "base64",
            Self::Hex => "hex",
        }
    }
}

impl Key {
    /// The digest that a true signature of the text has; `None` for keys that make none.
    pub(super) fn digest(&self, text: &Template, scene: &Scene<'_>) -> Result<Option<Vec<u8>>, BadSignature> {
        match self {
            Self::Hmac(key) => {
                let mut context = hmac::Context::with_key(key);
                text.fill(scene, |piece| context.update(piece))?;
                Ok(Some(context.sign().as_ref().to_vec()))
            }
            Self::Prefix(secret) => {
                let mut context = digest::Context::new(&digest::SHA256);
                context.update(secret);
                text.fill(scene, |piece| context.update(piece))?;
                Ok(Some(context.finish().as_ref().to_vec()))
            }
            Self::Token(_) | Self::Public(_) => Ok(None),
        }
    }
}

/// Whether two texts are equal, in a time that tells only their lengths.
pub(in crate::providers) fn same(left: &[u8], right: &[u8]) -> bool {
    let difference = left.iter().zip(right).fold(0, |seen, (l, r)| std::hint::black_box(seen | (l ^ r)));
    left.len() == right.len() && difference == 0
}

fn public(algorithm: &'static dyn VerificationAlgorithm, bytes: Vec<u8>) -> Key {
    Key::Public(UnparsedPublicKey::new(algorithm, bytes))
}

/// A key without PEM around it: its bytes, or those in the usual container.
fn bare(scheme: Scheme, bytes: &[u8]) -> Option<PublicBytes> {
    match scheme {
        Scheme::Ed25519 => {
            let key = bytes.strip_prefix(ED25519_SPKI).unwrap_or(bytes);
            (key.len() == 32).then(|| PublicBytes::Ed25519(key.to_vec()))
        }
        Scheme::EcdsaP256 => point(bytes.strip_prefix(P256_SPKI).unwrap_or(bytes).to_vec()),
        // RSA keys come in PEM alone, and the rest have no public key.
        Scheme::RsaSha256
        | Scheme::RsaSha1
        | Scheme::HmacSha256
        | Scheme::HmacSha1
        | Scheme::Sha256
        | Scheme::Token
        | Scheme::Basic
        | Scheme::JwtHs256 => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_equal_bytes_are_the_same() {
        for (left, right, expected) in
            [("", "", true), ("a", "a", true), ("a", "b", false), ("a", "ab", false), ("ab", "a", false)]
        {
            assert_eq!(same(left.as_bytes(), right.as_bytes()), expected, "{left} {right}");
        }
    }

    #[test]
    fn keys_are_read_as_their_provider_writes_them() {
        let whsec = KeyText {
            encoding: KeyEncoding::Base64,
            prefix: Some("whsec_".to_owned()),
            only_prefixed: false,
        };
        assert_eq!(whsec.decode(b"whsec_aGk="), Ok(b"hi".to_vec()));
        assert_eq!(whsec.decode(b"aGk"), Ok(b"hi".to_vec()));
        assert_eq!(whsec.decode(b"whsec_%%"), Err(BadKey::NotBase64));
        let only = KeyText { only_prefixed: true, ..whsec };
        assert_eq!(only.decode(b"aGk="), Err(BadKey::NoPrefix("whsec_".to_owned())));
        let raw = KeyText::default();
        assert_eq!(raw.secret(Scheme::HmacSha256, b"").err(), Some(BadKey::Empty));
        assert_eq!(raw.secret(Scheme::Basic, b"user").err(), Some(BadKey::NotUserAndPassword));
    }
}
