//! Bodies over HTTP/2 whose sender leaves them before their end: never taken for the whole, in either direction.

use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use crate::support::{
    Delivery, Flags, Gateway, Kind, ORDERS, Script, Scripted, Sender, Upstream, block, frame, order, within,
};

const NO_ERROR: [u8; 4] = [0; 4];
const CANCEL: [u8; 4] = [0, 0, 0, 8];
/// GOAWAY with NO_ERROR: no stream of the peer was processed.
const NOTHING_DONE: [u8; 8] = [0; 8];

const BODY: &[u8] = br#"{"id":"order-1","amount":1000,"items":["a","b"]}"#;

fn data(stream: u32, bytes: &[u8]) -> Vec<u8> {
    frame(Kind::Data, Flags::None, stream, bytes)
}

fn last_data(stream: u32, bytes: &[u8]) -> Vec<u8> {
    frame(Kind::Data, Flags::End, stream, bytes)
}

fn reset(stream: u32, code: [u8; 4]) -> Vec<u8> {
    frame(Kind::Reset, Flags::None, stream, &code)
}

fn head(stream: u32, flags: Flags, headers: &[(&str, &str)]) -> Vec<u8> {
    frame(Kind::Headers, flags, stream, &block(headers))
}

#[tokio::test]
async fn a_request_that_is_left_off_with_no_error_is_not_an_event() {
    // Reset with NO_ERROR after 20 bytes, it was taken for whole, forwarded and done; the event itself was then swallowed
    // as its copy.
    let upstream = Upstream::answering(200, "done").await;
    let route = "[[route]]\nname = \"h\"\npath = \"/h\"\nkey = [\"header:X-Id\"]\n";
    let gateway = Gateway::in_front_of(&upstream).route(route).start().await;
    let length = BODY.len().to_string();
    let mut refused = 0.0;
    for (number, (code, declared)) in
        [(NO_ERROR, false), (NO_ERROR, true), (CANCEL, false), (CANCEL, true)].into_iter().enumerate()
    {
        let id = format!("cut-{number}");
        let mut headers = vec![("x-id", id.as_str())];
        if declared {
            headers.push(("content-length", &length));
        }
        for together in [true, false] {
            let mut sender = Sender::to(gateway.address()).await;
            sender.post(1, "/h", &headers).await;
            let mut rest = data(1, &BODY[..20]);
            if !together {
                sender.write(&rest).await;
                rest.clear();
            }
            rest.extend(reset(1, code));
            sender.write(&rest).await;
            refused += 1.0;
            gateway
                .until_metric("umavez_requests_total", &[("route", "h"), ("answer", "refused")], refused)
                .await;
            assert_eq!(upstream.received(), number, "{id}: a part of it reached the app");
        }
        let whole = gateway.send(&Delivery::new("POST", "/h").header("X-Id", &id).body(BODY)).await;
        assert_eq!((whole.status, whole.verdict().as_str()), (200, "first"), "{id}");
        assert_eq!(upstream.last().body, BODY);
    }
    // What came whole stays an event, also where its stream is reset at once, and where it has trailers.
    let endings = [
        [last_data(1, BODY), reset(1, NO_ERROR)].concat(),
        [data(1, BODY), head(1, Flags::EndHeadersAndStream, &[("x-sum", "1")])].concat(),
        [data(1, BODY), last_data(1, b"")].concat(),
    ];
    for (number, ending) in endings.iter().enumerate() {
        let id = format!("whole-{number}");
        let mut sender = Sender::to(gateway.address()).await;
        sender.post(1, "/h", &[("x-id", &id)]).await;
        sender.write(ending).await;
        upstream.until_received(5 + number).await;
        assert_eq!(upstream.last().header("x-id"), Some(id));
        assert_eq!(upstream.last().body, BODY);
    }
}

#[tokio::test]
async fn an_upload_that_is_left_off_with_no_error_does_not_end_for_the_app() {
    // Passed through in chunks, what had come of it was ended with the last chunk: the app took it for the whole.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let gateway = Gateway::in_front_of_url(&url).start().await;
    for code in [NO_ERROR, CANCEL] {
        let mut sender = Sender::to(gateway.address()).await;
        sender.post(1, "/upload", &[]).await;
        sender.write(&data(1, b"half of")).await;
        let (mut app, _) = within("the upload", listener.accept()).await.unwrap();
        let mut seen = Vec::new();
        while !seen.ends_with(b"half of\r\n") {
            assert_ne!(within("a part", app.read_buf(&mut seen)).await.unwrap(), 0);
        }
        sender.write(&reset(1, code)).await;
        within("the end of the connection", app.read_to_end(&mut seen)).await.ok();
        let seen = String::from_utf8(seen).unwrap();
        assert!(seen.ends_with("half of\r\n"), "{seen}");
    }
}

/// Answers of an app that leaves off.
const LEFT_OFF: [(&str, Script); 6] = [
    ("a part, reset", |id| {
        [head(id, Flags::EndHeaders, &[(":status", "200")]), data(id, b"hel"), reset(id, NO_ERROR)].concat()
    }),
    ("a part of 50 bytes, reset", |id| {
        let declared = head(id, Flags::EndHeaders, &[(":status", "200"), ("content-length", "50")]);
        [declared, data(id, b"hel"), reset(id, NO_ERROR)].concat()
    }),
    ("a head, reset", |id| {
        [head(id, Flags::EndHeaders, &[(":status", "200")]), reset(id, NO_ERROR)].concat()
    }),
    ("a head with a length, reset", |id| {
        let declared = head(id, Flags::EndHeaders, &[(":status", "200"), ("content-length", "50")]);
        [declared, reset(id, NO_ERROR)].concat()
    }),
    ("a part, cancelled", |id| {
        [head(id, Flags::EndHeaders, &[(":status", "200")]), data(id, b"hel"), reset(id, CANCEL)].concat()
    }),
    ("a part of 50 bytes, the connection left", |id| {
        let declared = head(id, Flags::EndHeaders, &[(":status", "200"), ("content-length", "50")]);
        [declared, data(id, b"hel"), frame(Kind::GoAway, Flags::None, 0, &NOTHING_DONE)].concat()
    }),
];

