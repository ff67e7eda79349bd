//! Apps behind `https://`: whom we trust, what we show, and that a failed handshake means "never sent".

use http::Version;

use super::app::App;
use super::pki::{Authority, Folder, Issued};
use crate::support::{Delivery, Gateway, ORDERS, eventually, order, unix_seconds};

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
