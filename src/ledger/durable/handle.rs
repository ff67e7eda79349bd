//! The handle that everyone holds: it queues asks for the tasks that own the connections, and hands back what
//! they answer. Any thread and any runtime may use it; the connections stay on the runtime that opened it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::alone::{Alone, Quiet, Turn};
use super::aside;
use super::desk::{Ask, HotOnly, Reply};
use super::error::{DurableError, Trouble, chain};
use super::group_commit::Writer;
use super::lane::{Job, Lane};
use super::mailbox::{Mailbox, Post};
use super::pace::Crowd;
use super::store::{Failure, Keeper, Store};
use super::write::{Asks, Queues, Write};
use super::{Action, ClaimAsk, Override, Record, Seen, SettleAsk, Settled, State, Swept};
use crate::clock::{Seldom, monotonic};
use crate::config;
use crate::ledger::claim::{Digest, Fingerprint, Payload};

/// Questions that may wait in each lane.
const WAITING_ASKS_MAX: usize = 1024;

/// How often it is told that too many writes wait.
const FULL_TOLD_EVERY: Duration = Duration::from_secs(60);

/// Writes that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queued {
    pub claims: usize,
    pub settlements: usize,
    /// How many of each may wait.
    pub max: usize,
}

/// The durable store, Postgres or SQLite.
#[derive(Clone, Debug)]
pub struct Durable {
    claims: mpsc::Sender<Write>,
    settles: mpsc::Sender<Write>,
    reads: mpsc::Sender<Job>,
    chores: mpsc::Sender<Job>,
    crowd: Arc<Crowd>,
    quiet: Arc<Quiet>,
    /// What the calling thread's connection is made after.
    model: Arc<Keeper>,
    hatch: aside::Hatch,
    mailbox: Option<Mailbox>,
    alone: Option<Alone>,
    up: Arc<AtomicBool>,
    full: Arc<Seldom>,
    stop: CancellationToken,
    /// Cancelled by each task as it ends.
    ended: Arc<[CancellationToken; 4]>,
}

impl Durable {
    /// Opens the store: connects, and brings the schema up. A database that cannot be reached is no error here:
    /// it is tried again in the background, and asks are refused meanwhile. The connections live on the runtime
    /// that calls this, in tasks of `tracker`.
    pub async fn open(
        config: &config::Durable,
        limits: &config::Limits,
        tracker: &TaskTracker,
    ) -> Result<Self, DurableError> {
        let unfit = |unfit| DurableError::Unfit(Arc::new(unfit));
        let store = Arc::new(Store::new(config).map_err(unfit)?);
        let up = Arc::new(AtomicBool::new(false));
        let mut first = Keeper::new(Arc::clone(&store), Arc::clone(&up));
        match first.connect().await {
            Ok(()) => {}
            Err(Trouble::Unfit(cause)) => return Err(unfit(cause)),
            Err(trouble) => tracing::warn!(error = %chain(&trouble), "the durable store is not there yet"),
        }
        let (claims, claim_queue) = mpsc::channel(limits.waiting_writes_max.max(1));
        let (settles, settle_queue) = mpsc::channel(limits.waiting_writes_max.max(1));
        let (reads, read_queue) = mpsc::channel(WAITING_ASKS_MAX);
        let (chores, chore_queue) = mpsc::channel(WAITING_ASKS_MAX);
        let stop = CancellationToken::new();
        let ended: Arc<[CancellationToken; 4]> = Arc::default();
        let crowd: Arc<Crowd> = Arc::default();
        let quiet: Arc<Quiet> = Arc::default();
        let model = Arc::new(first.another());
        let queues = Queues { claims: claim_queue, settles: settle_queue };
        let (door, aside) = aside::open(Keeper::new(Arc::clone(&store), Arc::default()));
        let hatch = door.hatch();
        let writer = Writer::new(first, queues, (Arc::clone(&crowd), Arc::clone(&quiet)), door);
        let reader = Lane::new(Keeper::new(Arc::clone(&store), Arc::default()), read_queue);
        let keeper = Lane::new(Keeper::new(store, Arc::default()), chore_queue);
        let guards = ended.each_ref().map(|ended| ended.clone().drop_guard());
        let [writer_ended, aside_ended, reader_ended, keeper_ended] = guards;
        let token = stop.clone();
        tracker.spawn(async move {
            writer.run(token).await;
            drop(writer_ended);
        });
        tracker.spawn(async move {
            // It ends after the writer, which has its door.
            aside.run().await;
            drop(aside_ended);
        });
        for (lane, lane_ended) in [(reader, reader_ended), (keeper, keeper_ended)] {
            let token = stop.clone();
            tracker.spawn(async move {
                lane.run(token).await;
                drop(lane_ended);
            });
        }
        let full = Arc::new(Seldom::every(FULL_TOLD_EVERY));
        let (mailbox, alone) = (None, None);
        Ok(Self {
            claims,
            settles,
            reads,
            chores,
            crowd,
            quiet,
            model,
            hatch,
            mailbox,
            alone,
            up,
            full,
            stop,
            ended,
        })
    }

