//! The syntax of one key part: `$.id`, `header:X-Id`, `@.key.id | @.keyId`, `$.status?`, `literal:a:b`.
//! Alternatives stand between `|`, the first present wins; a `?` at the end makes the part optional.

use http::HeaderName;

use super::path::{Step, json_steps, split_name, split_quoted, xml_steps};

/// One key part as written.
#[derive(Clone, Debug)]
pub(super) struct PartText {
    pub(super) alternatives: Vec<Selector>,
    pub(super) optional: bool,
}

/// Where a part's value is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Selector {
    Literal(Box<str>),
    /// From the body's root, JSON.
    Json(Vec<Step>),
    /// From the body's root, XML.
    Xml(Vec<Step>),
    /// From the item, in whatever the item is written.
    Relative(Vec<Step>),
    Header(HeaderName),
    Query(Box<str>),
    Path(Box<str>),
    Form(Box<str>),
}

const PREFIXES: &str = "header: query: path: form: xml: literal:";

impl PartText {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut alternatives = Vec::new();
        let mut rest = text.trim();
        loop {
            let (selector, after) = Selector::parse(rest)?;
            alternatives.push(selector);
            match after.trim_start() {
                "" => return Ok(Self { alternatives, optional: false }),
                "?" => return Ok(Self { alternatives, optional: true }),
                more => match more.strip_prefix('|') {
                    Some(next) => rest = next.trim_start(),
                    None => {
                        return Err(format!("\"{more}\" is not understood; alternatives stand between |"));
                    }
                },
            }
        }
    }
}

impl Selector {
    /// Reads one selector from the start of `text`; gives it and the text after it.
    pub(super) fn parse(text: &str) -> Result<(Self, &str), String> {
        if let Some(rest) = text.strip_prefix('$') {
            return json_steps(rest).map(|(steps, rest)| (Self::Json(steps), rest));
        }
        if let Some(rest) = text.strip_prefix('@') {
            return json_steps(rest).map(|(steps, rest)| (Self::Relative(steps), rest));
        }
        let Some((prefix, rest)) = text.split_once(':') else { return bare_literal(text) };
        match prefix {
            "literal" if rest.trim().is_empty() => Err("a literal must not be blank".into()),
            "literal" => Ok((Self::Literal(rest.into()), "")),
            "xml" => xml_steps(rest).map(|(steps, rest)| (Self::Xml(steps), rest)),
            "header" => {
                let (name, rest) = named(prefix, rest)?;
                let header = HeaderName::from_bytes(name.as_bytes());
                header
                    .map(|name| (Self::Header(name), rest))
                    .map_err(|_| format!("no header can be named \"{name}\""))
            }
            "query" => named(prefix, rest).map(|(name, rest)| (Self::Query(name.into()), rest)),
            "path" => named(prefix, rest).map(|(name, rest)| (Self::Path(name.into()), rest)),
            "form" => named(prefix, rest).map(|(name, rest)| (Self::Form(name.into()), rest)),
            unknown => Err(format!(
                "\"{unknown}:\" is no prefix (there are {PREFIXES}); write \"literal:{text}\" if the text itself is meant"
            )),
        }
    }
}

fn named<'a>(prefix: &str, text: &'a str) -> Result<(String, &'a str), String> {
    let (name, rest) = if text.starts_with('"') {
        split_quoted(text)?
    } else {
        let end = text.find(|c: char| c.is_whitespace() || matches!(c, '|' | '?')).unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        (name.to_owned(), rest)
    };
    if name.is_empty() {
        return Err(format!("a name is missing after \"{prefix}:\""));
    }
    Ok((name, rest))
}

fn bare_literal(text: &str) -> Result<(Selector, &str), String> {
    let text = text.trim_end();
    if text.is_empty() {
        return Err("a part must not be empty".into());
    }
    let plain =
        |c: char| split_name(c.encode_utf8(&mut [0; 4])).1.is_empty() || matches!(c, '.' | '/' | ' ' | '+');
    if !text.chars().all(plain) {
        return Err(format!(
            "\"{text}\" could be more than one thing; a path begins with $, a literal with odd characters is written \
             \"literal:{text}\""
        ));
    }
    Ok((Selector::Literal(text.into()), ""))
}
