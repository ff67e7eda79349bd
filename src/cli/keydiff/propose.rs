//! Makes a key of what may enter one: an id first, what kind of event it is beside it, and more only where different
//! events would share the key. Held against the deliveries like any rule.

use serde::Serialize;
use umavez::providers::{ItemRules, Stands};

use super::judge::{Apart, May, Row, Table};
use super::looks::{Looks, Of, of};
use super::read::Event;
use super::rule::{Checked, checked};

/// Parts of a proposal at most.
const PARTS_MAX: usize = 6;

/// A rule that nobody wrote yet.
#[derive(Serialize)]
pub(super) struct Proposal {
    pub(super) key: Vec<String>,
    /// To paste into the configuration.
    pub(super) route: String,
    /// What to mind.
    pub(super) notes: Vec<String>,
    /// Why nobody can say whether it is safe, though these deliveries agree with it.
    pub(super) unsure: Option<String>,
    #[serde(flatten)]
    pub(super) checked: Checked,
}

/// `None` where no field looks like an id of anything.
pub(super) fn proposal(table: &Table, events: &[Event]) -> Option<Proposal> {
    let mut named: Vec<&Row> = table.rows.iter().filter(|row| row.may == May::Name).collect();
    // Different events about one thing share its id, and what kind of event each is tells them apart.
    let shared = named.is_empty();
    if shared {
        let differs = |row: &Row| row.may == May::Beside && matches!(row.apart, Apart::All | Apart::Some);
        let kind = |row: &Row| matches!(row.looks, Looks::Type | Looks::Status) && differs(row);
        if !table.rows.iter().any(kind) {
            return None;
        }
        let id = |row: &&Row| row.may == May::Beside && matches!(row.looks, Looks::EventId | Looks::ThingId);
        named.extend(table.rows.iter().filter(id));
    }
    named.sort_by_key(|row| std::cmp::Reverse(row.worth()));
    let best = *named.first()?;
    let mut chosen = vec![best];
    let certain = !shared && best.looks == Looks::EventId && best.field.name.len() > 1;
    if !certain {
        chosen.extend(beside(table, best, Looks::Type));
    }
    // A thing's steps share its id; and a bare `id` may be a thing's, which a status next to it tells.
    let status = beside(table, best, Looks::Status);
    if shared || best.looks == Looks::ThingId {
        chosen.extend(status);
    } else if !certain {
        chosen.extend(status.filter(|row| parent(&row.part) == parent(&best.part)));
    }
    let name = route_name(events);
    let mut result = hold(&name, &chosen, events)?;
    // Whatever tells some of these events apart, the likeliest first.
    let tells = |row: &&Row| row.may != May::Never && matches!(row.apart, Apart::All | Apart::Some);
    let mut more: Vec<&Row> = table.rows.iter().filter(tells).collect();
    more.sort_by_key(|row| std::cmp::Reverse(row.worth()));
    for row in more {
        if result.1.safe || chosen.len() >= PARTS_MAX {
            break;
        }
        if chosen.iter().any(|known| known.part == row.part) {
            continue;
        }
        chosen.push(row);
        let tried = hold(&name, &chosen, events)?;
        if tried.1.reasons.len() < result.1.reasons.len() {
            result = tried;
        } else {
            chosen.pop();
        }
    }
    let (key, mut checked) = result;
    if shared && !checked.safe {
        return None;
    }
    let unsure = unsure(table, &chosen).filter(|_| checked.safe);
    checked.safe &= unsure.is_none();
    let route = block(&name, &key, events);
    Some(Proposal { notes: notes(table, &chosen, events), unsure, key, route, checked })
}

/// One event was compared, and the key is the id of something unknown beside words that may say what happened to it:
/// whether many events share it, nobody sees.
fn unsure(table: &Table, chosen: &[&Row]) -> Option<String> {
    let [Row { part, looks: Looks::ThingId, apart: Apart::Unknown, field, .. }] = chosen else { return None };
    let literal =
        |row: &&Row| row.may == May::Beside && row.looks == Looks::Other && row.field.stands == Stands::Body;
    let beside: Vec<&str> = table.rows.iter().filter(literal).map(|row| row.part.as_str()).take(3).collect();
    if beside.is_empty() || matches!(of(field), Of::Event | Of::Thing) {
        return None;
    }
    Some(format!(
        "whether {part} names an event or what many events share can't be told, nor whether {} should stand beside it: \
         name a delivery of a different event with --other",
        beside.join(", ")
    ))
}

