//! A file system that hangs: who reads from it waits, and nobody else does. A pipe under the file's name hangs as long as
//! the story wants.

use super::directory::{Directory, Manner};
use super::pebble::NAME;
use crate::support::{Gate, Gateway, Upstream, order};
use crate::tls::caller::Caller;
use crate::tls::pki::{Authority, Folder};
use crate::tls::stalled::Stalled;

const ORDERS: &str = "umavez_acme_orders_total";

/// While a certificate's file could not be read, the runtime that writes for the durable store waited with whoever read:
/// what an order came to was noted under the lock that the reader held.
#[tokio::test]
async fn a_certificate_that_cannot_be_read_holds_up_neither_events_nor_a_stop() {
    let (authority, folder) = (Authority::new(), Folder::new());
    let (app, gate) = (Upstream::answering(200, "").await, Gate::closed());
    let directory = Directory::start(Manner::Silent(gate.clone())).await;
    let pair = folder.pair("files", &authority.issue(&["files.example"]));
    let table = directory.table(&format!("\"{NAME}\""), &folder);
    let tls = format!("[public_tls]\ncertificates = {pair}\n{table}");
    let mut gateway = Gateway::in_front_of(&app).table(&tls).start().await;
    directory.until_asked(1).await;
    let reading = Stalled::put(&folder, "files.pem").reader().await;
    gate.open();
    gateway.until_metric(ORDERS, &[("result", "failed")], 1.0).await;
    let caller = Caller::trusting(&authority, "files.example");
    assert_eq!(caller.send(gateway.address(), &order("1")).await.unwrap().status(), 200);
    // And the reader waits still.
    gateway.terminate();
    assert_eq!(gateway.wait_exit().await, Some(0), "{}", gateway.logs());
    drop(reading);
}

/// The roots that a directory is trusted by were read on the runtime that writes for the durable store.
#[tokio::test]
async fn roots_of_a_directory_that_cannot_be_read_hold_up_no_event() {
    let (folder, app) = (Folder::new(), Upstream::answering(200, "").await);
    let directory = Directory::start(Manner::Busy).await;
    let table = directory.table(&format!("\"{NAME}\""), &folder);
    let roots = Stalled::put(&folder, "roots.pem");
    // The configuration's own look at it gets what it wants; whoever orders does not.
    let looked = roots.given(directory.root());
    let gateway = Gateway::in_front_of(&app).table(&table).start().await;
    looked.join().unwrap();
    let reading = roots.reader().await;
    assert_eq!(gateway.ask_admin("GET", "/live").await.status, 200);
    // Its listener has no certificate yet, so the event comes to the admin's side of the same runtime: a look-up.
    assert_eq!(gateway.ask_admin("GET", "/events?key=orders:1").await.status, 404);
    assert_eq!(directory.asked(), 0);
    reading.give(directory.root());
    gateway.until_metric(ORDERS, &[("result", "failed")], 1.0).await;
    assert_eq!(directory.asked(), 1);
}
