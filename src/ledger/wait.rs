//! Waiting for events that are in flight elsewhere, all of a request's side by side. On one node a waiter is woken at once;
//! across nodes by a push, with looks at the durable store as the fallback, one for all. A waiter never takes the event
//! over: if the first one wasn't processed, the next copy is forwarded.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{Fuse, FusedFuture as _, FutureExt as _};
use futures_util::stream::{self, FuturesUnordered, StreamExt as _};
use tokio::sync::oneshot;
use tokio::time::{sleep_until, timeout_at};

use super::claim::{Digest, DigestSet, EventKey, Fingerprint, Layer, Receipt};
use super::durable::{DurableError, Seen};
use super::hot::{HotError, Long, Watched};
use super::in_flight::{Bell, Ended, Place, Seat};
use super::{Ask, Ledger};
use crate::clock::monotonic;

/// How often the durable store is looked at while no push can be expected, and few events are waited for.
const POLL: Duration = Duration::from_millis(30);
/// So many events that this node listens for make its looks once as rare: they cost the database something.
const POLLED_MAX: usize = 256;
/// The same while another node promised a push, and the longest in any case.
const POLL_PUSHED: Duration = Duration::from_millis(500);
/// How long the first look may take where the deadline has passed meanwhile: others may have ended long ago.
const FIRST_LOOK_MAX: Duration = Duration::from_millis(500);
/// How many marks are watched at once.
const WATCHES_MAX: usize = 256;

/// A copy of an event that is in flight.
#[derive(Debug)]
pub struct Waiter {
    ask: Ask,
    /// Behind another request of this node; or the seat of the request that listens to another node.
    place: Place,
}

/// How waiting ended.
#[derive(Debug)]
pub enum Waited {
    Done {
        receipt: Arc<Receipt>,
        layer: Layer,
        conflict: Option<Fingerprint>,
    },
    Held {
        conflict: Option<Fingerprint>,
    },
    /// Still in flight, or not processed: the sender must come again.
    NotDone,
}

impl Waiter {
    pub(super) fn queued(ask: Ask, hear: oneshot::Receiver<Ended>) -> Self {
        Self { ask, place: Place::Queue(hear) }
    }

    /// What waits.
    pub fn ask(&self) -> &Ask {
        &self.ask
    }

    pub(super) fn elsewhere(ask: Ask, seat: Seat) -> Self {
        Self { ask, place: Place::Seat(seat) }
    }
}

impl Ledger {
    /// Waits until each of these events ended, at most until `deadline` (on this process's monotonic clock); says how, in
    /// their order. Events must differ. Where the deadline has passed already, each is looked at once.
    pub async fn wait(&self, waiters: Vec<Waiter>, deadline: Instant) -> Vec<Waited> {
        let heard =
            |n, hear: oneshot::Receiver<Ended>| hear.map(move |said| (n, said.unwrap_or(Ended::Unknown)));
        let mut vigil = Vigil::new(self, deadline, waiters.len());
        let mut queues = FuturesUnordered::new();
        for Waiter { ask, place } in waiters {
            let n = vigil.add(ask);
            match place {
                Place::Seat(seat) => vigil.listen(n, seat, false),
                Place::Queue(hear) => queues.push(heard(n, hear)),
            }
        }
        let sit = |vigil: &mut Vigil<'_>, n: usize| {
            match self.shared.in_flight.sit(vigil.items[n].ask.key.digest()) {
                Place::Seat(seat) => vigil.listen(n, seat, true),
                Place::Queue(hear) => {
                    vigil.queue(n);
                    return Some(heard(n, hear));
                }
            }
            None
        };
        let mut look = std::pin::pin!(Fuse::terminated());
        loop {
            vigil.watch().await;
            if look.is_terminated()
                && let Some(digests) = vigil.unseen()
            {
                look.set(self.durable.peek(digests).fuse());
            }
            if vigil.undecided == 0 {
                break;
            }
            let until = vigil.until();
            tokio::select! {
                biased;
                Some(first) = queues.next() => {
                    let more = std::iter::from_fn(|| queues.next().now_or_never().flatten());
                    for (n, ended) in std::iter::once(first).chain(more).collect::<Vec<_>>() {
                        match ended {
                            // The one who sat there gave up before this copy's patience ended: sit down instead.
                            Ended::Unknown if monotonic() < deadline => queues.extend(sit(&mut vigil, n)),
                            Ended::Changed => vigil.stand(n),
                            Ended::Done(..) | Ended::Released | Ended::Held(_) | Ended::Unknown => {
                                vigil.end(n, ended);
                            }
                        }
                    }
                }
                said = &mut look => {
                    for n in vigil.seen(said) {
                        queues.extend(sit(&mut vigil, n));
                    }
                }
                rung = vigil.bell.rung() => vigil.rung(&rung),
                () = sleep_until(vigil.next().min(until).into()) => {
                    if monotonic() >= until {
                        break;
                    }
                }
            }
        }
        vigil.waited()
    }
}

