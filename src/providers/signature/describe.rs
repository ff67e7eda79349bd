//! Ways of signing, for people: where a signature stands, how it is written, what it covers.

use std::time::Duration;

use super::keys::KeyEncoding;
use super::{Method, Signature};

/// Texts of the file that are shown as they are.
#[derive(Clone, Debug)]
pub(super) struct AsWritten {
    pub(super) format: Option<String>,
    pub(super) signed: Vec<String>,
}

/// One way of signing, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    pub scheme: &'static str,
    pub place: String,
    /// How the value there is written, `sha256={hex}`; `None` where it is a secret and nothing else.
    pub format: Option<String>,
    /// Whether several may stand there side by side, with a space or the like between.
    pub several: bool,
    /// What is covered, `{timestamp}.{body}`: any of these. Empty where a secret is sent along, which covers nothing.
    pub signed: Vec<String>,
    /// Where the body's SHA-256 stands, for URLs signed in place of bodies.
    pub body_digest: Option<String>,
    /// Where the time of signing stands, if not in the signature's own value.
    pub timestamp: Option<String>,
    /// How old a stamp may be, where stamps are held to the clock.
    pub tolerance: Option<Duration>,
    /// Whether the key is the provider's public one; else it is the route's secret.
    pub public_key: bool,
    /// How the key is written, where not as plain text: `hex`, `base64`.
    pub key: Option<&'static str>,
    /// What stands before the key.
    pub key_prefix: Option<String>,
    /// Places, and the values that they have where this way is meant.
    pub when: Vec<(String, String)>,
    /// Only for deliveries, or secrets, that say so.
    pub special: bool,
}

impl Signature {
    /// Each way of signing, in the order in which they are looked for: for people.
    pub fn describe(&self) -> impl Iterator<Item = Described> {
        self.methods.iter().map(describe)
    }
}

fn describe(method: &Method) -> Described {
    Described {
        scheme: method.scheme.label(),
        place: method.place.to_string(),
        format: method.written.format.clone(),
        several: method.format.is_list() && !method.format.has_timestamp(),
        signed: method.written.signed.clone(),
        body_digest: method.body_digest.as_ref().map(ToString::to_string),
        timestamp: method.stamp.source.as_ref().map(ToString::to_string),
        tolerance: method.stamp.tolerance,
        public_key: method.scheme.is_asymmetric(),
        key: match method.key.encoding {
            KeyEncoding::Raw => None,
            KeyEncoding::Base64 => Some("base64"),
            KeyEncoding::Hex => Some("hex"),
        },
        key_prefix: method.key.prefix.clone(),
        when: method.when.iter().map(|(place, value)| (place.to_string(), value.clone())).collect(),
        special: !method.when.is_empty() || method.key.only_prefixed,
    }
}
