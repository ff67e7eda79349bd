//! Deliveries in files: what is written, what is hidden in it, its bounds, and that no request waits for it.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::support::{Delivery, Gateway, ORDERS, Upstream, order, send};

/// The captures in a folder, by their paths without endings, the oldest first.
fn captures(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let complete = entries.filter(|path| path.extension().is_some_and(|ending| ending == "headers"));
    let stems: BTreeSet<PathBuf> = complete.map(|path| path.with_extension("")).collect();
    stems.into_iter().collect()
}

/// One of a capture's files; its name may hold dots.
fn read(stem: &Path, ending: &str) -> String {
    std::fs::read_to_string(format!("{}.{ending}", stem.display())).unwrap()
}

fn umavez(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_umavez")).args(arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

async fn written(gateway: &Gateway, deliveries: u32) {
    let labels = [("route", "orders"), ("result", "written")];
    gateway.until_metric("umavez_captures_total", &labels, f64::from(deliveries)).await;
}

#[tokio::test]
async fn a_route_keeps_its_deliveries_in_files_without_credentials() {
    let upstream = Upstream::answering(200, "").await;
    let route = format!("{ORDERS}capture_dir = \"seen/here\"\nscope = \"pix\"\n");
    let gateway = Gateway::in_front_of(&upstream).route(&route).start().await;
    let delivery = |attempt: &str| {
        let body = format!(r#"{{"id" : "o-1","attempt":{attempt},"apikey":"live-5e5e","n":1.50}}"#);
        Delivery::json("/hooks?token=live-5e5e&a=%2B1", body)
            .header("Host", "hooks.example")
            .header("Authorization", "Bearer live-5e5e")
            .header("X-Attempt", attempt)
            .raw_header("X-Latin", b"caf\xe9")
    };
    gateway.send(&delivery("1")).await;
    written(&gateway, 1).await;
    assert_eq!(gateway.send(&delivery("2")).await.verdict(), "duplicate");
    written(&gateway, 2).await;
    assert!(upstream.last().text().contains("live-5e5e"), "the app gets what was sent");

    let found = captures(&gateway.folder().join("seen/here"));
    assert_eq!(found.len(), 2);
    let name = found[0].file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with("orders-20"), "{name}");
    assert_eq!(read(&found[0], "request"), "POST http://hooks.example/hooks?token=%5Bredacted%5D&a=%2B1\n");
    assert_eq!(read(&found[0], "body"), r#"{"id" : "o-1","attempt":1,"apikey":"[redacted]","n":1.50}"#);
    let headers = std::fs::read(format!("{}.headers", found[0].display())).unwrap();
    let headers = String::from_utf8_lossy(&headers).into_owned();
    let length = read(&found[0], "body").len();
    for line in [
        "host: hooks.example\n".to_owned(),
        "authorization: [redacted]\n".to_owned(),
        format!("content-length: {length}\n"),
        "x-latin: caf\u{fffd}\n".to_owned(),
    ] {
        assert!(headers.contains(&line), "{line:?} is not in {headers}");
    }

    // As the commands take them.
    let stem = |at: usize| found[at].display().to_string();
    let file = |ending: &str| format!("{}.{ending}", stem(0));
    let config = gateway.folder().join("umavez.toml").display().to_string();
    let request = read(&found[0], "request");
    let of_route = ["--route", "orders", "--config", &config];
    let (headers_file, body_file) = (file("headers"), file("body"));
    let keys = [
        &["keys", "--headers", &headers_file, "--body", &body_file, "--request", request.trim_end()][..],
        &of_route,
    ];
    let keys = umavez(&keys.concat());
    assert!(said(&keys).contains("\"key\":\"pix:o-1\""), "{}", said(&keys));
    let compared = umavez(&[&["keydiff", &stem(0), &stem(1)][..], &of_route].concat());
    assert_eq!(compared.status.code(), Some(0), "{}", said(&compared));
    assert!(said(&compared).contains("safe: copies get one key"), "{}", said(&compared));

    use std::os::unix::fs::PermissionsExt as _;
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(Path::new(&file("body"))), 0o600);
    assert_eq!(mode(&gateway.folder().join("seen/here")), 0o700);
}

#[tokio::test]
async fn the_oldest_go_and_files_of_others_stay() {
    let upstream = Upstream::answering(200, "").await;
    let route = format!("{ORDERS}capture_dir = \"seen\"\ncapture_files = 3\n");
    let mut gateway = Gateway::in_front_of(&upstream).route(&route).start().await;
    let folder = gateway.folder().join("seen");
    std::fs::create_dir(&folder).unwrap();
    // Of a route whose name begins alike, and a person's notes.
    let others = ["orders-eu-20260810T120000000Z-00000001.headers", "notes.headers", "orders-notes.body"];
    for name in others {
        std::fs::write(folder.join(name), "").unwrap();
    }
    // What an earlier run that was killed left half-written.
    std::fs::write(folder.join(".orders-20260810T120000000Z-00000002.body"), "half").unwrap();
    for n in 1..=5 {
        gateway.send(&order(&format!("o-{n}"))).await;
        written(&gateway, n).await;
    }
    let ours = |folder: &Path| -> Vec<String> {
        let found = captures(folder);
        let ours = found.iter().filter(|stem| stem.with_extension("body").exists());
        ours.map(|stem| read(stem, "body")).collect()
    };
    let bodies = |ids: [u32; 3]| ids.map(|n| format!(r#"{{"id":"o-{n}"}}"#)).to_vec();
    assert_eq!(ours(&folder), bodies([3, 4, 5]));

    // A bound holds across restarts.
    gateway.restart().await;
    gateway.send(&order("o-6")).await;
    written(&gateway, 1).await;
    assert_eq!(ours(&folder), bodies([4, 5, 6]));
    assert!(others.iter().all(|name| folder.join(name).exists()));
    assert!(!folder.join(".orders-20260810T120000000Z-00000002.body").exists());
}

#[tokio::test]
async fn the_bytes_of_captures_are_bounded() {
    let upstream = Upstream::answering(200, "").await;
    let route = format!("{ORDERS}capture_dir = \"seen\"\ncapture_bytes = \"1MiB\"\n");
    let gateway = Gateway::in_front_of(&upstream).route(&route).start().await;
    let large = |id: &str, bytes: usize| {
        Delivery::json("/hooks", format!(r#"{{"id":"{id}","x":"{}"}}"#, "x".repeat(bytes)))
    };
    for n in 1..=4 {
        gateway.send(&large(&format!("o-{n}"), 400_000)).await;
        written(&gateway, n).await;
    }
    let folder = gateway.folder().join("seen");
    assert_eq!(captures(&folder).len(), 2);
    // Longer than all of it may be: told, counted, and nothing is removed for it.
    assert_eq!(gateway.send(&large("huge", 1_200_000)).await.verdict(), "first");
    let failed = [("route", "orders"), ("result", "failed")];
    gateway.until_metric("umavez_captures_total", &failed, 1.0).await;
    assert_eq!(captures(&folder).len(), 2);
}

#[tokio::test]
async fn a_disk_that_fails_costs_captures_and_no_request() {
    let upstream = Upstream::answering(200, "fine").await;
    let route = format!("{ORDERS}capture_dir = \"umavez.toml/below-a-file\"\n");
    let gateway = Gateway::in_front_of(&upstream).route(&route).start().await;
    for n in 1..=20 {
        let answer = gateway.send(&order(&format!("o-{n}"))).await;
        assert_eq!((answer.status, answer.text().as_str()), (200, "fine"));
    }
    let failed = [("route", "orders"), ("result", "failed")];
    gateway.until_metric("umavez_captures_total", &failed, 20.0).await;
    let told = gateway.logs().lines().filter(|line| line.contains("a delivery was not captured")).count();
    assert_eq!(told, 1, "{}", gateway.logs());
}

#[tokio::test]
async fn what_is_not_verified_is_not_kept() {
    // Else anyone who knows the URL drives out what the provider sent.
    let upstream = Upstream::answering(200, "").await;
    let route = "[[route]]\nname = \"orders\"\npath = \"/hooks\"\nprovider = \"hotmart\"\nsecret = \"live-token-1\"\n\
                 capture_dir = \"seen\"\n";
    let gateway = Gateway::in_front_of(&upstream).route(route).start().await;
    let forged = order("forged").header("X-Hotmart-Hottok", "guessed");
    assert_eq!(gateway.send(&forged).await.status, 401);
    gateway.send(&order("h-1").header("X-Hotmart-Hottok", "live-token-1")).await;
    written(&gateway, 1).await;
    let found = captures(&gateway.folder().join("seen"));
    assert_eq!(found.len(), 1);
    assert_eq!(read(&found[0], "body"), r#"{"id":"h-1"}"#);
    assert!(read(&found[0], "headers").contains("x-hotmart-hottok: [redacted]\n"));
}

#[tokio::test]
async fn an_encoded_body_is_kept_as_it_reads_and_an_unreadable_one_is_withheld() {
    use std::io::Write as _;
    let upstream = Upstream::answering(200, "").await;
    let route = format!("{ORDERS}capture_dir = \"seen\"\n");
    let gateway = Gateway::in_front_of(&upstream).route(&route).start().await;
    let plain = r#"{"id":"o-1","password":"live-5e5e"}"#;
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(plain.as_bytes()).unwrap();
    let packed = packed.finish().unwrap();
    gateway.send(&Delivery::json("/hooks", packed.clone()).header("Content-Encoding", "gzip")).await;
    written(&gateway, 1).await;
    assert_eq!(upstream.last().body, packed);
    gateway.send(&Delivery::new("POST", "/hooks").body("password=live-5e5e; more")).await;
    written(&gateway, 2).await;
    let found = captures(&gateway.folder().join("seen"));
    assert_eq!(read(&found[0], "body"), r#"{"id":"o-1","password":"[redacted]"}"#);
    assert!(!read(&found[0], "headers").contains("content-encoding"));
    let withheld = read(&found[1], "body");
    assert!(withheld.starts_with("[withheld: 24 bytes"), "{withheld}");
}

#[test]
fn a_capture_folder_is_warned_of_and_its_bounds_need_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("u.toml");
    let check = |route: &str| {
        let text = format!("[upstream]\nurl = \"http://127.0.0.1:3000\"\n{ORDERS}{route}");
        std::fs::write(&path, text).unwrap();
        umavez(&["check", "--offline", "--config", &path.display().to_string()])
    };
    let output = check("capture_dir = \"seen\"\n");
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(
        said(&output).contains("route \"orders\".capture_dir: deliveries are kept in files"),
        "{}",
        said(&output)
    );
    assert!(!folder.path().join("seen").exists(), "a check creates nothing");
    for (route, wanted) in [
        ("capture_files = 5\n", "capture_files: bounds nothing: nothing is captured; write capture_dir"),
        ("capture_dir = \"\"\n", "capture_dir: names no folder"),
        ("capture_dir = \"s\"\ncapture_files = 0\n", "capture_files: is not such a number"),
        ("capture_dir = \"s\"\ncapture_bytes = \"1KiB\"\n", "capture_bytes: is out of bounds"),
    ] {
        let output = check(route);
        assert_eq!(output.status.code(), Some(64), "{route}");
        assert!(said(&output).contains(wanted), "{route}: {}", said(&output));
    }
}

/// `umavez capture`, listening.
struct Running {
    child: Child,
    address: SocketAddr,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Running {
    fn start(folder: &Path, arguments: &[&str]) -> Self {
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", env!("CARGO_BIN_EXE_umavez"), "capture"])
            .args(["--listen", "127.0.0.1:0", "--dir", "seen"])
            .args(arguments)
            .current_dir(folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        let address = first.strip_prefix("listening on ").and_then(|rest| rest.split(',').next());
        let address = address.and_then(|address| address.parse().ok()).unwrap_or_else(|| panic!("{first}"));
        Self { child, address, lines }
    }

    /// Its exit code, and what else it said.
    fn end(mut self) -> (i32, Vec<String>) {
        let lines = self.lines.map(Result::unwrap).collect();
        (self.child.wait().unwrap().code().unwrap(), lines)
    }
}

#[tokio::test]
async fn capture_alone_refuses_and_keeps_what_copies_of_an_event_differ_in() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(folder.path(), &["--answer", "503", "--count", "2"]);
    for attempt in 1..=2 {
        let body = format!(r#"{{"id":"9c1e-77aa-0001","event":"paid","try":{attempt},"token":"live-5e5e"}}"#);
        let answer = send(running.address, &Delivery::json("/loja/pagar", body)).await;
        assert_eq!((answer.status, answer.body.len()), (503, 0));
    }
    let (code, lines) = running.end();
    assert_eq!((code, lines.len()), (0, 2), "{lines:?}");
    let found = captures(&folder.path().join("seen"));
    // Two of the same millisecond stand in any order.
    let is_told =
        |capture: &PathBuf| lines[0].starts_with(&format!("seen/{}", capture.file_name().unwrap().display()));
    assert!(found.iter().any(is_told), "{lines:?}");
    assert!(!read(&found[0], "body").contains("live-5e5e"));
    let compared = umavez(&["keydiff", &found[0].display().to_string(), &found[1].display().to_string()]);
    assert_eq!(compared.status.code(), Some(0), "{}", said(&compared));
    let wanted = "[[route]]\nname = \"pagar\"\npath = \"/loja/pagar\"\nkey = [\"$.event\", \"$.id\"]\n";
    assert!(said(&compared).ends_with(wanted), "{}", said(&compared));
}

#[tokio::test]
async fn capture_before_an_app_passes_everything_on_as_it_came() {
    let upstream = Upstream::answering(201, "made").await;
    let folder = tempfile::tempdir().unwrap();
    let url = upstream.url();
    let arguments = ["--upstream", &url, "--provider", "evolution", "--count", "1"];
    let running = Running::start(folder.path(), &arguments);
    let body = r#"{"event":"x", "apikey":"live-5e5e"}"#;
    let delivery = Delivery::json("/evo?b=2&a=%31", body).header("X-Twice", "1").header("X-Twice", "2");
    let answer = send(running.address, &delivery).await;
    assert_eq!((answer.status, answer.text().as_str()), (201, "made"));
    let received = upstream.last();
    assert_eq!((received.text().as_str(), received.target.as_str()), (body, "/evo?b=2&a=%31"));
    assert_eq!(received.headers_named("x-twice"), ["1", "2"]);
    assert_eq!(running.end().0, 0);
    let found = captures(&folder.path().join("seen"));
    assert_eq!(read(&found[0], "body"), body.replace("live-5e5e", "[redacted]"));
    assert!(found[0].file_name().unwrap().to_str().unwrap().starts_with("evolution-"));
}

#[test]
fn a_wrong_capture_call_ends_with_64_and_says_why() {
    for (arguments, wanted) in [
        (&["--provider", "evolutoin"][..], "did you mean \"evolution\"?"),
        (&["--upstream", "x"], "--upstream: the URL has no scheme; write"),
        (&["--upstream", "http://a", "--answer", "503"], "cannot be used with"),
        (&["--answer", "100"], "200..=599"),
        (&["--bytes", "many"], "--bytes: "),
        (&["--listen", "192.0.2.1:1"], "--listen: 192.0.2.1:1: "),
    ] {
        let output = umavez(&[&["capture"], arguments].concat());
        assert_eq!(output.status.code(), Some(64), "{arguments:?}: {}", said(&output));
        assert!(said(&output).contains(wanted), "{arguments:?}: {}", said(&output));
    }
}
