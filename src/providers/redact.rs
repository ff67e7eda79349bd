//! Takes live credentials out of what people are shown of a delivery: what the provider's file marks, what its scheme
//! sends along, what names tell of, and the route's own secrets wherever they stand. Everything else stays byte for
//! byte. A body that can't be read is withheld whole. Never for what goes to the app, or is stored to go there.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use http::{HeaderMap, HeaderName, HeaderValue};
use memchr::memmem;

use super::part::Selector;
use super::path::Step;
use super::read;
use super::rules::ItemRules;
use super::schema::{Provider, Redact};
use super::secretive;
use super::tree::Unread;
use super::walk::{self, Shape};

/// What stands in a credential's place.
pub const HIDDEN: &str = "[redacted]";
/// The same in a query or a form, and there in JSON.
const HIDDEN_IN_FORM: &str = "%5Bredacted%5D";
const HIDDEN_IN_FORMED_JSON: &str = "%22%5Bredacted%5D%22";
const HIDDEN_IN_JSON: &str = "\"[redacted]\"";
/// Shorter secrets are not looked for in running text: they would be found everywhere.
const SECRET_BYTES_MIN: usize = 6;

/// What of a route's deliveries people may see.
#[derive(Clone, Debug, Default)]
pub struct Redactor {
    hidden: Vec<Redact>,
    json: Vec<Vec<Step>>,
    xml: Vec<Vec<Step>>,
    /// What names events is shown, even under a name that tells of a credential.
    shown: Vec<Selector>,
    json_in_form: Option<Box<str>>,
    secrets: Secrets,
}

