//! The `[[item]]` tables of a provider file, and conditions that stand alone, compiled into rules. Errors tell where in the
//! file, and the mend.

use std::sync::Arc;

use serde::Deserialize;
use toml::Spanned;

use super::part::{PartText, Selector};
use super::rules::{Compiled, FaultAt, Format, ItemRules, Mark, RuleFault, RuleText, Test, item_path};
use super::schema::Fault;
use super::values::When;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ItemText {
    path: Option<Spanned<String>>,
    #[serde(default)]
    when: When,
    key: Option<Spanned<Vec<Spanned<String>>>>,
    /// Items of this kind have no key: they are always forwarded.
    #[serde(default)]
    keyless: bool,
    /// What differs between copies of one event: it is left out where they are compared.
    #[serde(default)]
    volatile: Vec<Spanned<String>>,
}

pub(super) fn compile(
    items: Vec<ItemText>,
    marks: &[Mark],
    json_in_form: Option<String>,
) -> Result<ItemRules, Fault> {
    let mut texts = Vec::new();
    let mut spans = Vec::new();
    for item in items {
        let (text, span) = item.read()?;
        texts.push(text);
        spans.push(span);
    }
    let compiled = Compiled::new(texts, marks, json_in_form.map(Into::into));
    let compiled = compiled.map_err(|RuleFault { rule, at, why }| (spans[rule].of(at), why))?;
    Ok(ItemRules(Arc::new(compiled)))
}

/// Where a rule's texts stand in the file.
struct RuleSpans {
    path: usize,
    when: Vec<usize>,
    parts: Vec<usize>,
    volatile: Vec<usize>,
}

impl RuleSpans {
    fn of(&self, at: FaultAt) -> usize {
        match at {
            FaultAt::Path => self.path,
            FaultAt::When(index) => self.when[index],
            FaultAt::Part(index) => self.parts[index],
            FaultAt::Volatile(index) => self.volatile[index],
        }
    }
}

impl ItemText {
    fn read(self) -> Result<(RuleText, RuleSpans), Fault> {
        let (format, steps, path) = match &self.path {
            Some(path) => {
                let at = path.span().start;
                let (format, steps) = item_path(path.get_ref()).map_err(|why| (at, why))?;
                (format, steps, at)
            }
            None => (Format::Whole, Vec::new(), self.key.as_ref().map_or(0, |key| key.span().start)),
        };
        let (parts, volatile) = (Vec::new(), self.volatile.iter().map(|text| text.span().start).collect());
        let mut spans = RuleSpans { path, when: Vec::new(), parts, volatile };
        let mut when = Vec::new();
        for (text, test) in self.when.0 {
            spans.when.push(text.span().start);
            when.push((text.get_ref().clone(), place_of(&text)?, test));
        }
        let key = match (self.key, self.keyless) {
            (Some(key), false) => Some(read_key(key, &mut spans)?),
            (None, true) => None,
            (Some(key), true) => {
                return Err((key.span().start, "an item is keyless or has a key, not both".into()));
            }
            (None, false) => return Err((path, "an item needs a key = [\"…\"], or keyless = true".into())),
        };
        let volatile = self.volatile.iter().map(volatile_place).collect::<Result<_, _>>()?;
        Ok((RuleText { format, steps, when, key, volatile }, spans))
    }
}

/// A place in the body whose value differs between copies.
fn volatile_place(text: &Spanned<String>) -> Result<Selector, Fault> {
    match Selector::parse(text.get_ref()) {
        Ok((place @ (Selector::Json(_) | Selector::Xml(_) | Selector::Relative(_)), "")) => Ok(place),
        Ok(_) => Err((text.span().start, "only $, xml: and @ paths are read here".into())),
        Err(why) => Err((text.span().start, why)),
    }
}

/// The place whose value a condition looks at.
fn place_of(text: &Spanned<String>) -> Result<Selector, Fault> {
    let at = text.span().start;
    let (selector, rest) = Selector::parse(text.get_ref()).map_err(|why| (at, why))?;
    if matches!(selector, Selector::Literal(_)) || !rest.is_empty() {
        let what = format!("\"{}\" is no path, header:, query:, form: or path: name", text.get_ref());
        return Err((at, what));
    }
    Ok(selector)
}

/// What an answer says that conditions hold for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Says {
    Refused,
    Done,
}

/// Conditions alone: what they hold for is an item without a key.
pub(super) fn conditions(when: When, says: Says) -> Result<ItemRules, Fault> {
    let mut spans = Vec::new();
    let mut tests = Vec::new();
    for (text, test) in when.0 {
        spans.push(text.span().start);
        let place = place_of(&text)?;
        // An element with nothing in it accepts nothing, and so it refuses by being there.
        let test = match (says, &place, test) {
            (Says::Refused, Selector::Xml(_), Test::Present(true)) => Test::There,
            (_, _, test) => test,
        };
        tests.push((text.get_ref().clone(), place, test));
    }
    let rule = RuleText { when: tests, ..RuleText::of_the_whole() };
    let compiled = Compiled::new(vec![rule], &[], None).map_err(|RuleFault { at, why, .. }| match at {
        FaultAt::When(index) => (spans[index], why),
        FaultAt::Path | FaultAt::Part(_) | FaultAt::Volatile(_) => (0, why),
    })?;
    Ok(ItemRules(Arc::new(compiled)))
}

fn read_key(
    key: Spanned<Vec<Spanned<String>>>,
    spans: &mut RuleSpans,
) -> Result<Vec<(String, PartText)>, Fault> {
    let start = key.span().start;
    let mut parts = Vec::new();
    for text in key.into_inner() {
        let at = text.span().start;
        let part = PartText::parse(text.get_ref()).map_err(|why| (at, why))?;
        spans.parts.push(at);
        parts.push((text.into_inner(), part));
    }
    if !parts.iter().any(|(_, part)| part.reads()) {
        return Err((start, "a key needs a part that tells events apart".into()));
    }
    Ok(parts)
}
