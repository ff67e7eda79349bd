//! Hostile provider files and keys: no panic; an error stands inside the file and says something; a file that is taken
//! reads deliveries without harm.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use umavez::providers::{ItemRules, Provider};
use umavez_fuzz::{Input, check_items};

/// One delivery of each kind of body.
const DELIVERIES: [&[u8]; 4] = [
    b"content-type: application/json\nx-id: 7\n\n{\"id\":\"e1\",\"n\":[{\"id\":1},{\"id\":2}],\"m\":{\"a\":[[1]]}}",
    b"content-type: application/x-www-form-urlencoded\n\nid=e1&payload=%7B%22id%22%3A1%7D&a=b&a=c",
    b"content-type: text/xml\n\n<a:e xmlns:a=\"u\"><a:n><a:id>1</a:id></a:n><a:n><a:id>2</a:id></a:n></a:e>",
    b"\n[{\"id\":1},{\"id\":null},{},7]",
];

fuzz_target!(|bytes: &[u8]| {
    static INPUTS: OnceLock<Vec<Input<'static>>> = OnceLock::new();
    let inputs = INPUTS.get_or_init(|| DELIVERIES.iter().map(|delivery| Input::of(delivery)).collect());
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let lines: Vec<String> = text.lines().take(16).map(str::to_owned).collect();
    if let Ok(rules) = ItemRules::from_key(&lines) {
        for input in inputs {
            check_items(&rules.items(&input.delivery(input.body)), input.body);
        }
    }
    let provider = match Provider::parse("fuzz.toml", text) {
        Ok(provider) => provider,
        Err(error) => {
            let lines = text.split('\n').count();
            assert!((1..=lines).contains(&error.line), "line {} of {lines}", error.line);
            assert!(error.column >= 1 && !error.why.is_empty() && !error.why.contains('\n'));
            return;
        }
    };
    let known = provider.rules.describe();
    assert!(!known.is_empty());
    let unsigned = provider.unsigned_key_headers();
    assert!(unsigned.iter().all(|name| provider.rules.key_headers().contains(name)));
    let secrets: [&[u8]; 2] = [b"c2VjcmV0LW9mLXRoZS10ZXN0cw==", b"00112233445566778899AABBCCDDEEFF"];
    let verifier = provider.signature.as_ref().and_then(|signature| {
        assert!(signature.describe().count() >= 1);
        signature.prepare(&secrets[..1], None).or_else(|_| signature.prepare(&secrets[1..], None)).ok()
    });
    for input in inputs {
        let delivery = input.delivery(input.body);
        check_items(&provider.items(&delivery), input.body);
        if let Some(verifier) = &verifier {
            drop(verifier.verify(&delivery, 1_786_363_200_000));
            drop(verifier.sign(&delivery, b"{}"));
        }
    }
});
