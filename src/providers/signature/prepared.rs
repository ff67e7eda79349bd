//! One way of signing with one route's keys: whether a signature as it came holds, and the one that a filtered body has.
//! Which way decides about a delivery is the verifier's.

use std::borrow::Cow;

use base64::Engine as _;
use http::HeaderValue;

use super::format::{BASE64, Written};
use super::keys::{Key, same};
use super::place::BadSignature;
use super::template::{Scene, Template};
use super::{Method, Scheme, jwt};

#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) method: Method,
    /// Never empty.
    pub(super) keys: Vec<Key>,
}

/// One signature as it came.
#[derive(Debug)]
pub(super) struct Claim<'a> {
    pub(super) value: Cow<'a, [u8]>,
    pub(super) item: Option<&'a str>,
}

impl Prepared {
    /// Whether one signature holds; fresh only where `now_ms` is told.
    pub(super) fn holds(
        &self,
        claim: &Claim<'_>,
        scene: Scene<'_>,
        now_ms: Option<u64>,
    ) -> Result<(), BadSignature> {
        let method = &self.method;
        let written = method.written(&claim.value).ok_or_else(|| method.malformed())?;
        let read = method.stamp.read(scene.delivery, &written)?;
        if let Some(now_ms) = now_ms {
            method.stamp.fresh(read.as_deref(), now_ms)?;
        }
        let scene = Scene { timestamp: read.as_deref(), item: claim.item, ..scene };
        match method.scheme {
            Scheme::HmacSha256 | Scheme::HmacSha1 | Scheme::Sha256 => {
                self.matching(&scene, &written)?.map(|_| ()).ok_or_else(|| method.mismatch())
            }
            Scheme::Ed25519 | Scheme::EcdsaP256 | Scheme::RsaSha256 | Scheme::RsaSha1 => {
                self.public_key_holds(&scene, &written)
            }
            Scheme::Token => {
                self.token_holds(written.signatures.first().map_or(b"", |token| token.as_bytes()))
            }
            Scheme::Basic => self.token_holds(&basic(&claim.value).ok_or_else(|| method.malformed())?),
            Scheme::JwtHs256 => self.jwt_holds(&claim.value, now_ms.unwrap_or(0)),
        }
    }

    /// The text and the key under which one of the signatures is true.
    fn matching(
        &self,
        scene: &Scene<'_>,
        written: &Written<'_>,
    ) -> Result<Option<(&Template, &Key)>, BadSignature> {
        let encoding = self.method.format.encoding();
        let presented: Vec<Vec<u8>> =
            written.signatures.iter().filter_map(|text| encoding.decode(text)).collect();
        for text in &self.method.signed {
            for key in &self.keys {
                let Some(expected) = key.digest(text, scene)? else { continue };
                if presented.iter().any(|presented| same(presented, &expected)) {
                    return Ok(Some((text, key)));
                }
            }
        }
        Ok(None)
    }

    fn public_key_holds(&self, scene: &Scene<'_>, written: &Written<'_>) -> Result<(), BadSignature> {
        let encoding = self.method.format.encoding();
        for template in &self.method.signed {
            let mut text = Vec::with_capacity(scene.body.len() + 64);
            template.fill(scene, |piece| text.extend_from_slice(piece))?;
            for signature in written.signatures.iter().filter_map(|signature| encoding.decode(signature)) {
                let holds =
                    |key: &Key| matches!(key, Key::Public(key) if key.verify(&text, &signature).is_ok());
                if self.keys.iter().any(holds) {
                    return Ok(());
                }
            }
        }
        Err(self.method.mismatch())
    }

    fn token_holds(&self, presented: &[u8]) -> Result<(), BadSignature> {
        let holds = |key: &Key| matches!(key, Key::Token(token) if same(token, presented));
        if self.keys.iter().any(holds) { Ok(()) } else { Err(self.method.mismatch()) }
    }

    fn jwt_holds(&self, value: &[u8], now_ms: u64) -> Result<(), BadSignature> {
        let token = scheme_token(value, "bearer").ok_or_else(|| self.method.malformed())?;
        let end = self.keys.iter().find_map(|key| match key {
            Key::Hmac(key) => jwt::end_of(token, key),
            Key::Prefix(_) | Key::Token(_) | Key::Public(_) => None,
        });
        let end_s = end.ok_or_else(|| self.method.mismatch())?;
        let tolerance_s = self.method.stamp.tolerance.map_or(0, |tolerance| tolerance.as_secs());
        let past_s = (now_ms / 1000).saturating_sub(end_s);
        if past_s > tolerance_s {
            return Err(BadSignature::TooOld { age_s: past_s, tolerance_s });
        }
        Ok(())
    }

    /// The value that this method's header has for a new body; `None` where the delivery doesn't carry it.
    pub(super) fn signature_of(
        &self,
        scene: Scene<'_>,
        new_body: &[u8],
    ) -> Result<Option<HeaderValue>, BadSignature> {
        let method = &self.method;
        let delivery = scene.delivery;
        let claims = method.claims(delivery)?;
        let Some(claim) = claims.first() else { return Ok(None) };
        let Some(written) = method.written(&claim.value) else { return Ok(None) };
        let stamp = method.stamp.read(delivery, &written)?;
        let digest_holds = method.body_digest_holds(delivery)?;
        let came = Scene { timestamp: stamp.as_deref(), digest_holds, ..scene };
        let (text, matched) = match (method.signed.as_slice(), self.keys.as_slice()) {
            ([text], [key]) => (text, key),
            _ => self.matching(&came, &written)?.ok_or_else(|| method.mismatch())?,
        };
        let new = Scene { body: new_body, readable: new_body, ..came };
        // A list is read by apps with any of the secrets; a single value by those with the one that it came under.
        let keys = if method.format.is_list() { self.keys.as_slice() } else { std::slice::from_ref(matched) };
        let like = written.signatures.first().copied().unwrap_or_default();
        let mut signatures = Vec::with_capacity(keys.len());
        for key in keys {
            if let Some(digest) = key.digest(text, &new)? {
                signatures.push(method.format.encoding().encode(&digest, like));
            }
        }
        let value = method.format.write(stamp.as_deref(), &signatures);
        Ok(HeaderValue::try_from(value).ok())
    }
}

/// `user:password` out of `Basic dXNlcjpwYXNzd29yZA==`.
fn basic(value: &[u8]) -> Option<Vec<u8>> {
    BASE64.decode(scheme_token(value, "basic")?).ok()
}

/// What follows an authentication scheme's name.
fn scheme_token<'v>(value: &'v [u8], scheme: &str) -> Option<&'v str> {
    let (name, token) = std::str::from_utf8(value).ok()?.split_once(' ')?;
    name.eq_ignore_ascii_case(scheme).then(|| token.trim())
}
