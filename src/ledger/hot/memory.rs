//! The hot store of the embedded default: a bounded map in the process. It forgets when it is full, and knows
//! nothing of other nodes. What it keeps is packed: the text that Redis would keep, in a block of its own, so that no
//! receipt holds on to the buffer that it was read into.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::value::{self, FORGOTTEN_TTL, Value};
use super::{HotAsk, HotDone, HotSeen, Told, Watched};
use crate::clock::monotonic;
use crate::ledger::claim::{Digest, EventKey, Fence};

/// How often expired entries are thrown out.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// What an entry costs besides its text, as measured: its places in the map and in the order, with the room that both
/// keep to grow, and what the allocator adds.
const ENTRY_BYTES: usize = 176;
/// A power of two: the top bits of a digest pick the shard.
const SHARDS: usize = 16;
/// Orders what is not done after all that is.
const UNDONE: u64 = 1 << 63;

/// The map; clones share it.
#[derive(Clone, Debug)]
pub struct Memory {
    shards: Arc<[Mutex<Shard>; SHARDS]>,
    opened: Instant,
    settled: mpsc::Sender<Told>,
    closing: CancellationToken,
    /// The last handle's end ends the housekeeping.
    _closes: Arc<DropGuard>,
}

#[derive(Debug, Default)]
struct Shard {
    entries: HashMap<Digest, Entry>,
    /// By rank: what goes first when there is no room.
    order: BTreeSet<(u64, Digest)>,
    bytes: usize,
    bytes_max: usize,
}

#[derive(Debug)]
struct Entry {
    /// Milliseconds after the store was opened.
    expires: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    Mark {
        fence: Fence,
        watched: bool,
    },
    /// As Redis would keep it.
    Done(Box<[u8]>),
    /// A person changed the event: ends that are still on their way must not land.
    Forgotten,
}

impl Memory {
    /// A map of at most so many bytes, and the ends that somebody watched.
    pub(super) fn open(
        bytes_max: usize,
        pushes_max: usize,
        tracker: &TaskTracker,
    ) -> (Self, mpsc::Receiver<Told>) {
        let shard = |_| Mutex::new(Shard { bytes_max: bytes_max / SHARDS, ..Shard::default() });
        let (settled, pushes) = mpsc::channel(pushes_max);
        let closing = CancellationToken::new();
        let shards = Arc::new(std::array::from_fn(shard));
        let opened = monotonic();
        tracker.spawn(keep_house(Arc::clone(&shards), opened, closing.clone()));
        let closes = Arc::new(closing.clone().drop_guard());
        (Self { shards, opened, settled, closing, _closes: closes }, pushes)
    }

    pub(super) fn claim(&self, ask: &HotAsk) -> HotSeen {
        let (digest, now) = (ask.key.digest(), self.now());
        let mut shard = self.shard(digest);
        let text = match shard.live(digest, now).map(|entry| &entry.state) {
            Some(State::Done(text)) => Bytes::copy_from_slice(text),
            Some(State::Mark { fence, .. }) if *fence == ask.fence => return HotSeen::Claimed,
            Some(State::Mark { .. } | State::Forgotten) => return HotSeen::Processing,
            None => {
                let state = State::Mark { fence: ask.fence, watched: false };
                shard.put(digest, Entry { expires: now + millis(ask.mark_ttl), state });
                return HotSeen::Claimed;
            }
        };
        drop(shard);
        match Value::parse(&text) {
            Value::Done(done) => HotSeen::Done(done),
            Value::Long(long) => HotSeen::Long(long),
            Value::Mark { .. } | Value::Forgotten | Value::Unreadable => HotSeen::Processing,
        }
    }

    pub(super) fn done(&self, end: &HotDone) {
        let (digest, now) = (end.key.digest(), self.now());
        let text = value::done(&end.done).into_boxed_slice();
        let mut shard = self.shard(digest);
        let watched = match shard.live(digest, now).map(|entry| &entry.state) {
            Some(State::Forgotten) => return,
            Some(State::Mark { watched, .. }) => *watched,
            Some(State::Done(_)) | None => false,
        };
        shard.put(digest, Entry { expires: now + millis(end.ttl), state: State::Done(text) });
        drop(shard);
        self.push(watched, digest);
    }

    pub(super) fn release(&self, key: &EventKey, fence: Fence) {
        let digest = key.digest();
        let mut shard = self.shard(digest);
        let watched = match shard.live(digest, self.now()).map(|entry| &entry.state) {
            Some(State::Mark { fence: held, watched }) if *held == fence => *watched,
            Some(State::Mark { .. } | State::Done(_) | State::Forgotten) | None => return,
        };
        shard.remove(digest);
        drop(shard);
        self.push(watched, digest);
    }

    pub(super) fn watch(&self, key: &EventKey) -> Watched {
        let mut shard = self.shard(key.digest());
        match shard.live(key.digest(), self.now()).map(|entry| &mut entry.state) {
            Some(State::Mark { watched, .. }) => {
                *watched = true;
                Watched::Watching
            }
            Some(State::Done(text)) => match Value::parse(&Bytes::copy_from_slice(text)) {
                Value::Done(done) => Watched::Done(done),
                Value::Long(long) => Watched::Long(long),
                Value::Mark { .. } | Value::Forgotten | Value::Unreadable => Watched::Absent,
            },
            Some(State::Forgotten) | None => Watched::Absent,
        }
    }

    pub(super) fn forget(&self, key: &EventKey) {
        let entry = Entry { expires: self.now() + millis(FORGOTTEN_TTL), state: State::Forgotten };
        self.shard(key.digest()).put(key.digest(), entry);
    }

