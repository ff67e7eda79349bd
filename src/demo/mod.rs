//! `umavez demo`: the main job in one command, on the embedded default. A real gateway, a toy app and a toy provider
//! on free ports; every line is checked against what the contract promises.

mod script;
mod toys;

use std::path::Path;

use anyhow::Context;
use tokio::runtime::Builder;
use tokio_util::task::TaskTracker;

use crate::config::{Config, Environment};
use crate::gateway::{Gateway, Start};
use crate::metrics;
use script::Line;
use toys::App;

/// Signs the toy provider's deliveries.
const META_SECRET: &str = "demo-app-secret";
const HOTMART_TOKEN: &str = "demo-hottok";

/// Runs the demo, telling it to `print`; true when every line came out as promised. With `keep` the gateway then serves
/// on until Ctrl-C.
///
/// # Errors
/// When a part can't be started, or `print` fails.
pub fn run(keep: bool, print: impl Fn(&str) -> anyhow::Result<()>) -> anyhow::Result<bool> {
    let prometheus = metrics::install()?;
    let directory = tempfile::tempdir().context("a folder for the demo's store")?;
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let tracker = TaskTracker::new();
        let app = App::start(&tracker).await?;
        let config = config(directory.path(), &app)?;
        let gateway = Gateway::start(config, prometheus.clone(), Start::default()).await?;
        let (public, admin) = (gateway.public, gateway.admin);
        print(&format!("umavez demo: a gateway on {public}, a toy app behind it on {}\n\n", app.address))?;
        let lines = script::play(public, &app).await?;
        print(&table(&lines))?;
        let kept = lines.iter().all(|line| line.as_promised);
        print(&format!("\nWhat Prometheus scrapes at http://{admin}/metrics:\n\n"))?;
        for line in counters(&prometheus.render()) {
            print(&format!("  {line}\n"))?;
        }
        print(if kept {
            "\nEvery line came out as promised.\n"
        } else {
            "\nNOT as promised: see the marked lines.\n"
        })?;
        if keep {
            print(&format!("{}\n", invitation(&gateway)))?;
            tokio::signal::ctrl_c().await?;
        }
        gateway.stop().await?;
        Ok(kept)
    })
}

/// The file an operator would write for this.
fn config(directory: &Path, app: &App) -> anyhow::Result<Config> {
    let text = format!(
        r#"
[listen]
public = "127.0.0.1:0"
admin = "127.0.0.1:0"
workers = 1

[upstream]
url = "http://{}"

[[route]]
name = "hotmart"
path = "/webhooks/hotmart"
provider = "hotmart"
secret = "{HOTMART_TOKEN}"

[[route]]
name = "whatsapp"
path = "/webhooks/meta"
provider = "meta"
secret = "{META_SECRET}"
"#,
        app.address
    );
    let (config, _) = Config::parse(&directory.join("umavez.toml"), &text, &Environment::new())?;
    Ok(config)
}

fn table(lines: &[Line]) -> String {
    let head = ["sent", "the app received", "the provider was answered", "verdict"];
    let rows: Vec<[&str; 4]> =
        lines.iter().map(|line| [&*line.sent, &*line.received, &*line.answered, &*line.verdict]).collect();
    let width = |column: usize| {
        rows.iter().map(|row| row[column].chars().count()).chain([head[column].len()]).max().unwrap_or(0)
    };
    let widths = [width(0), width(1), width(2), width(3)];
    let mut text = row(&head, &widths, " ");
    text.push_str(&row(&widths.map(|width| "-".repeat(width)).each_ref().map(String::as_str), &widths, " "));
    for (line, cells) in lines.iter().zip(&rows) {
        text.push_str(&row(cells, &widths, if line.as_promised { " " } else { "!" }));
    }
    text
}

fn row(cells: &[&str; 4], widths: &[usize; 4], mark: &str) -> String {
    let [a, b, c, d] = cells;
    let [wa, wb, wc, _] = widths;
    format!("{mark} {a:wa$}  {b:wb$}  {c:wc$}  {d}\n")
}

/// The counters that tell the story, without the zeroes.
fn counters(exposition: &str) -> impl Iterator<Item = &str> {
    const TOLD: [&str; 4] = [
        "umavez_items_total",
        "umavez_duplicates_total",
        "umavez_requests_total",
        "umavez_settlements_total",
    ];
    exposition.lines().filter(|line| TOLD.iter().any(|name| line.starts_with(name)) && !line.ends_with(" 0"))
}

fn invitation(gateway: &Gateway) -> String {
    let (public, admin) = (gateway.public, gateway.admin);
    format!(
        r#"
The gateway serves on until Ctrl-C. Try the same id twice, then another:

  curl -i http://{public}/webhooks/hotmart -H 'X-HOTMART-HOTTOK: {HOTMART_TOKEN}' \
       -H 'Content-Type: application/json' -d '{{"id":"try-1","event":"PURCHASE_APPROVED"}}'

What became of it, and the counters:

  curl 'http://{admin}/events?key=hotmart:try-1'
  curl http://{admin}/metrics
"#
    )
}
