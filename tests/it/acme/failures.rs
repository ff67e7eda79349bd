//! What doesn't come off: the listener goes on with what it has, says why, and tries again.

use std::net::TcpListener;

use super::directory::{Directory, Manner};
use super::pebble::{NAME, Pebble, Settings, errors, file_of, files, shown};
use crate::support::{Gate, Gateway, Upstream, eventually, order};
use crate::tls::caller::Caller;
use crate::tls::pki::{Authority, Folder};

const CURRENT: &str = "umavez_certificate_current";
const ORDERS: &str = "umavez_acme_orders_total";

#[tokio::test]
async fn without_the_directory_the_listener_is_up_and_only_that_name_has_to_wait() {
    let mut pebble = Pebble::down(Settings::default());
    let (authority, folder) = (Authority::new(), Folder::new());
    let app = Upstream::answering(200, "").await;
    let pair = folder.pair("files", &authority.issue(&["files.example"]));
    let table = pebble.table(&format!("\"{NAME}\""), &folder.path().join("acme"));
    let tls = format!("[public_tls]\ncertificates = {pair}\n{table}");
    let gateway = Gateway::in_front_of(&app).at(pebble.proving).table(&tls).start().await;
    gateway.until_metric(ORDERS, &[("result", "failed")], 1.0).await;
    let file = file_of(&gateway, NAME).await;
    assert_eq!(gateway.metrics().await.value(CURRENT, &[("file", &file)]), 0.0);
    let line = errors(&gateway, 1).await.remove(0);
    assert_eq!((&line["name"], line["mend"].is_string()), (&NAME.into(), true), "{line}");
    assert!(line.to_string().contains("the directory can't be used"), "{line}");

    // The authority has to come through, so a balancer has to send people here: it is ready.
    assert_eq!(gateway.ask_admin("GET", "/ready").await.status, 200);
    let awaited = Caller::blind(NAME).connect(gateway.address()).await.map(|_| ()).unwrap_err();
    assert!(awaited.to_string().contains("AccessDenied"), "an alert, not a reset: {awaited}");
    let other = Caller::trusting(&authority, "files.example");
    assert_eq!(other.send(gateway.address(), &order("1")).await.unwrap().status(), 200);

    pebble.come_up().await;
    assert_eq!(gateway.reload().await.status, 200, "it is told to try at once");
    shown(&pebble, NAME, gateway.address()).await;
    gateway.until_metric(CURRENT, &[("file", &file)], 1.0).await;
}

#[tokio::test]
async fn a_renewal_that_fails_leaves_the_old_certificate_in_use() {
    let mut pebble = Pebble::of(Settings { seconds: 15, ..Settings::default() }).await;
    let (app, folder) = (Upstream::answering(200, "").await, Folder::new());
    let table = pebble.table(&format!("\"{NAME}\""), &folder.path().join("acme"));
    let gateway = Gateway::in_front_of(&app).at(pebble.proving).table(&table).start().await;
    shown(&pebble, NAME, gateway.address()).await;
    pebble.go_down();
    let file = file_of(&gateway, NAME).await;
    // Whatever was under way when it went ends first.
    gateway.until_metric(CURRENT, &[("file", &file)], 0.0).await;
    let old = Caller::blind(NAME).shown(gateway.address()).await;
    let failed = gateway.metrics().await.value(ORDERS, &[("result", "failed")]);
    assert_eq!(gateway.reload().await.status, 200);
    gateway.until_metric(ORDERS, &[("result", "failed")], failed + 1.0).await;
    assert_eq!(Caller::blind(NAME).shown(gateway.address()).await, old);
    assert_eq!(
        gateway.metrics().await.value(CURRENT, &[("file", &file)]),
        0.0,
        "a reload mends nothing by itself"
    );

    // It comes back without its memory: our account is unknown there, and a new one is made.
    pebble.come_up().await;
    assert_eq!(gateway.reload().await.status, 200);
    gateway.until_metric(CURRENT, &[("file", &file)], 1.0).await;
    let caller = pebble.caller(NAME).await;
    eventually("the new root's certificate is shown", async || {
        caller.connect(gateway.address()).await.is_ok()
    })
    .await;
    eventually("it is said", async || gateway.logs().contains("the directory does not know our account"))
        .await;
}

#[tokio::test]
async fn a_name_that_leads_elsewhere_is_told_with_a_mend_and_holds_up_no_other() {
    let pebble = Pebble::start().await;
    let (app, folder) = (Upstream::answering(200, "").await, Folder::new());
    // Where the authority looks nobody speaks TLS.
    let elsewhere = TcpListener::bind(pebble.proving).unwrap();
    let cache = folder.path().join("acme");
    let table = pebble.table("\"a.example\", \"b.example\"", &cache);
    let gateway = Gateway::in_front_of(&app).table(&table).start().await;
    let hanging_up = std::thread::spawn(move || {
        for stream in elsewhere.incoming().take(2) {
            drop(stream);
        }
    });
    gateway.until_metric(ORDERS, &[("result", "failed")], 2.0).await;
    hanging_up.join().unwrap();
    let errors = errors(&gateway, 2).await;
    let names: Vec<&str> = errors.iter().filter_map(|line| line["name"].as_str()).collect();
    assert_eq!(names, ["a.example", "b.example"], "each was tried");
    for line in errors {
        assert!(line["mend"].as_str().unwrap().contains("port 443"), "{line}");
        let pause = line["next_try_in_seconds"].as_u64().unwrap();
        assert!((290..=330).contains(&pause), "{line}");
    }
    assert_eq!(pebble.orders(), 2, "not again at once");
}

