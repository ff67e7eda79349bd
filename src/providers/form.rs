//! Fields of `application/x-www-form-urlencoded` text: request bodies and query strings. Values stay bytes, since
//! replacing what isn't UTF-8 would give two events one key.

use percent_encoding::percent_decode;

/// The last field of this name, decoded.
pub(super) fn field(form: &[u8], name: &str) -> Option<Vec<u8>> {
    form.split(|byte| *byte == b'&').rev().find_map(|pair| {
        let mut halves = pair.splitn(2, |byte| *byte == b'=');
        let found = decode(halves.next()?);
        (found == name.as_bytes()).then(|| decode(halves.next().unwrap_or_default()))
    })
}

/// Longest decimal number that a field of a closed form may hold: that of 64 bits.
const DIGITS_MAX: usize = 20;

/// Whether the form is exactly these fields, each once, none blank; with `digits`, each a decimal number.
pub(super) fn holds_only(form: &[u8], names: &[String], digits: bool) -> bool {
    let mut found: Vec<Vec<u8>> = Vec::new();
    for pair in form.split(|byte| *byte == b'&') {
        let mut halves = pair.splitn(2, |byte| *byte == b'=');
        let name = decode(halves.next().unwrap_or_default());
        let value = decode(halves.next().unwrap_or_default());
        let known = names.iter().any(|known| known.as_bytes() == name);
        let number = value.len() <= DIGITS_MAX && value.iter().all(u8::is_ascii_digit);
        if !known || found.contains(&name) || value.trim_ascii().is_empty() || (digits && !number) {
            return false;
        }
        found.push(name);
    }
    found.len() == names.len()
}

pub(super) fn decode(text: &[u8]) -> Vec<u8> {
    let spaced: Vec<u8> = text.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect();
    percent_decode(&spaced).collect()
}

/// The query of a URL, without its fragment.
pub(super) fn query_of(url: &str) -> Option<&str> {
    let url = url.split_once('#').map_or(url, |(before, _)| before);
    url.split_once('?').map(|(_, query)| query)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_field_of_a_name_counts_and_bytes_survive() {
        assert_eq!(field(b"a=1&b=2&a=3", "a").as_deref(), Some(&b"3"[..]));
        assert_eq!(field(b"data.id=%2B1+2", "data.id").as_deref(), Some(&b"+1 2"[..]));
        assert_eq!(field(b"%61=%FF%00", "a").as_deref(), Some(&b"\xFF\x00"[..]));
        assert_eq!(field(b"a&b=", "a").as_deref(), Some(&b""[..]));
        assert_eq!(field(b"ab=1", "a"), None);
        let only = |form: &[u8]| holds_only(form, &["a".to_owned(), "b".to_owned()], false);
        assert!(only(b"a=1&b=2") && only(b"b=2&%61=1"));
        for other in [&b"a=1"[..], b"a=1&b=", b"a=1&b=2&a=1", b"a=1&b=2&c=3", b"a=1&b=2&", b"", b"a&b"] {
            assert!(!only(other), "{other:?}");
        }
        let number = |form: &[u8]| holds_only(form, &["a".to_owned()], true);
        assert!(number(b"a=12") && number(b"a=%31") && number(b"a=18446744073709551615"));
        for other in [&b"a=1 "[..], b"a=-1", b"a=1.0", b"a=x", b"a=123456789012345678901", b"a="] {
            assert!(!number(other), "{other:?}");
        }
        assert_eq!(query_of("https://x/y?a=b?c#d"), Some("a=b?c"));
    }
}
