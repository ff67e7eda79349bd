//! Rules about the repository: the walls of ARCHITECTURE.md as far as reading the source can hold them, headers,
//! lengths, and documents that name only what exists.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Lines that a source file may have.
const LINES_MAX: usize = 400;

/// What each room of `src/` may use of the others.
const ROOMS: &[(&str, &[&str])] = &[
    ("admin", &["clock", "config", "flow", "ledger", "metrics", "providers", "upstream"]),
    ("cli", &[]),
    ("clock", &[]),
    ("config", &["clock", "flow", "ledger", "providers", "tls"]),
    ("demo", &["clock", "config", "gateway", "ledger", "metrics", "providers", "upstream"]),
    ("flow", &["clock", "config", "ledger", "listen", "metrics", "providers", "trace", "upstream"]),
    ("ledger", &["clock", "config", "metrics"]),
    ("listen", &["clock", "config", "metrics", "tls", "upstream"]),
    ("metrics", &["ledger"]),
    ("providers", &[]),
    ("tls", &["clock", "metrics"]),
    ("trace", &["clock", "config", "ledger", "metrics", "tls", "upstream"]),
    ("upstream", &["clock", "config", "tls"]),
];

/// A file of the repository, its path from the root and its text.
struct Text {
    path: String,
    text: String,
}

impl Text {
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.text.lines().enumerate().map(|(index, line)| (index + 1, line));
        lines.filter(|(_, line)| !line.trim_start().starts_with("//"))
    }

    /// The room that a file of `src/` belongs to: a folder, or a file of its own.
    fn room(&self) -> &str {
        let inside = self.path.strip_prefix("src/").unwrap();
        inside.split('/').next().unwrap().trim_end_matches(".rs")
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every file under `folder` with one of these endings, but what builds and runs leave behind.
fn files(folder: &str, endings: &[&str]) -> Vec<Text> {
    let mut found = Vec::new();
    walk(&root().join(folder), &mut |path| {
        let name = path.strip_prefix(root()).unwrap().display().to_string();
        if endings.iter().any(|ending| name.ends_with(ending)) {
            found.push(Text { text: read(&name), path: name });
        }
    });
    assert!(!found.is_empty(), "nothing in {folder}");
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn walk(folder: &Path, found: &mut impl FnMut(&Path)) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_file() {
            found(&path);
        } else if !["target", "corpus", "artifacts", "coverage", ".git"].contains(&name.as_str()) {
            walk(&path, found);
        }
    }
}

fn sources() -> Vec<Text> {
    files("src", &[".rs"])
}

/// README, ARCHITECTURE and so on, and `docs/`.
fn documents() -> Vec<Text> {
    let top =
        ["README.md", "README.pt-BR.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"];
    let mut found: Vec<Text> =
        top.iter().map(|name| Text { path: (*name).to_owned(), text: read(name) }).collect();
    found.extend(files("docs", &[".md"]));
    found
}

/// Fails with every line that a rule finds wrong, not with the first one only.
fn none(wrong: Vec<String>) {
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn rooms_use_only_the_rooms_below_them() {
    let mut wrong = Vec::new();
    for file in sources() {
        let room = file.room();
        if ["main", "lib", "gateway"].contains(&room) {
            continue; // they put the rooms together
        }
        let Some((_, allowed)) = ROOMS.iter().find(|(name, _)| *name == room) else {
            wrong.push(format!("{}: the room {room} is not in the list", file.path));
            continue;
        };
        for (line, text) in file.code() {
            for used in text.split("crate::").skip(1) {
                let used: String = used.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
                if !used.is_empty() && used != room && !allowed.contains(&used.as_str()) {
                    wrong.push(format!("{}:{line}: {room} must not use {used}", file.path));
                }
            }
        }
    }
    none(wrong);
}

#[test]
fn words_stay_behind_their_walls() {
    // The word, and where alone it may stand.
    let walls: &[(&str, &[&str])] = &[
        ("sqlx::", &["src/ledger/durable/"]),
        ("fred::", &["src/ledger/hot/redis/"]),
        ("x509_parser::", &["src/tls/", "src/providers/signature/certificate.rs"]),
        ("opentelemetry_proto::", &["src/trace/"]),
        ("prost::", &["src/trace/"]),
        ("instant_acme::", &["src/tls/acme/"]),
        ("rcgen::", &["src/tls/"]),
        ("SystemTime::now", &["src/clock.rs"]),
        ("Instant::now", &["src/clock.rs"]),
        ("tokio::spawn", &[]),
        ("std::env::var", &["src/cli/"]),
        ("process::exit", &[]),
        ("println!(", &["src/cli/", "src/demo/"]),
        ("todo!(", &[]),
        ("unimplemented!(", &[]),
        ("dbg!(", &[]),
    ];
    let mut wrong = Vec::new();
    for file in sources() {
        for (line, text) in file.code() {
            for (word, allowed) in walls {
                if text.contains(word) && !allowed.iter().any(|place| file.path.starts_with(place)) {
                    wrong.push(format!("{}:{line}: {word} does not belong here", file.path));
                }
            }
        }
    }
    none(wrong);
}

#[test]
fn providers_and_pure_rules_never_wait() {
    let mut wrong = Vec::new();
    for file in sources() {
        let pure = ["src/flow/settle.rs", "src/flow/plan.rs", "src/ledger/claim.rs"];
        if file.room() != "providers" && !pure.contains(&file.path.as_str()) {
            continue;
        }
        for (line, text) in file.code() {
            for word in [".await", "async ", "tokio"] {
                if text.contains(word) {
                    wrong.push(format!("{}:{line}: {word} in a file that never waits", file.path));
                }
            }
        }
    }
    none(wrong);
}

#[test]
fn a_claim_is_not_cloned() {
    let claim = read("src/ledger/claim.rs");
    let (before, _) = claim.split_once("pub struct Claim {").unwrap();
    let attributes: Vec<&str> = before.lines().rev().take_while(|line| !line.is_empty()).collect();
    assert!(!attributes.iter().any(|line| line.contains("Clone")), "{attributes:?}");
    assert!(!claim.contains("impl Clone for Claim"));
}

#[test]
fn every_file_opens_with_what_it_is_for_and_has_a_bound() {
    let mut wrong = Vec::new();
    let tests = files("tests", &[".rs"]);
    for file in sources().iter().chain(&tests) {
        if !file.text.starts_with("//! ") {
            wrong.push(format!("{}: does not open with `//! `", file.path));
        }
        let lines = file.text.lines().count();
        if lines > LINES_MAX && file.path.starts_with("src/") {
            wrong.push(format!("{}: {lines} lines, of {LINES_MAX}", file.path));
        }
    }
    none(wrong);
}

#[test]
fn documents_name_paths_that_exist() {
    let tops = ["src/", "tests/", "docs/", "deploy/", "grafana/", ".ci/"];
    let mut wrong = Vec::new();
    for file in documents() {
        let name = |character: char| character.is_ascii_alphanumeric() || "_-./*".contains(character);
        for word in file.text.split(|character: char| !name(character)) {
            let word = word.trim_end_matches('.');
            if word.contains("NAME") || !tops.iter().any(|top| word.starts_with(top)) {
                continue;
            }
            let there = match word.split_once('*') {
                Some((folder, _)) => root().join(folder).is_dir(),
                None => root().join(word).exists(),
            };
            if !there {
                wrong.push(format!("{}: {word} does not exist", file.path));
            }
        }
        for link in file.text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap();
            let beside = root().join(&file.path).parent().unwrap().join(target);
            if !target.is_empty() && !target.contains("://") && !beside.exists() {
                wrong.push(format!("{}: the link {link} leads nowhere", file.path));
            }
        }
    }
    none(wrong);
}