#[tokio::test]
async fn refused_nonces_are_asked_for_anew() {
    let pebble = Pebble::of(Settings { nonces_refused: 30, ..Settings::default() }).await;
    let (app, folder) = (Upstream::answering(200, "").await, Folder::new());
    let names: Vec<String> = (0..6).map(|n| format!("\"n{n}.example\"")).collect();
    let table = pebble.table(&names.join(", "), &folder.path().join("acme"));
    let gateway = Gateway::in_front_of(&app).at(pebble.proving).table(&table).start().await;
    // Three refusals in a row end an order: now and then it takes another try.
    eventually("each name is served", async || {
        for n in 0..6 {
            let caller = pebble.caller(&format!("n{n}.example")).await;
            if caller.connect(gateway.address()).await.is_err() {
                if gateway.metrics().await.value(ORDERS, &[("result", "failed")]) > 0.0 {
                    gateway.reload().await;
                }
                return false;
            }
        }
        true
    })
    .await;
    // Each was sent at least once, and what was refused once more.
    let steps = ["order-plz", "chalZ/", "finalize-order/", "certZ/"];
    let sent = pebble
        .log()
        .lines()
        .filter(|line| steps.iter().any(|step| line.contains(&format!("POST /{step}"))))
        .count();
    assert!(sent > steps.len() * names.len(), "none was refused: {sent}");
}

#[tokio::test]
async fn a_cache_that_holds_rubbish_is_ordered_anew() {
    let pebble = Pebble::start().await;
    let (app, folder) = (Upstream::answering(200, "").await, Folder::new());
    let table = pebble.table(&format!("\"{NAME}\""), &folder.path().join("acme"));
    let mut gateway = Gateway::in_front_of(&app).at(pebble.proving).table(&table).start().await;
    let first = shown(&pebble, NAME, gateway.address()).await;
    let file = file_of(&gateway, NAME).await;
    // While it runs, what was read before stays; a start has nothing else, and orders.
    std::fs::write(&file, "rubbish").unwrap();
    gateway.until_metric(CURRENT, &[("file", &file)], 0.0).await;
    assert_eq!(pebble.caller(NAME).await.shown(gateway.address()).await, first);
    gateway.restart().await;
    assert_ne!(shown(&pebble, NAME, gateway.address()).await, first);
    gateway.until_metric(CURRENT, &[("file", &file)], 1.0).await;
}

#[tokio::test]
async fn a_directory_that_asks_to_be_left_alone_is_left_alone() {
    let (folder, app) = (Folder::new(), Upstream::answering(200, "").await);
    let busy = Directory::start(Manner::Busy).await;
    let table = busy.table(&format!("\"{NAME}\""), &folder);
    let gateway = Gateway::in_front_of(&app).table(&table).env("UMAVEZ_LOG", LOOKS).start().await;
    gateway.until_metric(ORDERS, &[("result", "failed")], 1.0).await;
    let line = errors(&gateway, 1).await.remove(0);
    assert!(line["message"].as_str().unwrap().contains("503 Service Unavailable: come back later"), "{line}");
    assert!((7190..=7200).contains(&line["next_try_in_seconds"].as_u64().unwrap()), "{line}");
    let looked = looks(&gateway, 1).await.len();
    // Not even a person who reads the configuration again hurries it; what can be used at once is.
    gateway.edit(&format!("names = [\"{NAME}\"]"), &format!("names = [\"{NAME}\", \"more.example\"]"));
    assert_eq!(gateway.reload().await.status, 200);
    let more = file_of(&gateway, "more.example").await;
    gateway.until_metric(CURRENT, &[("file", &more)], 0.0).await;
    let pauses = looks(&gateway, looked + 1).await;
    assert!(pauses.iter().all(|seconds| *seconds == 3600), "as long as there can be: {pauses:?}");
    assert_eq!(busy.asked(), 1);
}

/// A directory that put one name off put off every other name with it: one over its limit held up all the rest.
#[tokio::test]
async fn a_name_that_is_put_off_holds_up_no_other() {
    let (folder, app) = (Folder::new(), Upstream::answering(200, "").await);
    let picky = Directory::start(Manner::Picky { later: "a.example" }).await;
    let table = picky.table("\"a.example\", \"b.example\"", &folder);
    let gateway = Gateway::in_front_of(&app).table(&table).start().await;
    let told = errors(&gateway, 2).await;
    let waits = |name: &str| {
        let line =
            told.iter().find(|line| line["name"] == name).unwrap_or_else(|| panic!("{name}: {told:#?}"));
        line["next_try_in_seconds"].as_u64().unwrap()
    };
    assert!((7190..=7200).contains(&waits("a.example")), "{told:#?}");
    assert!((290..=330).contains(&waits("b.example")), "{told:#?}");
    assert_eq!(picky.ordered(), ["a.example", "b.example"]);
    // Read again, the configuration hurries the one that only failed.
    assert_eq!(gateway.reload().await.status, 200);
    gateway.until_metric(ORDERS, &[("result", "failed")], 3.0).await;
    assert_eq!(picky.ordered(), ["a.example", "b.example", "b.example"]);
}

