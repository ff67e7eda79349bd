//! The proxy's own parts on real sockets: what reaches the app, what comes back, and what is refused.

pub(crate) mod edges;
mod forward;
mod listener;
mod wire;

use wire::{App, Gateway, Wire, target};

#[tokio::test]
async fn only_end_to_end_headers_pass_in_either_direction() {
    let app = App::start(|_, mut wire| async move {
        let seen = wire.message().await.unwrap();
        let length = seen.head.len();
        wire.write(format!(
            "HTTP/1.1 200 OK\r\nconnection: X-Gone\r\nx-gone: 1\r\nkeep-alive: timeout=5\r\nproxy-authenticate: x\r\n\
             set-cookie: a=1\r\nset-cookie: b=2\r\ncontent-length: {length}\r\n\r\n{}",
            seen.head
        ))
        .await;
    })
    .await;
    let gateway = Gateway::passing(target(app.address));
    let answer = gateway
        .send(
            "POST /x HTTP/1.1\r\nHost: hooks.example\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\n\
             Keep-Alive: timeout=9\r\nTE: gzip\r\nProxy-Connection: x\r\nProxy-Authorization: Basic eDp5\r\n\
             X-Twice: 1\r\nX-End: keep\r\nX-Twice: 2\r\nX-Forwarded-For: 10.0.0.1\r\nX-Forwarded-Proto: https\r\n\
             Content-Length: 0\r\n\r\n",
        )
        .await;
    let seen = String::from_utf8(answer.body.clone()).unwrap();
    let mut names: Vec<&str> =
        seen.lines().skip(1).filter_map(|line| line.split_once(": ")).map(|pair| pair.0).collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "content-length",
            "host",
            "x-end",
            "x-forwarded-for",
            "x-forwarded-host",
            "x-forwarded-proto",
            "x-twice",
            "x-twice"
        ]
    );
    assert!(seen.contains("\r\nx-forwarded-for: 127.0.0.1\r\n"), "{seen}");
    assert!(seen.contains("\r\nx-forwarded-proto: http\r\n"), "{seen}");
    assert!(seen.find("x-twice: 1") < seen.find("x-twice: 2"));
    for gone in ["x-gone", "keep-alive", "proxy-authenticate", "connection"] {
        assert!(answer.all(gone).is_empty(), "{gone}");
    }
    assert_eq!(answer.all("set-cookie"), ["a=1", "b=2"]);
}

#[tokio::test]
async fn a_trusted_proxy_is_believed_and_added_to() {
    let app = App::echoing().await;
    let gateway = Gateway::behind_a_trusted_proxy(target(app.address));
    let answer = gateway
        .send("GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 10.0.0.1\r\nX-Forwarded-Proto: https\r\n\r\n")
        .await;
    let seen = String::from_utf8(answer.body).unwrap();
    assert!(seen.contains("x-forwarded-for: 10.0.0.1, 127.0.0.1\r\n"), "{seen}");
    assert!(seen.contains("x-forwarded-proto: https\r\n"), "{seen}");
}

#[tokio::test]
async fn path_query_and_values_keep_their_bytes() {
    let app = App::echoing().await;
    let gateway = Gateway::passing(target(app.address));
    for path in ["/h/a%2Fb/%252Fc//d/./e?x=%20+&y=%C3%A9&&z", "//", "/?", "/a/../b", "/x?a={b}|c"] {
        let mut bytes = format!("POST {path} HTTP/1.1\r\nhost: a\r\nx-note: ").into_bytes();
        bytes.extend(b"k\xe9\xff1\r\ncontent-length: 3\r\n\r\n\x00\xff\n");
        let answer = gateway.send(bytes).await;
        assert_eq!(answer.status(), 200, "{path}");
        let seen: String = answer.body.iter().map(|&byte| char::from(byte)).collect();
        assert!(seen.starts_with(&format!("POST {path} HTTP/1.1\r\n")), "{seen}");
        assert!(seen.contains("x-note: k\u{e9}\u{ff}1\r\n"), "{seen}");
        assert!(answer.body.ends_with(b"\r\n\r\n\x00\xff\n"));
    }
}

