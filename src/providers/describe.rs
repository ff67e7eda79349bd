//! Item rules for people: where items are, under which conditions, and what names each, as the file writes it.

use super::path::Step;
use super::rules::{Format, ItemRules, Rule, Test};

/// One rule, for people. Of those for one place the first whose conditions hold counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedItem {
    pub place: String,
    /// All have to hold; empty where the rule is for whatever is at the place.
    pub when: Vec<DescribedCondition>,
    /// The key's parts as written; empty where such items have no key.
    pub parts: Vec<String>,
}

/// What a rule asks of one value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedCondition {
    /// Where it looks, as written.
    pub place: String,
    pub wanted: Wanted,
}

/// What has to be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    Anything,
    Nothing,
    /// One of these.
    Values(Vec<String>),
}

impl ItemRules {
    /// Each rule as written, in the order in which they are tried.
    pub fn describe(&self) -> Vec<DescribedItem> {
        self.0.rules.iter().map(describe).collect()
    }
}

fn describe(rule: &Rule) -> DescribedItem {
    let tests = rule.when.iter().map(|(_, test)| match test {
        Test::Present(true) | Test::There => Wanted::Anything,
        Test::Present(false) => Wanted::Nothing,
        Test::OneOf(values) => {
            Wanted::Values(values.iter().map(|value| String::from_utf8_lossy(value).into_owned()).collect())
        }
    });
    let when = rule.looks_at.iter().zip(tests);
    DescribedItem {
        place: place(rule),
        when: when.map(|(place, wanted)| DescribedCondition { place: place.clone(), wanted }).collect(),
        parts: rule.parts.iter().flatten().map(|part| part.text.to_string()).collect(),
    }
}

fn place(rule: &Rule) -> String {
    let (mut text, separator) = match rule.format {
        Format::Whole | Format::Json => (String::from("$"), '.'),
        Format::Xml => (String::from("xml:"), '/'),
    };
    for step in rule.steps.iter() {
        match step {
            Step::Member(name) => {
                text.push(separator);
                text.push_str(name);
            }
            Step::Each => text.push_str("[*]"),
            Step::At(position) => text.push_str(&format!("[{position}]")),
        }
    }
    text
}
