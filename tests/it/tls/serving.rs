//! What senders are shown, and what the app hears of it.

use base64::Engine as _;
use ring::hmac;

use super::caller::{Caller, HTTP_1, HTTP_2};
use super::pki::{Authority, Folder};
use crate::support::{Connection, Delivery, Gateway, Upstream, eventually, order};

/// A gateway whose public listener shows a certificate for `hooks.example`.
async fn gateway(upstream: &Upstream, authority: &Authority, folder: &Folder, settings: &str) -> Gateway {
    let pair = folder.pair("hooks", &authority.issue(&["hooks.example"]));
    Gateway::in_front_of(upstream)
        .table(&format!("[public_tls]\ncertificates = [{pair}]\n{settings}"))
        .start()
        .await
}

#[tokio::test]
async fn a_sender_speaks_either_http_and_the_app_hears_of_https() {
    let (authority, folder) = (Authority::new(), Folder::new());
    let app = Upstream::answering(200, "ok").await;
    let gateway = gateway(&app, &authority, &folder, "").await;
    let protocols: [(&[&[u8]], bool); 4] =
        [(&[HTTP_2, HTTP_1], true), (&[HTTP_1], false), (&[HTTP_2], true), (&[], false)];
    for (n, (offered, http2)) in protocols.into_iter().enumerate() {
        let caller = Caller::trusting(&authority, "hooks.example").offering(offered);
        let mut open = caller.open(gateway.address()).await.unwrap();
        assert_eq!(open.is_http2(), http2);
        for verdict in ["first", "duplicate"] {
            let answer = open.send(&order(&format!("evt_{n}"))).await.unwrap();
            assert_eq!((answer.status().as_u16(), answer.body().as_ref()), (200, &b"ok"[..]));
            assert_eq!(answer.headers()["umavez"], verdict);
        }
        let seen = app.last();
        let host = format!("hooks.example:{}", gateway.address().port());
        assert_eq!(seen.headers_named("x-forwarded-proto"), ["https"]);
        assert_eq!(seen.headers_named("x-forwarded-host"), std::slice::from_ref(&host));
        assert_eq!(seen.headers_named("host"), [host]);
    }
    let handshakes = [("side", "public"), ("result", "ok")];
    gateway.until_metric("umavez_tls_handshakes_total", &handshakes, 4.0).await;
    let other = Caller::trusting(&authority, "hooks.example").offering(&[b"spdy/3"]);
    assert!(other.connect(gateway.address()).await.is_err(), "nothing in common");
}

#[tokio::test]
async fn what_passes_through_is_https_too_and_a_large_body_comes_whole() {
    let (authority, folder) = (Authority::new(), Folder::new());
    let app = Upstream::answering(200, "ok").await;
    let gateway = gateway(&app, &authority, &folder, "").await;
    let caller = Caller::trusting(&authority, "hooks.example");
    let body: Vec<u8> = (0..3 << 20).map(|n: u32| n.to_le_bytes()[1]).collect();
    for offered in [HTTP_1, HTTP_2] {
        let caller = caller.clone().offering(&[offered]);
        let upload = Delivery::new("PUT", "/elsewhere").body(body.clone());
        assert_eq!(caller.send(gateway.address(), &upload).await.unwrap().status(), 200);
        assert!(app.last().body == body);
        assert_eq!(app.last().header("x-forwarded-proto").unwrap(), "https");
    }
}

