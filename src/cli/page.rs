//! A provider's page, from its file alone: what to set up there, a route to paste, what repeats, what to mind.
//! `docs/providers.md` is all of them; a test compares it.

use std::fmt::Write as _;
use std::ops::RangeInclusive;

use umavez::config::show_duration;
use umavez::providers::{
    Answer, Described, DescribedItem, Needs, Provider, Redact, Resign, Signature, Wanted,
};

/// Providers with more kinds of items have them in a list of their own.
const RULES_IN_ROW_MAX: usize = 4;

const HEAD: &str = "\
# Providers

What `provider = \"NAME\"` brings to a route. This page is made from the files in `src/providers/`:
`umavez providers --markdown > docs/providers.md` renews it, `umavez providers NAME` tells of one on the terminal.

A key's parts are where the event's id is read: `$.id` in a JSON body, `@.id` in one item of a batch, `header:NAME`,
`query:NAME`, `form:NAME`, `xml:/PATH`; `|` stands between alternatives, `?` after what may be absent. Where there are
several lines for one place, each says what it is for, and the first that fits counts. Every value of the route blocks can
be changed there; the words are those of [contract.md](contract.md).

Signatures are told as the files write them. `{hex}` and `{base64}` are the signature, so encoded (`{either}`: in one of
them), `{token}` is the secret itself. `{body}` are the body's bytes as they came, `{timestamp}` is the time of signing as
it is written there, `{url}` the URL that the provider calls, `{header:NAME}` and the like a value of the delivery; what
stands in `[ ]` is left out as a whole where a value in it is absent, `\\n` is a line's end, and all else stands for itself.
";

/// Every shipped provider.
pub(super) fn all() -> String {
    let mut text = HEAD.to_owned();
    let providers: Vec<_> = Provider::names().into_iter().filter_map(Provider::shipped).collect();
    text.push_str("\n| provider | name | signature | remembered |\n| --- | --- | --- | --- |\n");
    for provider in &providers {
        let signed = provider.signature.as_ref().map_or_else(|| "none".to_owned(), schemes);
        let title = title(provider);
        let anchor = anchor(title);
        let kept = show_duration(provider.durable_ttl);
        put(&mut text, &format!("| [{title}](#{anchor}) | `{}` | {signed} | {kept} |", provider.name));
    }
    for provider in &providers {
        text.push('\n');
        text.push_str(&section(provider));
    }
    text
}

/// Each scheme once, the usual ones first.
fn schemes(signature: &Signature) -> String {
    let mut ways: Vec<_> = signature.describe().collect();
    ways.sort_by_key(|way| way.special);
    let mut schemes: Vec<&str> = Vec::new();
    for way in ways {
        if !schemes.contains(&way.scheme) {
            schemes.push(way.scheme);
        }
    }
    schemes.join(", or ")
}

/// One provider's section.
fn section(provider: &Provider) -> String {
    let mut text = format!("## {}\n\n", title(provider));
    put(&mut text, &format!("<{}>\n\n{}\n", provider.docs, provider.notes.setup));
    put(&mut text, &format!("```toml\n{}```\n", block(provider)));
    if provider.rules.describe().len() > RULES_IN_ROW_MAX {
        put(&mut text, &format!("Items and their keys:\n\n```text\n{}```\n", key_list(provider)));
    }
    text.push_str("| | |\n| --- | --- |\n");
    for (name, value) in rows(provider) {
        put(&mut text, &format!("| {name} | {value} |"));
    }
    if !provider.notes.gotchas.is_empty() {
        text.push('\n');
    }
    for gotcha in &provider.notes.gotchas {
        put(&mut text, &format!("- {gotcha}"));
    }
    text
}

fn title(provider: &Provider) -> &str {
    if provider.notes.title.is_empty() { &provider.name } else { &provider.notes.title }
}

