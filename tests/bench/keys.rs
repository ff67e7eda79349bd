//! What finding keys and cutting batches costs, beside `serde_json::from_slice::<Value>` of the same bytes.
//! Run: `cargo bench --bench keys`.

use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use http::{HeaderMap, HeaderValue, Method};
use serde_json::Value;
use umavez::providers::{Delivery, ItemRules, Items, Provider};

fn main() {
    divan::main();
}

struct Sample {
    rules: ItemRules,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Sample {
    fn of(provider: &str, content_type: &'static str, body: Vec<u8>) -> Self {
        let rules = Provider::shipped(provider).expect("it is shipped").rules.clone();
        Self::with(rules, content_type, body)
    }

    fn with(rules: ItemRules, content_type: &'static str, body: Vec<u8>) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_static(content_type));
        Self { rules, headers, body }
    }

    fn items(&self) -> Items {
        self.rules.items(&Delivery {
            method: &Method::POST,
            url: "https://hooks.example.com/hooks/x",
            headers: &self.headers,
            path_params: &[],
            raw_body: &self.body,
            body: &self.body,
        })
    }

    fn bench(&self, bencher: Bencher<'_, '_>) {
        assert!(self.items().list.iter().all(|item| item.parts.is_ok()));
        bencher.counter(BytesCount::of_slice(&self.body)).bench(|| black_box(self.items()));
    }

    fn bench_value(&self, bencher: Bencher<'_, '_>) {
        bencher
            .counter(BytesCount::of_slice(&self.body))
            .bench(|| serde_json::from_slice::<Value>(black_box(&self.body)).expect("it is JSON"));
    }
}

/// An event as Stripe sends it, 1 KiB.
fn stripe() -> Sample {
    let head = include_str!("../fixtures/stripe-invoice-paid.body");
    let filler = "\",\n      \"description\": \"Assinatura mensal, plano completo\",\n      \"metadata\": {\n        \"order\": \"";
    let mut body = head.replace(
        "\"cus_FIXTURE0000001",
        &format!("\"cus_FIXTURE0000001{filler}1\"\n      }},\n      \"lines\": [\"x"),
    );
    body = body.replace("\"lines\": [\"x\"", "\"lines\": [{\"amount\": 19700, \"id\": \"il_1\"}]");
    let missing = 1024_usize.saturating_sub(body.len() + 16);
    body = body.replacen(
        "\"object\": \"event\"",
        &format!("\"object\": \"event\",\n  \"pad\": \"{}\"", "p".repeat(missing)),
        1,
    );
    Sample::of("stripe", "application/json", body.into_bytes())
}

/// A nested body of 4 KiB; the id stands at its end.
fn nested() -> Sample {
    let line =
        r#"{"sku":"A-1","quantity":2,"price":{"amount":19.90,"currency":"BRL"},"tags":["a","b",null,true]}"#;
    let lines = vec![line; 38].join(",");
    let body = format!(
        r#"{{"order":{{"customer":{{"name":"L\u00e9a","address":{{"zip":"00000-000"}}}},"lines":[{lines}]}},"id":"evt_1"}}"#
    );
    let rules = ItemRules::from_key(&["$.id".to_owned()]).expect("a good key");
    Sample::with(rules, "application/json", body.into_bytes())
}

/// A WhatsApp batch of 1,000 messages, about 600 KB.
fn whatsapp() -> Sample {
    let text = "Oi, j\\u00e1 paguei o PIX \\ud83d\\ude00, pode conferir? ".repeat(8);
    let message = |id: usize| {
        format!(
            r#"{{"from":"5500900000001","id":"wamid.RklYVFVSRS1JTi0wMDAwMDAwMDAwMD{id:06}==","timestamp":"1786363191","type":"text","text":{{"body":"{text}"}}}}"#
        )
    };
    let messages: Vec<String> = (0..1000).map(message).collect();
    let body = format!(
        r#"{{"object":"whatsapp_business_account","entry":[{{"id":"2","changes":[{{"value":{{"messaging_product":"whatsapp","metadata":{{"phone_number_id":"100000000000011"}},"messages":[{}]}},"field":"messages"}}]}}]}}"#,
        messages.join(",")
    );
    Sample::of("meta", "application/json", body.into_bytes())
}

fn form() -> Sample {
    let rules = ItemRules::from_key(&["form:MessageSid".to_owned(), "form:MessageStatus".to_owned()]);
    let body = include_bytes!("../fixtures/twilio-sms-status-sent.body").to_vec();
    Sample::with(rules.expect("a good key"), "application/x-www-form-urlencoded", body)
}

fn xml() -> Sample {
    let rules = ItemRules::from_key(&["xml:/Envelope/Body/notifications/OrganizationId".to_owned()]);
    let body = include_bytes!("../fixtures/salesforce-two-notifications.body").to_vec();
    Sample::with(rules.expect("a good key"), "text/xml", body)
}

#[divan::bench]
fn stripe_1k_key(bencher: Bencher<'_, '_>) {
    stripe().bench(bencher);
}

#[divan::bench]
fn stripe_1k_value(bencher: Bencher<'_, '_>) {
    stripe().bench_value(bencher);
}

#[divan::bench]
fn nested_4k_key(bencher: Bencher<'_, '_>) {
    nested().bench(bencher);
}

#[divan::bench]
fn nested_4k_value(bencher: Bencher<'_, '_>) {
    nested().bench_value(bencher);
}

#[divan::bench]
fn whatsapp_1000_items(bencher: Bencher<'_, '_>) {
    whatsapp().bench(bencher);
}

#[divan::bench]
fn whatsapp_1000_value(bencher: Bencher<'_, '_>) {
    whatsapp().bench_value(bencher);
}

#[divan::bench]
fn whatsapp_1000_cut_half(bencher: Bencher<'_, '_>) {
    let sample = whatsapp();
    let items = sample.items();
    let removed: Vec<usize> = (0..items.list.len()).step_by(2).collect();
    bencher
        .counter(BytesCount::of_slice(&sample.body))
        .bench(|| items.without(black_box(&sample.body), black_box(&removed)));
}

#[divan::bench]
fn twilio_form_key(bencher: Bencher<'_, '_>) {
    form().bench(bencher);
}

#[divan::bench]
fn salesforce_xml_key(bencher: Bencher<'_, '_>) {
    xml().bench(bencher);
}
