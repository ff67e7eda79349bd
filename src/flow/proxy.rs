//! From the first claim to the answer: claim, forward, settle, wait, answer. Runs to its end, also if
//! the sender hangs up half-way: its retry finds the result.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response};

use super::answer::{self, Refusal};
use super::done::Done;
use super::forward;
use super::plan::{Duplicate, Plan};
use super::prepared::Route;
use super::resubmit::Replay;
use super::settle::{Ending, refuses, rule};
use super::{Arrived, Flow};
use crate::clock::monotonic;
use crate::config::{Mode, OnDurableDown, OnKeyless, RouteConfig};
use crate::ledger::{
    Ask, Conditions, EventKey, Fingerprint, OnUnknown, Settlement, Verdict, Waited, Waiter, WithoutDurable,
};
use crate::metrics::{Answer, Said};
use crate::providers::Items;
use crate::trace::Trace;
use crate::upstream::Outcome;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const UMAVEZ_KEY: HeaderName = HeaderName::from_static("umavez-key");
const UMAVEZ_ATTEMPT: HeaderName = HeaderName::from_static("umavez-attempt");

/// A request of a dedup route, read, verified and understood.
pub(super) struct Work {
    pub(super) route: Arc<Route>,
    pub(super) arrived: Arrived,
    pub(super) items: Items,
    /// The signature is missing or wrong. In shadow only: any other route refuses such a request.
    pub(super) unsigned: bool,
    /// Set where a person replays a held event.
    pub(super) replay: Option<Arc<Replay>>,
    pub(super) trace: Trace,
}

/// The items that have keys, and those whose key came before in the same request.
pub(super) struct Keyed {
    pub(super) places: Vec<usize>,
    pub(super) asks: Vec<Ask>,
    pub(super) twins: Vec<Twin>,
}

/// An item whose key came before in the same request.
pub(super) struct Twin {
    pub(super) place: usize,
    /// The place of the item that came before.
    pub(super) first: usize,
    pub(super) fingerprint: Fingerprint,
}

impl Flow {
    /// The steps, top to bottom.
    pub(super) async fn proxy(self: &Arc<Self>, work: Box<Work>) -> Done {
        // Boxed, as what is rare shouldn't take room in every request's future.
        if let Some(replay) = work.replay.clone() {
            return Box::pin(self.replay(work, replay)).await;
        }
        if work.route.config.mode == Mode::Shadow {
            return Box::pin(self.shadow(work)).await;
        }
        let keyed = Keyed::of(&work);
        let key = keyed.asks.first().map(|ask| ask.key.digest().short());
        let mut run = Run { flow: self, work, key, attempt: 0, removed: 0, elsewhere: Duration::ZERO };
        let items = run.work.items.list.len();
        if keyed.places.len() + keyed.twins.len() < items && run.config().on_keyless == OnKeyless::Reject {
            run.count(Said::Keyless, items - keyed.places.len() - keyed.twins.len());
            return run.refuse(Refusal::Keyless);
        }
        let single = if items == 1 { keyed.asks.first().map(|ask| ask.key.clone()) } else { None };
        let verdicts = run.claim(keyed.asks.clone()).await;
        let plan = Plan::of(items, &keyed, verdicts);
        run.count_plan(&plan, keyed.twins.len());
        let plan = match run.without_ledger(plan).await {
            Ok(plan) => plan,
            Err(refusal) => return run.refuse(refusal),
        };
        let deadline = monotonic() + run.config().in_flight_wait;
        if plan.forwards(items) {
            // Boxed, as copies need no room for it.
            Box::pin(run.forward(plan, single, deadline)).await
        } else {
            run.nothing_new(plan, deadline).await
        }
    }
}

/// What became of the items that others process.
#[derive(Default)]
pub(super) struct Heard {
    duplicates: Vec<Duplicate>,
    held: usize,
    /// One isn't done in time: the sender must come again.
    late: bool,
}

/// One request under way.
pub(super) struct Run<'a> {
    pub(super) flow: &'a Flow,
    pub(super) work: Box<Work>,
    pub(super) key: Option<String>,
    pub(super) attempt: u32,
    /// How many items were cut out of what the app got.
    pub(super) removed: usize,
    pub(super) elsewhere: Duration,
}

