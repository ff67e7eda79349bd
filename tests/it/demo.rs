//! The first command that a newcomer runs does what it says.

use std::fs::File;
use std::process::{Command, Stdio};

#[test]
fn the_demo_comes_out_as_promised_and_shows_its_counters() {
    let ran = Command::new(env!("CARGO_BIN_EXE_umavez")).arg("demo").output().unwrap();
    let told = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{told}\n{}", String::from_utf8_lossy(&ran.stderr));
    assert!(told.contains("Every line came out as promised."), "{told}");
    // A line of the table that was kept starts with a blank, one that was not with a mark.
    assert!(!told.lines().any(|line| line.starts_with('!')), "{told}");
    for line in [
        r#"umavez_items_total{route="hotmart",provider="hotmart",mode="inline",verdict="first"} 4"#,
        r#"umavez_items_total{route="whatsapp",provider="meta",mode="inline",verdict="duplicate"} 1"#,
        r#"umavez_duplicates_total{route="hotmart",mode="inline",layer="waited"} 1"#,
    ] {
        assert!(told.contains(line), "{line} is missing from:\n{told}");
    }
}

/// `umavez demo | head -1` panicked, and so did every warning and error where stderr could not be written.
#[test]
fn no_command_panics_where_its_output_goes_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("umavez.toml");
    std::fs::write(&config, "[upstream]\nurl = \"http://127.0.0.1:1\"\n[[route]]\nname = \"a\"\npath = \"/a\"\nkey = [\"$.id\"]\n")
        .unwrap();
    let full = || Stdio::from(File::create("/dev/full").unwrap());
    let closed = || Stdio::from(std::io::pipe().unwrap().1);
    let ran = |arguments: &[&str], out: Stdio, errors: Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_umavez"));
        command.args(arguments).current_dir(folder.path()).stdin(Stdio::null()).stdout(out).stderr(errors);
        let ran = command.spawn().unwrap().wait_with_output().unwrap();
        (ran.status.code().unwrap(), String::from_utf8_lossy(&ran.stderr).into_owned())
    };
    for arguments in [
        &["demo"][..],
        &["check", "--offline"],
        &["providers"],
        &["providers", "stripe"],
        &["man"],
        &["completions", "bash"],
        &["init", "--config", "-", "--upstream", "http://127.0.0.1:1", "--provider", "stripe"],
    ] {
        let (code, told) = ran(arguments, closed(), Stdio::piped());
        assert_eq!(code, 0, "{arguments:?}: {told}");
        let (code, told) = ran(arguments, full(), Stdio::piped());
        assert_eq!(code, 1, "{arguments:?}: {told}");
        assert!(told.contains("cannot write to stdout"), "{arguments:?}: {told}");
        assert!(!told.contains("panicked"), "{told}");
    }
    // A warning, and an error.
    assert_eq!(ran(&["check", "--offline"], Stdio::null(), full()).0, 0);
    assert_eq!(ran(&["check", "--config", "/nowhere.toml"], Stdio::null(), full()).0, 64);
    assert_eq!(ran(&["health", "--admin", "http://127.0.0.1:1"], Stdio::null(), full()).0, 1);
}