#[tokio::test]
async fn raw_requests_are_read_the_same_way_inside_tls() {
    // What the plain listener refuses or puts right was held there only.
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let (authority, folder) = (Authority::new(), Folder::new());
    let app = Upstream::answering(200, "ok").await;
    let gateway = gateway(&app, &authority, &folder, "").await;
    let caller = Caller::trusting(&authority, "hooks.example").offering(&[HTTP_1]);
    for (bytes, status, line) in crate::pass::edges::EDGES {
        let before = app.received();
        let mut stream = caller.connect(gateway.address()).await.unwrap();
        stream.write_all(bytes.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.windows(4).any(|end| end == b"\r\n\r\n") {
            let read = crate::support::within("an answer", stream.read_buf(&mut head)).await.unwrap();
            assert!(read > 0, "no answer to {bytes:?}");
        }
        assert!(head.starts_with(format!("HTTP/1.1 {status} ").as_bytes()), "{bytes:?}");
        match line {
            Some(line) => assert_eq!(format!("{} {} HTTP/1.1", app.last().method, app.last().target), *line),
            None => assert_eq!(app.received(), before, "{bytes:?}"),
        }
    }
}

#[tokio::test]
async fn a_signature_over_the_public_url_is_good_here_and_at_the_app() {
    let (authority, folder) = (Authority::new(), Folder::new());
    let app = Upstream::answering(200, "").await;
    let pair = folder.pair("hooks", &authority.issue(&["hooks.example"]));
    let gateway = Gateway::in_front_of(&app)
        .table(&format!("[public_tls]\ncertificates = [{pair}]"))
        .route("[[route]]\nname = \"sms\"\npath = \"/sms/{tenant}\"\nprovider = \"twilio\"\nsecret = \"${TOKEN}\"")
        .env("TOKEN", "a-twilio-auth-token")
        .start()
        .await;
    let signature = |url: &str, fields: &str| {
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, b"a-twilio-auth-token");
        let tag = hmac::sign(&key, format!("{url}{fields}").as_bytes());
        base64::engine::general_purpose::STANDARD.encode(tag)
    };
    for offered in [HTTP_1, HTTP_2] {
        let caller = Caller::trusting(&authority, "hooks.example").offering(&[offered]);
        let mut open = caller.open(gateway.address()).await.unwrap();
        let target = "/sms/a%2Fb?q=%20+&z";
        let fields = "AccountSidAC1MessageSidSM1MessageStatussent";
        let form = Delivery::new("POST", target)
            .header("Content-Type", "application/x-www-form-urlencoded")
            .body(&b"MessageSid=SM1&AccountSid=AC1&MessageStatus=sent"[..]);
        // Signed for http, it is no good: the connection was https, on this port.
        let port = format!("http://hooks.example:{}{target}", gateway.address().port());
        let wrong = form.clone().header("X-Twilio-Signature", &signature(&port, fields));
        assert_eq!(open.send(&wrong).await.unwrap().status(), 401);
        let url = format!("{}{target}", open.base());
        let right = form.header("X-Twilio-Signature", &signature(&url, fields));
        assert_eq!(open.send(&right).await.unwrap().status(), 200);
        // The app puts the URL together from what it is told, though its own hop is plain.
        let seen = app.last();
        let header = |name: &str| seen.header(name).unwrap();
        let rebuilt =
            format!("{}://{}{}", header("x-forwarded-proto"), header("x-forwarded-host"), seen.target);
        assert_eq!(rebuilt, url);
        assert_eq!(signature(&rebuilt, fields), header("x-twilio-signature"));
    }
    assert_eq!(app.received(), 1, "the second delivery was a copy");
}

