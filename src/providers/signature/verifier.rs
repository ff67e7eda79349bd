//! Checks deliveries and signs filtered bodies, with keys that were prepared once.

use std::borrow::Cow;

use base64::Engine as _;
use http::{HeaderName, HeaderValue};
use ring::digest;

use super::format::{BASE64, Written};
use super::keys::{Key, same};
use super::place::{BadSignature, Place, Source};
use super::template::{Scene, Template};
use super::{Method, Resign, Scheme, json, jwt};
use crate::providers::Delivery;

/// A provider's signature with one route's keys.
#[derive(Debug)]
pub struct Verifier {
    methods: Vec<Prepared>,
    webhook_id: Option<String>,
}

#[derive(Debug)]
struct Prepared {
    method: Method,
    /// Never empty.
    keys: Vec<Key>,
}

/// One signature as it came.
#[derive(Debug)]
struct Claim<'a> {
    value: Cow<'a, [u8]>,
    item: Option<&'a str>,
}

/// Why a filtered body can't be signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CannotSign {
    #[error("only the provider has the key that signs")]
    Asymmetric,
    #[error("the signature is in the {0}, not in a header")]
    NotInAHeader(String),
    #[error("the URL holds the digest of the body as it came")]
    DigestInTheUrl,
    #[error("the delivery as it came doesn't verify")]
    NotVerified(#[from] BadSignature),
}

impl Verifier {
    pub(super) fn new(methods: impl Iterator<Item = (Method, Vec<Key>)>) -> Self {
        let usable = methods.filter(|(_, keys)| !keys.is_empty());
        Self { methods: usable.map(|(method, keys)| Prepared { method, keys }).collect(), webhook_id: None }
    }

    /// With the id that the provider gave the webhook, where its signature covers that.
    #[must_use]
    pub fn for_webhook(mut self, id: Option<&str>) -> Self {
        self.webhook_id = id.map(str::to_owned);
        self
    }

    pub(super) fn is_empty(&self) -> bool {
        self.methods.is_empty()
    }

    /// Whether the delivery is the provider's own, and fresh where the scheme has a stamp.
    pub fn verify(&self, delivery: &Delivery<'_>, now_ms: u64) -> Result<(), BadSignature> {
        let (prepared, claims) = self.governing(delivery)?;
        let digest_holds = prepared.method.body_digest_holds(delivery)?;
        let scene = Scene { digest_holds, ..self.scene(delivery) };
        claims.iter().try_for_each(|claim| prepared.holds(claim, scene, now_ms))
    }

    fn scene<'a>(&'a self, delivery: &'a Delivery<'a>) -> Scene<'a> {
        Scene { webhook_id: self.webhook_id.as_deref(), ..Scene::of(delivery) }
    }

    /// As [`Signature::signs_body`](super::Signature::signs_body), for the methods that the route has keys for.
    pub fn signs_body(&self) -> bool {
        self.methods.iter().all(|prepared| prepared.method.signs_body())
    }

    /// Whether it reads anything inside the body: a field of a form, or of JSON. All else are the bytes as they came.
    pub fn reads_inside(&self) -> bool {
        self.methods.iter().any(|prepared| prepared.method.reads_inside())
    }

    /// What filtering this delivery's body needs so that the app's own check passes.
    pub fn can_sign(&self, delivery: &Delivery<'_>) -> Resign {
        self.governing(delivery).map_or(Resign::NotNeeded, |(prepared, _)| {
            if prepared.method.names_body(delivery) { Resign::Impossible } else { prepared.method.can_sign() }
        })
    }

    /// For a delivery that verified: the headers to put in place of its own, so that `new_body` verifies as it did. Same
    /// stamp, one signature per secret where the scheme lists them, every header that came. Empty where none is needed.
    pub fn sign(
        &self,
        delivery: &Delivery<'_>,
        new_body: &[u8],
    ) -> Result<Vec<(HeaderName, HeaderValue)>, CannotSign> {
        let (governing, _) = self.governing(delivery)?;
        if !governing.method.signs_body() {
            return Ok(Vec::new());
        }
        if governing.method.scheme.is_asymmetric() {
            return Err(CannotSign::Asymmetric);
        }
        if governing.method.place.header().is_none() {
            return Err(CannotSign::NotInAHeader(governing.method.place.to_string()));
        }
        if governing.method.names_body(delivery) {
            return Err(CannotSign::DigestInTheUrl);
        }
        let mut headers: Vec<(HeaderName, HeaderValue)> = Vec::new();
        for prepared in &self.methods {
            let Some(name) = prepared.method.place.header() else { continue };
            let is_governing = std::ptr::eq(prepared, governing);
            if prepared.method.can_sign() != Resign::WithSecret
                || headers.iter().any(|(done, _)| done == name)
            {
                continue;
            }
            match prepared.signature_of(self.scene(delivery), new_body) {
                Ok(Some(value)) => headers.push((name.clone(), value)),
                Ok(None) => {}
                Err(error) if is_governing => return Err(error.into()),
                // A weaker signature that was wrong as it came stays as it came.
                Err(_) => {}
            }
        }
        Ok(headers)
    }

    /// The first method whose signature the delivery carries.
    fn governing<'a>(&self, delivery: &Delivery<'a>) -> Result<(&Prepared, Vec<Claim<'a>>), BadSignature> {
        let mut missing = None;
        let mut unfit: Option<&Place> = None;
        for prepared in &self.methods {
            let place = &prepared.method.place;
            if unfit.is_some_and(|unfit| unfit != place) {
                continue;
            }
            let claims = prepared.method.claims(delivery)?;
            if claims.is_empty() {
                missing.get_or_insert(place);
            } else if claims.iter().all(|claim| prepared.method.written(&claim.value).is_some()) {
                return Ok((prepared, claims));
            } else {
                // Only another method that reads the same place may still understand what stands there.
                unfit.get_or_insert(place);
            }
        }
        Err(match (unfit, missing) {
            (Some(place), _) => BadSignature::Malformed(place.to_string()),
            (None, Some(place)) => BadSignature::Missing(place.to_string()),
            (None, None) => BadSignature::Missing("signature".to_owned()),
        })
    }
}

