//! Providers as data: how to verify a delivery, where its items are, and what names each. Pure: bytes in;
//! signature good or bad, items and keys out. No tokio, no stores, no other room.

use http::{HeaderMap, Method};

mod catalogue;
mod cut;
mod describe;
mod fields;
mod form;
mod handshake;
mod item_text;
mod items;
mod json;
mod own_key;
mod part;
mod path;
mod read;
mod redact;
mod refusal;
mod rules;
mod schema;
mod secretive;
mod signature;
mod sources;
mod tree;
mod trie;
mod values;
mod walk;
mod xml;

pub use catalogue::UnknownProvider;
pub use describe::{DescribedCondition, DescribedItem, Wanted};
pub use fields::{Field, Fields, Stands};
pub use handshake::{Handshake, Needs};
pub use items::{Item, Items, Keyless, Part};
pub use own_key::KeyRuleError;
pub use redact::{HIDDEN, Redactor, Withheld};
pub use rules::ItemRules;
pub use schema::{Answer, Notes, Provider, Redact, SchemaError};
pub use signature::{
    BadKey, BadSignature, CannotPrepare, CannotSign, Described, Resign, Signature, Verifier,
};
pub use sources::KeyShape;
pub use tree::Unread;

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
