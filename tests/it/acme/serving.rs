//! What is ordered is served: beside files, after a restart, renewed, and for the names that a reload says.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::pebble::{CUSTOMER, NAME, Pebble, Settings, errors, file_of, shown};
use crate::support::{Gateway, Upstream, eventually, order, unix_seconds};
use crate::tls::caller::{Caller, HTTP_1, HTTP_2};
use crate::tls::pki::{Authority, Folder};

const CURRENT: &str = "umavez_certificate_current";
const NOT_AFTER: &str = "umavez_certificate_not_after_timestamp_seconds";
const ORDERS: &str = "umavez_acme_orders_total";
const HANDSHAKES: &str = "umavez_tls_handshakes_total";

/// Every file under a folder, with its rights.
fn files(folder: &Path) -> Vec<(String, u32)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let mode = path.metadata().unwrap().permissions().mode() & 0o777;
        found.push((path.display().to_string(), mode));
        if path.is_dir() {
            found.extend(files(&path));
        }
    }
    found
}

#[tokio::test]
async fn a_name_is_ordered_proved_and_served_beside_files_and_kept_over_a_restart() {
    let pebble = Pebble::start().await;
    let (authority, folder) = (Authority::new(), Folder::new());
    let app = Upstream::answering(200, "").await;
    let filed = authority.issue(&["files.example"]);
    let clients = folder.put("clients.pem", &authority.pem);
    // An authority presents no certificate: who asks callers for one must not ask it.
    let tls = format!(
        "[public_tls]\ncertificates = {}\nclient_ca = \"{}\"\n",
        folder.pair("files", &filed),
        clients.display()
    );
    let cache = folder.path().join("state/acme");
    let table = pebble.table(&format!("\"{NAME}\""), &cache);
    let mut gateway =
        Gateway::in_front_of(&app).at(pebble.proving).table(&format!("{tls}{table}")).start().await;
    let refused = [("result", "failed")];
    let labels = [("side", "public"), ("result", "challenge")];
    gateway.until_metric(ORDERS, &[("result", "ok")], 1.0).await;
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.value(ORDERS, &refused), 0.0, "{}", gateway.logs());
    assert!(metrics.value(HANDSHAKES, &labels) >= 1.0, "{}", metrics.text());
    assert_eq!(metrics.value(HANDSHAKES, &refused), 0.0, "a look at a proof is no failure");
    assert_eq!(metrics.value(HANDSHAKES, &[("result", "ok")]), 0.0, "nor a caller");
    assert_eq!(app.received(), 0);

    // Senders: the ordered name by either HTTP, the other by its file; each has to show who it is.
    let client = authority.issue(&["sender.example"]);
    for (id, offered) in [("1", HTTP_1), ("2", HTTP_2)] {
        let caller = pebble.caller(NAME).await.presenting(&client).offering(&[offered]);
        let answer = caller.send(gateway.address(), &order(id)).await.unwrap();
        assert_eq!(answer.status(), 200);
    }
    assert_eq!(app.received(), 2);
    let other = Caller::showing(&authority, "files.example", &client);
    assert_eq!(other.shown(gateway.address()).await, filed.der());
    // Whoever asks for proof where nothing is being proved, and by the way for HTTP.
    let asking = Caller::blind(NAME).offering(&[b"acme-tls/1"]);
    assert!(asking.connect(gateway.address()).await.is_err());
    gateway.until_metric(HANDSHAKES, &refused, 1.0).await;
    let both = Caller::showing(&authority, "files.example", &client).offering(&[b"acme-tls/1", HTTP_1]);
    assert_eq!(both.send(gateway.address(), &order("3")).await.unwrap().status(), 200);

    let file = file_of(&gateway, NAME).await;
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.value(CURRENT, &[("file", &file)]), 1.0);
    let days = (metrics.value(NOT_AFTER, &[("file", &file)]) - unix_seconds() as f64) / 86_400.0;
    assert!((89.0..=90.0).contains(&days), "{days}");
    for (path, mode) in files(&cache) {
        let right = if Path::new(&path).is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode, right, "{path}: {mode:o}");
        assert!(!path.contains("challenges/"), "{path} is left");
    }

    let caller = pebble.caller(NAME).await.presenting(&client);
    let before = caller.shown(gateway.address()).await;
    gateway.restart().await;
    assert_eq!(caller.shown(gateway.address()).await, before);
    assert_eq!(pebble.orders(), 1);
    let key = std::fs::read_to_string(&file).unwrap();
    let secret = key.split("PRIVATE KEY-----").nth(1).unwrap().lines().nth(1).unwrap();
    assert!(!gateway.logs().contains(secret));
}

