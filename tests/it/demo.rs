//! The first command that a newcomer runs does what it says.

use std::process::Command;

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
