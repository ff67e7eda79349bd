//! Certificates that change while senders send: nobody is refused, and what is broken is not taken.

use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::caller::{Caller, HTTP_1, HTTP_2};
use super::pki::{Authority, Folder, Issued};
use crate::support::{Gateway, Upstream, eventually, order, unix_seconds};

const NOT_AFTER: &str = "umavez_certificate_not_after_timestamp_seconds";
const CURRENT: &str = "umavez_certificate_current";

async fn until_shown(gateway: &Gateway, name: &str, issued: &Issued) {
    eventually("the new certificate is shown", async || {
        Caller::blind(name).shown(gateway.address()).await == issued.der()
    })
    .await;
}

/// Sends events one after the other, on a kept connection and on new ones, until told to stop; how many.
fn traffic(caller: Caller, gateway: &Gateway, stop: &Arc<AtomicBool>) -> tokio::task::JoinHandle<usize> {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let (address, stop) = (gateway.address(), Arc::clone(stop));
    tokio::spawn(async move {
        let mut kept = caller.open(address).await.unwrap();
        let mut sent = 0;
        while !stop.load(Ordering::Relaxed) {
            let next = || order(&NUMBER.fetch_add(1, Ordering::Relaxed).to_string());
            assert_eq!(kept.send(&next()).await.unwrap().status(), 200);
            assert_eq!(caller.send(address, &next()).await.unwrap().status(), 200);
            sent += 2;
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        sent
    })
}

#[tokio::test]
async fn a_renewed_certificate_is_taken_under_traffic_and_a_broken_one_is_not() {
    // PRX-15: a renewed certificate was not picked up, and the endpoint died on its expiry day.
    let (authority, folder) = (Authority::new(), Folder::new());
    let app = Upstream::answering(200, "").await;
    let old = authority.issue_until(&["hooks.example"], unix_seconds() + 20 * 86_400);
    let pair = folder.pair("hooks", &old);
    let gateway =
        Gateway::in_front_of(&app).table(&format!("[public_tls]\ncertificates = {pair}")).start().await;
    let file = folder.path().join("hooks.pem").display().to_string();
    let labels = [("side", "public"), ("file", file.as_str())];
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.value(NOT_AFTER, &labels), seconds(&old));
    assert_eq!(metrics.value(CURRENT, &labels), 1.0);

    let stop = Arc::new(AtomicBool::new(false));
    let senders = [HTTP_1, HTTP_2].map(|offered| {
        let caller = Caller::trusting(&authority, "hooks.example").offering(&[offered]);
        traffic(caller, &gateway, &stop)
    });

    // Renewed: chain first, key a moment later, as it happens.
    let new = authority.issue(&["hooks.example"]);
    folder.pair("hooks", &new);
    until_shown(&gateway, "hooks.example", &new).await;
    gateway.until_metric(NOT_AFTER, &labels, seconds(&new)).await;
    assert_eq!(gateway.metrics().await.value(CURRENT, &labels), 1.0);

    // A key that belongs to another certificate; then a file that isn't whole.
    let other = authority.issue(&["hooks.example"]);
    folder.put("hooks.key", &other.key);
    gateway.until_metric(CURRENT, &labels, 0.0).await;
    folder.put("hooks.key", &new.key);
    gateway.until_metric(CURRENT, &labels, 1.0).await;
    let half = other.chain.split_at(other.chain.len() / 2).0;
    folder.put("hooks.pem", half);
    gateway.until_metric(CURRENT, &labels, 0.0).await;
    assert!(Caller::blind("hooks.example").shown(gateway.address()).await == new.der());
    assert_eq!(gateway.metrics().await.value(NOT_AFTER, &labels), seconds(&new));

    // And mended.
    folder.pair("hooks", &other);
    until_shown(&gateway, "hooks.example", &other).await;
    gateway.until_metric(CURRENT, &labels, 1.0).await;

    stop.store(true, Ordering::Relaxed);
    for sender in senders {
        assert!(sender.await.unwrap() > 10);
    }
    let logs = gateway.log_lines();
    let refused = |what: &str| {
        let line = logs.iter().find(|line| line["level"] == "ERROR" && line.to_string().contains(what));
        let line = line.unwrap_or_else(|| panic!("no line says {what}: {logs:#?}"));
        assert!(line["mend"].as_str().is_some_and(|mend| !mend.is_empty()), "{line}");
        line["file"].as_str().unwrap().to_owned()
    };
    assert!(refused("the key does not belong to the certificate in").ends_with("hooks.key"));
    assert!(refused("is no PEM").ends_with("hooks.pem"));
    assert!(!gateway.logs().contains(old.key.lines().nth(1).unwrap()), "a key is in the log");
}

#[tokio::test]
async fn one_broken_pair_holds_up_no_other() {
    let (authority, folder) = (Authority::new(), Folder::new());
    let app = Upstream::answering(200, "").await;
    let (a, b) = (authority.issue(&["a.example"]), authority.issue(&["b.example"]));
    // The second pair lies behind links, as certbot and Kubernetes keep it: renewed, the link leads elsewhere.
    folder.pair("b-1", &b);
    for ending in ["pem", "key"] {
        symlink(format!("b-1.{ending}"), folder.path().join(format!("b.{ending}"))).unwrap();
    }
    let linked = folder.pair("a", &a).replace("/a.", "/b.");
    let pairs = [folder.pair("a", &a), linked].join(", ");
    let gateway =
        Gateway::in_front_of(&app).table(&format!("[public_tls]\ncertificates = [{pairs}]")).start().await;
    std::fs::remove_file(folder.path().join("a.key")).unwrap();
    let renewed = authority.issue(&["b.example", "more.example"]);
    folder.pair("b-2", &renewed);
    for ending in ["pem", "key"] {
        let new = folder.path().join(format!("new.{ending}"));
        symlink(format!("b-2.{ending}"), &new).unwrap();
        std::fs::rename(&new, folder.path().join(format!("b.{ending}"))).unwrap();
    }
    until_shown(&gateway, "b.example", &renewed).await;
    assert!(
        Caller::blind("more.example").shown(gateway.address()).await == renewed.der(),
        "a new name counts"
    );
    assert!(Caller::blind("a.example").shown(gateway.address()).await == a.der());
    let current = async |name: &str| {
        let file = folder.path().join(name).display().to_string();
        gateway.metrics().await.value(CURRENT, &[("file", &file)])
    };
    assert_eq!((current("a.pem").await, current("b.pem").await), (0.0, 1.0));
}

#[expect(clippy::cast_precision_loss, reason = "seconds since the epoch are far below what a float holds")]
fn seconds(issued: &Issued) -> f64 {
    issued.not_after as f64
}