/// As GitHub makes anchors of headings.
fn anchor(title: &str) -> String {
    let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

fn put(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("a String takes any text");
}

/// A route to paste.
pub(super) fn block(provider: &Provider) -> String {
    let name = &provider.name;
    let variable = name.to_uppercase().replace('-', "_");
    let mut lines = vec![
        "[[route]]".to_owned(),
        format!("name = \"{name}\""),
        format!("path = \"/webhooks/{name}\""),
        format!("provider = \"{name}\""),
    ];
    match &provider.signature {
        Some(scheme) if scheme.needs_secret() => lines.push(format!("secret = \"${{{variable}_SECRET}}\"")),
        Some(scheme) if scheme.takes_certificate() => {
            lines.push(format!("public_key = {{ file = \"/etc/umavez/{name}.pem\" }}"));
        }
        Some(_) => lines.push(format!("public_key = \"${{{variable}_PUBLIC_KEY}}\"")),
        None => {}
    }
    if provider.signature.as_ref().is_some_and(Signature::signs_webhook_id) {
        lines.push(format!("webhook_id = \"${{{variable}_WEBHOOK_ID}}\""));
    }
    if provider.signature.as_ref().is_some_and(Signature::signs_url) {
        lines.push(format!("public_url = \"https://hooks.example.com/webhooks/{name}\""));
    }
    lines.join("\n") + "\n"
}

fn rows(provider: &Provider) -> Vec<(&'static str, String)> {
    let mut rows = vec![("key", keys(provider)), ("repeats", provider.notes.retries.clone())];
    let (hot, durable) = (show_duration(provider.hot_ttl), show_duration(provider.durable_ttl));
    rows.push(("remembered", format!("{hot} in the hot store, {durable} in the durable store")));
    rows.push(("signature", signature(provider)));
    if let Some(batch) = batch(provider) {
        rows.push(("a batch", batch));
    }
    rows.push(("a copy is answered", copies(provider.duplicate_answer.as_ref())));
    if let Some(done) = &provider.done {
        rows.push(("the app is done with", statuses(done)));
    }
    if let Some(success) = &provider.success {
        rows.push(("takes for success", format!("{}; no copy is answered otherwise", statuses(success))));
    }
    if !provider.final_statuses.is_empty() {
        rows.push(("never sent again after", statuses(&provider.final_statuses)));
    }
    if let Some(wait) = provider.in_flight_wait {
        rows.push(("a copy in flight waits", format!("up to {}", show_duration(wait))));
    }
    if !provider.strip_headers.is_empty() {
        let names = provider.strip_headers.iter().map(|name| format!("`{name}`"));
        rows.push(("headers not forwarded", listed(names)));
    }
    if let Some(handshake) = handshake(provider) {
        rows.push(("handshake", handshake));
    }
    if !provider.redact.is_empty() {
        rows.push(("carries credentials", listed(provider.redact.iter().map(redacted))));
    }
    rows.push(("how this is known", provider.notes.known.clone()));
    rows
}

/// Each place of items once, and below it the keys that items there may have.
fn key_list(provider: &Provider) -> String {
    let mut places: Vec<(String, Vec<String>)> = Vec::new();
    for item in provider.rules.describe() {
        let key = if item.parts.is_empty() { "no key".to_owned() } else { item.parts.join(", ") };
        let known = places.iter().position(|(place, _)| *place == item.place);
        let line = match conditions(&item, plain) {
            said if !said.is_empty() => format!("where {said}: {key}"),
            _ if known.is_some() => format!("otherwise: {key}"),
            _ => key,
        };
        match known {
            Some(index) => places[index].1.push(line),
            None => places.push((item.place, vec![line])),
        }
    }
    let shown = places.iter().map(|(place, lines)| format!("{place}\n    {}\n", lines.join("\n    ")));
    shown.collect()
}

fn keys(provider: &Provider) -> String {
    if provider.rules.describe().len() > RULES_IN_ROW_MAX {
        return "by the kind of item: see above".to_owned();
    }
    let mut lines: Vec<String> = Vec::new();
    for item in provider.rules.describe() {
        let mut place = if item.place == "$" { String::new() } else { format!(" of each `{}`", item.place) };
        let said = conditions(&item, cell);
        if !said.is_empty() {
            place.push_str(&format!(", where {said}"));
        }
        let parts = item.parts.iter().map(|part| cell(part));
        let line = match listed(parts) {
            none if none.is_empty() => format!("none{place}"),
            parts => format!("{parts}{place}"),
        };
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines.join("<br>")
}

/// A text of a provider file, in a table's cell.
fn cell(text: &str) -> String {
    format!("`{}`", text.replace('|', "\\|").replace('\n', "\\n"))
}

/// The same, on a terminal.
pub(super) fn plain(text: &str) -> String {
    text.replace('\n', "\\n")
}

/// What has to hold for an item's rule to count; empty where nothing has to.
pub(super) fn conditions(item: &DescribedItem, show: fn(&str) -> String) -> String {
    let said = item.when.iter().map(|condition| {
        let place = show(&condition.place);
        match &condition.wanted {
            Wanted::Anything => format!("{place} is there"),
            Wanted::Nothing => format!("{place} is absent"),
            Wanted::Values(values) => {
                let values: Vec<String> = values.iter().map(|value| show(value)).collect();
                format!("{place} is {}", values.join(" or "))
            }
        }
    });
    said.collect::<Vec<_>>().join(" and ")
}

/// One way of signing: where, how written, over what.
pub(super) fn way(way: &Described, show: fn(&str) -> String) -> String {
    let mut text = format!("{} in the {}", way.scheme, way.place);
    if let Some(format) = &way.format {
        let several = if way.several { " (several may stand side by side)" } else { "" };
        text.push_str(&format!(", written {}{several}", show(format)));
    }
    if !way.signed.is_empty() {
        let signed: Vec<String> = way.signed.iter().map(|signed| show(signed)).collect();
        text.push_str(&format!(", over {}", signed.join(" or ")));
    }
    if let Some(place) = &way.body_digest {
        text.push_str(&format!(", the body by its SHA-256 in the {place}"));
    }
    if let Some(place) = &way.timestamp {
        text.push_str(&format!(", the time in the {place}"));
    }
    if let Some(age) = way.tolerance {
        text.push_str(&format!(", up to {} old", show_duration(age)));
    }
    let whose = if way.public_key { "public key" } else { "secret" };
    match (way.key, &way.key_prefix) {
        (None, None) => {}
        (Some(encoding), None) => text.push_str(&format!(", the {whose} in {encoding}")),
        (encoding, Some(prefix)) => {
            text.push_str(&format!(
                ", the {whose} in {} after {}",
                encoding.unwrap_or("plain text"),
                show(prefix)
            ));
        }
    }
    for (place, value) in &way.when {
        text.push_str(&format!(", only where the {place} is {}", show(value)));
    }
    text
}

fn signature(provider: &Provider) -> String {
    let Some(scheme) = &provider.signature else { return "none that the gateway can check".to_owned() };
    let ways = scheme.describe().map(|described| way(&described, cell));
    let mut text = ways.collect::<Vec<_>>().join("; else ");
    let headers = provider.unsigned_key_headers().into_iter().map(|name| name.to_string());
    let unsigned: Vec<String> = headers.chain(provider.unsigned_key_parts()).collect();
    if !unsigned.is_empty() {
        let names = listed(unsigned.iter().map(|name| format!("`{name}`")));
        text.push_str(&format!(". Not covered, though the key comes from there: {names}"));
    }
    text
}

fn batch(provider: &Provider) -> Option<String> {
    if !provider.rules.describe().iter().any(|item| item.place.contains("[*]")) {
        return None;
    }
    let how = match provider.signature.as_ref().map_or(Resign::NotNeeded, Signature::can_sign) {
        Resign::NotNeeded => "items seen before are cut out; no new signature is needed",
        Resign::WithSecret => {
            "items seen before are cut out, and the rest is signed anew with the route's secret"
        }
        Resign::Impossible => "forwarded whole if anything in it is new, since only the provider can sign it",
    };
    Some(how.to_owned())
}

fn copies(answer: Option<&Answer>) -> String {
    let Some(answer) = answer else {
        return "with the first answer; where none is kept, an empty 200".to_owned();
    };
    let body = match answer.body.as_str() {
        "" => String::new(),
        body if body.len() <= 20 => format!(" `{body}`"),
        _ => " and the body that it wants to read".to_owned(),
    };
    format!("with the first answer; where none is kept, {}{body}", answer.status)
}

fn handshake(provider: &Provider) -> Option<String> {
    let mut text = provider.notes.handshake.clone();
    let Some(needs) = provider.handshakes.iter().find_map(|handshake| handshake.needs()) else {
        return (!text.is_empty()).then(|| format!("{text} It reaches the app."));
    };
    text.push_str(match needs {
        Needs::Nothing | Needs::Signature => {
            " It reaches the app; with `handshake = \"answer\"` the gateway answers it."
        }
        Needs::VerifyToken => {
            " It reaches the app; with `handshake = \"answer\"` and `verify_token` the gateway answers it."
        }
    });
    Some(text)
}

fn redacted(place: &Redact) -> String {
    match place {
        Redact::Header(name) => format!("header `{name}`"),
        Redact::Query(name) => format!("query `{name}`"),
        Redact::Form(name) => format!("form field `{name}`"),
        Redact::Body(path) => format!("`{path}`"),
    }
}

fn statuses(ranges: &[RangeInclusive<u16>]) -> String {
    let shown = |range: &RangeInclusive<u16>| match (range.start(), range.end()) {
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first}–{last}"),
    };
    listed(ranges.iter().map(shown))
}

fn listed(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}
