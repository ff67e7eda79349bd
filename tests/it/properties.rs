//! What holds for any batch of any provider that can be cut, for any subset of its items, and for any key.

use std::collections::BTreeSet;

use http::header::CONTENT_TYPE;
use proptest::prelude::*;
use umavez::ledger::EventKey;
use umavez::providers::{Provider, Resign, Verifier};

use crate::signature_vectors::{Sent, sender, signature, verifier, with_public_key};

const SECRET: &str = "properties-secret";
const ADYEN_KEY: &str = "00112233445566778899aabbccddeeff";
const SENDGRID_KEY: &str = "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEz+ezAZvFYu85Z41uAgNb/EQiJ1LO4vEhgZSgEYCTTFsQ003siPjGjBCEYzHIkF53Clfnu39A/4TUmCrBZOLgKA==";

/// How a provider writes a batch.
struct Shape {
    provider: &'static str,
    before: &'static str,
    between: &'static str,
    after: &'static str,
    /// One item: its number, and something that no rule names.
    item: fn(usize, &str) -> String,
}

const SHAPES: &[Shape] = &[
    Shape {
        provider: "meta",
        before: "\n{\"n\":1.0,\"entry\":[{\"id\":\"1\",\"changes\":[{\"value\":{\"messages\":[",
        between: ",",
        after: "],\"metadata\":{\"phone_number_id\":\"2\"}},\"field\":\"messages\"}]}]} ",
        item: |n, noise| format!("{{\"x\":{noise}, \"id\":\"wamid.{n}\"}}"),
    },
    Shape {
        provider: "hubspot",
        before: "[",
        between: ",",
        after: "]",
        item: |n, noise| {
            format!(
                "{{\"portalId\":1,\"subscriptionId\":2,\"eventId\":{n},\"y\":{noise},\"objectId\":3,\"occurredAt\":1.0}}"
            )
        },
    },
    Shape {
        provider: "sendgrid",
        before: "[ ",
        between: ",",
        after: "]\r\n",
        item: |n, noise| format!("{{\"sg_event_id\":\"s-{n}\",\"z\":{noise}}}"),
    },
    Shape {
        provider: "cloudevents",
        before: "[",
        between: ",",
        after: "]",
        item: |n, noise| format!("{{\"source\":\"/s\",\"data\":{noise},\"id\":\"{n}\"}}"),
    },
    Shape {
        provider: "microsoft-graph",
        before: "{\"value\":[",
        between: ",",
        after: "],\"validationTokens\":[]}",
        item: |n, noise| {
            format!(
                "{{\"clientState\":\"{SECRET}\",\"tenantId\":\"t\",\"subscriptionId\":\"s\",\"id\":\"{n}\",\"resourceData\":{noise}}}"
            )
        },
    },
    Shape {
        provider: "evolution",
        before: "{\"event\":\"messages.update\",\"instance\":\"a\",\"data\":[",
        between: ",",
        after: "],\"apikey\":null}",
        item: |n, noise| format!("{{\"keyId\":\"{n}\",\"status\":\"READ\",\"m\":{noise}}}"),
    },
    Shape {
        provider: "adyen",
        before: "{\"live\":\"false\",\"notificationItems\":[",
        between: ",",
        after: "]}",
        item: |n, noise| {
            let text = format!("{n}::Shop:ref:100:EUR:AUTHORISATION:true");
            let key = hex::decode(ADYEN_KEY).unwrap();
            let signature = sender::base64(&sender::hmac_sha256(&key, text.as_bytes()));
            format!(
                "{{\"NotificationRequestItem\":{{\"additionalData\":{{\"hmacSignature\":\"{signature}\"}},\"amount\":{{\"currency\":\"EUR\",\"value\":100}},\"eventCode\":\"AUTHORISATION\",\"merchantAccountCode\":\"Shop\",\"merchantReference\":\"ref\",\"pspReference\":\"{n}\",\"success\":\"true\",\"reason\":{noise}}}}}"
            )
        },
    },
    Shape {
        provider: "salesforce",
        before: "<?xml version=\"1.0\"?><e:Envelope xmlns:e=\"u\"><e:Body><notifications xmlns=\"v\"><OrganizationId>o</OrganizationId>",
        between: "",
        after: "<!-- > --></notifications></e:Body></e:Envelope>\n",
        item: |n, noise| {
            format!("<Notification><Id>{n}</Id><s:o xmlns:s=\"w\"><![CDATA[{noise}]]></s:o></Notification>")
        },
    },
];

