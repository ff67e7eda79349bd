//! What the documents tell people to type: every configuration in them loads, every command and flag is there, and
//! the Portuguese README says the same as the English one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use umavez::config::{Config, Environment};

use crate::cli::{secret_for, stdout, umavez};
use crate::support::postgres::Postgres;
use crate::support::{Delivery, Gateway, ORDERS, Upstream, durable_toml, eventually, hub_sha256, order};
use crate::tls::pki;

/// A fenced block: its document and line, what it is of, and its text.
#[derive(Debug)]
struct Block {
    place: String,
    of: String,
    text: String,
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The documents that people copy from; docs/providers.md is held by what makes it.
fn documents() -> Vec<String> {
    let mut paths: Vec<String> = ["README.md", "README.pt-BR.md", "SECURITY.md"].map(str::to_owned).into();
    for entry in std::fs::read_dir(root().join("docs")).unwrap() {
        paths.push(format!("docs/{}", entry.unwrap().file_name().to_string_lossy()));
    }
    paths.retain(|path| path.ends_with(".md") && path != "docs/providers.md");
    paths.sort();
    paths
}

fn blocks(path: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let mut open = false;
    for (index, line) in read(path).lines().enumerate() {
        match line.trim_start().strip_prefix("```") {
            Some(of) if !open => {
                let place = format!("{path}:{}", index + 1);
                found.push(Block { place, of: of.to_owned(), text: String::new() });
                open = true;
            }
            Some(_) => open = false,
            None if open => {
                let text = &mut found.last_mut().unwrap().text;
                text.push_str(line);
                text.push('\n');
            }
            None => {}
        }
    }
    assert!(!open, "{path}: a block is not closed");
    found
}

/// A block's text as a file of its own: with an app where it names none, and with files of the right kind where it names any.
pub(crate) fn file_of(text: &str, folder: &Path) -> String {
    let mut text = text.to_owned();
    if !text.contains("[upstream]") {
        text = format!("[upstream]\nurl = \"http://127.0.0.1:3000\"\n{text}");
    }
    let (certificate, key) = (pair().cert.pem(), pair().signing_key.serialize_pem());
    for (field, content) in
        [("file", None), ("chain", Some(&certificate)), ("ca", Some(&certificate)), ("key", Some(&key))]
    {
        let opening = format!("{field} = \"");
        let pieces: Vec<String> = text.split(&opening).map(str::to_owned).collect();
        text = pieces[0].clone();
        for piece in &pieces[1..] {
            // `public_key` names no file here.
            if text.ends_with("public_") {
                text.push_str(&format!("{opening}{piece}"));
                continue;
            }
            let (path, rest) = piece.split_once('"').unwrap();
            let beside = folder.join(format!("{field}-{}", Path::new(path).file_name().unwrap().display()));
            std::fs::write(&beside, content.map_or(secret_for(path), String::as_str)).unwrap();
            text.push_str(&format!("{opening}{}\"{rest}", beside.display()));
        }
    }
    // Every certificate is the same one.
    let ((chain, key), cache) = (pki::pair(folder, "made"), folder.join("acme"));
    let files =
        [("chain = \"", &chain), ("client_ca = \"", &chain), (" key = \"", &key), ("cache = \"", &cache)];
    for (field, file) in files {
        text = text.split(field).enumerate().fold(String::new(), |text, (n, piece)| {
            match piece.split_once('"').filter(|_| n > 0) {
                Some((_, rest)) => format!("{text}{field}{}\"{rest}", file.display()),
                None => text + piece,
            }
        });
    }
    text
}

/// One certificate for all of them: making a key takes a while.
fn pair() -> &'static rcgen::CertifiedKey<rcgen::KeyPair> {
    static PAIR: std::sync::OnceLock<rcgen::CertifiedKey<rcgen::KeyPair>> = std::sync::OnceLock::new();
    PAIR.get_or_init(|| rcgen::generate_simple_self_signed(["hooks.example.com".to_owned()]).unwrap())
}

