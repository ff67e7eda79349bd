//! `umavez health`: is a gateway up? For whoever can only start a program and look at its exit code, such as a
//! container's health check in an image without a shell.

use std::time::Duration;

use clap::Args;
use http::Method;

use super::admin::AdminAt;
use super::{Failure, print};

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
    #[command(flatten)]
    at: AdminAt,
}

impl Health {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let target = if self.ready { "/ready" } else { "/live" };
        print(&self.at.ask(Method::GET, target, None, PATIENCE)?)
    }
}