    /// A handle for the calling thread's runtime, which is woken once for a batch's answers, and writes by itself while
    /// nobody else does. Its tasks end with the handle's last clone; `tracker` waits for them.
    pub fn on_this_worker(&self, tracker: &TaskTracker) -> Self {
        let alone = Alone::open(&self.quiet, self.model.another(), tracker);
        Self { mailbox: Some(Mailbox::open(tracker)), alone, ..self.clone() }
    }

    /// Claims all these events in one batch; answers in their order. Each is decided by itself, by one statement, and
    /// not all need be decided by the same one. An error says nothing of any: what was claimed all the same is
    /// released. An event that is asked for twice is claimed by its first ask.
    pub async fn claim(&self, asks: Vec<ClaimAsk>) -> Result<Vec<Seen>, DurableError> {
        if asks.len() < 2 {
            if asks.is_empty() {
                return Ok(Vec::new());
            }
            return self.write(&self.claims, |answer| Asks::Claims(asks, answer)).await;
        }
        let order: Vec<Digest> = asks.iter().map(|ask| ask.key.digest()).collect();
        let mut leases = HashMap::with_capacity(asks.len());
        let mut once = asks;
        once.retain(|ask| leases.insert(ask.key.digest(), ask.lease).is_none());
        if once.len() == order.len() {
            return self.write(&self.claims, |answer| Asks::Claims(once, answer)).await;
        }
        let digests: Vec<Digest> = once.iter().map(|ask| ask.key.digest()).collect();
        let seen = self.write(&self.claims, |answer| Asks::Claims(once, answer)).await?;
        let mut seen: HashMap<Digest, Seen> = digests.into_iter().zip(seen).collect();
        let mut answers = Vec::with_capacity(order.len());
        for digest in order {
            let answer = seen.get_mut(&digest).expect("every event was asked for");
            answers.push(answer.clone());
            if matches!(answer, Seen::Claimed { .. }) {
                *answer = Seen::Processing { lease_left: leases.get(&digest).copied().unwrap_or_default() };
            }
        }
        Ok(answers)
    }

    /// Ends these claims in one batch; answers in their order. Each ends by itself, under its fence. After an error
    /// some may have ended all the same: another try is told that they are recorded.
    pub async fn settle(&self, asks: Vec<SettleAsk>) -> Result<Vec<Settled>, DurableError> {
        if asks.is_empty() {
            return Ok(Vec::new());
        }
        self.write(&self.settles, |answer| Asks::Settles(asks, answer)).await
    }

