//! Compares deliveries field by field, and judges what may enter a key. What a field did stands before what it looks
//! like: changed between copies of one event, it never may. Pure.

use std::collections::BTreeMap;

use serde::Serialize;
use umavez::providers::{Field, HIDDEN, Redactor, Stands};

use super::super::keys::shown;
use super::looks::{Looks, Of, looks, of};
use super::read::Event;

/// Every field of the compared deliveries.
pub(super) struct Table {
    pub(super) rows: Vec<Row>,
    /// Captures whose body gave no fields.
    pub(super) unread: Vec<String>,
    /// Lists that may hold several events.
    pub(super) lists: Vec<String>,
}

/// One field in all of them.
#[derive(Serialize)]
pub(super) struct Row {
    /// The key part that reads it.
    pub(super) part: String,
    pub(super) moved: Moved,
    pub(super) apart: Apart,
    pub(super) may: May,
    pub(super) why: &'static str,
    /// By capture; null where it is absent.
    pub(super) values: Vec<Option<String>>,
    #[serde(skip)]
    pub(super) looks: Looks,
    #[serde(skip)]
    pub(super) field: Field,
}

/// What a field did between deliveries of one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Moved {
    Stayed,
    Changed,
    /// It is in some of them only.
    Partly,
    /// Only one delivery of each event was compared.
    Unknown,
}

/// Whether a field differs between different events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Apart {
    /// All of them.
    All,
    /// Some share it.
    Some,
    None,
    /// Only one event was compared.
    Unknown,
}

/// What a field may do in a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum May {
    /// Name the event.
    Name,
    /// Stand beside a part that names it.
    Beside,
    Never,
}

pub(super) fn judge(events: &[Event], redactor: &Redactor) -> Table {
    let mut order: Vec<String> = Vec::new();
    let mut by_part: BTreeMap<String, Vec<Option<Field>>> = BTreeMap::new();
    let mut table = Table { rows: Vec::new(), unread: Vec::new(), lists: Vec::new() };
    let captures = events.iter().flat_map(|event| &event.captures);
    let count = captures.clone().count();
    for (index, capture) in captures.enumerate() {
        let fields = redactor.fields(&capture.delivery());
        if fields.unread.is_some() {
            table.unread.push(capture.name.clone());
        }
        table.lists.extend(fields.lists);
        for field in fields.list {
            let places = by_part.entry(field.part.clone()).or_insert_with(|| {
                order.push(field.part.clone());
                vec![None; count]
            });
            places[index] = Some(field);
        }
    }
    table.lists.sort();
    table.lists.dedup();
    let rows = order.into_iter().filter_map(|part| Some(row(by_part.remove(&part)?, events)));
    table.rows = rows.flatten().collect();
    table
}

fn row(found: Vec<Option<Field>>, events: &[Event]) -> Option<Row> {
    let field = found.iter().flatten().next()?.clone();
    let secret = found.iter().flatten().any(|field| field.secret);
    let values: Vec<Option<Option<Vec<u8>>>> =
        found.into_iter().map(|field| field.map(|field| field.value)).collect();
    let (moved, apart) = compared(&values, events);
    let value = values.iter().flatten().flatten().next().cloned().unwrap_or_default();
    let looks = looks(&field, &value);
    let null = values.iter().flatten().any(Option::is_none);
    let (may, why) = verdict(looks, moved, apart, secret, null);
    let values = values
        .into_iter()
        .map(|value| {
            let value = value?;
            Some(match (secret, value) {
                (true, _) => HIDDEN.to_owned(),
                (false, None) => "null".to_owned(),
                (false, Some(value)) => shown(&value),
            })
        })
        .collect();
    Some(Row { part: field.part.clone(), moved, apart, may, why, values, looks, field })
}

/// What the field did between copies, and whether it tells events apart.
fn compared<T: PartialEq>(values: &[Option<T>], events: &[Event]) -> (Moved, Apart) {
    let mut moved = Moved::Unknown;
    let mut firsts: Vec<&Option<T>> = Vec::new();
    let mut rest = values;
    for event in events {
        let (copies, others) = rest.split_at(event.captures.len().min(rest.len()));
        rest = others;
        let Some(first) = copies.first() else { continue };
        firsts.push(first);
        let now = match copies {
            [_] => Moved::Unknown,
            _ if copies.iter().all(|copy| copy == first) => Moved::Stayed,
            _ if copies.iter().any(Option::is_none) => Moved::Partly,
            _ => Moved::Changed,
        };
        moved = match (moved, now) {
            (Moved::Changed, _) | (_, Moved::Changed) => Moved::Changed,
            (Moved::Partly, _) | (_, Moved::Partly) => Moved::Partly,
            (Moved::Stayed, _) | (_, Moved::Stayed) => Moved::Stayed,
            (Moved::Unknown, Moved::Unknown) => Moved::Unknown,
        };
    }
    let pairs = || {
        let pair = |(at, a)| firsts.iter().skip(at + 1).map(move |b| (a, b));
        firsts.iter().enumerate().flat_map(pair)
    };
    let apart = match (pairs().any(|(a, b)| a != b), pairs().any(|(a, b)| a == b)) {
        (true, false) => Apart::All,
        (true, true) => Apart::Some,
        (false, true) => Apart::None,
        (false, false) => Apart::Unknown,
    };
    (moved, apart)
}

