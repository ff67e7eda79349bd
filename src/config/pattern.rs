//! What a route matches and how its keys are kept apart: hosts, path patterns, scopes with placeholders.

use std::borrow::Cow;

use super::problem::{Fault, nearest};
use crate::ledger::EventKey;

/// A route's path pattern: `{name}` matches one segment, `{*rest}` the rest (also an empty one).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutePath(pub String);

impl RoutePath {
    /// Parses a pattern as an operator writes it.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        if !text.starts_with('/') {
            return Err(Fault::new(
                format!("{text:?} does not start with a slash"),
                format!("write \"/{text}\""),
            ));
        }
        if text.contains(['?', '#']) {
            return Err(Fault::new(
                "the path has a query or fragment",
                "leave it out: a path matches any query",
            ));
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            let mend = "write such characters %-encoded, as they stand in the request";
            return Err(Fault::new("the path holds spaces or characters outside ASCII", mend));
        }
        let mut names: Vec<&str> = Vec::new();
        let segments: Vec<&str> = text.split('/').collect();
        for (index, segment) in segments.iter().enumerate() {
            let Some(name) = placeholder(segment)? else { continue };
            let plain = name.trim_start_matches('*');
            if name.starts_with('*') && (index + 1 < segments.len() || !segment.starts_with('{')) {
                return Err(Fault::new(
                    format!("{{{name}}} is not the whole last segment"),
                    "put it at the end",
                ));
            }
            if names.contains(&plain) {
                return Err(Fault::new(
                    format!("{{{plain}}} stands twice in the path"),
                    "name one otherwise",
                ));
            }
            names.push(plain);
        }
        Ok(Self(text.to_owned()))
    }

    /// The names of the pattern's placeholders, in order.
    pub fn placeholders(&self) -> impl Iterator<Item = &str> {
        let name =
            |segment| placeholder(segment).ok().flatten().map(|name: &str| name.trim_start_matches('*'));
        self.0.split('/').filter_map(name)
    }
}

/// The name between a segment's braces.
fn placeholder(segment: &str) -> Result<Option<&str>, Fault> {
    const MEND: &str = "write one {name} or {*rest} per segment, of letters, digits and _";
    let Some((before, after)) = segment.split_once('{') else {
        if segment.contains('}') {
            return Err(Fault::new("the path closes a brace that it did not open", MEND));
        }
        return Ok(None);
    };
    let Some((name, after)) = after.split_once('}') else {
        return Err(Fault::new("the path does not close a brace in the segment that opened it", MEND));
    };
    if before.contains('}') || after.contains(['{', '}']) {
        return Err(Fault::new("a segment of the path has more than one placeholder", MEND));
    }
    if name.starts_with('*') && !after.is_empty() {
        return Err(Fault::new(format!("{{{name}}} is not the whole last segment"), "put it at the end"));
    }
    if !is_name(name.strip_prefix('*').unwrap_or(name)) {
        return Err(Fault::new(format!("{{{name}}} is no placeholder"), MEND));
    }
    Ok(Some(name))
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// A scope with `{name}` placeholders for path parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope(pub String);

impl Scope {
    /// The names of its placeholders, in order.
    pub fn placeholders(&self) -> impl Iterator<Item = &str> {
        pieces(&self.0).filter_map(|piece| match piece {
            Piece::Name(name) => Some(name),
            Piece::Text(_) | Piece::Open => None,
        })
    }

    /// Parses a scope whose placeholders `path` must have.
    pub fn parse(text: &str, path: Option<&RoutePath>) -> Result<Self, Fault> {
        if text.trim().is_empty() {
            return Err(Fault::new("the scope is empty", "leave it out: the route's name is the scope then"));
        }
        if text.contains(char::is_control) {
            return Err(Fault::new("the scope holds control characters", "leave them out"));
        }
        for piece in pieces(text) {
            let name = match piece {
                Piece::Text(_) => continue,
                Piece::Open => return Err(Fault::new("a brace is not closed", "write {name}")),
                Piece::Name(name) => name,
            };
            let Some(path) = path else { continue };
            if !path.placeholders().any(|known| known == name) {
                let mend = match nearest(name, path.placeholders()) {
                    Some(near) => format!("did you mean {{{near}}}?"),
                    None => format!("write a path with {{{name}}}, or another scope"),
                };
                return Err(Fault::new(format!("the path has no {{{name}}}"), mend));
            }
        }
        Ok(Self(text.to_owned()))
    }

    /// The scope with its placeholders filled, each value escaped as in a key. Allocates only where there are any.
    pub fn fill(&self, params: &[(String, String)]) -> Cow<'_, str> {
        if !self.0.contains('{') {
            return Cow::Borrowed(&self.0);
        }
        let mut filled = String::with_capacity(self.0.len() + 32);
        for piece in pieces(&self.0) {
            match piece {
                Piece::Text(text) => filled.push_str(text),
                Piece::Name(name) => {
                    let value = params.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value);
                    EventKey::escape(value.as_bytes(), &mut filled);
                }
                Piece::Open => filled.push('{'),
            }
        }
        Cow::Owned(filled)
    }
}

