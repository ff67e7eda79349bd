//! Certificates that callers present: on a whole listener, and on one route among others.

use super::caller::{Caller, HTTP_1, HTTP_2};
use super::pki::{Authority, Folder};
use crate::support::{Delivery, Gateway, ORDERS, Upstream, order};

const META: &str = "client.webhooks.fbclientcerts.com";

#[tokio::test]
async fn a_listener_that_requires_a_certificate_serves_only_who_has_a_right_one() {
    let (authority, folder, stranger) = (Authority::new(), Folder::new(), Authority::new());
    let app = Upstream::answering(200, "").await;
    let pair = folder.pair("hooks", &authority.issue(&["hooks.example"]));
    let ca = folder.put("clients.pem", &authority.pem);
    let gateway = Gateway::in_front_of(&app)
        .table(&format!("[public_tls]\ncertificates = [{pair}]\nclient_ca = \"{}\"", ca.display()))
        .start()
        .await;
    let expired = authority.issue_until(&[META], crate::support::unix_seconds() - 60);
    let callers = [
        (Caller::trusting(&authority, "hooks.example"), false),
        (Caller::showing(&authority, "hooks.example", &stranger.issue(&[META])), false),
        (Caller::showing(&authority, "hooks.example", &expired), false),
        (Caller::showing(&authority, "hooks.example", &authority.issue(&[META])), true),
    ];
    let mut refused = 0.0;
    for (n, (caller, served)) in callers.into_iter().enumerate() {
        for offered in [HTTP_1, HTTP_2] {
            let answer =
                caller.clone().offering(&[offered]).send(gateway.address(), &order(&n.to_string())).await;
            assert_eq!(answer.is_ok_and(|answer| answer.status() == 200), served, "{n}");
            refused += if served { 0.0 } else { 1.0 };
        }
    }
    assert_eq!(app.received(), 1);
    let failed = [("side", "public"), ("result", "failed")];
    gateway.until_metric("umavez_tls_handshakes_total", &failed, refused).await;
    // Nothing about the certificate is told to the app.
    assert!(!app.last().headers.iter().any(|(_, value)| String::from_utf8_lossy(value).contains("fbclient")));
}

#[tokio::test]
async fn a_route_takes_only_whom_it_names_while_others_need_no_certificate() {
    let (authority, folder, stranger) = (Authority::new(), Folder::new(), Authority::new());
    let app = Upstream::answering(200, "").await;
    let pair = folder.pair("hooks", &authority.issue(&["hooks.example"]));
    let ca = folder.put("clients.pem", &authority.pem);
    let gateway = Gateway::in_front_of(&app)
        .table(&format!(
            "[public_tls]\ncertificates = [{pair}]\nclient_ca = \"{}\"\nclient_auth = \"optional\"",
            ca.display()
        ))
        .route(ORDERS)
        .route(&format!(
            "[[route]]\nname = \"meta\"\npath = \"/meta\"\nkey = [\"$.id\"]\nclient_name = [\"{META}\", \"api.example\"]"
        ))
        .start()
        .await;
    let event = |id: &str| Delivery::json("/meta", format!("{{\"id\":\"{id}\"}}"));
    // A refusal claims nothing: the same event is the first one from who may send it.
    let table = [
        (Caller::trusting(&authority, "hooks.example"), "refused", 401),
        (Caller::showing(&authority, "hooks.example", &authority.issue(&["other.example"])), "refused", 401),
        (Caller::showing(&authority, "hooks.example", &authority.issue(&[META])), "first", 200),
        (Caller::showing(&authority, "hooks.example", &authority.issue_common_name(META)), "duplicate", 200),
        (Caller::showing(&authority, "hooks.example", &authority.issue(&["API.example"])), "duplicate", 200),
    ];
    for (n, (caller, verdict, status)) in table.into_iter().enumerate() {
        for offered in [HTTP_1, HTTP_2] {
            let caller = caller.clone().offering(&[offered]);
            let answer = caller.send(gateway.address(), &event("1")).await.unwrap();
            assert_eq!(answer.status().as_u16(), status, "{n}");
            // On the second protocol the first one has come before.
            let repeated = verdict == "first" && offered == HTTP_2;
            assert_eq!(answer.headers()["umavez"], if repeated { "duplicate" } else { verdict });
            let open = caller.send(gateway.address(), &order(&format!("{n}"))).await.unwrap();
            assert_eq!(open.status(), 200);
        }
    }
    // Who presents a certificate of nobody's is turned away even where none is needed.
    let forged = Caller::showing(&authority, "hooks.example", &stranger.issue(&[META]));
    assert!(forged.send(gateway.address(), &order("z")).await.is_err());
    assert_eq!(gateway.metrics().await.value("umavez_unsigned_total", &[("route", "meta")]), 4.0);
    assert!(gateway.logs().contains("the client certificate is another's: other.example"));
}
