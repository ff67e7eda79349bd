//! What is kept out of batches, on a connection of its own: writes on events that the database did not take lately, one by
//! one; and claims that may stand although their callers were told otherwise, which are released ("strays"). Neither
//! may keep or fail other callers' writes. Nobody waits for strays: where they can't be released, their leases lapse.

use std::collections::VecDeque;
use std::slice;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::error::{DurableError, Trouble, chain};
use super::flight::{Part, apart, commit};
use super::mailbox::Post;
use super::store::{Failure, Keeper, PROBE_EVERY};
use super::taken::BATCH_ROWS_MAX;
use super::write::{ROUNDS_MAX, Write};
use crate::clock::monotonic;
use crate::ledger::claim::{DigestMap, DigestSet};

/// How long an event's writes go aside after one of them failed alone.
const SUSPECT_FOR: Duration = Duration::from_secs(30);
/// At most so many events do; of more, each costs one more batch its first try.
const SUSPECTS_MAX: usize = 4096;
/// Writes that wait here, and batches' strays.
const WAITING_MAX: usize = 1024;
/// Strays that are remembered.
const STRAYS_MAX: usize = 4096;
/// A stray's lease has most likely lapsed by then.
const STRAY_AGE_MAX: Duration = Duration::from_secs(600);
/// The connection is closed after so long without use.
const IDLE_MAX: Duration = Duration::from_secs(15);

/// The writer's end.
#[derive(Debug)]
pub(super) struct Door {
    queue: mpsc::Sender<Apart>,
    /// Events whose writes go aside, and until when.
    suspects: DigestMap<Instant>,
}

/// Takes strays of those who write without the writer, for as long as the door is there.
#[derive(Clone, Debug)]
pub(super) struct Hatch(mpsc::WeakSender<Apart>);

impl Hatch {
    pub(super) fn release(&self, strays: Vec<Write>) {
        if let Some(queue) = self.0.upgrade() {
            release(&queue, strays);
        }
    }
}

fn release(queue: &mpsc::Sender<Apart>, strays: Vec<Write>) {
    if !strays.is_empty() {
        // Where there is no room, their leases lapse.
        drop(queue.try_send(Apart::Strays(strays)));
    }
}

/// The task.
#[derive(Debug)]
pub(super) struct Aside {
    keeper: Keeper,
    queue: mpsc::Receiver<Apart>,
    strays: VecDeque<Write>,
    /// Strays that were not found. The statement that claims them may still be under way: once no statement from then can
    /// be, they are looked for again.
    late: VecDeque<Write>,
    rest_until: Instant,
}

#[derive(Debug)]
enum Apart {
    Write(Write),
    Strays(Vec<Write>),
}

/// Both ends. The task ends once the door is dropped, and the last strays have been tried.
pub(super) fn open(keeper: Keeper) -> (Door, Aside) {
    let (door, queue) = mpsc::channel(WAITING_MAX);
    let (strays, late) = (VecDeque::new(), VecDeque::new());
    let aside = Aside { keeper, queue, strays, late, rest_until: monotonic() };
    (Door { queue: door, suspects: DigestMap::default() }, aside)
}

impl Door {
    /// Takes a write on an event that is suspected; gives any other back.
    pub(super) fn take(&self, write: Write, now: Instant) -> Option<Write> {
        let suspected = |digest| self.suspects.get(&digest).is_some_and(|until| now < *until);
        if self.suspects.is_empty() || !write.digests().any(suspected) {
            return Some(write);
        }
        if let Err(unsent) = self.queue.try_send(Apart::Write(write)) {
            match unsent.into_inner() {
                Apart::Write(write) => write.refuse(&DurableError::Full),
                Apart::Strays(_) => unreachable!("a write was sent"),
            }
        }
        None
    }

    /// Notes that this write failed alone.
    pub(super) fn suspect(&mut self, write: &Write, now: Instant) {
        if self.suspects.len() >= SUSPECTS_MAX {
            self.suspects.retain(|_, until| now < *until);
        }
        for digest in write.digests() {
            if self.suspects.len() < SUSPECTS_MAX {
                self.suspects.insert(digest, now + SUSPECT_FOR);
            }
        }
    }

    /// Has claims released that may stand although nobody will use them.
    pub(super) fn release(&self, strays: Vec<Write>) {
        release(&self.queue, strays);
    }

    pub(super) fn hatch(&self) -> Hatch {
        Hatch(self.queue.downgrade())
    }
}