#[tokio::test]
async fn a_certificate_is_renewed_before_it_ends() {
    // A third of its life is eight seconds: time enough for a busy machine.
    let pebble = Pebble::of(Settings { seconds: 24, ..Settings::default() }).await;
    let (app, folder) = (Upstream::answering(200, "").await, Folder::new());
    let table = pebble.table(&format!("\"{NAME}\""), &folder.path().join("acme"));
    let gateway = Gateway::in_front_of(&app).at(pebble.proving).table(&table).start().await;
    let first = shown(&pebble, NAME, gateway.address()).await;
    let caller = pebble.caller(NAME).await;
    eventually("another is shown", async || caller.shown(gateway.address()).await != first).await;
    gateway.until_metric(ORDERS, &[("result", "ok")], 2.0).await;
    assert_eq!(gateway.metrics().await.value(ORDERS, &[("result", "failed")]), 0.0);
    assert_eq!(caller.send(gateway.address(), &order("1")).await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_reload_adds_names_and_takes_others_away() {
    let pebble = Pebble::start().await;
    let (app, folder) = (Upstream::answering(200, "").await, Folder::new());
    let table = pebble.table("\"a.example\", \"b.example\"", &folder.path().join("acme"));
    let gateway = Gateway::in_front_of(&app).at(pebble.proving).table(&table).start().await;
    let a = shown(&pebble, "a.example", gateway.address()).await;
    let b = shown(&pebble, "b.example", gateway.address()).await;
    assert_ne!(a, b);

    gateway.edit("\"a.example\", \"b.example\"", "\"b.example\", \"c.example\"");
    let answer = gateway.reload().await;
    assert!(answer.status == 200 && answer.text().contains("public_tls"), "{}", answer.text());
    let c = shown(&pebble, "c.example", gateway.address()).await;
    assert_eq!(shown(&pebble, "b.example", gateway.address()).await, b, "it was not ordered again");
    assert!(c != b && pebble.orders() == 3);
    // Who asks for a name that nobody has is shown the first.
    assert_eq!(Caller::blind("a.example").shown(gateway.address()).await, b);
    let metrics = gateway.metrics().await;
    let shown_now = |name: &str| {
        let series = metrics.text().lines().find(|line| line.starts_with(CURRENT) && line.contains(name));
        series.unwrap_or_else(|| panic!("{name}: {}", metrics.text())).ends_with(" 1")
    };
    assert!(!shown_now("/a.example.pem") && shown_now("/b.example.pem") && shown_now("/c.example.pem"));

    // And back: what the cache holds is still good.
    gateway.edit("\"c.example\"]", "\"a.example\"]");
    assert_eq!(gateway.reload().await.status, 200);
    assert_eq!(pebble.caller("a.example").await.shown(gateway.address()).await, a);
    assert_eq!(pebble.orders(), 3);
}

#[tokio::test]
async fn an_authority_with_customers_takes_orders_from_an_external_account() {
    let pebble = Pebble::of(Settings { customers_only: true, ..Settings::default() }).await;
    let (app, folder) = (Upstream::answering(200, "").await, Folder::new());
    let table = pebble.table(&format!("\"{NAME}\""), &folder.path().join("acme"));
    let setup = Gateway::in_front_of(&app).at(pebble.proving).table(&table).env("EAB_KEY", CUSTOMER.1);
    let gateway = setup.env("EAB_WRONG", "AAAA").start().await;
    gateway.until_metric(ORDERS, &[("result", "failed")], 1.0).await;
    let external = |key: &str| {
        let id = CUSTOMER.0;
        format!("terms_agreed = true\nexternal_account = {{ id = \"{id}\", key = \"${{{key}}}\" }}")
    };
    gateway.edit("terms_agreed = true", &external("EAB_WRONG"));
    assert_eq!(gateway.reload().await.status, 200);
    gateway.until_metric(ORDERS, &[("result", "failed")], 2.0).await;
    gateway.edit("EAB_WRONG", "EAB_KEY");
    assert_eq!(gateway.reload().await.status, 200);
    shown(&pebble, NAME, gateway.address()).await;

    let failed: Vec<String> = errors(&gateway, 2).await.iter().map(ToString::to_string).collect();
    assert_eq!(failed.len(), 2, "{failed:#?}");
    assert!(failed[0].contains("externalAccountRequired") && failed[0].contains("external_account to"));
    assert!(failed[1].contains("unauthorized") && failed[1].contains("external_account is what"));
    assert!(!gateway.logs().contains(CUSTOMER.1));
}
