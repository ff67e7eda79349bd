//! The text that a signature covers, as written in a provider file: `{timestamp}.{body}`, `{url}{form}`,
//! `[id:{query:data.id|lower};]ts:{timestamp};`.

use std::borrow::Cow;

use http::HeaderName;

use super::place::{BadSignature, Source, is_form};
use crate::providers::Delivery;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Template(Vec<Segment>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Always(Part),
    /// Left out as a whole where something in it is missing.
    Optional(Vec<Part>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Literal(String),
    Body,
    /// The body's CRC-32, in decimal.
    Checksum,
    /// The id that the provider gave the webhook, of the route's configuration.
    WebhookId,
    Timestamp,
    Method,
    Url(UrlForm),
    /// Every field's name and value, sorted, repeated pairs once.
    Form,
    From {
        source: Source,
        lower: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UrlForm {
    AsCalled,
    WithPort,
    WithoutPort,
    /// With the escapes undone that HubSpot undoes before signing.
    Decoded,
}

/// What a template is filled from.
#[derive(Clone, Copy)]
pub(super) struct Scene<'a> {
    pub(super) delivery: &'a Delivery<'a>,
    /// What `{body}` is.
    pub(super) body: &'a [u8],
    /// What fields are read from: the same, or with its `Content-Encoding` undone.
    pub(super) readable: &'a [u8],
    pub(super) timestamp: Option<&'a str>,
    pub(super) item: Option<&'a str>,
    pub(super) webhook_id: Option<&'a str>,
    /// Whether the delivery names its body's digest, and that holds; `{form}` is empty then.
    pub(super) digest_holds: bool,
}

impl<'a> Scene<'a> {
    /// The delivery as it came.
    pub(super) fn of(delivery: &'a Delivery<'a>) -> Self {
        Self {
            delivery,
            body: delivery.raw_body,
            readable: delivery.body,
            timestamp: None,
            item: None,
            webhook_id: None,
            digest_holds: false,
        }
    }
}

impl Template {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut segments = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            if let Some(group) = rest.strip_prefix('[') {
                let (inside, after) =
                    group.split_once(']').ok_or_else(|| format!("`{text}`: a [ is not closed"))?;
                let mut parts = Vec::new();
                let mut left = inside;
                while !left.is_empty() {
                    let (part, after) = Part::parse(left)?;
                    parts.push(part);
                    left = after;
                }
                segments.push(Segment::Optional(parts));
                rest = after;
            } else {
                let (part, after) = Part::parse(rest)?;
                segments.push(Segment::Always(part));
                rest = after;
            }
        }
        if segments.is_empty() { Err("signed is empty".to_owned()) } else { Ok(Self(segments)) }
    }

    fn parts(&self) -> impl Iterator<Item = &Part> {
        self.0.iter().flat_map(|segment| match segment {
            Segment::Always(part) => std::slice::from_ref(part),
            Segment::Optional(parts) => parts.as_slice(),
        })
    }

    pub(super) fn has_body(&self) -> bool {
        self.parts().any(|part| matches!(part, Part::Body | Part::Checksum | Part::Form))
    }

    /// Whether anything in it is read inside the body.
    pub(super) fn reads_inside(&self) -> bool {
        self.parts().any(|part| {
            matches!(part, Part::Form) || matches!(part, Part::From { source, .. } if source.is_inside())
        })
    }

    pub(super) fn has_url(&self) -> bool {
        self.parts().any(|part| matches!(part, Part::Url(_)))
    }

    /// Whether the body enters as a checksum, which others can be made to fit.
    pub(super) fn has_checksum(&self) -> bool {
        self.parts().any(|part| *part == Part::Checksum)
    }

    /// Whether the value that a key part names, as it is written there, is part of the text.
    pub(super) fn covers(&self, key_part: &str) -> bool {
        let whole = self.has_body();
        self.parts().any(|part| match part {
            Part::Url(_) => in_url(key_part),
            Part::From { source: Source::Query(name), .. } => key_part.strip_prefix("query:") == Some(name),
            Part::From { source: Source::Form(name), .. } => key_part.strip_prefix("form:") == Some(name),
            Part::From { source: Source::Json(path), .. } => {
                key_part.strip_prefix("$.").is_some_and(|name| name == path.to_string())
            }
            Part::From { source: Source::Item(path), .. } => {
                key_part.strip_prefix("@.").is_some_and(|name| name == path.to_string())
            }
            Part::Literal(_)
            | Part::Body
            | Part::Checksum
            | Part::WebhookId
            | Part::Timestamp
            | Part::Method
            | Part::Form
            | Part::From { source: Source::Header(_), .. } => false,
        }) || whole && !in_url(key_part)
    }

    pub(super) fn has_webhook_id(&self) -> bool {
        self.parts().any(|part| *part == Part::WebhookId)
    }

    pub(super) fn has_timestamp(&self) -> bool {
        self.parts().any(|part| *part == Part::Timestamp)
    }

    pub(super) fn has_item(&self) -> bool {
        self.parts().any(|part| matches!(part, Part::From { source: Source::Item(_), .. }))
    }

    pub(super) fn has_header(&self, name: &HeaderName) -> bool {
        self.parts().any(|part| matches!(part, Part::From { source: Source::Header(own), .. } if own == name))
    }

    /// Hands the text to `sink`, piece by piece, so that bodies aren't copied.
    pub(super) fn fill(&self, scene: &Scene<'_>, mut sink: impl FnMut(&[u8])) -> Result<(), BadSignature> {
        for segment in &self.0 {
            match segment {
                Segment::Always(part) => match part.value(scene)? {
                    Some(value) => sink(&value),
                    None => return Err(BadSignature::Missing(part.name())),
                },
                Segment::Optional(parts) => {
                    let values: Option<Vec<_>> =
                        parts.iter().map(|part| part.value(scene).transpose()).collect::<Option<_>>();
                    for value in values.into_iter().flatten() {
                        sink(&value?);
                    }
                }
            }
        }
        Ok(())
    }
}

