//! `umavez man`: the manual pages, made from the same words as `--help`.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, CommandFactory as _};
use clap_mangen::Man as Page;

use super::{Arguments, Failure, print};

const EXAMPLES: &str = "\
Examples:
  umavez man | man -l -
  umavez man --dir /usr/local/share/man/man1";

/// Print the manual page, or write one for each command
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Man {
    /// Write umavez.1, umavez-run.1 and so on into this directory, which has to be there
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Man {
    pub(super) fn run(self) -> Result<(), Failure> {
        let command = Arguments::command();
        if let Some(dir) = self.dir {
            let written = clap_mangen::generate_to(command, &dir);
            return Ok(written.with_context(|| format!("cannot write pages into {}", dir.display()))?);
        }
        let mut page = Vec::new();
        Page::new(command).render(&mut page).context("cannot make the page")?;
        print(&String::from_utf8_lossy(&page))
    }
}
