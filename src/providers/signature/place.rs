//! Where in a delivery a value stands, and reading it. A value that stands there twice is refused: the app might
//! read the other one.

use std::borrow::Cow;
use std::fmt;

use http::HeaderName;
use http::header::CONTENT_TYPE;

use super::json::{self, JsonPath};
use crate::providers::Delivery;

/// Why a delivery is not believed. Says what the sender wrote, never what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSignature {
    #[error("the delivery has no {0}")]
    Missing(String),
    #[error("the delivery has more than one {0}")]
    Repeated(String),
    #[error("{0} is not written as the provider writes it")]
    Malformed(String),
    #[error("{0} does not match the delivery and the configured secrets")]
    Mismatch(String),
    #[error("the delivery was signed {age_s} s ago; {tolerance_s} s are allowed")]
    TooOld { age_s: u64, tolerance_s: u64 },
    #[error("the delivery was signed {ahead_s} s in the future; {tolerance_s} s are allowed")]
    FromTheFuture { ahead_s: u64, tolerance_s: u64 },
    #[error("the signature does not cover this kind of body")]
    BodyNotCovered,
}

impl BadSignature {
    /// For metrics: one word of a closed set.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Missing(_) => "missing",
            Self::Repeated(_) => "repeated",
            Self::Malformed(_) => "malformed",
            Self::Mismatch(_) => "mismatch",
            Self::TooOld { .. } => "too_old",
            Self::FromTheFuture { .. } => "from_the_future",
            Self::BodyNotCovered => "body_not_covered",
        }
    }
}

/// Where signatures stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// One for the delivery.
    Once(Source),
    /// One in every item, and every one must hold.
    PerItem { items: JsonPath, signature: JsonPath },
}

impl Place {
    pub(super) fn header(&self) -> Option<&HeaderName> {
        match self {
            Self::Once(Source::Header(name)) => Some(name),
            Self::Once(Source::Query(_) | Source::Form(_) | Source::Json(_) | Source::Item(_))
            | Self::PerItem { .. } => None,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Once(source) => source.fmt(f),
            Self::PerItem { items, signature } => write!(f, "{signature} in {items}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Header(HeaderName),
    Query(String),
    Form(String),
    Json(JsonPath),
    /// Within one item.
    Item(JsonPath),
}

impl Source {
    /// `header:X-Name`, `query:name`, `form:name`, `json:a.b`, `item:a.b`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (kind, name) = text
            .split_once(':')
            .ok_or_else(|| format!("`{text}` should be header:, query:, form:, json: or item: and a name"))?;
        if name.is_empty() {
            return Err(format!("`{text}` names nothing"));
        }
        match kind {
            "header" => Ok(Self::Header(name.parse().map_err(|_| format!("`{name}` is no header name"))?)),
            "query" => Ok(Self::Query(name.to_owned())),
            "form" => Ok(Self::Form(name.to_owned())),
            "json" => Ok(Self::Json(JsonPath::parse_one(name)?)),
            "item" => Ok(Self::Item(JsonPath::parse_one(name)?)),
            _ => Err(format!("`{kind}` should be header, query, form, json or item")),
        }
    }

    /// Whether it is found in the body alone.
    pub(super) fn is_inside(&self) -> bool {
        match self {
            Self::Form(_) | Self::Json(_) | Self::Item(_) => true,
            Self::Header(_) | Self::Query(_) => false,
        }
    }

    /// The value there; `body` is what form and JSON sources are read from, `item` an item's JSON text.
    pub(super) fn read<'a>(
        &self,
        delivery: &Delivery<'a>,
        body: &'a [u8],
        item: Option<&'a str>,
    ) -> Result<Option<Cow<'a, [u8]>>, BadSignature> {
        match self {
            Self::Header(name) => {
                let values =
                    delivery.headers.get_all(name).iter().map(|value| Cow::Borrowed(value.as_bytes()));
                self.only(values)
            }
            Self::Query(name) => self.only(named(query(delivery.url).as_bytes(), name)),
            Self::Form(name) if is_form(delivery) => self.only(named(body, name)),
            Self::Form(_) => Ok(None),
            Self::Json(path) => Ok(json::body_text(body).and_then(|body| json_text(body, path))),
            Self::Item(path) => Ok(item.and_then(|item| json_text(item, path))),
        }
    }

    fn only<'a>(
        &self,
        mut values: impl Iterator<Item = Cow<'a, [u8]>>,
    ) -> Result<Option<Cow<'a, [u8]>>, BadSignature> {
        let first = values.next();
        if values.next().is_some() { Err(BadSignature::Repeated(self.to_string())) } else { Ok(first) }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header {name}"),
            Self::Query(name) => write!(f, "query parameter {name}"),
            Self::Form(name) => write!(f, "form field {name}"),
            Self::Json(path) => write!(f, "body field {path}"),
            Self::Item(path) => write!(f, "item field {path}"),
        }
    }
}

fn json_text<'a>(json: &str, path: &JsonPath) -> Option<Cow<'a, [u8]>> {
    json::text(json, path).map(|text| Cow::Owned(text.into_bytes()))
}

fn named<'a>(pairs: &'a [u8], name: &str) -> impl Iterator<Item = Cow<'a, [u8]>> {
    form_urlencoded::parse(pairs).filter(move |(key, _)| key == name).map(|(_, value)| match value {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    })
}

/// What follows the `?`, less a fragment.
fn query(url: &str) -> &str {
    let url = url.split_once('#').map_or(url, |(before, _)| before);
    url.split_once('?').map_or("", |(_, query)| query)
}

/// Whether the body is a form by its `Content-Type`.
pub(super) fn is_form(delivery: &Delivery<'_>) -> bool {
    let content_type = delivery.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let essence = content_type.split(';').next().unwrap_or("").trim();
    essence.eq_ignore_ascii_case("application/x-www-form-urlencoded")
}