    /// Where these events stand, in their order, as a claim would see it; `None` where the next claim passes.
    pub async fn peek(&self, digests: Vec<Digest>) -> Result<Vec<Option<Seen>>, DurableError> {
        let Reply::Peek(now, rows) = self.ask(&self.reads, Ask::Peek(digests.clone())).await? else {
            unreachable!("a peek gives rows")
        };
        let mut rows: HashMap<Digest, _> = rows.into_iter().map(|row| (row.digest, row)).collect();
        Ok(digests.iter().map(|digest| rows.remove(digest)?.seen(None, now)).collect())
    }

    /// One event's row, for people.
    pub async fn look(&self, digest: Digest) -> Result<Option<Record>, DurableError> {
        Ok(self.look_between(digest, digest).await?.pop())
    }

    /// The rows of at most two events whose digests are between these, both included: for people, who know how a
    /// digest begins.
    pub async fn look_between(&self, first: Digest, last: Digest) -> Result<Vec<Record>, DurableError> {
        let Reply::Look(records) = self.ask(&self.reads, Ask::Look { first, last }).await? else {
            unreachable!("a look gives records")
        };
        Ok(records)
    }

    /// Events that wait for a person, the oldest first.
    pub async fn held(&self, limit: usize) -> Result<Vec<Record>, DurableError> {
        let Reply::Held(records) = self.ask(&self.reads, Ask::Held { limit: number(limit) }).await? else {
            unreachable!("held gives records")
        };
        Ok(records)
    }

    /// What people changed, the latest first.
    pub async fn actions(&self, limit: usize) -> Result<Vec<Action>, DurableError> {
        let Reply::Actions(actions) = self.ask(&self.reads, Ask::Actions { limit: number(limit) }).await?
        else {
            unreachable!("actions give actions")
        };
        Ok(actions)
    }

    /// A stored request.
    pub async fn payload(&self, id: u128) -> Result<Option<Payload>, DurableError> {
        let Reply::Payload(payload) = self.ask(&self.reads, Ask::Payload(id)).await? else {
            unreachable!("a payload is asked for")
        };
        Ok(payload)
    }

    /// Does what a person asked, and records it in the same transaction. Gives the state before and after
    /// (`None` after: the row is gone); `None` where the event is unknown, which is recorded too.
    pub async fn change(
        &self,
        digest: Digest,
        change: Override,
        actor: &str,
    ) -> Result<Option<(State, Option<State>)>, DurableError> {
        let ask = Ask::Change { digest, change, actor: actor.to_owned() };
        let Reply::Change(change) = self.ask(&self.chores, ask).await? else {
            unreachable!("a change gives states")
        };
        Ok(change)
    }

    /// Notes that a copy came with another body. As well as may be: it waits for nothing.
    pub fn note_conflict(&self, digest: Digest, fingerprint: Fingerprint) {
        let ask = Ask::Conflicts(vec![(digest, fingerprint)]);
        // A full queue loses the note, not the event.
        drop(self.chores.try_send(Job { ask, answer: None }));
    }

    /// Catches up with what the hot store decided alone. A row that is there stays, or is brought forward to
    /// done.
    pub async fn record_hot_only(&self, mut events: Vec<HotOnly>) -> Result<(), DurableError> {
        events.sort_by_key(|event| (event.key.digest(), event.receipt.is_none()));
        events.dedup_by_key(|event| event.key.digest());
        if events.is_empty() {
            return Ok(());
        }
        self.ask(&self.chores, Ask::CatchUp(events)).await.map(drop)
    }

    /// Deletes at most `limit` expired rows and parks at most as many lapsed claims of routes that hold.
    pub async fn sweep(&self, limit: usize) -> Result<Swept, DurableError> {
        let Reply::Swept(swept) = self.ask(&self.chores, Ask::Sweep { limit: number(limit) }).await? else {
            unreachable!("a sweep gives what it did")
        };
        Ok(swept)
    }

    /// Whether the database answers now.
    pub async fn ping(&self) -> Result<(), DurableError> {
        self.ask(&self.reads, Ask::Ping).await.map(drop)
    }

