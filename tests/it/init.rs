//! The first minutes: a configuration from flags or questions, completions, manual pages.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::cli::{code, secret_for, stderr, stdout, umavez};
use crate::support::{Delivery, Gateway, Upstream, eventually, free_port, send};

const APP: [&str; 2] = ["--upstream", "http://127.0.0.1:3000"];

/// `umavez init` into `config`, where stdin is no terminal, with these variables set.
fn init(config: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_umavez"));
    command.args(["init", "--config"]).arg(config).args(arguments).stdin(Stdio::null());
    command.envs(variables.iter().copied()).output().unwrap()
}

/// `umavez init` on a terminal of its own, with these lines typed.
fn init_at_a_terminal(config: &Path, typed: &str) -> Output {
    let line = format!("{} init --config {}", env!("CARGO_BIN_EXE_umavez"), config.display());
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(typed.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn checked(config: &Path, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_umavez"));
    command.args(["check", "--offline", "--config"]).arg(config).envs(variables.iter().copied());
    command.output().unwrap()
}

/// A program that ends with its story, also with one that fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _killed = self.0.kill();
        let _ended = self.0.wait();
    }
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("umavez.toml");
    (folder, config)
}

#[test]
fn a_first_configuration_of_any_provider_passes_check() {
    let (folder, _) = folder();
    for name in umavez::providers::Provider::names() {
        let config = folder.path().join(format!("{name}.toml"));
        let variable = name.to_uppercase().replace('-', "_");
        let (secret, key) = (format!("{variable}_SECRET"), format!("{variable}_PUBLIC_KEY"));
        let set = [(&*secret, secret_for(&secret)), (&*key, secret_for(&key))];
        for variables in [&[][..], &set] {
            let output = init(&config, &[&APP[..], &["--provider", name, "--force"]].concat(), variables);
            assert_eq!(code(&output), 0, "{name}: {}", stderr(&output));
            let output = checked(&config, variables);
            assert_eq!(code(&output), 0, "{name}: {}", stderr(&output));
        }
        let unsigned = stderr(&checked(&config, &set)).contains("can make the gateway swallow");
        // A certificate is a file in /etc, which a story does not write.
        let by_file = std::fs::read_to_string(&config).unwrap().contains("{ file = \"/etc/umavez/");
        assert_eq!(unsigned, by_file, "{name}: a secret that was set was not used");
    }
}

