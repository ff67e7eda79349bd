//! How a provider proves that a delivery is its own: a table of its file, read into types that cannot be wrong, and
//! prepared with a route's secrets into a [`Verifier`]. Not here: whether a route asks for proof, and what a failed
//! one is answered.

mod certificate;
mod describe;
mod file;
mod format;
mod json;
mod jwt;
mod keys;
mod place;
mod prepared;
mod stamp;
mod template;
mod verifier;

pub use describe::Described;
pub(super) use keys::same;
pub use keys::{BadKey, CannotPrepare};
pub use place::BadSignature;
pub use verifier::{CannotSign, Verifier};

use std::time::Duration;

use http::{HeaderMap, HeaderName};
use serde::Deserialize;

use super::Delivery;
use super::schema::Redact;
use describe::AsWritten;
use format::Format;
use keys::KeyText;
use place::{Place, Source};
use template::{Template, in_url};

/// The `[signature]` table of a provider file.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "file::SignatureFile")]
pub struct Signature {
    /// Never empty. The first whose signature a delivery carries decides alone, so the strongest comes first and a
    /// weaker one beside it can't save a wrong one.
    methods: Vec<Method>,
}

/// One way of signing.
#[derive(Clone, Debug)]
struct Method {
    scheme: Scheme,
    /// What else a delivery must say to use this way.
    when: Vec<(Source, String)>,
    place: Place,
    format: Format,
    /// The texts that may be signed; any may match. Empty for schemes that sign nothing of the delivery.
    signed: Vec<Template>,
    /// Where the delivery names its body's SHA-256, for URLs signed in place of bodies.
    body_digest: Option<Source>,
    stamp: Stamp,
    key: KeyText,
    /// `format` and `signed` as the file has them.
    written: AsWritten,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Scheme {
    HmacSha256,
    HmacSha1,
    /// SHA-256 of the secret followed by the text.
    Sha256,
    Ed25519,
    EcdsaP256,
    /// PKCS #1 v1.5.
    RsaSha256,
    RsaSha1,
    /// The secret itself, sent along.
    Token,
    /// HTTP basic authentication; the secret is `user:password`.
    Basic,
    JwtHs256,
}

impl Scheme {
    /// Whether it signs what is sent; the others send a secret along.
    fn signs(self) -> bool {
        match self {
            Self::Token | Self::Basic | Self::JwtHs256 => false,
            Self::HmacSha256
            | Self::HmacSha1
            | Self::Sha256
            | Self::Ed25519
            | Self::EcdsaP256
            | Self::RsaSha256
            | Self::RsaSha1 => true,
        }
    }
}

impl Scheme {
    fn label(self) -> &'static str {
        match self {
            Self::HmacSha256 => "HMAC-SHA256",
            Self::HmacSha1 => "HMAC-SHA1",
            Self::Sha256 => "SHA-256 of secret and text",
            Self::Ed25519 => "Ed25519",
            Self::EcdsaP256 => "ECDSA P-256",
            Self::RsaSha256 => "RSA with SHA-256",
            Self::RsaSha1 => "RSA with SHA-1",
            Self::Token => "the secret itself",
            Self::Basic => "basic authentication",
            Self::JwtHs256 => "JWT (HS256)",
        }
    }

    fn is_asymmetric(self) -> bool {
        match self {
            Self::Ed25519 | Self::EcdsaP256 | Self::RsaSha256 | Self::RsaSha1 => true,
            Self::HmacSha256 | Self::HmacSha1 | Self::Sha256 | Self::Token | Self::Basic | Self::JwtHs256 => {
                false
            }
        }
    }
}

/// When a delivery says it was signed, and how far from now that may be.
#[derive(Clone, Debug)]
struct Stamp {
    /// `None` where the signature's own value holds it, or there is none.
    source: Option<Source>,
    unit: StampUnit,
    tolerance: Option<Duration>,
    ahead: Ahead,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
enum StampUnit {
    #[default]
    #[serde(rename = "s")]
    Seconds,
    #[serde(rename = "ms")]
    Milliseconds,
    /// Told by the number of digits.
    #[serde(rename = "either")]
    Either,
    /// A date and a time of day, UTC.
    #[serde(rename = "iso")]
    Iso,
}

/// What a stamp from the future means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Ahead {
    /// Held to the tolerance, as the past is.
    #[default]
    Refused,
    Accepted,
}

