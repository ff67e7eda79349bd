//! A route's own `key`, compiled: of the whole delivery, or, where a part begins with `@`, of each of its provider's
//! items. Not here: whether that is wise, which the configuration warns of.

use std::sync::Arc;

use super::part::{PartText, Selector};
use super::path::Step;
use super::rules::{Compiled, FaultAt, Format, ItemRules, RuleFault, RuleText};

/// Where senders of forms put JSON, if they do: a route's own `$` paths read it there.
const JSON_FIELD: &str = "payload";

/// A route's `key` that can't be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {why}", self.place())]
pub struct KeyRuleError {
    /// Which part, from 1; 0 for the key as a whole.
    pub position: usize,
    pub text: String,
    pub why: String,
}

impl KeyRuleError {
    fn place(&self) -> String {
        match self.position {
            0 => format!("the key ({})", self.text),
            position => format!("key part {position} (\"{}\")", self.text),
        }
    }
}

impl ItemRules {
    /// The rules of a route's own `key`: one item, the whole delivery.
    ///
    /// # Errors
    /// When a part is none, is read in an item (`@`), or nothing in the key tells events apart.
    pub fn from_key(key: &[String]) -> Result<Self, KeyRuleError> {
        own(key, None)
    }

    /// These rules under a route's own `key`: of each item where a part begins with `@`, which only rules with items
    /// can have; else one item, the whole delivery.
    ///
    /// # Errors
    /// As [`from_key`](Self::from_key); and when a `[*]` of a part is in none of the items' paths.
    pub fn under_key(&self, key: &[String]) -> Result<Self, KeyRuleError> {
        own(key, Some(self))
    }

    /// Whether one delivery may hold several events.
    pub fn groups_events(&self) -> bool {
        self.0.rules.iter().any(|rule| rule.steps.contains(&Step::Each))
    }

    /// What differs between copies where the item is the whole delivery.
    fn volatile_in_the_whole(&self) -> Vec<Selector> {
        let whole = self.0.rules.iter().filter(|rule| rule.format == Format::Whole);
        whole.flat_map(|rule| &rule.volatile).map(|(written, _)| written.clone()).collect()
    }

    /// Whether an item may be less than the whole delivery.
    pub fn has_items(&self) -> bool {
        self.0.rules.iter().any(|rule| rule.format != Format::Whole)
    }
}

fn own(key: &[String], provider: Option<&ItemRules>) -> Result<ItemRules, KeyRuleError> {
    let mut parts = Vec::new();
    let mut per_item = None;
    let whole = |why: &str| KeyRuleError { position: 0, text: key.join(", "), why: why.into() };
    for (index, text) in key.iter().enumerate() {
        let fault = |why| KeyRuleError { position: index + 1, text: text.clone(), why };
        let part = PartText::parse(text).map_err(fault)?;
        if part.is_relative() {
            per_item = Some(provider.filter(|provider| provider.has_items()).ok_or_else(|| {
                let nothing = match provider {
                    Some(_) => "the provider's deliveries are one event each",
                    None => "the route has no provider with items",
                };
                let mend = text.replace('@', "$");
                fault(format!("@ is read in an item, and {nothing}; write \"{mend}\", from the body's root"))
            })?);
        }
        parts.push((text.clone(), part));
    }
    if parts.is_empty() {
        return Err(whole("a key needs at least one part"));
    }
    if !parts.iter().any(|(_, part)| part.reads()) {
        return Err(whole(
            "a key of literals alone is the same for every event; add a part that tells them apart",
        ));
    }
    let compiled = match per_item {
        Some(provider) => provider.0.rekeyed(&parts),
        None => {
            let volatile = provider.map(ItemRules::volatile_in_the_whole).unwrap_or_default();
            let rule = RuleText { key: Some(parts), volatile, ..RuleText::of_the_whole() };
            Compiled::new(vec![rule], &[], Some(JSON_FIELD.into()))
        }
    };
    let compiled = compiled.map_err(|RuleFault { at, why, .. }| match at {
        FaultAt::Part(index) => KeyRuleError { position: index + 1, text: key[index].clone(), why },
        FaultAt::Path | FaultAt::When(_) | FaultAt::Volatile(_) => whole(&why),
    })?;
    Ok(ItemRules(Arc::new(compiled)))
}
