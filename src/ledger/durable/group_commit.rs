//! Group commit: one task writes, and whatever waits when a transaction has ended goes into the next one. No fixed
//! delay. Knows rows and asks, not what they mean.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use super::batch::{Batch, Outcome};
use super::desk::Ask;
use super::error::{DurableError, Trouble, chain};
use super::mailbox::{Answer, Mailbox, Post};
use super::store::{Failure, Keeper, PROBE_EVERY};
use super::{ClaimAsk, End, Seen, SettleAsk, Settled};
use crate::clock::monotonic;
use crate::ledger::claim::Digest;

/// Most rows in one transaction; one request with more of them goes alone.
const BATCH_ROWS_MAX: usize = 256;
/// Most bytes of keys, receipts and payloads in one transaction; likewise.
const BATCH_BYTES_MAX: usize = 4 << 20;
/// How often ready tasks may run before a batch leaves: they bring it more rows.
const YIELDS: u32 = 2;
/// How often a claim is asked again whose rows changed hands between the statement and the read after it.
const ROUNDS_MAX: u32 = 8;
/// A connection idle for so long is asked for a sign of life, before a request finds it dead.
const IDLE_MAX: Duration = Duration::from_secs(15);
/// Claims that may have been committed though their callers were told otherwise: at most so many are released.
const STRAYS_MAX: usize = 4096;

/// One caller's claims or settlements: they share a transaction.
#[derive(Debug)]
pub(super) struct Write {
    pub(super) asks: Asks,
    pub(super) since: Instant,
    /// The caller's thread's; `None` where each answer goes by itself.
    pub(super) mailbox: Option<Mailbox>,
    /// How often it has been in a transaction without an answer for every row.
    pub(super) rounds: u32,
}

#[derive(Debug)]
pub(super) enum Asks {
    Claims(Vec<ClaimAsk>, oneshot::Sender<Result<Vec<Seen>, DurableError>>),
    Settles(Vec<SettleAsk>, oneshot::Sender<Result<Vec<Settled>, DurableError>>),
}

/// The two ends that wait; settlements go first, since they end what others wait for.
#[derive(Debug)]
pub(super) struct Queues {
    pub(super) claims: mpsc::Receiver<Write>,
    pub(super) settles: mpsc::Receiver<Write>,
}

/// The task that writes.
#[derive(Debug)]
pub(super) struct Writer {
    keeper: Keeper,
    queues: Queues,
    /// Taken from the queues, and put off to a later batch: another write on the same event goes before.
    deferred: VecDeque<Write>,
    strays: VecDeque<SettleAsk>,
}

impl Writer {
    pub(super) fn new(keeper: Keeper, queues: Queues) -> Self {
        Self { keeper, queues, deferred: VecDeque::new(), strays: VecDeque::new() }
    }

    /// Writes until `stop`, and then what still waits.
    pub(super) async fn run(mut self, stop: tokio_util::sync::CancellationToken) {
        let mut down = false;
        loop {
            if stop.is_cancelled() {
                self.queues.close();
            }
            if !self.keeper.connected() {
                let alive = if down { self.probe(&stop).await } else { self.reconnect().await };
                if down == alive {
                    tracing::warn!(
                        up = alive,
                        "the durable store {}",
                        if alive { "is back" } else { "is down" }
                    );
                }
                down = !alive;
                if down {
                    if self.queues.ended() {
                        return;
                    }
                    continue;
                }
            }
            if self.deferred.is_empty() && self.strays.is_empty() {
                let next = tokio::select! {
                    next = timeout(IDLE_MAX, self.queues.next()) => next,
                    () = stop.cancelled(), if !stop.is_cancelled() => continue,
                };
                match next {
                    Ok(Some(write)) => self.deferred.push_back(write),
                    Ok(None) => return,
                    Err(_idle) => {
                        self.sign_of_life().await;
                        continue;
                    }
                }
            }
            for _ in 0..YIELDS {
                tokio::task::yield_now().await;
            }
            let batch = self.take();
            self.write(batch).await;
            if self.queues.ended() && self.deferred.is_empty() && !self.keeper.connected() {
                // Only strays are left, and the database refuses them: their leases will lapse.
                return;
            }
        }
    }

    /// The first try after a loss: what waits, waits for it.
    async fn reconnect(&mut self) -> bool {
        match self.keeper.connect().await {
            Ok(()) => true,
            Err(trouble) => {
                tracing::warn!(error = %chain(&trouble), "the durable store cannot be reached");
                let error = DurableError::from(trouble);
                self.refuse_all(&error);
                false
            }
        }
    }