fn noise() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("null".to_owned()),
        Just("1.50E+2".to_owned()),
        Just(r#""a\u00e9\"},{\\""#.to_owned()),
        Just(r#"{"id":"decoy","Id":[{"id":[]},{}]}"#.to_owned()),
        Just("[ ]".to_owned()),
        "[ -!#-\\[^-~à-ü]{0,12}".prop_map(|text| format!("\"{text}\"")),
    ]
}

/// A route's keys, and the delivery signed with them where the test can sign.
fn signed(shape: &Shape, body: &str) -> (Option<Verifier>, Sent) {
    let kind = if shape.provider == "salesforce" { "text/xml" } else { "application/json" };
    let sent = Sent::new(body).header(CONTENT_TYPE.as_str(), kind);
    match shape.provider {
        "meta" => {
            let hub =
                format!("sha256={}", hex::encode(sender::hmac_sha256(SECRET.as_bytes(), body.as_bytes())));
            (Some(verifier("meta", &[SECRET])), sent.header("X-Hub-Signature-256", &hub))
        }
        "hubspot" => {
            let text = format!("POST{}{body}1786363200000", sent.url);
            let value = sender::base64(&sender::hmac_sha256(SECRET.as_bytes(), text.as_bytes()));
            let sent = sent.header("X-HubSpot-Request-Timestamp", "1786363200000");
            (Some(verifier("hubspot", &[SECRET])), sent.header("X-HubSpot-Signature-v3", &value))
        }
        "adyen" => (Some(verifier("adyen", &[ADYEN_KEY])), sent),
        "microsoft-graph" => (Some(verifier("microsoft-graph", &[SECRET])), sent),
        "sendgrid" => {
            let sent = sent.header("X-Twilio-Email-Event-Webhook-Timestamp", "1786363200");
            let sent = sent.header("X-Twilio-Email-Event-Webhook-Signature", "AA==");
            (Some(with_public_key("sendgrid", SENDGRID_KEY)), sent)
        }
        _ => (None, sent),
    }
}

#[test]
fn every_provider_with_batches_has_a_shape() {
    let listed =
        |provider: &Provider| provider.rules.describe().iter().any(|item| item.place.contains("[*]"));
    let batched: BTreeSet<_> =
        Provider::names().into_iter().filter(|name| listed(&Provider::shipped(name).unwrap())).collect();
    assert_eq!(batched, SHAPES.iter().map(|shape| shape.provider).collect());
}

