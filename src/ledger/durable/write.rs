//! What one caller asks to have written, and the queues it waits in. Decides nothing.

use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use super::error::DurableError;
use super::mailbox::Mailbox;
use super::{ClaimAsk, End, Seen, SettleAsk, Settled};
use crate::ledger::claim::Digest;

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
