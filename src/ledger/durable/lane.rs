//! One task with one connection that answers questions in turn. The store has two: one that only reads, and one
//! for chores, so that a long sweep keeps no waiter from its look.

use std::collections::HashMap;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::desk::{Ask, Reply};
use super::error::DurableError;
use super::error::chain;
use super::row::Row;
use super::store::{Failure, Keeper};
use crate::ledger::claim::Digest;

/// Most questions that share one statement, and most events of more than one of them.
const SHARED_MAX: usize = 256;
const SHARED_EVENTS_MAX: usize = 4096;

/// A question and where its answer goes; nowhere for what is done as well as may be.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) ask: Ask,
    pub(super) answer: Option<Answer>,
}

pub(super) type Answer = oneshot::Sender<Result<Reply, DurableError>>;

/// The task.
#[derive(Debug)]
pub(super) struct Lane {
    keeper: Keeper,
    queue: mpsc::Receiver<Job>,
}

impl Lane {
    pub(super) fn new(keeper: Keeper, queue: mpsc::Receiver<Job>) -> Self {
        Self { keeper, queue }
    }

    /// Answers until `stop`, and then what still waits.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        loop {
            let job = tokio::select! {
                job = self.queue.recv() => job,
                () = stop.cancelled(), if !self.queue.is_closed() => {
                    self.queue.close();
                    continue;
                }
            };
            let Some(job) = job else { return };
            let mut shared = Shared::default();
            let mut others = Vec::new();
            shared.add(job, &mut others);
            while shared.len() + others.len() < SHARED_MAX && shared.events < SHARED_EVENTS_MAX {
                let Ok(job) = self.queue.try_recv() else { break };
                shared.add(job, &mut others);
            }
            self.share(shared).await;
            let mut down = None;
            for Job { ask, answer } in others {
                let reply = match &down {
                    // One of them has waited for the database in vain; the others need not.
                    Some(error) => Err(DurableError::clone(error)),
                    None => self.ask(&ask).await,
                };
                down = reply.as_ref().err().filter(|_| !self.keeper.connected()).cloned();
                if let Some(answer) = answer {
                    drop(answer.send(reply));
                }
            }
        }
    }

    async fn ask(&mut self, ask: &Ask) -> Result<Reply, DurableError> {
        self.keeper.answer(ask).await.map_err(told)
    }

    async fn share(&mut self, shared: Shared) {
        if !shared.peeks.is_empty() {
            self.share_peek(shared.peeks).await;
        }
        if !shared.conflicts.is_empty() {
            let conflicts = shared.conflicts.into_iter().collect();
            // As well as may be: it is logged already.
            drop(self.ask(&Ask::Conflicts(conflicts)).await);
        }
    }

    async fn share_peek(&mut self, peeks: Vec<(Vec<Digest>, Answer)>) {
        let mut digests: Vec<Digest> = peeks.iter().flat_map(|(digests, _)| digests).copied().collect();
        digests.sort_unstable();
        digests.dedup();
        let failure = match self.keeper.answer(&Ask::Peek(digests)).await {
            Ok(Reply::Peek(now, rows)) => {
                let rows = by_digest(rows);
                for (digests, answer) in peeks {
                    // A waiter that went away needs no answer.
                    drop(answer.send(Ok(Reply::Peek(now, pick(&digests, &rows)))));
                }
                return;
            }
            Ok(_) => unreachable!("a peek gives rows"),
            Err(failure) => failure,
        };
        // One row that can't be read is no answer for those who ask for others: then each asks for its own.
        let apart = matches!(failure, Failure::Apart(_)) && peeks.len() > 1;
        let mut down = (!apart).then(|| told(failure));
        for (digests, answer) in peeks.into_iter().filter(|(_, answer)| !answer.is_closed()) {
            let reply = match &down {
                Some(error) => Err(error.clone()),
                None => self.ask(&Ask::Peek(digests)).await,
            };
            if down.is_none() && !self.keeper.connected() {
                down = reply.as_ref().err().cloned();
            }
            drop(answer.send(reply));
        }
    }
}

fn told(failure: Failure) -> DurableError {
    let trouble = failure.trouble();
    tracing::debug!(error = %chain(&trouble), "the durable store did not answer");
    trouble.into()
}

fn by_digest(rows: Vec<Row>) -> HashMap<Digest, Row> {
    rows.into_iter().map(|row| (row.digest, row)).collect()
}

fn pick(digests: &[Digest], rows: &HashMap<Digest, Row>) -> Vec<Row> {
    digests.iter().filter_map(|digest| rows.get(digest)).cloned().collect()
}

/// Questions that can share one statement.
#[derive(Default)]
struct Shared {
    peeks: Vec<(Vec<Digest>, Answer)>,
    /// How many events the peeks ask for.
    events: usize,
    /// The latest fingerprint counts.
    conflicts: HashMap<Digest, crate::ledger::claim::Fingerprint>,
}

impl Shared {
    fn len(&self) -> usize {
        self.peeks.len() + self.conflicts.len()
    }

    fn add(&mut self, job: Job, others: &mut Vec<Job>) {
        match job {
            // Nobody waits for it any more: a database that stalls is not asked later what was asked meanwhile.
            Job { ask: Ask::Peek(_), answer: Some(answer) } if answer.is_closed() => {}
            Job { ask: Ask::Peek(digests), answer: Some(answer) } => {
                self.events += digests.len();
                self.peeks.push((digests, answer));
            }
            Job { ask: Ask::Conflicts(conflicts), answer: None } => self.conflicts.extend(conflicts),
            other => others.push(other),
        }
    }
}
