//! Asks both stores whether they would serve a configuration. Serves nothing itself.

use anyhow::Context;
use tokio::runtime::Builder;
use tokio_util::task::TaskTracker;

use crate::config::{self, Config};
use crate::ledger::durable::{Durable, DurableError, Unfit};
use crate::ledger::hot::Hot;

/// How long a store may take to answer a probe.
const PROBE_MAX: std::time::Duration = std::time::Duration::from_secs(10);

/// What a store said to [`probe`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probed {
    Answers,
    /// Another process, most likely the running gateway, has the file.
    InUse,
    /// The file is not there yet; a start creates it.
    NotYet,
}

/// Asks both stores whether they would serve this configuration; each answer with the store's section. Creates no
/// file.
///
/// # Errors
/// When no runtime can be had.
pub fn probe(config: &Config) -> anyhow::Result<[(&'static str, anyhow::Result<Probed>); 2]> {
    drop(rustls::crypto::ring::default_provider().install_default());
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let tracker = TaskTracker::new();
        let hot = async {
            let (hot, _pushes) = Hot::open(&config.hot, &tracker).await?;
            let answer = hot.ping().await;
            hot.close();
            answer?;
            Ok(Probed::Answers)
        };
        let hot = tokio::time::timeout(PROBE_MAX, hot).await;
        let durable = tokio::time::timeout(PROBE_MAX, probe_durable(config, &tracker)).await;
        let late = |_| Err(anyhow::anyhow!("no answer within {PROBE_MAX:?}"));
        Ok([("hot", hot.unwrap_or_else(late)), ("durable", durable.unwrap_or_else(late))])
    })
}

async fn probe_durable(config: &Config, tracker: &TaskTracker) -> anyhow::Result<Probed> {
    if let config::Durable::Sqlite { path } = &config.durable
        && !path.try_exists().with_context(|| format!("the file {}", path.display()))?
    {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let there = folder.is_none_or(std::path::Path::is_dir);
        anyhow::ensure!(there, "the folder of {} is not there", path.display());
        return Ok(Probed::NotYet);
    }
    let durable = match Durable::open(&config.durable, &config.limits, tracker).await {
        Err(DurableError::Unfit(unfit)) if matches!(*unfit, Unfit::Shared { .. }) => {
            return Ok(Probed::InUse);
        }
        opened => opened?,
    };
    let answer = durable.ping().await;
    durable.close().await;
    answer?;
    Ok(Probed::Answers)
}