/// The field of these looks that is nearest to the body's root, preferably beside the id.
fn beside<'a>(table: &'a Table, id: &Row, looks: Looks) -> Option<&'a Row> {
    let fits = |row: &&Row| row.looks == looks && row.may == May::Beside && !row.field.in_list;
    table.rows.iter().filter(fits).min_by_key(|row| {
        (parent(&row.part) != parent(&id.part), row.field.stands != Stands::Body, row.field.depth)
    })
}

/// What a body's field stands in.
fn parent(part: &str) -> &str {
    part.rsplit_once(['.', '/', ':']).map_or("", |(parent, _)| parent)
}

/// The key, what says the kind of event first, and what it makes of the deliveries.
fn hold(name: &str, chosen: &[&Row], events: &[Event]) -> Option<(Vec<String>, Checked)> {
    let mut rows: Vec<&Row> = chosen.to_vec();
    rows.sort_by_key(|row| match row.looks {
        Looks::AccountId => 0,
        Looks::Type => 1,
        Looks::EventId | Looks::ThingId => 2,
        Looks::Status => 3,
        Looks::Time | Looks::Attempt | Looks::Signature | Looks::Connection | Looks::Blank | Looks::Other => {
            4
        }
    });
    let key: Vec<String> = rows.iter().map(|row| row.part.clone()).collect();
    let rules = ItemRules::from_key(&key).ok()?;
    let held = checked(name, &rules, |_| name.to_owned(), events);
    Some((key, held))
}

/// The path's last segment, as a route may be named.
fn route_name(events: &[Event]) -> String {
    let capture = events.iter().flat_map(|event| &event.captures).next();
    let path = capture.filter(|capture| capture.sent_known).map_or("", |capture| capture.path());
    let last = path.rsplit('/').find(|segment| !segment.is_empty()).unwrap_or_default();
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let name: String = last.chars().filter(|c| plain(*c)).take(40).collect();
    if name.is_empty() { "events".to_owned() } else { name }
}

fn block(name: &str, key: &[String], events: &[Event]) -> String {
    let capture = events.iter().flat_map(|event| &event.captures).next();
    let path = match capture {
        // What was redacted in a path is secret, and may be anything.
        Some(capture) if capture.sent_known => {
            capture.path().replace(['{', '}'], "").replacen("%5Bredacted%5D", "{token}", 1)
        }
        Some(_) | None => format!("/webhooks/{name}"),
    };
    let parts: Vec<String> = key.iter().map(|part| quoted(part)).collect();
    format!("[[route]]\nname = {}\npath = {}\nkey = [{}]\n", quoted(name), quoted(&path), parts.join(", "))
}

/// As TOML writes text: JSON's escapes are its own.
fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("text is JSON")
}

fn notes(table: &Table, chosen: &[&Row], events: &[Event]) -> Vec<String> {
    let mut notes = Vec::new();
    if events.len() == 1 {
        notes.push(
            "only one event was compared: name a delivery of a different one with --other, to see that the key tells \
             them apart"
                .to_owned(),
        );
    } else if events.iter().all(|event| event.captures.len() == 1) {
        notes.push(
            "no copies were compared: with two deliveries of one event you see whether the key stays"
                .to_owned(),
        );
    }
    for row in chosen {
        let part = &row.part;
        if row.looks == Looks::ThingId {
            notes.push(format!(
                "{part} names a thing, not an event: two events of one kind about it would count as one"
            ));
        }
        if row.field.stands != Stands::Body {
            notes.push(format!(
                "{part} is outside the body: a signature may not cover it, and who replays a signed body under another \
                 value is not recognised"
            ));
        }
        if row.field.in_list {
            notes.push(format!(
                "{part} stands in a list: this key names the whole delivery by one element of it. Where each element \
                 is an event, write a provider file with [[item]] path (providers_dir)"
            ));
        }
    }
    if !table.lists.is_empty() && !chosen.iter().any(|row| row.field.in_list) {
        notes.push(format!(
            "the body holds lists ({}): does each element stand for an event?",
            table.lists.join(", ")
        ));
    }
    notes
}
