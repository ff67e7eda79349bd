//! Providers as data: how to verify a delivery, where its items are, and what names each. Pure: bytes in;
//! signature good or bad, items and keys out. No tokio, no stores, no other room.

mod signature;

pub use signature::{BadKey, BadSignature, CannotPrepare, CannotSign, Resign, Signature, Verifier};

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
}

/// Where the items of a body are, and the parts that name each.
#[derive(Clone, Debug)]
pub struct ItemRules {}