/// The rule.
fn verdict(looks: Looks, moved: Moved, apart: Apart, secret: bool, null: bool) -> (May, &'static str) {
    if secret {
        return (May::Never, "a credential");
    }
    match looks {
        Looks::Connection => return (May::Never, "about the connection, not the event"),
        Looks::Attempt => return (May::Never, "tells the attempt: a copy has another"),
        Looks::Signature => return (May::Never, "made of the body: a copy that is written anew has another"),
        Looks::EventId
        | Looks::ThingId
        | Looks::AccountId
        | Looks::Type
        | Looks::Status
        | Looks::Time
        | Looks::Blank
        | Looks::Other => {}
    }
    match moved {
        Moved::Changed => return (May::Never, "changed between copies: each would pass as a new event"),
        Moved::Partly => return (May::Never, "is in some copies only: they would have different keys"),
        Moved::Stayed | Moved::Unknown => {}
    }
    if null || looks == Looks::Blank {
        return (May::Never, "null or blank: an item without it has no key");
    }
    match (looks, apart) {
        (Looks::EventId | Looks::ThingId, Apart::None) => {
            (May::Beside, "looks like an id, but different events share it")
        }
        (Looks::EventId | Looks::ThingId, Apart::Some) => {
            (May::Name, "looks like an id, but some different events share it: with what tells those apart")
        }
        (Looks::EventId, Apart::All | Apart::Unknown) => (May::Name, "looks like the event's id"),
        (Looks::ThingId, Apart::All | Apart::Unknown) => {
            (May::Name, "looks like the id of a thing: with the kind of event, where several are about it")
        }
        (Looks::AccountId, _) => {
            (May::Beside, "looks like the id of an account or a set-up: many events share it")
        }
        (Looks::Type, _) => (May::Beside, "says what kind of event it is: many share it"),
        (Looks::Status, _) => (May::Beside, "says how far a thing has come: many events share it"),
        (Looks::Time, _) => (May::Beside, "a time: two events may share it"),
        (_, Apart::All) => (May::Beside, "tells these events apart, but others may share it"),
        (_, Apart::Some | Apart::None | Apart::Unknown) => (May::Beside, "many events may share it"),
    }
}

impl Row {
    /// Better candidates have more.
    pub(super) fn worth(&self) -> usize {
        let unique = self.values.iter().flatten().all(|value| super::looks::is_unique(value));
        let base = match self.looks {
            Looks::EventId => 1000,
            // In `customer` stands a customer's id.
            Looks::ThingId => match of(&self.field) {
                Of::Event => 800,
                Of::Thing => 700,
                Of::Unknown => 500,
                Of::Account => 200,
            },
            Looks::AccountId
            | Looks::Type
            | Looks::Status
            | Looks::Time
            | Looks::Attempt
            | Looks::Signature
            | Looks::Connection
            | Looks::Blank
            | Looks::Other => 0,
        };
        let stands = match self.field.stands {
            // A signature covers the body more often than a header.
            Stands::Body => 60,
            Stands::Header => 30,
            Stands::Path => 20,
            Stands::Query => 0,
        };
        let near = 40_usize.saturating_sub(self.field.depth * 10);
        base + stands + near + if unique { 100 } else { 0 }
            - if self.field.in_list { 60.min(stands) } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_field_did_stands_before_what_it_looks_like() {
        for (looks, moved, apart, secret, null, may) in [
            (Looks::EventId, Moved::Stayed, Apart::Unknown, false, false, May::Name),
            (Looks::EventId, Moved::Unknown, Apart::All, false, false, May::Name),
            (Looks::EventId, Moved::Changed, Apart::Unknown, false, false, May::Never),
            (Looks::EventId, Moved::Partly, Apart::Unknown, false, false, May::Never),
            (Looks::EventId, Moved::Stayed, Apart::None, false, false, May::Beside),
            (Looks::EventId, Moved::Stayed, Apart::Unknown, true, false, May::Never),
            (Looks::EventId, Moved::Stayed, Apart::Unknown, false, true, May::Never),
            (Looks::ThingId, Moved::Stayed, Apart::All, false, false, May::Name),
            (Looks::ThingId, Moved::Stayed, Apart::Some, false, false, May::Name),
            (Looks::AccountId, Moved::Stayed, Apart::Unknown, false, false, May::Beside),
            (Looks::Type, Moved::Stayed, Apart::All, false, false, May::Beside),
            (Looks::Time, Moved::Stayed, Apart::Unknown, false, false, May::Beside),
            (Looks::Attempt, Moved::Stayed, Apart::Unknown, false, false, May::Never),
            (Looks::Signature, Moved::Stayed, Apart::All, false, false, May::Never),
            (Looks::Connection, Moved::Stayed, Apart::All, false, false, May::Never),
            (Looks::Blank, Moved::Stayed, Apart::Unknown, false, false, May::Never),
            (Looks::Other, Moved::Stayed, Apart::All, false, false, May::Beside),
            (Looks::Other, Moved::Changed, Apart::All, false, false, May::Never),
        ] {
            let judged = verdict(looks, moved, apart, secret, null).0;
            assert_eq!(judged, may, "{looks:?} {moved:?} {apart:?} {secret} {null}");
        }
    }
}