impl Method {
    /// The signatures that stand at the method's place; none means that the delivery doesn't use it.
    fn claims<'a>(&self, delivery: &Delivery<'a>) -> Result<Vec<Claim<'a>>, BadSignature> {
        for (source, wanted) in &self.when {
            let value = source.read(delivery, delivery.body, None)?.unwrap_or_default();
            let is_wanted = |found: &[u8]| found.trim_ascii() == wanted.as_bytes();
            let in_list = matches!(source, Source::Header(_));
            if !(is_wanted(&value) || in_list && value.split(|byte| *byte == b',').any(is_wanted)) {
                return Ok(Vec::new());
            }
        }
        match &self.place {
            Place::Once(source) => {
                let value = source.read(delivery, delivery.body, None)?;
                Ok(value.into_iter().map(|value| Claim { value, item: None }).collect())
            }
            Place::PerItem { items, signature } => {
                let body = std::str::from_utf8(delivery.body).unwrap_or("");
                let items = json::every(body, items).unwrap_or_default();
                let claims = items.into_iter().map(|item| {
                    let value = json::text(item, signature)
                        .ok_or_else(|| BadSignature::Missing(self.place.to_string()))?;
                    Ok(Claim { value: Cow::Owned(value.into_bytes()), item: Some(item) })
                });
                claims.collect()
            }
        }
    }

    /// As [`Signature::binds_body_of`](super::Signature::binds_body_of), by this method.
    pub(super) fn binds_body_of(&self, delivery: &Delivery<'_>) -> bool {
        let carried = || self.claims(delivery).map_or(true, |claims| !claims.is_empty());
        self.signs_body() && (self.names_body(delivery) || carried())
    }

    fn reads_inside(&self) -> bool {
        let when = self.when.iter().map(|(source, _)| source);
        let mut sources = when.chain(&self.body_digest).chain(&self.stamp.source);
        let placed_inside = match &self.place {
            Place::Once(source) => source.is_inside(),
            Place::PerItem { .. } => true,
        };
        placed_inside || sources.any(Source::is_inside) || self.signed.iter().any(Template::reads_inside)
    }

    fn written<'v>(&self, value: &'v [u8]) -> Option<Written<'v>> {
        self.format.read(std::str::from_utf8(value).ok()?)
    }

    /// Whether the delivery names its body's digest; `false` where it names none.
    fn body_digest_holds(&self, delivery: &Delivery<'_>) -> Result<bool, BadSignature> {
        let Some(source) = &self.body_digest else { return Ok(false) };
        let Some(named) = source.read(delivery, delivery.body, None)? else { return Ok(false) };
        let actual = digest::digest(&digest::SHA256, delivery.raw_body);
        if hex::decode(&named).is_ok_and(|named| same(&named, actual.as_ref())) {
            Ok(true)
        } else {
            Err(BadSignature::Mismatch(source.to_string()))
        }
    }

    /// Whether the delivery holds its body's digest where no filtering can change it.
    fn names_body(&self, delivery: &Delivery<'_>) -> bool {
        self.body_digest.as_ref().is_some_and(|source| {
            source.read(delivery, delivery.body, None).is_ok_and(|digest| digest.is_some())
        })
    }

    fn mismatch(&self) -> BadSignature {
        BadSignature::Mismatch(self.place.to_string())
    }

    fn malformed(&self) -> BadSignature {
        BadSignature::Malformed(self.place.to_string())
    }
}

impl Prepared {
    fn holds(&self, claim: &Claim<'_>, scene: Scene<'_>, now_ms: u64) -> Result<(), BadSignature> {
        let method = &self.method;
        let written = method.written(&claim.value).ok_or_else(|| method.malformed())?;
        let read = method.stamp.read(scene.delivery, &written)?;
        method.stamp.fresh(read.as_deref(), now_ms)?;
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
            Scheme::JwtHs256 => self.jwt_holds(&claim.value, now_ms),
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
    fn signature_of(&self, scene: Scene<'_>, new_body: &[u8]) -> Result<Option<HeaderValue>, BadSignature> {
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
