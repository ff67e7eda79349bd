//! The schema of a provider file, and the provider that a good one makes. Errors name file, line, column and mend.

use std::ops::RangeInclusive;
use std::time::Duration;

use http::HeaderName;
use serde::Deserialize;
use toml::Spanned;

use super::handshake::{Handshake, HandshakeText};
use super::item_text::{ItemText, Says, compile, conditions};
use super::part::Selector;
use super::rules::{Format, ItemRules, Mark, item_path};
use super::signature::Signature;
use super::values::{Header, Span, Statuses, When};
use super::{Delivery, Items};

/// A provider file, parsed.
#[derive(Clone, Debug)]
pub struct Provider {
    pub name: String,
    /// The provider's own page about its webhooks.
    pub docs: String,
    pub hot_ttl: Duration,
    pub durable_ttl: Duration,
    /// Shorter than the default for senders that give up soon.
    pub in_flight_wait: Option<Duration>,
    /// Whether it appends to the route's path, so that the route must accept what is below it.
    pub subpaths: bool,
    /// Statuses of the app that mean that the event is done; `None` for 200-299.
    pub done: Option<Vec<RangeInclusive<u16>>>,
    /// What an answer of the app says that refuses the event, though its status is one of those.
    pub not_done: Option<ItemRules>,
    /// What such an answer has to say, or it refuses the event; beside `not_done`, what lifts that.
    pub done_when: Option<ItemRules>,
    /// What this provider takes for success; a copy is never answered otherwise. `None` for whatever the app said.
    pub success: Option<Vec<RangeInclusive<u16>>>,
    /// Statuses after which this provider never sends again: no answer of ours to an event that isn't done.
    pub final_statuses: Vec<RangeInclusive<u16>>,
    /// What a duplicate is answered where no receipt is kept; `None` for an empty 200.
    pub duplicate_answer: Option<Answer>,
    /// Headers that mark a retry, removed from first-seen forwards.
    pub strip_headers: Vec<HeaderName>,
    /// What carries live credentials.
    pub redact: Vec<Redact>,
    pub signature: Option<Signature>,
    pub rules: ItemRules,
    /// What it sends to check the URL.
    pub handshakes: Vec<Handshake>,
    pub notes: Notes,
}

/// A whole answer.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    pub status: u16,
    pub content_type: Option<String>,
    #[serde(default)]
    pub body: String,
}

/// A place that carries a live credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Redact {
    Header(HeaderName),
    Query(Box<str>),
    Form(Box<str>),
    /// A path into the body, as written.
    Body(String),
}

/// What a person wants to know: texts for the catalogue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Notes {
    /// The provider's name as people write it.
    pub title: String,
    /// What it repeats, how often and for how long.
    pub retries: String,
    /// What to set up there.
    pub setup: String,
    /// What it sends to check the URL.
    pub handshake: String,
    /// How far these facts are measured, read in code, or only documented.
    pub known: String,
    pub gotchas: Vec<String>,
}

/// What is wrong with a provider file, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: {why}")]
pub struct SchemaError {
    pub file: String,
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    pub why: String,
}

impl Provider {
    /// Parses a provider file; `file` is its name, for errors.
    pub fn parse(file: &str, text: &str) -> Result<Self, SchemaError> {
        let at = |offset: usize, why: String| {
            let before = text.as_bytes().get(..offset).unwrap_or(text.as_bytes());
            let line = before.split(|byte| *byte == b'\n').count();
            let start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
            let column = String::from_utf8_lossy(&before[start..]).chars().count() + 1;
            SchemaError { file: file.into(), line, column, why }
        };
        let written: File = toml::from_str(text).map_err(|error| {
            at(error.span().map_or(0, |span| span.start), error.message().replace('\n', " "))
        })?;
        written.finish().map_err(|(offset, why)| at(offset, why))
    }

    /// The items of a delivery.
    pub fn items(&self, delivery: &Delivery<'_>) -> Items {
        self.rules.items(delivery)
    }

    /// Headers that key parts come from and the signature scheme doesn't cover: whoever can replay a signed body
    /// can put another key on it.
    pub fn unsigned_key_headers(&self) -> Vec<HeaderName> {
        match &self.signature {
            Some(scheme) => self.rules.headers_open_under(scheme),
            None => self.rules.key_headers(),
        }
    }

