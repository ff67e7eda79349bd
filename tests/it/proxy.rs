//! The duties of a reverse proxy: bytes, headers, framing, limits, and what matches no route.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{
    Connection, Delivery, Gateway, ORDERS, Reply, Upstream, nobody, order, send_h2, within,
};

fn sha256(bytes: &[u8]) -> String {
    hex::encode(ring::digest::digest(&ring::digest::SHA256, bytes))
}

#[tokio::test]
async fn hop_by_hop_headers_stay_on_their_hop() {
    // PRX-2: hop-by-hop fields and those named by Connection were passed on.
    let answer = "HTTP/1.1 200 OK\r\nConnection: keep-alive, X-Back\r\nX-Back: 1\r\nKeep-Alive: timeout=7\r\n\
        Proxy-Authenticate: Basic\r\nX-End: kept\r\nContent-Length: 0\r\n\r\n";
    let upstream = Upstream::scripted([Reply::raw(answer.as_bytes())]).await;
    let gateway = Gateway::in_front_of(&upstream).start().await;
    let hops = |delivery: Delivery| {
        delivery
            .header("Connection", "keep-alive, X-Hop")
            .header("X-Hop", "1")
            .header("Keep-Alive", "timeout=9")
            .header("TE", "gzip")
            .header("Proxy-Connection", "x")
            .header("Proxy-Authorization", "Basic eDp5")
            .header("X-End", "keep")
    };
    for delivery in [hops(order("hop")), hops(Delivery::json("/elsewhere", "{}"))] {
        let answer = gateway.send(&delivery).await;
        let received = upstream.last();
        for name in ["x-hop", "keep-alive", "te", "proxy-connection", "proxy-authorization"] {
            assert!(received.headers_named(name).is_empty(), "{name} reached {}", received.target);
        }
        assert!(!received.headers_named("connection").join(",").to_lowercase().contains("x-hop"));
        assert_eq!(received.headers_named("x-end"), ["keep"]);
        for name in ["x-back", "proxy-authenticate"] {
            assert!(answer.headers_named(name).is_empty(), "{name} came back");
        }
        assert!(!answer.headers_named("keep-alive").contains(&"timeout=7".to_owned()));
        assert_eq!(answer.headers_named("x-end"), ["kept"]);
    }
}

#[tokio::test]
async fn forwarded_headers_of_a_stranger_are_not_believed() {
    // PRX-3: a client's own X-Forwarded-For was sent as a separate first line.
    let upstream = Upstream::answering(200, "").await;
    let claimed = |delivery: Delivery| {
        delivery
            .header("X-Forwarded-For", "10.0.0.1")
            .header("X-Forwarded-Proto", "https")
            .header("X-Forwarded-Host", "shop.example")
            .header("Via", "1.0 p")
    };
    let strict = Gateway::in_front_of(&upstream).listen("trusted_proxies = []").start().await;
    for delivery in [claimed(order("a")), claimed(Delivery::json("/elsewhere", "{}"))] {
        strict.send(&delivery).await;
        let received = upstream.last();
        let lines = received.headers_named("x-forwarded-for");
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert_eq!(lines[0].split(',').next_back().unwrap().trim(), "127.0.0.1");
        assert_eq!(received.headers_named("x-forwarded-proto"), ["http"]);
        assert_ne!(received.headers_named("x-forwarded-host"), ["shop.example"]);
    }

    let trusting =
        Gateway::in_front_of(&upstream).listen("trusted_proxies = [\"127.0.0.0/8\"]").start().await;
    trusting.send(&claimed(order("b"))).await;
    let received = upstream.last();
    let lines = received.headers_named("x-forwarded-for");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(lines[0].replace(' ', ""), "10.0.0.1,127.0.0.1");
    assert_eq!(received.headers_named("x-forwarded-proto"), ["https"]);
}

