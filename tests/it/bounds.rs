//! What strangers may cost.

use std::io::Write;

use crate::support::{Delivery, Gateway, Upstream, hub_sha256, unix_seconds};

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test]
async fn what_nobody_signed_is_not_decoded() {
    // A body was decoded before its signature was looked at, which covers the bytes as they came: a few hundred of them,
    // signed by nobody, kept a serving thread busy for seconds.
    let upstream = Upstream::answering(200, "").await;
    let route = "[[route]]\nname = \"meta\"\npath = \"/meta\"\nprovider = \"meta\"\nsecret = \"a secret of the tests\"\n\
                 body_limit = \"64KiB\"\n";
    let gateway = Gateway::in_front_of(&upstream).route(route).start().await;
    let bomb = Delivery::json("/meta", gzip(&vec![b' '; 1 << 20])).header("Content-Encoding", "gzip");
    assert_eq!(gateway.send(&bomb).await.status, 401);
    // Signed, it is read.
    assert_eq!(gateway.send(&bomb.signed_by_meta("a secret of the tests")).await.status, 413);
    let text = r#"{"object":"whatsapp_business_account","entry":[{"id":"1","changes":[{"value":{"metadata":{"phone_number_id":"9"},"messages":[{"id":"wamid.1"}]},"field":"messages"}]}]}"#;
    let signed = Delivery::json("/meta", gzip(text.as_bytes()))
        .header("Content-Encoding", "gzip")
        .signed_by_meta("a secret of the tests");
    assert_eq!(gateway.send(&signed).await.verdict(), "first");
    assert_eq!(gateway.send(&signed).await.verdict(), "duplicate");
    assert_eq!(upstream.received(), 1);
}

#[tokio::test]
async fn a_signature_inside_an_encoded_body_is_found_there() {
    // Mailgun signs fields of the body, whatever they were encoded with: there it is decoded first.
    let upstream = Upstream::answering(200, "").await;
    let route = "[[route]]\nname = \"mail\"\npath = \"/mail\"\nprovider = \"mailgun\"\nsecret = \"k\"\n";
    let gateway = Gateway::in_front_of(&upstream).route(route).start().await;
    let event = |secret: &str| {
        let (at, token) = (unix_seconds(), "a".repeat(50));
        let signature = hub_sha256(secret, format!("{at}{token}").as_bytes()).replace("sha256=", "");
        let signed = format!(r#"{{"timestamp":"{at}","token":"{token}","signature":"{signature}"}}"#);
        let data = r#"{"event":"delivered","id":"m1","timestamp":1529006854.329574}"#;
        let text = format!(r#"{{"signature":{signed},"event-data":{data}}}"#);
        Delivery::json("/mail", gzip(text.as_bytes())).header("Content-Encoding", "gzip")
    };
    assert_eq!(gateway.send(&event("guessed")).await.status, 401);
    assert_eq!(gateway.send(&event("k")).await.verdict(), "first");
    assert_eq!(gateway.send(&event("k")).await.verdict(), "duplicate");
}