#[test]
fn metrics_that_are_named_exist() {
    let names = |text: &str| -> BTreeSet<String> {
        let word = |character: char| character.is_ascii_alphanumeric() || character == '_';
        text.split(|character: char| !word(character))
            .filter(|name| name.starts_with("umavez_") && !name.ends_with('_'))
            .map(str::to_owned)
            .collect()
    };
    let known = names(&read("src/metrics/mod.rs"));
    assert!(known.len() > 15, "{known:?}");
    // What else begins so: the tables, and the file that holds the admin listener's token.
    let mut tables = names(&read("src/ledger/durable/postgres/sql.rs"));
    tables.extend(names(&read("src/ledger/durable/postgres/schema.rs")));
    tables.insert("umavez_admin_token".to_owned());
    let mut texts = documents();
    texts.extend(files("tests/it", &[".rs"]));
    texts.extend(
        files("deploy", &[".yml", ".yaml", ".rules"]).into_iter().chain(files("grafana", &[".json"])),
    );
    let mut wrong = Vec::new();
    for file in texts.iter().filter(|file| file.path != "tests/it/tidy.rs") {
        for name in names(&file.text) {
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
            let is = |name: &str| known.contains(name) || tables.contains(name);
            if !is(&name) && !base.is_some_and(is) {
                wrong.push(format!("{}: there is no metric {name}", file.path));
            }
        }
    }
    none(wrong);
}

#[test]
fn the_readme_starts_with_two_commands() {
    let readme = read("README.md");
    let (_, after) = readme.split_once("## Two commands").unwrap();
    let block = after.split("```").nth(1).unwrap();
    let commands: Vec<&str> =
        block.lines().skip(1).map(|line| line.split('#').next().unwrap().trim()).collect();
    assert_eq!(commands, ["cargo run --release -- demo", "bash tests/run.sh"]);
}

#[test]
fn the_changelog_has_a_place_for_what_comes() {
    let changelog = read("CHANGELOG.md");
    assert!(changelog.lines().any(|line| line == "## Unreleased"));
}

#[test]
fn nothing_tells_of_the_machine_that_it_was_written_on() {
    let mut texts = documents();
    texts.extend(sources());
    for folder in ["tests", "deploy", "grafana"] {
        texts.extend(files(folder, &[".rs", ".md", ".toml", ".sh", ".yaml", ".yml", ".json", ".conf"]));
    }
    let manifests = ["Cargo.toml", "deny.toml", "clippy.toml"].map(str::to_owned);
    texts.extend(manifests.map(|path| Text { text: read(&path), path }));
    let telling = ["/work/", "/root/", "/home/", ".cargo/registry", "CARGO_REGISTRIES", "sparse+http"];
    let mut wrong = Vec::new();
    for file in texts.iter().filter(|file| file.path != "tests/it/tidy.rs") {
        for (index, line) in file.text.lines().enumerate() {
            for word in telling.iter().filter(|word| line.contains(**word)) {
                wrong.push(format!("{}:{}: {word}", file.path, index + 1));
            }
        }
    }
    none(wrong);
}
