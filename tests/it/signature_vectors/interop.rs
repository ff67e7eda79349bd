//! Deliveries that the providers' own libraries signed and judged: `tests/interop` makes them, and holds the libraries
//! to them again.

use serde::Deserialize;
use umavez::providers::Verifier;

use super::{Sent, signature};

#[derive(Deserialize)]
struct Vector {
    name: String,
    provider: String,
    library: String,
    /// What the library says of it.
    good: bool,
    now_ms: u64,
    secret: Option<String>,
    public_key: Option<String>,
    webhook_id: Option<String>,
    url: String,
    headers: Vec<(String, String)>,
    body: String,
    resigned: Option<Resigned>,
}

/// What the gateway made of a batch, and the library took.
#[derive(Deserialize)]
struct Resigned {
    body: String,
    headers: Vec<(String, String)>,
}

impl Vector {
    fn verifier(&self) -> Verifier {
        let secrets: Vec<&[u8]> = self.secret.iter().map(|secret| secret.as_bytes()).collect();
        let verifier = signature(&self.provider).unwrap().prepare(&secrets, self.public_key.as_deref());
        verifier.unwrap().for_webhook(self.webhook_id.as_deref())
    }

    fn sent(&self) -> Sent {
        let sent = Sent::new(self.body.clone()).url(&self.url);
        self.headers.iter().fold(sent, |sent, (name, value)| sent.header(name, value))
    }
}

fn vectors() -> Vec<Vector> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interop/vectors.json");
    let vectors: Vec<Vector> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert!(vectors.len() > 70, "only {} vectors", vectors.len());
    vectors
}

#[test]
fn we_say_what_the_providers_libraries_say() {
    for vector in vectors() {
        let verdict = vector.verifier().verify(&vector.sent().delivery(), vector.now_ms);
        let (name, library) = (&vector.name, &vector.library);
        assert_eq!(verdict.is_ok(), vector.good, "{name} ({library}): {verdict:?}");
    }
}

#[test]
fn what_the_providers_libraries_took_of_ours_is_what_we_sign() {
    let mut seen = 0;
    for vector in vectors() {
        let Some(resigned) = &vector.resigned else { continue };
        seen += 1;
        let mut expected = Sent::new("").url(&vector.url);
        for (name, value) in &resigned.headers {
            expected = expected.header(name, value);
        }
        let signed = vector.sent().filtered(&vector.verifier(), resigned.body.as_bytes());
        assert_eq!(signed.headers, expected.headers, "{}", vector.name);
    }
    assert!(seen > 12, "only {seen} were signed again");
}
