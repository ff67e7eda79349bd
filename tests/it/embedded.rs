//! The embedded default under load: SQLite and the in-process store, nothing else installed.

use std::time::Duration;

use crate::support::{Gateway, ORDERS, Upstream, order};

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

fn folder_bytes(gateway: &Gateway) -> u64 {
    let files = std::fs::read_dir(gateway.folder()).unwrap();
    files.map(|file| file.unwrap().metadata().map_or(0, |metadata| metadata.len())).sum()
}
