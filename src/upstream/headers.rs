//! What a proxy must take out of, and put into, the headers that pass through it. Pure: no I/O, no clock.
//!
//! Not touched: every other header, its order, its repetitions and its bytes. Names arrive in lower case, as
//! in HTTP/2. No `Via`, `User-Agent`, `Accept` or `Accept-Encoding` is added: the app sees the sender's own.

use std::net::IpAddr;

use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};

use super::forwarded::{self, is_claim};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// Headers of our own: nobody else may set one.
const OURS: &str = "umavez";

/// Meant for one hop, whatever `Connection` says. `Trailer` is not, but speaks of what a collected body lacks; where
/// trailers pass, `trailers` says so again.
const HOP_BY_HOP: [HeaderName; 9] = [
    TE,
    TRAILER,
    UPGRADE,
    KEEP_ALIVE,
    PROXY_CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TRANSFER_ENCODING,
    HTTP2_SETTINGS,
];

/// Who is at the other end of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    pub address: IpAddr,
    /// The connection is TLS.
    pub secure: bool,
    /// The peer is a proxy whose `Forwarded` and `X-Forwarded-*` are believed.
    pub trusted: bool,
}

impl Caller {
    /// The scheme that the peer used to reach us.
    pub(super) fn scheme(&self) -> &'static str {
        if self.secure { "https" } else { "http" }
    }
}

