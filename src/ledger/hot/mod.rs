//! The hot store: fast verdicts that may be forgotten at any moment. A hot `done` is written only after the
//! durable store recorded it; everything else here is a hint. This door knows no route and no request.

use std::time::Duration;

use crate::ledger::claim::{EventKey, Fence, Fingerprint, Receipt};

/// One key to claim; all asks of one request go in one round trip.
#[derive(Clone, Debug)]
pub struct HotAsk {
    pub key: EventKey,
    pub fence: Fence,
    /// How long the mark lives: the claim's lease, or the hot TTL where that is shorter.
    pub mark_ttl: Duration,
}

/// What the hot store says of one key.
#[derive(Clone, Debug, PartialEq)]
pub enum HotSeen {
    /// The mark is set under the asked fence (or was, by an earlier try with it). Not yet a right: the durable
    /// store decides.
    Claimed,
    /// Done, as the durable store recorded it.
    Done(Done),
    /// Somebody else's mark is there.
    Processing,
}

/// What the hot store remembers of a done event.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    pub fingerprint: Fingerprint,
    /// `None` where the receipt was too long for the hot store: the durable store has it.
    pub receipt: Option<Receipt>,
}

/// One end to record. `ttl` is what is left of the hot window.
#[derive(Clone, Debug)]
pub struct HotDone {
    pub key: EventKey,
    pub done: Done,
    pub ttl: Duration,
}

/// Why the hot store gave no answer. Never a verdict: the durable store decides alone.
#[derive(Debug, thiserror::Error)]
pub enum HotError {
    #[error("redis is resting: the breaker is open")]
    Resting,
    #[error("redis did not answer within {0:?}")]
    Slow(Duration),
    #[error("redis refused")]
    Refused(#[source] Box<fred::error::Error>),
}
