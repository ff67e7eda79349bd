//! A person lets a held event through: it is claimed anew, and its stored request goes to the app. It was verified when it
//! came, so its signature is not looked at again. Its sender was told that it is safe and won't come again: unless the app
//! takes it now, it is held again. Of a batch the app gets this event alone: what becomes of the others is not asked for.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::{Request, StatusCode};

use super::done::Done;
use super::plan::Plan;
use super::proxy::{Keyed, Run, Work};
use super::{Arrived, Flow, Found};
use crate::clock::monotonic;
use crate::ledger::durable::{DurableError, Override, Record, State};
use crate::ledger::{Ask, Claimed, Fence, Fingerprint, Landed, Payload, Settlement};
use crate::trace::Trace;
use crate::upstream::Outcome;
use crate::upstream::headers::Caller;
use crate::upstream::public_url;

/// What a replay came to.
#[derive(Clone, Copy, Debug)]
pub struct Resubmit {
    pub status: StatusCode,
    pub said: &'static str,
    /// False where the durable store has not recorded what the app said: its fence was lost, or it gave no answer.
    pub recorded: bool,
    pub state: Stands,
    /// How many other events of its batch were sent with it, since the batch can't be cut.
    pub others: usize,
}

/// Where an event stands after its replay, as the durable store has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stands {
    At(State),
    /// Somebody had it forgotten meanwhile.
    Forgotten,
    /// The durable store gives no answer.
    Unknown,
}

/// Why a payload can't be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ResubmitError {
    #[error("the stored request can't be read: {0}")]
    Unreadable(&'static str),
    #[error("no route of the configuration takes {0} any more")]
    NoRoute(String),
    #[error(
        "the route {0:?} finds another key, and other bytes, in the stored request: has its key changed since?"
    )]
    NoItem(String),
    #[error("only a held event can be replayed; this one is {0:?} now")]
    NotHeld(State),
    #[error("it is not remembered any more")]
    Gone,
    #[error("the durable store gave no answer")]
    Durable(#[source] DurableError),
}

/// A held event that a person has claimed anew, to send its stored request again. Its sender was told that it is safe
/// and will not come again: whatever doesn't end in `commit` is held again.
#[derive(Debug)]
pub(super) struct Replay {
    pub(super) claimed: Claimed,
    pub(super) payload: Arc<Payload>,
    part: Part,
    came: OnceLock<Came>,
}

/// What of a stored request is sent again: one event, and whatever has no key, since nobody can tell whose it is.
#[derive(Debug)]
struct Part {
    ask: Ask,
    /// The items with other keys, and the event's own twins, by their place in the request's list.
    removed: Vec<usize>,
    /// How many other events there are.
    others: usize,
    keyless: usize,
}

/// What became of the forward, and of the claim.
#[derive(Debug)]
struct Came {
    sent: bool,
    /// How the claim has ended; `None` where that isn't recorded.
    ended: Option<State>,
}

impl Flow {
    /// Sends a held event's stored request again, without the other events in it. Where its batch can't be cut, it goes
    /// whole, and that is told. To be run to its end: dropped half-way, it leaves the event to its lease.
    ///
    /// # Errors
    /// When the payload isn't one of ours, its route is gone, or the event isn't held any more: then nothing was changed.
    pub async fn resubmit(
        self: &Arc<Self>,
        record: &Record,
        payload: Payload,
        actor: &str,
    ) -> Result<Resubmit, ResubmitError> {
        let mut work = self.stored(&payload)?;
        let name = &work.route.config.name;
        let part = Part::of(&work, record).ok_or_else(|| ResubmitError::NoItem(name.to_string()))?;
        // Before the claim shows: a copy that came in between would sit there, and the replay would wait for it.
        let seat = self.ledger.reserve(record.digest);
        let (fence, lease) = (Fence::draw(), work.route.config.terms.lease);
        let changed = self.ledger.change(record, Override::Replay { fence, lease }, actor).await;
        match changed.map_err(ResubmitError::Durable)? {
            Some((State::Held, _)) => {}
            Some((now, _)) => return Err(ResubmitError::NotHeld(now)),
            None => return Err(ResubmitError::Gone),
        }
        let attempt = record.attempts.saturating_add(1);
        let claimed = Claimed { digest: record.digest, fence, attempt, seat };
        let replay = Replay { claimed, payload: Arc::new(payload), part, came: OnceLock::new() };
        let replay = Arc::new(replay);
        work.replay = Some(Arc::clone(&replay));
        work.trace = self.live.look(|shared| shared.trace_replay(work.arrived.request.headers()));
        work.trace.on(&work.route.config);
        let done = self.to_the_end(work).await;
        let came = replay.came.get();
        let whole = done.removed == 0 && came.is_some_and(|came| came.sent);
        let others = if whole { replay.part.others } else { 0 };
        let ended = came.and_then(|came| came.ended);
        let state = match ended {
            Some(state) => Stands::At(state),
            None => self.stands(record).await,
        };
        let said = done.said;
        Ok(Resubmit { status: done.traced().status(), said, recorded: ended.is_some(), state, others })
    }

