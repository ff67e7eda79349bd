//! `umavez health`: is a gateway up? For whoever can only start a program and look at its exit code, such as a
//! container's health check in an image without a shell.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::Args;
use http::{Request, Uri, header};
use http_body_util::Empty;

use super::{Failure, events, print};

/// How long the gateway may take.
const PATIENCE: Duration = Duration::from_secs(5);

const EXAMPLES: &str = "\
Examples:
  umavez health
  umavez health --ready --admin http://10.0.0.5:9180";

/// Ask a gateway whether it is up; exits with 0 if it is, else with 1
///
/// Asks /live on the admin listener, which needs no token.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Health {
    /// Ask /ready instead: does the durable store answer too, and is the gateway not draining?
    #[arg(long)]
    ready: bool,
    /// The gateway's admin listener
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9180")]
    admin: String,
}

impl Health {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let wrong = || Failure::Usage(format!("--admin: {:?} is no URL; write http://host:port", self.admin));
        let base: Uri = self.admin.parse().map_err(|_| wrong())?;
        let authority = base.authority().filter(|_| base.scheme_str() == Some("http")).ok_or_else(wrong)?;
        let request = Request::get(if self.ready { "/ready" } else { "/live" })
            .header(header::HOST, authority.as_str())
            .body(Empty::new())
            .map_err(|_| wrong())?;
        let address = (authority.host().trim_matches(['[', ']']), authority.port_u16().unwrap_or(9180));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let answer = runtime.context("cannot start")?.block_on(async {
            tokio::time::timeout(PATIENCE, events::ask(address, request))
                .await
                .unwrap_or_else(|_| Err(anyhow!("no answer within {} s", PATIENCE.as_secs())))
                .with_context(|| format!("the gateway at {} is not well", self.admin))
        })?;
        print(&answer)
    }
}
