//! `umavez events`: the event API of a running gateway, from a terminal.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::admin::AdminAt;
use super::{Failure, environment, print, tell};

/// How long the gateway may take; a replay takes as long as the app does.
const PATIENCE: Duration = Duration::from_secs(120);
/// Where the token comes from when no file is named.
const TOKEN_VARIABLE: &str = "UMAVEZ_ADMIN_TOKEN";

const EXAMPLES: &str = "\
Examples:
  umavez events show 'hotmart:3f0c8b51-6e3a-4b6e-9c0e-2f1f2d9f2a11'
  umavez events held
  umavez events mark-done 'pix:loja:lembrete_pix:HP123:2'
  umavez events allow-once --digest 8d3c1f0a5b7e4c2d9f6a1b3c5d7e9f01 --admin http://10.0.0.5:9180 --token-file token

A key is written as logs, Redis and `umavez keys` show it. Every change is recorded (`umavez events actions`).";

/// Look up and change events of a running gateway
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Events {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    at: AdminAt,
    /// A file with the admin token [default: the environment variable UMAVEZ_ADMIN_TOKEN]
    #[arg(long, global = true, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Action {
    /// Where an event stands
    Show(Key),
    /// Events that wait for a person
    Held(Limit),
    /// What people changed, latest first
    Actions(Limit),
    /// The event happened: copies are answered as duplicates
    MarkDone(Key),
    /// The event did not happen: the next copy is forwarded
    Release(Key),
    /// Forget the event: the next copy is its first
    Forget(Key),
    /// Let one more copy of a done event through
    AllowOnce(Key),
    /// Forward the stored request of a held event now
    Replay(Key),
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct Key {
    /// The event's key
    #[arg(value_name = "KEY")]
    key: Option<String>,
    /// In place of its key the event's digest, 32 hex digits, or the first 8 or more, as logs show them
    #[arg(long, value_name = "HEX")]
    digest: Option<String>,
}

#[derive(Args)]
struct Limit {
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
}

impl Action {
    /// Method, path and query of the API.
    fn request(&self) -> Result<(Method, String), Failure> {
        Ok(match self {
            Self::Show(key) => (Method::GET, format!("/events?{}", key.query()?)),
            Self::Held(Limit { limit }) => (Method::GET, format!("/events/held?limit={limit}")),
            Self::Actions(Limit { limit }) => (Method::GET, format!("/actions?limit={limit}")),
            Self::MarkDone(key) => (Method::POST, format!("/events/mark-done?{}", key.query()?)),
            Self::Release(key) => (Method::POST, format!("/events/release?{}", key.query()?)),
            Self::Forget(key) => (Method::POST, format!("/events/forget?{}", key.query()?)),
            Self::AllowOnce(key) => (Method::POST, format!("/events/allow-once?{}", key.query()?)),
            Self::Replay(key) => (Method::POST, format!("/events/replay?{}", key.query()?)),
        })
    }
}

impl Key {
    fn query(&self) -> Result<String, Failure> {
        match (&self.key, &self.digest) {
            (_, Some(digest))
                if (8..=32).contains(&digest.len())
                    && digest.bytes().all(|byte| byte.is_ascii_hexdigit()) =>
            {
                Ok(format!("digest={digest}"))
            }
            (_, Some(digest)) => Err(Failure::Usage(format!(
                "--digest: {digest:?} is no digest; write its 32 hex digits, or at least the first 8"
            ))),
            (Some(key), None) => Ok(format!("key={}", utf8_percent_encode(key, NON_ALPHANUMERIC))),
            (None, None) => Err(Failure::Usage("name an event by its key, or by --digest".to_owned())),
        }
    }
}

impl Events {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let (method, target) = self.action.request()?;
        let told = self.at.ask(method, &target, self.token()?.as_deref(), PATIENCE)?;
        print(&told)?;
        match &self.action {
            Action::Replay(_) => replayed(&told),
            Action::Show(_)
            | Action::Held(_)
            | Action::Actions(_)
            | Action::MarkDone(_)
            | Action::Release(_)
            | Action::Forget(_)
            | Action::AllowOnce(_) => Ok(()),
        }
    }

    fn token(&self) -> Result<Option<String>, Failure> {
        let Some(file) = &self.token_file else {
            return Ok(environment().remove(TOKEN_VARIABLE).filter(|token| !token.is_empty()));
        };
        match std::fs::read_to_string(file) {
            Ok(token) => Ok(Some(token.trim_end().to_owned())),
            Err(error) => Err(Failure::Usage(format!("--token-file: {}: {error}", file.display()))),
        }
    }
}

/// A replay that the app did not take has failed, though the gateway did what it was asked for; and so has one that the
/// ledger has not recorded.
fn replayed(told: &str) -> Result<(), Failure> {
    let told: serde_json::Value = serde_json::from_str(told).unwrap_or_default();
    let others = told["others"].as_u64().unwrap_or(0);
    if others > 0 {
        let events = if others == 1 { "event" } else { "events" };
        tell(&format!(
            "umavez: the batch can't be cut, so the app got the whole of it: {others} other {events} in it went again too"
        ));
    }
    let (answer, state) = (&told["answer"], told["state"].as_str().unwrap_or("unknown"));
    let taken = told["verdict"] == "first" || told["verdict"] == "duplicate";
    let why = match (taken, state) {
        (true, "done") => return Ok(()),
        (true, "processing" | "unknown") => format!(
            "the app took it (answer {answer}), and that is not recorded yet: look at it (`umavez events show`) before you replay it again"
        ),
        (true, _) => format!(
            "the app took it (answer {answer}), but somebody changed the event meanwhile, or its lease had lapsed: it is {state} now"
        ),
        (false, "held") => {
            format!("the replay failed: the app did not take it (answer {answer}), and the event stays held")
        }
        (false, _) => format!(
            "the replay failed: the app did not take it (answer {answer}), and the event is {state} now"
        ),
    };
    Err(Failure::Other(anyhow::anyhow!(why)))
}
