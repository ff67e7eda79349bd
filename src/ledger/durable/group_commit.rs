//! Group commit: one task fills batches, and whatever waits when a batch has ended goes into the next one. No fixed
//! delay. While a batch is under way another one leaves only where commits are slow. Knows rows and asks, not what they
//! mean.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::alone::Quiet;
use super::aside;
use super::desk::Ask;
use super::error::{DurableError, Trouble, chain};
use super::flight::{Flight, Landed, Part};
use super::mailbox::Post;
use super::pace::{Crowd, Pace};
use super::pens::Pens;
use super::store::{Failure, Keeper, PROBE_EVERY};
use super::taken::{BATCH_ROWS_MAX, Taken};
use super::write::{Queues, ROUNDS_MAX, Write};
use crate::clock::monotonic;
use crate::ledger::claim::DigestSet;

/// How often ready tasks may run before a batch leaves: they bring it more rows.
const YIELDS: u32 = 2;
/// A connection idle for so long is asked for a sign of life, before a request finds it dead.
const IDLE_MAX: Duration = Duration::from_secs(15);

/// The task that writes.
pub(super) struct Writer {
    queues: Queues,
    crowd: Arc<Crowd>,
    quiet: Arc<Quiet>,
    pace: Pace,
    pens: Pens,
    under_way: FuturesUnordered<BoxFuture<'static, Arrival>>,
    /// How many writes each of its batches has.
    batches: Vec<usize>,
    /// When the latest batch left.
    departed: Instant,
    /// The events of the batches under way.
    busy: DigestSet,
    /// Taken from the queues, and put off to a later batch: another write on the same event goes before.
    deferred: VecDeque<Write>,
    /// How many of them no batch can take before one has ended.
    blocked: usize,
    /// Where writes go that would fail others, and claims that nobody waits for any more.
    aside: aside::Door,
}

/// What ends in `under_way`.
enum Arrival {
    Batch(Landed),
    Pen(Keeper),
}

/// What the writer wakes up for.
enum Wake {
    /// A batch may leave.
    Depart,
    Arrival(Arrival),
    Idle,
    /// Something else changed.
    Look,
}

impl Writer {
    pub(super) fn new(
        first: Keeper,
        queues: Queues,
        (crowd, quiet): (Arc<Crowd>, Arc<Quiet>),
        aside: aside::Door,
    ) -> Self {
        Self {
            queues,
            crowd,
            quiet,
            pace: Pace::default(),
            pens: Pens::new(first),
            under_way: FuturesUnordered::new(),
            batches: Vec::new(),
            departed: monotonic(),
            busy: DigestSet::default(),
            deferred: VecDeque::new(),
            blocked: 0,
            aside,
        }
    }