impl Part {
    /// One part from the front, and what follows it.
    fn parse(text: &str) -> Result<(Self, &str), String> {
        if let Some(tail) = text.strip_prefix('{') {
            let (inside, after) =
                tail.split_once('}').ok_or_else(|| format!("`{text}`: a {{ is not closed"))?;
            let (name, filter) =
                inside.split_once('|').map_or((inside, None), |(name, filter)| (name, Some(filter)));
            let part = match (name, filter) {
                ("body", None) => Self::Body,
                ("body", Some("crc32")) => Self::Checksum,
                ("webhook_id", None) => Self::WebhookId,
                ("timestamp", None) => Self::Timestamp,
                ("method", None) => Self::Method,
                ("form", None) => Self::Form,
                ("url", None) => Self::Url(UrlForm::AsCalled),
                ("url", Some("with-port")) => Self::Url(UrlForm::WithPort),
                ("url", Some("without-port")) => Self::Url(UrlForm::WithoutPort),
                ("url", Some("decoded")) => Self::Url(UrlForm::Decoded),
                (_, None) => Self::From { source: Source::parse(name)?, lower: false },
                (_, Some("lower")) => Self::From { source: Source::parse(name)?, lower: true },
                (_, Some(other)) => return Err(format!("`{{{name}|{other}}}` is not understood")),
            };
            return Ok((part, after));
        }
        let end = text.find(['{', '[']).unwrap_or(text.len());
        let (literal, after) = text.split_at(end);
        if literal.is_empty() {
            return Err(format!("`{text}`: a [ inside [ ] is not understood"));
        }
        Ok((Self::Literal(literal.to_owned()), after))
    }

    fn value<'a>(&'a self, scene: &Scene<'a>) -> Result<Option<Cow<'a, [u8]>>, BadSignature> {
        Ok(match self {
            Self::Literal(text) => Some(Cow::Borrowed(text.as_bytes())),
            Self::Body => Some(Cow::Borrowed(scene.body)),
            Self::Checksum => {
                let mut crc = flate2::Crc::new();
                crc.update(scene.body);
                Some(Cow::Owned(crc.sum().to_string().into_bytes()))
            }
            Self::WebhookId => scene.webhook_id.map(|id| Cow::Borrowed(id.as_bytes())),
            Self::Timestamp => scene.timestamp.map(|stamp| Cow::Borrowed(stamp.as_bytes())),
            Self::Method => Some(Cow::Borrowed(scene.delivery.method.as_str().as_bytes())),
            Self::Url(form) => Some(match form.of(scene.delivery.url) {
                Cow::Borrowed(url) => Cow::Borrowed(url.as_bytes()),
                Cow::Owned(url) => Cow::Owned(url.into_bytes()),
            }),
            Self::Form => Some(Cow::Owned(form_text(scene)?)),
            Self::From { source, lower } => {
                let value = source.read(scene.delivery, scene.readable, scene.item)?;
                value.map(|value| if *lower { Cow::Owned(value.to_ascii_lowercase()) } else { value })
            }
        })
    }

