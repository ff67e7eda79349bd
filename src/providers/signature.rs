//! Verifies and signs deliveries, one function per scheme. A stand-in until the schemes arrive: it accepts any
//! table and refuses nothing.

use serde::Deserialize;

#[derive(Clone, Debug, Deserialize)]
#[serde(transparent)]
pub struct Signature(toml::Table);

impl Signature {
    /// Whether the scheme covers the request header `name`.
    pub fn signs_header(&self, name: &str) -> bool {
        self.0.get("header").and_then(toml::Value::as_str).is_some_and(|header| header == name)
    }
}
