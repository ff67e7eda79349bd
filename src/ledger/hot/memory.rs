//! The hot store of the embedded default: a bounded cache in the process. It forgets when it is full, and knows
//! nothing of other nodes.

use std::sync::Arc;
use std::time::Duration;

use moka::ops::compute::{CompResult, Op};
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::value::{FORGOTTEN_TTL, RECEIPT_BYTES_MAX, receipt_bytes};
use super::{Done, HotAsk, HotDone, HotSeen, Watched};
use crate::ledger::claim::{Digest, EventKey, Fence};

/// How often expired entries are thrown out while nobody calls.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// What an entry is taken to cost besides its receipt: the cache's own nodes, key and timer included.
const ENTRY_BYTES: usize = 224;

/// The cache; clones share it.
#[derive(Clone, Debug)]
pub struct Memory {
    entries: Cache<Digest, Entry>,
    settled: mpsc::Sender<Digest>,
    closing: CancellationToken,
    /// The last handle's end ends the housekeeping.
    _closes: Arc<DropGuard>,
}

#[derive(Clone, Debug)]
struct Entry {
    ttl: Duration,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Mark {
        fence: Fence,
        watched: bool,
    },
    Done(Box<Done>),
    /// A person changed the event: an end that is still on its way must not stay.
    Forgotten,
}

impl Memory {
    /// A cache of at most so many bytes, and the ends that somebody watched.
    pub(super) fn open(
        bytes_max: usize,
        pushes_max: usize,
        tracker: &TaskTracker,
    ) -> (Self, mpsc::Receiver<Digest>) {
        let entries = Cache::builder()
            .max_capacity(u64::try_from(bytes_max).unwrap_or(u64::MAX))
            .weigher(|_, entry: &Entry| u32::try_from(entry.bytes()).unwrap_or(u32::MAX))
            .expire_after(Ttl)
            // The default policy may refuse a new entry for the sake of an often read one: a claim would vanish.
            .eviction_policy(EvictionPolicy::lru())
            .build();
        let (settled, pushes) = mpsc::channel(pushes_max);
        let closing = CancellationToken::new();
        tracker.spawn(keep_house(entries.clone(), closing.clone()));
        let closes = Arc::new(closing.clone().drop_guard());
        (Self { entries, settled, closing, _closes: closes }, pushes)
    }

    pub(super) fn claim(&self, ask: &HotAsk) -> HotSeen {
        let entry = self.entries.entry(ask.key.digest()).and_compute_with(|old| match old {
            Some(_) => Op::Nop,
            None => {
                Op::Put(Entry { ttl: ask.mark_ttl, state: State::Mark { fence: ask.fence, watched: false } })
            }
        });
        match entry.into_entry().map(moka::Entry::into_value).map(|entry| entry.state) {
            Some(State::Mark { fence, .. }) if fence == ask.fence => HotSeen::Claimed,
            Some(State::Mark { .. } | State::Forgotten) | None => HotSeen::Processing,
            Some(State::Done(done)) => HotSeen::Done(*done),
        }
    }

    pub(super) fn done(&self, mut end: HotDone) {
        if end.done.receipt.as_ref().is_some_and(|receipt| receipt_bytes(receipt) > RECEIPT_BYTES_MAX) {
            end.done.receipt = None;
        }
        let digest = end.key.digest();
        let entry = Entry { ttl: end.ttl, state: State::Done(Box::new(end.done)) };
        let mut watched = false;
        self.entries.entry(digest).and_compute_with(|old| match old.map(moka::Entry::into_value) {
            Some(Entry { state: State::Forgotten, .. }) => Op::Remove,
            old => {
                watched = old.is_some_and(|old| old.is_watched());
                Op::Put(entry)
            }
        });
        self.push(watched, digest);
    }

    pub(super) fn release(&self, key: &EventKey, fence: Fence) {
        let mut watched = false;
        self.entries.entry(key.digest()).and_compute_with(|old| {
            match old.map(moka::Entry::into_value).map(|entry| entry.state) {
                Some(State::Mark { fence: held, watched: by_someone }) if held == fence => {
                    watched = by_someone;
                    Op::Remove
                }
                Some(State::Mark { .. } | State::Done(_) | State::Forgotten) | None => Op::Nop,
            }
        });
        self.push(watched, key.digest());
    }

    pub(super) fn watch(&self, key: &EventKey) -> Watched {
        let seen =
            self.entries.entry(key.digest()).and_compute_with(|old| match old.map(moka::Entry::into_value) {
                Some(Entry { ttl, state: State::Mark { fence, watched: false } }) => {
                    Op::Put(Entry { ttl, state: State::Mark { fence, watched: true } })
                }
                Some(Entry { .. }) | None => Op::Nop,
            });
        match seen {
            CompResult::StillNone(_) | CompResult::Removed(_) => Watched::Absent,
            CompResult::Unchanged(entry) | CompResult::Inserted(entry) | CompResult::ReplacedWith(entry) => {
                match entry.into_value().state {
                    State::Mark { .. } => Watched::Watching,
                    State::Done(done) => Watched::Done(*done),
                    State::Forgotten => Watched::Absent,
                }
            }
        }
    }

    pub(super) fn forget(&self, key: &EventKey) {
        self.entries.insert(key.digest(), Entry { ttl: FORGOTTEN_TTL, state: State::Forgotten });
    }

    pub(super) fn close(&self) {
        self.closing.cancel();
    }

    /// How many bytes the entries take, as of the last housekeeping.
    pub(super) fn bytes(&self) -> u64 {
        self.entries.weighted_size()
    }

    fn push(&self, watched: bool, digest: Digest) {
        if watched && self.settled.try_send(digest).is_err() {
            tracing::debug!("an end was not told: the queue is full, the fallback poll finds it");
        }
    }
}

impl Entry {
    fn bytes(&self) -> usize {
        let receipt = match &self.state {
            State::Mark { .. } | State::Forgotten => 0,
            State::Done(done) => size_of::<Done>() + done.receipt.as_ref().map_or(0, receipt_bytes),
        };
        ENTRY_BYTES + receipt
    }

    fn is_watched(&self) -> bool {
        matches!(self.state, State::Mark { watched: true, .. })
    }
}

/// Each entry lives as long as it says. Being watched does not prolong a mark.
struct Ttl;

impl moka::Expiry<Digest, Entry> for Ttl {
    fn expire_after_create(&self, _: &Digest, entry: &Entry, _: std::time::Instant) -> Option<Duration> {
        Some(entry.ttl)
    }

    fn expire_after_update(
        &self,
        _: &Digest,
        entry: &Entry,
        _: std::time::Instant,
        left: Option<Duration>,
    ) -> Option<Duration> {
        if entry.is_watched() { left } else { Some(entry.ttl) }
    }
}

/// The cache drops what expired only while it is used; this frees it when the traffic stops.
async fn keep_house(entries: Cache<Digest, Entry>, closing: CancellationToken) {
    loop {
        tokio::select! {
            () = closing.cancelled() => return,
            () = tokio::time::sleep(HOUSEKEEPING) => entries.run_pending_tasks(),
        }
    }
}
