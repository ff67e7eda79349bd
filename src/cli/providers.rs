//! `umavez providers`: what is built in.

use clap::Args;
use umavez::providers::Provider;

use super::{Failure, page, print};

/// List the providers that are built in, or tell of one: set-up, a route to paste, its key, what to mind
#[derive(Args)]
pub(super) struct Providers {
    /// Tell of this one
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Tell of all, as docs/providers.md does
    #[arg(long, conflicts_with = "name")]
    markdown: bool,
}

impl Providers {
    pub(super) fn run(&self) -> Result<(), Failure> {
        if self.markdown {
            return print(&page::all());
        }
        let Some(name) = &self.name else {
            let names: Vec<&str> = Provider::names();
            return print(&format!("{}\n", names.join("\n")));
        };
        let provider = Provider::named(name).map_err(|unknown| Failure::Usage(unknown.to_string()))?;
        print(&page::section(&provider))
    }
}
