//! Carries answers to the threads that asked: those of one batch together, so that a thread is woken once for the
//! batch and not once for each of its requests. Decides nothing.

use tokio::sync::{mpsc, oneshot};
use tokio_util::task::TaskTracker;

use super::{DurableError, Seen, Settled};

/// Batches whose answers a thread has not handed out yet; past it the writer does that itself.
const BATCHES_MAX: usize = 64;

/// One caller's answer, on its way. A caller that went away needs none: it leaves its claim to its lease.
#[derive(Debug)]
pub(super) enum Answer {
    Claims(oneshot::Sender<Result<Vec<Seen>, DurableError>>, Vec<Seen>),
    Settles(oneshot::Sender<Result<Vec<Settled>, DurableError>>, Vec<Settled>),
}

impl Answer {
    fn deliver(self) {
        match self {
            Self::Claims(caller, seen) => drop(caller.send(Ok(seen))),
            Self::Settles(caller, settled) => drop(caller.send(Ok(settled))),
        }
    }
}

/// Where the answers for one thread go.
#[derive(Clone, Debug)]
pub(super) struct Mailbox(mpsc::Sender<Vec<Answer>>);

impl Mailbox {
    /// One whose answers are handed out on the calling runtime, by a task that ends with the last clone.
    pub(super) fn open(tracker: &TaskTracker) -> Self {
        let (mailbox, mut batches) = mpsc::channel::<Vec<Answer>>(BATCHES_MAX);
        tracker.spawn(async move {
            while let Some(answers) = batches.recv().await {
                answers.into_iter().for_each(Answer::deliver);
            }
        });
        Self(mailbox)
    }
}

/// The answers of one batch, by thread.
#[derive(Debug, Default)]
pub(super) struct Post {
    sorted: Vec<(Mailbox, Vec<Answer>)>,
}

impl Post {
    /// Takes an answer; one for nobody's mailbox goes out at once.
    pub(super) fn add(&mut self, to: Option<&Mailbox>, answer: Answer) {
        let Some(to) = to else { return answer.deliver() };
        match self.sorted.iter_mut().find(|(mailbox, _)| mailbox.0.same_channel(&to.0)) {
            Some((_, answers)) => answers.push(answer),
            None => self.sorted.push((to.clone(), vec![answer])),
        }
    }

    pub(super) fn send(self) {
        for (mailbox, answers) in self.sorted {
            // The thread lags, or has ended: whoever still waits is told from here.
            if let Err(unsent) = mailbox.0.try_send(answers) {
                unsent.into_inner().into_iter().for_each(Answer::deliver);
            }
        }
    }
}
