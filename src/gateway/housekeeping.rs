//! What one process does for all its threads now and then: the sweeper, and folding histograms.

use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;

use super::Gateway;
use crate::ledger::Ledger;
use crate::ledger::durable::Durable;
use crate::metrics::Stores;

/// How often expired rows are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
/// Rows deleted by one statement of the sweeper.
const SWEEP_ROWS: usize = 1000;
/// Past so many held events the gauge stands still: somebody must look long before.
const HELD_COUNTED_MAX: usize = 1000;
/// How often histograms are folded, so that they stay small between two scrapes: under load each second brings a
/// hundred thousand samples of 24 bytes.
const UPKEEP_EVERY: Duration = Duration::from_millis(250);

impl Gateway {
    pub(super) fn spawn_housekeeping(&self, ledger: &Ledger, stores: &Stores, prometheus: &PrometheusHandle) {
        let (durable, stores, stop) = (ledger.durable().clone(), stores.clone(), self.stopping.clone());
        self.tracker.spawn(async move { stop.run_until_cancelled(sweep(durable, stores)).await });
        let (prometheus, stop) = (prometheus.clone(), self.stopping.clone());
        self.tracker.spawn(async move {
            let mut every = tokio::time::interval(UPKEEP_EVERY);
            while stop.run_until_cancelled(every.tick()).await.is_some() {
                prometheus.run_upkeep();
            }
        });
    }
}

/// Deletes what expired, parks what lapsed, and tells how far behind it is.
async fn sweep(durable: Durable, stores: Stores) {
    let mut every = tokio::time::interval(SWEEP_EVERY);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        loop {
            let swept = match durable.sweep(SWEEP_ROWS).await {
                Ok(swept) => swept,
                Err(error) => {
                    stores.durable_failed(&error);
                    break;
                }
            };
            if swept.held > 0 {
                tracing::warn!(
                    events = swept.held,
                    "held: their leases lapsed, and nobody knows whether the app has processed them"
                );
            }
            stores.swept(swept.deleted, swept.lag);
            if usize::try_from(swept.deleted).is_ok_and(|deleted| deleted < SWEEP_ROWS) {
                break;
            }
        }
        match durable.held(HELD_COUNTED_MAX).await {
            Ok(held) => stores.held(held.len()),
            Err(error) => stores.durable_failed(&error),
        }
    }
}
