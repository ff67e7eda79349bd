//! What a rule makes of each delivery, and whether that is safe: copies of one event must get one key, different
//! events never the same.

use std::collections::BTreeSet;

use serde::Serialize;
use umavez::ledger::EventKey;
use umavez::providers::ItemRules;

use super::read::{Capture, Event};

/// A rule, held against the deliveries.
#[derive(Serialize)]
pub(super) struct Checked {
    pub(super) name: String,
    /// By capture.
    pub(super) keys: Vec<Vec<Key>>,
    pub(super) safe: bool,
    /// Why it isn't.
    pub(super) reasons: Vec<String>,
}

/// What names one item.
#[derive(Serialize)]
pub(super) struct Key {
    pub(super) item: String,
    pub(super) key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) why: Option<String>,
}

pub(super) fn checked(
    name: &str,
    rules: &ItemRules,
    scope: impl Fn(&[(String, String)]) -> String,
    events: &[Event],
) -> Checked {
    let of = |capture: &Capture| keys(rules, &scope(&capture.path_params), capture);
    let by_event: Vec<Vec<(&str, Vec<Key>)>> = events
        .iter()
        .map(|event| event.captures.iter().map(|capture| (capture.name.as_str(), of(capture))).collect())
        .collect();
    let mut reasons = Vec::new();
    for (name, keys) in by_event.iter().flatten() {
        without_key(name, keys, &mut reasons);
    }
    for copies in &by_event {
        for pair in copies.windows(2) {
            differing(&pair[0], &pair[1], &mut reasons);
        }
    }
    for (index, event) in by_event.iter().enumerate() {
        for other in by_event.iter().skip(index + 1) {
            colliding(event, other, &mut reasons);
        }
    }
    let keys = by_event.into_iter().flatten().map(|(_, keys)| keys).collect();
    Checked { name: name.to_owned(), keys, safe: reasons.is_empty(), reasons }
}

fn keys(rules: &ItemRules, scope: &str, capture: &Capture) -> Vec<Key> {
    let named = |item: &umavez::providers::Item| match &item.parts {
        Ok(parts) => {
            let key = EventKey::new(scope, parts).text().to_owned();
            Key { item: item.place(), key: Some(key), why: None }
        }
        Err(why) => Key { item: item.place(), key: None, why: Some(why.to_string()) },
    };
    rules.items(&capture.delivery()).list.iter().map(named).collect()
}

fn set(keys: &[Key]) -> BTreeSet<&str> {
    keys.iter().filter_map(|key| key.key.as_deref()).collect()
}

fn without_key(name: &str, keys: &[Key], reasons: &mut Vec<String>) {
    if keys.is_empty() {
        reasons.push(format!("{name} holds no event: every copy of it is forwarded"));
    }
    for key in keys {
        if let Some(why) = &key.why {
            reasons
                .push(format!("{name}: {} has no key, since {why}: every copy of it is forwarded", key.item));
        }
    }
}

fn differing(a: &(&str, Vec<Key>), b: &(&str, Vec<Key>), reasons: &mut Vec<String>) {
    let (of_a, of_b) = (set(&a.1), set(&b.1));
    let mut only = |(name, of): (&str, &BTreeSet<&str>), other: (&str, &BTreeSet<&str>)| {
        if let Some(key) = of.difference(other.1).next() {
            reasons.push(format!(
                "copies of one event get different keys, so that each is forwarded: {key} of {name} is not in {}",
                other.0
            ));
        }
    };
    if of_a != of_b {
        only((a.0, &of_a), (b.0, &of_b));
        only((b.0, &of_b), (a.0, &of_a));
    }
}

fn colliding(event: &[(&str, Vec<Key>)], other: &[(&str, Vec<Key>)], reasons: &mut Vec<String>) {
    let all = |event: &[(&str, Vec<Key>)]| -> BTreeSet<String> {
        event.iter().flat_map(|(_, keys)| set(keys)).map(str::to_owned).collect()
    };
    let name = |event: &[(&str, Vec<Key>)]| event.first().map_or("", |(name, _)| *name).to_owned();
    for key in all(event).intersection(&all(other)) {
        reasons.push(format!(
            "different events get one key, so that the second is swallowed: {key} is {}'s and {}'s",
            name(event),
            name(other)
        ));
    }
}