impl Run<'_> {
    pub(super) fn config(&self) -> &RouteConfig {
        &self.work.route.config
    }

    pub(super) async fn claim(&mut self, asks: Vec<Ask>) -> Vec<Verdict> {
        if asks.is_empty() {
            return Vec::new();
        }
        let config = self.config();
        let mut conditions = Conditions {
            route: Arc::clone(&config.name),
            terms: config.terms,
            without_durable: match config.on_durable_down {
                OnDurableDown::Reject => WithoutDurable::Refuse,
                OnDurableDown::HotOnly | OnDurableDown::Bypass => WithoutDurable::HotOnly,
            },
            payload: None,
            claimed: None,
        };
        if let Some(replay) = &self.work.replay {
            conditions.terms.on_unknown = OnUnknown::Hold;
            conditions.without_durable = WithoutDurable::Refuse;
            conditions.payload = Some(Arc::clone(&replay.payload));
            conditions.claimed = Some(replay.claimed.clone());
        } else if config.terms.on_unknown == OnUnknown::Hold {
            conditions.payload = Some(Arc::new(forward::payload(&self.work.arrived, &self.work.trace)));
        }
        self.work.trace.step();
        let verdicts = self.flow.ledger.claim(asks, &conditions).await;
        self.work.trace.claimed(&verdicts);
        verdicts
    }

    /// Some items got no verdict: the route refuses them, or lets them through without dedup.
    async fn without_ledger(&mut self, mut plan: Plan) -> Result<Plan, Refusal> {
        let exposed = plan.claims.iter().filter(|claim| !claim.is_durable()).count();
        self.work.route.metrics.exposed.increment(u64::try_from(exposed).unwrap_or(u64::MAX));
        let Some(error) = plan.unavailable.take() else { return Ok(plan) };
        if self.config().on_durable_down == OnDurableDown::Bypass {
            self.work
                .route
                .metrics
                .bypassed
                .increment(u64::try_from(plan.unavailable_items).unwrap_or(u64::MAX));
            plan.unclaimed += plan.unavailable_items;
            return Ok(plan);
        }
        let count = plan.claims.len();
        if count > 0 {
            self.work.trace.step();
            let landed = self.flow.ledger.settle(plan.claims, Settlement::Release).await;
            self.work.trace.settled(&Settlement::Release, count, landed);
        }
        Err(Refusal::LedgerDown(error))
    }

    pub(super) async fn forward(&mut self, plan: Plan, single: Option<EventKey>, deadline: Instant) -> Done {
        let Plan { claims, removed, waiting, unavailable_items, .. } = plan;
        let config = Arc::clone(&self.work.route.config);
        let said = match (claims.is_empty(), unavailable_items) {
            (false, _) => Said::First,
            (true, 0) => Said::Keyless,
            // Let through without dedup, while both stores are away.
            (true, _) => Said::Unavailable,
        };
        self.attempt = claims.iter().map(crate::ledger::Claim::attempt).max().unwrap_or(0);
        // The log names what the app gets, not what it was spared; one item is both.
        if let Some(claim) = claims.first().filter(|_| !removed.is_empty()) {
            self.key = Some(claim.key().digest().short());
        }
        let mut request = forward::request(&self.work, &removed);
        if request.headers().contains_key(forward::UMAVEZ_REMOVED) {
            self.removed = removed.len();
        }
        if let (Some(key), [claim]) = (single, &*claims) {
            name(&mut request, &key, claim.attempt());
        }
        let began = monotonic();
        let outcome = self.flow.send(&config, request).await;
        let took = began.elapsed();
        self.elsewhere += took;
        self.work.route.metrics.upstream.record(took);
        self.work.trace.forwarded(began, took, &outcome);
        self.count_outcome(&outcome);
        let ending = self.ending(&outcome);
        let held = ending == Ending::Hold && !claims.is_empty();
        let settlement = self.settlement(ending, &outcome);
        if !claims.is_empty() {
            let count = claims.len();
            self.work.trace.step();
            let landed = self.flow.ledger.settle(claims, settlement.clone()).await;
            self.work.trace.settled(&settlement, count, landed);
            self.work.route.metrics.settled(&settlement, count);
            self.work
                .route
                .metrics
                .lease_lost
                .increment(u64::try_from(landed.lease_lost).unwrap_or(u64::MAX));
            if let Some(replay) = &self.work.replay {
                replay.came(&outcome, &settlement, landed);
            }
        }
        if held {
            tracing::warn!(route = %config.name, key = self.key, trace_id = self.work.trace.id(), "held: nobody knows whether the app has processed this event");
        }
        // No 2xx while a part of the batch is in flight elsewhere: the sender would not come again.
        let told_success =
            held || matches!(&outcome, Outcome::Answered(answer) if answer.status().is_success());
        if (told_success || ending == Ending::Commit) && self.hear(waiting, deadline).await.late {
            return self.refuse(Refusal::InFlight { answer: config.in_flight_answer });
        }
        if held && self.work.replay.is_none() {
            return self.done(answer::held(&config), Answer::Held, Said::Held.label());
        }
        let said = if held { Said::Held } else { said };
        let (answer, class) = answer::forwarded(outcome, said);
        self.done(answer, class, said.label())
    }

    /// Every item is a copy: wait for those in flight, then answer as the first time.
    pub(super) async fn nothing_new(&mut self, plan: Plan, deadline: Instant) -> Done {
        let Plan { mut duplicates, waiting, held, .. } = plan;
        let heard = self.hear(waiting, deadline).await;
        duplicates.extend(heard.duplicates);
        if heard.late {
            return self.refuse(Refusal::InFlight { answer: self.config().in_flight_answer });
        }
        if held + heard.held > 0 {
            return self.done(answer::held(self.config()), Answer::Held, Said::Held.label());
        }
        let first = duplicates.iter().min_by_key(|copy| copy.item).expect("neither new, in flight nor held");
        let answer = answer::replay(&first.receipt, self.config());
        self.done(answer, Answer::Replayed, Said::Duplicate.label())
    }

    /// Waits for the items that others process, and counts what became of each.
    pub(super) async fn hear(&mut self, waiting: Vec<(usize, Waiter)>, deadline: Instant) -> Heard {
        let began = monotonic();
        let mut heard = Heard::default();
        if waiting.is_empty() {
            return heard;
        }
        let others = waiting.len();
        let items: Vec<_> = waiting.iter().map(|(item, waiter)| (*item, waiter.ask().clone())).collect();
        let waiters = waiting.into_iter().map(|(_, waiter)| waiter).collect();
        // Boxed, as most requests wait for nobody.
        let waited = Box::pin(self.flow.ledger.wait(waiters, deadline)).await;
        for ((item, ask), waited) in items.into_iter().zip(waited) {
            match waited {
                Waited::Done { receipt, layer, conflict } => {
                    self.count(Said::Duplicate, 1);
                    self.work.route.metrics.duplicate(layer);
                    self.count_conflict(&ask, conflict);
                    heard.duplicates.push(Duplicate { item, receipt, layer });
                }
                Waited::Held { conflict } => {
                    self.count(Said::Held, 1);
                    self.count_conflict(&ask, conflict);
                    heard.held += 1;
                }
                Waited::NotDone => {
                    self.count(Said::InFlight, 1);
                    heard.late = true;
                }
            }
        }
        self.elsewhere += began.elapsed();
        self.work.trace.waited(began, others, heard.late);
        heard
    }

    pub(super) fn ending(&self, outcome: &Outcome) -> Ending {
        let config = self.config();
        let ending = match rule(outcome, &config.done, config.terms.on_unknown) {
            Ending::Commit if refuses(outcome, config.provider.as_deref()) => Ending::Release,
            ending @ (Ending::Commit | Ending::Release | Ending::Hold) => ending,
        };
        match ending {
            Ending::Release if self.work.replay.is_some() => Ending::Hold,
            ending @ (Ending::Commit | Ending::Release | Ending::Hold) => ending,
        }
    }

    pub(super) fn settlement(&self, ending: Ending, outcome: &Outcome) -> Settlement {
        match (ending, outcome) {
            (Ending::Commit, Outcome::Answered(answer)) => {
                let receipt = answer::receipt(answer, self.config(), self.flow.clock.now());
                Settlement::Commit(Arc::new(receipt))
            }
            (Ending::Hold, _) => Settlement::Hold,
            (Ending::Release, _) | (Ending::Commit, Outcome::NeverSent(_) | Outcome::Unknown(_)) => {
                Settlement::Release
            }
        }
    }

    fn refuse(&mut self, refusal: Refusal) -> Done {
        if let Refusal::LedgerDown(error) = &refusal {
            let trace_id = self.work.trace.id();
            tracing::error!(route = %self.config().name, trace_id, error = error as &dyn std::error::Error, "refused: no verdict is possible");
        }
        self.done(refusal.answer(), refusal.class(), refusal.said())
    }

    pub(super) fn done(&mut self, answer: Response<Bytes>, class: Answer, said: &'static str) -> Done {
        let trace = std::mem::take(&mut self.work.trace);
        let (key, attempt, elsewhere) = (self.key.take(), self.attempt, self.elsewhere);
        let (items, removed) = (self.work.items.list.len(), self.removed);
        Done { answer, class, said, key, items, removed, attempt, elsewhere, trace }
    }
}

