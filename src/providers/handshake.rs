//! Handshakes: what a provider sends to learn whether a URL is the right one. Tells them from events, and makes the
//! answer where the gateway may give it. Not here: whether a route passes them to its app or answers itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::Method;
use ring::hmac;
use serde::Deserialize;
use toml::Spanned;

use super::part::{PartText, Selector};
use super::rules::{Compiled, ItemRules, RuleText};
use super::schema::{Answer, Fault};
use super::signature::same;
use super::values::When;
use super::{Delivery, Keyless, Part, form, read};

/// Longest value that an answer repeats, bytes: challenges are short, and the gateway is no mirror.
const VALUE_BYTES_MAX: usize = 4096;

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

/// One kind of handshake of a provider.
#[derive(Clone, Debug)]
pub struct Handshake {
    /// `None` for whatever methods the route's events come by.
    method: Option<Method>,
    /// Comes without a signature also where events are signed. Its body is then closed, so that no event can dress
    /// as a handshake.
    unsigned: bool,
    body: Shape,
    /// Its conditions; and, as parts of a key, the token to compare and the values of the answer.
    rules: ItemRules,
    has_token: bool,
    answer: Option<Reply>,
}

/// What the body may be.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Shape {
    Any,
    Empty,
    /// A form of exactly these fields, each once and not blank; with `digits`, each a decimal number.
    Form {
        names: Vec<String>,
        digits: bool,
    },
}

#[derive(Clone, Debug)]
struct Reply {
    status: u16,
    values: Values,
}

#[derive(Clone, Debug)]
enum Values {
    Nothing,
    Text(Value),
    Json(Vec<(String, Value)>),
}

/// What becomes of a value that the delivery holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Plain,
    /// Its HMAC-SHA256 under the route's secret, in hex.
    Hmac,
}

/// What a route needs to answer a handshake itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    Nothing,
    /// Something to verify the request's signature with.
    Signature,
    /// The token that the operator chose at the provider.
    VerifyToken,
}

impl Handshake {
    /// Whether it stands for its own: without a signature, also where events are signed.
    pub fn is_unsigned(&self) -> bool {
        self.unsigned
    }

    /// What a route needs to answer it; `None` where only the app can.
    pub fn needs(&self) -> Option<Needs> {
        self.answer.as_ref()?;
        Some(match (self.has_token, self.unsigned) {
            (true, _) => Needs::VerifyToken,
            (false, true) => Needs::Nothing,
            (false, false) => Needs::Signature,
        })
    }

    /// Whether the delivery is this handshake and nothing else.
    pub fn is(&self, delivery: &Delivery<'_>) -> bool {
        let by_method = match &self.method {
            Some(method) => method == delivery.method,
            None => ![Method::GET, Method::HEAD, Method::OPTIONS].contains(delivery.method),
        };
        by_method && self.body.fits(delivery) && self.values(delivery).is_some()
    }

    /// The answer to a delivery that is this handshake and, unless it comes unsigned, has been verified: `secret` is
    /// the one that it verified under. `None` where the app must answer.
    pub fn answer(
        &self,
        delivery: &Delivery<'_>,
        verify_tokens: &[&[u8]],
        secret: Option<&[u8]>,
    ) -> Option<Answer> {
        let reply = self.answer.as_ref()?;
        let values = self.values(delivery)?;
        let mut values = match values {
            Ok(values) => values.into_iter(),
            Err(Keyless::NoKey) => Vec::new().into_iter(),
            Err(_) => return None,
        };
        if self.has_token {
            let presented = values.next()?;
            // Every token is compared, so that the time tells nothing of which one was near.
            let matches = verify_tokens.iter().filter(|token| same(token, &presented)).count();
            if matches == 0 {
                return None;
            }
        }
        let (content_type, body) = match &reply.values {
            Values::Nothing => (None, String::new()),
            Values::Text(value) => (Some(TEXT.to_owned()), value.of(&values.next()?, secret)?),
            Values::Json(members) => {
                let mut written = Vec::with_capacity(members.len());
                for (name, value) in members {
                    let value = value.of(&values.next()?, secret)?;
                    written.push(format!("{}:{}", json_text(name), json_text(&value)));
                }
                (Some(JSON.to_owned()), format!("{{{}}}", written.join(",")))
            }
        };
        Some(Answer { status: reply.status, content_type, body })
    }

    /// What the conditions' rule found: `None` where they don't hold.
    fn values(&self, delivery: &Delivery<'_>) -> Option<Result<Vec<Part>, Keyless>> {
        match self.rules.items(delivery).list.pop()?.parts {
            Err(Keyless::NoItem | Keyless::Unread(_)) => None,
            found => Some(found),
        }
    }
}

impl Shape {
    fn fits(&self, delivery: &Delivery<'_>) -> bool {
        match self {
            Self::Any => true,
            Self::Empty => delivery.raw_body.is_empty() && delivery.body.is_empty(),
            Self::Form { names, digits } => {
                // As it came, not as some encoding of it reads.
                delivery.raw_body.len() <= VALUE_BYTES_MAX
                    && delivery.raw_body == delivery.body
                    && read::is_form(delivery)
                    && form::holds_only(delivery.raw_body, names, *digits)
            }
        }
    }
}

