//! What every target shares: hostile bytes read as a delivery, and the providers to try it on.

use std::sync::{Arc, OnceLock};

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use umavez::providers::{Delivery, Items, Provider};

/// Header lines that one input may bring.
const HEADERS_MAX: usize = 64;

/// An input's header lines, up to an empty line, and the rest as the body.
pub struct Input<'a> {
    headers: HeaderMap,
    pub body: &'a [u8],
}

impl<'a> Input<'a> {
    /// Lines that no HTTP parser would let through are left out.
    pub fn of(bytes: &'a [u8]) -> Self {
        let mut headers = HeaderMap::new();
        let mut body = bytes;
        while let Some(end) = body.iter().position(|byte| *byte == b'\n') {
            let (line, rest) = body.split_at(end);
            body = rest.get(1..).unwrap_or_default();
            let line = line.trim_ascii();
            if line.is_empty() {
                break;
            }
            let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
            let (name, value) = line.split_at(colon);
            let name = HeaderName::from_bytes(name);
            let value = HeaderValue::from_bytes(value.get(1..).unwrap_or_default().trim_ascii());
            if let (Ok(name), Ok(value)) = (name, value)
                && headers.len() < HEADERS_MAX
            {
                headers.append(name, value);
            }
        }
        Self { headers, body }
    }

    /// The same headers, with these put in place of their namesakes.
    pub fn with(&self, changed: Vec<(HeaderName, HeaderValue)>) -> Self {
        let mut headers = self.headers.clone();
        for (name, value) in changed {
            headers.insert(name, value);
        }
        Self { headers, body: self.body }
    }

    /// As a delivery with this body.
    pub fn delivery<'b>(&'b self, body: &'b [u8]) -> Delivery<'b> {
        Delivery {
            method: &Method::POST,
            url: "https://hooks.example.com/webhooks/fuzz?token=a&topic=payment&id=1",
            headers: &self.headers,
            path_params: &[],
            raw_body: body,
            body,
        }
    }
}

/// Every shipped provider.
pub fn providers() -> &'static [Arc<Provider>] {
    static PROVIDERS: OnceLock<Vec<Arc<Provider>>> = OnceLock::new();
    PROVIDERS.get_or_init(|| Provider::names().into_iter().filter_map(Provider::shipped).collect())
}

/// What holds for the items of any body: inside it and in its order, and no part of a key blank.
pub fn check_items(items: &Items, body: &[u8]) {
    let mut from = 0;
    for item in &items.list {
        assert!(from <= item.span.start && item.span.start <= item.span.end, "items are in the body's order");
        assert!(item.span.end <= body.len(), "an item is inside the body");
        from = item.span.start;
        assert!(!item.place().is_empty());
        match &item.parts {
            Ok(parts) => assert!(
                !parts.is_empty() && parts.iter().all(|part| !part.trim_ascii().is_empty()),
                "no part is blank"
            ),
            Err(keyless) => assert!(!keyless.to_string().is_empty()),
        }
    }
}
