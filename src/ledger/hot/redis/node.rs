//! What the handles of one process share: where Redis is, and what was learned of it. Asks nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::super::breaker::Counters;
use super::super::{HotError, HotOpenError};
use super::Cause;
use super::cause::{is_elsewhere, said_by_system};
use super::connect::Target;
use super::hearing::Hearing;
use crate::config::RedisConfig;

/// What the handles of one process share.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) target: Target,
    pub(super) prefix: String,
    /// `<prefix>:settled`: where ends are told.
    pub(super) channel: String,
    pub(super) timeout: Duration,
    /// Set once the server refused `SET … NX GET` (before 7.0): scripts do the same from then on.
    pub(super) scripted: AtomicBool,
    pub(super) counters: Arc<Counters>,
    /// What the last probe that failed met.
    pub(super) trouble: Mutex<Option<Cause>>,
    pub(super) near_ttl: Duration,
    pub(super) hearing: Hearing,
    /// Rung when a handle gave up a connection that had gone silent: others may be as deaf, and not know it.
    pub(super) renewed: Notify,
    pub(super) tracker: TaskTracker,
    pub(super) closing: CancellationToken,
}

impl Node {
    pub(super) fn new(config: &RedisConfig, tracker: &TaskTracker) -> Result<Self, HotOpenError> {
        Ok(Self {
            target: Target::parse(config)?,
            channel: format!("{}:settled", config.prefix),
            prefix: config.prefix.clone(),
            timeout: config.timeout,
            scripted: AtomicBool::new(false),
            counters: Arc::default(),
            trouble: Mutex::default(),
            near_ttl: config.near_ttl,
            hearing: Hearing::default(),
            renewed: Notify::new(),
            tracker: tracker.clone(),
            closing: CancellationToken::new(),
        })
    }

    /// Why a connection rests, where a probe has met the reason: for people.
    pub(super) fn why(&self, resting: HotError) -> HotError {
        let met = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        met.as_ref().map_or(resting, |cause| self.unusable(cause))
    }

    pub(super) fn unusable(&self, cause: &Cause) -> HotError {
        let told = said_by_system(cause.details());
        let cause = match is_elsewhere(cause) {
            true => format!("it is one node of a cluster, and has a part of the keys ({told})"),
            false => told.to_owned(),
        };
        HotError::Unusable { servers: self.target.servers(), cause }
    }

    pub(super) fn fall_back_to_scripts(&self) {
        if !self.scripted.swap(true, Ordering::Relaxed) {
            tracing::info!("redis is older than 7.0: claims go through scripts");
        }
    }
}
