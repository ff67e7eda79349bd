//! `umavez keydiff`: what of a provider's deliveries may name its events, told by comparing some of them; whether a
//! rule is safe for them; and a rule where there is none.

mod judge;
mod looks;
mod propose;
mod read;
mod report;
mod rule;
mod words;

use std::path::PathBuf;

use clap::Args;
use umavez::providers::Redactor;

use super::providers::BuiltIn;
use super::{Failure, keys, print};
use judge::judge;
use read::{Capture, Event};
use report::Report;

const EXAMPLES: &str = "\
Examples:
  umavez keydiff captures/first captures/second
      two deliveries of one event: what stayed, what changed, and a key
  umavez keydiff first second --other elsewhere
      the same, and a delivery of a different event, which the key must tell apart
  umavez keydiff a b --different-events --provider hotmart
      would this provider's key tell these events apart?
  umavez keydiff a b --route orders --config umavez.toml --json

A capture is NAME.headers (one `Name: value` a line), NAME.body, and, if it is there, NAME.request (`METHOD URL`), as
`umavez capture` and a route's capture_dir write them. Exits with 0 where the rule (or, without one, the proposal) is
safe for these deliveries, with 1 where it is not, with 64 where something was asked for wrongly.";

/// Compare captured deliveries: what may name an event, and is the key safe?
///
/// Says field by field what changed and what stayed, what may therefore enter a key, what the configured rule makes of
/// each delivery and whether that is safe: copies of one event must get one key, different events never the same.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Keydiff {
    /// Captures to compare
    #[arg(value_name = "CAPTURE", required = true)]
    captures: Vec<PathBuf>,
    /// They are deliveries of one event [default]
    #[arg(long, conflicts_with = "different_events")]
    same_event: bool,
    /// Each is a delivery of another event
    #[arg(long)]
    different_events: bool,
    /// A delivery of an event that is different from all others; may be repeated
    #[arg(long, value_name = "CAPTURE")]
    other: Vec<PathBuf>,
    /// The provider whose rule to check
    #[arg(long, value_name = "NAME", conflicts_with = "route", value_parser = BuiltIn, hide_possible_values = true)]
    provider: Option<String>,
    /// The route whose rule to check
    #[arg(long, value_name = "NAME", requires = "config")]
    route: Option<String>,
    /// The configuration file; with --provider, for its providers_dir
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// For programs: one JSON object
    #[arg(long)]
    json: bool,
}

impl Keydiff {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let rules = keys::rules(self.route.as_deref(), self.provider.as_deref(), self.config.as_deref())?;
        let events = self.events(rules.as_ref())?;
        let provider = rules.as_ref().and_then(|rules| rules.provider.as_deref());
        let redactor = Redactor::new(provider, rules.as_ref().map(|rules| &rules.items));
        let table = judge(&events, &redactor);
        let checked = rules.as_ref().map(|rules| {
            let name = self.route.as_deref().or(self.provider.as_deref()).unwrap_or_default();
            rule::checked(name, &rules.items, |params| rules.scope.fill(params).into_owned(), &events)
        });
        let proposal = match &checked {
            Some(checked) if checked.safe => None,
            Some(_) | None => propose::proposal(&table, &events),
        };
        let report = Report::new(&events, table, checked, proposal);
        print(&if self.json { report.json()? } else { report.text() })?;
        match report.safe {
            true => Ok(()),
            false => Err(Failure::Other(anyhow::anyhow!("{}", report.refusal()))),
        }
    }

    /// The captures, by the event each is of.
    fn events(&self, rules: Option<&keys::Rules>) -> Result<Vec<Event>, Failure> {
        let read = |path: &PathBuf| Capture::read(path, rules);
        let captures = self.captures.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let others = self.other.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let all: Vec<&str> = captures.iter().chain(&others).map(|capture| capture.name.as_str()).collect();
        if all.len() < 2 {
            return Err(Failure::Usage("keydiff compares at least two captures; name another".to_owned()));
        }
        if let Some(twice) = all.iter().enumerate().find(|(index, name)| all[..*index].contains(*name)) {
            let what = format!("{}: is named twice; a capture is no copy of itself", twice.1);
            return Err(Failure::Usage(what));
        }
        let mut events: Vec<Event> = if self.different_events {
            captures.into_iter().map(|capture| Event { captures: vec![capture] }).collect()
        } else {
            vec![Event { captures }]
        };
        events.extend(others.into_iter().map(|capture| Event { captures: vec![capture] }));
        Ok(events)
    }
}
