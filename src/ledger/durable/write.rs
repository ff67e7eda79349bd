//! What one caller asks to have written, and the queues it waits in. Decides nothing.

use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use super::batch::Outcome;
use super::error::DurableError;
use super::mailbox::{Answer, Mailbox, Post};
use super::row::stored_text;
use super::{ClaimAsk, End, Seen, SettleAsk, Settled};
use crate::clock::monotonic;
use crate::ledger::claim::Digest;

/// How often a claim is asked whose rows changed hands between the statement and the read after it.
pub(super) const ROUNDS_MAX: u32 = 8;

/// One caller's claims or settlements: they share a batch, and are answered together.
#[derive(Debug)]
pub(super) struct Write {
    pub(super) asks: Asks,
    pub(super) since: Instant,
    /// The caller's thread's; `None` where each answer goes by itself.
    pub(super) mailbox: Option<Mailbox>,
    /// How often it has been in a batch without an answer for every row.
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

impl Queues {
    pub(super) async fn next(&mut self) -> Option<Write> {
        tokio::select! {
            biased;
            Some(write) = self.settles.recv() => Some(write),
            Some(write) = self.claims.recv() => Some(write),
            else => None,
        }
    }

    pub(super) fn try_next(&mut self) -> Option<Write> {
        self.settles.try_recv().or_else(|_| self.claims.try_recv()).ok()
    }

    pub(super) fn len(&self) -> usize {
        self.settles.len() + self.claims.len()
    }

    pub(super) fn close(&mut self) {
        self.settles.close();
        self.claims.close();
    }

    pub(super) fn closed(&self) -> bool {
        self.claims.is_closed() && self.settles.is_closed()
    }

    pub(super) fn ended(&self) -> bool {
        self.closed() && self.len() == 0
    }
}

impl Write {
    pub(super) fn digests(&self) -> impl Iterator<Item = Digest> {
        let (claims, settles) = match &self.asks {
            Asks::Claims(asks, _) => (asks.as_slice(), [].as_slice()),
            Asks::Settles(asks, _) => ([].as_slice(), asks.as_slice()),
        };
        claims.iter().map(|ask| ask.key.digest()).chain(settles.iter().map(|ask| ask.digest))
    }

    pub(super) fn rows(&self) -> usize {
        match &self.asks {
            Asks::Claims(asks, _) => asks.len(),
            Asks::Settles(asks, _) => asks.len(),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        match &self.asks {
            Asks::Claims(asks, _) => asks
                .iter()
                .map(|ask| {
                    stored_text(&ask.key).len()
                        + ask.payload.as_ref().map_or(0, |payload| payload.request.len())
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

    pub(super) fn has_payload(&self) -> bool {
        match &self.asks {
            Asks::Claims(asks, _) => asks.iter().any(|ask| ask.payload.is_some()),
            Asks::Settles(asks, _) => asks.iter().any(|ask| ask.payload.is_some()),
        }
    }

    /// Puts what the batch said for this write into the post. Gives back a write of claims, counted one round more, where a
    /// row changed hands meanwhile.
    pub(super) fn answer(self, outcome: &Outcome, post: &mut Post) -> Option<Self> {
        let answer = match self.asks {
            Asks::Settles(asks, caller) => {
                Answer::Settles(caller, asks.iter().map(|ask| outcome.settle(ask)).collect())
            }
            Asks::Claims(asks, caller) => match asks.iter().map(|ask| outcome.claim(ask)).collect() {
                Some(seen) => Answer::Claims(caller, seen),
                None => {
                    let rounds = self.rounds + 1;
                    return Some(Self { asks: Asks::Claims(asks, caller), rounds, ..self });
                }
            },
        };
        post.add(self.mailbox.as_ref(), answer);
        None
    }

    /// Whether the batch ended all claims that this write settles.
    pub(super) fn ended(&self, outcome: &Outcome) -> bool {
        match &self.asks {
            Asks::Claims(..) => false,
            Asks::Settles(asks, _) => asks.iter().all(|ask| outcome.settle(ask) == Settled::Recorded),
        }
    }

    /// Releases of its claims, each a write that nobody waits for: one may stand though the caller is told otherwise.
    pub(super) fn strays(&self) -> Vec<Self> {
        let Asks::Claims(asks, _) = &self.asks else { return Vec::new() };
        let since = monotonic();
        let release = |ask: &ClaimAsk| SettleAsk {
            digest: ask.key.digest(),
            fence: ask.fence,
            end: End::Release,
            payload: ask.payload.as_ref().map(|payload| payload.id),
        };
        let nobody = || oneshot::channel().0;
        asks.iter()
            .map(|ask| Self {
                asks: Asks::Settles(vec![release(ask)], nobody()),
                since,
                mailbox: None,
                rounds: 0,
            })
            .collect()
    }

    /// Claims only: a settlement is worth its wait.
    pub(super) fn waited_too_long(&self, now: Instant, patience: Duration) -> bool {
        matches!(self.asks, Asks::Claims(..))
            && self.rounds == 0
            && now.saturating_duration_since(self.since) > patience
    }

    pub(super) fn refuse(self, error: &DurableError) {
        match self.asks {
            Asks::Claims(_, answer) => drop(answer.send(Err(error.clone()))),
            Asks::Settles(_, answer) => drop(answer.send(Err(error.clone()))),
        }
    }
}