/// What a filtered body needs so that the app's own check passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resign {
    /// The signature doesn't cover the body as a whole.
    NotNeeded,
    WithSecret,
    /// The private key is the provider's alone, or the signature isn't in a header.
    Impossible,
}

impl Signature {
    /// With a route's secrets and public key, ready for use.
    pub fn prepare(&self, secrets: &[&[u8]], public_key: Option<&str>) -> Result<Verifier, CannotPrepare> {
        for secret in secrets {
            self.check_secret(secret)?;
        }
        if let Some(public_key) = public_key {
            self.check_public_key(public_key)?;
        }
        let verifier = Verifier::new(self.methods.iter().map(|method| {
            let keys = if method.scheme.is_asymmetric() {
                let read = public_key.and_then(|text| method.key.public(method.scheme, text).ok());
                read.unwrap_or_default()
            } else {
                secrets.iter().filter_map(|secret| method.key.secret(method.scheme, secret).ok()).collect()
            };
            (method.clone(), keys)
        }));
        if verifier.is_empty() { Err(CannotPrepare::Nothing { wanted: self.wanted() }) } else { Ok(verifier) }
    }

    /// Whether one of the methods can use this secret.
    pub fn check_secret(&self, secret: &[u8]) -> Result<(), CannotPrepare> {
        self.check(false, |method| method.key.secret(method.scheme, secret).map(|_| ()))
    }

    pub fn check_public_key(&self, text: &str) -> Result<(), CannotPrepare> {
        self.check(true, |method| method.key.public(method.scheme, text).map(|_| ()))
    }

    fn check(
        &self,
        asymmetric: bool,
        key: impl Fn(&Method) -> Result<(), BadKey>,
    ) -> Result<(), CannotPrepare> {
        let mut first = None;
        for method in self.methods.iter().filter(|method| method.scheme.is_asymmetric() == asymmetric) {
            match key(method) {
                Ok(()) => return Ok(()),
                Err(error) => {
                    first.get_or_insert(error);
                }
            }
        }
        let given = if asymmetric { "a public_key" } else { "a secret" };
        Err(first.map_or(CannotPrepare::NotUsed { given, wanted: self.wanted() }, CannotPrepare::Key))
    }

    /// Whether the preferred method uses a secret; otherwise it uses a public key.
    pub fn needs_secret(&self) -> bool {
        self.methods.first().is_some_and(|method| !method.scheme.is_asymmetric())
    }

    /// Whether any method can use a public key.
    pub fn takes_public_key(&self) -> bool {
        self.methods.iter().any(|method| method.scheme.is_asymmetric())
    }

    /// What filtering a body needs; [`Verifier::can_sign`] knows it of a delivery. Where items are signed one by one, a
    /// body that holds some is signed so; else the preferred method tells.
    pub fn can_sign(&self) -> Resign {
        let per_item = self.methods.iter().find(|method| matches!(method.place, Place::PerItem { .. }));
        per_item.or(self.methods.first()).map_or(Resign::NotNeeded, Method::can_sign)
    }

    /// Whether the delivery carries a signature that a change of its body makes stale, or something that may be one.
    pub fn binds_body_of(&self, delivery: &Delivery<'_>) -> bool {
        self.methods.iter().any(|method| method.binds_body_of(delivery))
    }

    /// Whether changing the body breaks the signature, whichever method is used. Where it doesn't, a key from the body
    /// proves nothing.
    pub fn signs_body(&self) -> bool {
        self.methods.iter().all(Method::signs_body)
    }