#[derive(Clone, Default)]
struct Secrets(Vec<Box<[u8]>>);

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A body that nobody is shown, since what is secret in it can't be told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("[withheld: {bytes} bytes; what is secret in them can't be told, since {why}]")]
pub struct Withheld {
    pub bytes: usize,
    why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Why {
    #[error("they are no JSON, XML or form that can be read")]
    Malformed,
    #[error("they are nested too deeply")]
    TooDeep,
    #[error("they hold too many values")]
    TooMany,
    #[error("what its route hides is not known any more")]
    NoRoute,
}

/// Where a value stands that may have to be hidden.
#[derive(Clone, Copy, Debug)]
pub(super) enum At<'a> {
    Header(&'a HeaderName),
    Query(&'a [u8]),
    Form(&'a [u8]),
    Json(&'a [Step]),
    Xml(&'a [Step]),
}

impl Redactor {
    /// For a route with this provider, if any, whose events are named by `rules`.
    pub fn new(provider: Option<&Provider>, rules: Option<&ItemRules>) -> Self {
        let mut redactor = Self::default();
        if let Some(provider) = provider {
            redactor.hidden.clone_from(&provider.redact);
            redactor.hidden.extend(provider.signature.iter().flat_map(super::Signature::credentials));
        }
        for place in &redactor.hidden {
            let Redact::Body(text) = place else { continue };
            match Selector::parse(text) {
                Ok((Selector::Xml(steps), _)) => redactor.xml.push(steps),
                Ok((Selector::Json(steps), _)) => redactor.json.push(steps),
                Ok(_) | Err(_) => {}
            }
        }
        redactor.shown = rules.map(ItemRules::selectors).unwrap_or_default();
        redactor.json_in_form = rules.and_then(|rules| rules.0.json_in_form.clone());
        redactor
    }

    /// Also hides these texts, wherever they stand.
    pub fn knowing<'a>(mut self, secrets: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let long = secrets.into_iter().filter(|secret| secret.len() >= SECRET_BYTES_MIN);
        self.secrets.0.extend(long.map(Box::from));
        self
    }

    /// The headers, in their order, with credentials hidden.
    pub fn headers(&self, headers: &HeaderMap) -> HeaderMap {
        let mut shown = HeaderMap::with_capacity(headers.len());
        for (name, value) in headers {
            let value = if self.hides(At::Header(name)) {
                HeaderValue::from_static(HIDDEN)
            } else {
                match self.without_secrets(value.as_bytes()) {
                    Cow::Borrowed(_) => value.clone(),
                    Cow::Owned(text) => {
                        HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static(HIDDEN))
                    }
                }
            };
            shown.append(name, value);
        }
        shown
    }

    /// A URL, or a request's target, with what is secret in its path and query hidden.
    pub fn url(&self, url: &str, path_params: &[(String, String)]) -> String {
        let (path, query) = url.split_once('?').map_or((url, None), |(path, query)| (path, Some(query)));
        let secret = |segment: &&str| {
            let mut named = path_params.iter().filter(|(name, _)| self.hides_param(name));
            !segment.is_empty() && named.any(|(_, value)| value == *segment)
        };
        let segments = path.split('/').map(|segment| if secret(&segment) { HIDDEN_IN_FORM } else { segment });
        let mut shown = segments.collect::<Vec<_>>().join("/").into_bytes();
        if let Some(query) = query {
            shown.push(b'?');
            let spans = walk::form(query.as_bytes())
                .into_iter()
                .filter(|pair| self.hides(At::Query(&pair.name)))
                .map(|pair| (pair.value, HIDDEN_IN_FORM));
            shown.extend_from_slice(&replaced(query.as_bytes(), spans.collect()));
        }
        String::from_utf8_lossy(&self.without_secrets(&shown)).into_owned()
    }

    /// The body, decoded from any `Content-Encoding`, with credentials hidden.
    ///
    /// # Errors
    /// When it can't be read, so that nobody knows what is secret in it.
    pub fn body<'a>(&self, headers: &HeaderMap, body: &'a [u8]) -> Result<Cow<'a, [u8]>, Withheld> {
        if body.trim_ascii().is_empty() {
            return Ok(Cow::Borrowed(body));
        }
        let spans = self.spans(headers, body).map_err(|unread| {
            let why = match unread {
                Unread::Malformed => Why::Malformed,
                Unread::TooDeep => Why::TooDeep,
                Unread::TooMany => Why::TooMany,
            };
            Withheld { bytes: body.len(), why }
        })?;
        if spans.is_empty() {
            return Ok(self.without_secrets(body));
        }
        let shown = replaced(body, spans);
        Ok(Cow::Owned(self.without_secrets(&shown).into_owned()))
    }

    /// Where the body holds what must be hidden, and what to put there.
    fn spans(&self, headers: &HeaderMap, body: &[u8]) -> Result<Vec<(Range<usize>, &'static str)>, Unread> {
        let mut spans = Vec::new();
        match kind(headers, body) {
            Kind::Json => self.json_spans(body, true, |span| spans.push((span, HIDDEN_IN_JSON)))?,
            Kind::Xml => walk::xml(body, &mut |steps, shape, span| {
                let value = !matches!(shape, Shape::Group) || self.marked(At::Xml(steps));
                if value && !span.is_empty() && self.hides(At::Xml(steps)) {
                    spans.push((span, HIDDEN));
                }
            })?,
            Kind::Form => {
                for pair in walk::form(body) {
                    let sent = body.get(pair.value.clone()).unwrap_or_default();
                    if sent.is_empty() {
                        continue;
                    }
                    if self.hides(At::Form(&pair.name)) {
                        spans.push((pair.value, HIDDEN_IN_FORM));
                        continue;
                    }
                    let (text, places) = walk::decoded(sent);
                    if !text.starts_with(b"{") && !text.starts_with(b"[") {
                        continue;
                    }
                    let rules = self.json_in_form.as_ref().is_some_and(|name| name.as_bytes() == pair.name);
                    let before = spans.len();
                    let start = pair.value.start;
                    let read = self.json_spans(&text, rules, |span| {
                        let span = start + places[span.start]..start + places[span.end];
                        spans.push((span, HIDDEN_IN_FORMED_JSON));
                    });
                    // What only looked like JSON is a text like any other; where rules read it, it is withheld.
                    match read {
                        Err(unread) if rules => return Err(unread),
                        Err(_) => spans.truncate(before),
                        Ok(()) => {}
                    }
                }
            }
        }
        Ok(spans)
    }

    fn json_spans(
        &self,
        text: &[u8],
        by_path: bool,
        mut found: impl FnMut(Range<usize>),
    ) -> Result<(), Unread> {
        walk::json(text, &mut |steps, shape, span| {
            let hidden = match shape {
                Shape::Null => false,
                Shape::Group => by_path && self.marked(At::Json(steps)),
                Shape::Plain | Shape::Text | Shape::Element(_) | Shape::Attribute => {
                    (by_path && self.marked(At::Json(steps))) || self.named(At::Json(steps))
                }
            };
            if hidden {
                found(span);
            }
        })
    }

    /// Whether the value there must not be shown.
    pub(super) fn hides(&self, at: At<'_>) -> bool {
        self.marked(at) || self.named(at)
    }

    /// Whether the provider's file says so.
    fn marked(&self, at: At<'_>) -> bool {
        match at {
            At::Json(steps) => self.json.iter().any(|path| leads_to(path, steps)),
            At::Xml(steps) => self.xml.iter().any(|path| leads_to_element(path, steps)),
            At::Header(name) => {
                self.hidden.iter().any(|place| matches!(place, Redact::Header(n) if n == name))
            }
            At::Query(name) => {
                self.hidden.iter().any(|place| matches!(place, Redact::Query(n) if n.as_bytes() == name))
            }
            At::Form(name) => {
                self.hidden.iter().any(|place| matches!(place, Redact::Form(n) if n.as_bytes() == name))
            }
        }
    }

    /// Whether a name on the way there tells of a credential, and no event is named by it.
    fn named(&self, at: At<'_>) -> bool {
        let told = match at {
            At::Header(name) => secretive::tells(name.as_str()),
            At::Query(name) | At::Form(name) => secretive::tells(&String::from_utf8_lossy(name)),
            At::Json(steps) | At::Xml(steps) => steps.iter().any(|step| match step {
                Step::Member(name) => secretive::tells(name),
                Step::Each | Step::At(_) => false,
            }),
        };
        told && !self.shown.iter().any(|selector| reads(selector, at))
    }

    fn hides_param(&self, name: &str) -> bool {
        let shown = |selector: &Selector| matches!(selector, Selector::Path(path) if **path == *name);
        secretive::tells(name) && !self.shown.iter().any(shown)
    }

    fn without_secrets<'a>(&self, text: &'a [u8]) -> Cow<'a, [u8]> {
        let mut spans = Vec::new();
        for secret in &self.secrets.0 {
            spans.extend(memmem::find_iter(text, secret).map(|at| (at..at + secret.len(), HIDDEN)));
        }
        if spans.is_empty() { Cow::Borrowed(text) } else { Cow::Owned(replaced(text, spans)) }
    }
}

