//! What is asked of the durable store besides claims and settlements: a list of questions and their answers.

use std::sync::Arc;
use std::time::Duration;

use super::row::Row;
use super::{Action, Override, Record, State, Swept};
use crate::ledger::claim::{Digest, EventKey, Fence, Fingerprint, OnUnknown, Payload, Receipt};

/// One question, or one chore.
#[derive(Clone, Debug)]
pub(super) enum Ask {
    /// Rows as claims see them.
    Peek(Vec<Digest>),
    /// At most two events whose digests are between these, both included.
    Look {
        first: Digest,
        last: Digest,
    },
    Held {
        limit: i64,
    },
    Actions {
        limit: i64,
    },
    Payload(u128),
    Ping,
    /// What the database risks by its settings.
    Doubts,
    Change {
        digest: Digest,
        change: Override,
        actor: String,
    },
    /// Which events came with another body, and that body's fingerprint.
    Conflicts(Vec<(Digest, Fingerprint)>),
    CatchUp(Vec<HotOnly>),
    Sweep {
        limit: i64,
    },
}

/// The answer to the question of the same name.
#[derive(Debug)]
pub(super) enum Reply {
    Peek(i64, Vec<Row>),
    Look(Vec<Record>),
    Held(Vec<Record>),
    Actions(Vec<Action>),
    Payload(Option<Payload>),
    Change(Option<(State, Option<State>)>),
    Swept(Swept),
    Doubts(Vec<String>),
    Done,
}

/// What it costs that a table is missing which only some requests need.
pub(super) fn gone(table: &str) -> String {
    format!("the table {table} is gone, and what needs it is refused; restore it from a backup")
}

/// An event that the hot store alone decided while the durable store was down.
#[derive(Clone, Debug)]
pub struct HotOnly {
    pub key: EventKey,
    pub route: Arc<str>,
    pub fence: Fence,
    pub lease: Duration,
    pub durable_ttl: Duration,
    pub on_unknown: OnUnknown,
    pub fingerprint: Fingerprint,
    /// How long before the catch-up the event was first claimed.
    pub age: Duration,
    /// Done with this receipt; `None` where it is still in flight.
    pub receipt: Option<Arc<Receipt>>,
}
