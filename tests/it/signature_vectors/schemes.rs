//! What fixtures don't show: the other half of each scheme, and the values that providers document.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderName;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use umavez::providers::{CannotSign, Provider, Resign};

use crate::support::fixtures::Fixture;

use super::fixtures::certificate;
use super::{SIGNED_AT_MS, Sent, assert_refused, sender, signature, verifier, with_public_key};

fn hex_of(key: &str, body: &str) -> String {
    hex::encode(sender::hmac_sha256(key.as_bytes(), body.as_bytes()))
}

#[test]
fn values_that_providers_document_verify() {
    let github = Sent::new("Hello, World!").header(
        "X-Hub-Signature-256",
        "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17",
    );
    assert_eq!(github.verify(&verifier("github", &["It's a Secret to Everybody"])), Ok(()));
    let standard = Sent::new(r#"{"test": 2432232314}"#)
        .header("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek")
        .header("webhook-timestamp", "1614265330")
        .header("webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    let verifier = verifier("standard-webhooks", &["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]);
    assert_eq!(verifier.verify(&standard.delivery(), 1_614_265_330_000), Ok(()));
}

#[test]
fn a_weak_signature_does_not_save_a_wrong_strong_one() {
    let verifier = verifier("meta", &["app-secret"]);
    let weak = format!("sha1={}", hex::encode(sender::hmac_sha1(b"app-secret", b"{}")));
    let only_weak = Sent::new("{}").header("X-Hub-Signature", &weak);
    assert_eq!(only_weak.verify(&verifier), Ok(()));
    for strong in ["sha256=00", "sha256=", "sha1=00", "", "garbage"] {
        let both = only_weak.clone().header("X-Hub-Signature-256", strong);
        assert!(both.verify(&verifier).is_err(), "{strong}");
    }
    assert_refused(&Sent::new("{}"), &verifier, "missing");
}

#[test]
fn a_single_value_is_signed_with_the_secret_that_it_came_under() {
    let both = verifier("shopify", &["new", "old"]);
    let value = sender::base64(&sender::hmac_sha256(b"old", b"[1,2]"));
    let sent = Sent::new("[1,2]").header("X-Shopify-Hmac-Sha256", &value);
    assert_eq!(sent.verify(&both), Ok(()));
    let filtered = sent.filtered(&both, b"[1]");
    assert_eq!(filtered.verify(&verifier("shopify", &["old"])), Ok(()));
    assert!(filtered.verify(&verifier("shopify", &["new"])).is_err());
}

#[test]
fn hubspot_signs_in_three_ways_and_all_are_signed_anew() {
    let verifier = verifier("hubspot", &["client"]);
    let url = "https://hooks.example.com/hooks/hubspot?a=1%3A2";
    let v1 = hex::encode(sender::sha256(b"client[1,2]"));
    let v2 = hex::encode(sender::sha256(format!("clientPOST{url}[1,2]").as_bytes()));
    let sent = Sent::new("[1,2]").url(url).header("X-HubSpot-Request-Timestamp", "1786363200000");
    for signature in [v1, v2] {
        let sent = sent.clone().header("X-HubSpot-Signature", &signature);
        assert_eq!(sent.verify(&verifier), Ok(()));
        assert_eq!(sent.filtered(&verifier, b"[1]").verify(&verifier), Ok(()));
        let other_body = sent.body("[2,1]");
        assert_refused(&other_body, &verifier, "mismatch");
    }
    let v3 = format!("POST{}[1,2]1786363200000", url.replace("%3A", ":"));
    let v3 = sender::base64(&sender::hmac_sha256(b"client", v3.as_bytes()));
    let v1 = hex::encode(sender::sha256(b"client[1,2]"));
    let sent = sent.header("X-HubSpot-Signature-v3", &v3).header("X-HubSpot-Signature", &v1);
    assert_eq!(sent.verify(&verifier), Ok(()), "the URL with its escapes undone");
    let filtered = sent.filtered(&verifier, b"[1]");
    assert_eq!(filtered.verify(&verifier), Ok(()));
    assert_eq!(filtered.clone().without("X-HubSpot-Signature-v3").verify(&verifier), Ok(()));
    assert_refused(&filtered.url("https://hooks.example.com/hooks/other"), &verifier, "mismatch");
}

