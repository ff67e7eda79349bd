//! What reaches the app is what the sender sent, less what belongs to the hop; and back.

use crate::support::{Delivery, Gateway, Reply, Upstream, order};

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
async fn no_path_leads_out_of_the_part_of_the_app_that_is_served() {
    // With `url = "http://app/base"`, `/../admin` was `/admin` to apps that resolve dots, whatever `/base` was to keep in.
    let upstream = Upstream::answering(200, "").await;
    let rest = "[[route]]\nname = \"rest\"\npath = \"/rest/{*rest}\"\nkey = [\"$.id\"]\n";
    let gateway = Gateway::in_front_of_url(&format!("{}/base", upstream.url())).route(rest).start().await;
    let out =
        ["/../admin", "/a/../../admin", "/%2e%2E/admin", "/..%2fadmin", "/a\\..\\..\\admin", "/..;v=1/admin"];
    for path in out.into_iter().chain(["/rest/../../../admin"]) {
        for method in ["GET", "POST"] {
            let answer = gateway.send(&Delivery::new(method, path)).await;
            assert_eq!(answer.status, 404, "{method} {path}");
        }
    }
    assert_eq!(upstream.received(), 0);
    for path in ["/a/../b", "/a..b/%2e/c", "/rest/x"] {
        assert_eq!(gateway.send(&Delivery::new("GET", path)).await.status, 200, "{path}");
        assert_eq!(upstream.last().target, format!("/base{path}"));
    }
}
