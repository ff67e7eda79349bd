//! Other spellings of a path: apps read `/Hooks`, `/hooks/`, `//hooks`, `/%68ooks` or `/x/../hooks` as `/hooks`, each its
//! own selection. Routes are matched byte for byte; what is only spelled otherwise must not slip past them. Pure.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// The one spelling of all those that some app takes for the same: decoded, in lower case, without empty or dot
/// segments, path parameters (`;v=1`) and the slash at the end.
pub(super) fn canonical(path: &str) -> Cow<'_, str> {
    let odd = |before: u8, byte: u8| {
        byte.is_ascii_uppercase()
            || matches!(byte, b'%' | b';' | b'\\')
            || before == b'/' && matches!(byte, b'/' | b'.')
    };
    let befores = std::iter::once(0).chain(path.bytes());
    let plain = !befores.zip(path.bytes()).any(|(before, byte)| odd(before, byte));
    if plain && (path == "/" || !path.ends_with('/')) {
        return Cow::Borrowed(path);
    }
    let mut decoded = percent_decode_str(path).decode_utf8_lossy().replace('\\', "/");
    decoded.make_ascii_lowercase();
    let mut segments: Vec<&str> = Vec::new();
    for segment in decoded.split('/') {
        match segment.split(';').next().unwrap_or_default() {
            "" | "." => {}
            ".." => drop(segments.pop()),
            name => segments.push(name),
        }
    }
    Cow::Owned(format!("/{}", segments.join("/")))
}

/// Whether a placeholder's value leads out of its place once it is decoded (`..%2f..%2fadmin`): whoever stands before or
/// behind reads another path than the one that was matched. What leads back to inside of it (`a/../b`) doesn't, as long
/// as nobody can read it otherwise: only a plain `/` counts as a step down, every dot-dot that some app sees as one up.
pub(super) fn climbs(value: &str) -> bool {
    if !value.contains(['.', '%']) {
        return false;
    }
    let (mut depth, mut turned) = (0_usize, false);
    for segment in value.split('/') {
        let decoded = percent_decode_str(segment).decode_utf8_lossy();
        let names = decoded.split(['/', '\\']).map(|name| name.split(';').next().unwrap_or_default());
        let ups = names.clone().filter(|name| *name == "..").count();
        if ups > 0 {
            let Some(left) = depth.checked_sub(ups) else { return true };
            (depth, turned) = (left, true);
        } else if names.clone().any(|name| !matches!(name, "" | ".")) {
            depth += 1;
        }
    }
    // Back where it began is the place's own folder, which the pattern doesn't match.
    turned && depth == 0
}

/// The same of a route's pattern, whose placeholders stay; `None` where it would match what isn't a spelling of it.
pub(super) fn canonical_pattern(pattern: &str) -> Option<String> {
    let mut text = String::with_capacity(pattern.len());
    for segment in pattern.split('/').filter(|segment| !segment.is_empty()) {
        text.push('/');
        if segment.contains('{') {
            text.push_str(segment);
        } else {
            text.push_str(canonical(segment).trim_start_matches('/'));
        }
    }
    // `/` alone, or nothing but placeholders, is no name that could be spelled otherwise.
    let named = pattern.split('/').any(|segment| !segment.is_empty() && !segment.contains('{'));
    named.then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_comes_to_one() {
        let spellings = [
            "/webhooks/hotmart",
            "/Webhooks/HOTMART",
            "/webhooks/hotmart/",
            "//webhooks//hotmart",
            "/webhooks/%68otm%61rt",
            "/webhooks%2Fhotmart",
            "/webhooks\\hotmart",
            "/./webhooks/./hotmart",
            "/x/../webhooks/hotmart",
            "/webhooks/x/%2e%2E/hotmart",
            "/webhooks/hotmart;jsessionid=1",
            "/../webhooks/hotmart",
        ];
        for spelling in spellings {
            assert_eq!(canonical(spelling), "/webhooks/hotmart", "{spelling}");
        }
        for other in ["/", "/webhooks", "/webhooks/hotmart2", "/webhooks/hot.mart", "/webhooks/ho%2etmart"] {
            assert_ne!(canonical(other), "/webhooks/hotmart", "{other}");
        }
        assert_eq!(canonical("/%ff%00"), "/\u{fffd}\0");
        assert_eq!(canonical("/"), "/");
    }

    #[test]
    fn a_value_climbs_by_its_dots_alone() {
        for value in [
            "..",
            "%2e%2E",
            "..%2f..%2fwebhooks",
            "a%5c..",
            "..;v=1",
            "a/..",
            "a/../..",
            "a/../../b",
            "a/../%2e%2e/b/c",
            "a%2fb/../../c/d",
            "a%2f..%2fb",
            "a%2f%2e%2e/b",
            "a/./../../b",
            "a//../../b",
            "a/;x/../../b",
            "a/b/..%5c..%5c../c",
            "a/b/..;/..;v=1/../c",
        ] {
            assert!(climbs(value), "{value}");
        }
        // `a/../b` was refused with 404 as if it led out, an event of a provider that wrote its URL so with it.
        let inside = ["a/../b", "x/%2e%2e/y", "a/b/../..;/c", "a/..b", "a/b/.."];
        for value in ["", "loja", "loja%2f1", "...", "a..b", "%2e", "1.2", "%"].into_iter().chain(inside) {
            assert!(!climbs(value), "{value}");
        }
    }

    #[test]
    fn patterns_keep_their_placeholders() {
        let table = [
            ("/Hooks/{Tenant}/In/", Some("/hooks/{Tenant}/in")),
            ("/b/{*rest}", Some("/b/{*rest}")),
            ("/%C3%A7a", Some("/ça")),
            ("/{tenant}", None),
            ("/", None),
        ];
        for (pattern, wanted) in table {
            assert_eq!(canonical_pattern(pattern).as_deref(), wanted, "{pattern}");
        }
    }
}
