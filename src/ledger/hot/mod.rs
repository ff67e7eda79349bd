//! The hot store: fast verdicts that may be forgotten at any moment. A hot `done` is written only after the
//! durable store recorded it; everything else here is a hint. This door knows no route and no request.

mod breaker;
mod memory;
mod redis;
mod value;

use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

pub use breaker::{BreakerState, HotCounts};
pub use memory::Memory;
pub use redis::Redis;

use crate::config;
use crate::ledger::claim::{Digest, EventKey, Fence, Fingerprint, Receipt};

/// How much of what other nodes tell may wait to be read; past it they are dropped and counted.
const PUSHES_MAX: usize = 4096;

/// The hot store, as one thread uses it: see [`Hot::on_this_worker`].
#[derive(Clone, Debug)]
pub enum Hot {
    Memory(Memory),
    Redis(Redis),
}

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
    /// Done too, with a longer receipt.
    Long(Long),
    /// Somebody else's mark is there.
    Processing,
    /// Somebody else's mark is there, of a claim that the durable store knows nothing of: it counts.
    Exposed,
}

/// How a claim's mark is set once more, after the durable store was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marking {
    /// The durable store is away: the claim is nowhere else.
    Expose,
    /// The durable store gave the claim to one whose mark is not there.
    Take,
}

/// What the hot store remembers of a done event.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    pub fingerprint: Fingerprint,
    pub receipt: Receipt,
}

/// What it remembers of a done event whose receipt was too long for it: the durable store has the whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Long {
    pub fingerprint: Fingerprint,
    /// All but the body; `None` where not even the headers fitted.
    pub receipt: Option<Receipt>,
}

/// One end to record. `ttl` is what is left of the hot window.
#[derive(Clone, Debug)]
pub struct HotDone {
    pub key: EventKey,
    pub done: Done,
    pub ttl: Duration,
}

/// What nodes tell each other of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It ended where somebody watched it, or is about to be changed: what was known of it may not hold.
    Ended(Digest),
    /// A person has changed it: who is busy with it has no claim any more.
    Changed(Digest),
}

/// What became of the wish to be told of an event's end.
#[derive(Clone, Debug, PartialEq)]
pub enum Watched {
    /// Still in flight: its digest comes through the receiver when it ends (or never: keep a fallback poll), while
    /// [`Hot::hearing`] tells that anything does.
    Watching,
    /// The same, of a claim that the durable store knows nothing of.
    WatchingExposed,
    /// It ended meanwhile.
    Done(Done),
    /// It did, with a longer receipt.
    Long(Long),
    /// Nothing is known of it: released, lapsed or forgotten.
    Absent,
}

/// How a hot store that answers is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// Many keys at once.
    Whole,
    /// Key by key: it keeps its keys in slots, though its URL names one server. It costs more than it need.
    KeyByKey,
}

