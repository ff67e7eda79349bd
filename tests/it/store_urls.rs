//! Stores' URLs that lead nowhere are mistakes of the configuration, wherever it is read.

use crate::cli::{code, stderr, umavez};
use crate::support::{Gateway, Upstream, order};

const URLS: &[(&str, &str, &str)] = &[
    ("hot", "redis://127.0.0.1:zz", "port is no number"),
    ("hot", "redis://127.0.0.1:99999", "port is no number"),
    ("hot", "redis://", "names no host"),
    ("hot", "redis://127.0.0.1:1/abc", "no number up to 255"),
    ("hot", "redis://127.0.0.1:1?foo=bar", "parameter \"foo\""),
    ("durable", "postgres://u:hush@127.0.0.1:abc/x", "port is no number"),
    ("durable", "postgres://u@127.0.0.1/x?sslmode=zzz", "write disable, allow"),
    ("durable", "postgres://u@127.0.0.1/x?foo=bar", "parameter \"foo\""),
];

/// `check --offline` said ok of them, `check` and `run` ended with 1 and named no place; an unknown parameter was taken
/// without a word.
#[tokio::test]
async fn a_store_url_that_leads_nowhere_is_told_with_its_place() {
    let upstream = Upstream::answering(200, "").await;
    let mut gateway = Gateway::in_front_of(&upstream).start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("umavez.toml");
    let path = file.to_str().unwrap();
    // What hosts put into the URLs that they hand out is no mistake.
    let handed_out = "postgres://u@127.0.0.1/x?sslmode=disable&channel_binding=require&connect_timeout=10";
    let text = format!(
        "[upstream]\nurl = \"http://127.0.0.1:1\"\n[durable]\nurl = \"{handed_out}\"\n{}",
        crate::support::ORDERS
    );
    std::fs::write(&file, &text).unwrap();
    let output = umavez(&["check", "--offline", "--config", path]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    for (section, url, why) in URLS {
        let text = format!(
            "[upstream]\nurl = \"http://127.0.0.1:1\"\n[{section}]\nurl = \"{url}\"\n{}",
            crate::support::ORDERS
        );
        std::fs::write(&file, &text).unwrap();
        for arguments in [&["check", "--offline"][..], &["check"], &["run"]] {
            let output = umavez(&[arguments, &["--config", path]].concat());
            assert_eq!(code(&output), 64, "{arguments:?} {url}: {}", stderr(&output));
            let told = stderr(&output);
            assert!(told.contains(&format!("umavez.toml:4:7: {section}.url: ")), "{url}: {told}");
            assert!(told.contains(why), "{url}: {told}");
            assert!(!told.contains("hush"), "{told}");
        }
    }
    gateway.edit("[upstream]", "[hot]\nurl = \"redis://127.0.0.1:zz\"\n[upstream]");
    let refused = gateway.reload().await;
    assert_eq!(refused.status, 422, "{}", refused.text());
    assert!(refused.text().contains("port is no number"), "{}", refused.text());
    assert_eq!(gateway.send(&order("1")).await.verdict(), "first");
    gateway.kill();
}
