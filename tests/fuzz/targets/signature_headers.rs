//! Hostile signature headers and bodies, for every provider with a signature: no panic; a delivery that verifies no
//! longer does with another body that the signature covers; and what we sign verifies.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use umavez::providers::{Provider, Resign, Signature, Verifier};
use umavez_fuzz::{Input, providers};

/// The clock of the fixtures.
const NOW_MS: u64 = 1_786_363_200_000;

/// The secrets and public keys that the fixtures are signed with; each provider gets those that it can use.
const SECRETS: [&str; 8] = [
    "fixture-stripe-endpoint-secret",
    "fixture-meta-app-secret",
    "fixture-hotmart-hottok",
    "fixture-github-hook-secret",
    "fixture-slack-signing-secret",
    "fixture-mailgun-signing-key",
    "whsec_Zml4dHVyZS1zdGFuZGFyZC13ZWJob29rcy1rZXkh",
    "00112233445566778899AABBCCDDEEFF00112233445566778899AABBCCDDEEFF",
];
const PUBLIC_KEYS: [&str; 2] = [
    "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEz+ezAZvFYu85Z41uAgNb/EQiJ1LO4vEhgZSgEYCTTFsQ003siPjGjBCEYzHIkF53Clfnu39A/4TUmCrBZOLgKA==",
    "cd30f00ec07f1fba6f7747327dc6838f79cccfacc8588fa0ac917dfb725f0ebc",
];

fn verifier(provider: &Provider) -> Option<(Signature, Verifier)> {
    let signature = provider.signature.clone()?;
    let secrets: Vec<&[u8]> = SECRETS
        .iter()
        .map(|secret| secret.as_bytes())
        .filter(|secret| signature.check_secret(secret).is_ok())
        .collect();
    let public_key = PUBLIC_KEYS.into_iter().find(|key| signature.check_public_key(key).is_ok());
    let verifier = signature.prepare(&secrets, public_key).ok()?;
    Some((signature, verifier))
}

fuzz_target!(|bytes: &[u8]| {
    static VERIFIERS: OnceLock<Vec<(Signature, Verifier)>> = OnceLock::new();
    let verifiers =
        VERIFIERS.get_or_init(|| providers().iter().filter_map(|provider| verifier(provider)).collect());
    let input = Input::of(bytes);
    let mut other = input.body.to_vec();
    other.push(b' ');
    for (signature, verifier) in verifiers {
        let delivery = input.delivery(input.body);
        if let Err(bad) = verifier.verify(&delivery, NOW_MS) {
            assert!(!bad.label().is_empty() && !bad.to_string().is_empty());
            continue;
        }
        if verifier.can_sign(&delivery) != Resign::WithSecret {
            continue;
        }
        assert!(!signature.signs_body() || verifier.verify(&input.delivery(&other), NOW_MS).is_err());
        if let Ok(headers) = verifier.sign(&delivery, &other) {
            let signed = input.with(headers);
            assert_eq!(verifier.verify(&signed.delivery(&other), NOW_MS), Ok(()), "what we sign verifies");
        }
    }
});