#[test]
fn a_secret_that_is_not_set_is_named_and_waits_in_a_comment() {
    let (_folder, config) = folder();
    let output = init(&config, &[&APP[..], &["--provider", "hotmart"]].concat(), &[]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(
        stdout(&output).contains("hotmart: set HOTMART_SECRET and take the # away"),
        "{}",
        stdout(&output)
    );
    assert!(stdout(&output).contains("https://YOUR-HOST/webhooks/hotmart"), "{}", stdout(&output));
    assert!(stderr(&output).contains("no secret"), "{}", stderr(&output));
    let text = std::fs::read_to_string(&config).unwrap();
    let uncommented = text.replace("#secret = ", "secret = ");
    assert_ne!(text, uncommented, "{text}");
    std::fs::write(&config, uncommented).unwrap();
    assert_eq!(code(&checked(&config, &[])), 64);
    assert_eq!(code(&checked(&config, &[("HOTMART_SECRET", "hottok")])), 0);
}

#[test]
fn every_flag_is_in_the_file() {
    let (_folder, config) = folder();
    let flags = [
        "--provider",
        "twilio",
        "--key",
        "header:X-Id",
        "--key",
        "$.part",
        "--redis",
        "redis://r:6379",
        "--postgres",
        "postgres://u:${PGPASSWORD}@p/u",
        "--listen",
        "[::]:8081",
        "--admin",
        "0.0.0.0:9181",
        "--trusted-proxy",
        "10.0.0.0/8",
        "--trusted-proxy",
        "192.0.2.1",
        "--public-url",
        "https://a.example/",
        "--hold",
    ];
    let variables = [("PGPASSWORD", "pgsecret9"), ("UMAVEZ_ADMIN_TOKEN", "0123456789abcdef")];
    let output = init(&config, &[&APP[..], &flags].concat(), &variables);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let text = std::fs::read_to_string(&config).unwrap();
    for line in [
        "public = \"[::]:8081\"",
        "admin = \"0.0.0.0:9181\"",
        "admin_token = \"${UMAVEZ_ADMIN_TOKEN}\"",
        "trusted_proxies = [\"10.0.0.0/8\", \"192.0.2.1\"]",
        "url = \"redis://r:6379\"",
        "url = \"postgres://u:${PGPASSWORD}@p/u\"",
        "url = \"http://127.0.0.1:3000\"",
        "public_url = \"https://a.example/webhooks/twilio\"",
        "key = [\"header:X-Id\", \"$.part\"]",
        "on_unknown = \"hold\"",
    ] {
        assert!(text.lines().any(|written| written == line), "no {line} in {text}");
    }
    assert!(!text.contains("pgsecret9"), "{text}");
    assert_eq!(code(&checked(&config, &variables)), 0);
}

#[test]
fn a_file_that_is_there_stays_unless_forced() {
    let (_folder, config) = folder();
    std::fs::write(&config, "mine").unwrap();
    let flags = [&APP[..], &["--provider", "stripe"]].concat();
    let output = init(&config, &flags, &[]);
    assert_eq!(code(&output), 64);
    assert!(stderr(&output).contains("is there already; say --force"), "{}", stderr(&output));
    assert_eq!(std::fs::read_to_string(&config).unwrap(), "mine");
    let output = init(&config, &[&flags[..], &["--force"]].concat(), &[]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(std::fs::read_to_string(&config).unwrap().contains("provider = \"stripe\""));
}

#[test]
fn what_makes_no_configuration_is_told_and_not_written() {
    let (_folder, config) = folder();
    let wrong: &[(&[&str], &str)] = &[
        (&[], "stdin is no terminal"),
        (&["--upstream", "http://a"], "say --upstream URL, and --provider NAME or --key PART"),
        (&["--upstream", "ftp://a", "--provider", "hotmart"], "unknown scheme"),
        (&["--upstream", "http://a", "--provider", "hotmat"], "did you mean \"hotmart\"?"),
        (&["--upstream", "http://a", "--key", "$["], "key"),
        (
            // What isn't set yet hides nothing else.
            &["--upstream", "ftp://a", "--provider", "meta", "--postgres", "postgres://u:${NOT_SET_1}@p/u"],
            "unknown scheme",
        ),
    ];
    for (flags, why) in wrong {
        let output = init(&config, flags, &[]);
        assert_eq!(code(&output), 64, "{flags:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(why), "{flags:?}: {}", stderr(&output));
        assert!(!config.exists(), "{flags:?}");
    }
}

#[test]
fn a_variable_that_is_not_set_yet_is_named_and_the_file_is_written() {
    // The help's own example ended with 64 and wrote nothing, as PGPASSWORD was not set; so did an admin listener
    // for others, whose token wasn't.
    let help = stdout(&umavez(&["init", "--help"]));
    assert!(help.contains("--postgres 'postgres://umavez:${PGPASSWORD}@postgres/umavez'"), "{help}");
    let flags = [
        "--upstream",
        "http://app:3000",
        "--provider",
        "stripe",
        "--redis",
        "redis://redis:6379",
        "--postgres",
        "postgres://umavez:${PGPASSWORD}@postgres/umavez",
        "--admin",
        "0.0.0.0:9180",
    ];
    let (_folder, config) = folder();
    let output = init(&config, &flags, &[]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let (_, next) = stdout(&output).split_once("Next:").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    for name in ["PGPASSWORD", "UMAVEZ_ADMIN_TOKEN"] {
        assert!(next.contains(&format!("set {name} in the environment")), "{next}");
    }
    assert!(!next.contains("set STRIPE_SECRET in the environment"), "{next}");
    assert_eq!(code(&checked(&config, &[])), 64);
    let set = [("PGPASSWORD", "word"), ("UMAVEZ_ADMIN_TOKEN", "0123456789abcdef")];
    assert_eq!(code(&checked(&config, &set)), 0);
    let output = init(&config, &[&flags[..], &["--force"]].concat(), &set);
    assert!(!stdout(&output).contains("in the environment"), "{}", stdout(&output));
}

#[test]
fn a_first_configuration_may_only_watch() {
    // Every route is to begin in shadow, and neither a flag, a question nor a line of the file said how.
    let (_folder, config) = folder();
    let flags = [&APP[..], &["--provider", "hotmart", "--key", "$.id", "--force"]].concat();
    let written = |shadow: &[&str]| {
        let output = init(&config, &[&flags[..], shadow].concat(), &[]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let text = std::fs::read_to_string(&config).unwrap();
        let count = |line: &str| text.lines().filter(|written| *written == line).count();
        (count("mode = \"shadow\""), count("#mode = \"inline\""))
    };
    assert_eq!(written(&[]), (0, 2));
    assert_eq!(written(&["--shadow"]), (2, 0));
    let output = checked(&config, &[]);
    assert_eq!(code(&output), 0);
    assert_eq!(stdout(&output).matches("in shadow: counts").count(), 2, "{}", stdout(&output));
}

#[test]
fn a_dash_prints_the_file_alone() {
    let output = init(Path::new("-"), &[&APP[..], &["--key", "$.id"]].concat(), &[]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let (_folder, config) = folder();
    std::fs::write(&config, &output.stdout).unwrap();
    assert_eq!(code(&checked(&config, &[])), 0, "{}", stdout(&output));
}

#[test]
fn at_a_terminal_it_asks_and_asks_again() {
    let (_folder, config) = folder();
    let typed = "ftp://a\nhttp://127.0.0.1:4000\nhotmat\nhotmart, stripe\ny\nn\ny\n\n\nnowhere\n10.0.0.0/8\n";
    let output = init_at_a_terminal(&config, typed);
    let said = stdout(&output);
    assert_eq!(code(&output), 0, "{said}");
    for part in ["unknown scheme", "did you mean \"hotmart\"?", "no network", "umavez check --config"] {
        assert!(said.contains(part), "{said}");
    }
    let text = std::fs::read_to_string(&config).unwrap();
    for line in [
        "url = \"http://127.0.0.1:4000\"",
        "provider = \"hotmart\"",
        "provider = \"stripe\"",
        "on_unknown = \"hold\"",
        "url = \"redis://127.0.0.1:6379\"",
        "url = \"postgres://umavez@127.0.0.1/umavez\"",
        "trusted_proxies = [\"10.0.0.0/8\"]",
    ] {
        assert!(text.lines().any(|written| written == line), "no {line} in {text}");
    }
    assert_eq!(code(&checked(&config, &[])), 0);
}

#[test]
fn answers_that_end_too_soon_write_nothing() {
    let (_folder, config) = folder();
    // The fourth byte of a terminal's control alphabet ends the input.
    let output = init_at_a_terminal(&config, "http://127.0.0.1:4000\n\u{4}");
    assert_eq!(code(&output), 64, "{}", stdout(&output));
    assert!(stdout(&output).contains("nothing was written"), "{}", stdout(&output));
    assert!(!config.exists());
}

#[test]
fn bash_completes_commands_and_flags() {
    let (folder, _) = folder();
    let script = folder.path().join("umavez.bash");
    std::fs::write(&script, umavez(&["completions", "bash"]).stdout).unwrap();
    // A provider's name after `providers` and `--provider` was completed to files, or to nothing.
    for (words, last, wanted) in [
        ("umavez prov", "prov", "providers"),
        ("umavez check --of", "--of", "--offline"),
        ("umavez providers strip", "strip", "stripe"),
        ("umavez run --provider merc", "merc", "mercadopago"),
        ("umavez init --provider hot", "hot", "hotmart"),
    ] {
        let count = words.split(' ').count() - 1;
        let previous = words.split(' ').nth(count - 1).unwrap();
        let program = format!(
            "source {}; COMP_WORDS=({words}); COMP_CWORD={count}; _umavez umavez '{last}' '{previous}'; echo \"${{COMPREPLY[@]}}\"",
            script.display()
        );
        let output = Command::new("bash").args(["--norc", "-c", &program]).output().unwrap();
        assert_eq!(stdout(&output).trim(), wanted, "{}", stderr(&output));
    }
    for shell in ["elvish", "fish", "powershell", "zsh"] {
        let script = stdout(&umavez(&["completions", shell]));
        assert!(script.contains("providers") && script.contains("offline"), "{shell}: {script}");
    }
    assert_eq!(code(&umavez(&["completions", "csh"])), 64);
    // Completed, and neither listed at length nor demanded: a configuration brings providers of its own.
    for command in ["run", "providers", "keys"] {
        assert!(!stdout(&umavez(&[command, "--help"])).contains("woocommerce"), "{command}");
    }
}

#[test]
fn each_command_has_a_manual_page() {
    let (folder, _) = folder();
    let page = stdout(&umavez(&["man"]));
    assert!(page.contains(".TH umavez 1"), "{page}");
    let output = umavez(&["man", "--dir", &folder.path().display().to_string()]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let help = stdout(&umavez(&["--help"]));
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let commands: Vec<&str> = commands
        .lines()
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(commands.contains(&"run") && commands.contains(&"man"), "{commands:?}");
    for command in commands.iter().filter(|command| **command != "help") {
        let text = std::fs::read_to_string(folder.path().join(format!("umavez-{command}.1"))).unwrap();
        assert!(text.contains(".SH SYNOPSIS"), "{command}: {text}");
        assert!(page.contains(&format!("umavez\\-{command}(1)")), "{command}: {page}");
    }
    let output = umavez(&["man", "--dir", "/nowhere/at/all"]);
    assert_eq!(code(&output), 1, "{}", stderr(&output));
}

#[tokio::test]
async fn health_is_an_exit_code() {
    let upstream = Upstream::answering(200, "").await;
    let mut gateway = Gateway::in_front_of(&upstream).start().await;
    let admin = format!("http://{}", gateway.admin());
    for flags in [&["health", "--admin", &admin][..], &["health", "--ready", "--admin", &admin]] {
        let output = umavez(flags);
        assert_eq!(code(&output), 0, "{flags:?}: {}", stderr(&output));
        assert!(stdout(&output).contains("true"), "{}", stdout(&output));
    }
    gateway.kill();
    gateway.wait_exit().await;
    let output = umavez(&["health", "--admin", &admin]);
    assert_eq!(code(&output), 1, "{}", stdout(&output));
    assert!(stderr(&output).contains("is it running?"), "{}", stderr(&output));
    assert_eq!(code(&umavez(&["health", "--admin", "ftp://a"])), 64);
}

#[tokio::test]
async fn a_first_configuration_serves() {
    let upstream = Upstream::answering(201, "made").await;
    let (folder, config) = folder();
    let (public, admin) = (free_port(), free_port());
    let flags = [
        format!("--upstream={}", upstream.url()),
        "--provider=hotmart".to_owned(),
        format!("--listen=127.0.0.1:{public}"),
        format!("--admin=127.0.0.1:{admin}"),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let set = [("HOTMART_SECRET", "hottok")];
    assert_eq!(code(&init(&config, &flags, &set)), 0);
    let mut command = Command::new(env!("CARGO_BIN_EXE_umavez"));
    command.args(["run", "--config"]).arg(&config).envs(set).stderr(Stdio::null());
    let _running = Running(command.spawn().unwrap());
    let health = ["health", "--ready", "--admin", &format!("http://127.0.0.1:{admin}")];
    eventually("the gateway's start", async || code(&umavez(&health)) == 0).await;
    let purchase = Delivery::json("/webhooks/hotmart", r#"{"id":"1","event":"PURCHASE_APPROVED"}"#);
    let address = ([127, 0, 0, 1], public).into();
    assert_eq!(send(address, &purchase).await.status, 401);
    let purchase = purchase.header("X-HOTMART-HOTTOK", "hottok");
    for verdict in ["first", "duplicate"] {
        let answer = send(address, &purchase).await;
        assert_eq!((answer.status, answer.verdict().as_str()), (201, verdict));
    }
    assert_eq!(upstream.received(), 1);
    assert!(folder.path().join("umavez.db").exists());
}