    /// Whether a header's value is covered by the signature, so that a key taken from it can be believed: by whichever
    /// way of signing may have proved the delivery. `has` tells what is known of its headers: whether one is there.
    pub fn signs_header(&self, name: &HeaderName, has: impl Fn(&HeaderName) -> Option<bool>) -> bool {
        self.methods.iter().enumerate().all(|(index, method)| {
            let absent = method.place.header().is_some_and(|place| has(place) == Some(false));
            // One before it whose signature is there decides alone, on every route that has a key for this one.
            let decided = self.methods[..index].iter().any(|before| {
                before.place != method.place
                    && before.when.is_empty()
                    && before.place.header().is_some_and(|place| has(place) == Some(true))
                    && before.scheme.is_asymmetric() == method.scheme.is_asymmetric()
                    && before.key == method.key
            });
            absent || decided || method.signs_header(name)
        })
    }

    /// Whether the value that a key part names in the body, the query or the path, as it is written there, is covered by
    /// every way of signing. Always so where the provider signs nothing and shows a token instead.
    pub fn covers(&self, key_part: &str) -> bool {
        self.methods.iter().all(|method| method.covers(key_part))
    }

    /// Whether a header that signatures stand in is there, whatever it says.
    pub fn is_shown_in(&self, headers: &HeaderMap) -> bool {
        self.methods.iter().filter_map(|method| method.place.header()).any(|name| headers.contains_key(name))
    }

    /// Whether the body is covered by a checksum alone.
    pub fn signs_checksum(&self) -> bool {
        self.methods.iter().any(|method| method.signed.iter().any(Template::has_checksum))
    }

    /// Whether the URL that the provider called is covered, so that the gateway must know it.
    pub fn signs_url(&self) -> bool {
        self.methods.iter().any(|method| method.signed.iter().any(Template::has_url))
    }

    /// Whether the key comes in a certificate, or another PEM file.
    pub fn takes_certificate(&self) -> bool {
        self.methods.iter().any(|method| match method.scheme {
            Scheme::RsaSha256 | Scheme::RsaSha1 => true,
            Scheme::HmacSha256
            | Scheme::HmacSha1
            | Scheme::Sha256
            | Scheme::Ed25519
            | Scheme::EcdsaP256
            | Scheme::Token
            | Scheme::Basic
            | Scheme::JwtHs256 => false,
        })
    }

    /// Whether the text that is signed holds the id that the provider gave the webhook.
    pub fn signs_webhook_id(&self) -> bool {
        self.methods.iter().any(|method| method.signed.iter().any(Template::has_webhook_id))
    }

    /// Where the secret itself is sent along.
    pub(super) fn credentials(&self) -> impl Iterator<Item = Redact> {
        let sent = |method: &&Method| !method.scheme.signs();
        self.methods.iter().filter(sent).map(|method| match &method.place {
            Place::Once(Source::Header(name)) => Redact::Header(name.clone()),
            Place::Once(Source::Query(name)) => Redact::Query(name.as_str().into()),
            Place::Once(Source::Form(name)) => Redact::Form(name.as_str().into()),
            Place::Once(Source::Json(path) | Source::Item(path)) => Redact::Body(format!("$.{path}")),
            Place::PerItem { items, signature } => Redact::Body(format!("$.{items}.{signature}")),
        })
    }

    fn wanted(&self) -> &'static str {
        if self.needs_secret() { "a secret" } else { "a public_key" }
    }
}

impl Method {
    fn signs_body(&self) -> bool {
        self.body_digest.is_some() || self.signed.iter().any(Template::has_body)
    }

    fn signs_header(&self, name: &HeaderName) -> bool {
        let stamped = matches!(&self.stamp.source, Some(Source::Header(stamp)) if stamp == name);
        self.signed.iter().any(|text| text.has_header(name) || (stamped && text.has_timestamp()))
    }

    fn covers(&self, key_part: &str) -> bool {
        let in_body = ["$", "@", "form:", "xml:"].iter().any(|start| key_part.starts_with(start));
        if self.signed.is_empty() || !(in_body || in_url(key_part)) {
            return true;
        }
        in_body && self.body_digest.is_some() || self.signed.iter().all(|text| text.covers(key_part))
    }

    fn can_sign(&self) -> Resign {
        if !self.signs_body() {
            Resign::NotNeeded
        } else if self.scheme.is_asymmetric() || self.place.header().is_none() {
            Resign::Impossible
        } else {
            Resign::WithSecret
        }
    }
}
