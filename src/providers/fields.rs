//! A delivery field by field, each with the key part that reads it: what `umavez keydiff` compares.

use std::collections::BTreeMap;

use http::HeaderName;

use super::Delivery;
use super::form;
use super::path::{Step, split_name};
use super::redact::{At, HIDDEN, Kind, Redactor, kind};
use super::secretive;
use super::tree::Unread;
use super::walk::{self, Shape};

/// One value of a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// The key part that reads it: `$.data.id`, `header:x-id`.
    pub part: String,
    pub stands: Stands,
    /// The name nearest to the value, in lower-case words: `event id` for `$.eventId`.
    pub name: Vec<String>,
    /// How many names lead to it, and whether it is inside a list.
    pub depth: usize,
    pub in_list: bool,
    /// `None` for null.
    pub value: Option<Vec<u8>>,
    /// What people are not shown, and no key is made of.
    pub secret: bool,
}

/// In which part of a delivery a field stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stands {
    Header,
    Query,
    Path,
    Body,
}

/// All fields of a delivery, in its order; of repeated ones the one that a key reads.
#[derive(Clone, Debug)]
pub struct Fields {
    pub list: Vec<Field>,
    /// Why the body has none.
    pub unread: Option<Unread>,
    /// The body is a list, or holds lists of objects: it may carry several events.
    pub lists: Vec<String>,
}

impl Redactor {
    /// The fields of a delivery.
    pub fn fields(&self, delivery: &Delivery<'_>) -> Fields {
        let mut found = Found::default();
        for name in delivery.headers.keys() {
            let value = delivery.headers.get(name).map(|value| value.as_bytes().to_vec());
            let secret = self.hides(At::Header(name));
            found.put(header_part(name), Stands::Header, name.as_str(), value, secret);
        }
        let query = form::query_of(delivery.url).unwrap_or_default().as_bytes();
        for pair in walk::form(query) {
            let Ok(name) = String::from_utf8(pair.name) else { continue };
            let value = walk::decoded(query.get(pair.value).unwrap_or_default()).0;
            let secret = self.hides(At::Query(name.as_bytes()));
            found.put(format!("query:{}", named(&name)), Stands::Query, &name, Some(value), secret);
        }
        for (name, value) in delivery.path_params {
            let value = Some(value.clone().into_bytes());
            found.put(format!("path:{}", named(name)), Stands::Path, name, value, false);
        }
        let unread = self.body_fields(delivery, &mut found).err();
        Fields { list: found.list, unread, lists: found.lists }
    }

    fn body_fields(&self, delivery: &Delivery<'_>, found: &mut Found) -> Result<(), Unread> {
        let body = delivery.body;
        if body.trim_ascii().is_empty() {
            return Ok(());
        }
        match kind(delivery.headers, body) {
            Kind::Json => self.json_fields(body, found),
            Kind::Xml => walk::xml(body, &mut |steps, shape, _| {
                if let Shape::Element(text) = shape {
                    let name = last_name(steps);
                    let secret = self.hides(At::Xml(steps));
                    found.put(xml_part(steps), Stands::Body, &name, Some(text), secret);
                    found.placed(steps);
                }
            }),
            Kind::Form => {
                for pair in walk::form(body) {
                    let Ok(name) = String::from_utf8(pair.name) else { continue };
                    let value = walk::decoded(body.get(pair.value).unwrap_or_default()).0;
                    // Where a route's own `$` paths read JSON in a form.
                    if name == "payload" && self.json_fields(&value, found).is_ok() {
                        continue;
                    }
                    let secret = self.hides(At::Form(name.as_bytes()));
                    found.put(format!("form:{}", named(&name)), Stands::Body, &name, Some(value), secret);
                }
                Ok(())
            }
        }
    }

    fn json_fields(&self, text: &[u8], found: &mut Found) -> Result<(), Unread> {
        walk::json(text, &mut |steps, shape, span| {
            if shape == Shape::Group {
                if text.get(span.start) == Some(&b'[') && text.get(span).is_some_and(holds_objects) {
                    found.lists.push(json_part(steps));
                }
                return;
            }
            let value = walk::scalar(text, &shape, span).map(std::borrow::Cow::into_owned);
            let secret = self.hides(At::Json(steps));
            found.put(json_part(steps), Stands::Body, &last_name(steps), value, secret);
            found.placed(steps);
        })
    }
}

/// Whether the first element of a list is an object or a list.
fn holds_objects(list: &[u8]) -> bool {
    let first = list.iter().skip(1).find(|byte| !byte.is_ascii_whitespace());
    matches!(first, Some(b'{' | b'['))
}

#[derive(Default)]
struct Found {
    list: Vec<Field>,
    by_part: BTreeMap<String, usize>,
    last: usize,
    lists: Vec<String>,
}