    pub(super) fn close(&self) {
        self.closing.cancel();
    }

    /// How many bytes the entries take.
    pub(super) fn bytes(&self) -> u64 {
        let bytes: usize = self.shards.iter().map(|shard| lock(shard).bytes).sum();
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    fn shard(&self, digest: Digest) -> MutexGuard<'_, Shard> {
        let top = usize::try_from(digest.0 >> 124).expect("four bits fit");
        lock(&self.shards[top % SHARDS])
    }

    fn now(&self) -> u64 {
        millis(self.opened.elapsed())
    }

    fn push(&self, watched: bool, digest: Digest) {
        if watched && self.settled.try_send(Told::Ended(digest)).is_err() {
            tracing::debug!("an end was not told: the queue is full, the fallback poll finds it");
        }
    }
}

impl Shard {
    /// What is known of an event now.
    fn live(&mut self, digest: Digest, now: u64) -> Option<&mut Entry> {
        self.entries.get_mut(&digest).filter(|entry| entry.expires > now)
    }

    fn put(&mut self, digest: Digest, entry: Entry) {
        self.remove(digest);
        self.bytes += entry.bytes();
        self.order.insert((entry.rank(), digest));
        self.entries.insert(digest, entry);
        while self.bytes > self.bytes_max
            && let Some((_, first)) = self.order.first()
        {
            self.remove(*first);
        }
    }

    fn remove(&mut self, digest: Digest) {
        if let Some(entry) = self.entries.remove(&digest) {
            self.order.remove(&(entry.rank(), digest));
            self.bytes -= entry.bytes();
        }
    }

    fn remove_expired(&mut self, now: u64) {
        for from in [0, UNDONE] {
            let first = |shard: &Self| shard.order.range((from, Digest(0))..).next().copied();
            while let Some((rank, digest)) = first(self)
                && rank <= from + now
            {
                self.remove(digest);
            }
        }
        if self.entries.capacity() > 4 * self.entries.len() {
            self.entries.shrink_to(2 * self.entries.len());
        }
    }
}

impl Entry {
    fn bytes(&self) -> usize {
        match &self.state {
            State::Mark { .. } | State::Forgotten => ENTRY_BYTES,
            State::Done(text) => ENTRY_BYTES + text.len(),
        }
    }

    /// What is done goes first when there is no room, the shortest-lived first of all: the durable store has it, while a
    /// mark may be all that is known of a claim.
    fn rank(&self) -> u64 {
        match &self.state {
            State::Done(_) => self.expires,
            State::Mark { .. } | State::Forgotten => UNDONE + self.expires,
        }
    }
}

/// Far below [`UNDONE`], however long.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).min(UNDONE / 4)
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Frees what expired; until then it only reads as absent.
async fn keep_house(shards: Arc<[Mutex<Shard>; SHARDS]>, opened: Instant, closing: CancellationToken) {
    loop {
        tokio::select! {
            () = closing.cancelled() => return,
            () = tokio::time::sleep(HOUSEKEEPING) => {
                shards.iter().for_each(|shard| lock(shard).remove_expired(millis(opened.elapsed())));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::UnixMillis;
    use crate::ledger::claim::{Fingerprint, Receipt};
    use crate::ledger::hot::Done;

    fn ask(id: usize, ttl: Duration) -> HotAsk {
        HotAsk { key: EventKey::new("orders", &[id.to_string()]), fence: Fence(1), mark_ttl: ttl }
    }

    fn end(id: usize, ttl: Duration) -> HotDone {
        let receipt = Receipt {
            status: 200,
            headers: Vec::new(),
            body: Some(vec![b'x'; 100].into()),
            at: UnixMillis(1),
        };
        let done = Done { fingerprint: Fingerprint(1), receipt };
        HotDone { key: ask(id, ttl).key, done, ttl }
    }

    #[tokio::test]
    async fn without_room_what_is_done_goes_before_what_is_in_flight() {
        let (memory, _pushes) = Memory::open(1 << 20, 1, &TaskTracker::new());
        let hour = Duration::from_secs(3600);
        assert_eq!(memory.claim(&ask(0, hour)), HotSeen::Claimed);
        for id in 1..20_000 {
            memory.done(&end(id, 2 * hour));
        }
        assert!(memory.bytes() <= 1 << 20 && memory.bytes() > 900_000, "{}", memory.bytes());
        assert_eq!(memory.claim(&HotAsk { fence: Fence(2), ..ask(0, hour) }), HotSeen::Processing);
        assert!(matches!(memory.claim(&ask(19_999, hour)), HotSeen::Done(_)));
        assert_eq!(memory.claim(&ask(1, hour)), HotSeen::Claimed, "the oldest is forgotten");
    }

    #[tokio::test]
    async fn what_expired_is_absent_and_then_gone() {
        let (memory, _pushes) = Memory::open(1 << 20, 1, &TaskTracker::new());
        memory.claim(&ask(0, Duration::ZERO));
        memory.done(&end(1, Duration::ZERO));
        memory.done(&end(2, Duration::from_secs(3600)));
        assert_eq!(memory.watch(&ask(0, Duration::ZERO).key), Watched::Absent);
        assert_eq!(memory.watch(&ask(1, Duration::ZERO).key), Watched::Absent);
        memory.shards.iter().for_each(|shard| lock(shard).remove_expired(millis(memory.opened.elapsed())));
        let left: Vec<usize> = memory.shards.iter().map(|shard| lock(shard).order.len()).collect();
        assert_eq!(left.iter().sum::<usize>(), 1);
        assert!(memory.bytes() > 0);
    }
}
