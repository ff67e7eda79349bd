//! `umavez run`: serve.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use umavez::config::{Config, ConfigFile, Secret, Warning, WithoutFile};
use umavez::gateway::{Notify, Start};
use umavez::listen::Inherited;

use super::providers::BuiltIn;
use super::{FILE, Failure, environment, load, log};

/// Where the secret comes from when nothing else is said.
const SECRET_VARIABLE: &str = "UMAVEZ_SECRET";

const EXAMPLES: &str = "\
Examples:
  umavez run --config /etc/umavez/umavez.toml
  umavez run --upstream http://127.0.0.1:3000 --provider hotmart
  HOTMART_SECRET=… umavez run --upstream http://127.0.0.1:3000 --provider hotmart --secret-env HOTMART_SECRET

UMAVEZ_LOG sets what is logged, such as `debug` or `umavez=debug,warn`.";

/// Serve: by a file, or with no file in front of one app
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Run {
    /// The configuration file [default: umavez.toml, where it is there and no --upstream is given]
    #[arg(long, value_name = "FILE", conflicts_with_all =
        ["upstream", "provider", "secret_env", "listen", "admin", "data"])]
    config: Option<PathBuf>,
    /// Take the listening sockets over from the gateway that runs, which then stops; nobody is refused meanwhile.
    /// Both need the file's `[listen] handover`
    #[arg(long, conflicts_with = "upstream")]
    takeover: bool,
    /// Without a file: the app, such as http://127.0.0.1:3000
    #[arg(long, value_name = "URL", requires = "provider")]
    upstream: Option<String>,
    /// Without a file: who sends, to whatever path (a file gives a route a path); see `umavez providers`
    #[arg(long, value_name = "NAME", requires = "upstream", value_parser = BuiltIn, hide_possible_values = true)]
    provider: Option<String>,
    /// Without a file: the environment variable that holds the provider's secret [default: UMAVEZ_SECRET, if set]
    #[arg(long, value_name = "NAME")]
    secret_env: Option<String>,
    /// Without a file: where providers come to [default: 0.0.0.0:8080]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Without a file: metrics, health and the event API [default: 127.0.0.1:9180]
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<SocketAddr>,
    /// Without a file: where events are kept
    #[arg(long, value_name = "FILE", default_value = "umavez.db")]
    data: PathBuf,
}

impl Run {
    pub(super) fn run(self) -> Result<(), Failure> {
        let passed = Inherited::from_systemd().map_err(|error| {
            Failure::Other(anyhow::Error::new(error).context("the sockets that systemd passed"))
        })?;
        let takeover = self.takeover;
        let notify = Notify(environment().remove("NOTIFY_SOCKET"));
        let config = self.file()?;
        let file = config.clone().map(|path| ConfigFile { path, env: environment() });
        let (config, warnings) = self.configuration(config.as_deref())?;
        if takeover && config.listen.handover.is_none() {
            let mend = "--takeover: the file names no [listen] handover; write handover = \"/run/umavez/handover.sock\"";
            return Err(Failure::Usage(mend.to_owned()));
        }
        let _flushed_at_the_end = log::start(&config.log)?;
        for warning in &warnings {
            tracing::warn!(place = %warning.place, field = warning.field, "{}", warning.text);
        }
        let start = Start { file, passed, takeover, notify, hangup: None };
        umavez::gateway::run(config, start).map_err(|error| {
            if !tracing::enabled!(tracing::Level::ERROR) {
                return Failure::Other(error);
            }
            // Where everything else of this process is told, in the same form.
            tracing::error!("{error:#}");
            Failure::Told
        })
    }

    /// The file to serve by: the one that is named, or the usual one where it is there; none beside --upstream.
    fn file(&self) -> Result<Option<PathBuf>, Failure> {
        if self.config.is_some() || self.upstream.is_some() {
            return Ok(self.config.clone());
        }
        let usual = PathBuf::from(FILE);
        // What was given for a gateway without a file would be lost on the file.
        let without_file = self.secret_env.is_some() || self.listen.is_some() || self.admin.is_some();
        if usual.is_file() && !without_file {
            return Ok(Some(usual));
        }
        Err(Failure::Usage(format!(
            "run needs --config FILE ({}), or --upstream and --provider; `umavez init` writes a first file",
            if without_file { "alone: its settings are in it" } else { "there is no umavez.toml here" }
        )))
    }

    fn configuration(self, file: Option<&Path>) -> Result<(Config, Vec<Warning>), Failure> {
        if let Some(path) = file {
            return load(path);
        }
        let (Some(upstream), Some(provider)) = (self.upstream, self.provider) else {
            return Err(Failure::Usage("run needs --config, or --upstream and --provider".to_owned()));
        };
        let secret = secret(self.secret_env.as_deref())?;
        let given = WithoutFile {
            upstream,
            provider,
            secret,
            listen: self.listen,
            admin: self.admin,
            data: self.data,
        };
        Ok(Config::without_file(&given)?)
    }
}

/// The secret from the variable that was named, which must be there, or from the usual one, which need not.
fn secret(named: Option<&str>) -> Result<Option<Secret>, Failure> {
    let env = environment();
    let value = env.get(named.unwrap_or(SECRET_VARIABLE)).filter(|value| !value.trim().is_empty());
    match (value, named) {
        (Some(value), _) => Ok(Some(Secret(value.as_str().into()))),
        (None, None) => Ok(None),
        (None, Some(name)) => {
            Err(Failure::Usage(format!("--secret-env: the environment variable {name} is not set; set it")))
        }
    }
}
