//! What operators are given, held against the real binary and a real Prometheus: dashboard, alerts, scrape
//! configuration, and the page that explains the metrics. Not what the metrics count: observability.rs does that.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use crate::support::{Delivery, Gateway, ORDERS, Reply, Upstream, eventually, nobody, order, send, try_send};
use crate::tls::pki;

const TOKEN: &str = "a-token-for-this-story";
const ROUTES: &str = r#"
[[route]]
name = "shop"
path = "/shop"
provider = "hotmart"

[[route]]
name = "pay"
path = "/pay"
key = ["$.id"]
on_unknown = "hold"

[[route]]
name = "trial"
path = "/trial"
key = ["$.id"]
mode = "shadow"

[[route]]
name = "chat"
path = "/chat"
provider = "meta"
secret = "${S}"
"#;

#[test]
fn every_metric_named_anywhere_is_exported_and_every_exported_one_is_explained() {
    let exported = names_in_source();
    let tables = tables();
    for file in ["grafana", "deploy", "docs"].into_iter().flat_map(|folder| files(&repository(folder))) {
        for name in names_in(&read(&file)) {
            let known = exported.contains(base(&name)) || tables.contains(&name);
            assert!(known, "{} names {name}, which nothing exports", file.display());
        }
    }
    let page = read(&repository("docs/operations.md"));
    for name in &exported {
        assert!(page.contains(&format!("| `{name}` |")), "docs/operations.md has no row for {name}");
    }
    let dashboard = read(&repository("grafana/dashboards/umavez.json"));
    for name in &exported {
        assert!(dashboard.contains(name.as_str()), "the dashboard does not show {name}");
    }
}

#[tokio::test]
async fn every_alert_has_a_test_and_a_page_to_read_at_night() {
    let folder = repository("deploy/prometheus");
    promtool(&["check", "rules", "alerts.yml"], &folder, "").await;
    promtool(&["test", "rules", "alerts.test.yml"], &folder, "").await;
    promtool(&["check", "config", "--syntax-only", "prometheus.yml"], &folder, "").await;
    let (rules, tests) = (read(&folder.join("alerts.yml")), read(&folder.join("alerts.test.yml")));
    let page = read(&repository("docs/operations.md"));
    let alerts = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let mut count = 0;
    for alert in alerts {
        count += 1;
        let case = tests.split(&format!("alertname: {alert}\n")).nth(1).unwrap_or_default();
        assert!(case.trim_start().starts_with("exp_alerts:\n"), "no case fires {alert}");
        assert!(page.lines().any(|line| line == format!("### {alert}")), "no runbook section for {alert}");
        let link = format!("runbook_url: docs/operations.md#{}", alert.to_lowercase());
        assert!(rules.contains(&link), "{alert} does not link to its section");
    }
    assert!(count >= 10, "{count}");
}

#[tokio::test]
async fn every_query_of_the_dashboard_and_of_the_alerts_answers() {
    let upstream = Upstream::deciding(|request, _| {
        if request.text().contains("breaks") { Reply::hang_up() } else { Reply::new(200, "") }
    })
    .await;
    let shown = tempfile::tempdir().unwrap();
    let (chain, key) = pki::pair(shown.path(), "gateway");
    let client = format!("{{ chain = \"{}\", key = \"{}\" }}", chain.display(), key.display());
    let gateway = Gateway::without_upstream()
        .table(&format!("[upstream]\nurl = \"{}\"\nclient_certificate = {client}", upstream.url()))
        .route(ORDERS)
        .route(ROUTES)
        .listen("admin_token = \"${T}\"")
        .env("T", TOKEN)
        .env("S", "the-app-secret")
        .start()
        .await;
    let prometheus = Box::pin(Prometheus::watching(&gateway)).await;
    prometheus.until("umavez_items_total{route=\"orders\",verdict=\"first\"} == 0").await;
    prometheus.until("rate(umavez_own_duration_seconds_count{route=\"orders\"}[5m]) == 0").await;
    fresh_panels_say_what_is_missing(&prometheus).await;
    Box::pin(traffic(&gateway)).await;
    for counted in [
        "umavez_items_total{route=\"orders\",verdict=\"duplicate\"} == 3",
        "umavez_items_total{route=\"shop\",verdict=\"duplicate\"} == 1",
        "umavez_items_total{route=\"trial\",verdict=\"duplicate\",mode=\"shadow\"} == 1",
        "umavez_unsigned_total{route=\"chat\"} == 1",
        "umavez_passed_total == 1",
        "umavez_held == 1",
    ] {
        prometheus.until(counted).await;
    }

    dashboard_answers(&prometheus).await;
    alerts_answer(&prometheus).await;

    let bearer = format!("Bearer {TOKEN}");
    let scrape = Delivery::new("GET", "/metrics").header("Authorization", &bearer);
    let scrape = send(gateway.admin(), &scrape).await.text();
    promtool(&["check", "metrics"], &repository(""), &scrape).await;
    let types = scrape.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let exported: BTreeSet<String> = types.map(str::to_owned).collect();
    assert_eq!(exported, names_in_source(), "what is exported and what src/metrics/mod.rs names");
}