    /// A stored request as if it had arrived.
    fn stored(&self, payload: &Payload) -> Result<Box<Work>, ResubmitError> {
        let request = parse(&payload.request)?;
        let host = request.headers().get(http::header::HOST).and_then(|host| host.to_str().ok());
        let found = self.live.look(|shared| shared.find(request.method(), host, request.uri().path()));
        let Found::Event { route, path_params } = found else {
            return Err(ResubmitError::NoRoute(format!("{} {}", request.method(), request.uri().path())));
        };
        let caller = Caller { address: IpAddr::from([127, 0, 0, 1]), secure: false, trusted: true };
        let url = public_url(request.uri(), request.headers(), &caller, route.config.public_url.as_deref());
        let decoded = super::body::decoded(request.headers(), request.body(), route.config.body_limit)
            .unwrap_or_else(|_| request.body().clone());
        let mut arrived = Arrived { decoded, url, path_params, caller, request, _room: None };
        route.find_signed_url(&mut arrived);
        let items = route.items(&arrived);
        let trace = Trace::default();
        Ok(Box::new(Work { route, arrived, items, unsigned: false, replay: None, trace }))
    }

    /// The steps of a replay, from its claim on.
    pub(super) async fn replay(self: &Arc<Self>, work: Box<Work>, replay: Arc<Replay>) -> Done {
        let deadline = monotonic() + work.route.config.in_flight_wait;
        let single = work.items.list.len() == 1;
        let mut run = Run::new(self, work);
        let Part { ask, removed, others, keyless } = &replay.part;
        run.key = Some(ask.key.digest().short());
        let verdicts = run.claim(vec![ask.clone()]).await;
        let keyed = Keyed { places: vec![0], asks: vec![ask.clone()], twins: Vec::new() };
        let mut plan = Plan::of(1, &keyed, verdicts);
        if plan.claims.is_empty() {
            run.count_plan(&plan, 0);
            return run.nothing_new(plan, deadline).await;
        }
        (plan.unclaimed, plan.removed) = (*keyless, removed.clone());
        run.count_plan(&plan, 0);
        let done = run.forward(plan, single.then(|| ask.key.clone()), deadline).await;
        if done.removed == 0 && *others > 0 {
            tracing::warn!(route = %run.config().name, key = done.key, others, "replayed whole: this batch can't be cut, and its other events went with the one that was meant");
        }
        done
    }

    /// Where an event stands whose replay did not end as it should.
    async fn stands(&self, record: &Record) -> Stands {
        match self.ledger.durable().look(record.digest).await {
            Ok(Some(now)) => Stands::At(now.state),
            Ok(None) => Stands::Forgotten,
            Err(_) => Stands::Unknown,
        }
    }
}

impl Replay {
    /// Notes what the app and the ledger said.
    pub(super) fn came(&self, outcome: &Outcome, settlement: &Settlement, landed: Landed) {
        let ended = match settlement {
            Settlement::Commit(_) => State::Done,
            Settlement::Release => State::Released,
            Settlement::Hold => State::Held,
        };
        let sent = !matches!(outcome, Outcome::NeverSent(_));
        // Said once: a replay is forwarded once.
        self.came.get_or_init(|| Came { sent, ended: (landed.recorded > 0).then_some(ended) });
    }
}

impl Part {
    /// The event is the item under its key; where the route's rules name it otherwise by now, the one with its bytes.
    fn of(work: &Work, record: &Record) -> Option<Self> {
        let Keyed { places, asks, .. } = Keyed::of(work);
        let items = &work.items.list;
        let own = asks.iter().position(|ask| ask.key.digest() == record.digest);
        let (place, ask) = match own {
            Some(own) => (places[own], asks[own].clone()),
            None => {
                let is = |at: &usize| {
                    Fingerprint::of(items[*at].lasting(&work.arrived.decoded)) == record.fingerprint
                };
                let place = (0..items.len()).find(is)?;
                (place, Ask { key: record.event_key(), fingerprint: record.fingerprint })
            }
        };
        let keyed = |at: &usize| items[*at].parts.is_ok();
        let removed: Vec<usize> = (0..items.len()).filter(|at| *at != place && keyed(at)).collect();
        let keyless = (0..items.len()).filter(|at| *at != place && !keyed(at)).count();
        let others = places.iter().filter(|at| **at != place).count();
        Some(Self { ask, removed, others, keyless })
    }
}

/// A held event's request as it was stored.
///
/// # Errors
/// When the payload isn't one of ours.
pub fn stored_request(payload: &Payload) -> Result<Request<Bytes>, ResubmitError> {
    parse(&payload.request)
}

fn parse(wire: &Bytes) -> Result<Request<Bytes>, ResubmitError> {
    let mut slots = [httparse::EMPTY_HEADER; 256];
    let mut head = httparse::Request::new(&mut slots);
    let length = match head.parse(wire) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) | Err(_) => {
            return Err(ResubmitError::Unreadable("its head is broken"));
        }
    };
    let mut request =
        Request::builder().method(head.method.unwrap_or_default()).uri(head.path.unwrap_or_default());
    for header in head.headers.iter() {
        request = request.header(header.name, header.value);
    }
    request.body(wire.slice(length..)).map_err(|_| ResubmitError::Unreadable("its head is not HTTP"))
}
