//! `umavez init`: a first configuration, from a few questions or from flags. What it writes, `umavez check` passes;
//! it never starts anything and never replaces a file unasked.

mod ask;
mod text;

use std::fs::OpenOptions;
use std::io::{IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use umavez::config::{Config, Environment, Warning};
use umavez::providers::Provider;

use super::providers::BuiltIn;
use super::{Failure, environment, print, tell};

const EXAMPLES: &str = "\
Examples:
  umavez init
      asks, and writes umavez.toml
  umavez init --upstream http://127.0.0.1:3000 --provider hotmart --provider meta
      asks nothing
  umavez init --upstream http://app:3000 --provider stripe --redis redis://redis:6379 \\
              --postgres 'postgres://umavez:${PGPASSWORD}@postgres/umavez' --config /etc/umavez/umavez.toml";

/// Write a first configuration: ask a few questions, or take flags
///
/// Asks where stdin is a terminal and the app or who sends is not said. The file is checked before it is written, and
/// a file that is there stays unless --force is given. A secret whose environment variable is not set yet stands in the
/// file as a comment: the route is unsigned until it is set and the comment's sign taken away. Any other variable that is
/// not set yet is named in the end.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Init {
    /// The file to write; `-` for stdout
    #[arg(long, value_name = "FILE", default_value = "umavez.toml")]
    config: PathBuf,
    /// Replace the file if it is there
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    choices: Choices,
}

/// What the file depends on.
#[derive(Args, Clone, Debug, Default)]
struct Choices {
    /// The app, such as http://127.0.0.1:3000
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// Who sends; see `umavez providers`. May be repeated: a route for each
    #[arg(long = "provider", value_name = "NAME", value_parser = BuiltIn, hide_possible_values = true)]
    providers: Vec<String>,
    /// For a sender of your own: where its event's id is, such as '$.id' or header:X-Event-Id. May be repeated
    #[arg(long, value_name = "PART")]
    key: Vec<String>,
    /// Redis, such as redis://127.0.0.1:6379 [default: in the process]
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// Postgres, such as 'postgres://umavez:${PGPASSWORD}@127.0.0.1/umavez' [default: SQLite beside the file]
    #[arg(long, value_name = "URL")]
    postgres: Option<String>,
    /// Where providers come to [default: 0.0.0.0:8080]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Metrics, health and the event API [default: 127.0.0.1:9180]
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<SocketAddr>,
    /// What stands in front and is believed about who asks, such as 10.0.0.0/8. May be repeated
    #[arg(long = "trusted-proxy", value_name = "NETWORK")]
    trusted_proxies: Vec<String>,
    /// What providers call, such as https://hooks.example.com: some of them sign it
    #[arg(long, value_name = "URL")]
    public_url: Option<String>,
    /// Where nobody knows whether the app has processed an event, hold it for a person, so that nothing happens twice
    #[arg(long)]
    hold: bool,
    /// Only watch to begin with: copies are counted, and everything is forwarded
    #[arg(long)]
    shadow: bool,
}

impl Choices {
    /// The senders are known.
    fn has_sender(&self) -> bool {
        !self.providers.is_empty() || !self.key.is_empty()
    }
}

impl Init {
    pub(super) fn run(self) -> Result<(), Failure> {
        let to_stdout = self.config == Path::new("-");
        if !to_stdout && !self.force && self.config.exists() {
            return Err(there(&self.config));
        }
        let env = environment();
        let mut choices = self.choices;
        if choices.upstream.is_none() || !choices.has_sender() {
            if !std::io::stdin().is_terminal() {
                let text = "init: stdin is no terminal, so nothing is asked; say --upstream URL, and --provider NAME or \
                            --key PART";
                return Err(Failure::Usage(text.to_owned()));
            }
            let (input, output) = (std::io::stdin().lock(), std::io::stderr());
            choices =
                ask::all(choices, input, output, |choices| checked(choices, &self.config, &env).map(drop))?;
        }
        let (text, warnings) = checked(&choices, &self.config, &env)?;
        if to_stdout {
            return print(&text);
        }
        write(&self.config, &text, self.force)?;
        for warning in &warnings {
            tell(&format!("{warning} (warning)"));
        }
        print(&next(&self.config, &choices, &env))
    }
}

/// The file's text, if it is one that serves once the variables that it names are set.
fn checked(choices: &Choices, path: &Path, env: &Environment) -> Result<(String, Vec<Warning>), Failure> {
    for name in &choices.providers {
        Provider::named(name).map_err(|error| Failure::Usage(format!("--provider: {error}")))?;
    }
    let text = text::whole(choices, env);
    match Config::parse(path, &text, env) {
        Ok((_, warnings)) => Ok((text, warnings)),
        // What is only not there yet is named when the file is written; `check` and the start insist on it.
        Err(errors) if errors.0.iter().all(|problem| problem.fault.absent) => Ok((text, Vec::new())),
        Err(errors) => Err(errors.into()),
    }
}

fn there(path: &Path) -> Failure {
    Failure::Usage(format!(
        "{}: is there already; say --force to replace it, or --config FILE",
        path.display()
    ))
}

fn write(path: &Path, text: &str, force: bool) -> Result<(), Failure> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    if !force {
        // Nobody else's file either that came meanwhile.
        options.create_new(true);
    }
    let written = options.open(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| {
        if error.kind() == std::io::ErrorKind::AlreadyExists {
            return there(path);
        }
        Failure::Usage(format!("{}: cannot be written: {error}; mend the path", path.display()))
    })
}

/// What to do with the file.
fn next(path: &Path, choices: &Choices, env: &Environment) -> String {
    let file = path.display();
    let mut lines = vec![format!("{file}: written. Next:")];
    for (name, lacking) in text::missing(choices, env) {
        lines.push(format!(
            "  {name}: set {lacking} and take the # away in {file}: until then anyone can send"
        ));
    }
    for name in text::unset(choices, env) {
        let such = if name == text::ADMIN_TOKEN {
            ", for example to the output of openssl rand -hex 24"
        } else {
            ""
        };
        lines.push(format!("  set {name} in the environment{such}: {file} takes it from there"));
    }
    lines.push(format!("  umavez check --config {file}"));
    lines.push(format!("  umavez run --config {file}"));
    let base = choices.public_url.as_deref().unwrap_or("https://YOUR-HOST").trim_end_matches('/');
    for (name, path) in text::paths(choices) {
        lines.push(format!("  {name}: let it call {base}{path}"));
    }
    if choices.shadow {
        lines.push(
            "  copies are only counted: when the counts are right, take mode = \"shadow\" away".to_owned(),
        );
    }
    lines.join("\n") + "\n"
}
