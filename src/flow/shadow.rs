//! A route in shadow: every request is forwarded as it came, and the app's answer goes back as it is. Beside that the
//! ledger is asked what inline would have become of it, which is counted. Whatever becomes of the asking, neither the
//! app nor the sender notices.

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use tokio::sync::{Semaphore, oneshot};

use super::done::Done;
use super::plan::Plan;
use super::prepared::Route;
use super::proxy::{Keyed, Run, Work};
use super::{Arrived, Flow, answer, forward};
use crate::clock::monotonic;
use crate::ledger::{Claim, Settlement};
use crate::metrics::Said;
use crate::providers::Items;
use crate::trace::Trace;

/// Requests that the ledger is asked about at once, in this process; past it they count as `unavailable`.
const LOOKS_MAX: usize = 8192;
static LOOKS: Semaphore = Semaphore::const_new(LOOKS_MAX);

/// How long the app's answer waits for the settlement, and for the verdict that its `Umavez` header tells. Stores that
/// answer are far faster.
const VERDICT_WAIT: Duration = Duration::from_millis(500);

/// What the ledger said of a request.
struct Looked {
    said: &'static str,
    key: Option<String>,
    attempt: u32,
}

impl Work {
    /// A request whose items nothing is to be known of.
    pub(super) fn unsigned(route: &Arc<Route>, arrived: Arrived) -> Box<Self> {
        let (items, trace) = (Items::none(), Trace::default());
        Box::new(Self { route: Arc::clone(route), arrived, items, unsigned: true, replay: None, trace })
    }
}

impl Flow {
    pub(super) async fn shadow(self: &Arc<Self>, mut work: Box<Work>) -> Done {
        let request = forward::request(&work, &[]);
        let trace = work.trace.split();
        let (route, unsigned) = (Arc::clone(&work.route), work.unsigned);
        // The asking takes the work with it; what is left speaks of the forward alone.
        let bare = Arrived { request: Request::default(), ..work.arrived.clone() };
        let mut bare = Work::unsigned(&route, bare);
        (bare.unsigned, bare.trace) = (unsigned, trace);
        let mut run = Run::new(self, bare);
        let (ended, settlement) = oneshot::channel();
        let looked = (!unsigned).then(|| self.look(work, settlement));

        let began = monotonic();
        let outcome = self.send(&route.config, request).await;
        let took = began.elapsed();
        route.metrics.upstream.record(took);
        run.work.trace.forwarded(began, took, &outcome);
        run.count_outcome(&outcome);
        // Nobody listens where nothing was asked.
        ended.send(run.settlement(run.ending(&outcome), &outcome)).ok();

        run.elsewhere = took;
        let said = match looked {
            Some(looked) => match tokio::time::timeout(VERDICT_WAIT, looked).await {
                Ok(Ok(Looked { said, key, attempt })) => {
                    (run.key, run.attempt) = (key, attempt);
                    said
                }
                Ok(Err(_)) | Err(_) => Said::Unavailable.label(),
            },
            None => answer::REFUSED,
        };
        let (mut answer, class) = answer::forwarded(outcome, Said::First);
        answer::mark(&mut answer, said);
        run.done(answer, class, said)
    }

    /// Has the ledger asked in a task that drain waits for; it settles as the forward ends.
    fn look(
        self: &Arc<Self>,
        work: Box<Work>,
        settlement: oneshot::Receiver<Settlement>,
    ) -> oneshot::Receiver<Looked> {
        let (said, looked) = oneshot::channel();
        let flow = Arc::clone(self);
        self.tunnels.tracker.spawn(async move {
            let mut run = Run::new(&flow, work);
            match LOOKS.try_acquire() {
                Ok(_place) => run.look(settlement, said).await,
                Err(_) => run.count(Said::Unavailable, run.work.items.list.len()),
            }
        });
        looked
    }
}

impl<'a> Run<'a> {
    pub(super) fn new(flow: &'a Flow, work: Box<Work>) -> Self {
        Self { flow, work, key: None, attempt: 0, removed: 0, elsewhere: Duration::ZERO }
    }

    async fn look(&mut self, settlement: oneshot::Receiver<Settlement>, said: oneshot::Sender<Looked>) {
        let deadline = monotonic() + self.work.route.config.in_flight_wait;
        let keyed = Keyed::of(&self.work);
        let verdicts = self.claim(keyed.asks.clone()).await;
        let plan = Plan::of(self.work.items.list.len(), &keyed, verdicts);
        self.count_plan(&plan, keyed.twins.len());
        let looked = Looked {
            said: verdict(&plan).label(),
            key: keyed.asks.first().map(|ask| ask.key.digest().short()),
            attempt: plan.claims.iter().map(Claim::attempt).max().unwrap_or(0),
        };
        let Plan { claims, waiting, .. } = plan;
        if !claims.is_empty() {
            // No word of the forward: its task has ended early, and the next copy counts as the first again.
            let settlement = settlement.await.unwrap_or(Settlement::Release);
            let count = claims.len();
            self.work.trace.step();
            let landed = self.flow.ledger.settle(claims, settlement.clone()).await;
            self.work.trace.settled(&settlement, count, landed);
            let Route { metrics, .. } = &*self.work.route;
            metrics.settled(&settlement, count);
            metrics.lease_lost.increment(u64::try_from(landed.lease_lost).unwrap_or(u64::MAX));
        }
        // The answer may have gone without it.
        said.send(looked).ok();
        self.hear(waiting, deadline).await;
    }
}

/// What inline the answer would have told: of a batch, that of its newest item.
fn verdict(plan: &Plan) -> Said {
    if !plan.claims.is_empty() {
        Said::First
    } else if plan.unavailable.is_some() {
        Said::Unavailable
    } else if !plan.waiting.is_empty() {
        Said::InFlight
    } else if plan.held > 0 {
        Said::Held
    } else if !plan.duplicates.is_empty() {
        Said::Duplicate
    } else {
        Said::Keyless
    }
}
