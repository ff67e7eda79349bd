//! Signatures without sockets: fixtures, hand-made deliveries of every scheme, hostile ones.

mod fixtures;
mod hostile;
mod interop;
mod schemes;

use http::header::HeaderMap;
use http::{HeaderName, HeaderValue, Method};
use umavez::providers::{BadSignature, Delivery, Provider, Signature, Verifier};

/// 2026-08-10T12:00:00Z, when the fixtures were signed.
pub(crate) const SIGNED_AT_MS: u64 = 1_786_363_200_000;

/// The signature of a provider's file; `None` where it has none.
pub(crate) fn signature(provider: &str) -> Option<Signature> {
    Provider::shipped(provider).unwrap().signature.clone()
}

pub(crate) fn verifier(provider: &str, secrets: &[&str]) -> Verifier {
    let secrets: Vec<&[u8]> = secrets.iter().map(|secret| secret.as_bytes()).collect();
    signature(provider).unwrap().prepare(&secrets, None).unwrap()
}

pub(crate) fn with_public_key(provider: &str, key: &str) -> Verifier {
    signature(provider).unwrap().prepare(&[], Some(key)).unwrap()
}

/// A delivery that owns its parts.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) method: Method,
    pub(crate) url: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Sent {
    pub(crate) fn new(body: impl Into<Vec<u8>>) -> Self {
        Self {
            method: Method::POST,
            url: "https://hooks.example.com/hooks/in".to_owned(),
            headers: HeaderMap::new(),
            body: body.into(),
        }
    }

    pub(crate) fn url(mut self, url: &str) -> Self {
        self.url = url.to_owned();
        self
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.append(name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap());
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.headers.remove(name);
        self
    }

    pub(crate) fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    pub(crate) fn delivery(&self) -> Delivery<'_> {
        Delivery {
            method: &self.method,
            url: &self.url,
            headers: &self.headers,
            path_params: &[],
            raw_body: &self.body,
            body: &self.body,
        }
    }

    pub(crate) fn verify(&self, verifier: &Verifier) -> Result<(), BadSignature> {
        verifier.verify(&self.delivery(), SIGNED_AT_MS)
    }

    /// The delivery that an app gets after its body was filtered.
    pub(crate) fn filtered(&self, verifier: &Verifier, body: &[u8]) -> Self {
        let mut filtered = self.clone().body(body);
        for (name, value) in verifier.sign(&self.delivery(), body).unwrap() {
            filtered.headers.insert(name, value);
        }
        filtered
    }
}

/// Signs as a provider does, with code that shares nothing with what is tested but the primitives.
pub(crate) mod sender {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use ring::{digest, hmac};

    pub(crate) fn hmac_sha256(key: &[u8], text: &[u8]) -> Vec<u8> {
        hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text).as_ref().to_vec()
    }

    pub(crate) fn hmac_sha1(key: &[u8], text: &[u8]) -> Vec<u8> {
        hmac::sign(&hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, key), text).as_ref().to_vec()
    }

    pub(crate) fn sha256(text: &[u8]) -> Vec<u8> {
        digest::digest(&digest::SHA256, text).as_ref().to_vec()
    }

    pub(crate) fn base64(bytes: &[u8]) -> String {
        STANDARD.encode(bytes)
    }
}

pub(crate) fn assert_refused(sent: &Sent, verifier: &Verifier, label: &str) {
    let error = sent.verify(verifier).expect_err(label);
    assert_eq!(error.label(), label, "{error}");
}
