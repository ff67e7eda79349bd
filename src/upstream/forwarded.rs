//! What proxies say about a sender: dropped where a stranger says it, extended by what we see ourselves. Pure: no I/O,
//! no clock.

use std::net::IpAddr;

use http::header::{FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue};

use super::headers::{Caller, drop_where};

pub(super) const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
pub(super) const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
pub(super) const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// Whether only a proxy may say this about a sender: whatever begins like `X-Forwarded-For`, since apps take `-User`,
/// `-Email` or `-Client-Cert` for who asks; dropped when the peer isn't a trusted one. `name`: in lower case.
pub(super) fn is_claim(name: &str) -> bool {
    name.starts_with("x-forwarded") || name == "forwarded" || name == "x-real-ip"
}

/// What the app is told about who asks. `claimed`: something is there that [`is_claim`].
pub(super) fn put_right(headers: &mut HeaderMap, caller: &Caller, claimed: bool) {
    if claimed && !caller.trusted {
        drop_where(headers, |name| is_claim(name.as_str()));
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
        // An empty one names nobody.
        for value in headers.get_all(FORWARDED_FOR).iter().filter(|value| !is_blank(value)) {
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

fn is_blank(value: &HeaderValue) -> bool {
    value.as_bytes().trim_ascii().is_empty()
}

/// RFC 7239: extended where a trusted proxy speaks it, never begun by us.
fn forwarded(headers: &mut HeaderMap, caller: &Caller) {
    if !headers.contains_key(FORWARDED) {
        return;
    }
    let mut line = Vec::new();
    for value in headers.get_all(FORWARDED).iter().filter(|value| !is_blank(value)) {
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

#[cfg(test)]
mod tests {
    use super::super::headers::tests::{caller, lines, map};
    use super::super::headers::to_app;
    use super::super::trailers::fit_trailers;
    use super::*;

    #[test]
    fn a_stranger_cannot_claim_an_address_and_a_trusted_proxy_can() {
        let given = [
            ("host", "a.example"),
            ("x-forwarded-for", "10.0.0.1"),
            ("x-forwarded-for", "10.0.0.2"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "public.example"),
            ("forwarded", "for=10.0.0.1;proto=https"),
        ];
        let mut headers = map(&given);
        to_app(&mut headers, http::Version::HTTP_11, &caller(false));
        assert_eq!(headers[FORWARDED_FOR], "192.0.2.7");
        assert_eq!(headers[FORWARDED_PROTO], "http");
        assert_eq!(headers[FORWARDED_HOST], "a.example");
        assert!(!headers.contains_key(FORWARDED));

        let mut headers = map(&given);
        to_app(&mut headers, http::Version::HTTP_11, &caller(true));
        assert_eq!(headers.get_all(FORWARDED_FOR).iter().count(), 1);
        assert_eq!(headers[FORWARDED_FOR], "10.0.0.1, 10.0.0.2, 192.0.2.7");
        assert_eq!(headers[FORWARDED_PROTO], "https");
        assert_eq!(headers[FORWARDED_HOST], "public.example");
        assert_eq!(headers[FORWARDED], "for=10.0.0.1;proto=https, for=192.0.2.7;proto=http");
    }

    #[test]
    fn no_spelling_of_a_proxys_header_comes_from_a_sender() {
        // With `_` for `-` they reached the app, where CGI, WSGI and PHP read them as the real ones; and on what
        // passes through, a sender's mark of a replay did.
        let given = [
            ("host", "a.example"),
            ("x_forwarded_for", "10.0.0.1"),
            ("x-forwarded_proto", "https"),
            ("x_forwarded-host", "evil.example"),
            ("x_real_ip", "10.0.0.1"),
            ("x-real_ip", "10.0.0.1"),
            ("umavez_key", "forged"),
            ("idempotency_replayed", "true"),
            ("idempotency-replayed", "true"),
            ("x_other", "stays"),
        ];
        for trusted in [false, true] {
            let mut headers = map(&given);
            to_app(&mut headers, http::Version::HTTP_11, &caller(trusted));
            let mut seen = lines(&headers);
            seen.sort();
            let expected = [
                "host: a.example",
                "x-forwarded-for: 192.0.2.7",
                "x-forwarded-host: a.example",
                "x-forwarded-proto: http",
                "x_other: stays",
            ];
            assert_eq!(seen, expected, "{trusted}");
        }
        let mut trailers = map(&given);
        fit_trailers(&mut trailers);
        assert_eq!(lines(&trailers), ["x_other: stays"]);
    }

    #[test]
    fn whatever_begins_like_a_proxys_word_comes_from_trusted_proxies_alone() {
        // Eight names were dropped, and `X-Forwarded-User: admin` reached the app from anybody: apps behind proxies that
        // log people in take that, and `-Email` or `-Client-Cert`, for who asks.
        let kinds = "User Email Groups Access-Token Client-Cert Scheme Protocol By Uri Path Method Foo";
        let names = kinds.split(' ').map(|kind| format!("x-forwarded-{}", kind.to_ascii_lowercase()));
        for name in names.chain(["x-forwarded".to_owned()]) {
            for (spelling, trusted, passes) in [
                (name.clone(), false, false),
                (name.clone(), true, true),
                (name.replace('-', "_"), false, false),
                (name.replace('-', "_"), true, false),
                (name.replacen("d-", "d_", 1), true, !name.contains("d-")),
            ] {
                let given = [("host", "a.example"), (&spelling, "evil")];
                let mut headers = map(&given);
                to_app(&mut headers, http::Version::HTTP_11, &caller(trusted));
                assert_eq!(headers.contains_key(&spelling), passes, "{spelling} {trusted}");
                let mut trailers = map(&given);
                fit_trailers(&mut trailers);
                assert!(trailers.is_empty(), "{spelling}");
            }
        }
    }

    #[test]
    fn an_empty_word_of_a_trusted_proxy_names_nobody() {
        // It became the line `, 192.0.2.7`, whose first element was taken for the sender's address.
        let mut headers =
            map(&[("x-forwarded-for", ""), ("x-forwarded-for", "10.0.0.1"), ("forwarded", " ")]);
        to_app(&mut headers, http::Version::HTTP_11, &caller(true));
        assert_eq!(headers[FORWARDED_FOR], "10.0.0.1, 192.0.2.7");
        assert_eq!(headers[FORWARDED], "for=192.0.2.7;proto=http");
    }
}
