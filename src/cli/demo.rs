//! `umavez demo`: the gateway at work, on this machine alone.

use clap::Args;

use super::{Failure, write};

/// Show the gateway at work, on this machine alone
#[derive(Args)]
pub(super) struct Demo {
    /// Leave it running afterwards, and print requests to try
    #[arg(long)]
    keep: bool,
}

impl Demo {
    pub(super) fn run(&self) -> Result<(), Failure> {
        match umavez::demo::run(self.keep, write) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Failure::Other(anyhow::anyhow!("the demo did not come out as promised"))),
            Err(error) => Err(Failure::Other(error)),
        }
    }
}