    /// One try while the database is known to be down: what comes meanwhile is refused at once.
    async fn probe(&mut self, stop: &tokio_util::sync::CancellationToken) -> bool {
        let down = || DurableError::from(Trouble::Down(PROBE_EVERY));
        self.refuse_all(&down());
        let attempt = async {
            tokio::select! {
                () = sleep(PROBE_EVERY) => {}
                () = stop.cancelled() => {}
            }
            self.keeper.connect().await.is_ok()
        };
        tokio::pin!(attempt);
        loop {
            tokio::select! {
                alive = &mut attempt => return alive,
                write = self.queues.next() => match write {
                    Some(write) => write.refuse(&down()),
                    None => return false,
                },
            }
        }
    }

    async fn sign_of_life(&mut self) {
        if let Err(failure) = self.keeper.answer(&Ask::Ping).await {
            let trouble = failure.trouble();
            tracing::warn!(error = %chain(&trouble), "the durable store gave no sign of life");
        }
    }

    /// The next batch's writes: whole requests, no event twice, and no event before an earlier write on it.
    fn take(&mut self) -> Vec<Write> {
        let mut taken = Taken::default();
        let mut put_off = VecDeque::new();
        let now = monotonic();
        let patience = self.keeper.timeout();
        let mut waiting = std::mem::take(&mut self.deferred);
        loop {
            let next = waiting.pop_front().or_else(|| {
                (put_off.len() < BATCH_ROWS_MAX && taken.has_room()).then(|| self.queues.try_next()).flatten()
            });
            let Some(write) = next else { break };
            if write.waited_too_long(now, patience) {
                write.refuse(&Trouble::Slow(patience).into());
            } else if let Some(write) = taken.put(write) {
                put_off.push_back(write);
            }
        }
        self.deferred = put_off;
        taken.writes
    }

    /// Commits one batch and answers its callers.
    async fn write(&mut self, writes: Vec<Write>) {
        let taken: HashSet<Digest> = writes.iter().flat_map(Write::digests).collect();
        let (later, strays): (Vec<SettleAsk>, Vec<SettleAsk>) = self
            .strays
            .drain(..self.strays.len().min(BATCH_ROWS_MAX))
            .partition(|ask| taken.contains(&ask.digest));
        self.strays.extend(later);
        let mut batch = batch_of(&writes);
        batch.settles.extend(&strays);
        batch.sort();
        let committed = self.keeper.commit(&batch).await;
        // Not lost with the batch; but refused alone, for what they are, they would go round for ever.
        let for_what_they_are = matches!(&committed, Err(Failure::Apart(_))) && writes.is_empty();
        if committed.is_err() && !for_what_they_are {
            self.strays.extend(strays);
        }
        match committed {
            Ok(outcome) => {
                let mut post = Post::default();
                for write in writes {
                    self.answer(write, &outcome, &mut post);
                }
                post.send();
            }
            Err(Failure::Apart(_)) if writes.len() > 1 => {
                for write in writes {
                    Box::pin(self.write(vec![write])).await;
                }
            }
            Err(Failure::Apart(error)) => self.fail(writes, Trouble::Refused(error)),
            Err(Failure::Trouble(trouble)) => {
                if writes.is_empty() {
                    // Nobody waits for strays: a database that refuses them isn't to be asked again at once.
                    sleep(PROBE_EVERY).await;
                }
                self.fail(writes, trouble);
            }
        }
    }

    fn fail(&mut self, writes: Vec<Write>, trouble: Trouble) {
        tracing::warn!(error = %chain(&trouble), writes = writes.len(), "a batch was not written");
        let error = DurableError::from(trouble);
        for write in writes {
            self.stray(&write);
            write.refuse(&error);
        }
    }

    fn answer(&mut self, write: Write, outcome: &Outcome, post: &mut Post) {
        match write.asks {
            Asks::Settles(asks, caller) => {
                let settled = asks.iter().map(|ask| outcome.settle(ask)).collect();
                post.add(write.mailbox.as_ref(), Answer::Settles(caller, settled));
            }
            Asks::Claims(asks, caller) => {
                let seen: Option<Vec<Seen>> = asks.iter().map(|ask| outcome.claim(ask)).collect();
                if let Some(seen) = seen {
                    return post.add(write.mailbox.as_ref(), Answer::Claims(caller, seen));
                }
                let write = Write { asks: Asks::Claims(asks, caller), rounds: write.rounds + 1, ..write };
                if write.rounds < ROUNDS_MAX {
                    self.deferred.push_back(write);
                } else {
                    self.stray(&write);
                    write.refuse(&Trouble::Contended.into());
                }
            }
        }
    }

