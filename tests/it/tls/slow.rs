//! Handshakes that don't end: they hold a place among the connections for as long as a head may take, no longer.

use super::caller::Caller;
use super::pki::{Authority, Folder};
use crate::support::{Connection, Gateway, PATIENCE, Upstream, order};

#[tokio::test]
async fn slow_handshakes_give_their_places_back() {
    let (authority, folder) = (Authority::new(), Folder::new());
    let app = Upstream::answering(200, "ok").await;
    let pair = folder.pair("hooks", &authority.issue(&["hooks.example"]));
    let gateway = Gateway::in_front_of(&app)
        .table(&format!("[public_tls]\ncertificates = [{pair}]"))
        .table("[limits]\nconnections_max = 3\nheader_timeout = \"1s\"")
        .listen("workers = 1")
        .start()
        .await;
    // One says nothing, one begins a record and stops, one ends its handshake and sends no head.
    let silent = Connection::to(gateway.address()).await;
    let mut begun = Connection::to(gateway.address()).await;
    begun.write(&[0x16, 3, 1, 2]).await.unwrap();
    let caller = Caller::trusting(&authority, "hooks.example");
    let headless = caller.connect(gateway.address()).await.unwrap();
    // All places are taken, and yet this one has its turn.
    let answer = caller.send(gateway.address(), &order("a")).await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.body().as_ref()), (200, &b"ok"[..]));
    gateway
        .until_metric("umavez_tls_handshakes_total", &[("side", "public"), ("result", "too_slow")], 2.0)
        .await;
    for mut slow in [silent, begun] {
        assert!(slow.is_closed_within(PATIENCE).await);
    }
    drop(headless);
    // Whoever comes and goes leaves nothing behind: many times the places.
    for n in 0..12 {
        drop(Connection::to(gateway.address()).await);
        assert_eq!(caller.send(gateway.address(), &order(&n.to_string())).await.unwrap().status(), 200);
    }
}
