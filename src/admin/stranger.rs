//! Keeps web pages out: a browser on the operator's machine reaches what only that machine may, and any page that it
//! shows can have it send requests there. Pure: looks at headers, and asks for no token.

use std::net::IpAddr;

use http::HeaderMap;
use http::header::{HOST, HeaderName, HeaderValue, ORIGIN};
use http::uri::Authority;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Why a request is taken for a page's, not an operator's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stranger {
    /// The browser says that another site's page sends it.
    Page,
    /// It asks for a name that isn't this machine's: a page's own name, which leads here now (DNS rebinding).
    Name,
}

impl Stranger {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Page => "sent by a page of another site: ask from a command line, or type the address",
            Self::Name => {
                "Host is no name of this machine: ask by its address or as localhost, or set [listen] admin_token, \
                 with which any name does"
            }
        }
    }
}

/// Whether a request comes from a stranger's page. Where a token is asked for, any name does: no page knows the token.
pub(super) fn stranger(headers: &HeaderMap, has_token: bool) -> Option<Stranger> {
    let own_site = |site: &HeaderValue| [b"same-origin".as_slice(), b"none"].contains(&site.as_bytes());
    if !headers.get_all(SEC_FETCH_SITE).iter().all(own_site) {
        return Some(Stranger::Page);
    }
    let host = headers.get(HOST);
    if !headers.get_all(ORIGIN).iter().all(|origin| is_of(origin, host)) {
        return Some(Stranger::Page);
    }
    // HTTP/1.0 may name none; no browser speaks it.
    let named = host.is_some_and(|host| !has_token && !is_local(host));
    named.then_some(Stranger::Name)
}

/// Whether an origin is the very host that is asked. `null` is nobody's.
fn is_of(origin: &HeaderValue, host: Option<&HeaderValue>) -> bool {
    let origin = origin.as_bytes();
    let rest = origin.strip_prefix(b"http://").or_else(|| origin.strip_prefix(b"https://"));
    rest.zip(host).is_some_and(|(rest, host)| rest.eq_ignore_ascii_case(host.as_bytes()))
}

/// An address, which no page can make its own name lead to, or `localhost`.
fn is_local(host: &HeaderValue) -> bool {
    let Ok(authority) = Authority::try_from(host.as_bytes()) else { return false };
    let host = authority.host();
    let name = host.strip_suffix('.').unwrap_or(host);
    name.eq_ignore_ascii_case("localhost") || name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_another_site_is_a_stranger_and_an_operator_is_not() {
        use Stranger::{Name, Page};
        /// Headers; what is said of them without a token, and with one.
        type Row = (&'static [(&'static str, &'static str)], Option<Stranger>, Option<Stranger>);
        let table: &[Row] = &[
            (&[], None, None),
            (&[("host", "127.0.0.1:9180")], None, None),
            (&[("host", "10.1.2.3:9180")], None, None),
            (&[("host", "[::1]:9180")], None, None),
            (&[("host", "localhost:9180")], None, None),
            (&[("host", "LocalHost.")], None, None),
            (&[("host", "evil.example")], Some(Name), None),
            (&[("host", "evil.example:9180")], Some(Name), None),
            (&[("host", "127.0.0.1.evil.example")], Some(Name), None),
            (&[("host", "localhost.evil.example")], Some(Name), None),
            (&[("host", "umavez.internal")], Some(Name), None),
            (&[("host", "127.0.0.1:9180"), ("origin", "https://evil.example")], Some(Page), Some(Page)),
            (&[("host", "127.0.0.1:9180"), ("origin", "null")], Some(Page), Some(Page)),
            (&[("host", "localhost:9180"), ("origin", "http://localhost:3000")], Some(Page), Some(Page)),
            (&[("host", "localhost:9180"), ("origin", "http://localhost:9180")], None, None),
            (&[("host", "evil.example"), ("origin", "http://evil.example")], Some(Name), None),
            (&[("host", "127.0.0.1"), ("sec-fetch-site", "cross-site")], Some(Page), Some(Page)),
            (&[("host", "127.0.0.1"), ("sec-fetch-site", "same-site")], Some(Page), Some(Page)),
            (&[("host", "127.0.0.1"), ("sec-fetch-site", "same-origin")], None, None),
            (&[("host", "127.0.0.1"), ("sec-fetch-site", "none")], None, None),
        ];
        for (lines, open, closed) in table {
            let lines = lines
                .iter()
                .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
            let headers: HeaderMap = lines.collect();
            assert_eq!(stranger(&headers, false), *open, "{headers:?}");
            assert_eq!(stranger(&headers, true), *closed, "{headers:?}");
        }
    }
}
