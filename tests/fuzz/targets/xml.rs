//! Hostile XML, and XML made from the input: no panic, items inside the body and in its order, no part blank, and what
//! was escaped is read as it was.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use umavez::providers::Provider;
use umavez_fuzz::{Input, check_items};

/// Every way in which a rule can name XML: lists in lists, ancestors' fields, alternatives, optional parts, conditions.
const RULES: &str = r#"
name = "xml"
docs = "https://example.com"
hot_ttl = "1h"
durable_ttl = "1h"

[[item]]
path = "xml:/Envelope/Body/notifications/Notification[*]"
when = { "@.Kind" = ["a", "b"] }
key = ["xml:/Envelope/Body/notifications/OrganizationId", "@.Id | @.id", "@.Extra?"]

[[item]]
path = "xml:/Envelope/Body/notifications/Notification[*]/Part[*]"
when = { "@.Id" = true }
key = ["@.Id", "xml:/Envelope/Body/notifications/Notification[*]/Id"]

[[item]]
path = "xml:/Envelope/Body/notifications/Notification[*]"
keyless = true

[[item]]
key = ["xml:/e/v"]
"#;

fn ours() -> &'static Provider {
    static OURS: OnceLock<Provider> = OnceLock::new();
    OURS.get_or_init(|| Provider::parse("xml.toml", RULES).expect("the rules are good"))
}

fuzz_target!(|bytes: &[u8]| {
    let input = Input::of(bytes);
    let shipped = Provider::shipped("salesforce").expect("it is shipped");
    for provider in [ours(), &shipped] {
        check_items(&provider.items(&input.delivery(input.body)), input.body);
    }
    let Ok(value) = std::str::from_utf8(bytes) else { return };
    // What XML 1.0 can't hold, and the line ends that it turns into others.
    let held = |c: char| matches!(c, '\t' | '\n' | ' '..) && !matches!(c, '\u{fffe}' | '\u{ffff}');
    if value.trim_ascii().is_empty() || !value.chars().all(held) {
        return;
    }
    let escaped: String = value
        .chars()
        .map(|c| match c {
            '<' => "&lt;".to_owned(),
            '&' => "&amp;".to_owned(),
            '>' | '"' => format!("&#x{:X};", u32::from(c)),
            '\'' => format!("&#{};", u32::from(c)),
            other => other.to_string(),
        })
        .collect();
    let body = format!("<?xml version=\"1.0\"?><s:e xmlns:s=\"urn:s\"><s:v a=\"b\">{escaped}</s:v></s:e>\n");
    let items = ours().items(&input.delivery(body.as_bytes()));
    let parts = items.list.first().expect("one item").parts.as_ref().expect("it has a key");
    assert_eq!(&*parts[0], value.as_bytes(), "what was escaped is read as it was");
});