#[test]
fn twilio_covers_forms_json_and_either_port() {
    let verifier = verifier("twilio", &["token"]);
    let sign = |text: &str| sender::base64(&sender::hmac_sha1(b"token", text.as_bytes()));
    let form = |url: &str, signed: &str| {
        Sent::new("To=%2B1&From=a+b&To=%2B1&Digits=")
            .url(url)
            .header("Content-Type", "application/x-www-form-urlencoded; charset=UTF-8")
            .header("X-Twilio-Signature", &sign(&format!("{signed}DigitsFroma bTo+1")))
    };
    let url = "https://h.example/in?x=1";
    assert_eq!(form(url, url).verify(&verifier), Ok(()));
    assert_eq!(form(url, "https://h.example:443/in?x=1").verify(&verifier), Ok(()));
    assert_eq!(form("https://h.example:8443/in?x=1", url).verify(&verifier), Ok(()));
    assert_refused(&form("https://h.example/in?x=2", url), &verifier, "mismatch");

    let json = r#"{"MessageSid":"SM1"}"#;
    let digest = hex::encode(sender::sha256(json.as_bytes()));
    let url = format!("https://h.example/in?bodySHA256={digest}");
    let sent = Sent::new(json)
        .url(&url)
        .header("Content-Type", "application/json")
        .header("X-Twilio-Signature", &sign(&url));
    assert_eq!(sent.verify(&verifier), Ok(()));
    assert_refused(&sent.body("{}"), &verifier, "mismatch");

    let uncovered = Sent::new(json)
        .url("https://h.example/in")
        .header("Content-Type", "application/json")
        .header("X-Twilio-Signature", &sign("https://h.example/in"));
    assert_refused(&uncovered, &verifier, "body_not_covered");
}

#[test]
fn mercadopago_leaves_missing_parts_out_of_its_manifest() {
    let verifier = verifier("mercadopago", &["s"]);
    let value = |manifest: &str, ts: &str| format!("ts={ts},v1={}", hex_of("s", manifest));
    let table = [
        ("https://h/in?data.id=ABC1", Some("r1"), "1786363200", "id:abc1;request-id:r1;ts:1786363200;"),
        ("https://h/in?data.id=ABC1", Some("r1"), "1786363200000", "id:ABC1;request-id:r1;ts:1786363200000;"),
        ("https://h/in?data.id=7", None, "1786363200", "id:7;ts:1786363200;"),
        ("https://h/in", Some("r1"), "1786363200", "request-id:r1;ts:1786363200;"),
        ("https://h/in", None, "1786363200", "ts:1786363200;"),
    ];
    for (url, request_id, ts, manifest) in table {
        let mut sent = Sent::new("{}").url(url).header("x-signature", &value(manifest, ts));
        if let Some(id) = request_id {
            sent = sent.header("x-request-id", id);
        }
        assert_eq!(sent.verify(&verifier), Ok(()), "{manifest}");
        assert_eq!(verifier.can_sign(&sent.delivery()), Resign::NotNeeded);
        assert_refused(&sent.url("https://h/in?data.id=8"), &verifier, "mismatch");
    }
}

#[test]
fn mailgun_signs_fields_of_json_or_form() {
    let verifier = verifier("mailgun", &["key"]);
    let good = hex_of("key", "1786363200tok");
    let json = |signature: &str| {
        Sent::new(format!(
            r#"{{"event-data":{{}},"signature":{{"token":"tok","timestamp":"1786363200","signature":"{signature}"}}}}"#
        ))
    };
    assert_eq!(json(&good).verify(&verifier), Ok(()));
    assert_refused(&json("00"), &verifier, "mismatch");
    let form = Sent::new(format!("timestamp=1786363200&token=tok&signature={good}"))
        .header("Content-Type", "application/x-www-form-urlencoded");
    assert_eq!(form.verify(&verifier), Ok(()));
    assert_refused(&Sent::new("{}"), &verifier, "missing");
}