/// The sample's reminders were nobody's: whoever reached the port that it opens could claim them, as `check` said.
#[test]
fn the_configuration_that_is_deployed_is_right_and_warns_of_nothing() {
    let checked = std::process::Command::new(env!("CARGO_BIN_EXE_umavez"))
        .args(["check", "--offline", "--config"])
        .arg(repository("deploy/compose/umavez.toml"))
        .env("UMAVEZ_ADMIN_TOKEN", "0123456789abcdef0123456789abcdef")
        .env("POSTGRES_PASSWORD", "secret")
        .env("HOTMART_SECRET", "secret")
        .env("REMINDERS_TOKEN", "0123456789abcdef")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success(), "{said}");
    // How many files a process may open is this machine's, not the sample's.
    let mut warnings = said.lines().filter(|line| line.contains("(warning)") && !line.contains("open files"));
    assert_eq!(warnings.next(), None, "{said}");
}

/// Firsts, copies, a conflict, a keyless one, a held one, an unsigned one, and one that passes.
async fn traffic(gateway: &Gateway) {
    let purchase = || Delivery::json("/shop", r#"{"id":"3f0c8b51","event":"PURCHASE_APPROVED"}"#);
    let deliveries = [
        (order("a"), "first"),
        (order("b"), "first"),
        (order("a"), "duplicate"),
        (order("a"), "duplicate"),
        (Delivery::json("/hooks", r#"{"id":"a","total":7}"#), "duplicate"),
        (Delivery::json("/hooks", "{}"), "keyless"),
        (purchase(), "first"),
        (purchase(), "duplicate"),
        (Delivery::json("/trial", r#"{"id":"t"}"#), "first"),
        (Delivery::json("/trial", r#"{"id":"t"}"#), "duplicate"),
        (Delivery::json("/pay", r#"{"id":"breaks"}"#), "held"),
        (Delivery::json("/chat", "{}"), "refused"),
        (Delivery::new("GET", "/page"), ""),
    ];
    for (delivery, verdict) in deliveries {
        assert_eq!(gateway.send(&delivery).await.verdict(), verdict, "{delivery:?}");
    }
}

/// Ten panels of a gateway that had just begun showed "No data", which looked like a dashboard that is broken.
async fn fresh_panels_say_what_is_missing(prometheus: &Prometheus) {
    let dashboard: Value =
        serde_json::from_str(&read(&repository("grafana/dashboards/umavez.json"))).unwrap();
    for panel in dashboard["panels"].as_array().unwrap() {
        let mut shown = panel["targets"].is_null();
        for target in panel["targets"].as_array().into_iter().flatten() {
            let results = prometheus.query(&substituted(target["expr"].as_str().unwrap())).await;
            shown |= results.iter().any(|result| result["value"][1] != "NaN");
        }
        let said = panel["fieldConfig"]["defaults"]["noValue"].is_string();
        assert!(shown || said, "{} shows nothing, and not why", panel["title"]);
    }
}

/// Every target gives data, and each result has every label that its legend shows.
async fn dashboard_answers(prometheus: &Prometheus) {
    let dashboard: Value =
        serde_json::from_str(&read(&repository("grafana/dashboards/umavez.json"))).unwrap();
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        let Some(query) = variable["query"]["query"].as_str() else { continue };
        let inner = query.strip_prefix("label_values(").and_then(|query| query.strip_suffix(')')).unwrap();
        let (series, label) = inner.rsplit_once(", ").unwrap();
        let values = prometheus.label_values(label, &substituted(series)).await;
        assert!(!values.is_empty(), "{query}");
    }
    let panels = dashboard["panels"].as_array().unwrap();
    let mut ids = BTreeSet::new();
    for panel in panels {
        let kind = panel["type"].as_str().unwrap();
        assert!(["row", "stat", "timeseries", "bargauge"].contains(&kind), "{kind} needs a plugin");
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "two panels are number {}", panel["id"]);
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = substituted(target["expr"].as_str().unwrap());
            // Captures and spans were shown as a number of nobody knew what.
            if query.starts_with("sum") && query.contains("(rate(") && !query.contains(" / ") {
                let unit = panel["fieldConfig"]["defaults"]["unit"].as_str().unwrap();
                assert!(["cps", "reqps"].contains(&unit), "{}: {unit} for a rate", panel["title"]);
            }
            let results = prometheus.query(&query).await;
            assert!(!results.is_empty(), "{}: no data from {query}", panel["title"]);
            // A route on which nothing has come (here: chat) showed 0/0.
            if panel["title"].as_str().unwrap().starts_with("Share") {
                let number = |result: &Value| result["value"][1] != "NaN";
                assert!(results.iter().all(number), "{}: {results:?}", panel["title"]);
            }
            for label in placeholders(target["legendFormat"].as_str().unwrap(), "{{", "}}") {
                for result in &results {
                    assert!(result["metric"][&label].is_string(), "{query} gives no {label}: {result}");
                }
            }
        }
    }
    let value = async |title: &str| {
        let panel = panels.iter().find(|panel| panel["title"] == title).unwrap();
        let results = prometheus.query(&substituted(panel["targets"][0]["expr"].as_str().unwrap())).await;
        results[0]["value"][1].as_str().unwrap().parse::<f64>().unwrap()
    };
    assert_eq!(value("Copies avoided since these processes began").await, 4.0);
    assert!(value("Copies that shadow would have avoided").await > 0.0, "they are shown by themselves");
    assert_eq!(value("Held for a person").await, 1.0);
    assert!(value("Copies avoided, in this range").await > 0.0);
    let share = value("Share of copies, in this range").await;
    assert!(share > 0.0 && share < 1.0, "{share}");
}

/// Prometheus evaluates every rule; what each compares is there, with the labels that its texts show.
async fn alerts_answer(prometheus: &Prometheus) {
    let mut rules = Vec::new();
    eventually("every rule was evaluated", async || {
        let groups = prometheus.ask("/api/v1/rules").await;
        let groups = groups["groups"].as_array().unwrap();
        rules = groups.iter().flat_map(|group| group["rules"].as_array().unwrap().clone()).collect();
        rules.iter().all(|rule| rule["health"] != "unknown")
    })
    .await;
    assert!(rules.len() >= 10);
    for rule in &rules {
        assert_eq!(rule["health"], "ok", "{rule}");
        let query = rule["query"].as_str().unwrap();
        prometheus.query(query).await;
        let first = query.split(" and ").next().unwrap();
        let absent = first.strip_prefix("absent(").and_then(|rest| rest.strip_suffix(')'));
        let compared = [" > ", " == ", " < "].iter().find_map(|sign| first.rsplit_once(sign));
        let left = absent.or(compared.map(|(left, _)| left)).unwrap();
        let results = prometheus.query(left).await;
        assert!(!results.is_empty(), "{}: no data from {left}", rule["name"]);
        for text in ["summary", "description"] {
            for label in placeholders(rule["annotations"][text].as_str().unwrap(), "{{ $labels.", " }}") {
                assert!(results[0]["metric"][&label].is_string(), "{left} gives no {label}");
            }
        }
    }
    for alert in ["UmavezHeldEvents", "UmavezConflicts"] {
        let rule = rules.iter().find(|rule| rule["name"] == alert).unwrap();
        assert_eq!(prometheus.query(rule["query"].as_str().unwrap()).await.len(), 1, "{alert}");
    }
}

/// Debian's Prometheus on a port of its own, with the scrape configuration that we give away.
pub(crate) struct Prometheus {
    // First, so that it ends before its folder goes.
    _child: Child,
    address: std::net::SocketAddr,
    _dir: tempfile::TempDir,
}

impl Prometheus {
    pub(crate) async fn watching(gateway: &Gateway) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let token = dir.path().join("token");
        std::fs::write(&token, TOKEN).unwrap();
        let config = read(&repository("deploy/prometheus/prometheus.yml"))
            .replace("15s", "1s")
            .replace("umavez:9180", &gateway.admin().to_string())
            .replace("/run/secrets/umavez-admin-token", token.to_str().unwrap());
        std::fs::write(dir.path().join("prometheus.yml"), config).unwrap();
        let rules = repository("deploy/prometheus/alerts.yml");
        std::fs::copy(rules, dir.path().join("alerts.yml")).unwrap();
        for _ in 0..10 {
            let address = nobody();
            let mut child = Command::new("setpriv")
                .args(["--pdeathsig", "KILL", "--", "prometheus", "--log.level=warn"])
                .arg("--enable-feature=exemplar-storage")
                .arg(format!("--config.file={}", dir.path().join("prometheus.yml").display()))
                .arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()))
                .arg(format!("--web.listen-address={address}"))
                .stdout(Stdio::null())
                .stderr(Stdio::inherit())
                .kill_on_drop(true)
                .spawn()
                .expect("setpriv (util-linux) is missing");
            let mut up = false;
            eventually("prometheus is ready, or has ended", async || {
                let ready = try_send(address, &Delivery::new("GET", "/-/ready")).await;
                up = ready.is_ok_and(|answer| answer.status == 200);
                up || child.try_wait().unwrap().is_some()
            })
            .await;
            if up {
                return Self { _child: child, address, _dir: dir };
            }
        }
        panic!("prometheus does not start; is it missing? apt-get install prometheus");
    }

    /// The `data` of an answer of its API.
    pub(crate) async fn ask(&self, target: &str) -> Value {
        // On the heap: this is at the bottom of everything here, and a sender holds a long buffer.
        let answer = Box::pin(send(self.address, &Delivery::new("GET", target))).await;
        let mut json = answer.json();
        assert_eq!(json["status"], "success", "{target}: {json}");
        json["data"].take()
    }

    async fn query(&self, query: &str) -> Vec<Value> {
        let query = utf8_percent_encode(query, NON_ALPHANUMERIC);
        let data = self.ask(&format!("/api/v1/query?query={query}")).await;
        data["result"].as_array().unwrap().clone()
    }

    async fn label_values(&self, label: &str, series: &str) -> Vec<Value> {
        let series = utf8_percent_encode(series, NON_ALPHANUMERIC);
        let values = self.ask(&format!("/api/v1/label/{label}/values?match[]={series}")).await;
        values.as_array().unwrap().clone()
    }

    /// Waits until the query gives something.
    pub(crate) async fn until(&self, query: &str) {
        eventually(query, async || !self.query(query).await.is_empty()).await;
    }
}

/// Runs promtool, which must be content.
async fn promtool(arguments: &[&str], folder: &Path, input: &str) {
    let mut child = Command::new("promtool")
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("promtool: {error}; apt-get install prometheus"));
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).await.ok();
    drop(stdin);
    let done = child.wait_with_output().await.unwrap();
    let said = [done.stdout, done.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let clean =
        done.status.success() && (arguments != ["check", "metrics"] || said.concat().trim().is_empty());
    assert!(clean, "promtool {arguments:?}: {}", said.concat());
}

/// A query as Grafana would send it, everything selected.
fn substituted(query: &str) -> String {
    let variables = ["job", "instance", "route", "provider"];
    let query = query.replace("$__rate_interval", "5m").replace("$__range", "5m");
    variables.iter().fold(query, |query, name| query.replace(&format!("${name}"), ".*"))
}

fn placeholders(text: &str, open: &str, close: &str) -> Vec<String> {
    text.split(open).skip(1).filter_map(|rest| Some(rest.split_once(close)?.0.to_owned())).collect()
}

fn names_in_source() -> BTreeSet<String> {
    let source = read(&repository("src/metrics/mod.rs"));
    let constants = source.lines().filter(|line| line.starts_with("const ")).collect::<Vec<_>>();
    names_in(&constants.join("\n"))
}

/// The ledger's tables and indexes are named alike; only they may be.
fn tables() -> BTreeSet<String> {
    files(&repository("src/ledger/durable")).iter().flat_map(|file| names_in(&read(file))).collect()
}

fn names_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("umavez_") && !word.ends_with('_')).map(str::to_owned).collect()
}

/// A histogram's name without what Prometheus appends to it.
fn base(name: &str) -> &str {
    let suffixes = ["_bucket", "_sum", "_count"];
    let of_histogram = |name: &&str| name.ends_with("_duration_seconds");
    suffixes.iter().find_map(|suffix| name.strip_suffix(suffix).filter(of_histogram)).unwrap_or(name)
}

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}
