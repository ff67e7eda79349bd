//! Hostile forms and queries: no panic, no part blank, and fields are read as a reference reads them.
#![no_main]

use std::borrow::Cow;
use std::sync::OnceLock;

use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue};
use libfuzzer_sys::fuzz_target;
use umavez::providers::{Delivery, Provider};
use umavez_fuzz::{Input, check_items, providers};

const RULES: &str = r#"
name = "forms"
docs = "https://example.com"
hot_ttl = "1h"
durable_ttl = "1h"
json_in_form = "payload"

[[item]]
path = "$.list[*]"
key = ["@.id"]

[[item]]
when = { "form:id" = true }
key = ["form:id"]

[[item]]
key = ["query:id"]
"#;

fn ours() -> &'static Provider {
    static OURS: OnceLock<Provider> = OnceLock::new();
    OURS.get_or_init(|| Provider::parse("forms.toml", RULES).expect("the rules are good"))
}

/// The last field named `id`; `None` where there is none, it is blank, or the reference had to replace bytes.
fn reference(form: &[u8]) -> Option<Cow<'_, str>> {
    let (_, value) = form_urlencoded::parse(form).filter(|(name, _)| name == "id").last()?;
    (!value.contains('\u{fffd}') && !value.trim_ascii().is_empty()).then_some(value)
}

fuzz_target!(|bytes: &[u8]| {
    let form = (CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded; charset=utf-8"));
    let as_form: Vec<(HeaderName, HeaderValue)> = vec![form];
    let input = Input::of(bytes).with(as_form);
    for provider in providers() {
        check_items(&provider.items(&input.delivery(input.body)), input.body);
    }
    let items = ours().items(&input.delivery(input.body));
    check_items(&items, input.body);
    // Bodies that begin as JSON or XML are read as that.
    let first = input.body.trim_ascii_start().first();
    let a_form = !matches!(first, Some(b'{' | b'[' | b'<' | 0xEF));
    let holds_json = form_urlencoded::parse(input.body).any(|(name, _)| name == "payload");
    if a_form && !holds_json
        && let Some(expected) = reference(input.body)
    {
        let parts = items.list[0].parts.as_ref().expect("a field names it");
        assert_eq!(&*parts[0], expected.as_bytes(), "a form's field");
    }
    if let Ok(query) = std::str::from_utf8(input.body)
        && query.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#')
        && let Some(expected) = reference(query.as_bytes())
    {
        let url = format!("https://hooks.example.com/in?{query}");
        let delivery = Delivery { url: &url, ..input.delivery(b"") };
        let items = ours().items(&delivery);
        let parts = items.list[0].parts.as_ref().expect("a parameter names it");
        assert_eq!(&*parts[0], expected.as_bytes(), "a query's field");
    }
});