    /// What the database risks by its settings, each with its mend.
    pub async fn doubts(&self) -> Result<Vec<String>, DurableError> {
        let Reply::Doubts(doubts) = self.ask(&self.reads, Ask::Doubts).await? else {
            unreachable!("doubts are asked for")
        };
        Ok(doubts)
    }

    /// Whether the database answered last.
    pub fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }

    /// How many writes wait.
    pub fn waiting(&self) -> usize {
        let Queued { claims, settlements, .. } = self.queued();
        claims + settlements
    }

    /// The same, each kind by itself.
    pub fn queued(&self) -> Queued {
        let waiting = |queue: &mpsc::Sender<Write>| queue.max_capacity() - queue.capacity();
        Queued {
            claims: waiting(&self.claims),
            settlements: waiting(&self.settles),
            max: self.claims.max_capacity(),
        }
    }

    /// Takes nothing more, and returns once everything that waited is written or refused.
    pub async fn close(&self) {
        self.stop.cancel();
        for ended in self.ended.iter() {
            ended.cancelled().await;
        }
    }

    async fn write<T>(
        &self,
        queue: &mpsc::Sender<Write>,
        asks: impl FnOnce(oneshot::Sender<Result<T, DurableError>>) -> Asks,
    ) -> Result<T, DurableError> {
        let (answer, answered) = oneshot::channel();
        let write =
            Write { asks: asks(answer), since: monotonic(), mailbox: self.mailbox.clone(), rounds: 0 };
        match self.alone.as_ref().and_then(Alone::turn) {
            // Boxed: what a database is asked with is large.
            Some(turn) => Box::pin(self.write_alone(turn, queue, write)).await?,
            None => {
                queue.try_send(write).map_err(|error| self.refused(&error))?;
                self.crowd.tell(self.waiting());
            }
        }
        answered.await.unwrap_or_else(|_| Err(Trouble::Closed.into()))
    }

    /// Writes on this thread. What the database didn't decide, or refused though it is there, goes to the writer.
    async fn write_alone(
        &self,
        turn: Turn<'_>,
        queue: &mpsc::Sender<Write>,
        write: Write,
    ) -> Result<(), DurableError> {
        // Who closes the store waits until this place is given back.
        let place = queue.try_reserve().map_err(|error| self.refused(&error))?;
        match turn.commit(&write).await {
            Ok(outcome) => {
                let mut post = Post::default();
                let again = Write { mailbox: None, ..write }.answer(&outcome, &mut post);
                if let Some(again) = again {
                    place.send(Write { mailbox: self.mailbox.clone(), ..again });
                }
            }
            // It may be committed all the same, as what fails in the writer's batches.
            Err(Failure::Trouble(trouble)) => {
                tracing::warn!(error = %chain(&trouble), writes = 1, "a batch was not written");
                self.hatch.release(write.strays());
                write.refuse(&trouble.into());
            }
            Err(Failure::Apart(_)) => place.send(Write { rounds: write.rounds + 1, ..write }),
        }
        Ok(())
    }

    fn refused<T>(&self, error: &mpsc::error::TrySendError<T>) -> DurableError {
        let error = refusal(error);
        if matches!(error, DurableError::Full) && self.full.is_due() {
            tracing::warn!(
                waiting_writes_max = self.claims.max_capacity(),
                "too many writes wait for the durable store: further requests are refused"
            );
        }
        error
    }

    async fn ask(&self, lane: &mpsc::Sender<Job>, ask: Ask) -> Result<Reply, DurableError> {
        let (answer, answered) = oneshot::channel();
        lane.try_send(Job { ask, answer: Some(answer) }).map_err(|error| refusal(&error))?;
        answered.await.unwrap_or_else(|_| Err(Trouble::Closed.into()))
    }
}

fn refusal<T>(error: &mpsc::error::TrySendError<T>) -> DurableError {
    match error {
        mpsc::error::TrySendError::Full(_) => DurableError::Full,
        mpsc::error::TrySendError::Closed(_) => Trouble::Closed.into(),
    }
}

fn number(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
