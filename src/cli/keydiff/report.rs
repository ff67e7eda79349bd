//! What keydiff says: for people, and as JSON.

use std::fmt::Write as _;

use anyhow::Context as _;
use serde::Serialize;
use umavez::providers::Stands;

use super::super::Failure;
use super::judge::{Apart, May, Moved, Row, Table};
use super::looks::Looks;
use super::propose::Proposal;
use super::read::Event;
use super::rule::{Checked, Key};

/// Longest value that people are shown, in characters.
const VALUE_LENGTH_MAX: usize = 48;

#[derive(Serialize)]
pub(super) struct Report {
    captures: Vec<Compared>,
    fields: Vec<Row>,
    /// Captures whose body can't be read.
    unread: Vec<String>,
    rule: Option<Checked>,
    proposal: Option<Proposal>,
    /// Of the rule, or of the proposal where there is no rule.
    pub(super) safe: bool,
}

#[derive(Serialize)]
struct Compared {
    name: String,
    /// Which event it is of, from 1.
    event: usize,
    /// The method and the path alone: a query may hold credentials.
    request: String,
    body_bytes: usize,
}

impl Report {
    pub(super) fn new(
        events: &[Event],
        table: Table,
        rule: Option<Checked>,
        proposal: Option<Proposal>,
    ) -> Self {
        let compared = events.iter().enumerate().flat_map(|(index, event)| {
            event.captures.iter().map(move |capture| Compared {
                name: capture.name.clone(),
                event: index + 1,
                request: format!("{} {}", capture.method, capture.path()),
                body_bytes: capture.body.len(),
            })
        });
        let safe = match (&rule, &proposal) {
            (Some(rule), _) => rule.safe,
            (None, Some(proposal)) => proposal.checked.safe,
            (None, None) => false,
        };
        Self { captures: compared.collect(), fields: table.rows, unread: table.unread, rule, proposal, safe }
    }

    pub(super) fn json(&self) -> Result<String, Failure> {
        Ok(serde_json::to_string_pretty(self).context("cannot write JSON")? + "\n")
    }

    /// Why it ends as it does, in a line.
    pub(super) fn refusal(&self) -> String {
        match (&self.rule, &self.proposal) {
            (Some(rule), _) => format!("the rule of {} is not safe for these deliveries", rule.name),
            (None, Some(Proposal { unsure: Some(why), .. })) => format!("unsure: {why}"),
            (None, Some(_)) => "no key is safe for these deliveries".to_owned(),
            (None, None) => {
                let told = "nothing in these deliveries looks like an event's id";
                let id = |row: &&Row| row.looks == Looks::EventId && row.moved == Moved::Changed;
                // Different from event to event and the same in copies: what an id does, whatever it is called.
                let does = |row: &&Row| {
                    row.may == May::Beside && row.apart == Apart::All && row.looks != Looks::AccountId
                };
                let likely = |row: &&Row| (row.field.stands == Stands::Body, row.looks != Looks::Time);
                if let Some(Row { part, moved, .. }) =
                    self.fields.iter().filter(does).rev().max_by_key(likely)
                {
                    let quoted = serde_json::to_string(part).expect("text is JSON");
                    let stayed = if *moved == Moved::Stayed { "stayed and " } else { "" };
                    return format!(
                        "{told}; but {part} {stayed}differs by event: if it names the event, try key = [{quoted}] on a \
                         route, then keydiff ... --route NAME --config FILE"
                    );
                }
                match self.fields.iter().find(id) {
                    Some(Row { part, .. }) => format!(
                        "{told} and stays; {part} looks like one and changed: if these are different events, say \
                         --different-events"
                    ),
                    None => told.to_owned(),
                }
            }
        }
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for capture in &self.captures {
            let Compared { name, event, request, body_bytes } = capture;
            line(&mut text, &format!("event {event}  {name}: {request}, {body_bytes} bytes"));
        }
        for name in &self.unread {
            line(
                &mut text,
                &format!("the body of {name} can't be read: its headers and URL alone are compared"),
            );
        }
        for (may, title) in [
            (May::Name, "may name the event"),
            (May::Beside, "may stand beside a part that names it, never alone"),
            (May::Never, "never part of a key"),
        ] {
            self.fields_that(&mut text, may, title);
        }
        if let Some(rule) = &self.rule {
            line(&mut text, &format!("\nthe rule of {}", rule.name));
            self.told(&mut text, rule);
        }
        if let Some(proposal) = &self.proposal {
            line(&mut text, "\na rule to try");
            self.told(&mut text, &proposal.checked);
            if let Some(why) = &proposal.unsure {
                line(&mut text, &format!("  unsure: copies get one key, but {why}"));
            }
            for note in &proposal.notes {
                line(&mut text, &format!("  mind: {note}"));
            }
            text.push('\n');
            text.push_str(&proposal.route);
        }
        text
    }

    fn fields_that(&self, text: &mut String, may: May, title: &str) {
        let rows: Vec<&Row> = self.fields.iter().filter(|row| row.may == may).collect();
        if rows.is_empty() {
            return;
        }
        line(text, &format!("\n{title}"));
        let width = rows.iter().map(|row| row.part.chars().count()).max().unwrap_or_default().min(40);
        for row in rows {
            let moved = match row.moved {
                Moved::Stayed => "stayed ",
                Moved::Changed => "changed",
                Moved::Partly => "partly ",
                Moved::Unknown => "",
            };
            let apart = match row.apart {
                Apart::All => "differs by event ",
                Apart::Some => "differs by some  ",
                Apart::None => "same in events   ",
                Apart::Unknown => "",
            };
            line(text, &format!("  {:width$}  {moved} {apart} {}: {}", row.part, values(row), row.why));
        }
    }

    fn told(&self, text: &mut String, checked: &Checked) {
        for (capture, keys) in self.captures.iter().zip(&checked.keys) {
            for Key { item, key, why } in keys {
                let told = match (key, why) {
                    (Some(key), _) => cut(key, 3 * VALUE_LENGTH_MAX),
                    (None, why) => format!("no key: {}", why.as_deref().unwrap_or_default()),
                };
                line(text, &format!("  {} {item}: {told}", capture.name));
            }
        }
        let copies = self.captures.windows(2).any(|pair| pair[0].event == pair[1].event);
        let events = self.captures.last().map_or(1, |capture| capture.event);
        match (checked.safe, copies, events > 1) {
            (true, true, true) => {
                line(text, "  safe: copies get one key, and different events different ones")
            }
            (true, true, false) => line(text, "  safe: copies get one key"),
            (true, false, _) => line(text, "  safe: different events get different keys"),
            (false, _, _) => {
                for reason in &checked.reasons {
                    line(text, &format!("  UNSAFE: {}", cut(reason, 6 * VALUE_LENGTH_MAX)));
                }
            }
        }
    }
}

/// The one value, or what it was and became.
fn values(row: &Row) -> String {
    let mut shown: Vec<String> = row
        .values
        .iter()
        .map(|value| {
            value.as_deref().map_or_else(|| "absent".to_owned(), |value| cut(value, VALUE_LENGTH_MAX))
        })
        .collect();
    shown.dedup();
    shown.join(" -> ")
}

/// On one line, and no longer than this.
fn cut(text: &str, length_max: usize) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let mut cut: String = text.chars().take(length_max).map(plain).collect();
    if cut.len() < text.len() {
        cut.push('…');
    }
    cut
}

fn line(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("a String takes any text");
}
