//! Deliveries that mean harm: none panics, none costs more than its length, none passes.

use http::HeaderValue;
use http::header::CONTENT_TYPE;
use proptest::prelude::*;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _};

use super::{Sent, sender, signature, verifier, with_public_key};

/// Providers whose signature covers the whole body, with a secret that each takes.
const COVERED: [&str; 16] = [
    "meta",
    "stripe",
    "shopify",
    "github",
    "bitbucket",
    "hubspot",
    "resend",
    "slack",
    "square",
    "paddle",
    "woocommerce",
    "zoom",
    "eduzz",
    "anyhook",
    "svix",
    "standard-webhooks",
];
const SECRET: &str = "c2VjcmV0LW9mLXRoZS10ZXN0cw==";

fn every_header() -> Vec<&'static str> {
    vec![
        "x-hub-signature-256",
        "x-hub-signature",
        "stripe-signature",
        "x-shopify-hmac-sha256",
        "x-hubspot-signature-v3",
        "x-hubspot-signature",
        "svix-signature",
        "webhook-signature",
        "x-slack-signature",
        "x-square-hmacsha256-signature",
        "paddle-signature",
        "x-wc-webhook-signature",
        "x-zm-signature",
        "x-signature",
        "authorization",
        "x-twilio-signature",
        "anyhook-signature",
    ]
}

#[test]
fn hostile_signature_values_are_refused_in_linear_time() {
    let long = 10 * 1024 * 1024;
    let values: Vec<Vec<u8>> = vec![
        Vec::new(),
        b"=".to_vec(),
        b"sha256=".to_vec(),
        b"t=,v1=".to_vec(),
        b"\xff\xfe\x80".to_vec(),
        b"t=99999999999999999999999999,v1=00".to_vec(),
        b"Basic".to_vec(),
        b"Bearer ..".to_vec(),
        b",".repeat(long),
        b" v1,".repeat(long / 4),
        b"v1=a,".repeat(long / 5),
        [b"sha256=".to_vec(), b"a".repeat(long)].concat(),
    ];
    let values: Vec<HeaderValue> =
        values.iter().map(|value| HeaderValue::from_bytes(value).unwrap()).collect();
    let providers = ["twilio", "evolution", "pagarme", "mercadopago", "standard-webhooks"];
    for provider in COVERED.iter().chain(&providers) {
        let verifier = verifier(provider, &[if *provider == "pagarme" { "user:password" } else { SECRET }]);
        for value in &values {
            let mut sent = Sent::new("{}");
            for name in every_header() {
                sent.headers.insert(name, value.clone());
            }
            assert!(sent.verify(&verifier).is_err(), "{provider}");
            drop(verifier.sign(&sent.delivery(), b"[]"));
        }
    }
}

#[test]
fn hostile_bodies_are_refused_where_the_signature_is_in_the_body() {
    let deep = [b"{\"signature\":".repeat(100_000), b"1".to_vec()].concat();
    let lists = b"[".repeat(100_000);
    let many = [b"{\"notificationItems\":[".to_vec(), b"{},".repeat(100_000), b"{}]}".to_vec()].concat();
    let bodies: [&[u8]; 8] = [b"", b"null", b"{", b"\xff", b"{\"signature\":null}", &deep, &lists, &many];
    for provider in ["mailgun", "adyen", "microsoft-graph", "hotmart"] {
        let verifier = verifier(provider, &["00"]);
        for body in bodies {
            assert!(Sent::new(body).verify(&verifier).is_err(), "{provider}");
        }
    }
}

#[test]
fn a_signature_that_comes_twice_is_refused() {
    let good = format!("sha256={}", hex::encode(sender::hmac_sha256(SECRET.as_bytes(), b"{}")));
    let sent = Sent::new("{}").header("X-Hub-Signature-256", &good);
    let verifier = verifier("meta", &[SECRET]);
    assert_eq!(sent.verify(&verifier), Ok(()));
    super::assert_refused(&sent.header("X-Hub-Signature-256", "sha256=00"), &verifier, "repeated");
    let twice = Sent::new("{}").url("https://h.example/in?signature=00&signature=11");
    super::assert_refused(&twice, &super::verifier("kiwify", &["k"]), "repeated");
}

#[test]
fn neither_secrets_nor_expected_values_are_printed() {
    let expected = hex::encode(sender::hmac_sha256(b"hush-hush", b"{}"));
    for provider in ["meta", "asaas", "hubspot", "evolution"] {
        let verifier = verifier(provider, &["hush-hush"]);
        let sent = Sent::new("{}")
            .header("X-Hub-Signature-256", "sha256=00")
            .header("asaas-access-token", "wrong")
            .header("X-HubSpot-Signature", "00")
            .header("Authorization", "Bearer a.b.c");
        let error = sent.verify(&verifier).unwrap_err();
        let printed = format!("{verifier:?} {error} {error:?}");
        assert!(!printed.contains("hush") && !printed.contains(&expected), "{printed}");
        assert!(!printed.contains("104, 117, 115, 104"), "{printed}");
    }
}

