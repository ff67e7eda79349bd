//! What proxies say about a sender: dropped where a stranger says it, extended by what we see ourselves. Pure: no I/O,
//! no clock.

use std::net::IpAddr;

use http::header::{FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue};

use super::headers::{Caller, drop_all};

pub(super) const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
pub(super) const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
pub(super) const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// What only a proxy may claim about a sender; dropped when the peer isn't a trusted one.
pub(super) const CLAIMS: [HeaderName; 8] = [
    FORWARDED,
    FORWARDED_PROTO,
    FORWARDED_HOST,
    HeaderName::from_static("x-forwarded-port"),
    HeaderName::from_static("x-forwarded-prefix"),
    HeaderName::from_static("x-forwarded-server"),
    HeaderName::from_static("x-forwarded-ssl"),
    HeaderName::from_static("x-real-ip"),
];

/// What the app is told about who asks. `claimed`: at least one of [`CLAIMS`] is there.
pub(super) fn put_right(headers: &mut HeaderMap, caller: &Caller, claimed: bool) {
    if claimed && !caller.trusted {
        drop_all(headers, &CLAIMS);
    }
    let claimed = claimed && caller.trusted;
    forwarded_for(headers, caller);
    if claimed {
        forwarded(headers, caller);
    }
    if !claimed || !headers.contains_key(FORWARDED_PROTO) {
        headers.insert(FORWARDED_PROTO, HeaderValue::from_static(caller.scheme()));
    }
    if (!claimed || !headers.contains_key(FORWARDED_HOST))
        && let Some(host) = headers.get(HOST).cloned()
    {
        headers.insert(FORWARDED_HOST, host);
    }
}

/// One line whose last element is the real peer; what came before counts only from a trusted proxy.
fn forwarded_for(headers: &mut HeaderMap, caller: &Caller) {
    let mut line = Vec::new();
    if caller.trusted {
        for value in headers.get_all(FORWARDED_FOR) {
            line.extend_from_slice(value.as_bytes());
            line.extend_from_slice(b", ");
        }
    }
    line.extend_from_slice(caller.address.to_canonical().to_string().as_bytes());
    // Pieces of valid values stay valid; a value that isn't is dropped rather than passed on.
    match HeaderValue::from_maybe_shared(bytes::Bytes::from(line)) {
        Ok(value) => headers.insert(FORWARDED_FOR, value),
        Err(_) => headers.remove(FORWARDED_FOR),
    };
}

/// RFC 7239: extended where a trusted proxy speaks it, never begun by us.
fn forwarded(headers: &mut HeaderMap, caller: &Caller) {
    if !headers.contains_key(FORWARDED) {
        return;
    }
    let mut line = Vec::new();
    for value in headers.get_all(FORWARDED) {
        line.extend_from_slice(value.as_bytes());
        line.extend_from_slice(b", ");
    }
    let node = match caller.address.to_canonical() {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("\"[{address}]\""),
    };
    line.extend_from_slice(format!("for={node};proto={}", caller.scheme()).as_bytes());
    if let Ok(value) = HeaderValue::from_maybe_shared(bytes::Bytes::from(line)) {
        headers.insert(FORWARDED, value);
    }
}