impl Aside {
    /// Works until the door is dropped, and then on what still waits.
    pub(super) async fn run(mut self) {
        loop {
            let rest = self.rest_until.saturating_duration_since(monotonic());
            let late_in = self.late_in();
            tokio::select! {
                next = timeout(IDLE_MAX, self.queue.recv()) => match next {
                    Ok(Some(Apart::Write(write))) => self.write(write).await,
                    Ok(Some(Apart::Strays(strays))) => self.remember(strays),
                    Ok(None) => break,
                    Err(_idle) => self.keeper.disconnect(),
                },
                () = sleep(rest), if !self.strays.is_empty() => self.release().await,
                () = sleep(late_in), if !self.late.is_empty() => self.look_again(),
            }
        }
        self.strays.append(&mut self.late);
        self.rest_until = monotonic();
        while !self.strays.is_empty() && self.rest_until <= monotonic() {
            self.release().await;
        }
    }

    async fn write(&mut self, write: Write) {
        let patience = self.keeper.timeout();
        if monotonic().saturating_duration_since(write.since) > patience {
            return write.refuse(&Trouble::Slow(patience).into());
        }
        let mut next = write;
        let (write, failure) = loop {
            let mut post = Post::default();
            match commit(&mut self.keeper, slice::from_ref(&next), true).await {
                Ok(outcome) => {
                    let again = next.answer(&outcome, &mut post);
                    post.send();
                    match again {
                        None => return,
                        Some(again) if again.rounds < ROUNDS_MAX => next = again,
                        Some(again) => break (again, Failure::Trouble(Trouble::Contended)),
                    }
                }
                Err(failure) => break (next, failure),
            }
        };
        self.remember(write.strays());
        let lost = !self.keeper.connected();
        let trouble = failure.trouble();
        tracing::warn!(error = %chain(&trouble), "a write that had failed alone was not written");
        let error = DurableError::from(trouble);
        write.refuse(&error);
        if lost {
            // The others need not wait for the database in vain too.
            self.rest();
            while let Ok(next) = self.queue.try_recv() {
                match next {
                    Apart::Write(write) => {
                        if write.rounds > 0 {
                            self.remember(write.strays());
                        }
                        write.refuse(&error);
                    }
                    Apart::Strays(strays) => self.remember(strays),
                }
            }
        }
    }

    /// When the next stray that was not found is looked for again.
    fn late_in(&self) -> Duration {
        let passed = self.late.front().map_or(Duration::ZERO, |stray| monotonic() - stray.since);
        self.keeper.timeout().saturating_sub(passed)
    }

    fn look_again(&mut self) {
        // A commit that waits for a synchronous replica may take longer, and is not seen until then: a new connection is
        // not to be had before.
        self.keeper.disconnect();
        while self.late_in().is_zero()
            && let Some(stray) = self.late.pop_front()
        {
            self.strays.push_back(stray);
        }
    }

    fn remember(&mut self, strays: Vec<Write>) {
        let room = STRAYS_MAX.saturating_sub(self.strays.len() + self.late.len());
        self.strays.extend(strays.into_iter().take(room));
    }

    fn rest(&mut self) {
        self.rest_until = monotonic() + PROBE_EVERY;
    }

    /// Releases the next strays. Those that the database does not take are left to their leases; where it is away, they
    /// are tried again.
    async fn release(&mut self) {
        let now = monotonic();
        let mut events = DigestSet::default();
        let (mut batch, mut later) = (Vec::new(), VecDeque::new());
        for stray in self.strays.drain(..) {
            if now.saturating_duration_since(stray.since) > STRAY_AGE_MAX {
                continue;
            }
            let fits = batch.len() < BATCH_ROWS_MAX && stray.digests().all(|digest| events.insert(digest));
            if fits { batch.push(stray) } else { later.push_back(stray) }
        }
        self.strays = later;
        if batch.is_empty() {
            return;
        }
        let parts: Vec<Part> = match commit(&mut self.keeper, &batch, true).await {
            Err(Failure::Apart(_)) if batch.len() > 1 => apart(&mut self.keeper, batch).await,
            committed => vec![(batch, committed)],
        };
        for (strays, committed) in parts {
            match committed {
                Ok(outcome) => {
                    let missed =
                        strays.into_iter().filter(|stray| stray.rounds == 0 && !stray.ended(&outcome));
                    // Counted from now, when the database answers again: what it was sent before a stall it runs only after it.
                    let since = monotonic();
                    self.late.extend(missed.map(|stray| Write { rounds: 1, since, ..stray }));
                }
                Err(Failure::Apart(error)) => {
                    tracing::warn!(error = %chain(&error), "a claim that failed can't be released: its lease will lapse");
                }
                Err(Failure::Trouble(_)) => {
                    self.remember(strays);
                    self.rest();
                }
            }
        }
    }
}