/// Makes a sender's request headers fit for the app: hop-by-hop fields go, what proxies say is put right.
pub fn to_app(headers: &mut HeaderMap, version: http::Version, caller: &Caller) {
    let found = Found::among(headers);
    if found.hop {
        let trailers = wants_trailers(headers);
        drop_hop_by_hop(headers);
        if trailers {
            headers.insert(TE, HeaderValue::from_static("trailers"));
        }
    }
    if found.expect
        && headers.get(EXPECT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
    {
        headers.remove(EXPECT); // answered by our own listener
    }
    if found.reserved {
        drop_reserved(headers);
    }
    if found.underscore {
        drop_lookalikes(headers);
    }
    if version == http::Version::HTTP_2 {
        join_cookies(headers);
    }
    forwarded::put_right(headers, caller, found.claim);
}

/// What a walk over the few headers of a message finds: hashing the name of each that might be there costs more.
#[derive(Default)]
struct Found {
    /// `Connection`, or something that is meant for one hop.
    hop: bool,
    expect: bool,
    reserved: bool,
    underscore: bool,
    /// What only a proxy may say.
    claim: bool,
}

impl Found {
    fn among(headers: &HeaderMap) -> Self {
        let mut found = Self::default();
        for name in headers.keys() {
            match name.as_str().as_bytes() {
                b"host" | b"user-agent" | b"accept" | b"content-type" | b"content-length" => {}
                b"connection" => found.hop = true,
                b"expect" => found.expect = true,
                _ if *name == REPLAYED || name.as_str().starts_with(OURS) => found.reserved = true,
                _ if HOP_BY_HOP.contains(name) => found.hop = true,
                text => {
                    found.underscore |= text.contains(&b'_');
                    found.claim |= is_claim(name.as_str());
                }
            }
        }
        found
    }
}

/// Makes an app's answer headers fit for the sender.
pub fn to_sender(headers: &mut HeaderMap) {
    if !Found::among(headers).hop {
        return;
    }
    if headers.contains_key(TRANSFER_ENCODING) {
        // It overrides the length, which says nothing then (RFC 9112, 6.3): passed on, it would lie about the body.
        headers.remove(CONTENT_LENGTH);
    }
    drop_hop_by_hop(headers);
}

/// Whether the body is as it comes, apart from chunks: the one coding that is undone here.
pub fn is_plainly_framed(headers: &HeaderMap) -> bool {
    let mut lines = headers.get_all(TRANSFER_ENCODING).iter();
    lines.all(|line| line.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked"))
}

/// Removes what only the gateway may say: the mark of a replay, and every header of our own.
pub fn drop_reserved(headers: &mut HeaderMap) {
    headers.remove(REPLAYED);
    drop_where(headers, |name| name.as_str().starts_with(OURS));
}

/// Says how long a collected body is, where the original said anything about it or there is one.
pub fn set_length(headers: &mut HeaderMap, length: usize) {
    let said = headers.remove(TRANSFER_ENCODING).is_some() | headers.contains_key(CONTENT_LENGTH);
    if said || length > 0 {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
}

/// The protocol that a request asks to switch to; none for `h2c`, which is our own hop's affair.
pub fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let asked = headers.get_all(CONNECTION).iter().any(|value| has_token(value, "upgrade"));
    let protocol = headers.get(UPGRADE)?;
    (asked && !has_token(protocol, "h2c")).then(|| protocol.clone())
}

/// Asks for, or confirms, a switch of protocols on this hop.
pub fn set_upgrade(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, protocol);
}

pub(super) fn drop_hop_by_hop(headers: &mut HeaderMap) {
    if headers.contains_key(CONNECTION) {
        drop_named_by_connection(headers);
    }
    drop_all(headers, &HOP_BY_HOP);
}

/// Usually none of them is there, and a walk over the few headers that are costs less than hashing every name.
pub(super) fn drop_all(headers: &mut HeaderMap, names: &[HeaderName]) {
    if headers.keys().any(|name| names.contains(name)) {
        for name in names {
            headers.remove(name);
        }
    }
}

fn drop_named_by_connection(headers: &mut HeaderMap) {
    let values: Vec<HeaderValue> = headers.get_all(CONNECTION).iter().cloned().collect();
    headers.remove(CONNECTION);
    for token in values.iter().flat_map(tokens) {
        // Host and the length belong to the message, not to the hop: naming them must not cut them off.
        match HeaderName::from_bytes(token) {
            Ok(name) if name != HOST && name != CONTENT_LENGTH => headers.remove(name),
            Ok(_) | Err(_) => None,
        };
    }
}

pub(super) fn drop_where(headers: &mut HeaderMap, is_meant: impl Fn(&HeaderName) -> bool) {
    let names: Vec<HeaderName> = headers.keys().filter(|name| is_meant(name)).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

/// Removes what only a proxy, or the gateway, may say, spelled with `_` for `-`. CGI, WSGI and PHP show an app both
/// spellings as one variable; no proxy writes this one, so whoever sent it is no proxy, not even a trusted one.
pub(super) fn drop_lookalikes(headers: &mut HeaderMap) {
    drop_where(headers, |name| {
        name.as_str().contains('_') && {
            let name = name.as_str().replace('_', "-");
            name.starts_with(OURS) || is_claim(&name) || REPLAYED == name.as_str()
        }
    });
}

/// HTTP/2 may split cookies into several fields; HTTP/1.1 knows only one.
fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(COOKIE).iter().nth(1).is_none() {
        return;
    }
    let crumbs: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if let Ok(value) = HeaderValue::from_bytes(&crumbs.join(b"; ".as_slice())) {
        headers.insert(COOKIE, value);
    }
}

pub(super) fn wants_trailers(headers: &HeaderMap) -> bool {
    headers.get_all(TE).iter().any(|value| has_token(value, "trailers"))
}

pub(super) fn has_token(value: &HeaderValue, wanted: &str) -> bool {
    tokens(value).any(|token| token.eq_ignore_ascii_case(wanted.as_bytes()))
}

fn tokens(value: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    value.as_bytes().split(|&byte| byte == b',').map(<[u8]>::trim_ascii).filter(|token| !token.is_empty())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::upstream) fn map(lines: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(
                HeaderName::from_bytes(name.as_bytes()).unwrap(),
                HeaderValue::from_str(value).unwrap(),
            );
        }
        headers
    }

    pub(in crate::upstream) fn lines(headers: &HeaderMap) -> Vec<String> {
        headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect()
    }

    pub(in crate::upstream) fn caller(trusted: bool) -> Caller {
        Caller { address: "192.0.2.7".parse().unwrap(), secure: false, trusted }
    }

    #[test]
    fn only_end_to_end_headers_reach_the_app() {
        let mut headers = map(&[
            ("connection", "keep-alive, X-Hop"),
            ("connection", "host, content-length"),
            ("host", "a.example"),
            ("content-length", "3"),
            ("x-hop", "1"),
            ("keep-alive", "timeout=9"),
            ("te", "gzip"),
            ("proxy-connection", "x"),
            ("proxy-authorization", "Basic eDp5"),
            ("umavez-key", "forged"),
            ("expect", "100-continue"),
            ("x-end", "keep"),
            ("x-end", "twice"),
        ]);
        to_app(&mut headers, http::Version::HTTP_11, &caller(false));
        let expected = [
            "host: a.example",
            "content-length: 3",
            "x-end: keep",
            "x-end: twice",
            "x-forwarded-for: 192.0.2.7",
            "x-forwarded-proto: http",
            "x-forwarded-host: a.example",
        ];
        let mut seen = lines(&headers);
        seen.sort();
        let mut expected: Vec<String> = expected.map(String::from).to_vec();
        expected.sort();
        assert_eq!(seen, expected);
    }

    #[test]
    fn cookies_of_http_2_become_one() {
        let mut headers = map(&[("cookie", "a=1"), ("cookie", "b=2")]);
        to_app(&mut headers, http::Version::HTTP_2, &caller(false));
        assert_eq!(headers.get_all(COOKIE).iter().count(), 1);
        assert_eq!(headers[COOKIE], "a=1; b=2");
    }

    #[test]
    fn an_upgrade_needs_both_headers() {
        let websocket = [("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")];
        assert!(upgrade(&map(&websocket)).is_some());
        assert!(upgrade(&map(&[("upgrade", "websocket")])).is_none());
        assert!(upgrade(&map(&[("connection", "upgrade"), ("upgrade", "h2c")])).is_none());
    }
}