    /// Writes until `stop`, and then what still waits.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut down = false;
        loop {
            if stop.is_cancelled() {
                self.queues.close();
            }
            if self.batches.is_empty() && self.queues.ended() && self.deferred.is_empty() {
                // A caller may be half-way through its sending: only receiving tells that nobody is.
                match self.queues.next().await {
                    Some(write) => self.deferred.push_back(write),
                    None => return,
                }
            }
            if self.batches.is_empty() && !self.pens.ready() {
                let alive = if down { self.probe(&stop).await } else { self.reconnect().await };
                if down == alive {
                    tracing::warn!(
                        up = alive,
                        "the durable store {}",
                        if alive { "is back" } else { "is down" }
                    );
                }
                down = !alive;
                continue;
            }
            let wake = self.wake(&stop).await;
            self.quiet.writer_rests(false);
            match wake {
                Wake::Depart => {
                    for _ in 0..YIELDS {
                        tokio::task::yield_now().await;
                    }
                    self.depart();
                }
                Wake::Arrival(Arrival::Batch(landed)) => self.land(landed),
                Wake::Arrival(Arrival::Pen(pen)) => self.pens.grown(pen),
                Wake::Idle => self.sign_of_life().await,
                Wake::Look => {}
            }
        }
    }

    async fn wake(&mut self, stop: &CancellationToken) -> Wake {
        let waiting = self.waiting();
        let due_in = self.pace.apart().map(|apart| apart.saturating_sub(self.departed.elapsed()));
        let largest = self.batches.iter().copied().max().unwrap_or_default();
        self.crowd.beside(largest, due_in == Some(Duration::ZERO));
        let worth_it = self.batches.is_empty() || self.crowd.is_enough(waiting);
        let ready = self.pens.ready() && self.blocked < BATCH_ROWS_MAX;
        if ready && worth_it && waiting > 0 {
            return Wake::Depart;
        }
        if !self.pens.ready() && worth_it && self.pens.can_grow() {
            self.under_way.push(self.pens.grow().map(Arrival::Pen).boxed());
        }
        self.quiet.writer_rests(ready && waiting == 0 && self.batches.is_empty() && self.deferred.is_empty());
        let could = self.blocked < BATCH_ROWS_MAX && (ready || self.pens.can_grow());
        tokio::select! {
            biased;
            Some(arrival) = self.under_way.next() => Wake::Arrival(arrival),
            next = timeout(IDLE_MAX, self.queues.next()), if ready && worth_it && !self.queues.ended() => {
                match next {
                    Ok(Some(write)) => {
                        self.deferred.push_back(write);
                        Wake::Depart
                    }
                    Ok(None) => Wake::Look,
                    Err(_idle) => Wake::Idle,
                }
            }
            () = self.crowd.told(), if could && !worth_it => Wake::Look,
            () = sleep(due_in.unwrap_or_default()),
                if could && !worth_it && due_in.is_some_and(|due_in| !due_in.is_zero()) => Wake::Look,
            () = stop.cancelled(), if !self.queues.closed() => Wake::Look,
        }
    }

    /// Writes that a batch could take now.
    fn waiting(&self) -> usize {
        self.queues.len() + self.deferred.len() - self.blocked
    }

    /// The first try after a loss: what waits, waits for it.
    async fn reconnect(&mut self) -> bool {
        match self.pens.lead().connect().await {
            Ok(()) => true,
            Err(trouble) => {
                if matches!(trouble, Trouble::Unfit(_)) {
                    tracing::error!(error = %chain(&trouble), "the durable store is of no use until a person mends it");
                } else {
                    tracing::warn!(error = %chain(&trouble), "the durable store cannot be reached");
                }
                let error = DurableError::from(trouble);
                self.refuse_all(&error);
                false
            }
        }
    }

    /// One try while the database is known to be down: what comes meanwhile is refused at once.
    async fn probe(&mut self, stop: &CancellationToken) -> bool {
        let down = || DurableError::from(Trouble::Down(PROBE_EVERY));
        self.refuse_all(&down());
        let attempt = async {
            tokio::select! {
                () = sleep(PROBE_EVERY) => {}
                () = stop.cancelled() => {}
            }
            self.pens.lead().connect().await.is_ok()
        };
        tokio::pin!(attempt);
        loop {
            tokio::select! {
                alive = &mut attempt => return alive,
                write = self.queues.next() => match write {
                    Some(write) => turn_away(write, &self.aside, &down()),
                    None => return false,
                },
            }
        }
    }

    async fn sign_of_life(&mut self) {
        self.pens.shrink();
        if !self.batches.is_empty() {
            return;
        }
        if let Err(failure) = self.pens.lead().answer(&Ask::Ping).await {
            let trouble = failure.trouble();
            tracing::warn!(error = %chain(&trouble), "the durable store gave no sign of life");
        }
    }

    /// Sends the next batch on its way, if any write can be in it.
    fn depart(&mut self) {
        let writes = self.take();
        if writes.is_empty() {
            return;
        }
        let pen = self.pens.take().expect("a batch leaves only where a pen is ready");
        self.batches.push(writes.len());
        self.departed = monotonic();
        let flight = Flight { pen, writes, departed: self.departed };
        self.under_way.push(flight.fly().map(Arrival::Batch).boxed());
    }

    /// The next batch's writes: whole requests, no event twice, none of a batch under way, and none before an earlier
    /// write on it.
    fn take(&mut self) -> Vec<Write> {
        let mut taken = Taken::new(&mut self.busy);
        let mut put_off = VecDeque::new();
        let now = monotonic();
        let patience = self.pens.timeout();
        let mut waiting = std::mem::take(&mut self.deferred);
        loop {
            let next = waiting.pop_front().or_else(|| {
                (put_off.len() < BATCH_ROWS_MAX && taken.has_room()).then(|| self.queues.try_next()).flatten()
            });
            let Some(write) = next else { break };
            if write.waited_too_long(now, patience) {
                write.refuse(&Trouble::Slow(patience).into());
            } else if let Some(write) = self.aside.take(write, now)
                && let Some(write) = taken.put(write)
            {
                put_off.push_back(write);
            }
        }
        self.blocked = taken.blocked;
        self.deferred = put_off;
        taken.writes
    }

    /// Answers a batch's callers.
    fn land(&mut self, landed: Landed) {
        let writes = || landed.parts.iter().flat_map(|(writes, _)| writes);
        let batch = self.batches.iter().position(|batch| *batch == writes().count());
        self.batches.swap_remove(batch.expect("it was under way"));
        let rows = writes().map(Write::rows).sum::<usize>();
        self.pace.took(landed.departed.elapsed(), rows);
        self.blocked = 0;
        self.pens.put_back(landed.pen);
        self.suspect(&landed.parts);
        let mut post = Post::default();
        let mut failed: Vec<(String, usize)> = Vec::new();
        for (writes, committed) in landed.parts {
            for digest in writes.iter().flat_map(Write::digests) {
                self.busy.remove(&digest);
            }
            match committed {
                Ok(outcome) => {
                    for write in writes {
                        if let Some(again) = write.answer(&outcome, &mut post) {
                            self.again(again);
                        }
                    }
                }
                Err(failure) => {
                    let trouble = failure.trouble();
                    let error = chain(&trouble);
                    match failed.iter_mut().find(|(told, _)| *told == error) {
                        Some((_, count)) => *count += writes.len(),
                        None => failed.push((error, writes.len())),
                    }
                    self.fail(writes, trouble);
                }
            }
        }
        post.send();
        // Once for each reason: a batch that is taken apart fails write by write.
        for (error, writes) in failed {
            tracing::warn!(error, writes, "a batch was not written");
        }
    }

    /// Notes what the database did not take though it took others: the next writes on these events go aside.
    fn suspect(&mut self, parts: &[Part]) {
        let others = parts.len() == 1 || parts.iter().any(|(_, committed)| committed.is_ok());
        let now = monotonic();
        for (writes, committed) in parts {
            if let ([write], Err(Failure::Apart(_)), true) = (writes.as_slice(), committed, others) {
                self.aside.suspect(write, now);
            }
        }
    }

    fn fail(&mut self, writes: Vec<Write>, trouble: Trouble) {
        let error = DurableError::from(trouble);
        self.aside.release(writes.iter().flat_map(Write::strays).collect());
        for write in writes {
            write.refuse(&error);
        }
    }

    /// Claims whose rows changed hands are asked once more.
    fn again(&mut self, write: Write) {
        if write.rounds < ROUNDS_MAX {
            return self.deferred.push_back(write);
        }
        self.aside.release(write.strays());
        write.refuse(&Trouble::Contended.into());
    }

    fn refuse_all(&mut self, error: &DurableError) {
        while let Some(write) = self.deferred.pop_front().or_else(|| self.queues.try_next()) {
            turn_away(write, &self.aside, error);
        }
    }
}

/// Refuses a write that waited. One that has been tried before may stand all the same.
fn turn_away(write: Write, aside: &aside::Door, error: &DurableError) {
    if write.rounds > 0 {
        aside.release(write.strays());
    }
    write.refuse(error);
}
