//! Limits that make others wait: connections, open files, and writes for the durable store. What an operator sees of them, and
//! that a crowd on the admin listener keeps no probe out.

use std::process::Command;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::stores_down::wired;
use crate::support::{
    Delivery, Gateway, Line, ORDERS, Pair, Stores, Upstream, eventually, free_port, order, send, within,
};

/// How often the log says this.
fn told(gateway: &Gateway, what: &str) -> usize {
    let says = |line: &serde_json::Value| line["message"].as_str().is_some_and(|said| said.contains(what));
    gateway.log_lines().iter().filter(|line| says(line)).count()
}

#[tokio::test]
async fn a_full_listener_is_counted_and_told_once() {
    // Past `connections_max` the next sender hung, and neither a metric nor a log line said why.
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).table("[limits]\nconnections_max = 2").start().await;
    let open = [("listener", "public")];
    let first = TcpStream::connect(gateway.address()).await.unwrap();
    let second = TcpStream::connect(gateway.address()).await.unwrap();
    let metrics = gateway.until_metric("umavez_connections", &open, 2.0).await;
    assert_eq!(metrics.value("umavez_connections_max", &open), 2.0);
    assert_eq!(told(&gateway, "every connection is taken"), 0);

    let waiting = [gateway.sending(&order("one")), gateway.sending(&order("two"))];
    eventually("a line", async || told(&gateway, "every connection is taken") > 0).await;
    drop((first, second));
    for answer in waiting {
        assert_eq!(answer.await.unwrap().verdict(), "first");
    }
    gateway.until_metric("umavez_connections", &open, 0.0).await;
    assert_eq!(told(&gateway, "every connection is taken"), 1);
}

#[tokio::test]
async fn writes_that_wait_are_counted_and_told_once() {
    // How many writes waited for the durable store, and that no more might, showed nowhere.
    let stores = Stores::open(Pair::MemoryPostgres).await;
    let (wire, toml) = wired(&stores, "1m").await;
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream)
        .stores_toml(&toml)
        .table("[limits]\nwaiting_writes_max = 16")
        .start()
        .await;
    assert_eq!(gateway.send(&order("before")).await.status, 200);
    wire.set(Line::Stalled);
    // The first batches take some along; what comes then fills the queue.
    let waiting: Vec<_> = (0..400).map(|n| gateway.sending(&order(&format!("w{n}")))).collect();
    eventually("a line", async || told(&gateway, "too many writes wait") > 0).await;
    let metrics = gateway.until_metric("umavez_waiting_writes", &[("queue", "claims")], 16.0).await;
    assert_eq!(metrics.value("umavez_waiting_writes_max", &[]), 16.0);
    wire.resume();
    let mut refused = 0;
    for answer in waiting {
        let answer = answer.await.unwrap();
        assert!([200, 503].contains(&answer.status), "{}", answer.status);
        refused += usize::from(answer.status == 503);
    }
    assert!(refused > 0);
    gateway.until_metric("umavez_waiting_writes", &[], 0.0).await;
    assert_eq!(told(&gateway, "too many writes wait"), 1);
}

/// A process that ends with its story.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[tokio::test]
async fn as_many_files_may_be_open_as_the_system_allows_and_too_few_are_told() {
    // 10,000 connections were allowed where 1,024 files may be open, and past these nobody was let in.
    let upstream = Upstream::answering(200, "").await;
    let folder = tempfile::tempdir().unwrap();
    let (public, admin) = (free_port(), free_port());
    let config = folder.path().join("umavez.toml");
    let log = folder.path().join("log");
    std::fs::write(
        &config,
        format!(
            "[listen]\npublic = \"127.0.0.1:{public}\"\nadmin = \"127.0.0.1:{admin}\"\n\
             [upstream]\nurl = \"{}\"\n{ORDERS}",
            upstream.url()
        ),
    )
    .unwrap();
    let within_files = |limits: &str, command: &str| {
        let mut started = Command::new("prlimit");
        started.args([&format!("--nofile={limits}"), "--", env!("CARGO_BIN_EXE_umavez"), command]);
        if command == "check" {
            started.arg("--offline");
        }
        started.arg("--config").arg(&config);
        started
    };
    let gateway =
        within_files("512:4096", "run").stderr(std::fs::File::create(&log).unwrap()).spawn().unwrap();
    let gateway = Running(gateway);
    let told = || std::fs::read_to_string(&log).unwrap();
    eventually("its start", async || told().contains("\"listening\"")).await;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", gateway.0.id())).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(files.split_whitespace().skip(3).take(2).collect::<Vec<_>>(), ["4096", "4096"]);
    assert!(told().contains("10000 connections take 20000 open files, and this process may have 4096"));

    for (limits, warned) in [("512:4096", true), ("512:20000", false)] {
        let output = within_files(limits, "check").output().unwrap();
        assert!(output.status.success());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let line = "limits.connections_max: 10000 connections take 20000 open files";
        assert_eq!(said.contains(line), warned, "{limits}: {said}");
    }
}

#[tokio::test]
async fn idle_connections_to_the_admin_listener_make_room_for_a_probe() {
    // Eighty connections that sent nothing made /live wait until their time was over.
    let upstream = Upstream::answering(200, "").await;
    let patient = "[limits]\nheader_timeout = \"1h\"\nidle_timeout = \"1h\"";
    let gateway = Gateway::in_front_of(&upstream).table(patient).start().await;
    let mut idle = Vec::new();
    for n in 0..80 {
        let mut stream = TcpStream::connect(gateway.admin()).await.unwrap();
        match n {
            // Half of a head, and one that is kept alive after its answer.
            0..20 => stream.write_all(b"GET /li").await.unwrap(),
            20..40 => {
                stream.write_all(b"GET /live HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
                let mut head = [0; 12];
                within("an answer", stream.read_exact(&mut head)).await.unwrap();
                assert_eq!(&head, b"HTTP/1.1 200");
            }
            _ => {}
        }
        idle.push(stream);
    }
    let live = within("/live", send(gateway.admin(), &Delivery::new("GET", "/live"))).await;
    assert_eq!(live.status, 200);
}