pub(super) enum Piece<'a> {
    Text(&'a str),
    Name(&'a str),
    /// A `{` without its `}`; never in a parsed scope.
    Open,
}

/// A scope's text and placeholders in order.
pub(super) fn pieces(scope: &str) -> impl Iterator<Item = Piece<'_>> {
    scope.split_inclusive('}').flat_map(|chunk| {
        let (text, rest) = match chunk.split_once('{') {
            Some((text, rest)) => (text, Some(rest)),
            None => (chunk, None),
        };
        let name = rest.map(|rest| rest.strip_suffix('}').map_or(Piece::Open, Piece::Name));
        [Some(Piece::Text(text)), name].into_iter().flatten()
    })
}

/// A host as routes compare it: lower case, without a port.
pub(super) fn parse_host(text: &str) -> Result<String, Fault> {
    const MEND: &str = "write a name or address alone, such as \"hooks.example.com\"";
    let Ok(authority) = text.parse::<http::uri::Authority>() else {
        return Err(Fault::new(format!("{text:?} is no host"), MEND));
    };
    if text.contains('@') || authority.host() != text || text.contains('*') {
        return Err(Fault::new(format!("{text:?} is more than a host"), MEND));
    }
    Ok(text.to_ascii_lowercase())
}

/// A route's name: `[A-Za-z0-9_.-]+`, as it appears in metrics, logs and keys.
pub(super) fn parse_name(text: &str) -> Result<String, Fault> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    if text.is_empty() || text.len() > 64 || !text.bytes().all(fits) {
        return Err(Fault::new(
            format!("{text:?} is no name for a route"),
            "write 1 to 64 of letters, digits, `_`, `.` and `-`",
        ));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_parse_or_say_why_not() {
        for (path, names) in [
            ("/", vec![]),
            ("/webhooks/meta", vec![]),
            ("/a/{tenant}/b", vec!["tenant"]),
            ("/a/{x}/{*rest}", vec!["x", "rest"]),
            ("/img-{id}.png", vec!["id"]),
        ] {
            let parsed = RoutePath::parse(path).unwrap_or_else(|fault| panic!("{path}: {fault}"));
            assert_eq!(parsed.placeholders().collect::<Vec<_>>(), names, "{path}");
        }
        for (path, why) in [
            ("hooks", "does not start with a slash"),
            ("", "does not start with a slash"),
            ("/a?b", "query"),
            ("/a b", "%-encoded"),
            ("/ä", "%-encoded"),
            ("/{", "does not close"),
            ("/}", "did not open"),
            ("/{}", "no placeholder"),
            ("/{a b}", "%-encoded"),
            ("/{a-b}", "no placeholder"),
            ("/{a}{b}", "more than one"),
            ("/{*rest}/x", "at the end"),
            ("/x{*rest}", "at the end"),
            ("/{a}/{a}", "twice"),
            ("/{{a}}", "more than one"),
        ] {
            let fault = RoutePath::parse(path).unwrap_err();
            assert!(fault.to_string().contains(why), "{path}: {fault}");
        }
    }

    #[test]
    fn a_scope_takes_escaped_path_parameters() {
        let path = RoutePath::parse("/r/{tenant}/{step}").unwrap();
        let params = [("tenant".to_owned(), "a:b\\".to_owned()), ("step".to_owned(), "2".to_owned())];
        for (scope, filled) in
            [("pix", "pix"), ("pix:{tenant}", "pix:a\\:b\\\\"), ("{tenant}{step}x", "a\\:b\\\\2x")]
        {
            let scope = Scope::parse(scope, Some(&path)).unwrap_or_else(|fault| panic!("{scope}: {fault}"));
            assert_eq!(scope.fill(&params), filled);
        }
        for (scope, why) in [
            ("pix:{tenat}", "did you mean {tenant}?"),
            ("pix:{nothing_like_it}", "no {nothing_like_it}"),
            ("pix:{tenant", "not closed"),
            ("", "empty"),
        ] {
            let fault = Scope::parse(scope, Some(&path)).unwrap_err();
            assert!(fault.to_string().contains(why), "{scope}: {fault}");
        }
    }

    #[test]
    fn hosts_are_names_without_ports() {
        for (text, host) in
            [("Hooks.Example.com", "hooks.example.com"), ("10.0.0.1", "10.0.0.1"), ("[::1]", "[::1]")]
        {
            assert_eq!(parse_host(text), Ok(host.to_owned()));
        }
        for text in ["", "a:80", "http://a", "a/b", "u@a", "*.example.com", "a b"] {
            assert!(parse_host(text).is_err(), "{text}");
        }
    }
}
