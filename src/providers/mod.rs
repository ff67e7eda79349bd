//! Providers as data: how to verify a delivery, where its items are, and what names each. Pure: bytes in;
//! signature good or bad, items and keys out. No tokio, no stores, no other room.

use http::{HeaderMap, Method};

/// One delivery as it came, with its body decoded from any `Content-Encoding`.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'a> {
    pub method: &'a Method,
    /// The URL that the provider called, as the route's `public_url`, or `Host` and trusted forwarded headers, tell
    /// it: scheme, authority, path and query, byte for byte.
    pub url: &'a str,
    pub headers: &'a HeaderMap,
    /// Values of the route pattern's `{name}` segments, as they stand in the path (not %-decoded).
    pub path_params: &'a [(String, String)],
    /// The body as sent: what signatures cover.
    pub raw_body: &'a [u8],
    /// The body to read items from; the same bytes unless a `Content-Encoding` was undone.
    pub body: &'a [u8],
}

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

/// A provider file, parsed.
#[derive(Clone, Debug)]
pub struct Provider {
    pub name: String,
    pub hot_ttl: Duration,
    pub durable_ttl: Duration,
    pub in_flight_wait: Option<Duration>,
    pub subpaths: bool,
    pub done: Option<Vec<RangeInclusive<u16>>>,
    pub final_statuses: Vec<RangeInclusive<u16>>,
    pub duplicate_answer: Option<Answer>,
    pub strip_headers: Vec<http::HeaderName>,
    pub signature: Option<Signature>,
    pub rules: ItemRules,
}

#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub content_type: Option<String>,
    pub body: String,
}

#[derive(Clone, Debug)]
pub struct Signature {}

/// Where the items of a body are, and the parts that name each.
#[derive(Clone, Debug)]
pub struct ItemRules {}

#[derive(Debug)]
pub struct Items {
    pub list: Vec<Item>,
}

#[derive(Debug)]
pub struct Item {
    pub parts: Result<Vec<Box<[u8]>>, String>,
}

impl Item {
    pub fn place(&self) -> String {
        "$".to_owned()
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct KeyRuleError(String);

#[derive(Debug, thiserror::Error)]
#[error("{file}:{line}:{column}: {why}")]
pub struct SchemaError {
    pub file: String,
    pub line: usize,
    pub column: usize,
    pub why: String,
}

impl ItemRules {
    pub fn from_key(key: &[String]) -> Result<Self, KeyRuleError> {
        match key.iter().find(|part| part.starts_with("$[") || part.is_empty()) {
            Some(part) => Err(KeyRuleError(format!("{part:?} is no part"))),
            None => Ok(Self {}),
        }
    }

    pub fn items(&self, _delivery: &Delivery<'_>) -> Items {
        Items { list: Vec::new() }
    }
}

impl Provider {
    pub fn shipped(name: &str) -> Option<Arc<Self>> {
        let hours = |hours: u64| Duration::from_secs(hours * 3600);
        Self::names().any(|known| known == name).then(|| {
            Arc::new(Self {
                name: name.to_owned(),
                hot_ttl: if name == "evolution" { hours(24) } else { hours(72) },
                durable_ttl: hours(192),
                in_flight_wait: None,
                subpaths: name == "evolution",
                done: None,
                final_statuses: Vec::new(),
                duplicate_answer: None,
                strip_headers: Vec::new(),
                signature: (name != "evolution").then_some(Signature {}),
                rules: ItemRules {},
            })
        })
    }

    pub fn names() -> impl Iterator<Item = &'static str> {
        ["evolution", "hotmart", "meta", "stripe"].into_iter()
    }

    pub fn parse(file: &str, text: &str) -> Result<Self, SchemaError> {
        let wrong = |why: String| SchemaError { file: file.to_owned(), line: 1, column: 1, why };
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| wrong(error.to_string()))?;
        let name = table.get("name").and_then(toml::Value::as_str);
        let name = name.ok_or_else(|| wrong("name is missing".to_owned()))?.to_owned();
        let like = Self::shipped("meta").expect("it is listed");
        Ok(Self { name, ..(*like).clone() })
    }

    pub fn unsigned_key_headers(&self) -> Vec<http::HeaderName> {
        Vec::new()
    }
}