impl Keyed {
    pub(super) fn of(work: &Work) -> Self {
        let scope = work.route.config.scope.fill(&work.arrived.path_params);
        let mut keyed = Self { places: Vec::new(), asks: Vec::new(), twins: Vec::new() };
        let mut seen = HashMap::new();
        let many = work.items.list.len() > 1;
        for (place, item) in work.items.list.iter().enumerate() {
            let Ok(parts) = &item.parts else { continue };
            let key = EventKey::new(&scope, parts);
            let fingerprint = Fingerprint::of(item.lasting(&work.arrived.decoded));
            if many && let Some(first) = seen.insert(key.digest(), place) {
                seen.insert(key.digest(), first);
                keyed.twins.push(Twin { place, first, fingerprint });
                continue;
            }
            keyed.asks.push(Ask { key, fingerprint });
            keyed.places.push(place);
        }
        keyed
    }
}

/// Tells the app which event this is, so that it can be idempotent itself.
fn name(request: &mut Request<Bytes>, key: &EventKey, attempt: u32) {
    let Ok(value) = HeaderValue::try_from(key.readable().as_ref()) else { return };
    let headers = request.headers_mut();
    headers.insert(UMAVEZ_KEY, value.clone());
    headers.insert(UMAVEZ_ATTEMPT, HeaderValue::from(attempt));
    if !headers.contains_key(IDEMPOTENCY_KEY) {
        headers.insert(IDEMPOTENCY_KEY, value);
    }
}
