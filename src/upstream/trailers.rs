//! Trailers: whether they are wanted, announced and taken, and what of them may pass. Pure: no I/O, no clock.

use http::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderValue, TE, TRAILER};

use super::forwarded::is_claim;
use super::headers::{
    drop_all, drop_hop_by_hop, drop_lookalikes, drop_reserved, drop_where, has_token, wants_trailers,
};

/// The trailers that a message announces.
pub fn announced(headers: &HeaderMap) -> Vec<HeaderValue> {
    headers.get_all(TRAILER).iter().cloned().collect()
}

/// Announces them on the next hop, whose body brings them.
pub fn announce(headers: &mut HeaderMap, trailers: Vec<HeaderValue>) {
    for fields in trailers {
        headers.append(TRAILER, fields);
    }
}

/// Whether who sent this takes trailers after an answer: HTTP/2 always, HTTP/1.1 where it says so.
pub fn takes_trailers(headers: &HeaderMap, version: http::Version) -> bool {
    version == http::Version::HTTP_2 || version == http::Version::HTTP_11 && wants_trailers(headers)
}

/// Says on an HTTP/1.1 connection to the app what `TE` is about: that trailers are taken, where the answer's go on
/// (`passing`), and for this hop alone, as RFC 9110 wants it (10.1.4); where they don't, nothing.
pub(super) fn put_te_right(headers: &mut HeaderMap, passing: bool) {
    if !headers.contains_key(TE) {
        return;
    }
    if !passing {
        headers.remove(TE);
    } else if !headers.get_all(CONNECTION).iter().any(|value| has_token(value, "te")) {
        headers.append(CONNECTION, HeaderValue::from_static("te"));
    }
}

/// Takes out of trailers what no header either brings past the gateway, in either direction.
pub fn fit_trailers(trailers: &mut HeaderMap) {
    drop_hop_by_hop(trailers);
    drop_reserved(trailers);
    drop_lookalikes(trailers);
    drop_where(trailers, |name| is_claim(name.as_str()));
    drop_all(trailers, &[HOST, CONTENT_LENGTH]);
}

#[cfg(test)]
mod tests {
    use super::super::headers::tests::{lines, map};
    use super::*;

    #[test]
    fn te_is_said_to_the_next_hop_alone_or_not_at_all() {
        // `TE: trailers` reached apps over HTTP/1.1 without `Connection: TE`, and on routes, which drop trailers.
        for (given, passing, said) in [
            (&[("te", "trailers")][..], true, &["connection: te", "te: trailers"][..]),
            (
                &[("te", "trailers"), ("connection", "upgrade")],
                true,
                &["connection: upgrade", "connection: te", "te: trailers"],
            ),
            (&[("te", "trailers"), ("connection", "te")], true, &["connection: te", "te: trailers"]),
            (&[("te", "trailers")], false, &[]),
            (&[], true, &[]),
        ] {
            let mut headers = map(given);
            put_te_right(&mut headers, passing);
            let (mut seen, mut said) = (lines(&headers), said.to_vec());
            seen.sort();
            said.sort_unstable();
            assert_eq!(seen, said, "{given:?} {passing}");
        }
    }
}
