//! An app's base URL.

use std::fmt;
use std::sync::Arc;

use http::Uri;
use http::uri::{Authority, Scheme};

use super::problem::Fault;
use crate::tls::AppFiles;

/// An app's base URL: scheme and authority, and a path prefix put before the request's path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub scheme: Scheme,
    pub authority: Authority,
    /// Without a trailing slash; empty for none.
    pub prefix: String,
    /// True where the URL was written `h2c://` or `h2://`: HTTP/2 with prior knowledge.
    pub http2: bool,
    /// What it is trusted by and shown, where that is its own; `None` for what all apps share.
    pub files: Option<Arc<AppFiles>>,
    /// The name in its certificate, where that is not the URL's host.
    pub server_name: Option<Arc<str>>,
}

impl Target {
    /// Parses `http://`, `https://`, `h2c://` or `h2://`, host, optional port and optional path.
    pub fn parse(url: &str) -> Result<Self, Fault> {
        const MEND: &str = "write http://host:port, https://host or h2c://host:port, with an optional path";
        let Some((scheme, rest)) = url.split_once("://") else {
            return Err(Fault::new("the URL has no scheme", MEND));
        };
        let (scheme, http2) = match scheme {
            "http" => (Scheme::HTTP, false),
            "https" => (Scheme::HTTPS, false),
            "h2c" => (Scheme::HTTP, true),
            "h2" => (Scheme::HTTPS, true),
            other => return Err(Fault::new(format!("the URL has the unknown scheme {other:?}"), MEND)),
        };
        if rest.contains(['?', '#']) {
            return Err(Fault::new(
                "the URL has a query or fragment",
                "leave it out: requests bring their own",
            ));
        }
        let (authority, path) = match rest.find('/').and_then(|slash| rest.split_at_checked(slash)) {
            Some(parts) => parts,
            None => (rest, ""),
        };
        if authority.contains('@') {
            return Err(Fault::new("the URL holds credentials", "leave them out: requests bring their own"));
        }
        let authority: Authority =
            authority.parse().map_err(|_| Fault::new("the URL has no valid host and port", MEND))?;
        let has_port = authority.host().len() < authority.as_str().len();
        if authority.host().is_empty() || (has_port && authority.port_u16().is_none_or(|port| port == 0)) {
            return Err(Fault::new("the URL has no valid host and port", MEND));
        }
        let prefix = path.trim_end_matches('/').to_owned();
        if !prefix.is_empty() && prefix.parse::<Uri>().is_err() {
            return Err(Fault::new(
                "the URL's path holds characters that a URL may not",
                "write them %-encoded",
            ));
        }
        Ok(Self { scheme, authority, prefix, http2, files: None, server_name: None })
    }
}

impl Target {
    /// Whether it is reached through TLS.
    pub fn is_secure(&self) -> bool {
        self.scheme == Scheme::HTTPS
    }
}

/// As it would be written.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match (self.http2, self.scheme == Scheme::HTTPS) {
            (false, false) => "http",
            (false, true) => "https",
            (true, false) => "h2c",
            (true, true) => "h2",
        };
        write!(f, "{scheme}://{}{}", self.authority, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_urls_parse_or_say_why_not() {
        for url in [
            "http://127.0.0.1:3000",
            "https://app.example.com/base/path",
            "h2c://app:8080",
            "h2://app",
            "http://[::1]:3000",
        ] {
            assert_eq!(Target::parse(url).map(|target| target.to_string()), Ok(url.to_owned()));
        }
        assert_eq!(Target::parse("http://a/b/").map(|target| target.prefix), Ok("/b".to_owned()));
        for (url, why) in [
            ("127.0.0.1:3000", "no scheme"),
            ("ftp://a", "unknown scheme \"ftp\""),
            ("http://", "no valid host"),
            ("http://:80", "no valid host"),
            ("http://a:99999", "no valid host"),
            ("http://a:0", "no valid host"),
            ("http://a b", "no valid host"),
            ("http://user:word@a", "credentials"),
            ("http://a?x=1", "query"),
            ("http://a/b c", "%-encoded"),
        ] {
            let fault = Target::parse(url).unwrap_err();
            assert!(fault.to_string().contains(why), "{url}: {fault}");
            assert!(!fault.to_string().contains("word"), "{url}: {fault}");
        }
    }
}
