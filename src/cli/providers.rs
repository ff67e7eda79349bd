//! `umavez providers`: what is built in.

use clap::Args;
use umavez::config::show_duration;
use umavez::providers::Provider;

use super::{Failure, print};

/// List the providers that are built in
#[derive(Args)]
pub(super) struct Providers {
    /// Tell of this one
    #[arg(value_name = "NAME")]
    name: Option<String>,
}

impl Providers {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let Some(name) = &self.name else {
            let names: Vec<&str> = Provider::names();
            return print(&format!("{}\n", names.join("\n")));
        };
        let Some(provider) = Provider::shipped(name) else {
            return Err(Failure::Usage(format!(
                "there is no provider {name:?}; `umavez providers` lists them"
            )));
        };
        print(&format!(
            "name         {}\nhot_ttl      {}\ndurable_ttl  {}\nsigns        {}\n",
            provider.name,
            show_duration(provider.hot_ttl),
            show_duration(provider.durable_ttl),
            if provider.signature.is_some() { "yes" } else { "no" },
        ))
    }
}
