//! URLs on both sides of the gateway: the one that a provider called, which its signature may cover, and the
//! one that the app is asked for. Path and query are never decoded, normalised or put together anew.

use http::header::{FORWARDED, HOST, HeaderMap};
use http::uri::{Authority, PathAndQuery};
use http::{HeaderValue, Uri, Version};

use super::headers::Caller;
use super::outcome::Cause;
use crate::config::Target;

/// The URL that the provider called, byte for byte where we can know it: the route's own `public_url` (whole, or less
/// the path that reaches us: a proxy before us may cut off a prefix), else what a trusted proxy says, else `Host`.
/// Where a proxy may also have put another path in place of the provider's, [`whole_url`] is the other reading.
pub fn public_url(uri: &Uri, headers: &HeaderMap, caller: &Caller, configured: Option<&str>) -> String {
    let path = uri.path_and_query().map_or("/", PathAndQuery::as_str);
    if let Some(base) = configured {
        return joined(base, path);
    }
    let said = |name: &str, parameter: &str| {
        if caller.trusted { first(headers, name).or_else(|| forwarded(headers, parameter)) } else { None }
    };
    let scheme = said("x-forwarded-proto", "proto")
        .unwrap_or_else(|| if caller.secure { "https" } else { "http" }.to_owned());
    let host = said("x-forwarded-host", "host")
        .or_else(|| headers.get(HOST).map(text))
        .or_else(|| uri.authority().map(|authority| authority.as_str().to_owned()))
        .unwrap_or_default();
    format!("{scheme}://{host}{path}")
}

/// The other reading of a route's `configured` URL: as it stands, with the request's query. `None` where it has no path
/// of its own, or ends with the request's: then [`public_url`] has said all it can mean.
pub fn whole_url(uri: &Uri, configured: &str) -> Option<String> {
    let path_and_query = uri.path_and_query().map_or("/", PathAndQuery::as_str);
    let (path, query) = path_and_query.split_at(path_and_query.find('?').unwrap_or(path_and_query.len()));
    let base = bare(configured);
    (own_path(base).is_some() && !ends_with(base, path)).then(|| format!("{base}{query}"))
}

/// `base` with the path and query of a request; a path that `base` ends with already is not doubled.
fn joined(base: &str, path_and_query: &str) -> String {
    let (path, query) = path_and_query.split_at(path_and_query.find('?').unwrap_or(path_and_query.len()));
    let base = bare(base);
    if ends_with(base, path) {
        format!("{base}{query}")
    } else {
        format!("{}{path}{query}", base.trim_end_matches('/'))
    }
}

/// Less a query and a fragment, which no setting can know.
fn bare(url: &str) -> &str {
    url.split(['?', '#']).next().unwrap_or(url)
}

/// What follows the authority's `/`, if there is one.
fn own_path(url: &str) -> Option<&str> {
    url.split_once("://").and_then(|(_, rest)| rest.split_once('/')).map(|(_, path)| path)
}

/// Whether the URL's own path ends with all of a request's, which says more than `/`.
fn ends_with(url: &str, path: &str) -> bool {
    path.strip_prefix('/').zip(own_path(url)).is_some_and(|(path, own)| {
        !path.is_empty()
            && own.strip_suffix(path).is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('/'))
    })
}

/// What the app is asked for: the target's prefix before the path as it came. Origin form for HTTP/1.1; for
/// HTTP/2 with the scheme and the sender's `Host` as authority.
pub(super) fn app_uri(
    target: &Target,
    uri: &Uri,
    host: Option<&HeaderValue>,
    version: Version,
) -> Result<Uri, Cause> {
    let path = match uri.path_and_query() {
        Some(path) if target.prefix.is_empty() || path.as_str() == "*" => path.clone(),
        Some(path) => PathAndQuery::try_from(format!("{}{path}", target.prefix))?,
        None if target.prefix.is_empty() => PathAndQuery::from_static("/"),
        None => PathAndQuery::try_from(target.prefix.as_str())?,
    };
    let mut parts = http::uri::Parts::default();
    parts.path_and_query = Some(path);
    if version == Version::HTTP_2 {
        let host = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
        parts.authority = Some(host.unwrap_or_else(|| target.authority.clone()));
        parts.scheme = Some(target.scheme.clone());
    }
    Ok(Uri::from_parts(parts)?)
}

/// The first element of a comma-separated header: what the proxy nearest to the provider saw.
fn first(headers: &HeaderMap, name: &str) -> Option<String> {
    let value = text(headers.get(name)?);
    let element = value.split(',').next().unwrap_or_default().trim();
    (!element.is_empty()).then(|| element.to_owned())
}

