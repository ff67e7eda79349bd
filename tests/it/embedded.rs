//! The embedded default under load: SQLite and the in-process store, nothing else installed.

use std::time::Duration;

use crate::cli::{stderr, stdout, umavez};
use crate::support::{Gateway, ORDERS, Pair, Reply, Stores, Upstream, durable_toml, eventually, order};

#[tokio::test]
async fn fifty_workers_meet_no_locked_database() {
    // EMB-1: read-then-write transactions failed at once with "database is locked".
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).start().await;
    let address = gateway.address();
    let workers: Vec<_> = (0..50)
        .map(|worker| {
            tokio::spawn(async move {
                let mut connection = crate::support::Connection::to(address).await;
                for n in 0..60 {
                    // Every third is a repeat of the one before.
                    let id = if n % 3 == 2 { n - 1 } else { n };
                    let answer = connection.send(&order(&format!("w{worker}-{id}"))).await;
                    assert_eq!(answer.status, 200, "{}", answer.text());
                    assert_eq!(answer.verdict(), if n % 3 == 2 { "duplicate" } else { "first" });
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
    assert_eq!(upstream.received(), 50 * 40);
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.value("umavez_items_total", &[("verdict", "first")]), 2000.0);
    assert_eq!(metrics.value("umavez_items_total", &[("verdict", "duplicate")]), 1000.0);
}

#[tokio::test]
async fn memory_and_files_stay_bounded_under_many_ids() {
    // EMB-3: a "bounded" in-memory set that never evicted, or a cap that only dropped what had expired.
    let upstream = Upstream::answering(200, "").await;
    let route = format!("{ORDERS}hot_ttl = \"2s\"\ndurable_ttl = \"2s\"\n");
    let gateway = Gateway::in_front_of(&upstream).route(&route).start().await;
    let address = gateway.address();
    let mut sizes = Vec::new();
    let mut memory = Vec::new();
    for round in 0..4 {
        let workers: Vec<_> = (0..32)
            .map(|worker| {
                tokio::spawn(async move {
                    let mut connection = crate::support::Connection::to(address).await;
                    for n in 0..60 {
                        connection.send(&order(&format!("{round}-{worker}-{n}"))).await;
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.await.unwrap();
        }
        // Longer than the window: the next round finds the rows of this one expired.
        tokio::time::sleep(Duration::from_millis(2500)).await;
        sizes.push(folder_bytes(&gateway));
        memory.push(gateway.memory().0);
    }
    assert!(sizes[3] < sizes[0] * 3 + (8 << 20), "files: {sizes:?}");
    assert!(memory[3] < memory[0] + 24 * 1024, "memory: {memory:?} KiB");
}

#[tokio::test]
async fn what_it_keeps_is_its_own_users_to_read() {
    // Outside the unit, whose umask hides it, the database was made for everybody to read, with the requests of
    // held events and the tokens in them.
    use std::os::unix::fs::PermissionsExt as _;
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).start().await;
    assert_eq!(gateway.send(&order("a")).await.verdict(), "first");
    let mut seen = Vec::new();
    for file in std::fs::read_dir(gateway.folder()).unwrap().map(Result::unwrap) {
        let name = file.file_name().to_string_lossy().into_owned();
        if name.starts_with("umavez.db") {
            let mode = file.metadata().unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, 0o600, "{name} is {mode:o}");
            seen.push(name);
        }
    }
    seen.sort();
    assert_eq!(seen, ["umavez.db", "umavez.db-shm", "umavez.db-wal", "umavez.db.lock"]);
}

/// `umavez.db` was deleted, or another file put in its place, while the gateway ran: it wrote on into the file that nobody
/// could find any more, was ready, told success for events that it held, and all of it was gone with the process.
#[tokio::test]
async fn a_file_that_is_taken_away_takes_no_event_with_it() {
    let upstream = Upstream::answering(200, "made").await;
    let mut gateway = Gateway::in_front_of(&upstream).start().await;
    assert_eq!(gateway.send(&order("before")).await.verdict(), "first");
    let file = gateway.folder().join("umavez.db");
    let aside = gateway.folder().join("aside.db");
    std::fs::rename(&file, &aside).unwrap();
    for replaced in [false, true] {
        if replaced {
            std::fs::write(&file, "").unwrap();
        }
        let answer = gateway.send(&order("meanwhile")).await;
        assert_eq!((answer.status, answer.verdict().as_str()), (503, "unavailable"));
        assert_eq!(gateway.send(&order("before")).await.verdict(), "duplicate", "that the process knows");
        assert_eq!(gateway.ask_admin("GET", "/ready").await.status, 503);
    }
    assert_eq!(std::fs::metadata(&file).unwrap().len(), 0, "it wrote into a file that isn't its own");
    assert!(gateway.logs().contains("umavez.db was removed or replaced while it was in use: put it back"));
    std::fs::rename(&aside, &file).unwrap();
    eventually("the file's return", async || gateway.send(&order("meanwhile")).await.status == 200).await;
    gateway.restart().await;
    for id in ["before", "meanwhile"] {
        assert_eq!(gateway.send(&order(id)).await.verdict(), "duplicate", "{id}");
    }
    assert_eq!(upstream.received(), 2);
}

/// Whoever went from SQLite to Postgres began with nothing, and no page said so: copies were new events, and what was held
/// was out of sight, though its senders had been told success.
#[tokio::test]
async fn what_a_file_knows_goes_to_postgres() {
    let upstream = Upstream::scripted([Reply::new(201, "made"), Reply::hang_up(), Reply::new(200, "")]).await;
    let route = format!("{ORDERS}on_unknown = \"hold\"\n");
    let mut gateway = Gateway::in_front_of(&upstream).route(&route).start().await;
    assert_eq!(gateway.send(&order("tab\\t \\u00e9'\\\\")).await.verdict(), "first");
    assert_eq!(gateway.send(&order("unclear")).await.verdict(), "held");
    gateway.terminate();
    assert_eq!(gateway.wait_exit().await, Some(0));

    let stores = Stores::open(Pair::MemoryPostgres).await;
    let toml =
        format!("[upstream]\nurl = \"{}\"\n{}{route}", upstream.url(), durable_toml(&stores.postgres_url()));
    let new = gateway.folder().join("new.toml");
    std::fs::write(&new, toml).unwrap();
    let checked = umavez(&["check", "--config", &new.display().to_string()]);
    assert!(stdout(&checked).contains("durable   answers"), "{}", stderr(&checked));
    assert!(stderr(&checked).contains("umavez.db lies beside this file"), "{}", stderr(&checked));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/to_postgres.py");
    // A second run does no harm.
    for _ in 0..2 {
        let moved = std::process::Command::new("bash")
            .args([
                "-e",
                "-o",
                "pipefail",
                "-c",
                "python3 \"$0\" \"$1\" | psql -X -1 -v ON_ERROR_STOP=1 \"$2\"",
            ])
            .args([script, &gateway.folder().join("umavez.db").display().to_string(), &stores.postgres_url()])
            .output()
            .unwrap();
        assert!(moved.status.success(), "{}", stderr(&moved));
    }

    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(&route).start().await;
    let copy = gateway.send(&order("tab\\t \\u00e9'\\\\")).await;
    assert_eq!((copy.status, copy.text().as_str(), copy.verdict().as_str()), (201, "made", "duplicate"));
    assert_eq!(gateway.send(&order("unclear")).await.verdict(), "held");
    let replayed = gateway.ask_admin("POST", "/events/replay?key=orders:unclear").await;
    assert_eq!(replayed.status, 200, "{}", replayed.text());
    assert_eq!(upstream.requests().last().unwrap().text(), r#"{"id":"unclear"}"#);
    assert_eq!(gateway.send(&order("unclear")).await.verdict(), "duplicate");
    assert_eq!(upstream.received(), 3);
}

fn folder_bytes(gateway: &Gateway) -> u64 {
    let files = std::fs::read_dir(gateway.folder()).unwrap();
    files.map(|file| file.unwrap().metadata().map_or(0, |metadata| metadata.len())).sum()
}
