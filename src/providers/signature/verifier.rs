//! Checks deliveries and signs filtered bodies, with keys that were prepared once.

use std::borrow::Cow;

use http::{HeaderName, HeaderValue};
use ring::digest;

use super::format::Written;
use super::keys::{Key, same};
use super::place::{BadSignature, Place, Source};
use super::prepared::{Claim, Prepared};
use super::template::{Scene, Template};
use super::{Method, Resign, json};
use crate::providers::Delivery;

/// A provider's signature with one route's keys.
#[derive(Debug)]
pub struct Verifier {
    methods: Vec<Prepared>,
    /// Whether two of them stand side by side in one list: then the first one there doesn't decide alone.
    side_by_side: bool,
    webhook_id: Option<String>,
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
        let methods: Vec<Prepared> = usable.map(|(method, keys)| Prepared { method, keys }).collect();
        let side_by_side =
            methods.iter().any(|one| methods.iter().any(|two| one.method.is_beside(&two.method)));
        Self { methods, side_by_side, webhook_id: None }
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
        self.proving(delivery, Some(now_ms)).map(drop)
    }

    /// Whether the delivery is the provider's own, however long ago it was signed.
    pub fn holds(&self, delivery: &Delivery<'_>) -> Result<(), BadSignature> {
        self.proving(delivery, None).map(drop)
    }

    /// The method by which the delivery is the provider's own; fresh only where `now_ms` is told.
    fn proving(&self, delivery: &Delivery<'_>, now_ms: Option<u64>) -> Result<&Prepared, BadSignature> {
        let (governing, claims) = self.governing(delivery)?;
        let refused = match self.claims_hold(governing, &claims, delivery, now_ms) {
            Err(mismatch @ BadSignature::Mismatch(_)) if self.side_by_side => mismatch,
            said => return said.map(|()| governing),
        };
        let mut beside = self.methods.iter().filter(|other| other.method.is_beside(&governing.method));
        let proving = beside.find(|other| {
            let claims = other.method.claims(delivery).unwrap_or_default();
            !claims.is_empty() && self.claims_hold(other, &claims, delivery, now_ms).is_ok()
        });
        proving.ok_or(refused)
    }

    fn claims_hold(
        &self,
        prepared: &Prepared,
        claims: &[Claim<'_>],
        delivery: &Delivery<'_>,
        now_ms: Option<u64>,
    ) -> Result<(), BadSignature> {
        let digest_holds = prepared.method.body_digest_holds(delivery)?;
        let scene = Scene { digest_holds, ..self.scene(delivery) };
        claims.iter().try_for_each(|claim| prepared.holds(claim, scene, now_ms))
    }

    /// The method that decides about a delivery that verified.
    fn deciding(&self, delivery: &Delivery<'_>) -> Result<&Prepared, BadSignature> {
        if self.side_by_side {
            return self.proving(delivery, None);
        }
        self.governing(delivery).map(|(prepared, _)| prepared)
    }

    fn scene<'a>(&'a self, delivery: &'a Delivery<'a>) -> Scene<'a> {
        Scene { webhook_id: self.webhook_id.as_deref(), ..Scene::of(delivery) }
    }

    /// As [`Signature::signs_body`](super::Signature::signs_body), for the methods that the route has keys for.
    pub fn signs_body(&self) -> bool {
        self.methods.iter().all(|prepared| prepared.method.signs_body())
    }

    /// As [`Signature::signs_url`](super::Signature::signs_url), for the methods that the route has keys for.
    pub fn signs_url(&self) -> bool {
        self.methods.iter().any(|prepared| prepared.method.signed.iter().any(Template::has_url))
    }

    /// Whether it reads anything inside the body: a field of a form, or of JSON. All else are the bytes as they came.
    pub fn reads_inside(&self) -> bool {
        self.methods.iter().any(|prepared| prepared.method.reads_inside())
    }

    /// What filtering this delivery's body needs so that the app's own check passes.
    pub fn can_sign(&self, delivery: &Delivery<'_>) -> Resign {
        self.deciding(delivery).map_or(Resign::NotNeeded, |prepared| {
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
        let governing = self.deciding(delivery)?;
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
    pub(super) fn claims<'a>(&self, delivery: &Delivery<'a>) -> Result<Vec<Claim<'a>>, BadSignature> {
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
                let body = json::body_text(delivery.body).unwrap_or("");
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

    /// Whether the other stands in the same list, signs the same text, and does so by the other sort of key: one match
    /// is enough then. Of one sort the first decides, which is the stronger.
    fn is_beside(&self, other: &Self) -> bool {
        self.place == other.place
            && self.format.is_list()
            && other.format.is_list()
            && self.signed == other.signed
            && self.scheme.is_asymmetric() != other.scheme.is_asymmetric()
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

    pub(super) fn written<'v>(&self, value: &'v [u8]) -> Option<Written<'v>> {
        self.format.read(std::str::from_utf8(value).ok()?)
    }

    /// Whether the delivery names its body's digest; `false` where it names none.
    pub(super) fn body_digest_holds(&self, delivery: &Delivery<'_>) -> Result<bool, BadSignature> {
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

    pub(super) fn mismatch(&self) -> BadSignature {
        BadSignature::Mismatch(self.place.to_string())
    }

    pub(super) fn malformed(&self) -> BadSignature {
        BadSignature::Malformed(self.place.to_string())
    }
}
