//! Commands, their arguments, and what a command's end means for the exit code: 0 for success, 64 for what was
//! asked for wrongly (arguments, configuration), 1 for anything else.

mod admin;
mod capture;
mod check;
mod completions;
mod demo;
mod events;
mod health;
mod init;
mod keydiff;
mod keys;
mod log;
mod man;
mod page;
mod providers;
mod run;

use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use umavez::config::{Config, ConfigErrors, Environment, Warning};

/// The configuration file where none is named, as `umavez init` writes it.
const FILE: &str = "umavez.toml";
/// The exit code for what was asked for wrongly: `EX_USAGE` of sysexits.
const USAGE: u8 = 64;

const EXAMPLES: &str = "\
Examples:
  umavez run --upstream http://127.0.0.1:3000 --provider hotmart
      an app behind one route for Hotmart, events kept in ./umavez.db
  umavez check --config umavez.toml
      is this file right, are its secrets there, do its stores answer?
  umavez run --config umavez.toml
      serve what the file says
  umavez events held
      what waits for a person?

`umavez help COMMAND` tells more of each.";

/// Makes webhooks happen once: stands in front of an app, recognises copies of an event, and lets one through.
#[derive(Parser)]
#[command(name = "umavez", version, after_help = EXAMPLES, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write a first configuration: ask a few questions, or take flags
    Init(init::Init),
    /// Serve: by a file, or with no file in front of one app
    Run(run::Run),
    /// Look at a configuration and its stores; say everything that is wrong or risky
    Check(check::Check),
    /// Show the gateway at work, on this machine alone
    Demo(demo::Demo),
    /// Print the event keys of one recorded delivery
    Keys(keys::Keys),
    /// Take deliveries and write them to files, for finding a key
    Capture(capture::Capture),
    /// Compare captured deliveries: what may name an event, and is the key safe?
    Keydiff(keydiff::Keydiff),
    /// Look up and change events of a running gateway
    Events(events::Events),
    /// Ask a gateway whether it is up; exits with 0 if it is, else with 1
    Health(health::Health),
    /// List the providers that are built in, or tell of one
    Providers(providers::Providers),
    /// Print a completion script for a shell
    Completions(completions::Completions),
    /// Print the manual page, or write one for each command
    Man(man::Man),
}

/// Why a command failed.
#[derive(Debug)]
enum Failure {
    /// The arguments or the configuration are wrong.
    Usage(String),
    /// Anything else.
    Other(anyhow::Error),
    /// Anything else that the log tells.
    Told,
}

impl From<ConfigErrors> for Failure {
    fn from(errors: ConfigErrors) -> Self {
        Self::Usage(errors.to_string())
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Other(error)
    }
}

/// Runs the command that the arguments name.
pub(crate) fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let code = if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
            // A closed pipe is no reason to fail: who asked has stopped reading.
            let _printed = error.print();
            return code;
        }
    };
    let result = match arguments.command {
        Command::Run(run) => run.run(),
        Command::Check(check) => check.run(),
        Command::Demo(demo) => demo.run(),
        Command::Keys(keys) => keys.run(),
        Command::Capture(capture) => capture.run(),
        Command::Keydiff(keydiff) => keydiff.run(),
        Command::Events(events) => events.run(),
        Command::Health(health) => health.run(),
        Command::Providers(providers) => providers.run(),
        Command::Init(init) => init.run(),
        Command::Completions(completions) => completions.run(),
        Command::Man(man) => man.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage(text)) => {
            tell(&text);
            ExitCode::from(USAGE)
        }
        Err(Failure::Other(error)) => {
            tell(&format!("umavez: {error:#}"));
            ExitCode::FAILURE
        }
        Err(Failure::Told) => ExitCode::FAILURE,
    }
}

/// What `${NAME}` may refer to; variables that are not UTF-8 cannot be referred to.
fn environment() -> Environment {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

fn load(path: &Path) -> Result<(Config, Vec<Warning>), Failure> {
    Ok(Config::load(path, &environment())?)
}

/// Prints a line to stderr. Where that can't be written nobody is left to tell, and `eprintln!` would panic.
fn tell(line: &str) {
    use std::io::Write as _;
    let _told = writeln!(std::io::stderr(), "{line}");
}

/// Prints to stdout; a reader that has gone away ends the command quietly.
fn print(text: &str) -> Result<(), Failure> {
    write(text).map_err(Failure::Other)
}

fn write(text: &str) -> anyhow::Result<()> {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(anyhow::Error::new(error).context("cannot write to stdout"))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}