#[tokio::test]
async fn a_compressed_answer_stays_compressed_and_nothing_is_added() {
    let app = App::answering(
        b"HTTP/1.1 200 Fine\r\ncontent-encoding: gzip\r\ndate: then\r\ncontent-length: 3\r\n\r\n\x1f\x8b\x00",
    )
    .await;
    let gateway = Gateway::passing(target(app.address));
    let answer = gateway.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(
        answer.head,
        "HTTP/1.1 200 Fine\r\ncontent-encoding: gzip\r\ndate: then\r\ncontent-length: 3\r\n\r\n"
    );
    assert_eq!(answer.body, b"\x1f\x8b\x00");
}

#[tokio::test]
async fn answers_without_a_body_come_at_once_and_keep_their_length() {
    for (method, answer, length) in [
        ("POST", &b"HTTP/1.1 204 No Content\r\n\r\n"[..], &[][..]),
        ("GET", b"HTTP/1.1 304 Not Modified\r\ncontent-length: 1234\r\n\r\n", &["1234"]),
        ("HEAD", b"HTTP/1.1 200 OK\r\ncontent-length: 1234\r\n\r\n", &["1234"]),
        ("POST", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", &["0"]),
    ] {
        let app = App::answering(answer).await;
        let gateways =
            [Gateway::passing(target(app.address)), Gateway::collecting(target(app.address), 1000)];
        for gateway in gateways {
            let mut wire = Wire::connect(gateway.address).await;
            for _ in 0..2 {
                wire.write(format!("{method} / HTTP/1.1\r\nhost: a\r\n\r\n")).await;
                let head = wire.head().await.unwrap();
                let seen = wire::Message { head, body: Vec::new() };
                assert_eq!(seen.all("content-length"), length, "{}", seen.head);
                assert!(seen.all("transfer-encoding").is_empty());
            }
        }
    }
}

#[tokio::test]
async fn uploads_and_downloads_of_any_size_pass_both_ways() {
    let app = App::echoing().await;
    let gateway = Gateway::passing(target(app.address));
    let body: Vec<u8> = (0..12 << 20).map(|n: u32| n.to_le_bytes()[1]).collect();
    let mut bytes =
        format!("PUT /f HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
    bytes.extend(&body);
    assert!(gateway.send(bytes).await.body.ends_with(&body));

    let mut bytes = b"PUT /f HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for chunk in body.chunks(100_000) {
        bytes.extend(format!("{:x}\r\n", chunk.len()).as_bytes());
        bytes.extend(chunk);
        bytes.extend(b"\r\n");
    }
    bytes.extend(b"0\r\n\r\n");
    assert!(gateway.send(bytes).await.body.ends_with(&body));
}

#[tokio::test]
async fn a_streamed_answer_arrives_piece_by_piece() {
    let (go, wait) = tokio::sync::oneshot::channel();
    let wait = std::sync::Arc::new(tokio::sync::Mutex::new(Some(wait)));
    let app = App::start(move |_, mut wire| {
        let wait = std::sync::Arc::clone(&wait);
        async move {
            wire.message().await;
            wire.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nhel\r\n").await;
            wait.lock().await.take().unwrap().await.unwrap(); // goes on only when the first piece was seen
            wire.write("2\r\nlo\r\n0\r\n\r\n").await;
        }
    })
    .await;
    let gateway = Gateway::passing(target(app.address));
    let mut wire = Wire::connect(gateway.address).await;
    wire.write("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    wire.head().await.unwrap();
    assert_eq!(wire.exactly(8).await, b"3\r\nhel\r\n");
    go.send(()).unwrap();
    assert_eq!(wire.exactly(12).await, b"2\r\nlo\r\n0\r\n\r\n");
}

#[tokio::test]
async fn a_broken_download_is_not_a_complete_one() {
    let app = App::start(|_, mut wire| async move {
        wire.message().await;
        wire.write("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nhel\r\n").await;
    })
    .await;
    let gateway = Gateway::passing(target(app.address));
    let mut wire = Wire::connect(gateway.address).await;
    wire.write("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let all = wire.rest().await;
    assert!(!all.ends_with(b"0\r\n\r\n"), "{}", String::from_utf8_lossy(&all));
}

#[tokio::test]
async fn a_websocket_passes_both_ways_and_ends_when_the_gateway_stops() {
    let app = App::start(|_, mut wire| async move {
        let asked = wire.message().await.unwrap();
        assert_eq!((asked.all("connection"), asked.all("upgrade")), (vec!["upgrade"], vec!["websocket"]));
        assert_eq!(asked.all("sec-websocket-key"), ["abc"]);
        wire.write("HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\nhi")
            .await;
        let said = wire.exactly(4).await;
        wire.write(said).await;
        wire.rest().await;
    })
    .await;
    let gateway = Gateway::passing(target(app.address));
    let mut wire = Wire::connect(gateway.address).await;
    wire.write(
        "GET /ws HTTP/1.1\r\nhost: a\r\nconnection: keep-alive, Upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-key: abc\r\n\r\n",
    )
    .await;
    let head = wire.head().await.unwrap();
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert!(head.contains("upgrade: websocket\r\n"), "{head}");
    assert_eq!(wire.exactly(2).await, b"hi");
    wire.write("ping").await;
    assert_eq!(wire.exactly(4).await, b"ping");
    gateway.shutdown.cancel();
    assert!(wire.ended().await);
    gateway.drained().await;
}

#[tokio::test]
async fn an_app_that_cannot_be_reached_is_a_bad_gateway() {
    let mut nowhere = target("127.0.0.1:1".parse().unwrap());
    nowhere.authority = "no-such-name.invalid".parse().unwrap();
    let gateway = Gateway::passing(nowhere);
    let answer = gateway.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!((answer.status(), answer.body.as_slice()), (502, &b"the app cannot be reached\n"[..]));
}

#[tokio::test]
async fn a_body_in_chunks_reaches_the_app_whatever_the_method() {
    // Of a GET, a search with its query in the body, the chunks were dropped without a word.
    let app = App::start(|_, mut wire| async move {
        while let Some(seen) = wire.message().await {
            let body = String::from_utf8(seen.body).unwrap();
            wire.write(format!("HTTP/1.1 200 OK\r\nx-seen: {body}\r\ncontent-length: 0\r\n\r\n")).await;
        }
    })
    .await;
    let gateway = Gateway::passing(target(app.address));
    for method in ["GET", "HEAD", "OPTIONS", "DELETE", "POST"] {
        let head = format!("{method} /search HTTP/1.1\r\nhost: a\r\n");
        let chunked = format!("{head}transfer-encoding: chunked\r\n\r\n3\r\n{{a}}\r\n0\r\n\r\n");
        assert_eq!(gateway.send(chunked).await.all("x-seen"), ["{a}"], "{method}");
        let counted = format!("{head}content-length: 3\r\n\r\n{{b}}");
        assert_eq!(gateway.send(counted).await.all("x-seen"), ["{b}"], "{method}");
        assert_eq!(gateway.send(format!("{head}\r\n")).await.all("x-seen"), [""], "{method}");
    }
}

#[tokio::test]
async fn what_is_safe_to_repeat_survives_an_app_that_closes_kept_connections() {
    // An app that closed a kept connection at the moment a GET came cost the sender a 502.
    let app = App::start(|_, mut wire| async move {
        wire.message().await;
        wire.write("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
        wire.head().await; // reads the next request, and closes without a word
    })
    .await;
    let gateway = Gateway::passing(target(app.address));
    let ask = async |method: &str, body: &str| {
        let length = body.len();
        let bytes = format!("{method} / HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n{body}");
        gateway.send(bytes).await.status()
    };
    for method in ["GET", "HEAD", "OPTIONS"] {
        assert_eq!((ask("POST", "x").await, ask(method, "").await), (200, 200), "{method}");
        // The connection that the second try went out on is kept now, and ends with the next request.
        assert_eq!(ask("POST", "x").await, 502);
    }
    let connections = app.connections();
    assert_eq!((ask("POST", "x").await, ask("GET", "x").await), (200, 502), "a body is gone");
    assert_eq!(app.connections(), connections + 1);
}