impl Found {
    /// Of two values under one part the later counts, as for keys.
    fn put(&mut self, part: String, stands: Stands, name: &str, value: Option<Vec<u8>>, secret: bool) {
        let secret = secret || value.as_deref() == Some(HIDDEN.as_bytes());
        let name = secretive::words(name);
        let field = Field { part, stands, name, depth: 1, in_list: false, value, secret };
        self.last = *self.by_part.entry(field.part.clone()).or_insert(self.list.len());
        match self.list.get_mut(self.last) {
            Some(known) => *known = field,
            None => self.list.push(field),
        }
    }

    fn placed(&mut self, steps: &[Step]) {
        if let Some(field) = self.list.get_mut(self.last) {
            field.depth = steps.iter().filter(|step| matches!(step, Step::Member(_))).count();
            field.in_list = steps.iter().any(|step| matches!(step, Step::At(_)));
        }
    }
}

fn header_part(name: &HeaderName) -> String {
    format!("header:{}", named(name.as_str()))
}

/// A name as parts take it: in quotes where it holds what would end it.
fn named(name: &str) -> String {
    let plain = |c: char| !c.is_whitespace() && !matches!(c, '|' | '?' | '"');
    if !name.is_empty() && name.chars().all(plain) { name.to_owned() } else { quoted(name) }
}

fn quoted(name: &str) -> String {
    serde_json::to_string(name).expect("text is JSON")
}

fn last_name(steps: &[Step]) -> String {
    let names = steps.iter().rev().filter_map(|step| match step {
        Step::Member(name) => Some(name.to_string()),
        Step::Each | Step::At(_) => None,
    });
    names.take(1).next().unwrap_or_default()
}

fn json_part(steps: &[Step]) -> String {
    let mut part = String::from("$");
    for step in steps {
        match step {
            Step::Member(name) if !name.is_empty() && split_name(name).1.is_empty() => {
                part.push('.');
                part.push_str(name);
            }
            Step::Member(name) => part.push_str(&format!("[{}]", quoted(name))),
            Step::Each => part.push_str("[*]"),
            Step::At(position) => part.push_str(&format!("[{position}]")),
        }
    }
    part
}

fn xml_part(steps: &[Step]) -> String {
    let names = steps.iter().filter_map(|step| match step {
        Step::Member(name) => Some(format!("/{name}")),
        Step::Each | Step::At(_) => None,
    });
    format!("xml:{}", names.collect::<String>())
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue, Method};

    use super::*;
    use crate::providers::ItemRules;

    fn fields(content_type: &str, url: &str, body: &str) -> Vec<String> {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_str(content_type).unwrap());
        headers.insert("x-id", HeaderValue::from_static("h1"));
        let delivery = Delivery {
            method: &Method::POST,
            url,
            headers: &headers,
            path_params: &[],
            raw_body: body.as_bytes(),
            body: body.as_bytes(),
        };
        let fields = Redactor::default().fields(&delivery);
        let value = |field: &Field| match (&field.value, field.secret) {
            (_, true) => "***".to_owned(),
            (None, false) => "null".to_owned(),
            (Some(value), false) => {
                // Each part is one that a key takes, and reads just this value.
                if !value.trim_ascii().is_empty() {
                    let rules = ItemRules::from_key(std::slice::from_ref(&field.part)).unwrap();
                    let items = rules.items(&delivery);
                    let read = items.list[0].parts.as_ref().unwrap();
                    assert_eq!(*read[0], **value, "{}", field.part);
                }
                String::from_utf8_lossy(value).into_owned()
            }
        };
        let lines = fields.list.iter().filter(|field| field.part != "header:content-type");
        lines.map(|field| format!("{}={}", field.part, value(field))).collect()
    }

    #[test]
    fn every_field_has_the_part_that_reads_it() {
        let json = r#"{"id":"a\u0031","n":7.50,"x":null,"o":{"a.b":["q",{"token":"t"}]},"id":"last"}"#;
        assert_eq!(
            fields("application/json", "https://h.example/p?a=%2B1&token=x&a=2", json),
            [
                "header:x-id=h1",
                "query:a=2",
                "query:token=***",
                "$.id=last",
                "$.n=7.50",
                "$.x=null",
                r#"$.o["a.b"][0]=q"#,
                r#"$.o["a.b"][1].token=***"#,
            ]
        );
        assert_eq!(
            fields("application/x-www-form-urlencoded", "https://h.example/", "A=1+2&B%20b=x&password=p"),
            ["header:x-id=h1", "form:A=1 2", "form:\"B b\"=x", "form:password=***"]
        );
        assert_eq!(
            fields("application/x-www-form-urlencoded", "https://h.example/", "payload=%7B%22id%22%3A7%7D"),
            ["header:x-id=h1", "$.id=7"]
        );
        assert_eq!(
            fields("text/xml", "https://h.example/", "<s:E xmlns:s='u'><B><Id>7</Id><Id>8</Id></B></s:E>"),
            ["header:x-id=h1", "xml:/E/B/Id=8"]
        );
    }
}
