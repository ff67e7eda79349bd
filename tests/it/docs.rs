//! What the documents tell people to type: every configuration in them loads, every command and flag is there, and
//! the Portuguese README says the same as the English one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use umavez::config::{Config, Environment};

use crate::cli::{secret_for, stdout, umavez};

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

/// A block as a file of its own: with an app where it names none, and its secret files beside it.
fn file_of(block: &Block, folder: &Path) -> String {
    let mut text = block.text.clone();
    if !text.contains("[upstream]") {
        text = format!("[upstream]\nurl = \"http://127.0.0.1:3000\"\n{text}");
    }
    let named: Vec<String> = text
        .split("file = \"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next().map(str::to_owned))
        .collect();
    for path in named {
        let beside = folder.join(Path::new(&path).file_name().unwrap());
        std::fs::write(&beside, secret_for(&path)).unwrap();
        text = text.replace(&path, &beside.display().to_string());
    }
    text
}

#[test]
fn every_configuration_in_the_documents_loads() {
    let folder = tempfile::tempdir().unwrap();
    let mut wrong = Vec::new();
    let mut routes = 0;
    for path in documents() {
        for block in blocks(&path).iter().filter(|block| block.of == "toml") {
            let text = file_of(block, folder.path());
            let wanted = text.split("${").skip(1).filter_map(|rest| rest.split('}').next());
            let env: Environment =
                wanted.map(|name| (name.to_owned(), secret_for(name).to_owned())).collect();
            match Config::parse(&folder.path().join("u.toml"), &text, &env) {
                Ok((config, _)) => routes += config.routes.len(),
                Err(errors) => wrong.push(format!("{}: {errors}", block.place)),
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert!(routes > 10, "only {routes} routes were found");
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
                let Some(at) = words.iter().position(ours).filter(|at| *at == 0 || words[at - 1] == "sudo")
                else {
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
                for flag in words.iter().filter(|word| word.starts_with("--")) {
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