/// A delivery that the test's own re-signing made true for `body`.
fn true_delivery(provider: &str, body: &[u8]) -> Sent {
    let stamp = "1786363200";
    let mut sent = Sent::new(body).header("svix-id", "msg_1").header("svix-timestamp", stamp);
    for name in every_header() {
        let value = match provider {
            "stripe" | "anyhook" => format!("t={stamp},v1=00"),
            "paddle" => format!("ts={stamp};h1=00"),
            "meta" | "github" | "bitbucket" => "sha256=00".to_owned(),
            "resend" | "svix" | "standard-webhooks" => "v1,AA==".to_owned(),
            "slack" | "zoom" => "v0=00".to_owned(),
            _ => "00".to_owned(),
        };
        if signature(provider).is_some() {
            sent = sent.header(name, &value);
        }
    }
    sent = sent
        .without("x-hubspot-signature")
        .without(if provider == "standard-webhooks" { "svix-signature" } else { "webhook-signature" })
        .header("webhook-id", "msg_1")
        .header("webhook-timestamp", stamp)
        .header("x-slack-request-timestamp", stamp)
        .header("x-zm-request-timestamp", stamp)
        .header("x-hubspot-request-timestamp", "1786363200000");
    if provider == "hubspot" {
        let text = [b"POST", sent.url.as_bytes(), body, b"1786363200000"].concat();
        sent = sent.without("x-hubspot-signature-v3");
        return sent.header(
            "x-hubspot-signature-v3",
            &sender::base64(&sender::hmac_sha256(SECRET.as_bytes(), &text)),
        );
    }
    let verifier = verifier(provider, &[SECRET]);
    sent.filtered(&verifier, body)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_scheme_accepts_a_mutated_body(
        body in prop::collection::vec(any::<u8>(), 0..400),
        other in prop::collection::vec(any::<u8>(), 0..400),
        at in any::<prop::sample::Index>(),
        flip in 1_u8..=255,
    ) {
        for provider in COVERED {
            let verifier = verifier(provider, &[SECRET]);
            let sent = true_delivery(provider, &body);
            prop_assert_eq!(sent.verify(&verifier), Ok(()), "{}", provider);
            let mut mutants = vec![other.clone(), [&body[..], &[flip]].concat(), [&[flip], &body[..]].concat()];
            if !body.is_empty() {
                let index = at.index(body.len());
                let mut flipped = body.clone();
                flipped[index] ^= flip;
                let mut cut = body.clone();
                cut.remove(index);
                mutants.extend([flipped, cut]);
            }
            for mutant in mutants.into_iter().filter(|mutant| *mutant != body) {
                prop_assert!(sent.clone().body(mutant).verify(&verifier).is_err(), "{}", provider);
            }
        }
    }

    #[test]
    fn no_public_key_accepts_a_mutated_body(
        body in prop::collection::vec(any::<u8>(), 1..400),
        at in any::<prop::sample::Index>(),
        flip in 1_u8..=255,
    ) {
        let random = SystemRandom::new();
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
        let ed25519 = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap();
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random).unwrap();
        let p256 = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, pkcs8.as_ref(), &random).unwrap();
        let text = [b"1786363200", &body[..]].concat();
        let discord = Sent::new(&body[..])
            .header("X-Signature-Timestamp", "1786363200")
            .header("X-Signature-Ed25519", &hex::encode(ed25519.sign(&text).as_ref()));
        let signature = sender::base64(p256.sign(&random, &text).unwrap().as_ref());
        let sendgrid = Sent::new(&body[..])
            .header("X-Twilio-Email-Event-Webhook-Timestamp", "1786363200")
            .header("X-Twilio-Email-Event-Webhook-Signature", &signature);
        let keys = [hex::encode(ed25519.public_key().as_ref()), sender::base64(p256.public_key().as_ref())];
        for (sent, name, key) in [(discord, "discord", &keys[0]), (sendgrid, "sendgrid", &keys[1])] {
            let verifier = with_public_key(name, key);
            prop_assert_eq!(sent.verify(&verifier), Ok(()), "{}", name);
            let mut flipped = body.clone();
            flipped[at.index(body.len())] ^= flip;
            let mutants = [flipped, body[1..].to_vec(), [&body[..], &[flip]].concat(), [&b"1"[..], &body].concat()];
            for mutant in mutants {
                prop_assert!(sent.clone().body(mutant).verify(&verifier).is_err(), "{}", name);
            }
        }
    }

    #[test]
    fn no_form_verifies_under_twilio_with_other_fields(
        fields in prop::collection::btree_map("[A-Za-z]{1,8}", "[ -~]{0,12}", 1..6),
        field in "[A-Za-z]{1,8}",
        value in "[ -~]{0,12}",
    ) {
        let url = "https://hooks.example.com/hooks/twilio";
        let text: String = fields.iter().map(|(name, value)| format!("{name}{value}")).collect();
        let signature = sender::base64(&sender::hmac_sha1(b"token", format!("{url}{text}").as_bytes()));
        let form = |fields: &std::collections::BTreeMap<String, String>| {
            form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish()
        };
        let sent = Sent::new(form(&fields))
            .url(url)
            .header(CONTENT_TYPE.as_str(), "application/x-www-form-urlencoded")
            .header("X-Twilio-Signature", &signature);
        let verifier = verifier("twilio", &["token"]);
        prop_assert_eq!(sent.verify(&verifier), Ok(()));
        let mut changed = fields.clone();
        changed.insert(field, value);
        let changed_text: String = changed.iter().map(|(name, value)| format!("{name}{value}")).collect();
        prop_assume!(changed_text != text);
        prop_assert!(sent.body(form(&changed)).verify(&verifier).is_err());
    }

    #[test]
    fn no_value_makes_a_verifier_panic(value in "\\PC{0,80}", body in "\\PC{0,80}") {
        for provider in COVERED {
            let mut sent = Sent::new(body.clone());
            for name in every_header() {
                if let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) {
                    sent.headers.insert(name, value);
                }
            }
            prop_assert!(sent.verify(&verifier(provider, &[SECRET])).is_err());
        }
    }
}
