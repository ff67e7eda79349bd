//! `umavez completions`: what a shell needs to complete this program's commands.

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use super::{Arguments, Failure, print};

const EXAMPLES: &str = "\
Examples:
  umavez completions bash > /etc/bash_completion.d/umavez
  umavez completions zsh > /usr/local/share/zsh/site-functions/_umavez
  umavez completions fish > ~/.config/fish/completions/umavez.fish";

/// Print a completion script for a shell
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Completions {
    /// Which shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

impl Completions {
    pub(super) fn run(self) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Arguments::command(), "umavez", &mut script);
        print(&String::from_utf8_lossy(&script))
    }
}
