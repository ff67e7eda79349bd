//! The durable store: the arbiter. It never forgets an event inside its window, and its clock judges leases.
//! This door knows keys and rows only; what a verdict means for a request is `flow`'s.

mod alone;
mod aside;
mod batch;
mod desk;
mod error;
mod flight;
mod group_commit;
mod handle;
mod lane;
mod mailbox;
mod pace;
mod pens;
mod postgres;
mod receipt;
mod row;
mod sqlite;
mod store;
mod taken;
mod write;

use std::sync::Arc;
use std::time::Duration;

use crate::clock::UnixMillis;
use crate::ledger::claim::{Digest, EventKey, Fence, Fingerprint, OnUnknown, Payload, Receipt};

pub use desk::HotOnly;
pub use error::{DurableError, Trouble, Unfit};
pub use handle::{Durable, Queued};

/// One event to claim. All asks of one request travel in one batch; each is decided by itself, by one statement.
#[derive(Clone, Debug)]
pub struct ClaimAsk {
    pub key: EventKey,
    /// The route's name, for people who list events.
    pub route: Arc<str>,
    pub fence: Fence,
    pub lease: Duration,
    /// How long the event is remembered, counted from its first claim.
    pub durable_ttl: Duration,
    /// What the store does with this claim if its lease lapses.
    pub on_unknown: OnUnknown,
    pub fingerprint: Fingerprint,
    /// Stored in the same transaction; present exactly where `on_unknown` is `Hold`.
    pub payload: Option<Arc<Payload>>,
}

/// What the store says of one asked key.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    /// Claimed under the asked fence (also when an earlier try with this fence committed, and only its
    /// acknowledgement was lost). `age` is the time since the event's first claim.
    Claimed { attempt: u32, age: Duration },
    /// Done before. `fingerprint` is that of the item that was processed.
    Done { receipt: Receipt, age: Duration, fingerprint: Fingerprint },
    /// Claimed by another fence whose lease still runs, for `lease_left`.
    Processing { lease_left: Duration },
    /// Parked for a person (just now, if this ask met a lapsed lease under `OnUnknown::Hold`). `fingerprint` is that of the
    /// item that is parked.
    Held { fingerprint: Fingerprint },
}

/// One claim to end. Nothing happens unless the row is `processing` under this fence.
#[derive(Clone, Debug)]
pub struct SettleAsk {
    pub digest: Digest,
    pub fence: Fence,
    pub end: End,
    /// The claim's payload: deleted on commit and release, kept on hold.
    pub payload: Option<u128>,
}

/// How a claim ends in the durable store.
#[derive(Clone, Debug)]
pub enum End {
    Commit(Arc<Receipt>),
    Release,
    Hold,
}

/// What became of a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It is recorded (also when an earlier try landed and only its acknowledgement was lost).
    Recorded,
    /// The lease had lapsed and someone else, or nobody, holds the event now.
    LeaseLost,
}

/// Where an event stands, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Processing,
    Done,
    Released,
    Held,
}

/// One event's row, for people.
#[derive(Clone, Debug)]
pub struct Record {
    /// The key's text. A long one is cut, and says so: the digest tells which event it is.
    pub key: String,
    pub digest: Digest,
    pub route: String,
    pub state: State,
    pub attempts: u32,
    pub first_claimed: UnixMillis,
    /// When the row stops being remembered.
    pub expires: UnixMillis,
    /// When the current claim's lease ends; only while `Processing`.
    pub lease_until: Option<UnixMillis>,
    pub fingerprint: Fingerprint,
    /// The latest copy that came with another body under this key.
    pub conflicting: Option<Fingerprint>,
    pub receipt: Option<Receipt>,
    pub payload: Option<u128>,
}

impl Record {
    /// The event's key, with the text as far as it is stored.
    pub fn event_key(&self) -> EventKey {
        EventKey::known(&*self.key, self.digest)
    }
}

/// What a person may do to an event. Each is recorded, with who did it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Override {
    /// `held` (or `processing`, `released`) becomes `done`, with an empty 200 as its receipt.
    MarkDone,
    /// `held` (or `processing`) becomes `released`: the next copy is forwarded.
    Release,
    /// The row is deleted: the event was never seen.
    Forget,
    /// `done` becomes `released`: the next copy is forwarded once, and then it is done again.
    AllowOnce,
    /// `held` becomes `processing` under this fence, with its payload kept: it is sent again now. If whoever sends it
    /// dies, the lease lapses and it is held again.
    Replay { fence: Fence, lease: Duration },
}

impl Override {
    pub fn label(self) -> &'static str {
        match self {
            Self::MarkDone => "mark_done",
            Self::Release => "release",
            Self::Forget => "forget",
            Self::AllowOnce => "allow_once",
            Self::Replay { .. } => "replay",
        }
    }
}

/// One change that a person asked for, as it is recorded.
#[derive(Clone, Debug)]
pub struct Action {
    pub at: UnixMillis,
    pub action: String,
    pub key: String,
    /// Who asked, as far as the admin listener can tell (a token's name, or the peer's address).
    pub actor: String,
    /// The state before; `None` where the event was unknown.
    pub before: Option<State>,
    /// The state after; `None` where the event is gone, or was unknown. The same as before where the change was refused.
    pub after: Option<State>,
}

/// What one sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Expired rows deleted.
    pub deleted: u64,
    /// Lapsed claims of `hold` routes that were parked.
    pub held: u64,
    /// How long ago the oldest row that is still there should have gone; zero when the sweep is level.
    pub lag: Duration,
}
