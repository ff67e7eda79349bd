//! What strangers may cost: bodies that never end, and bodies that unfold.

use std::io::Write;
use std::time::Duration;

use crate::support::{
    Connection, Delivery, Gateway, ORDERS, Upstream, eventually, hub_sha256, order, unix_seconds, within,
};

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

/// Begins a body of a MiB and a half and leaves it there.
async fn park(gateway: &Gateway) -> Connection {
    let mut line = gateway.connect().await;
    let head = "POST /hooks HTTP/1.1\r\nHost: a\r\nContent-Length: 1572864\r\n\r\n";
    line.write(head.as_bytes()).await.unwrap();
    // Refused, it is closed.
    line.write(&vec![b'x'; 1 << 20]).await.ok();
    line
}

#[tokio::test]
async fn bodies_that_never_end_take_a_bounded_room_and_leave_it_to_those_that_do() {
    // Nothing bounded them in sum: twenty connections, or one with twenty streams, took hundreds of MiB.
    let upstream = Upstream::answering(200, "done").await;
    let gateway = Gateway::in_front_of(&upstream)
        .route(&format!("{ORDERS}body_limit = \"2MiB\"\n"))
        .table("[limits]\nbuffered_bytes_max = \"6MiB\"\nbody_timeout = \"1h\"")
        .start()
        .await;
    let mut parked = Vec::new();
    for _ in 0..8 {
        parked.push(park(&gateway).await);
    }
    // Four of a MiB have room, as a quarter of it is for short ones.
    let busy = [("route", "orders"), ("answer", "busy")];
    eventually("refusals", async || {
        let metrics = gateway.metrics().await;
        assert!(metrics.value("umavez_buffered_bytes", &[]) <= 6.0 * 1_048_576.0);
        metrics.value("umavez_requests_total", &busy) >= 4.0
    })
    .await;
    assert_eq!(gateway.send(&order("short")).await.verdict(), "first", "a short one has room at once");
    // A long one has it as soon as those that don't get on have to give way.
    let pad = "x".repeat(1 << 20);
    let long = Delivery::json("/hooks", format!(r#"{{"id":"long","pad":"{pad}"}}"#));
    eventually("room for a long one", async || {
        let answer = gateway.send(&long).await;
        assert!(answer.status == 200 || answer.asks_for_a_retry(), "{}", answer.status);
        answer.status == 200
    })
    .await;
    assert_eq!(upstream.received(), 2);
    // Who gave way was told to come again; who did not still waits for the rest of its body.
    let mut refused = 0;
    for mut line in parked {
        let told = tokio::time::timeout(Duration::from_millis(200), line.answer("POST")).await;
        if let Ok(told) = told {
            let told = told.unwrap();
            assert!(told.asks_for_a_retry(), "{}", told.status);
            assert_eq!(told.verdict(), "refused");
            refused += 1;
        }
    }
    assert!(refused >= 4, "{refused}");
    within("the room to be free again", gateway.until_metric("umavez_buffered_bytes", &[], 0.0)).await;
}