#[test]
fn every_configuration_in_the_documents_loads() {
    let folder = tempfile::tempdir().unwrap();
    let mut wrong = Vec::new();
    let mut routes = 0;
    for path in documents() {
        let blocks = blocks(&path);
        // A configuration that names a folder of them finds what its page shows.
        let providers = folder.path().join("providers");
        std::fs::create_dir_all(&providers).unwrap();
        for (number, file) in blocks.iter().filter(|block| block.of == "toml provider").enumerate() {
            std::fs::write(providers.join(format!("{number}.toml")), &file.text).unwrap();
        }
        for block in blocks.iter().filter(|block| block.of == "toml") {
            let text = file_of(&block.text, folder.path());
            let wanted = text.split("${").skip(1).filter_map(|rest| rest.split('}').next());
            let env: Environment =
                wanted.map(|name| (name.to_owned(), secret_for(name).to_owned())).collect();
            match Config::parse(&folder.path().join("u.toml"), &text, &env) {
                Ok((config, warnings)) => {
                    routes += config.routes.len();
                    // A recipe with a longer timeout was warned of by its own check.
                    let cut_short = warnings.iter().find(|warning| warning.text.contains("listen.grace"));
                    wrong.extend(cut_short.map(|warning| format!("{}: {}", block.place, warning.text)));
                }
                Err(errors) => wrong.push(format!("{}: {errors}", block.place)),
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert!(routes > 10, "only {routes} routes were found");
}

#[tokio::test]
async fn the_provider_files_of_the_documents_are_read_and_hold() {
    let page = blocks("docs/provider-files.md");
    let folder = tempfile::tempdir().unwrap();
    for (number, file) in page.iter().filter(|block| block.of == "toml provider").enumerate() {
        std::fs::write(folder.path().join(format!("{number}.toml")), &file.text).unwrap();
    }
    let routes = page.iter().find(|block| block.of == "toml").unwrap();
    let (_, routes) = routes.text.split_once("[[route]]").unwrap();
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream)
        .env("DEPLOYS_SECRET", "shown")
        .env("SHOP_SECRET", "signs")
        .start()
        .await;
    gateway.edit("[listen]", &format!("providers_dir = {:?}\n[listen]", folder.path()));
    gateway.edit(ORDERS, &format!("[[route]]{routes}"));
    let told = gateway.reload().await;
    assert_eq!(told.status, 200, "{}", told.text());

    let deploy = || Delivery::json("/internal/deploys", r#"{"deploy":{"id":7,"state":"done"}}"#);
    let shop = || Delivery::json("/webhooks/my-shop", r#"{"event":{"id":"e-1"}}"#);
    let forged = [
        deploy(),
        deploy().header("X-Deploy-Token", "guessed"),
        shop(),
        shop().header("X-Shop-Signature", &hub_sha256("guessed", &shop().body)),
    ];
    for delivery in &forged {
        assert_eq!(gateway.send(delivery).await.status, 401);
    }
    let genuine = [
        deploy().header("X-Deploy-Token", "shown"),
        shop().header("X-Shop-Signature", &hub_sha256("signs", &shop().body)),
    ];
    for delivery in &genuine {
        assert_eq!(gateway.send(delivery).await.verdict(), "first");
        assert_eq!(gateway.send(delivery).await.verdict(), "duplicate");
    }
    assert_eq!(upstream.received(), 2);
}

/// The sample's reminders were nobody's: whoever the ingress let in could claim them, as `check` said.
#[test]
fn the_configuration_for_kubernetes_is_right_and_warns_of_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = "deploy/kubernetes/umavez.toml";
    let providers = format!("{}/deploy/kubernetes/providers", env!("CARGO_MANIFEST_DIR"));
    let text = read(path);
    assert!(text.contains("\"/etc/umavez-providers\""), "where deployment.yaml mounts them");
    let text = text.replace("/etc/umavez-providers", &providers);
    let env = ["PGPASSWORD", "REDIS_PASSWORD"].map(|name| (name.to_owned(), "word".to_owned())).into();
    let (_, warnings) =
        Config::parse(&folder.path().join("u.toml"), &file_of(&text, folder.path()), &env).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[tokio::test]
async fn an_event_table_split_as_the_documents_say_serves() {
    let split = blocks("docs/operations.md").into_iter().find(|block| block.of == "sql").unwrap().text;
    let postgres = Postgres::start();
    let upstream = Upstream::answering(200, "made").await;
    let mut gateway =
        Gateway::in_front_of(&upstream).stores_toml(&durable_toml(&postgres.url())).start().await;
    for number in 0..20 {
        assert_eq!(gateway.send(&order(&format!("before-{number}"))).await.verdict(), "first");
    }
    postgres.sql(&split);
    // Without what the process remembers, the table decides.
    gateway.restart().await;
    for number in 0..20 {
        let copy = gateway.send(&order(&format!("before-{number}"))).await;
        assert_eq!((copy.verdict().as_str(), copy.text().as_str()), ("duplicate", "made"));
        assert_eq!(gateway.send(&order(&format!("after-{number}"))).await.verdict(), "first");
    }
    assert_eq!(upstream.received(), 40);
    let filled = "select count(distinct tableoid) > 4, count(*) from umavez_event";
    assert_eq!(postgres.sql(filled), "t|40");
    postgres.sql("update umavez_event set expires = 1 where key like '%before%'");
    eventually("the expired rows' end", async || postgres.sql("select count(*) from umavez_event") == "20")
        .await;
}

/// The commands of a shell block: a line, and what a backslash joins to it, less its comment.
fn commands(text: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    let lines = joined.lines().map(|line| line.split(" #").next().unwrap().trim().to_owned());
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

#[test]
fn every_command_of_ours_in_the_documents_is_there_with_its_flags() {
    let mut helps: BTreeMap<String, String> = BTreeMap::new();
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for path in documents() {
        for block in blocks(&path).iter().filter(|block| ["sh", "console", ""].contains(&block.of.as_str())) {
            for command in commands(&block.text) {
                let words: Vec<&str> = command.split_whitespace().take_while(|word| *word != "|").collect();
                let ours = |word: &&str| *word == "umavez" || word.ends_with("/umavez");
                // What runs a command of ours for somebody else.
                let runs = |word: &str| ["sudo", "as_umavez", "docker", "kubectl"].contains(&word);
                let called = |at: &usize| at + 1 < words.len() && (*at == 0 || runs(words[0]));
                let Some(at) = words.iter().rposition(ours).filter(called) else {
                    continue;
                };
                let mut called: Vec<&str> =
                    words[at + 1..].iter().copied().take_while(is_name).take(2).collect();
                if called.first() != Some(&"events") {
                    called.truncate(1);
                }
                let help = helps
                    .entry(called.join(" "))
                    .or_insert_with(|| stdout(&umavez(&[&called[..], &["--help"]].concat())));
                seen += 1;
                if help.is_empty() {
                    wrong.push(format!("{}: there is no command {called:?}: {command}", block.place));
                }
                for flag in words[at + 1..].iter().filter(|word| word.starts_with("--")) {
                    let flag = flag.split('=').next().unwrap();
                    if !help.contains(flag) {
                        wrong.push(format!("{}: {called:?} has no {flag}: {command}", block.place));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert!(seen > 8, "only {seen} commands were found");
}

fn is_name(word: &&str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-') && !word.starts_with('-')
}

/// Code without what is said beside it: comments may be in another language.
fn code_of(block: &Block) -> Vec<String> {
    let lines = block.text.lines().map(|line| match line.find(" #") {
        Some(_) => line.split(" #").next().unwrap(),
        None if line.starts_with('#') => "",
        None => line,
    });
    let spaced = lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    spaced.filter(|line| !line.is_empty()).collect()
}

/// The text outside fenced blocks.
fn prose(path: &str) -> String {
    let text = read(path);
    text.split("```").step_by(2).collect::<Vec<_>>().join("\n")
}

/// What stands between backticks: settings, commands, headers.
fn inline_code(path: &str) -> BTreeSet<String> {
    let prose = prose(path);
    let spans = prose.split('`').skip(1).step_by(2);
    spans.map(|span| span.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

fn headings(path: &str) -> Vec<usize> {
    let prose = prose(path);
    prose
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| line.chars().take_while(|c| *c == '#').count())
        .collect()
}

fn links(path: &str) -> BTreeSet<String> {
    let prose = prose(path);
    let targets = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.starts_with("README")).map(str::to_owned).collect()
}

#[test]
fn the_portuguese_readme_says_the_same() {
    let (english, portuguese) = ("README.md", "README.pt-BR.md");
    let (ours, theirs) = (blocks(english), blocks(portuguese));
    assert_eq!(
        ours.iter().map(|block| &block.of).collect::<Vec<_>>(),
        theirs.iter().map(|block| &block.of).collect::<Vec<_>>(),
        "the blocks differ in number or kind"
    );
    // What is neither shell nor configuration is a drawing, with words in it.
    for (our, their) in ours.iter().zip(&theirs).filter(|(our, _)| !our.of.is_empty()) {
        assert_eq!(code_of(our), code_of(their), "{} and {}", our.place, their.place);
    }
    assert_eq!(headings(english), headings(portuguese), "the headings differ");
    assert_eq!(links(english), links(portuguese), "the links differ");
    let (ours, theirs) = (inline_code(english), inline_code(portuguese));
    let missing: Vec<_> = ours.symmetric_difference(&theirs).collect();
    assert!(missing.is_empty(), "in one of both only: {missing:?}");
    let pieces = |path: &str| prose(path).lines().filter(|line| line.starts_with("- ")).count();
    assert_eq!(pieces(english), pieces(portuguese), "the lists differ in length");
}

/// A row of docs/security.md's table of settings: section, field, default, range.
fn limits() -> Vec<(String, String, String, String)> {
    let text = read("docs/security.md");
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    let cells = rows.map(|line| line.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>());
    let named = cells.filter_map(|cells| {
        let [name, default, range] = cells[..] else { return None };
        let name = name.split('`').nth(1)?;
        let (section, field) = name.split_once('.')?;
        Some([section, field, default, range].map(str::to_owned))
    });
    named.map(|[section, field, default, range]| (section, field, default, range)).collect()
}

#[test]
fn the_limits_that_are_documented_are_those_of_the_code() {
    let reference = read("deploy/reference.toml");
    let accepts = |section: &str, field: &str, value: &str| {
        let quoted = if value.parse::<u64>().is_ok() { value.to_owned() } else { format!("\"{value}\"") };
        let line = format!("{field} = {quoted}\n");
        let rest = match field {
            "answer_bytes_max" => "receipt_limit = 0\n",
            _ => "",
        };
        let route = format!("[[route]]\nname = \"r\"\npath = \"/r\"\nkey = [\"$.id\"]\n{rest}");
        let app = "[upstream]\nurl = \"http://127.0.0.1:1\"\n";
        let text = match section {
            "route" => format!("{app}{route}{line}"),
            section => format!("{app}[{section}]\n{line}{route}"),
        };
        Config::parse(Path::new("u.toml"), &text, &Environment::new()).is_ok()
    };
    let mut wrong = Vec::new();
    let (mut defaults, mut ranges) = (0, 0);
    for (section, field, default, range) in limits() {
        let is_value = default.starts_with(|c: char| c.is_ascii_digit()) && !default.contains([' ', ',']);
        if is_value {
            defaults += 1;
            let (plain, quoted) =
                (format!("\n{field} = {default}\n"), format!("\n{field} = \"{default}\"\n"));
            if !reference.contains(&plain) && !reference.contains(&quoted) {
                wrong.push(format!("{section}.{field}: the default is not {default}"));
            }
        }
        let Some((least, most)) = range.split_once(" to ").filter(|(least, _)| !least.contains(' ')) else {
            continue;
        };
        if field.contains('`') {
            continue;
        }
        ranges += 1;
        let digits = most.find(|c: char| !c.is_ascii_digit()).unwrap_or(most.len());
        let (number, unit) = most.split_at(digits);
        let beyond = format!("{}{unit}", number.parse::<u64>().unwrap() + 1);
        for (value, fits) in [(least, true), (most, true), (&*beyond, false)] {
            if accepts(&section, &field, value) != fits {
                wrong.push(format!(
                    "{section}.{field}: {value} should {}",
                    if fits { "fit" } else { "not fit" }
                ));
            }
        }
    }
    for field in umavez::config::FIELDS.iter().find(|(section, _)| *section == "limits").unwrap().1 {
        if !limits().iter().any(|(_, documented, ..)| documented == field) {
            wrong.push(format!("limits.{field} is not documented"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert!(defaults > 12 && ranges > 12, "{defaults} defaults and {ranges} ranges were found");
}

#[test]
fn the_bounds_that_are_built_in_are_as_documented() {
    // Where the bound is, as it is written there, and how the document tells it.
    let bounds = [
        ("src/listen/connection.rs", "STREAMS_MAX: u32 = 256;", "| 256 |"),
        ("src/listen/watch.rs", "UNREAD_MAX: Duration = Duration::from_secs(60);", "| 60 s |"),
        ("src/listen/connection.rs", "BODY_WINDOW_BYTES: u32 = 64 * 1024;", "| 64 KiB; 128 KiB |"),
        ("src/upstream/connect.rs", "ANSWER_WINDOW_BYTES: u32 = 128 * 1024;", "| 64 KiB; 128 KiB |"),
        ("src/upstream/sips.rs", "READ_BYTES_MAX: u64 = 64 * 1024 - 1;", "| about 200 KiB |"),
        ("src/upstream/window.rs", "UNWRITTEN_BYTES_MAX: usize = 16 * 1024;", "| about 200 KiB |"),
        ("src/cli/log.rs", "FLUSH_MAX: Duration = Duration::from_secs(1);", "| 8,192; 1 s |"),
        ("src/cli/log.rs", "WAITING_LINES_MAX: usize = 8192;", "| 8,192; 1 s |"),
        ("src/flow/mod.rs", "ITEMS_MAX: usize = 20_000;", "| 20,000 |"),
        ("src/flow/decode.rs", "LAYERS_MAX: usize = 8;", "| 8, with more 415; 1,000; 8 MiB |"),
        ("src/flow/decode.rs", "GZIP_MEMBERS_MAX: usize = 1000;", "| 8, with more 415; 1,000; 8 MiB |"),
        ("src/flow/decode.rs", "ZSTD_WINDOW_LOG_MAX: u32 = 23;", "| 8, with more 415; 1,000; 8 MiB |"),
        ("src/flow/decode.rs", "UNFOLDS_MAX: usize = 16;", "| 16 times as long, and 4 KiB |"),
        ("src/flow/decode.rs", "ENVELOPE_BYTES: usize = 4 * 1024;", "| 16 times as long, and 4 KiB |"),
        ("src/flow/decode.rs", "WORK_MAX: Duration = Duration::from_secs(5);", "| 5 s; 4 |"),
        ("src/flow/decode.rs", "ASIDE_MAX: usize = 4;", "| 5 s; 4 |"),
        ("src/flow/room.rs", "SHORT_BYTES_MAX: usize = 64 * 1024;", "| a quarter; 64 KiB |"),
        ("src/flow/room.rs", "HEADWAY_BYTES: usize = 64 * 1024;", "| a quarter; 64 KiB |"),
        ("src/flow/room.rs", "HEADWAY_WITHIN: Duration = Duration::from_secs(1);", "| a quarter; 64 KiB |"),
        ("src/providers/json.rs", "DEPTH_MAX: usize = 128;", "| 128; 500,000 |"),
        ("src/providers/xml.rs", "DEPTH_MAX: usize = 128;", "| 128; 500,000 |"),
        ("src/providers/tree.rs", "NODES_MAX: usize = 500_000;", "| 128; 500,000 |"),
        ("src/config/key.rs", "KEY_PARTS_MAX: usize = 16;", "| 16; 32 |"),
        ("src/providers/path.rs", "STEPS_MAX: usize = 32;", "| 16; 32 |"),
        ("src/providers/signature/format.rs", "SIGNATURES_MAX: usize = 16;", "| 16; 8 KiB |"),
        ("src/providers/signature/format.rs", "VALUE_BYTES_MAX: usize = 8 * 1024;", "| 16; 8 KiB |"),
        ("src/upstream/mod.rs", "FIRST_BYTE_MAX: Duration = Duration::from_secs(120);", "| 120 s; 300 s |"),
        ("src/upstream/mod.rs", "PAUSE_MAX: Duration = Duration::from_secs(300);", "| 120 s; 300 s |"),
        ("src/upstream/mod.rs", "TRIES_MAX: usize = 3;", "| 3 |"),
        ("src/ledger/durable/taken.rs", "BATCH_ROWS_MAX: usize = 256;", "| 256; 4 MiB |"),
        ("src/ledger/durable/taken.rs", "BATCH_BYTES_MAX: usize = 4 << 20;", "| 256; 4 MiB |"),
        ("src/ledger/background.rs", "JOBS_MAX: usize = 65_536;", "| 65,536 requests |"),
        ("src/ledger/hot/value.rs", "RECEIPT_BYTES_MAX: usize = 4096;", "| 4 KiB; 1 KiB; 57,344 |"),
        ("src/ledger/near.rs", "RECEIPT_BYTES_MAX: usize = 1024;", "| 4 KiB; 1 KiB; 57,344 |"),
        ("src/ledger/near.rs", "At most 57,344 events in all shards", "| 4 KiB; 1 KiB; 57,344 |"),
        ("src/gateway/mod.rs", "ADMIN_CONNECTIONS_MAX: usize = 64;", "| 64; 1,000 |"),
        ("src/admin/events.rs", "LIST_MAX: usize = 1000;", "| 64; 1,000 |"),
        ("src/config/load.rs", "FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;", "| 4 MiB; 10,000; 64 KiB |"),
        ("src/config/load.rs", "ROUTES_MAX: usize = 10_000;", "| 4 MiB; 10,000; 64 KiB |"),
        ("src/config/tls.rs", "CERTIFICATES_MAX: usize = 1000;", "| 1,000; 16; 1 MiB |"),
        ("src/tls/pem.rs", "CHAIN_MAX: usize = 16;", "| 1,000; 16; 1 MiB |"),
        ("src/tls/pem.rs", "FILE_BYTES_MAX: u64 = 1024 * 1024;", "| 1,000; 16; 1 MiB |"),
        ("src/flow/capture.rs", "WAITING_MAX: usize = 256;", "| 256; 32 MiB |"),
        ("src/flow/capture.rs", "WAITING_BYTES_MAX: usize = 32 * 1024 * 1024;", "| 256; 32 MiB |"),
        ("src/trace/export.rs", "WAITING_MAX: usize = 4096;", "| 4,096; 5 |"),
        ("src/trace/export.rs", "TRIES_MAX: u32 = 5;", "| 4,096; 5 |"),
        ("src/config/secret.rs", "SECRET_FILE_MAX: u64 = 64 * 1024;", "| 4 MiB; 10,000; 64 KiB |"),
    ];
    let document = read("docs/security.md");
    for (file, code, told) in bounds {
        assert!(read(file).contains(code), "{file} has no {code}: docs/security.md says {told}");
        assert!(document.contains(told), "docs/security.md does not say {told} of {code} in {file}");
    }
}