/// A request's wait: for each item, what is known and when the stores are asked again.
struct Vigil<'a> {
    ledger: &'a Ledger,
    /// Rung for every item that listens.
    bell: Arc<Bell>,
    items: Vec<Item>,
    undecided: usize,
    deadline: Instant,
    first_look: Instant,
    /// How many of the items that are not queued were not looked at yet.
    unlooked: usize,
    /// The items of the look under way.
    looking: Vec<usize>,
}

struct Item {
    ask: Ask,
    at: At,
    ended: Option<Ended>,
    looked: bool,
    /// When its mark is watched next; `None` while a look follows, or is under way.
    due: Option<Instant>,
    /// The durable store is to be asked.
    unseen: bool,
    pushed: bool,
    exposed: bool,
    /// Done, says the hot store, which has no more of the receipt.
    long: Option<Long>,
}

/// Where an item waits.
enum At {
    /// Behind another request of this node.
    Queue,
    /// Where this request listens to another node.
    Seat(Seat),
    /// Nowhere, as a person changed the event: it is looked at before this sits down again, so that no copy that comes
    /// after the change queues behind one from before.
    Nowhere,
}

impl<'a> Vigil<'a> {
    fn new(ledger: &'a Ledger, deadline: Instant, items: usize) -> Self {
        Self {
            ledger,
            bell: Arc::default(),
            items: Vec::with_capacity(items),
            undecided: 0,
            deadline,
            first_look: deadline.max(monotonic() + FIRST_LOOK_MAX),
            unlooked: 0,
            looking: Vec::new(),
        }
    }

    fn add(&mut self, ask: Ask) -> usize {
        self.undecided += 1;
        self.items.push(Item {
            ask,
            at: At::Queue,
            ended: None,
            looked: false,
            due: None,
            unseen: false,
            pushed: false,
            exposed: false,
            long: None,
        });
        self.items.len() - 1
    }

    fn listen(&mut self, n: usize, seat: Seat, looked: bool) {
        let at = if seat.hear_by(&self.bell) { At::Seat(seat) } else { At::Nowhere };
        let item = &mut self.items[n];
        (item.at, item.looked, item.due) = (at, looked, Some(monotonic()));
        self.unlooked += usize::from(!looked);
    }

    fn stand(&mut self, n: usize) {
        let item = &mut self.items[n];
        (item.at, item.looked, item.due) = (At::Nowhere, false, Some(monotonic()));
        self.unlooked += 1;
    }

    /// It waits behind another request, having been looked at.
    fn queue(&mut self, n: usize) {
        let item = &mut self.items[n];
        (item.at, item.due, item.unseen) = (At::Queue, None, false);
    }

    /// When waiting ends, as it stands.
    fn until(&self) -> Instant {
        if self.unlooked > 0 { self.first_look } else { self.deadline }
    }

    /// When a mark is watched next.
    fn next(&self) -> Instant {
        self.items.iter().filter_map(|item| item.due).min().unwrap_or(self.first_look)
    }

    fn rung(&mut self, digests: &DigestSet) {
        let now = monotonic();
        for item in &mut self.items {
            if let At::Seat(seat) = &item.at
                && digests.contains(&item.ask.key.digest())
            {
                item.due = Some(now);
                if seat.is_dissolved() {
                    item.at = At::Nowhere;
                }
            }
        }
    }

    /// Watches the marks whose time has come, side by side.
    async fn watch(&mut self) {
        let (now, until) = (monotonic(), self.until());
        let due = |item: &Item| item.due.is_some_and(|due| due <= now);
        let due: Vec<(usize, EventKey)> = self
            .items
            .iter()
            .enumerate()
            .filter(|(_, item)| due(item))
            .map(|(n, item)| (n, item.ask.key.clone()))
            .collect();
        if due.is_empty() {
            return;
        }
        let ledger = self.ledger;
        let asks = due.into_iter().map(async |(n, key)| (n, ledger.hot.watch(&key).await));
        let mut said = std::pin::pin!(stream::iter(asks).buffer_unordered(WATCHES_MAX));
        while let Ok(Some((n, said))) = timeout_at(until.into(), said.next()).await {
            self.watched(n, said);
        }
    }