#[test]
fn every_adyen_item_must_hold() {
    let key = "00112233445566778899aabbccddeeff";
    let verifier = verifier("adyen", &[key]);
    let item = |psp: &str, signed_psp: &str| {
        let text = format!("{signed_psp}::Shop:ref:100:EUR:AUTHORISATION:true");
        let signature = sender::base64(&sender::hmac_sha256(&hex::decode(key).unwrap(), text.as_bytes()));
        format!(
            r#"{{"NotificationRequestItem":{{"additionalData":{{"hmacSignature":"{signature}"}},"amount":{{"currency":"EUR","value":100}},"eventCode":"AUTHORISATION","merchantAccountCode":"Shop","merchantReference":"ref","pspReference":"{psp}","success":"true"}}}}"#
        )
    };
    let batch = |items: &[String]| Sent::new(format!(r#"{{"notificationItems":[{}]}}"#, items.join(",")));
    assert_eq!(batch(&[item("A", "A"), item("B", "B")]).verify(&verifier), Ok(()));
    assert_refused(&batch(&[item("A", "A"), item("B", "A")]), &verifier, "mismatch");
    assert_refused(&batch(&[item("A", "A"), "{}".to_owned()]), &verifier, "missing");
    assert_refused(&batch(&[]), &verifier, "missing");

    let whole = Sent::new("{}")
        .header("hmacsignature", &sender::base64(&sender::hmac_sha256(&hex::decode(key).unwrap(), b"{}")));
    assert_eq!(whole.verify(&verifier), Ok(()), "platform webhooks sign the body");
}

#[test]
fn gitlab_checks_what_the_configured_secret_is_for() {
    let sent = Sent::new("{}")
        .header("webhook-id", "id")
        .header("webhook-timestamp", "1786363200")
        .header(
            "webhook-signature",
            &format!("v1,{}", sender::base64(&sender::hmac_sha256(b"hi", b"id.1786363200.{}"))),
        )
        .header("X-Gitlab-Token", "plain");
    assert_eq!(sent.verify(&verifier("gitlab", &["plain"])), Ok(()));
    assert_eq!(sent.verify(&verifier("gitlab", &["whsec_aGk="])), Ok(()));
    let both = verifier("gitlab", &["plain", "whsec_aGk="]);
    assert_eq!(sent.verify(&both), Ok(()));
    assert_refused(&sent.body("[]"), &both, "mismatch");
}

#[test]
fn tokens_passwords_and_jwts_are_compared_whole() {
    let pagarme = verifier("pagarme", &["user:pass"]);
    let basic = |text: &str| Sent::new("{}").header("Authorization", text);
    assert_eq!(basic("basic dXNlcjpwYXNz").verify(&pagarme), Ok(()));
    assert_refused(&basic("Basic dXNlcjpwYXN6"), &pagarme, "mismatch");
    assert_refused(&basic("Bearer dXNlcjpwYXNz"), &pagarme, "malformed");

    let telegram = verifier("telegram", &["token"]);
    for wrong in ["", "toke", "token1", "Token"] {
        let sent = Sent::new("{}").header("X-Telegram-Bot-Api-Secret-Token", wrong);
        assert!(sent.verify(&telegram).is_err(), "{wrong}");
    }

    let evolution = verifier("evolution", &["jwt-key"]);
    let jwt = |alg: &str, claims: &str| {
        let head = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"{alg}","typ":"JWT"}}"#));
        let signed = format!("{head}.{}", URL_SAFE_NO_PAD.encode(claims));
        let signature = URL_SAFE_NO_PAD.encode(sender::hmac_sha256(b"jwt-key", signed.as_bytes()));
        Sent::new("{}").header("Authorization", &format!("Bearer {signed}.{signature}"))
    };
    let now_s = SIGNED_AT_MS / 1000;
    assert_eq!(jwt("HS256", &format!(r#"{{"exp":{now_s}}}"#)).verify(&evolution), Ok(()));
    assert_eq!(jwt("HS256", &format!(r#"{{"exp":{}}}"#, now_s - 1700)).verify(&evolution), Ok(()));
    assert_refused(&jwt("HS256", &format!(r#"{{"exp":{}}}"#, now_s - 1801)), &evolution, "too_old");
    assert_refused(&jwt("none", &format!(r#"{{"exp":{now_s}}}"#)), &evolution, "mismatch");
    assert_refused(&jwt("HS256", "{}"), &evolution, "mismatch");
}

#[test]
fn public_keys_verify_and_never_sign() {
    let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    let pair = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap();
    let raw = pair.public_key().as_ref();
    let signature = sender::base64(pair.sign(b"id.1786363200.{}").as_ref());
    let sent = Sent::new("{}")
        .header("webhook-id", "id")
        .header("webhook-timestamp", "1786363200")
        .header("webhook-signature", &format!("v1,AAAA v1a,{signature}"));
    let spki = [&hex::decode("302a300506032b6570032100").unwrap(), raw].concat();
    let pem = format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", sender::base64(&spki));
    for key in [format!("whpk_{}", sender::base64(raw)), pem] {
        let verifier = with_public_key("standard-webhooks", &key);
        assert_eq!(sent.verify(&verifier), Ok(()));
        assert_eq!(verifier.can_sign(&sent.delivery()), Resign::Impossible);
        assert_eq!(verifier.sign(&sent.delivery(), b"[]"), Err(CannotSign::Asymmetric));
        assert_refused(&sent.clone().body("[]"), &verifier, "mismatch");
    }
}

#[test]
fn one_match_is_enough_where_a_secret_and_a_private_key_sign_side_by_side() {
    // With a secret and a public key, a wrong `v1` before or behind a true `v1a` got 401: the first way decided alone.
    let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    let pair = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap();
    let key = format!("whpk_{}", sender::base64(pair.public_key().as_ref()));
    let both = signature("standard-webhooks").unwrap().prepare(&[b"whsec_aGk="], Some(&key)).unwrap();
    let v1 = format!("v1,{}", sender::base64(&sender::hmac_sha256(b"hi", b"id.1786363200.{}")));
    let v1a = format!("v1a,{}", sender::base64(pair.sign(b"id.1786363200.{}").as_ref()));
    let (bad, bad_a) = ("v1,AAAA", "v1a,AAAA");
    let sent = |listed: &[&str]| {
        Sent::new("{}")
            .header("webhook-id", "id")
            .header("webhook-timestamp", "1786363200")
            .header("webhook-signature", &listed.join(" "))
    };
    for listed in [[&*v1, &v1a], [bad, &v1a], [&*v1a, bad], [&*v1, bad_a], [bad_a, &*v1]] {
        assert_eq!(sent(&listed).verify(&both), Ok(()), "{listed:?}");
    }
    for listed in [[bad, bad_a], [bad_a, bad], ["v2,AAAA", bad]] {
        assert_refused(&sent(&listed), &both, "mismatch");
    }
    assert_refused(&sent(&[bad, &v1a]).body("[]"), &both, "mismatch");
    let old = sent(&[bad, &v1a]);
    let late = both.verify(&old.delivery(), SIGNED_AT_MS + 301_000).unwrap_err();
    assert_eq!(late.label(), "too_old");
    // The app takes what the secret signs only where that was right as it came.
    assert_eq!(both.can_sign(&sent(&[&v1, bad_a]).delivery()), Resign::WithSecret);
    assert_eq!(both.can_sign(&old.delivery()), Resign::Impossible);
    assert_eq!(both.sign(&old.delivery(), b"[]"), Err(CannotSign::Asymmetric));
}

#[test]
fn a_certificate_file_may_hold_the_old_and_the_new_one() {
    let (sns, paypal) = (certificate("sns"), certificate("paypal"));
    let notification = sns_notification("2026-08-10T11:59:58.000Z");
    assert_eq!(notification.verify(&with_public_key("aws-sns", &sns)), Ok(()));
    let both = with_public_key("aws-sns", &format!("old\n{paypal}\nnew\n{sns}"));
    assert_eq!(notification.verify(&both), Ok(()));
    assert_refused(&notification, &with_public_key("aws-sns", &paypal), "mismatch");
    let bits_1024 = "-----BEGIN PUBLIC KEY-----\n\
        MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQDOUiJ1uAsFdnXwlVB0I/A71gIJ\n\
        W8XhEAaKlhLSB4SxtR9wFDc6ruhuWXqiGXv6tlpjq/0pJ4WRTIhOckwNaAMBSzdB\n\
        HkK6ahG5EvZIm17ethEUx8ey0FWzWcF4CEhwzm82vrSiPZBIuCq2Lh3TJiXmEOhZ\n\
        ZTXn6fWkT5tbuCB7jwIDAQAB\n-----END PUBLIC KEY-----\n";
    let broken = sns.replace("MII", "MIJ");
    let ed25519 = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAzTDwDsB/H7pvd0cyfcaDj3nMz6zFiK4PqRf9+3JfDrw=\n\
        -----END PUBLIC KEY-----\n";
    let one_good = format!("{sns}{broken}");
    for text in ["", "sns", bits_1024, &broken, ed25519, &one_good, "-----BEGIN CERTIFICATE-----"] {
        let error = signature("aws-sns").unwrap().check_public_key(text).expect_err(text);
        assert!(error.to_string().starts_with("the public key should be PEM text"), "{text}: {error}");
    }
    assert!(signature("discord").unwrap().check_public_key(ed25519).is_ok());
    assert!(signature("discord").unwrap().check_public_key(&sns).is_err());
}

fn sns_notification(timestamp: &str) -> Sent {
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/sns-notification.body");
    let body = std::fs::read_to_string(fixtures).unwrap();
    Sent::new(body.replace("2026-08-10T11:59:58.000Z", timestamp))
}

#[test]
fn sns_signs_fields_by_name_and_the_version_says_how() {
    let verifier = with_public_key("aws-sns", &certificate("sns"));
    let sent = sns_notification("2026-08-10T11:59:58.000Z");
    let with = |from: &str, to: &str| {
        let body = String::from_utf8(sent.body.clone()).unwrap();
        assert!(body.contains(from), "{from}");
        Sent::new(body.replace(from, to))
    };
    // What isn't signed may differ, and the order of fields and white space too.
    assert_eq!(with("Action=Unsubscribe", "Action=X").verify(&verifier), Ok(()));
    assert_eq!(with("{\n  \"Type\"", "{\"Type\"").verify(&verifier), Ok(()));
    let changed = [
        ("\"Subject\": \"Pedido\"", "\"Subject\": \"Pedidos\""),
        ("  \"Subject\": \"Pedido\",\n", ""),
        ("pedido\\\":1", "pedido\\\":2"),
        ("000000000001\",", "000000000002\","),
        ("58.000Z", "59.000Z"),
        ("-10T11", "-09T13"),
        ("\"Notification\"", "\"SubscriptionConfirmation\""),
        ("\"Message\"", "\"Token\": \"t\",\n\"Message\""),
        ("\"SignatureVersion\": \"2\"", "\"SignatureVersion\": \"1\""),
    ];
    for (from, to) in changed {
        assert_refused(&with(from, to), &verifier, "mismatch");
    }
    assert_refused(&with("\"SignatureVersion\": \"2\"", "\"SignatureVersion\": \"3\""), &verifier, "missing");
    assert_refused(&with("\"Message\":", "\"Massage\":"), &verifier, "missing");
    assert_refused(&with("58.000Z", "58Z+00:00"), &verifier, "malformed");
    // A replay of what is no longer remembered.
    let a_day_later = verifier.verify(&sent.delivery(), SIGNED_AT_MS + 86_400_000).unwrap_err();
    assert_eq!(a_day_later.label(), "too_old");
    // Raw delivery carries no signature.
    assert_refused(&Sent::new("{\"pedido\":1}"), &verifier, "missing");
}

#[test]
fn paypal_signs_ids_time_and_a_checksum_of_the_body() {
    let fixture = Fixture::named("paypal-capture-completed");
    let sent = Sent { headers: fixture.headers, ..Sent::new(fixture.body) };
    let verifier = |id: Option<&str>| with_public_key("paypal", &certificate("paypal")).for_webhook(id);
    let ours = verifier(Some("WH-FIXTURE-ENDPOINT"));
    assert_eq!(sent.verify(&ours), Ok(()));
    assert_eq!(ours.can_sign(&sent.delivery()), Resign::Impossible);
    assert_refused(&sent, &verifier(Some("WH-FIXTURE-OTHER")), "mismatch");
    assert_refused(&sent, &verifier(None), "missing");
    assert_refused(&sent.clone().body("{}"), &ours, "mismatch");
    for name in ["paypal-transmission-id", "paypal-transmission-time"] {
        assert_refused(&sent.clone().without(name).header(name, "other"), &ours, "mismatch");
        assert_refused(&sent.clone().without(name), &ours, "missing");
    }
    let unknown = sent.without("paypal-auth-algo").header("paypal-auth-algo", "SHA1withRSA");
    assert_refused(&unknown, &ours, "missing");
}

#[test]
fn twilio_shared_keys_sign_with_sha256_where_the_header_says_so() {
    let verifier = verifier("twilio", &["shared"]);
    let url = "https://h.example/in?x=1";
    let strong = sender::base64(&sender::hmac_sha256(b"shared", format!("{url}AbCd").as_bytes()));
    let weak = sender::base64(&sender::hmac_sha1(b"shared", format!("{url}AbCd").as_bytes()));
    let form = |signature: &str| {
        Sent::new("A=b&C=d")
            .url(url)
            .header("Content-Type", "application/x-www-form-urlencoded")
            .header("X-Twilio-Signature", signature)
    };
    const SETTINGS: &str = "X-Twilio-Webhooks-Signature-Settings";
    let named = |signature: &str, settings: &str| form(signature).header(SETTINGS, settings);
    assert_eq!(named(&strong, "key=webhooks_sharedkey_1,algorithm=HMAC_SHA256").verify(&verifier), Ok(()));
    assert_eq!(named(&strong, "algorithm=HMAC_SHA256, key=1").verify(&verifier), Ok(()));
    assert_eq!(named(&weak, "key=1,algorithm=HMAC_SHA1").verify(&verifier), Ok(()));
    assert_eq!(form(&weak).verify(&verifier), Ok(()));
    assert_refused(&form(&strong), &verifier, "mismatch");
    assert_refused(&named(&weak, "key=1,algorithm=HMAC_SHA256"), &verifier, "mismatch");
    assert_refused(&named(&strong, "key=1,algorithm=HMAC_SHA512"), &verifier, "mismatch");
    let twice = named(&strong, "algorithm=HMAC_SHA256").header(SETTINGS, "algorithm=HMAC_SHA1");
    assert_refused(&twice, &verifier, "repeated");

    let json = r#"{"MessageSid":"SM1"}"#;
    let url = format!("https://h.example/in?bodySHA256={}", hex::encode(sender::sha256(json.as_bytes())));
    let sent = Sent::new(json)
        .url(&url)
        .header("Content-Type", "application/json")
        .header(SETTINGS, "key=1,algorithm=HMAC_SHA256")
        .header("X-Twilio-Signature", &sender::base64(&sender::hmac_sha256(b"shared", url.as_bytes())));
    assert_eq!(sent.verify(&verifier), Ok(()));
    // The digest of the body as it came stands in the URL, so that a filtered one could not pass.
    assert_eq!(verifier.can_sign(&sent.delivery()), Resign::Impossible);
    assert_eq!(verifier.sign(&sent.delivery(), b"{}"), Err(CannotSign::DigestInTheUrl));
    assert_refused(&sent.body("{}"), &verifier, "mismatch");
}

#[test]
fn both_senders_named_anyhook_verify() {
    let verifier = verifier("anyhook", &["k"]);
    let value = format!("t=1786363200,v1={}", hex_of("k", "1786363200.{}"));
    for header in ["Anyhook-Signature", "X-AnyHook-Signature"] {
        let sent = Sent::new("{}").header(header, &value);
        assert_eq!(sent.verify(&verifier), Ok(()), "{header}");
        assert_refused(&sent.clone().body("[]"), &verifier, "mismatch");
        assert_eq!(sent.filtered(&verifier, b"[]").verify(&verifier), Ok(()), "{header}");
    }
}

#[test]
fn a_digit_cannot_move_between_stamp_and_body() {
    let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    let pair = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap();
    let verifier = with_public_key("discord", &hex::encode(pair.public_key().as_ref()));
    let signature = hex::encode(pair.sign(b"17863632001[]").as_ref());
    let sent = |stamp: &str, body: &str| {
        Sent::new(body).header("X-Signature-Ed25519", &signature).header("X-Signature-Timestamp", stamp)
    };
    assert_eq!(sent("1786363200", "1[]").verify(&verifier), Ok(()));
    assert_refused(&sent("17863632001", "[]"), &verifier, "malformed");
    assert_refused(&sent("178636320", "01[]"), &verifier, "malformed");
}

/// Headers of which it is known whether they are there.
type There = &'static [(&'static str, bool)];

/// A header that one of several ways of signing covers passed for signed, also in deliveries that another way proves.
#[test]
fn only_headers_that_the_deciding_signature_covers_can_be_believed() {
    const STD: &str = "webhook-signature";
    let table: [(&str, &str, There, bool); 15] = [
        ("svix", "svix-id", &[], false),
        ("svix", "svix-id", &[("svix-signature", true)], true),
        ("svix", "svix-timestamp", &[("svix-signature", true)], true),
        ("svix", "svix-id", &[("svix-signature", false)], false),
        ("svix", "svix-id", &[(STD, false)], true),
        // Both are there: the first way decides.
        ("svix", "svix-id", &[("svix-signature", true), (STD, true)], true),
        ("svix", "Webhook-Id", &[(STD, true)], false),
        ("svix", "Webhook-Id", &[("svix-signature", false)], true),
        ("standard-webhooks", "webhook-id", &[(STD, true)], true),
        ("standard-webhooks", "svix-id", &[(STD, false)], true),
        ("slack", "X-Slack-Request-Timestamp", &[], true),
        ("mercadopago", "x-request-id", &[], true),
        ("github", "X-GitHub-Delivery", &[("X-Hub-Signature-256", true)], false),
        ("gitlab", "webhook-id", &[(STD, true)], false),
        ("shopify", "X-Shopify-Event-Id", &[], false),
    ];
    for (provider, header, there, expected) in table {
        let has =
            |name: &HeaderName| there.iter().find(|(known, _)| name == known).map(|(_, present)| *present);
        let signed = signature(provider).unwrap().signs_header(&header.parse().unwrap(), has);
        assert_eq!(signed, expected, "{provider} {header} {there:?}");
    }
}

#[test]
fn of_every_preset_it_is_known_what_of_its_key_the_signature_leaves_open() {
    let known: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("anyhook", &["x-anyhook-delivery", "x-anyhook-event-id"][..]),
        ("aws-sns", &["x-amz-sns-topic-arn", "x-amz-sns-message-id"]),
        ("bitbucket", &["x-hook-uuid", "x-request-uuid"]),
        ("github", &["x-github-hook-id", "x-github-delivery"]),
        ("gitlab", &["x-gitlab-instance", "idempotency-key"]),
        ("linear", &["linear-delivery"]),
        ("mailgun", &["$.event-data.id"]),
        (
            "mercadopago",
            &[
                "$.user_id",
                "$.application_id",
                "$.type",
                "$.id",
                "$.action",
                "$.status",
                "$.version",
                "$.data.id",
                "$.data.version",
            ],
        ),
        (
            "shopify",
            &[
                "x-shopify-shop-domain",
                "x-shopify-topic",
                "x-shopify-event-id",
                "shopify-shop-domain",
                "shopify-topic",
                "shopify-webhook-id",
                "shopify-event-id",
                "shopify-action",
                "shopify-resource-id",
                "shopify-handle",
            ],
        ),
        ("twilio", &["i-twilio-idempotency-token"]),
        (
            "woocommerce",
            &["x-wc-webhook-source", "x-wc-webhook-id", "x-wc-webhook-delivery-id", "x-wc-webhook-topic"],
        ),
    ]);
    let mut wrong = Vec::new();
    for name in Provider::names() {
        let provider = Provider::shipped(name).unwrap();
        if provider.signature.is_none() {
            continue;
        }
        let headers = provider.unsigned_key_headers().into_iter().map(|name| name.to_string());
        let open: Vec<String> = headers.chain(provider.unsigned_key_parts()).collect();
        if open != known.get(name).copied().unwrap_or_default() {
            wrong.push(format!("{name}: {open:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn secrets_that_do_not_fit_are_named_when_configured() {
    let says = |provider: &str, secret: &str| {
        signature(provider).unwrap().check_secret(secret.as_bytes()).expect_err(provider).to_string()
    };
    assert_eq!(says("svix", "whsec_%"), "the secret should be base64 text");
    assert_eq!(says("adyen", "xyz"), "the secret should be hex digits");
    assert_eq!(says("stripe", ""), "the secret is empty");
    assert_eq!(says("pagarme", "user"), "the secret should be written user:password");
    assert_eq!(
        says("discord", "secret"),
        "the provider's signature has no use for a secret; it needs a public_key"
    );
    let discord = signature("discord").unwrap();
    assert_eq!(
        discord.prepare(&[], Some("00")).unwrap_err().to_string(),
        "the public key should be an Ed25519 key of 32 bytes, in hex or PEM"
    );
    assert_eq!(
        discord.prepare(&[], None).unwrap_err().to_string(),
        "the provider's signature needs a public_key"
    );
}

#[test]
fn a_table_that_contradicts_itself_is_refused() {
    let table = [
        ("scheme = \"hmac-sha512\"\nheader = \"X\"", "unknown variant"),
        ("scheme = \"token\"\nheader = \"X\"\nheadr = \"Y\"", "unknown field"),
        ("scheme = \"token\"", "a signature stands in one of"),
        ("scheme = \"token\"\nheader = \"X\"\nquery = \"y\"", "a signature stands in one of"),
        ("scheme = \"token\"\nheader = \"X\"\nsigned = \"{body}\"", "`signed` has no use"),
        ("scheme = \"hmac-sha256\"\nheader = \"X\"\nsigned = \"{body}\"", "`format` is missing"),
        ("scheme = \"hmac-sha256\"\nheader = \"X\"\nformat = \"{hex}\"", "`signed` is missing"),
        (
            "scheme = \"hmac-sha256\"\nheader = \"X\"\nformat = \"{hex}\"\nsigned = \"{timestamp}\"",
            "give `timestamp`",
        ),
        (
            "scheme = \"hmac-sha256\"\nheader = \"X\"\nformat = \"{hex}\"\nsigned = \"{body}\"\n\
             timestamp = \"header:T\"\ntolerance = \"5m\"",
            "a {timestamp} that is signed",
        ),
    ];
    for (text, expected) in table {
        let error = toml::from_str::<umavez::providers::Signature>(text).expect_err(text).to_string();
        assert!(error.contains(expected), "{text}\n{error}");
    }
}