#[tokio::test]
async fn the_name_that_is_asked_for_chooses_the_certificate() {
    let (authority, folder) = (Authority::new(), Folder::new());
    let app = Upstream::answering(200, "").await;
    let made = [
        authority.issue(&["first.example"]),
        authority.issue(&["*.wild.example", "wild.example"]),
        authority.issue(&["exact.wild.example"]),
        authority.issue(&["b.example", "c.example"]),
    ];
    let pairs: Vec<String> =
        made.iter().enumerate().map(|(n, issued)| folder.pair(&n.to_string(), issued)).collect();
    let gateway = Gateway::in_front_of(&app)
        .table(&format!("[public_tls]\ncertificates = [{}]", pairs.join(", ")))
        .start()
        .await;
    let table = [
        ("first.example", 0),
        ("wild.example", 1),
        ("any.wild.example", 1),
        ("EXACT.wild.example", 2),
        ("two.levels.wild.example", 0),
        ("c.example", 3),
        ("b.example", 3),
        ("stranger.example", 0),
        ("127.0.0.1", 0), // asks for no name
    ];
    for (name, index) in table {
        let shown = Caller::blind(name).shown(gateway.address()).await;
        assert!(shown == made[index].der(), "{name}");
    }
    let verified = Caller::trusting(&authority, "any.wild.example");
    assert_eq!(verified.send(gateway.address(), &order("a")).await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_sender_of_tls_1_2_is_served_unless_1_3_is_asked_for() {
    for (settings, old_is_served) in [("", true), ("min_version = \"1.3\"", false)] {
        let (authority, folder) = (Authority::new(), Folder::new());
        let app = Upstream::answering(200, "").await;
        let gateway = gateway(&app, &authority, &folder, settings).await;
        let old = Caller::of_version(&authority, "hooks.example", &rustls::version::TLS12);
        let new = Caller::of_version(&authority, "hooks.example", &rustls::version::TLS13);
        assert_eq!(old.send(gateway.address(), &order("old")).await.is_ok(), old_is_served, "{settings}");
        assert_eq!(new.send(gateway.address(), &order("new")).await.unwrap().status(), 200);
    }
}

#[tokio::test]
async fn plain_http_to_a_tls_port_is_told_so() {
    let (authority, folder) = (Authority::new(), Folder::new());
    let app = Upstream::answering(200, "").await;
    let gateway = gateway(&app, &authority, &folder, "").await;
    let large = Delivery::new("POST", "/hooks").body(vec![b'x'; 200_000]);
    for delivery in [order("a"), large] {
        let mut plain = Connection::to(gateway.address()).await;
        let answer = plain.send(&delivery).await;
        assert_eq!((answer.status, answer.complete), (400, true));
        assert!(answer.text().contains("https://"), "{}", answer.text());
        assert!(plain.is_closed_within(crate::support::PATIENCE).await);
    }
    assert_eq!(app.received(), 0);
    gateway
        .until_metric("umavez_tls_handshakes_total", &[("side", "public"), ("result", "plain")], 2.0)
        .await;
    let caller = Caller::trusting(&authority, "hooks.example");
    assert_eq!(caller.send(gateway.address(), &order("a")).await.unwrap().status(), 200);
}

#[tokio::test]
async fn the_admin_listener_is_reached_by_https_and_the_command_line_too() {
    let (authority, folder) = (Authority::new(), Folder::new());
    let app = Upstream::answering(200, "").await;
    let pair = folder.pair("admin", &authority.issue(&["127.0.0.1", "localhost"]));
    let ca = folder.put("ca.pem", &authority.pem);
    let operator = authority.issue_common_name("operator");
    let gateway = Gateway::in_front_of(&app)
        .table(&format!("[admin_tls]\ncertificates = [{pair}]\nclient_ca = \"{}\"", ca.display()))
        .start()
        .await;
    // The public listener stays as it is.
    assert_eq!(gateway.send(&order("a")).await.status, 200);
    let caller = Caller::showing(&authority, "localhost", &operator);
    let mut metrics = String::new();
    eventually("a scrape", async || {
        let answer = caller.send(gateway.admin(), &Delivery::new("GET", "/metrics")).await.unwrap();
        metrics = String::from_utf8(answer.body().to_vec()).unwrap();
        metrics.contains("umavez_tls_handshakes_total{side=\"admin\",result=\"ok\"}")
    })
    .await;
    assert!(
        Caller::trusting(&authority, "localhost")
            .send(gateway.admin(), &Delivery::new("GET", "/metrics"))
            .await
            .is_err()
    );

    folder.pair("operator", &operator);
    let url = format!("https://{}", gateway.admin());
    let umavez = |more: &[&str]| {
        std::process::Command::new(env!("CARGO_BIN_EXE_umavez"))
            .args(["events", "show", "orders:a", "--admin", &url])
            .args(more)
            .current_dir(folder.path())
            .output()
            .unwrap()
    };
    let shown = umavez(&["--ca", "ca.pem", "--certificate", "operator.pem", "operator.key"]);
    let (out, err) = (String::from_utf8_lossy(&shown.stdout), String::from_utf8_lossy(&shown.stderr));
    assert!(shown.status.success() && out.contains("\"done\""), "{out}{err}");
    for (arguments, said) in [
        (&["--certificate", "operator.pem", "operator.key"][..], "the TLS handshake failed"),
        (&["--ca", "ca.pem"], "can't be asked"),
        (&["--ca", "none.pem"], "--ca, --certificate: none.pem: cannot be read"),
    ] {
        let refused = umavez(arguments);
        let err = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && err.contains(said), "{arguments:?}: {err}");
    }
}