impl Value {
    fn of(self, found: &[u8], secret: Option<&[u8]>) -> Option<String> {
        if found.len() > VALUE_BYTES_MAX {
            return None;
        }
        match self {
            Self::Plain => String::from_utf8(found.to_vec()).ok(),
            Self::Hmac => {
                let key = hmac::Key::new(hmac::HMAC_SHA256, secret?);
                Some(hex::encode(hmac::sign(&key, found)))
            }
        }
    }
}

fn json_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The `[[handshake]]` table as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HandshakeText {
    method: Option<Spanned<String>>,
    #[serde(default)]
    unsigned: bool,
    body: Option<Spanned<String>>,
    form_only: Option<Spanned<Vec<String>>>,
    /// Of `form_only`: its fields hold decimal digits alone.
    #[serde(default)]
    digits: bool,
    #[serde(default)]
    when: When,
    /// Where the token stands that the operator chose, for answering.
    verify_token: Option<Spanned<String>>,
    answer: Option<ReplyText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplyText {
    #[serde(default = "ok")]
    status: u16,
    text: Option<Spanned<String>>,
    #[serde(default)]
    json: BTreeMap<String, Spanned<String>>,
}

fn ok() -> u16 {
    200
}

impl HandshakeText {
    /// `start` is where the table stands in the file.
    pub(super) fn finish(self, start: usize) -> Result<Handshake, Fault> {
        let method = self.method.as_ref().map(read_method).transpose()?;
        let body = shape(self.body.as_ref(), self.form_only, self.digits)?;
        if self.unsigned && body == Shape::Any {
            let mend = "an unsigned handshake needs body = \"empty\" or form_only = [\"…\"], so that no event can \
                        dress as one";
            return Err((start, mend.into()));
        }
        if self.when.0.is_empty() && !matches!(body, Shape::Form { .. }) {
            return Err((start, "a handshake needs when = { … } or form_only = [\"…\"]".into()));
        }
        let mut key = Vec::new();
        let has_token = match &self.verify_token {
            Some(text) if read_value(text, &mut key)? == Value::Plain => true,
            Some(text) => return Err((text.span().start, "a token is compared as it stands".into())),
            None => false,
        };
        let answer = self.answer.map(|reply| reply.finish(&mut key)).transpose()?;
        let mut when = Vec::new();
        for (text, test) in self.when.0 {
            let place = read_selector(text.get_ref(), text.span().start)?;
            when.push((text.into_inner(), place, test));
        }
        let key = (!key.is_empty()).then_some(key);
        let rule = RuleText { when, key, ..RuleText::of_the_whole() };
        let compiled = Compiled::new(vec![rule], &[], None).map_err(|fault| (start, fault.why))?;
        let rules = ItemRules(Arc::new(compiled));
        Ok(Handshake { method, unsigned: self.unsigned, body, rules, has_token, answer })
    }
}

impl ReplyText {
    fn finish(self, key: &mut Vec<(String, PartText)>) -> Result<Reply, Fault> {
        let values = match (self.text, self.json.is_empty()) {
            (None, true) => Values::Nothing,
            (Some(text), true) => Values::Text(read_value(&text, key)?),
            (None, false) => {
                let mut members = Vec::new();
                // The answer's members stand as they are written in the file.
                let mut json: Vec<_> = self.json.into_iter().collect();
                json.sort_by_key(|(_, text)| text.span().start);
                for (name, text) in json {
                    let value = read_value(&text, key)?;
                    members.push((name, value));
                }
                Values::Json(members)
            }
            (Some(text), false) => {
                return Err((text.span().start, "an answer is text or json, not both".into()));
            }
        };
        Ok(Reply { status: self.status, values })
    }
}

fn read_method(text: &Spanned<String>) -> Result<Method, Fault> {
    let method = Method::from_bytes(text.get_ref().as_bytes()).ok();
    method.ok_or_else(|| (text.span().start, format!("\"{}\" is no method", text.get_ref())))
}

fn shape(
    body: Option<&Spanned<String>>,
    form_only: Option<Spanned<Vec<String>>>,
    digits: bool,
) -> Result<Shape, Fault> {
    match (body, form_only) {
        (None, None) => Ok(Shape::Any),
        (Some(body), None) if body.get_ref() == "empty" => Ok(Shape::Empty),
        (Some(body), None) => Err((body.span().start, "a handshake's body can only be \"empty\"".into())),
        (None, Some(names)) if !names.get_ref().is_empty() => {
            Ok(Shape::Form { names: names.into_inner(), digits })
        }
        (None, Some(names)) => Err((names.span().start, "form_only names no field".into())),
        (Some(body), Some(_)) => Err((body.span().start, "body and form_only exclude each other".into())),
    }
}

/// A value of the answer: a selector, or `hmac-sha256(selector)`.
fn read_value(text: &Spanned<String>, key: &mut Vec<(String, PartText)>) -> Result<Value, Fault> {
    let written = text.get_ref();
    let inside = written.strip_prefix("hmac-sha256(").and_then(|rest| rest.strip_suffix(')'));
    let selector = read_selector(inside.unwrap_or(written), text.span().start)?;
    key.push((written.clone(), PartText { alternatives: vec![selector], optional: false }));
    Ok(if inside.is_some() { Value::Hmac } else { Value::Plain })
}

fn read_selector(text: &str, at: usize) -> Result<Selector, Fault> {
    let (selector, rest) = Selector::parse(text).map_err(|why| (at, why))?;
    if matches!(selector, Selector::Literal(_)) || !rest.is_empty() {
        return Err((at, format!("\"{text}\" is no path, header:, query: or form: name")));
    }
    Ok(selector)
}
