//! Settlements that the durable store couldn't take at once: retried until they land or somebody else holds the event.
//! Also what the hot store alone decided while the durable store was away: it is caught up.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio_util::sync::CancellationToken;

use super::Ledger;
use super::claim::{Claim, EventKey, Receipt, Settlement};
use super::durable::{HotOnly, Settled};
use crate::metrics::Stores;

/// Most jobs that may wait; past it a job is dropped, logged and counted.
const JOBS_MAX: usize = 65_536;
/// Jobs tried side by side, of those that failed before and of those that are new.
const BATCH_MAX: usize = 128;
/// How long to rest after the durable store refused.
const REST: Duration = Duration::from_millis(500);
/// How many more tries a stop grants, `REST` apart.
const LAST_TRIES: u32 = 10;

/// Where jobs are left.
#[derive(Debug)]
pub(super) struct Background {
    jobs: mpsc::Sender<Job>,
    waiting: std::sync::Arc<AtomicUsize>,
    metrics: Stores,
}

/// What does them.
pub(super) struct Work {
    jobs: mpsc::Receiver<Job>,
    waiting: std::sync::Arc<AtomicUsize>,
    queue: VecDeque<Job>,
}

#[derive(Debug)]
enum Job {
    Settle {
        claims: Vec<Claim>,
        settlement: Settlement,
    },
    /// The event, and when it was first claimed on this process's monotonic clock.
    CatchUp(HotOnly, std::time::Instant),
    /// A person changed the event while the hot store was away.
    Forget(EventKey),
}

impl Background {
    pub(super) fn new(metrics: Stores) -> (Self, Work) {
        let (send, jobs) = mpsc::channel(JOBS_MAX);
        let waiting = std::sync::Arc::<AtomicUsize>::default();
        (
            Self { jobs: send, waiting: std::sync::Arc::clone(&waiting), metrics },
            Work { jobs, waiting, queue: VecDeque::new() },
        )
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    pub(super) fn retry(&self, claims: Vec<Claim>, settlement: Settlement) {
        self.leave(Job::Settle { claims, settlement });
    }

    pub(super) fn catch_up(&self, claim: &Claim, receipt: &std::sync::Arc<Receipt>) {
        let event = HotOnly {
            key: claim.key.clone(),
            route: std::sync::Arc::clone(&claim.route),
            fence: claim.fence,
            lease: claim.terms.lease,
            durable_ttl: claim.terms.durable_ttl,
            on_unknown: claim.terms.on_unknown,
            fingerprint: claim.fingerprint,
            age: Duration::ZERO,
            receipt: Some(std::sync::Arc::clone(receipt)),
        };
        self.leave(Job::CatchUp(event, claim.taken));
    }

    pub(super) fn forget(&self, key: EventKey) {
        self.leave(Job::Forget(key));
    }

    fn leave(&self, job: Job) {
        // What has failed before waits too, though it is in the queue no more.
        let room = self.waiting.fetch_add(1, Ordering::Relaxed) < JOBS_MAX;
        let sent = if room { self.jobs.try_send(job) } else { Err(TrySendError::Full(job)) };
        let Err(unsent) = sent else { return };
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.metrics.dropped();
        match unsent {
            TrySendError::Full(_) => tracing::error!(
                jobs_max = JOBS_MAX,
                "a settlement was dropped: too many wait for the durable store"
            ),
            TrySendError::Closed(_) => {
                tracing::error!(
                    "a settlement was dropped: it came after the gateway's grace, the stores are closed"
                );
            }
        }
    }
}

impl Work {
    /// Works until `stop`, then tries a little longer to leave nothing unsettled.
    pub(super) async fn run(mut self, ledger: Ledger, stop: CancellationToken) {
        while let Some(batch) = stop.run_until_cancelled(self.next()).await.flatten() {
            if !self.try_all(&ledger, batch).await {
                stop.run_until_cancelled(tokio::time::sleep(REST)).await;
            }
        }
        self.jobs.close();
        let mut tries_left = LAST_TRIES;
        while let Some(batch) = self.next().await {
            if !self.try_all(&ledger, batch).await {
                if tries_left == 0 {
                    let unsettled = self.waiting.load(Ordering::Relaxed);
                    tracing::error!(unsettled, "stopped with unsettled claims; their leases will lapse");
                    return;
                }
                tries_left -= 1;
                tokio::time::sleep(REST).await;
            }
        }
    }

    /// The next jobs; `None` when there are none and none can come. What is new doesn't wait for what failed: that may be
    /// about the other store, or about events that the database never takes.
    async fn next(&mut self) -> Option<Vec<Job>> {
        let mut batch: Vec<Job> = self.queue.drain(..self.queue.len().min(BATCH_MAX)).collect();
        if batch.is_empty() {
            self.jobs.recv_many(&mut batch, BATCH_MAX).await;
        } else {
            batch.extend(std::iter::from_fn(|| self.jobs.try_recv().ok()).take(BATCH_MAX));
        }
        (!batch.is_empty()).then_some(batch)
    }

    /// Tries jobs side by side, so that they share commits; what failed comes after all others next time. True where all
    /// went.
    async fn try_all(&mut self, ledger: &Ledger, batch: Vec<Job>) -> bool {
        let tried = join_all(batch.into_iter().map(|job| self.done(ledger, job))).await;
        let failed: Vec<Job> = tried.into_iter().filter_map(Result::err).collect();
        let all = failed.is_empty();
        self.queue.extend(failed);
        all
    }

    /// Tries one job; gives it back where the durable store still can't be asked.
    async fn done(&self, ledger: &Ledger, job: Job) -> Result<(), Job> {
        let left = match job {
            Job::Settle { claims, settlement } => settle(ledger, claims, settlement).await,
            Job::CatchUp(mut event, claimed) => {
                event.age = claimed.elapsed();
                let said = ledger.durable.record_hot_only(vec![event.clone()]).await;
                said.is_err().then_some(Job::CatchUp(event, claimed))
            }
            Job::Forget(key) => ledger.hot.forget(&key).await.is_err().then_some(Job::Forget(key)),
        };
        match left {
            Some(job) => Err(job),
            None => {
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                Ok(())
            }
        }
    }
}

/// Goes on past the lease: while the store is away nobody else can have claimed the event, and if somebody does when it
/// is back, the fence tells.
async fn settle(ledger: &Ledger, claims: Vec<Claim>, settlement: Settlement) -> Option<Job> {
    let since = ledger.since();
    if let Some(settled) = ledger.record(&claims, &settlement).await {
        for (claim, _) in claims.iter().zip(&settled).filter(|(_, settled)| **settled == Settled::LeaseLost) {
            ledger.shared.metrics.lease_lost_late(&claim.route);
        }
        ledger.finish(claims, settled, &settlement, since).await;
        return None;
    }
    Some(Job::Settle { claims, settlement })
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    #[test]
    fn what_finds_no_room_is_counted() {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            let (background, _work) = Background::new(Stores::new());
            for _ in 0..JOBS_MAX + 2 {
                background.forget(EventKey::from_text("orders:1"));
            }
            assert_eq!(background.waiting(), JOBS_MAX);
        });
        assert!(recorder.handle().render().contains("umavez_settlements_dropped_total 2"));
    }
}