/// The parts of a key's text, which `EventKey::new` wrote.
fn parts_of(text: &str) -> Vec<Vec<u8>> {
    let mut parts = vec![Vec::new()];
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let part = parts.last_mut().unwrap();
        match byte {
            b':' => parts.push(Vec::new()),
            b'\\' => match rest.next().unwrap() {
                b'x' => {
                    let digits = [rest.next().unwrap(), rest.next().unwrap()];
                    part.push(u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap());
                }
                escaped => part.push(escaped),
            },
            plain => part.push(plain),
        }
    }
    parts
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_subset_of_any_batch_is_cut_and_the_rest_is_as_it_was(
        noises in prop::collection::vec((noise(), "[ \n\r\t]{0,2}", any::<bool>()), 2..12),
        flip in any::<prop::sample::Index>(),
        bom in any::<bool>(),
    ) {
        for shape in SHAPES {
            let provider = Provider::shipped(shape.provider).unwrap();
            let texts: Vec<String> =
                noises.iter().enumerate().map(|(n, (noise, ..))| (shape.item)(n, noise)).collect();
            let before = format!("{}{}", if bom { "\u{feff}" } else { "" }, shape.before);
            let mut body = before.clone();
            for (n, (text, (_, space, _))) in texts.iter().zip(&noises).enumerate() {
                if n > 0 {
                    body.push_str(space);
                    body.push_str(shape.between);
                }
                body.push_str(text);
            }
            body.push_str(shape.after);
            let (verifier, sent) = signed(shape, &body);
            let items = provider.items(&sent.delivery());
            prop_assert_eq!(items.list.len(), texts.len(), "{}: {}", shape.provider, body);
            prop_assert!(items.can_cut() && items.list.iter().all(|item| item.parts.is_ok()), "{}", shape.provider);
            let removed: Vec<usize> =
                noises.iter().enumerate().filter(|(_, (.., goes))| *goes).map(|(n, _)| n).collect();
            prop_assume!(removed.len() < texts.len());

            let cut = items.without(body.as_bytes(), &removed);
            let left = std::str::from_utf8(&cut).unwrap();
            if removed.is_empty() {
                prop_assert_eq!(left, &body);
            }
            prop_assert!(left.starts_with(&before) && left.ends_with(shape.after), "{}", left);
            // The old body with holes, and the holes are the items that went, with a separator each.
            let mut rest = body.bytes();
            prop_assert!(left.bytes().all(|byte| rest.any(|known| known == byte)), "{}", left);
            let kept: Vec<&String> =
                texts.iter().enumerate().filter(|(n, _)| !removed.contains(n)).map(|(_, text)| text).collect();
            let again = sent.clone().body(left);
            let found = provider.items(&again.delivery());
            prop_assert_eq!(found.list.len(), kept.len(), "{}: {}", shape.provider, left);
            let mut from = 0;
            for text in &kept {
                let at = left.get(from..).unwrap().find(text.as_str());
                prop_assert!(at.is_some(), "{}: {} in {}", shape.provider, text, left);
                from += at.unwrap() + text.len();
            }
            let before: Vec<_> = items.list.iter().enumerate().filter(|(n, _)| !removed.contains(n)).collect();
            for (now, (_, then)) in found.list.iter().zip(before) {
                prop_assert_eq!(&now.parts, &then.parts);
            }
            if shape.provider != "salesforce" {
                let plain = left.trim_start_matches('\u{feff}');
                prop_assert!(serde_json::from_str::<serde_json::Value>(plain).is_ok(), "{}", left);
            }

            let Some(verifier) = verifier else { continue };
            if verifier.can_sign(&sent.delivery()) == Resign::Impossible {
                prop_assert!(verifier.sign(&sent.delivery(), &cut).is_err());
                continue;
            }
            prop_assert_eq!(sent.verify(&verifier), Ok(()), "{}", shape.provider);
            let filtered = sent.filtered(&verifier, &cut);
            prop_assert_eq!(filtered.verify(&verifier), Ok(()), "{}: {}", shape.provider, left);
            if signature(shape.provider).unwrap().signs_body() {
                let mut mutant = cut.clone();
                let at = flip.index(mutant.len());
                mutant[at] ^= 1;
                prop_assert!(filtered.clone().body(mutant).verify(&verifier).is_err());
                prop_assert!(removed.is_empty() || filtered.body(body.as_str()).verify(&verifier).is_err());
            }
        }
    }

    #[test]
    fn what_a_key_was_made_of_can_be_read_back(
        parts in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..20),
                "[:\\\\x0-9a-f]{0,12}".prop_map(String::into_bytes),
                "\\PC{0,12}".prop_map(String::into_bytes),
            ],
            1..6,
        ),
    ) {
        // So no two lists of parts share a text.
        let key = EventKey::new("scope", &parts);
        let (scope, read) = parts_of(key.text()).split_first().map(|(scope, read)| (scope.clone(), read.to_vec())).unwrap();
        prop_assert_eq!(scope, b"scope".to_vec());
        prop_assert_eq!(&read, &parts);
        prop_assert_eq!(EventKey::from_text(key.text()).digest(), key.digest());
    }
}