    /// Remembers claims that may stand in the database though nobody will use them, to release them.
    fn stray(&mut self, write: &Write) {
        let Asks::Claims(asks, _) = &write.asks else { return };
        let room = STRAYS_MAX.saturating_sub(self.strays.len());
        self.strays.extend(asks.iter().take(room).map(|ask| SettleAsk {
            digest: ask.key.digest(),
            fence: ask.fence,
            end: End::Release,
            payload: ask.payload.as_ref().map(|payload| payload.id),
        }));
    }

    fn refuse_all(&mut self, error: &DurableError) {
        while let Some(write) = self.deferred.pop_front().or_else(|| self.queues.try_next()) {
            write.refuse(error);
        }
    }
}

impl Queues {
    async fn next(&mut self) -> Option<Write> {
        tokio::select! {
            biased;
            Some(write) = self.settles.recv() => Some(write),
            Some(write) = self.claims.recv() => Some(write),
            else => None,
        }
    }

    fn try_next(&mut self) -> Option<Write> {
        self.settles.try_recv().or_else(|_| self.claims.try_recv()).ok()
    }

    fn close(&mut self) {
        self.settles.close();
        self.claims.close();
    }

    fn ended(&self) -> bool {
        self.claims.is_closed()
            && self.settles.is_closed()
            && self.claims.is_empty()
            && self.settles.is_empty()
    }
}

impl Write {
    fn digests(&self) -> impl Iterator<Item = Digest> {
        let (claims, settles) = match &self.asks {
            Asks::Claims(asks, _) => (asks.as_slice(), [].as_slice()),
            Asks::Settles(asks, _) => ([].as_slice(), asks.as_slice()),
        };
        claims.iter().map(|ask| ask.key.digest()).chain(settles.iter().map(|ask| ask.digest))
    }

    fn rows(&self) -> usize {
        match &self.asks {
            Asks::Claims(asks, _) => asks.len(),
            Asks::Settles(asks, _) => asks.len(),
        }
    }

    fn bytes(&self) -> usize {
        match &self.asks {
            Asks::Claims(asks, _) => asks
                .iter()
                .map(|ask| {
                    ask.key.text().len() + ask.payload.as_ref().map_or(0, |payload| payload.request.len())
                })
                .sum(),
            Asks::Settles(asks, _) => asks
                .iter()
                .map(|ask| match &ask.end {
                    End::Commit(receipt) => receipt.body.as_ref().map_or(64, |body| 64 + body.len()),
                    End::Release | End::Hold => 0,
                })
                .sum(),
        }
    }

    /// Claims only: a settlement is worth its wait.
    fn waited_too_long(&self, now: Instant, patience: Duration) -> bool {
        matches!(self.asks, Asks::Claims(..))
            && self.rounds == 0
            && now.saturating_duration_since(self.since) > patience
    }

    fn refuse(self, error: &DurableError) {
        match self.asks {
            Asks::Claims(_, answer) => drop(answer.send(Err(error.clone()))),
            Asks::Settles(_, answer) => drop(answer.send(Err(error.clone()))),
        }
    }
}

/// A batch that fills.
#[derive(Default)]
struct Taken {
    writes: Vec<Write>,
    digests: HashSet<Digest>,
    rows: usize,
    bytes: usize,
}

impl Taken {
    fn has_room(&self) -> bool {
        self.rows < BATCH_ROWS_MAX && self.bytes < BATCH_BYTES_MAX
    }

    /// Takes the write in, or gives it back where it has to wait. Its events count as taken either way: what
    /// comes after it on one of them waits too.
    fn put(&mut self, write: Write) -> Option<Write> {
        let (rows, bytes) = (self.rows + write.rows(), self.bytes + write.bytes());
        let fits = self.writes.is_empty() || (rows <= BATCH_ROWS_MAX && bytes <= BATCH_BYTES_MAX);
        let free = write.digests().all(|digest| !self.digests.contains(&digest));
        self.digests.extend(write.digests());
        if !(fits && free) {
            return Some(write);
        }
        (self.rows, self.bytes) = (rows, bytes);
        self.writes.push(write);
        None
    }
}

fn batch_of(writes: &[Write]) -> Batch<'_> {
    let mut batch = Batch::default();
    for write in writes {
        match &write.asks {
            Asks::Claims(asks, _) => batch.claims.extend(asks),
            Asks::Settles(asks, _) => batch.settles.extend(asks),
        }
    }
    batch
}
