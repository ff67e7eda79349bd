//! How many connections listeners may have together, and what happens where all are taken: who comes waits, it is told
//! now and then, and where the listener says so, connections that nobody uses make room.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::clock::Seldom;
use crate::metrics::Connections;

/// How often it is told that every connection is taken.
const FULL_TOLD_EVERY: Duration = Duration::from_secs(60);
/// How often those that are open are asked again to make room, as long as somebody waits.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// How many connections all listeners together may have.
#[derive(Clone, Debug)]
pub struct Slots {
    free: Arc<Semaphore>,
    max: usize,
    open: Connections,
    full: Arc<Seldom>,
    /// Tells connections that somebody waits; none where they keep their places all the same.
    wanted: Option<Arc<Notify>>,
}

impl Slots {
    /// For `listener`, as metrics and logs name it.
    pub fn new(listener: &'static str, connections_max: usize) -> Self {
        let max = connections_max.min(Semaphore::MAX_PERMITS);
        Self {
            free: Arc::new(Semaphore::new(max)),
            max,
            open: Connections::new(listener, max),
            full: Arc::new(Seldom::every(FULL_TOLD_EVERY)),
            wanted: None,
        }
    }

    /// The same, where a connection without a request gives its place to whoever waits for one.
    pub fn yielding(listener: &'static str, connections_max: usize) -> Self {
        Self { wanted: Some(Arc::default()), ..Self::new(listener, connections_max) }
    }

    /// A place; past the limit it is waited for.
    pub(super) async fn take(&self) -> Place {
        let permit = match Arc::clone(&self.free).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_none_is_free) => self.wait().await,
        };
        self.open.opened();
        Place { open: self.open.clone(), _permit: permit }
    }

    async fn wait(&self) -> OwnedSemaphorePermit {
        if self.full.is_due() {
            tracing::warn!(
                listener = self.open.listener(),
                connections_max = self.max,
                "every connection is taken: whoever comes waits until one ends"
            );
        }
        let mut permit = pin!(Arc::clone(&self.free).acquire_owned());
        while let Some(wanted) = &self.wanted {
            wanted.notify_waiters();
            if let Ok(permit) = tokio::time::timeout(ASK_AGAIN, &mut permit).await {
                return permit.expect("never closed");
            }
        }
        permit.await.expect("never closed")
    }

    /// Returns when somebody waits for a place that a connection without a request is to give; never where such
    /// connections keep theirs.
    pub(super) async fn wanted(&self) {
        match &self.wanted {
            Some(wanted) => wanted.notified().await,
            None => std::future::pending().await,
        }
    }
}

/// A place among the connections allowed; free again when it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    open: Connections,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.open.closed();
    }
}
