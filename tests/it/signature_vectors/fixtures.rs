//! Every fixture under its own secret and clock, and under everything that must not pass.

use std::collections::BTreeMap;

use umavez::providers::{Resign, Verifier};

use crate::support::fixtures::{Fixture, expected, folder};

use super::{SIGNED_AT_MS, Sent, sender, signature, verifier, with_public_key};

/// Keys were read past a byte order mark, and signatures that stand in the body were not: genuine deliveries got 401.
#[test]
fn a_signature_in_a_body_is_read_past_a_byte_order_mark() {
    let marked = |body: &[u8]| [b"\xEF\xBB\xBF", body].concat();
    let mut seen = Vec::new();
    for fixture in signed_fixtures() {
        let inside = ["mailgun", "adyen", "microsoft-graph"].contains(&fixture.provider.as_str());
        if inside && fixture.sent.headers.get("hmacsignature").is_none() {
            let sent = fixture.sent.clone().body(marked(&fixture.sent.body));
            assert_eq!(sent.verify(&prepared(&fixture.provider)), Ok(()), "{}", fixture.case);
            seen.push(fixture.provider);
        }
    }
    seen.dedup();
    assert_eq!(seen, ["adyen", "microsoft-graph", "mailgun"]);

    let hotmart = Sent::new(marked(br#"{"id":"1","hottok":"tok"}"#));
    assert_eq!(hotmart.verify(&verifier("hotmart", &["tok"])), Ok(()));
    assert!(hotmart.verify(&verifier("hotmart", &["other"])).is_err());
    let linear = marked(format!(r#"{{"webhookTimestamp":{SIGNED_AT_MS}}}"#).as_bytes());
    let signature = hex::encode(sender::hmac_sha256(b"k", &linear));
    let linear = Sent::new(linear).header("Linear-Signature", &signature);
    assert_eq!(linear.verify(&verifier("linear", &["k"])), Ok(()));
}

struct Signed {
    case: String,
    provider: String,
    sent: Sent,
}

/// All fixtures of providers with a signature, less the handshakes that come unsigned.
fn signed_fixtures() -> Vec<Signed> {
    let fixtures: Vec<Signed> = Fixture::all()
        .into_iter()
        .map(Signed::from)
        .filter(|fixture| signature(&fixture.provider).is_some())
        .filter(|fixture| fixture.provider != "evolution" && fixture.case != "graph-validation-handshake")
        .collect();
    assert!(fixtures.len() > 40, "only {} fixtures found", fixtures.len());
    fixtures
}

impl From<Fixture> for Signed {
    fn from(fixture: Fixture) -> Self {
        let target = match fixture.name.as_str() {
            "kiwify-order-approved" => "kiwify?signature=8ec5e93464274bbd090d506eca178fce7496ef8b",
            "mercadopago-payment-updated" => "mercadopago?data.id=99900000001&type=payment",
            _ => fixture.family(),
        };
        let url = format!("https://hooks.example.com/hooks/{target}");
        let provider = fixture.provider().to_owned();
        let sent = Sent { headers: fixture.headers, ..Sent::new(fixture.body).url(&url) };
        Self { case: fixture.name, provider, sent }
    }
}

/// The list "Fixture secrets" in EXPECT.md.
fn secrets() -> BTreeMap<String, String> {
    expected()
        .lines()
        .filter_map(|line| line.strip_prefix("- ")?.strip_suffix('`')?.split_once(": `"))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// A certificate of `tests/fixtures/certificates`.
pub(super) fn certificate(name: &str) -> String {
    std::fs::read_to_string(folder().join(format!("certificates/{name}.pem"))).unwrap()
}

fn prepared(provider: &str) -> Verifier {
    let secrets = secrets();
    if let Some(name) = match provider {
        "aws-sns" => Some("sns"),
        "paypal" => Some("paypal"),
        _ => None,
    } {
        let id = secrets["paypal webhook id"].as_str();
        return with_public_key(provider, &certificate(name)).for_webhook(Some(id));
    }
    let name = match provider {
        "microsoft-graph" => "graph",
        "woocommerce" => "woo",
        "resend" => "svix",
        "standard-webhooks" => "std",
        "discord" => "discord public key (Ed25519, hex)",
        "sendgrid" => "sendgrid public key (P-256, DER, base64)",
        other => other,
    };
    let secret = secrets.get(name).unwrap_or_else(|| panic!("EXPECT.md has no secret for {provider}"));
    let signature = signature(provider).unwrap();
    if signature.needs_secret() {
        signature.prepare(&[secret.as_bytes()], None).unwrap()
    } else {
        signature.prepare(&[], Some(secret)).unwrap()
    }
}

#[test]
fn every_signed_fixture_verifies_at_its_clock() {
    for Signed { case, provider, sent } in signed_fixtures() {
        let verdict = sent.verify(&prepared(&provider));
        assert!(verdict.is_ok(), "{case}: {}", verdict.unwrap_err());
    }
}

#[test]
fn no_fixture_verifies_with_any_byte_of_its_body_changed() {
    for Signed { case, provider, sent } in signed_fixtures() {
        let verifier = prepared(&provider);
        if !verifier.signs_body() {
            continue;
        }
        let mut changed = sent.clone();
        for index in 0..sent.body.len() {
            *changed.body.get_mut(index).unwrap() ^= 1;
            assert!(changed.verify(&verifier).is_err(), "{case} with byte {index} changed");
            *changed.body.get_mut(index).unwrap() ^= 1;
        }
        assert!(
            sent.clone().body([&sent.body[..], b" "].concat()).verify(&verifier).is_err(),
            "{case} and a byte"
        );
        assert!(sent.clone().body("").verify(&verifier).is_err(), "{case} emptied");
    }
}

#[test]
fn no_fixture_verifies_under_another_secret() {
    // Hex digits and base64 text at once.
    let other = "0123456789abcdef0123456789abcdef";
    let other_p256 = "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEaxfR8uEsQkf4vOblY6RA8ncDfYEt6zOg9KE5RdiYwpZP40Li\
                      /hp/m47n60p8D54WK84zV2sxXs7LtkBoN79R9Q==";
    for Signed { case, provider, sent } in signed_fixtures() {
        let signature = signature(&provider).unwrap();
        let verifier = match provider.as_str() {
            "discord" => signature.prepare(&[], Some(&other.repeat(2))),
            "sendgrid" => signature.prepare(&[], Some(other_p256)),
            "pagarme" => signature.prepare(&[b"another:password"], None),
            "aws-sns" => signature.prepare(&[], Some(&certificate("paypal"))),
            "paypal" => signature
                .prepare(&[], Some(&certificate("sns")))
                .map(|verifier| verifier.for_webhook(Some("WH-FIXTURE-ENDPOINT"))),
            _ => signature.prepare(&[other.as_bytes()], None),
        };
        assert_eq!(sent.verify(&verifier.unwrap()).expect_err(&case).label(), "mismatch", "{case}");
    }
}

#[test]
fn a_stamp_past_its_tolerance_is_refused() {
    let tolerances_s = BTreeMap::from([
        ("anyhook", 300),
        ("aws-sns", 86_400),
        ("discord", 900),
        ("hubspot", 300),
        ("linear", 28_800),
        ("paddle", 60),
        ("resend", 300),
        ("slack", 300),
        ("standard-webhooks", 300),
        ("stripe", 300),
        ("svix", 300),
        ("zoom", 10_800),
    ]);
    for Signed { case, provider, sent } in signed_fixtures() {
        let verifier = prepared(&provider);
        let at = |now_ms: u64| verifier.verify(&sent.delivery(), now_ms).map_err(|error| error.label());
        let Some(tolerance_s) = tolerances_s.get(provider.as_str()) else {
            assert_eq!(at(SIGNED_AT_MS * 2), Ok(()), "{case} has no stamp that ages");
            continue;
        };
        let tolerance_ms = tolerance_s * 1000;
        // Linear stamps a moment before it signs.
        assert_eq!(at(SIGNED_AT_MS + tolerance_ms - 2000), Ok(()), "{case}");
        assert_eq!(at(SIGNED_AT_MS + tolerance_ms + 1000), Err("too_old"), "{case}");
        let early = at(SIGNED_AT_MS - tolerance_ms - 3000);
        if ["stripe", "hubspot", "paddle"].contains(&provider.as_str()) {
            assert_eq!(early, Ok(()), "{case}");
        } else {
            assert_eq!(early, Err("from_the_future"), "{case}");
        }
    }
}

#[test]
fn filtered_bodies_verify_after_signing_wherever_we_can_sign() {
    for Signed { case, provider, sent } in signed_fixtures() {
        let verifier = prepared(&provider);
        let body: &[u8] =
            if provider == "twilio" { b"AccountSid=AC1&MessageSid=SM1" } else { b"{\"kept\": [1]}" };
        let signed = verifier.sign(&sent.delivery(), body);
        match verifier.can_sign(&sent.delivery()) {
            Resign::Impossible => assert!(signed.is_err(), "{case}"),
            Resign::NotNeeded => assert_eq!(signed.unwrap(), [], "{case}"),
            Resign::WithSecret => {
                let filtered = sent.filtered(&verifier, body);
                let names: Vec<_> = signed.unwrap().into_iter().map(|(name, _)| name).collect();
                assert!(
                    !names.is_empty() && names.iter().all(|name| sent.headers.contains_key(name)),
                    "{case}"
                );
                // Linear's stamp is in its body.
                if provider != "linear" {
                    assert_eq!(filtered.verify(&verifier), Ok(()), "{case}");
                }
                assert!(filtered.clone().body(sent.body.clone()).verify(&verifier).is_err(), "{case}");
            }
        }
    }
}

#[test]
fn both_meta_headers_are_signed_anew() {
    let fixtures = signed_fixtures();
    let batch = fixtures.iter().find(|fixture| fixture.case == "whatsapp-messages-batch").unwrap();
    let verifier = prepared("meta");
    let filtered = batch.sent.filtered(&verifier, b"{}");
    assert_eq!(filtered.verify(&verifier), Ok(()));
    assert_eq!(
        filtered.without("X-Hub-Signature-256").verify(&verifier),
        Ok(()),
        "the legacy header holds too"
    );
}

#[test]
fn a_rotating_endpoint_keeps_one_signature_per_secret() {
    let secrets = secrets();
    let (new, old) = (secrets["stripe"].as_bytes(), secrets["stripe_old"].as_bytes());
    let stripe = signature("stripe").unwrap();
    let fixtures = signed_fixtures();
    let rotating =
        &fixtures.iter().find(|fixture| fixture.case == "stripe-checkout-secret-rotation").unwrap().sent;
    for configured in [&[new][..], &[old], &[new, old]] {
        let verifier = stripe.prepare(configured, None).unwrap();
        assert_eq!(rotating.verify(&verifier), Ok(()));
        let filtered = rotating.filtered(&verifier, b"{}");
        let value = filtered.headers["stripe-signature"].to_str().unwrap();
        assert_eq!(value.matches(",v1=").count(), configured.len(), "{value}");
        assert!(value.starts_with("t=1786363200,"), "{value}");
        for secret in configured {
            assert_eq!(filtered.verify(&stripe.prepare(&[*secret], None).unwrap()), Ok(()));
        }
    }
}

#[test]
fn standard_webhooks_skips_versions_it_does_not_know() {
    let secrets = secrets();
    let fixtures = signed_fixtures();
    let sent =
        &fixtures.iter().find(|fixture| fixture.case == "standardwebhooks-rotation-and-v1a").unwrap().sent;
    for name in ["std", "std_old"] {
        let secret = format!("whsec_{}", secrets[name]);
        let verifier = signature("standard-webhooks").unwrap().prepare(&[secret.as_bytes()], None).unwrap();
        assert_eq!(sent.verify(&verifier), Ok(()), "{name}");
    }
}