    fn watched(&mut self, n: usize, said: Result<Watched, HotError>) {
        let item = &mut self.items[n];
        let was_exposed = std::mem::replace(&mut item.exposed, false);
        (item.due, item.unseen, item.pushed, item.long) = (None, true, false, None);
        match said {
            Ok(Watched::Done(done)) => {
                let ended = Ended::Done(Arc::new(done.receipt), Layer::Waited, done.fingerprint);
                self.end(n, ended);
            }
            Ok(Watched::Long(long)) => {
                item.long = Some(long);
                // The durable store can't tell of a claim that it knows nothing of.
                if was_exposed {
                    self.end_long(n);
                }
            }
            Ok(Watched::Watching) => item.pushed = true,
            Ok(Watched::WatchingExposed) => (item.pushed, item.exposed) = (true, true),
            Ok(Watched::Absent) | Err(_) => {}
        }
    }

    /// The events that the durable store is asked about now.
    fn unseen(&mut self) -> Option<Vec<Digest>> {
        for (n, item) in self.items.iter_mut().enumerate() {
            if std::mem::take(&mut item.unseen) {
                self.looking.push(n);
            }
        }
        let digests = self.looking.iter().map(|n| self.items[*n].ask.key.digest());
        (!self.looking.is_empty()).then(|| digests.collect())
    }

    /// Takes the durable store's word of the items that were looked at. Gives those that wait on, and have no place.
    fn seen(&mut self, said: Result<Vec<Option<Seen>>, DurableError>) -> Vec<usize> {
        let mut placeless = Vec::new();
        let looking = std::mem::take(&mut self.looking);
        let mut seen = said.map(Vec::into_iter);
        let (now, poll) = (monotonic(), self.poll());
        // Whether a promised push would be heard.
        let hearing = self.ledger.hot.hearing().is_some();
        for n in looking {
            let said = seen.as_mut().map(|seen| seen.next().flatten());
            let item = &mut self.items[n];
            if item.ended.is_some() {
                continue;
            }
            self.unlooked -= usize::from(!std::mem::replace(&mut item.looked, true));
            if said.is_err() && item.long.is_some() {
                self.end_long(n);
                continue;
            }
            let ended = match said {
                Ok(Some(Seen::Done { receipt, fingerprint, .. })) => {
                    Ended::Done(Arc::new(receipt), Layer::Waited, fingerprint)
                }
                Ok(Some(Seen::Held { fingerprint })) => Ended::Held(fingerprint),
                Ok(Some(Seen::Processing { lease_left })) if lease_left.is_zero() && !item.exposed => {
                    Ended::Released
                }
                Ok(Some(Seen::Claimed { .. }) | None) if !item.exposed => Ended::Released,
                Ok(Some(Seen::Processing { .. } | Seen::Claimed { .. }) | None) | Err(_) => {
                    let pause = if item.pushed && hearing { POLL_PUSHED } else { poll };
                    // Rung in between, it is due already, or looked at next.
                    if item.due.is_none() && !item.unseen {
                        item.due = Some(now + pause);
                        if matches!(item.at, At::Nowhere) {
                            placeless.push(n);
                        }
                    }
                    continue;
                }
            };
            self.end(n, ended);
        }
        placeless
    }

    fn poll(&self) -> Duration {
        let times = 1 + self.ledger.shared.in_flight.listening() / POLLED_MAX;
        POLL.saturating_mul(u32::try_from(times).unwrap_or(u32::MAX)).min(POLL_PUSHED)
    }

    /// Ends it with what the hot store has of it.
    fn end_long(&mut self, n: usize) {
        let Some(Long { fingerprint, receipt }) = self.items[n].long.take() else { return };
        let receipt = receipt.unwrap_or_else(|| super::settle::empty_receipt(self.ledger.shared.clock.now()));
        self.end(n, Ended::Done(Arc::new(receipt), Layer::Waited, fingerprint));
    }

    fn end(&mut self, n: usize, ended: Ended) {
        let item = &mut self.items[n];
        (item.due, item.unseen) = (None, false);
        let at = std::mem::replace(&mut item.at, At::Nowhere);
        if !matches!(at, At::Queue) {
            self.unlooked -= usize::from(!std::mem::replace(&mut item.looked, true));
        }
        if let At::Seat(seat) = at {
            seat.leave(&ended);
        }
        item.ended = Some(ended);
        self.undecided -= 1;
    }

    /// Ends what has not ended.
    fn waited(mut self) -> Vec<Waited> {
        for n in 0..self.items.len() {
            if self.items[n].ended.is_none() {
                self.end_long(n);
            }
        }
        // The seats that are left tell the copies behind them that nobody knows.
        self.items.into_iter().map(|item| waited(&item.ask, item.ended.unwrap_or(Ended::Unknown))).collect()
    }
}

fn waited(ask: &Ask, ended: Ended) -> Waited {
    match ended {
        Ended::Done(receipt, layer, processed) => {
            Waited::Done { receipt, layer, conflict: ask.unless(processed) }
        }
        Ended::Held(parked) => Waited::Held { conflict: ask.unless(parked) },
        Ended::Released | Ended::Unknown | Ended::Changed => Waited::NotDone,
    }
}
