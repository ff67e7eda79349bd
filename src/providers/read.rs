//! One delivery, read as far as a set of rules needs it: which kind of body it is, and what a selector finds.

use std::borrow::Cow;

use super::form;
use super::json;
use super::rules::{Bound, Compiled, Source};
use super::tree::{Lack, Tree, Unread, is_blank};
use super::trie::NONE;
use super::xml;
use super::{Delivery, Part};

/// What the body turned out to be.
pub(super) enum Body<'a> {
    Json(Tree, Cow<'a, [u8]>),
    Xml(Tree),
    /// Fields, read when asked for.
    Form,
    Unread(Unread),
    /// The rules name nothing in the body but, perhaps, form fields.
    Unneeded,
}

pub(super) struct Reading<'a> {
    pub(super) delivery: &'a Delivery<'a>,
    pub(super) body: Body<'a>,
}

impl<'a> Reading<'a> {
    pub(super) fn new(delivery: &'a Delivery<'a>, rules: &Compiled) -> Self {
        Self { delivery, body: read_body(delivery, rules) }
    }

    /// The tree of the body and the bytes that its spans are of.
    pub(super) fn tree(&self) -> Option<(&Tree, &[u8])> {
        match &self.body {
            Body::Json(tree, text) => Some((tree, text)),
            Body::Xml(tree) => Some((tree, self.delivery.body)),
            Body::Form | Body::Unread(_) | Body::Unneeded => None,
        }
    }

    /// What `source` gives for the item whose ancestors, itself last, are `line`.
    pub(super) fn value(&self, source: &Source, line: &[usize]) -> Result<Part, Lack> {
        let found = match source {
            Source::Literal(text) => return Ok(text.clone()),
            Source::Json(bound) => match &self.body {
                Body::Json(tree, text) => return find(tree, text, bound, line),
                Body::Xml(_) | Body::Form | Body::Unread(_) | Body::Unneeded => None,
            },
            Source::Xml(bound) => match &self.body {
                Body::Xml(tree) => return find(tree, self.delivery.body, bound, line),
                Body::Json(..) | Body::Form | Body::Unread(_) | Body::Unneeded => None,
            },
            Source::Header(name) => self.delivery.headers.get(name).map(|value| value.as_bytes().to_vec()),
            Source::Query(name) => {
                form::query_of(self.delivery.url).and_then(|query| form::field(query.as_bytes(), name))
            }
            Source::Path(name) => {
                let found = self.delivery.path_params.iter().find(|(known, _)| **known == **name);
                found.map(|(_, value)| value.as_bytes().to_vec())
            }
            Source::Form(name) if is_form(self.delivery) => form::field(self.delivery.body, name),
            Source::Form(_) => None,
        };
        match found {
            None => Err(Lack::Absent),
            Some(value) if is_blank(&value) => Err(Lack::Blank),
            Some(value) => Ok(value.into()),
        }
    }
}

fn find(tree: &Tree, text: &[u8], bound: &Bound, line: &[usize]) -> Result<Part, Lack> {
    let from = line.get(bound.from).copied().unwrap_or(NONE);
    if from == NONE {
        return Err(Lack::Absent);
    }
    let node = tree.descend(from, &bound.hops).ok_or(Lack::Absent)?;
    tree.scalar(node, text)
}

fn read_body<'a>(delivery: &Delivery<'a>, rules: &Compiled) -> Body<'a> {
    if !rules.reads_body() {
        return Body::Unneeded;
    }
    let body = delivery.body;
    let shown = body.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(body);
    let first = shown.iter().find(|byte| !byte.is_ascii_whitespace());
    match first {
        Some(b'<') => xml::scan(body, &rules.xml).map_or_else(Body::Unread, Body::Xml),
        Some(b'{' | b'[') => read_json(body.into(), rules),
        _ if is_form(delivery) => {
            let inside = rules.json_in_form.as_ref().and_then(|name| form::field(body, name));
            inside.map_or(Body::Form, |json| read_json(json.into(), rules))
        }
        _ => read_json(body.into(), rules),
    }
}

fn read_json<'a>(text: Cow<'a, [u8]>, rules: &Compiled) -> Body<'a> {
    match json::scan(&text, &rules.json) {
        Ok(tree) => Body::Json(tree, text),
        Err(unread) => Body::Unread(unread),
    }
}

pub(super) fn is_form(delivery: &Delivery<'_>) -> bool {
    says_form(delivery.headers)
}

pub(super) fn says_form(headers: &http::HeaderMap) -> bool {
    let value = headers.get(http::header::CONTENT_TYPE).map(http::HeaderValue::as_bytes);
    let essence = value.and_then(|value| value.split(|byte| *byte == b';').next());
    essence.is_some_and(|essence| {
        essence.trim_ascii().eq_ignore_ascii_case(b"application/x-www-form-urlencoded")
    })
}
