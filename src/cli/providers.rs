//! `umavez providers`: what is built in.

use std::ffi::OsStr;
use std::fmt::Write as _;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Args, Command};
use umavez::config::show_duration;
use umavez::providers::{Provider, Resign};

use super::{Failure, page, print};

/// List the providers that are built in, or tell of one
///
/// With a name: its event key, how long events are remembered, what its signature needs, what a repeated item in a
/// batch means, what is known of its retries, and a route to copy into a configuration file.
#[derive(Args)]
#[command(after_help = "Examples:\n  umavez providers\n  umavez providers hotmart")]
pub(super) struct Providers {
    /// Tell of this one
    #[arg(value_name = "NAME", value_parser = BuiltIn, hide_possible_values = true)]
    name: Option<String>,
    /// Tell of all, as docs/providers.md does
    #[arg(long, conflicts_with = "name")]
    markdown: bool,
}

/// A provider's name, which shells complete to those that are built in; whether there is one is not for it to say: a
/// configuration brings its own.
#[derive(Clone)]
pub(super) struct BuiltIn;

impl TypedValueParser for BuiltIn {
    type Value = String;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(Provider::names().into_iter().map(PossibleValue::new)))
    }
}

impl Providers {
    pub(super) fn run(&self) -> Result<(), Failure> {
        if self.markdown {
            return print(&page::all());
        }
        let Some(name) = &self.name else {
            return print(&listed());
        };
        let provider = Provider::named(name).map_err(|error| Failure::Usage(error.to_string()))?;
        print(&told(&provider))
    }
}

/// A line for each provider, by name: the name that a route takes, and what people call it.
fn listed() -> String {
    let mut names = Provider::names();
    names.sort_unstable();
    let width = names.iter().map(|name| name.len()).max().unwrap_or_default();
    let mut text = String::new();
    for name in names {
        let title = Provider::shipped(name).map(|provider| provider.notes.title.clone()).unwrap_or_default();
        writeln!(text, "{name:<width$}  {title}").expect("a String takes any text");
    }
    text
}

fn told(provider: &Provider) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        if !value.is_empty() {
            writeln!(text, "{name:<10} {value}").expect("a String takes any text");
        }
    };
    let notes = &provider.notes;
    line("provider", if notes.title.is_empty() { &provider.name } else { &notes.title });
    line("docs", &provider.docs);
    let items = provider.rules.describe();
    for item in &items {
        let key = if item.parts.is_empty() { "no key: passes".to_owned() } else { item.parts.join(", ") };
        let said = page::conditions(item, page::plain);
        let said = if said.is_empty() { said } else { format!(", where {said}") };
        line("item", &format!("{}{said}: {key}", item.place));
    }
    if items.iter().any(|item| !item.when.is_empty()) {
        line("", "of the lines for one place the first that fits counts");
    }
    let remembered = format!(
        "{} (hot), {} (durable)",
        show_duration(provider.hot_ttl),
        show_duration(provider.durable_ttl)
    );
    line("remembered", &remembered);
    line("signature", signature(provider));
    for way in provider.signature.iter().flat_map(|signature| signature.describe()) {
        line("signed", &page::way(&way, page::plain));
    }
    line("batch", batch(provider));
    line("retries", &notes.retries);
    line("setup", &notes.setup);
    line("handshake", &notes.handshake);
    line("known", &notes.known);
    for gotcha in &notes.gotchas {
        line("mind", gotcha);
    }
    format!("{text}\n{}", page::block(provider))
}

fn signature(provider: &Provider) -> &'static str {
    match &provider.signature {
        None => "none that could be checked",
        Some(signature) if signature.needs_secret() => "checked with the route's secret",
        Some(_) => "checked with the route's public_key",
    }
}

/// What becomes of a batch in which some items are copies.
fn batch(provider: &Provider) -> &'static str {
    let listed = provider.rules.describe().iter().any(|item| item.place.contains("[*]"));
    let signed = provider.signature.as_ref().map_or(Resign::NotNeeded, |signature| signature.can_sign());
    match (listed, signed) {
        (false, _) => "one event to a request",
        (true, Resign::NotNeeded) => "copies are cut out of the body",
        (true, Resign::WithSecret) => "copies are cut out of the body, and the rest is signed again",
        (true, Resign::Impossible) => "forwarded whole where any item is new: it can't be signed again",
    }
}
