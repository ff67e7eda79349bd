//! For each bucket of a route's whole requests, the trace of the latest request that fell into it: from a slow bucket
//! one looks at what was slow. OpenMetrics tells them; the older text format has no place for them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::BUCKETS;

/// Routes by name: a reload keeps what was seen. As many as there are series.
static ROUTES: OnceLock<Mutex<HashMap<String, Exemplars>>> = OnceLock::new();

/// One route's.
#[derive(Clone, Debug, Default)]
pub struct Exemplars(Arc<OnceLock<Buckets>>);

/// Room for them is made with the first.
type Buckets = Box<[Mutex<Option<Exemplar>>]>;

/// A request that was seen in a bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exemplar {
    pub(super) trace: u128,
    /// How long it took.
    pub(super) took: Duration,
    /// When it ended, since the Unix epoch.
    pub(super) at: Duration,
}

impl Exemplars {
    pub(super) fn of(route: &str) -> Self {
        lock(ROUTES.get_or_init(Mutex::default)).entry(route.to_owned()).or_default().clone()
    }

    /// A request of this trace took so long, and ended then.
    pub fn note(&self, trace: u128, took: Duration, at: Duration) {
        let buckets = self.0.get_or_init(|| (0..=BUCKETS.len()).map(|_| Mutex::default()).collect());
        let index = BUCKETS.iter().position(|most| took.as_secs_f64() <= *most).unwrap_or(BUCKETS.len());
        *lock(&buckets[index]) = Some(Exemplar { trace, took, at });
    }

    /// The one in the bucket that ends with this bound, as text.
    pub(super) fn in_bucket(route: &str, bound: &str) -> Option<Exemplar> {
        let index = match bound {
            "+Inf" => BUCKETS.len(),
            bound => BUCKETS.iter().position(|most| bound.parse().is_ok_and(|bound: f64| bound == *most))?,
        };
        let exemplars = lock(ROUTES.get()?).get(route)?.clone();
        *lock(exemplars.0.get()?.get(index)?)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
