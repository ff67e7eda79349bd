//! Refuses requests that two servers could read in two ways, and gives the rest one form: an origin-form target
//! and exactly one `Host`. The parser itself has refused bad framing before (two lengths, bad chunks, folded
//! lines, a bare CR); where a length and chunks meet it drops the length and closes after the answer.

use http::header::{HOST, HeaderValue, TRANSFER_ENCODING};
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, Method, Request, StatusCode, Uri, Version};

/// Why a request is turned away before any handler sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inadmissible {
    /// `CONNECT` and `TRACE` are for proxies of another kind.
    Method,
    /// No target that an app could be asked for.
    Target,
    /// No `Host`, more than one, or one that isn't a host.
    Host,
    /// A body in a coding besides chunks: what is inside can't be told, and must not pass for the body itself.
    Coding,
}

impl Inadmissible {
    pub(super) fn status(self) -> StatusCode {
        match self {
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Target | Self::Host => StatusCode::BAD_REQUEST,
            Self::Coding => StatusCode::NOT_IMPLEMENTED,
        }
    }

    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Method => "this method is not served here\n",
            Self::Target => "the request's target is not a path, nor the http URL of one\n",
            Self::Host => "the request needs exactly one valid host\n",
            Self::Coding => "no transfer coding but chunked is known here\n",
        }
    }
}

/// Checks a request and gives it the one form.
pub(super) fn admit<B>(request: &mut Request<B>) -> Result<(), Inadmissible> {
    if request.method() == Method::CONNECT || request.method() == Method::TRACE {
        return Err(Inadmissible::Method);
    }
    if !chunked_at_most(request.headers()) {
        return Err(Inadmissible::Coding);
    }
    let host = host(request.uri(), request.headers(), request.version())?;
    let path = path(request)?;
    if let Some(path) = path {
        *request.uri_mut() = Uri::from(path);
    }
    if let Some(host) = host {
        request.headers_mut().insert(HOST, host);
    }
    Ok(())
}

/// Whether nothing but chunks, and these once, is put around the body (RFC 9112, 6.1).
fn chunked_at_most(headers: &HeaderMap) -> bool {
    let mut lines = headers.get_all(TRANSFER_ENCODING).iter();
    match (lines.next(), lines.next()) {
        (None, _) => true,
        (Some(only), None) => only.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked"),
        (Some(_), Some(_)) => false,
    }
}

/// The value to set as `Host`; none where the header is right as it is. A target that names the host overrides
/// the header (RFC 9112, 3.2.2; RFC 9113, 8.3.1).
fn host(uri: &Uri, headers: &HeaderMap, version: Version) -> Result<Option<HeaderValue>, Inadmissible> {
    let mut lines = headers.get_all(HOST).iter();
    let first = lines.next();
    if lines.next().is_some() {
        return Err(Inadmissible::Host);
    }
    if let Some(line) = first {
        valid(line.as_bytes())?;
    }
    match (uri.authority(), first) {
        (Some(authority), _) => {
            valid(authority.as_str().as_bytes())?;
            HeaderValue::from_str(authority.as_str()).map(Some).map_err(|_| Inadmissible::Host)
        }
        (None, Some(_)) => Ok(None),
        (None, None) if version == Version::HTTP_10 => Ok(None),
        (None, None) => Err(Inadmissible::Host),
    }
}

fn valid(host: &[u8]) -> Result<(), Inadmissible> {
    match Authority::try_from(host) {
        Ok(_) if !host.contains(&b'@') => Ok(()),
        Ok(_) | Err(_) => Err(Inadmissible::Host),
    }
}

/// The path to set as target; none where the target is a path already. Other schemes than HTTP's are nothing that an
/// app is asked for (RFC 9110, 7.4).
fn path<B>(request: &Request<B>) -> Result<Option<PathAndQuery>, Inadmissible> {
    let uri = request.uri();
    let known = |scheme: &str| ["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
    if !uri.scheme_str().is_none_or(known) {
        return Err(Inadmissible::Target);
    }
    let Some(path) = uri.path_and_query() else {
        return Err(Inadmissible::Target); // `GET host:80`
    };
    // A URL may have a query and no path (RFC 9110, 4.2.3): said aloud, it has one.
    if path.as_str().starts_with('?') && uri.authority().is_some() {
        return PathAndQuery::try_from(path.to_string()).map(Some).map_err(|_| Inadmissible::Target);
    }
    let asterisk = path.as_str() == "*";
    if asterisk && request.method() != Method::OPTIONS || !asterisk && !path.as_str().starts_with('/') {
        return Err(Inadmissible::Target);
    }
    Ok(uri.authority().is_some().then(|| path.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, target: &str, hosts: &[&str], version: Version) -> Request<()> {
        let mut builder = Request::builder().method(method).uri(target).version(version);
        for host in hosts {
            builder = builder.header(HOST, *host);
        }
        builder.body(()).unwrap()
    }

    #[test]
    fn a_request_has_one_host_and_a_path_or_is_refused() {
        use Inadmissible::{Host, Method, Target};
        let one = Version::HTTP_11;
        let table = [
            ("POST", "/a//b?x", &["a.example:80"][..], one, Ok(("/a//b?x", "a.example:80"))),
            ("POST", "http://b.example/x?y", &["a.example"], one, Ok(("/x?y", "b.example"))),
            ("POST", "http://b.example", &["a.example"], one, Ok(("/", "b.example"))),
            ("POST", "http://b.example?x=1", &["a.example"], one, Ok(("/?x=1", "b.example"))),
            ("POST", "https://b.example/x", &[], Version::HTTP_2, Ok(("/x", "b.example"))),
            ("POST", "https://b.example/x", &["b.example"], Version::HTTP_2, Ok(("/x", "b.example"))),
            ("GET", "/", &[], Version::HTTP_10, Ok(("/", ""))),
            ("OPTIONS", "*", &["a"], one, Ok(("*", "a"))),
            ("POST", "HTTP://b.example/x", &["a.example"], one, Ok(("/x", "b.example"))),
            ("GET", "ftp://b.example/x", &["a"], one, Err(Target)),
            ("GET", "ws://b.example/x", &[], Version::HTTP_2, Err(Target)),
            ("POST", "*", &["a"], one, Err(Target)),
            ("GET", "a.example:80", &["a"], one, Err(Target)),
            ("GET", "/", &[], one, Err(Host)),
            ("GET", "/", &["a", "a"], one, Err(Host)),
            ("GET", "/", &["a b"], one, Err(Host)),
            ("GET", "/", &["u@a"], one, Err(Host)),
            ("GET", "/", &["a/b"], one, Err(Host)),
            ("GET", "/", &[""], one, Err(Host)),
            ("TRACE", "/", &["a"], one, Err(Method)),
            ("CONNECT", "a.example:443", &["a"], one, Err(Method)),
        ];
        for (method, target, hosts, version, expected) in table {
            let mut request = request(method, target, hosts, version);
            let seen = admit(&mut request).map(|()| {
                let host = request.headers().get(HOST).map_or("", |host| host.to_str().unwrap());
                (request.uri().to_string(), host.to_owned())
            });
            let expected = expected.map(|(target, host)| (target.to_owned(), host.to_owned()));
            assert_eq!(seen, expected, "{method} {target} {hosts:?}");
        }
    }
}
