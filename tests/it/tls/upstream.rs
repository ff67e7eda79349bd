//! Apps behind `https://`: whom we trust, what we show, and that a failed handshake means "never sent".

use http::Version;
use tokio::io::AsyncWriteExt as _;

use super::app::App;
use super::pki::{Authority, Folder, Issued};
use crate::support::{Delivery, Gateway, ORDERS, eventually, order, unix_seconds, within};

/// In front of the app by the name `localhost`, with further lines of `[upstream]`.
async fn gateway(app: &App, settings: &str) -> Gateway {
    let port = app.address.port();
    Gateway::without_upstream()
        .table(&format!("[upstream]\nurl = \"https://localhost:{port}\"\n{settings}"))
        .route(ORDERS)
        // The same app on connections of its own.
        .route(&format!(
            "[[route]]\nname = \"apart\"\npath = \"/apart\"\nkey = [\"$.id\"]\nupstream = \"https://127.0.0.1:{port}\""
        ))
        .start()
        .await
}

fn trusting(authority: &Authority, folder: &Folder) -> String {
    format!("ca = \"{}\"", folder.put("ca.pem", &authority.pem).display())
}

async fn outcomes(gateway: &Gateway) -> [f64; 4] {
    let metrics = gateway.metrics().await;
    let outcome = |name| metrics.value("umavez_outcomes_total", &[("outcome", name)]);
    let release = metrics.value("umavez_settlements_total", &[("settlement", "release")]);
    [outcome("answered"), outcome("never_sent"), outcome("unknown"), release]
}

#[tokio::test]
async fn an_app_with_a_certificate_of_our_own_authority_is_asked_by_its_name() {
    for (protocols, version) in [
        (&[&b"h2"[..], b"http/1.1"][..], Version::HTTP_2),
        (&[b"http/1.1"], Version::HTTP_11),
        (&[], Version::HTTP_11),
    ] {
        let (authority, folder) = (Authority::new(), Folder::new());
        let app = App::showing(&authority.issue(&["localhost"]), protocols).await;
        let gateway = gateway(&app, &trusting(&authority, &folder)).await;
        for id in ["a", "b"] {
            let answer = gateway.send(&order(id).header("Host", "hooks.example")).await;
            assert_eq!(
                (answer.status, answer.text().as_str(), answer.verdict().as_str()),
                (200, "made", "first")
            );
        }
        for asked in app.asked() {
            assert_eq!((asked.version, asked.name.as_deref()), (version, Some("localhost")));
            assert_eq!(asked.host, "hooks.example", "the sender's host stays");
        }
    }
}

#[tokio::test]
async fn an_app_whose_certificate_is_not_good_was_never_asked_and_the_claim_is_free() {
    let (authority, folder, stranger) = (Authority::new(), Folder::new(), Authority::new());
    let bad: [(&str, Issued); 3] = [
        ("of nobody we know", stranger.issue(&["localhost"])),
        ("expired", authority.issue_until(&["localhost"], unix_seconds() - 60)),
        ("another's", authority.issue(&["other.example"])),
    ];
    let app = App::showing(&bad[0].1, &[b"h2", b"http/1.1"]).await;
    let gateway = gateway(&app, &trusting(&authority, &folder)).await;
    for (n, (what, issued)) in bad.iter().enumerate() {
        app.show(issued);
        let answer = gateway.send(&order("a")).await;
        assert_eq!((answer.status, answer.verdict().as_str()), (502, "first"), "{what}");
        let refused = f64::from(u32::try_from(n + 1).unwrap());
        assert_eq!(outcomes(&gateway).await, [0.0, refused, 0.0, refused], "{what}");
    }
    assert!(app.asked().is_empty());
    app.show(&authority.issue(&["localhost"]));
    let answer = gateway.send(&order("a")).await;
    assert_eq!((answer.status, answer.verdict().as_str()), (200, "first"));
    assert_eq!(app.asked()[0].attempt.as_deref(), Some("4"));
}