/// A parameter of the first element of `Forwarded` (RFC 7239).
fn forwarded(headers: &HeaderMap, parameter: &str) -> Option<String> {
    let value = text(headers.get(FORWARDED)?);
    let element = value.split(',').next().unwrap_or_default();
    element.split(';').find_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        let value = value.trim().trim_matches('"');
        (name.trim().eq_ignore_ascii_case(parameter) && !value.is_empty()).then(|| value.to_owned())
    })
}

fn text(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}

#[cfg(test)]
mod tests {
    use http::uri::Scheme;

    use super::*;

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        lines.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn the_public_url_is_what_the_provider_called() {
        let uri: Uri = "/h/a%2Fb//d/./e?x=%20+&&z".parse().unwrap();
        let stranger = Caller { address: "192.0.2.7".parse().unwrap(), secure: false, trusted: false };
        let proxy = Caller { trusted: true, ..stranger };
        let plain = headers(&[("host", "hooks.example:8443")]);
        let named = headers(&[
            ("host", "inside"),
            ("x-forwarded-proto", "https, http"),
            ("x-forwarded-host", "hooks.example:8443"),
        ]);
        let rfc = headers(&[
            ("host", "inside"),
            ("forwarded", "for=1.2.3.4;Proto=https;host=\"h.example\", for=b"),
        ]);
        let path = "/h/a%2Fb//d/./e?x=%20+&&z";
        let table = [
            (&plain, &stranger, None, "http://hooks.example:8443"),
            (&named, &stranger, None, "http://inside"),
            (&named, &proxy, None, "https://hooks.example:8443"),
            (&rfc, &proxy, None, "https://h.example"),
            (&named, &stranger, Some("https://public.example/in/"), "https://public.example/in"),
        ];
        for (headers, caller, configured, base) in table {
            assert_eq!(public_url(&uri, headers, caller, configured), format!("{base}{path}"));
        }
    }

    #[test]
    fn a_public_url_may_be_whole_or_less_the_path() {
        for (base, path, url) in [
            ("https://a.example/in/twilio", "/in/twilio", "https://a.example/in/twilio"),
            ("https://a.example/in/twilio", "/in/twilio?x=%20", "https://a.example/in/twilio?x=%20"),
            ("https://a.example/cut/in/twilio", "/in/twilio?", "https://a.example/cut/in/twilio?"),
            ("https://a.example/in/twilio?x=1", "/in/twilio?x=1", "https://a.example/in/twilio?x=1"),
            ("https://a.example/cut/", "/twilio", "https://a.example/cut/twilio"),
            ("https://a.example", "/a.example", "https://a.example/a.example"),
            ("https://a.example/cutin", "/in", "https://a.example/cutin/in"),
            ("https://a.example/", "/", "https://a.example/"),
            ("https://a.example", "/?x", "https://a.example/?x"),
        ] {
            assert_eq!(joined(base, path), url, "{base} {path}");
        }
    }

    #[test]
    fn a_public_url_whose_path_is_another_than_the_requests_may_be_the_whole_one() {
        for (configured, path, other) in [
            ("https://a.example/in/twilio", "/sms?x=%20", Some("https://a.example/in/twilio?x=%20")),
            ("https://a.example/in/twilio", "/", Some("https://a.example/in/twilio")),
            ("https://a.example/in/?x=1", "/in?", Some("https://a.example/in/?")),
            ("https://a.example/", "/sms", Some("https://a.example/")),
            ("https://a.example", "/sms", None),
            ("https://a.example/in/twilio", "/in/twilio", None),
            ("https://a.example/cut/in/twilio", "/in/twilio?x", None),
        ] {
            let uri: Uri = path.parse().unwrap();
            assert_eq!(whole_url(&uri, configured).as_deref(), other, "{configured} {path}");
        }
    }

    #[test]
    fn the_path_reaches_the_app_as_it_came() {
        let target = |prefix: &str| Target {
            scheme: Scheme::HTTP,
            authority: Authority::from_static("app:3000"),
            prefix: prefix.to_owned(),
            http2: false,
            files: None,
            server_name: None,
        };
        for path in ["/h/a%2Fb/%252Fc//d/./e?x=%20+&y=%C3%A9&&z", "//", "/a?", "/?a=?", "/../x"] {
            let uri: Uri = path.parse().unwrap();
            let asked = |prefix| app_uri(&target(prefix), &uri, None, Version::HTTP_11).unwrap().to_string();
            assert_eq!(asked(""), path);
            assert_eq!(asked("/base"), format!("/base{path}"));
        }
    }
}
