//! Builds every part from a Config, runs both listeners, drains.

use crate::config::Config;

/// Serves until it is told to stop.
pub fn run(_config: Config) -> anyhow::Result<()> {
    anyhow::bail!("not built yet")
}

/// Connects to both stores, each within its own bound; the store's section and what it said.
pub fn probe(_config: &Config) -> anyhow::Result<Vec<(&'static str, anyhow::Result<()>)>> {
    Ok(Vec::new())
}