#[tokio::test]
async fn an_app_that_asks_for_our_certificate_is_shown_it() {
    for protocols in [&[&b"h2"[..], b"http/1.1"][..], &[b"http/1.1"]] {
        client_certificates(protocols).await;
    }
}

async fn client_certificates(protocols: &[&[u8]]) {
    let (authority, folder, stranger) = (Authority::new(), Folder::new(), Authority::new());
    let app = App::requiring(&authority.issue(&["localhost", "127.0.0.1"]), &authority, protocols).await;
    let ca = trusting(&authority, &folder);

    // With TLS 1.3 it says no after we have written: nothing was read of it, so nothing was sent.
    let wrong = format!("client_certificate = {}", folder.pair("wrong", &stranger.issue(&["gateway"])));
    let unknown = Authority::named("an authority of its own");
    let unknown = format!("client_certificate = {}", folder.pair("unknown", &unknown.issue(&["gateway"])));
    for settings in [ca.clone(), format!("{ca}\n{wrong}"), format!("{ca}\n{unknown}")] {
        let gateway = gateway(&app, &settings).await;
        assert_eq!(gateway.send(&order("a")).await.status, 502);
        assert_eq!(outcomes(&gateway).await, [0.0, 1.0, 0.0, 1.0], "{}", gateway.logs());
    }
    assert!(app.asked().is_empty());

    let ours = authority.issue(&["gateway"]);
    let gateway =
        gateway(&app, &format!("{ca}\nclient_certificate = {}", folder.pair("gateway", &ours))).await;
    assert_eq!(gateway.send(&order("a")).await.status, 200);
    let file = folder.path().join("gateway.pem").display().to_string();
    let metrics = gateway.metrics().await;
    let labels = [("side", "upstream"), ("file", file.as_str())];
    let until = metrics.value("umavez_certificate_not_after_timestamp_seconds", &labels);
    assert_eq!(until, f64::from(u32::try_from(ours.not_after).unwrap()));

    // Replaced by one that the app doesn't take: connections made from then on show it.
    folder.pair("gateway", &stranger.issue(&["gateway"]));
    eventually("a reload", async || gateway.logs().contains("certificates were read again")).await;
    let apart = Delivery::json("/apart", r#"{"id":"b"}"#);
    assert_eq!(gateway.send(&apart).await.status, 502);
    assert_eq!(gateway.metrics().await.value("umavez_certificate_current", &labels), 1.0);
    assert_eq!(app.asked().len(), 1);
}

#[tokio::test]
async fn a_burst_of_first_requests_opens_one_connection_where_the_app_agrees_to_http_2() {
    // Each request of the burst made a connection of its own, though all but one were left at once.
    let (authority, folder) = (Authority::new(), Folder::new());
    for (protocols, shared) in [(&[&b"h2"[..], b"http/1.1"][..], true), (&[b"http/1.1"], false)] {
        let app = App::showing(&authority.issue(&["localhost"]), protocols).await;
        let gateway = Gateway::in_front_of_url(&format!("https://localhost:{}", app.address.port()))
            .table(&trusting(&authority, &folder))
            .listen("workers = 1")
            .start()
            .await;
        for round in 0..2 {
            let burst = (0..40).map(|n| gateway.sending(&order(&format!("{round}-{n}"))));
            for answer in burst.collect::<Vec<_>>() {
                assert_eq!(answer.await.unwrap().status, 200);
            }
        }
        assert_eq!(app.asked().len(), 80);
        assert_eq!(app.connections() == 1, shared, "{} connections", app.connections());
    }
}

#[tokio::test]
async fn a_burst_to_an_app_that_is_away_fails_together() {
    // Those who waited for the one that was connecting tried one after the other, each for the whole timeout.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", silent.local_addr().unwrap());
    let gateway = Gateway::in_front_of_url(&url)
        .table("[limits]\nconnect_timeout = \"2s\"")
        .listen("workers = 1")
        .start()
        .await;
    let burst: Vec<_> = (0..40).map(|n| gateway.sending(&order(&n.to_string()))).collect();
    // One after the other it would be 80 seconds, which is longer than stories wait.
    for answer in burst {
        assert_eq!(within("a failure", answer).await.unwrap().status, 502);
    }
    assert_eq!(outcomes(&gateway).await, [0.0, 40.0, 0.0, 40.0]);
}

#[tokio::test]
async fn an_app_may_have_roots_a_certificate_and_a_name_of_its_own() {
    // One `[upstream]` served all apps: two with authorities of their own, or one that must not see the other's client
    // certificate, could not stand behind one gateway.
    let folder = Folder::new();
    let (ours, theirs) = (Authority::new(), Authority::named("a partner's authority"));
    let protocols = [&b"h2"[..], b"http/1.1"];
    let shared = App::showing(&ours.issue(&["localhost"]), &protocols).await;
    let partner = App::requiring(&theirs.issue(&["hooks.partner.example"]), &theirs, &protocols).await;
    let shown = folder.pair("partner", &theirs.issue(&["gateway"]));
    let partner_ca = folder.put("partner-ca.pem", &theirs.pem).display().to_string();
    let port = partner.address.port();
    let route = |name: &str, more: &str| {
        format!(
            "[[route]]\nname = \"{name}\"\npath = \"/{name}\"\nkey = [\"$.id\"]\n\
             upstream = {{ url = \"https://127.0.0.1:{port}\"{more} }}\n"
        )
    };
    let whole = format!(", ca = \"{partner_ca}\", client_certificate = {shown}");
    let gateway = Gateway::in_front_of_url(&format!("https://localhost:{}", shared.address.port()))
        .table(&trusting(&ours, &folder))
        .route(ORDERS)
        .route(&route("partner", &format!("{whole}, server_name = \"hooks.partner.example\"")))
        .route(&route("nameless", &whole))
        .route(&route(
            "unshown",
            &format!(", ca = \"{partner_ca}\", server_name = \"hooks.partner.example\""),
        ))
        .route(&route("untrusting", ", server_name = \"hooks.partner.example\""))
        .start()
        .await;
    assert_eq!(gateway.send(&order("a")).await.status, 200);
    for (name, status) in [("partner", 200), ("nameless", 502), ("unshown", 502), ("untrusting", 502)] {
        let event = Delivery::json(&format!("/{name}"), r#"{"id":"a"}"#);
        assert_eq!(gateway.send(&event).await.status, status, "{name}");
    }
    assert_eq!(partner.asked().len(), 1);
    assert_eq!(partner.asked()[0].name.as_deref(), Some("hooks.partner.example"));
    assert_eq!(shared.asked()[0].name.as_deref(), Some("localhost"));

    // Renewed files are taken, and what one no longer names is let go.
    let file = folder.path().join("partner.pem").display().to_string();
    let until = [("side", "upstream"), ("file", file.as_str())];
    let not_after = "umavez_certificate_not_after_timestamp_seconds";
    let renewed = theirs.issue_until(&["gateway"], unix_seconds() + 1000);
    folder.pair("partner", &renewed);
    let seconds = f64::from(u32::try_from(renewed.not_after).unwrap());
    gateway.until_metric(not_after, &until, seconds).await;
    gateway.edit(&whole, &format!(", ca = \"{partner_ca}\""));
    assert_eq!(gateway.reload().await.status, 200, "{}", gateway.logs());
    assert!(gateway.metrics().await.value(not_after, &until).is_nan());
}

#[tokio::test]
async fn the_log_says_why_there_is_no_encrypted_connection() {
    // A pass-through's line said "the app did not accept a connection" and no more, whatever the reason; a route's ended
    // in the library's words.
    let (authority, folder, stranger) = (Authority::new(), Folder::new(), Authority::new());
    let (good, unknown) = (authority.issue(&["localhost"]), Authority::named("an authority of its own"));
    let plain = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let not_tls = format!("https://localhost:{}", plain.local_addr().unwrap().port());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = plain.accept().await.unwrap();
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await.ok();
        }
    });
    let of = async |issued: &Issued, protocols: &[&[u8]]| App::showing(issued, protocols).await;
    let apps = [
        (of(&unknown.issue(&["localhost"]), &[]).await, "is from no authority that is trusted here"),
        (of(&stranger.issue(&["localhost"]), &[]).await, "is not signed by the authority that it names"),
        (of(&authority.issue_until(&["localhost"], unix_seconds() - 60), &[]).await, "has expired"),
        (of(&authority.issue(&["other.example"]), &[]).await, "is for another name"),
        (of(&good, &[b"spdy/3"]).await, "speaks no version of HTTP that is asked of it (ALPN)"),
        (App::requiring(&good, &authority, &[]).await, "does not take our certificate, or misses one"),
    ];
    let urls = apps.iter().map(|(app, why)| (format!("https://localhost:{}", app.address.port()), *why));
    for (url, why) in urls.chain([(not_tls, "the app does not speak TLS there")]) {
        let gateway = Gateway::in_front_of_url(&url).table(&trusting(&authority, &folder)).start().await;
        for delivery in [order("a"), Delivery::new("GET", "/page")] {
            assert_eq!(gateway.send(&delivery).await.status, 502, "{why}");
        }
        // An app that judges our certificate late is heard of as what we wrote comes back, in the library's words.
        let says = |error: &str| {
            error.contains(why) || why.starts_with("does not take") && error.contains("CertificateRequired")
        };
        eventually(why, async || {
            let lines = gateway.log_lines();
            lines.iter().filter(|line| line["error"].as_str().is_some_and(says)).count() == 2
        })
        .await;
    }
}

