//! Asks both stores, and the collector of traces where there is one, whether they would serve a configuration. Serves
//! nothing itself.

use anyhow::Context;
use tokio::runtime::Builder;
use tokio_util::task::TaskTracker;

use super::reload::prepare;
use crate::config::{self, Config};
use crate::ledger::durable::{Durable, DurableError, Unfit};
use crate::ledger::hot::{Fit, Hot};
use crate::tls::Tls;
use crate::trace;

/// How long each may take to answer a probe.
const PROBE_MAX: std::time::Duration = std::time::Duration::from_secs(10);

/// What a store said to [`probe`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probed {
    Answers,
    /// It answers key by key: the URL names one server, and the keys are kept apart as in a cluster.
    KeyByKey,
    /// Another process, most likely the running gateway, has the file.
    InUse,
    /// The file is not there yet; a start creates it.
    NotYet,
}

/// One of those that were asked.
#[derive(Debug)]
pub struct Asked {
    /// Its section of the configuration.
    pub section: &'static str,
    pub said: anyhow::Result<Probed>,
    /// What is risky about how it is set up, each with its mend.
    pub doubts: Vec<String>,
}

/// Asks both stores and the collector whether they would serve this configuration. Creates no file.
///
/// # Errors
/// When no runtime can be had.
pub fn probe(config: &Config) -> anyhow::Result<Vec<Asked>> {
    drop(rustls::crypto::ring::default_provider().install_default());
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let tracker = TaskTracker::new();
        let hot = async {
            let (hot, _pushes) = Hot::open(&config.hot, &tracker).await?;
            let answer = hot.ping().await;
            let doubts = hot.doubts().await;
            hot.close();
            let fit = match answer? {
                Fit::Whole => Probed::Answers,
                Fit::KeyByKey => Probed::KeyByKey,
            };
            Ok((fit, doubts))
        };
        let hot = tokio::time::timeout(PROBE_MAX, hot).await;
        let durable = tokio::time::timeout(PROBE_MAX, probe_durable(config, &tracker)).await;
        let late = |_| Err(anyhow::anyhow!("no answer within {PROBE_MAX:?}"));
        let mut asked = vec![
            Asked::of("hot", hot.unwrap_or_else(late)),
            Asked::of("durable", durable.unwrap_or_else(late)),
        ];
        if let Some(traces) = &config.traces {
            let collector = async {
                let tls = Tls::open(&config.tls)?;
                prepare(config, &tls)?;
                trace::probe(traces, &config.limits, &tls.collector).await?;
                Ok((Probed::Answers, Vec::new()))
            };
            let collector = tokio::time::timeout(PROBE_MAX, collector).await;
            asked.push(Asked::of("traces", collector.unwrap_or_else(late)));
        }
        Ok(asked)
    })
}

impl Asked {
    fn of(section: &'static str, answer: anyhow::Result<(Probed, Vec<String>)>) -> Self {
        match answer {
            Ok((said, doubts)) => Self { section, said: Ok(said), doubts },
            Err(error) => Self { section, said: Err(error), doubts: Vec::new() },
        }
    }
}

async fn probe_durable(config: &Config, tracker: &TaskTracker) -> anyhow::Result<(Probed, Vec<String>)> {
    if let config::Durable::Sqlite { path, .. } = &config.durable
        && !path.try_exists().with_context(|| format!("the file {}", path.display()))?
    {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let there = folder.is_none_or(std::path::Path::is_dir);
        anyhow::ensure!(there, "the folder of {} is not there", path.display());
        return Ok((Probed::NotYet, Vec::new()));
    }
    let durable = match Durable::open(&config.durable, &config.limits, tracker).await {
        Err(DurableError::Unfit(unfit)) if matches!(*unfit, Unfit::Shared { .. }) => {
            return Ok((Probed::InUse, Vec::new()));
        }
        opened => opened?,
    };
    let answer = durable.ping().await;
    let doubts = durable.doubts().await;
    durable.close().await;
    answer?;
    Ok((Probed::Answers, doubts?))
}