    /// Key parts from the body or the query that the signature scheme doesn't cover.
    pub fn unsigned_key_parts(&self) -> Vec<String> {
        let Some(scheme) = &self.signature else { return Vec::new() };
        self.rules.key_sources().into_iter().filter(|source| !scheme.covers(source)).collect()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: Spanned<String>,
    docs: String,
    hot_ttl: Span,
    durable_ttl: Spanned<Span>,
    in_flight_wait: Option<Span>,
    #[serde(default)]
    subpaths: bool,
    done: Option<Statuses>,
    not_done: Option<When>,
    done_when: Option<When>,
    success: Option<Spanned<Statuses>>,
    #[serde(default)]
    final_statuses: Option<Statuses>,
    duplicate_answer: Option<Spanned<Answer>>,
    #[serde(default)]
    strip_headers: Vec<Header>,
    #[serde(default)]
    redact: Vec<Spanned<String>>,
    signature: Option<Signature>,
    json_in_form: Option<String>,
    #[serde(default)]
    envelope: Vec<Spanned<String>>,
    /// What stands beside items and only describes them, as scalars always do: whatever else is there, where a file
    /// names either, counts as an item that no rule knows.
    describing: Option<Vec<Spanned<String>>>,
    item: Vec<ItemText>,
    #[serde(default)]
    handshake: Vec<Spanned<HandshakeText>>,
    #[serde(default)]
    notes: Notes,
}

/// Where in the file, in bytes, and what is wrong there.
pub(super) type Fault = (usize, String);

impl File {
    fn finish(self) -> Result<Provider, Fault> {
        if self.durable_ttl.get_ref().0 < self.hot_ttl.0 {
            return Err((self.durable_ttl.span().start, "durable_ttl must be at least hot_ttl".into()));
        }
        if self.name.get_ref().is_empty() {
            return Err((self.name.span().start, "the name must not be empty".into()));
        }
        let marks = marks(&self.envelope, self.describing.as_deref())?;
        let rules = compile(self.item, &marks, self.json_in_form)?;
        let handshakes = self.handshake.into_iter().map(|table| {
            let start = table.span().start;
            table.into_inner().finish(start)
        });
        let handshakes = handshakes.collect::<Result<_, _>>()?;
        let success = self.success.map(|statuses| (statuses.span().start, statuses.into_inner().0));
        let success = match success {
            Some((at, ranges)) if ranges.is_empty() => {
                return Err((at, "success needs a status, or must be left out".into()));
            }
            success => success.map(|(_, ranges)| ranges),
        };
        let duplicate_answer = match self.duplicate_answer {
            Some(answer) => Some(read_answer(answer, success.as_deref())?),
            None => None,
        };
        let not_done = self.not_done.map(|when| conditions(when, Says::Refused)).transpose()?;
        let done_when = self.done_when.map(|when| conditions(when, Says::Done)).transpose()?;
        let redact = self.redact.iter().map(read_redact).collect::<Result<_, _>>()?;
        Ok(Provider {
            name: self.name.into_inner(),
            docs: self.docs,
            hot_ttl: self.hot_ttl.0,
            durable_ttl: self.durable_ttl.into_inner().0,
            in_flight_wait: self.in_flight_wait.map(|wait| wait.0),
            subpaths: self.subpaths,
            done: self.done.map(|statuses| statuses.0),
            not_done,
            done_when,
            success,
            final_statuses: self.final_statuses.map(|statuses| statuses.0).unwrap_or_default(),
            duplicate_answer,
            strip_headers: self.strip_headers.into_iter().map(|header| header.0).collect(),
            redact,
            signature: self.signature,
            rules,
            handshakes,
            notes: self.notes,
        })
    }
}

/// The answer that stands for success has to be one.
fn read_answer(answer: Spanned<Answer>, success: Option<&[RangeInclusive<u16>]>) -> Result<Answer, Fault> {
    let (at, answer) = (answer.span().start, answer.into_inner());
    let status = answer.status;
    let taken = match success {
        Some(ranges) => ranges.iter().any(|range| range.contains(&status)),
        None => (200..400).contains(&status),
    };
    if !taken {
        return Err((
            at,
            format!("a copy is told {status}, which is no success; write one of its statuses, such as 200"),
        ));
    }
    if answer.content_type.as_deref().is_some_and(|text| http::HeaderValue::from_str(text).is_err()) {
        return Err((at, "its content_type is no media type; write such as \"application/json\"".into()));
    }
    Ok(answer)
}

fn read_redact(text: &Spanned<String>) -> Result<Redact, Fault> {
    let at = text.span().start;
    let (selector, rest) = Selector::parse(text.get_ref()).map_err(|why| (at, why))?;
    match selector {
        Selector::Literal(_) | Selector::Relative(_) | Selector::Path(_) => {
            Err((at, "only $ and xml: paths, header:, query: and form: can be redacted".into()))
        }
        _ if !rest.is_empty() => Err((at, format!("\"{rest}\" is not understood"))),
        Selector::Header(name) => Ok(Redact::Header(name)),
        Selector::Query(name) => Ok(Redact::Query(name)),
        Selector::Form(name) => Ok(Redact::Form(name)),
        Selector::Json(_) | Selector::Xml(_) => Ok(Redact::Body(text.get_ref().clone())),
    }
}

fn marks(envelopes: &[Spanned<String>], describing: Option<&[Spanned<String>]>) -> Result<Vec<Mark>, Fault> {
    let path = |text: &Spanned<String>| match item_path(text.get_ref()) {
        Ok((Format::Whole | Format::Json, steps)) => Ok(steps),
        Ok((Format::Xml, _)) => Err((text.span().start, "only $ paths are read here".to_owned())),
        Err(why) => Err((text.span().start, why)),
    };
    let envelopes = envelopes.iter().map(|text| path(text).map(Mark::Envelope));
    // The body around all items does by itself: said of an empty list too, which has whatever else is there judged.
    let around = describing.map(|_| Ok(Mark::Describes(Vec::new())));
    let describing = describing.unwrap_or_default().iter().map(|text| path(text).map(Mark::Describes));
    envelopes.chain(around).chain(describing).collect()
}