/// Answers that are whole, with their status and body.
const WHOLE: [(&str, Script, u16, &str); 6] = [
    ("no body", |id| head(id, Flags::EndHeadersAndStream, &[(":status", "201")]), 201, ""),
    (
        "204",
        |id| head(id, Flags::EndHeadersAndStream, &[(":status", "204"), ("content-length", "0")]),
        204,
        "",
    ),
    (
        "an empty last piece",
        |id| [head(id, Flags::EndHeaders, &[(":status", "200")]), last_data(id, b"")].concat(),
        200,
        "",
    ),
    (
        "reset when it is whole",
        |id| {
            let declared = head(id, Flags::EndHeaders, &[(":status", "200"), ("content-length", "5")]);
            [declared, data(id, b"hel"), last_data(id, b"lo"), reset(id, NO_ERROR)].concat()
        },
        200,
        "hello",
    ),
    (
        "trailers, reset when it is whole",
        |id| {
            let trailers = head(id, Flags::EndHeadersAndStream, &[("x-sum", "1")]);
            [
                head(id, Flags::EndHeaders, &[(":status", "200")]),
                data(id, b"hello"),
                trailers,
                reset(id, NO_ERROR),
            ]
            .concat()
        },
        200,
        "hello",
    ),
    (
        "the connection left when it is whole",
        |id| {
            let goodbye = frame(Kind::GoAway, Flags::None, 0, &[&id.to_be_bytes()[..], &NO_ERROR].concat());
            [head(id, Flags::EndHeaders, &[(":status", "200")]), last_data(id, b"hello"), goodbye].concat()
        },
        200,
        "hello",
    ),
];

#[tokio::test]
async fn an_answer_that_is_left_off_with_no_error_is_no_answer() {
    // The event was done with half a receipt, also where the route holds what nobody knows.
    let app = Scripted::start().await;
    let held = "[[route]]\nname = \"pay\"\npath = \"/pay\"\nkey = [\"$.id\"]\non_unknown = \"hold\"\n";
    let gateway = Gateway::in_front_of_url(&app.url()).route(ORDERS).route(held).start().await;
    let pay = |id: &str| Delivery::json("/pay", format!(r#"{{"id":"{id}"}}"#));
    for (name, script) in LEFT_OFF {
        app.next(script);
        let broken = gateway.send(&order(name)).await;
        assert_eq!((broken.status, broken.complete), (502, true), "{name}");
        let retry = gateway.send(&order(name)).await;
        assert_eq!((retry.status, retry.verdict().as_str()), (200, "first"), "{name}");
        app.next(script);
        for copy in 0..2 {
            let answer = gateway.send(&pay(name)).await;
            assert_eq!((answer.status, answer.verdict().as_str()), (200, "held"), "{name}, copy {copy}");
        }
    }
    for (name, script, status, body) in WHOLE {
        app.next(script);
        for verdict in ["first", "duplicate"] {
            let answer = gateway.send(&pay(name)).await;
            assert_eq!((answer.status, answer.verdict().as_str()), (status, verdict), "{name}");
            assert_eq!((answer.text().as_str(), answer.complete), (body, true), "{name}");
        }
    }
}

#[tokio::test]
async fn an_answer_that_is_left_off_with_no_error_breaks_off_for_the_sender_too() {
    // It passed as a whole one; where its length was declared, the next answer on the connection stood in its body.
    let app = Scripted::start().await;
    let gateway = Gateway::in_front_of_url(&app.url()).start().await;
    let page = Delivery::new("GET", "/page");
    for (name, script) in LEFT_OFF {
        app.next(script);
        let mut line = gateway.connect().await;
        line.write(&[page.to_bytes("a"), page.to_bytes("a")].concat()).await.unwrap();
        // Where nothing has been passed on yet, the sender may be told as well.
        match within("an end", line.answer("GET")).await {
            Ok(answer) => {
                assert!(!answer.complete || answer.status == 502, "{name}: {answer:?}");
                let next = within("the end of the connection", line.answer("GET")).await;
                assert!(answer.status == 502 || next.is_err(), "{name}: {next:?}");
            }
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof, "{name}"),
        }
    }
    for (name, script, status, body) in WHOLE {
        app.next(script);
        let answer = gateway.send(&page).await;
        assert_eq!((answer.status, answer.complete, answer.text().as_str()), (status, true, body), "{name}");
    }
    app.next(|id| head(id, Flags::EndHeadersAndStream, &[(":status", "200"), ("content-length", "50")]));
    let mut line = gateway.connect().await;
    let told = line.send(&Delivery::new("HEAD", "/page")).await;
    assert_eq!((told.status, told.header("content-length").as_deref()), (200, Some("50")));
    app.next(|id| head(id, Flags::EndHeadersAndStream, &[(":status", "304"), ("content-length", "50")]));
    assert_eq!(line.send(&page).await.status, 304);
    assert_eq!(line.send(&page).await.status, 200);
}