    fn name(&self) -> String {
        match self {
            Self::Literal(text) => text.clone(),
            Self::Body | Self::Checksum => "body".to_owned(),
            Self::WebhookId => "webhook_id (of the route)".to_owned(),
            Self::Timestamp => "timestamp".to_owned(),
            Self::Method => "method".to_owned(),
            Self::Url(_) => "URL".to_owned(),
            Self::Form => "form".to_owned(),
            Self::From { source, .. } => source.to_string(),
        }
    }
}

fn form_text(scene: &Scene<'_>) -> Result<Vec<u8>, BadSignature> {
    if scene.digest_holds || scene.readable.is_empty() {
        return Ok(Vec::new());
    }
    if !is_form(scene.delivery) {
        return Err(BadSignature::BodyNotCovered);
    }
    let mut pairs: Vec<_> = form_urlencoded::parse(scene.readable).collect();
    pairs.sort_unstable();
    pairs.dedup();
    let mut text = Vec::with_capacity(scene.readable.len());
    for (name, value) in pairs {
        text.extend_from_slice(name.as_bytes());
        text.extend_from_slice(value.as_bytes());
    }
    Ok(text)
}

impl UrlForm {
    fn of(self, url: &str) -> Cow<'_, str> {
        match self {
            Self::AsCalled => Cow::Borrowed(url),
            Self::WithPort => match UrlParts::of(url) {
                Some(parts) if parts.port.is_none() => {
                    let port = if parts.scheme.eq_ignore_ascii_case("http") { 80 } else { 443 };
                    Cow::Owned(format!("{}://{}:{port}{}", parts.scheme, parts.host, parts.tail))
                }
                _ => Cow::Borrowed(url),
            },
            Self::WithoutPort => match UrlParts::of(url) {
                Some(parts) if parts.port.is_some() => {
                    Cow::Owned(format!("{}://{}{}", parts.scheme, parts.host, parts.tail))
                }
                _ => Cow::Borrowed(url),
            },
            Self::Decoded => decoded(url),
        }
    }
}

struct UrlParts<'a> {
    scheme: &'a str,
    host: &'a str,
    port: Option<&'a str>,
    /// Path and query.
    tail: &'a str,
}

impl<'a> UrlParts<'a> {
    fn of(url: &'a str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => (host, Some(port)),
            _ => (authority, None),
        };
        Some(Self { scheme, host, port, tail })
    }
}

/// The escapes that HubSpot documents as undone in the signed URI; all others stay.
fn decoded(url: &str) -> Cow<'_, str> {
    const UNDONE: &[u8] = b":/?@!$'()*,;";
    if !url.contains('%') {
        return Cow::Borrowed(url);
    }
    let mut pieces = url.split('%');
    let mut text = pieces.next().unwrap_or("").to_owned();
    for piece in pieces {
        let escaped = piece.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match escaped.filter(|byte| UNDONE.contains(byte)).zip(piece.get(2..)) {
            Some((byte, after)) => {
                text.push(char::from(byte));
                text.push_str(after);
            }
            None => {
                text.push('%');
                text.push_str(piece);
            }
        }
    }
    Cow::Owned(text)
}

/// Whether a key part stands in the URL.
pub(super) fn in_url(key_part: &str) -> bool {
    key_part.starts_with("query:") || key_part.starts_with("path:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_take_the_forms_that_senders_sign() {
        let table = [
            (UrlForm::WithPort, "https://a.example/x?y=1", "https://a.example:443/x?y=1"),
            (UrlForm::WithPort, "http://a.example", "http://a.example:80"),
            (UrlForm::WithPort, "https://a.example:8443/x", "https://a.example:8443/x"),
            (UrlForm::WithPort, "https://[::1]/x", "https://[::1]:443/x"),
            (UrlForm::WithoutPort, "https://a.example:8443/x", "https://a.example/x"),
            (UrlForm::WithoutPort, "https://a.example/x:1", "https://a.example/x:1"),
            (UrlForm::WithoutPort, "https://[::1]:80/", "https://[::1]/"),
            (UrlForm::Decoded, "https://a/x%3Ay%2fz%20%é%4", "https://a/x:y/z%20%é%4"),
        ];
        for (form, url, expected) in table {
            assert_eq!(form.of(url), expected, "{form:?} {url}");
        }
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for text in [
            "",
            "{bod}",
            "{body",
            "[x",
            "{url|upside-down}",
            "{header:}",
            "{header:a b}",
            "{json:a[*]}",
            "[a[b]]",
        ] {
            assert!(Template::parse(text).is_err(), "{text}");
        }
    }
}