#[tokio::test]
async fn the_app_can_rebuild_the_url_that_the_provider_signed() {
    // PRX-11: a signature over the public URL failed behind the gateway. TLS ends at a trusted proxy here.
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).listen("trusted_proxies = [\"127.0.0.0/8\"]").start().await;
    let delivery = Delivery::json("/hooks?a=1&b=%20", r#"{"id":"url"}"#)
        .header("Host", "hooks.example:8443")
        .header("X-Forwarded-Proto", "https");
    gateway.send(&delivery).await;
    let received = upstream.last();
    let proto = received.header("x-forwarded-proto").unwrap();
    let host = received.header("host").unwrap();
    assert_eq!(format!("{proto}://{host}{}", received.target), "https://hooks.example:8443/hooks?a=1&b=%20");
}

#[tokio::test]
async fn a_sender_that_expects_100_continue_gets_it_once() {
    // PRX-4: Expect: 100-continue hung, or gave two 100s and no final answer.
    let upstream = Upstream::answering(200, "got it").await;
    let gateway = Gateway::in_front_of(&upstream).start().await;
    for target in ["/hooks", "/elsewhere"] {
        let body = format!(r#"{{"id":"expect","pad":"{}"}}"#, "x".repeat(2048));
        let delivery = Delivery::json(target, body.as_str()).header("Expect", "100-continue");
        let bytes = delivery.to_bytes("hooks.example");
        let (head, rest) = bytes.split_at(bytes.len() - body.len());
        let mut connection = gateway.connect().await;
        connection.write(head).await.unwrap();
        let interim = within("100 Continue", connection.any_answer("POST")).await.unwrap();
        assert_eq!(interim.status, 100, "{target}");
        connection.write(rest).await.unwrap();
        let answer = within("the final answer", connection.any_answer("POST")).await.unwrap();
        assert_eq!((answer.status, answer.text().as_str()), (200, "got it"), "{target}");
        assert_eq!(upstream.last().text(), body);
    }
}

#[tokio::test]
async fn path_and_query_keep_their_bytes() {
    // PRX-5: the path was decoded or normalised on the way.
    let upstream = Upstream::answering(200, "").await;
    let route = "[[route]]\nname = \"h\"\npath = \"/h/{*rest}\"\nkey = [\"$.id\"]\n";
    let gateway = Gateway::in_front_of(&upstream).route(route).start().await;
    for target in
        ["/h/a%2Fb/%252Fc//d/./e?x=%20+&y=%C3%A9&&z", "/other/a%2Fb//d/../e?x=%20+&&z", "/h/x?", "/?q=/h"]
    {
        gateway.send(&Delivery::json(target, format!(r#"{{"id":"{}"}}"#, target.len()))).await;
        assert_eq!(upstream.last().target, target);
    }
}

#[tokio::test]
async fn a_prefix_of_the_upstream_is_put_before_the_path() {
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of_url(&format!("{}/app", upstream.url())).start().await;
    gateway.send(&Delivery::json("/hooks?x=1", r#"{"id":"1"}"#)).await;
    assert_eq!(upstream.last().target, "/app/hooks?x=1");
}

#[tokio::test]
async fn smuggled_requests_never_reach_the_app() {
    // PRX-6: Content-Length and Transfer-Encoding together.
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).start().await;
    let smuggled = "0\r\n\r\nGET /admin HTTP/1.1\r\nHost: x\r\n\r\n";
    let heads = [
        "POST /hooks HTTP/1.1\r\nHost: x\r\nContent-Length: 15\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST /hooks HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 15\r\n\r\n",
        "POST /hooks HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 15\r\n\r\n",
        "POST /hooks HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, identity\r\n\r\n",
        "POST /elsewhere HTTP/1.1\r\nHost: x\r\nContent-Length: 15\r\nTransfer-Encoding: chunked\r\n\r\n",
    ];
    for head in heads {
        let mut connection = gateway.connect().await;
        connection.write(format!("{head}{smuggled}").as_bytes()).await.unwrap();
        let answer = within("an answer or a close", connection.answer("POST")).await;
        if let Ok(answer) = answer
            && answer.status != 400
        {
            // Allowed is also: the chunked framing counts, and the connection ends after it.
            assert!(connection.is_closed_within(Duration::from_secs(5)).await, "{head}: {}", answer.status);
        }
    }
    assert!(upstream.requests().iter().all(|request| request.target != "/admin"));
}

#[tokio::test]
async fn an_http2_request_has_one_host_upstream() {
    // PRX-8: HTTP/2 in, HTTP/1.1 out gave no Host, or two.
    let upstream = Upstream::answering(200, "ok").await;
    let gateway = Gateway::in_front_of(&upstream).start().await;
    for (n, host) in [None, Some("hooks.example")].into_iter().enumerate() {
        for path in ["/hooks", "/elsewhere?x=1"] {
            let mut request = http::Request::post(format!("http://hooks.example{path}"))
                .header("content-type", "application/json")
                .header("cookie", "a=1")
                .header("cookie", "b=2");
            if let Some(host) = host {
                request = request.header("host", host);
            }
            let body = if n == 0 { r#"{"id":"h2-alone"}"# } else { r#"{"id":"h2-both"}"# };
            let answer = send_h2(gateway.address(), request.body(body).unwrap()).await;
            assert_eq!((answer.status().as_u16(), answer.body().as_ref()), (200, b"ok".as_slice()));
            let received = upstream.last();
            assert_eq!(received.headers_named("host"), ["hooks.example"]);
            assert_eq!(received.target, path);
            assert_eq!(received.headers_named("cookie"), ["a=1; b=2"]);
            assert!(received.headers.iter().all(|(name, _)| !name.starts_with(':')));
            assert_eq!(received.text(), body);
        }
    }
}

#[tokio::test]
async fn slow_senders_of_headers_are_closed_while_others_are_served() {
    // PRX-9: a slow header sender held connections.
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).table("[limits]\nheader_timeout = \"2s\"").start().await;
    let mut slow = Vec::new();
    for _ in 0..200 {
        let mut connection = gateway.connect().await;
        connection.write(b"POST /hooks HTTP/1.1\r\nHo").await.unwrap();
        slow.push(connection);
    }
    assert_eq!(gateway.send(&order("served")).await.status, 200);
    let begun = Instant::now();
    for connection in &mut slow {
        connection.write(b"s").await.ok();
        // Closed, or answered 408 and closed.
        within("the end of a slow sender", connection.answer("POST")).await.ok();
        assert!(connection.is_closed_within(Duration::from_secs(20)).await);
    }
    assert!(begun.elapsed() < Duration::from_secs(25));
    assert_eq!(gateway.send(&order("still served")).await.status, 200);
}

#[tokio::test]
async fn a_body_over_the_limit_is_told_so() {
    // PRX-10: a framework's default body limit gave a reset without an answer, or 500.
    let upstream = Upstream::answering(200, "").await;
    let limited = "[[route]]\nname = \"small\"\npath = \"/small\"\nkey = [\"$.id\"]\nbody_limit = \"1MiB\"\n";
    let gateway = Gateway::in_front_of(&upstream).route(ORDERS).route(limited).start().await;
    let limit = 1 << 20;
    let sized = |target: &str, id: String, size: usize| {
        let start = format!(r#"{{"id":"{id}","pad":""#);
        let pad = "x".repeat(size - start.len() - 2);
        Delivery::json(target, format!("{start}{pad}\"}}"))
    };
    for size in [limit - 1, limit, limit + 1, 8 * limit] {
        for chunked in [false, true] {
            let mut delivery = sized("/small", format!("{size}-{chunked}"), size);
            if chunked {
                delivery = delivery.chunked();
            }
            let before = upstream.received();
            let answer = gateway.send(&delivery).await;
            let expected = if size > limit { (413, before) } else { (200, before + 1) };
            assert_eq!((answer.status, upstream.received()), expected, "{size} chunked {chunked}");
        }
    }
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.value("umavez_items_total", &[("route", "small")]), 4.0, "nothing claimed");
    assert_eq!(metrics.value("umavez_requests_total", &[("route", "small"), ("answer", "too_large")]), 4.0);
    assert_eq!(gateway.send(&sized("/hooks", "25MB".to_owned(), 25_000_000)).await.status, 200);
}

#[tokio::test]
async fn bodies_and_repeated_headers_arrive_as_they_were_sent() {
    // PRX-12: re-serialised bodies (key order, spaces, escapes, form bytes) fail an HMAC.
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).start().await;
    let random: Vec<u8> = (0..65_536).map(|_| rand::random()).collect();
    let bodies: [(&str, &[u8]); 5] = [
        ("application/json", b"{ \"b\":1.0,\"a\":\"\\u00e9\\/\",\"id\":\"p12\" }\r\n"),
        ("application/x-www-form-urlencoded", b"a=1&b=%20+&a=2"),
        ("application/octet-stream", &random),
        ("application/json; charset=utf-8", b"\xef\xbb\xbf{\"id\":\"bom\"}"),
        ("text/plain", b""),
    ];
    for target in ["/hooks", "/elsewhere"] {
        for (content_type, body) in bodies {
            let delivery = Delivery::new("POST", target)
                .header("Content-Type", content_type)
                .header("X-Many", "1")
                .header("x-other", "between")
                .header("X-Many", "2")
                .header("X-Many", "1")
                .body(body);
            assert_eq!(gateway.send(&delivery).await.status, 200);
            let received = upstream.last();
            assert_eq!(sha256(&received.body), sha256(body), "{target} {content_type}");
            assert_eq!(received.headers_named("content-type"), [content_type]);
            assert_eq!(received.headers_named("x-many"), ["1", "2", "1"]);
            assert!(received.headers_named("content-encoding").is_empty());
        }
    }
}

#[tokio::test]
async fn the_gateway_asks_for_no_encoding_and_undoes_none() {
    // PRX-13: the client library unzipped the app's answer and dropped or broke headers.
    let zipped: Vec<u8> = (0..57).collect();
    let headers = [("Content-Encoding", "gzip"), ("ETag", "\"1\"")];
    let upstream = Upstream::scripted([Reply::with_headers(200, &headers, &zipped)]).await;
    let gateway = Gateway::in_front_of(&upstream).start().await;
    for (id, accept) in [("zip", Some("gzip")), ("plain", None)] {
        for target in ["/hooks", "/elsewhere"] {
            let mut delivery = Delivery::json(target, format!(r#"{{"id":"{id}"}}"#));
            if let Some(accept) = accept {
                delivery = delivery.header("Accept-Encoding", accept);
            }
            let answer = gateway.send(&delivery).await;
            assert_eq!(answer.body, zipped);
            assert_eq!(answer.headers_named("content-encoding"), ["gzip"]);
            assert_eq!(answer.headers_named("content-length"), ["57"]);
            let received = upstream.last();
            assert_eq!(received.header("accept-encoding").as_deref(), accept);
            assert_eq!((received.header("user-agent"), received.header("accept")), (None, None));
        }
    }
}

#[tokio::test]
async fn an_app_that_is_not_up_yet_costs_no_event() {
    // PRX-14, as far as one machine's resolver allows: the name is resolved for each connection, the gateway
    // starts while nobody answers there, and what is refused meanwhile is released.
    let address = nobody();
    let gateway = Gateway::in_front_of_url(&format!("http://localhost:{}", address.port())).start().await;
    assert_eq!(gateway.send(&order("d1")).await.status, 502);
    let unknown = Gateway::in_front_of_url("http://no-such-name.invalid:80").start().await;
    assert_eq!(unknown.send(&order("d1")).await.status, 502);
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    let upstream = Upstream::on(listener, |_, _| Reply::new(200, "up"));
    assert_eq!(gateway.send(&order("d1")).await.text(), "up");
    // Recreated on the same name: old connections are gone, new ones are made.
    let address = upstream.stop().await;
    let mut told = Vec::new();
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    let again = Upstream::on(listener, |_, _| Reply::new(200, "up again"));
    while told.last() != Some(&"up again".to_owned()) {
        told.push(gateway.send(&order("d2")).await.text());
        assert!(told.len() < 10, "{told:?}");
    }
    assert_eq!(again.received(), 1);
}

#[tokio::test]
async fn what_matches_no_route_streams_both_ways_in_bounded_memory() {
    let total: usize = 64 << 20;
    let chunk = vec![b'd'; 1 << 20];
    let mut download = Reply::raw(format!("HTTP/1.1 200 OK\r\nContent-Length: {total}\r\n\r\n").as_bytes());
    for _ in 0..total / chunk.len() {
        download = download.then(Duration::ZERO, &chunk);
    }
    let upstream = Upstream::scripted([download, Reply::new(200, "stored")]).await;
    let gateway = Gateway::in_front_of(&upstream).start().await;
    let (_, before) = gateway.memory();
    let answer = gateway.send(&Delivery::new("GET", "/file")).await;
    assert_eq!((answer.body.len(), answer.complete), (total, true));
    let upload = Delivery::new("PUT", "/file").body(vec![b'u'; total]).chunked();
    assert_eq!(gateway.send(&upload).await.text(), "stored");
    assert_eq!(upstream.last().body.len(), total);
    let (_, peak) = gateway.memory();
    assert!(peak - before < 24 * 1024, "grew by {} KiB", peak - before);
    assert_eq!(answer.headers_named("umavez"), Vec::<String>::new(), "no dedup, no verdict");
}

#[tokio::test]
async fn an_upgrade_passes_and_then_bytes_flow_both_ways() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let app = listener.local_addr().unwrap();
    let echo = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(socket.read_u8().await.unwrap());
        }
        let switching =
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello";
        socket.write_all(switching).await.unwrap();
        let mut buffer = [0_u8; 64];
        loop {
            match socket.read(&mut buffer).await.unwrap() {
                0 => return String::from_utf8(head).unwrap(),
                n => socket.write_all(&buffer[..n]).await.unwrap(),
            }
        }
    });
    let gateway = Gateway::in_front_of_url(&format!("http://{app}")).start().await;
    let mut connection = gateway.connect().await;
    let ask = "GET /socket HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    connection.write(ask.as_bytes()).await.unwrap();
    let head = within("101", connection.answer("GET")).await.unwrap();
    assert_eq!((head.status, head.headers_named("upgrade")), (101, vec!["websocket".to_owned()]));
    let (mut socket, mut read) = connection.into_socket();
    socket.write_all(b" world").await.unwrap();
    let mut buffer = [0_u8; 64];
    while read.len() < 11 {
        let n = within("the echo", socket.read(&mut buffer)).await.unwrap();
        assert_ne!(n, 0, "closed after {read:?}");
        read.extend_from_slice(&buffer[..n]);
    }
    assert_eq!(read, b"hello world");
    drop(socket);
    let seen = within("the app's end", echo).await.unwrap().to_lowercase();
    assert!(seen.contains("upgrade: websocket"), "{seen}");
}

#[tokio::test]
async fn what_matches_no_route_and_has_no_upstream_is_not_found() {
    let upstream = Upstream::answering(200, "").await;
    let route = format!("{ORDERS}upstream = \"{}\"\nhost = \"hooks.example\"\n", upstream.url());
    let gateway = Gateway::without_upstream().route(&route).start().await;
    assert_eq!(gateway.send(&Delivery::json("/elsewhere", "{}")).await.status, 404);
    assert_eq!(gateway.send(&order("1")).await.status, 404, "another host");
    assert_eq!(gateway.send(&order("1").header("Host", "hooks.example")).await.verdict(), "first");
}

#[tokio::test]
async fn malformed_requests_are_answered_and_nothing_panics() {
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).start().await;
    let bad: [&[u8]; 6] = [
        b"nonsense\r\n\r\n",
        b"POST /hooks HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"POST /hooks HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n",
        b"POST /hooks HTTP/1.1\r\nHost: x\r\nBad Header: 1\r\nContent-Length: 0\r\n\r\n",
        b"POST /hooks HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnope",
        b"POST /hooks HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{\"id\":",
    ];
    for bytes in bad {
        let mut connection = Connection::to(gateway.address()).await;
        connection.write(bytes).await.unwrap();
        connection.half_close().await;
        let ended = within("an answer or a close", connection.answer("POST")).await;
        assert!(
            ended.is_err() || (400..500).contains(&ended.as_ref().unwrap().status) || {
                // What can't be read has no key: it passes, for the app to refuse.
                ended.as_ref().unwrap().verdict() == "keyless"
            }
        );
    }
    assert_eq!(gateway.send(&order("alive")).await.status, 200);
    assert!(!gateway.logs().contains("panicked"));
}