/// Why the hot store can't be opened, whatever the state of the server.
#[derive(Debug, thiserror::Error)]
pub enum HotOpenError {
    #[error("the hot store's url: {0}")]
    Url(String),
    #[error("the CA file {path} of the hot store")]
    CaFile { path: String, source: rustls::pki_types::pem::Error },
    #[error("the TLS settings of the hot store")]
    Tls(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Why the hot store gave no answer. Never a verdict: the durable store decides alone.
#[derive(Debug, thiserror::Error)]
pub enum HotError {
    #[error("redis is resting: the breaker is open")]
    Resting,
    #[error("redis at {servers} cannot be used: {cause}")]
    Unusable { servers: String, cause: String },
    #[error("redis did not answer within {0:?}")]
    Slow(Duration),
    #[error("redis refused")]
    Refused(#[source] Box<redis::Cause>),
}

impl Hot {
    /// Opens the store and what other nodes tell of events: ends that are watched, and changes. A Redis that is down is no
    /// error: the handle rests until it comes. Must be called inside a runtime, which serves this handle.
    ///
    /// The store's own tasks run in `tracker` until [`Hot::close`], or until the last handle is dropped.
    pub async fn open(
        config: &config::Hot,
        tracker: &TaskTracker,
    ) -> Result<(Self, mpsc::Receiver<Told>), HotOpenError> {
        match config {
            config::Hot::Memory { bytes_max } => {
                let (memory, pushes) = Memory::open(*bytes_max, PUSHES_MAX, tracker);
                Ok((Self::Memory(memory), pushes))
            }
            config::Hot::Redis(config) => {
                let (redis, pushes) = Redis::open(config, PUSHES_MAX, tracker).await?;
                Ok((Self::Redis(redis), pushes))
            }
        }
    }

    /// A handle for the calling thread's runtime, with a connection of its own: a call then never crosses
    /// threads. Waits shortly for the connection, and rests where there is none.
    pub async fn on_this_worker(&self) -> Self {
        match self {
            Self::Memory(memory) => Self::Memory(memory.clone()),
            Self::Redis(redis) => Self::Redis(redis.on_this_worker().await),
        }
    }

    /// Marks keys, or says what is known of them: one answer for each ask, in order, in one round trip.
    pub async fn claim(&self, asks: &[HotAsk]) -> Result<Vec<HotSeen>, HotError> {
        match self {
            Self::Memory(memory) => Ok(asks.iter().map(|ask| memory.claim(ask)).collect()),
            Self::Redis(redis) => redis.claim(asks).await,
        }
    }

    /// Sets marks once more: `Claimed` where it is set, or what is there and doesn't give way.
    pub async fn mark(&self, how: Marking, asks: &[HotAsk]) -> Result<Vec<HotSeen>, HotError> {
        match (self, how) {
            (Self::Redis(redis), how) => redis.mark(how, asks).await,
            // Nobody else marks anything here: parallel copies meet at their seats.
            (Self::Memory(_), Marking::Take) => Ok(vec![HotSeen::Claimed; asks.len()]),
            (Self::Memory(memory), Marking::Expose) => Ok(asks.iter().map(|ask| memory.claim(ask)).collect()),
        }
    }

    /// Records ends that the durable store has recorded, and tells nodes that watch them.
    pub async fn done(&self, ends: Vec<HotDone>) -> Result<(), HotError> {
        match self {
            Self::Memory(memory) => {
                ends.iter().for_each(|end| memory.done(end));
                Ok(())
            }
            Self::Redis(redis) => redis.done(ends).await,
        }
    }

    /// Takes marks away, each only from under its own fence, and tells nodes that watch them.
    pub async fn release(&self, keys: Vec<(EventKey, Fence)>) -> Result<(), HotError> {
        match self {
            Self::Memory(memory) => {
                keys.iter().for_each(|(key, fence)| memory.release(key, *fence));
                Ok(())
            }
            Self::Redis(redis) => redis.release(keys).await,
        }
    }

    /// Asks to be told when an event in flight elsewhere ends.
    pub async fn watch(&self, key: &EventKey) -> Result<Watched, HotError> {
        match self {
            Self::Memory(memory) => Ok(memory.watch(key)),
            Self::Redis(redis) => redis.watch(key).await,
        }
    }

    /// Drops whatever is known of a key, and for a short while what lands of it late; tells every node.
    pub async fn forget(&self, key: &EventKey) -> Result<(), HotError> {
        match self {
            Self::Memory(memory) => {
                memory.forget(key);
                Ok(())
            }
            Self::Redis(redis) => redis.forget(key).await,
        }
    }

    /// Tells every node that a person has changed an event, once it is recorded and forgotten.
    pub async fn changed(&self, key: &EventKey) -> Result<(), HotError> {
        match self {
            // There is this one only.
            Self::Memory(_) => Ok(()),
            Self::Redis(redis) => redis.changed(key).await,
        }
    }

    /// How long nodes may answer copies from what they remember themselves; zero for a store in the process, which is
    /// as near.
    pub fn near_ttl(&self) -> Duration {
        match self {
            Self::Memory(_) => Duration::ZERO,
            Self::Redis(redis) => redis.near_ttl(),
        }
    }

    /// A number for the present unbroken hearing of what other nodes tell, in which nothing was missed; `None` while
    /// there is none.
    pub fn hearing(&self) -> Option<u64> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(redis) => redis.hearing(),
        }
    }

    /// Whether it would answer a request now, whatever its key, and how.
    pub async fn ping(&self) -> Result<Fit, HotError> {
        match self {
            Self::Memory(_) => Ok(Fit::Whole),
            Self::Redis(redis) => redis.ping().await,
        }
    }

    /// What is risky about how the store is set up, each with its mend; nothing where that can't be known.
    pub async fn doubts(&self) -> Vec<String> {
        match self {
            Self::Memory(_) => Vec::new(),
            Self::Redis(redis) => redis.doubts().await,
        }
    }

    /// Open while any of the node's connections to Redis rests.
    pub fn breaker_state(&self) -> BreakerState {
        match self {
            Self::Memory(_) => BreakerState::Closed,
            Self::Redis(redis) => redis.breaker_state(),
        }
    }

    /// What the node's connections to Redis went through since the start.
    pub fn counts(&self) -> HotCounts {
        match self {
            Self::Memory(_) => HotCounts::default(),
            Self::Redis(redis) => redis.counts(),
        }
    }

    /// How many bytes the store takes in this process.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Memory(memory) => memory.bytes(),
            Self::Redis(_) => 0,
        }
    }

    /// Ends the store's tasks and connections, those of every handle; what is asked later rests.
    pub fn close(&self) {
        match self {
            Self::Memory(memory) => memory.close(),
            Self::Redis(redis) => redis.close(),
        }
    }
}