impl Withheld {
    /// For a body whose route is gone from the configuration.
    pub fn without_route(bytes: usize) -> Self {
        Self { bytes, why: Why::NoRoute }
    }
}

/// How a body is read; the same choice as for its items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Json,
    Xml,
    Form,
}

pub(super) fn kind(headers: &HeaderMap, body: &[u8]) -> Kind {
    let body = body.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(body);
    match body.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'<') => Kind::Xml,
        Some(b'{' | b'[') => Kind::Json,
        _ if read::says_form(headers) => Kind::Form,
        _ => Kind::Json,
    }
}

/// Whether a path of a provider file leads to the value at `steps`.
fn leads_to(path: &[Step], steps: &[Step]) -> bool {
    let meets = |(wanted, met): (&Step, &Step)| match (wanted, met) {
        (Step::Each, Step::At(_)) => true,
        (wanted, met) => wanted == met,
    };
    path.len() == steps.len() && path.iter().zip(steps).all(meets)
}

/// The same among XML elements, where `[*]` only says that there may be several.
fn leads_to_element(path: &[Step], steps: &[Step]) -> bool {
    path.iter().filter(|step| matches!(step, Step::Member(_))).eq(steps)
}

fn reads(selector: &Selector, at: At<'_>) -> bool {
    match (selector, at) {
        (Selector::Header(name), At::Header(met)) => name == met,
        (Selector::Query(name), At::Query(met)) | (Selector::Form(name), At::Form(met)) => {
            name.as_bytes() == met
        }
        (Selector::Json(path), At::Json(steps)) => leads_to(path, steps),
        (Selector::Xml(path), At::Xml(steps)) => leads_to_element(path, steps),
        _ => false,
    }
}

/// The text with each span replaced; spans inside or across others go with the first.
fn replaced(text: &[u8], mut spans: Vec<(Range<usize>, &'static str)>) -> Vec<u8> {
    spans.sort_by_key(|(span, _)| (span.start, std::cmp::Reverse(span.end)));
    let mut out = Vec::with_capacity(text.len() + spans.len() * HIDDEN.len());
    let mut at = 0;
    for (span, instead) in spans {
        if span.start < at {
            // Inside what is hidden already, or across its end.
            at = at.max(span.end);
            continue;
        }
        out.extend_from_slice(text.get(at..span.start).unwrap_or_default());
        out.extend_from_slice(instead.as_bytes());
        at = span.end;
    }
    out.extend_from_slice(text.get(at..).unwrap_or_default());
    out
}