/// What one directory had asked for was kept from another that was named in its place: nothing was ordered for hours.
#[tokio::test]
async fn another_directory_is_asked_at_once() {
    let (folder, app) = (Folder::new(), Upstream::answering(200, "").await);
    let (busy, other) = (Directory::start(Manner::Busy).await, Directory::start(Manner::Busy).await);
    let table = busy.table(&format!("\"{NAME}\""), &folder);
    let gateway = Gateway::in_front_of(&app).table(&table).env("UMAVEZ_LOG", LOOKS).start().await;
    gateway.until_metric(ORDERS, &[("result", "failed")], 1.0).await;
    let roots = folder.put("both.pem", &format!("{}{}", busy.root(), other.root()));
    gateway.edit(&folder.path().join("roots.pem").display().to_string(), &roots.display().to_string());
    gateway.edit(&busy.url(), &other.url());
    assert_eq!(gateway.reload().await.status, 200);
    gateway.until_metric(ORDERS, &[("result", "failed")], 2.0).await;
    assert_eq!((busy.asked(), other.asked()), (1, 1));
    // Named again, the first is still what it asked to be: left alone.
    let looked = looks(&gateway, 2).await.len();
    gateway.edit(&other.url(), &busy.url());
    assert_eq!(gateway.reload().await.status, 200);
    looks(&gateway, looked + 1).await;
    assert_eq!((busy.asked(), other.asked()), (1, 1));
}

/// An order that failed at a directory which the configuration no longer named made the same name's certificate from
/// the directory in its place count as not current.
#[tokio::test]
async fn a_failure_at_a_directory_of_before_is_no_news_of_what_is_ordered_now() {
    let (authority, folder) = (Authority::new(), Folder::new());
    let (app, gate) = (Upstream::answering(200, "").await, Gate::closed());
    let (before, now) =
        (Directory::start(Manner::Silent(gate.clone())).await, Directory::start(Manner::Busy).await);
    let table = before.table(&format!("\"{NAME}\""), &folder);
    let gateway = Gateway::in_front_of(&app).table(&table).start().await;
    before.until_asked(1).await;
    let of_before = file_of(&gateway, NAME).await;
    gateway.edit(&before.url(), &now.url());
    assert_eq!(gateway.reload().await.status, 200);
    let metrics = gateway.metrics().await;
    let file = files(&metrics, NAME).into_iter().find(|file| *file != of_before).unwrap();
    // Another process that shares the cache has ordered there.
    let issued = authority.issue(&[NAME]);
    std::fs::write(&file, issued.chain + &issued.key).unwrap();
    gateway.until_metric(CURRENT, &[("file", &file)], 1.0).await;
    gate.open();
    gateway.until_metric(ORDERS, &[("result", "failed")], 1.0).await;
    assert_eq!(gateway.metrics().await.value(CURRENT, &[("file", &file)]), 1.0);
    assert_eq!(now.asked(), 0, "nothing is due there");
}

#[tokio::test]
async fn a_certificate_that_is_due_at_once_is_not_ordered_again_and_again() {
    let pebble = Pebble::of(Settings { seconds: 1, ..Settings::default() }).await;
    let (app, folder) = (Upstream::answering(200, "").await, Folder::new());
    let table = pebble.table(&format!("\"{NAME}\""), &folder.path().join("acme"));
    let setup = Gateway::in_front_of(&app).at(pebble.proving).table(&table).env("UMAVEZ_LOG", LOOKS);
    let gateway = setup.start().await;
    // It may have had a moment left the first time.
    gateway.until_metric(ORDERS, &[("result", "failed")], 1.0).await;
    let orders = pebble.orders();
    let line = errors(&gateway, 1).await.remove(0);
    assert!(line["mend"].as_str().unwrap().contains("clock"), "{line}");
    assert!(line["next_try_in_seconds"].as_u64().unwrap() > 290, "{line}");
    eventually("it rests", async || looks(&gateway, 1).await.last().is_some_and(|seconds| *seconds > 290))
        .await;
    assert_eq!(pebble.orders(), orders);
}

/// Logs of this level tell of each look at what is due.
const LOOKS: &str = "info,umavez::tls::acme=debug";

/// How many seconds it rests after each look at what is due, once it has looked this often.
async fn looks(gateway: &Gateway, count: usize) -> Vec<u64> {
    let pauses = || {
        let lines = gateway.log_lines().into_iter();
        let looks =
            lines.filter(|line| line["message"] == "until the next look at which certificates are due");
        looks.map(|line| line["seconds"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    eventually("a look at what is due", async || pauses().len() >= count).await;
    pauses()
}
