//! What an app's answer says of an event in its provider's own words: whether it refuses what its status accepts. Not
//! here: statuses, and what a refusal means for a claim.

use std::borrow::Cow;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method};

use super::rules::ItemRules;
use super::schema::Provider;
use super::{Delivery, Keyless};

impl Provider {
    /// Whether an answer's status is not all that tells success.
    pub fn reads_answers(&self) -> bool {
        self.not_done.is_some() || self.done_when.is_some()
    }

    /// Whether the app has refused the event in the body (or a header) of an answer whose status tells success. `body`
    /// is decoded from any `Content-Encoding`; `None` where that can't be undone.
    ///
    /// What should be XML that the conditions look at and can't be read refuses: nobody knows that it accepts.
    pub fn is_refused_by(&self, headers: &HeaderMap, body: Option<&[u8]>) -> bool {
        if !self.reads_answers() {
            return false;
        }
        let Some(body) = body else { return self.reads_xml() && says_xml(headers) };
        let body = in_utf8(body);
        let said = |conditions: &ItemRules| says(conditions, headers, &body);
        match self.not_done.as_ref().map_or(Said::Yes, said) {
            Said::No => false,
            Said::Unread if !self.is_xml_about_it(headers, &body) => false,
            Said::Yes | Said::Unread => {
                self.done_when.as_ref().is_none_or(|wanted| said(wanted) != Said::Yes)
            }
        }
    }

    /// Whether this provider reads what acknowledges an event in an answer that it gets, and `body` doesn't say it.
    pub fn misses_in(&self, content_type: Option<&str>, body: &[u8]) -> bool {
        let value = content_type.and_then(|text| HeaderValue::from_str(text).ok());
        let headers: HeaderMap = value.map(|value| (CONTENT_TYPE, value)).into_iter().collect();
        self.done_when.as_ref().is_some_and(|wanted| says(wanted, &headers, body) != Said::Yes)
    }

    fn reads_xml(&self) -> bool {
        self.not_done.iter().chain(&self.done_when).any(|conditions| !conditions.0.xml.is_empty())
    }

    /// Whether a body that can't be read is, by what it looks like, XML of the kind that the conditions look at: it
    /// says so, or holds the name of their root element. Any other markup, a page of HTML, is not.
    fn is_xml_about_it(&self, headers: &HeaderMap, body: &[u8]) -> bool {
        let body = body.trim_ascii_start();
        let roots = self.not_done.iter().chain(&self.done_when).flat_map(ItemRules::xml_roots);
        let mut roots = roots.map(|name| memchr::memmem::find(body, name.as_bytes()).is_some());
        self.reads_xml()
            && body.starts_with(b"<")
            && (body.starts_with(b"<?xml") || says_xml(headers) || roots.any(|found| found))
    }
}

impl ItemRules {
    /// The root elements of what the conditions look at.
    fn xml_roots(&self) -> impl Iterator<Item = Box<str>> {
        let names = self.0.xml.node(0).members.iter();
        names.map(|(name, _)| String::from_utf8_lossy(name).into())
    }
}

/// Whether conditions hold for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Yes,
    No,
    /// Its body can't be read.
    Unread,
}

fn says(conditions: &ItemRules, headers: &HeaderMap, body: &[u8]) -> Said {
    let (method, url, path_params) = (&Method::POST, "", &[][..]);
    let answer = Delivery { method, url, headers, path_params, raw_body: body, body };
    let found = conditions.items(&answer).list;
    match found.first().map(|item| &item.parts) {
        Some(Err(Keyless::NoKey)) => Said::Yes,
        Some(Err(Keyless::Unread(_))) => Said::Unread,
        Some(_) | None => Said::No,
    }
}

fn says_xml(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let essence =
        value.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii().to_ascii_lowercase();
    essence.ends_with(b"/xml") || essence.ends_with(b"+xml")
}

/// The text of an answer, whatever its bytes are: UTF-16 by its mark or its zeros, and what isn't UTF-8 byte for
/// character, which keeps the markup of every encoding that holds ASCII as it is.
fn in_utf8(body: &[u8]) -> Cow<'_, [u8]> {
    let utf16 = |bytes: &[u8], unit: fn([u8; 2]) -> u16| {
        let units = bytes.chunks_exact(2).map(|pair| unit([pair[0], pair[1]]));
        let text: String = char::decode_utf16(units).map(|read| read.unwrap_or('\u{FFFD}')).collect();
        Cow::Owned(text.into_bytes())
    };
    match body {
        [0xFF, 0xFE, rest @ ..] => utf16(rest, u16::from_le_bytes),
        [0xFE, 0xFF, rest @ ..] => utf16(rest, u16::from_be_bytes),
        [b'<', 0, ..] => utf16(body, u16::from_le_bytes),
        [0, b'<', ..] => utf16(body, u16::from_be_bytes),
        _ if str::from_utf8(body).is_ok() => Cow::Borrowed(body),
        _ => Cow::Owned(body.iter().copied().map(char::from).collect::<String>().into_bytes()),
    }
}