/// A request that had begun when its app's certificates were taken out of the configuration read them from their files
/// again, on the thread that served it: it failed where they were gone, and else the metrics told of them ever after.
#[tokio::test]
async fn a_request_under_way_reaches_its_app_with_certificates_that_were_let_go() {
    let (authority, folder) = (Authority::new(), Folder::new());
    let shown = authority.issue(&["localhost"]);
    let app = App::requiring(&shown, &authority, &[b"http/1.1"]).await;
    let ca = folder.put("ca.pem", &authority.pem).display().to_string();
    let pair = folder.pair("gateway", &authority.issue(&["gateway"]));
    let url = format!("https://localhost:{}", app.address.port());
    let (own, none) = (
        format!("upstream = {{ url = \"{url}\", ca = \"{ca}\", client_certificate = {pair} }}"),
        format!("upstream = \"{url}\""),
    );
    let route = format!("[[route]]\nname = \"own\"\npath = \"/own\"\nkey = [\"$.id\"]\n{own}\n");
    let gateway = Gateway::in_front_of_url("http://127.0.0.1:1").route(&route).start().await;
    let file = folder.path().join("gateway.pem").display().to_string();
    let told =
        async |name: &str| gateway.metrics().await.value(name, &[("side", "upstream"), ("file", &file)]);
    for (id, files_are_gone) in [("a", false), ("b", true)] {
        let body = format!(r#"{{"id":"{id}"}}"#);
        let mut sender = gateway.connect().await;
        let head = format!(
            "POST /own HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        sender.write(head.as_bytes()).await.unwrap();
        let begun = within("its turn", sender.any_answer("POST")).await.unwrap();
        assert_eq!((begun.status, told("umavez_certificate_current").await), (100, 1.0));
        gateway.edit(&own, &none);
        assert_eq!(gateway.reload().await.status, 200, "{}", gateway.logs());
        if files_are_gone {
            std::fs::remove_file(folder.path().join("gateway.key")).unwrap();
            std::fs::remove_file(folder.path().join("ca.pem")).unwrap();
        }
        sender.write(body.as_bytes()).await.unwrap();
        let answer = within("an answer", sender.answer("POST")).await.unwrap();
        assert_eq!((answer.status, answer.verdict().as_str()), (200, "first"), "{}", gateway.logs());
        assert!(told("umavez_certificate_current").await.is_nan(), "nobody uses it any more");
        assert!(told("umavez_certificate_not_after_timestamp_seconds").await.is_nan());
        if !files_are_gone {
            gateway.edit(&none, &own);
            assert_eq!(gateway.reload().await.status, 200, "{}", gateway.logs());
        }
    }
    assert_eq!(app.asked().len(), 2);
}
