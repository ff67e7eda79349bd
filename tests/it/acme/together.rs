//! Several processes on one cache: one orders, any of them proves, all of them serve.

use super::pebble::{NAME, Pebble, file_of, shown};
use crate::support::{Gateway, Upstream, eventually, order};
use crate::tls::caller::Caller;
use crate::tls::pki::{Authority, Folder};

#[tokio::test]
async fn one_orders_another_proves_it_and_both_serve_it() {
    let pebble = Pebble::start().await;
    let (app, folder) = (Upstream::answering(200, "").await, Folder::new());
    let table = pebble.table(&format!("\"{NAME}\""), &folder.path().join("acme"));
    // The authority comes to this one, which trusts nobody's directory and so can't order.
    let strange = folder.put("strange.pem", &Authority::new().pem);
    let (before, _) = table.split_once("directory_ca").unwrap();
    let blind = format!("{before}directory_ca = \"{}\"\n", strange.display());
    let proving = Gateway::in_front_of(&app).at(pebble.proving).table(&blind).start().await;
    proving.until_metric("umavez_acme_orders_total", &[("result", "failed")], 1.0).await;
    assert!(Caller::blind(NAME).connect(proving.address()).await.is_err());

    let ordering = Gateway::in_front_of(&app).table(&table).start().await;
    let certificate = shown(&pebble, NAME, ordering.address()).await;
    assert_eq!(shown(&pebble, NAME, proving.address()).await, certificate);
    let challenges = [("side", "public"), ("result", "challenge")];
    let looked =
        async |gateway: &Gateway| gateway.metrics().await.value("umavez_tls_handshakes_total", &challenges);
    assert!(looked(&proving).await >= 1.0 && looked(&ordering).await == 0.0);
    assert_eq!(pebble.orders(), 1);
    // What it could not order itself is current all the same.
    let file = file_of(&proving, NAME).await;
    proving.until_metric("umavez_certificate_current", &[("file", &file)], 1.0).await;
}

#[tokio::test]
async fn two_that_start_at_once_order_once() {
    let pebble = Pebble::start().await;
    let (app, folder) = (Upstream::answering(200, "").await, Folder::new());
    let table = pebble.table("\"a.example\", \"b.example\"", &folder.path().join("acme"));
    // If the other is first, the authority's look waits in this one's socket until it is up.
    let one = Gateway::in_front_of(&app).at(pebble.proving).with_sockets_of_its_own().table(&table);
    let (one, two) = tokio::join!(one.start(), Gateway::in_front_of(&app).table(&table).start());
    for name in ["a.example", "b.example"] {
        let certificate = shown(&pebble, name, one.address()).await;
        assert_eq!(shown(&pebble, name, two.address()).await, certificate);
    }
    assert_eq!(pebble.orders(), 2);
}

#[tokio::test]
async fn a_process_that_takes_over_goes_on_with_what_is_kept() {
    let pebble = Pebble::start().await;
    let (app, folder) = (Upstream::answering(200, "").await, Folder::new());
    let table = pebble.table(&format!("\"{NAME}\""), &folder.path().join("acme"));
    let setup = Gateway::in_front_of(&app).at(pebble.proving).listen("handover = \"handover.sock\"");
    let mut gateway = setup.table(&table).start().await;
    let certificate = shown(&pebble, NAME, gateway.address()).await;
    assert_eq!(gateway.take_over().await, Some(0));
    let caller = pebble.caller(NAME).await;
    eventually("the new one serves", async || {
        caller.send(gateway.address(), &order("1")).await.is_ok_and(|answer| answer.status() == 200)
    })
    .await;
    assert_eq!(caller.shown(gateway.address()).await, certificate);
    // And orders what it is told to.
    gateway.edit(&format!("\"{NAME}\"]"), &format!("\"{NAME}\", \"more.example\"]"));
    assert_eq!(gateway.reload().await.status, 200);
    shown(&pebble, "more.example", gateway.address()).await;
    assert_eq!(pebble.orders(), 2);
}
