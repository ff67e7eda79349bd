//! What this node knows to be done without asking any store, for a few seconds: providers send most copies close
//! together. A near cache of the hot store, for the hot stores that other processes share. It forgets what a person
//! changed, through whichever node, and everything where it may have missed that; what is cut off without a sign is noticed
//! no sooner than its time to live.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderValue;

use super::claim::{Digest, DigestMap, Fingerprint, Receipt};
use super::hot::Done;
use crate::clock::monotonic;

/// A power of two, 256 at most: bits of a digest pick the shard.
const SHARDS: usize = 16;
/// Events that a shard remembers at most in each of its two generations: as many as a map of 2,048 buckets takes.
const GENERATION_MAX: usize = 1792;
/// Bytes of receipts that are kept at most, in two generations.
const BYTES_MAX: usize = 8 << 20;
const GENERATION_BYTES_MAX: usize = BYTES_MAX / SHARDS / 2;
/// Longest receipt that is kept here, bytes of headers and body.
const RECEIPT_BYTES_MAX: usize = 1024;

/// Done events of this node's recent past.
#[derive(Debug)]
pub(super) struct Near {
    shards: [Mutex<Shard>; SHARDS],
    /// Longest time that an event is remembered; zero remembers nothing.
    ttl: Duration,
    /// From when moments are counted.
    start: Instant,
}

/// Milliseconds since the start: an instant would make an entry a third larger.
type Moment = u64;

/// At most 57,344 events in all shards: about 4 MiB where receipts are alike.
#[derive(Debug, Default)]
struct Shard {
    young: DigestMap<Entry>,
    old: DigestMap<Entry>,
    /// Bytes of the receipts in `young`.
    bytes: usize,
    /// The one remembered last: an app answers many events alike.
    last: Option<Arc<Receipt>>,
}

#[derive(Clone, Debug)]
enum Entry {
    Known(Known),
    /// A person changed the event then: what was asked of the stores before may be the state before that.
    Forgotten(Moment),
}

/// From when something is known: what was said while other nodes were heard, and when the stores were asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Since {
    pub(super) hearing: Option<u64>,
    pub(super) asked: Instant,
}

#[derive(Clone, Debug)]
struct Known {
    receipt: Arc<Receipt>,
    fingerprint: Fingerprint,
    until: Moment,
    /// During which unbroken hearing of other nodes it was learned.
    hearing: u64,
}

impl Near {
    pub(super) fn new(ttl: Duration) -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()), ttl, start: monotonic() }
    }

    /// What is known of a done event. `hearing` names the present unbroken hearing of what other nodes tell; during
    /// another one, or none, nothing is known.
    pub(super) fn known(&self, digest: Digest, hearing: Option<u64>) -> Option<(Arc<Receipt>, Fingerprint)> {
        let hearing = hearing.filter(|_| !self.ttl.is_zero())?;
        let shard = self.shard(digest);
        let Entry::Known(known) = shard.entry(digest)? else { return None };
        let holds = known.hearing == hearing && self.moment(monotonic()) < known.until;
        holds.then(|| (Arc::clone(&known.receipt), known.fingerprint))
    }

    /// Remembers an event that the durable store has recorded as done, for no longer than `window`, what is left of its
    /// window in the hot store. Long receipts stay with the stores.
    pub(super) fn remember(&self, digest: Digest, done: &Done, window: Duration, since: Since) {
        let ttl = self.ttl.min(window);
        let (Some(hearing), false) = (since.hearing, ttl.is_zero()) else { return };
        let receipt = &done.receipt;
        let bytes = bytes_of(receipt);
        if bytes > RECEIPT_BYTES_MAX {
            return;
        }
        let mut shard = self.shard(digest);
        if let Some(Entry::Forgotten(at)) = shard.entry(digest)
            && *at >= self.moment(since.asked)
        {
            return;
        }
        let receipt = match &shard.last {
            Some(last) if is_alike(last, receipt) => Arc::clone(last),
            Some(_) | None => {
                let Some(receipt) = compact(receipt).map(Arc::new) else { return };
                shard.bytes += bytes;
                shard.last = Some(Arc::clone(&receipt));
                receipt
            }
        };
        let known =
            Known { receipt, fingerprint: done.fingerprint, until: self.moment(monotonic() + ttl), hearing };
        shard.put(digest, Entry::Known(known));
    }

    /// A person changed the event, or it may be that one did.
    pub(super) fn forget(&self, digest: Digest) {
        if !self.ttl.is_zero() {
            self.shard(digest).put(digest, Entry::Forgotten(self.moment(monotonic())));
        }
    }

    fn moment(&self, at: Instant) -> Moment {
        Moment::try_from(at.saturating_duration_since(self.start).as_millis()).unwrap_or(Moment::MAX)
    }

    fn shard(&self, digest: Digest) -> MutexGuard<'_, Shard> {
        // A poisoned map is still a map: every change to it is one call.
        self.shards[digest.shard() % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shard {
    fn entry(&self, digest: Digest) -> Option<&Entry> {
        self.young.get(&digest).or_else(|| self.old.get(&digest))
    }

    /// The younger entry hides an older one.
    fn put(&mut self, digest: Digest, entry: Entry) {
        if self.young.len() >= GENERATION_MAX || self.bytes >= GENERATION_BYTES_MAX {
            self.old = std::mem::take(&mut self.young);
            self.bytes = 0;
        }
        self.young.insert(digest, entry);
    }
}

fn bytes_of(receipt: &Receipt) -> usize {
    let headers = receipt.headers.iter().map(|(name, value)| name.as_str().len() + value.len());
    headers.sum::<usize>() + receipt.body.as_ref().map_or(0, Bytes::len)
}

/// Whether both make the same answer; when it was given is no part of it.
fn is_alike(one: &Receipt, other: &Receipt) -> bool {
    (one.status, &one.headers, &one.body) == (other.status, &other.headers, &other.body)
}

/// The receipt in storage of its own: as it came, it keeps the whole buffer that the app's answer was read into.
fn compact(receipt: &Receipt) -> Option<Receipt> {
    let own = |value: &HeaderValue| HeaderValue::from_bytes(value.as_bytes()).ok();
    let headers = receipt.headers.iter().map(|(name, value)| Some((name.clone(), own(value)?)));
    Some(Receipt {
        status: receipt.status,
        headers: headers.collect::<Option<Vec<_>>>()?,
        body: receipt.body.as_deref().map(Bytes::copy_from_slice),
        at: receipt.at,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::UnixMillis;

    const WINDOW: Duration = Duration::from_secs(60);

    fn receipt(body: &[u8]) -> Receipt {
        let body = Some(Bytes::copy_from_slice(body));
        Receipt { status: 201, headers: Vec::new(), body, at: UnixMillis(7) }
    }

    fn done(body: &[u8]) -> Done {
        Done { fingerprint: Fingerprint(3), receipt: receipt(body) }
    }

    fn since(hearing: Option<u64>) -> Since {
        Since { hearing, asked: monotonic() }
    }

    #[test]
    fn what_was_asked_before_a_person_changed_the_event_is_not_remembered() {
        // A settlement's answer that came after the forget put the old state back.
        let near = Near::new(WINDOW);
        let before = since(Some(1));
        near.forget(Digest(5));
        near.remember(Digest(5), &done(b"old"), WINDOW, before);
        assert_eq!(near.known(Digest(5), Some(1)), None);
        near.remember(Digest(6), &done(b"other"), WINDOW, before);
        assert!(near.known(Digest(6), Some(1)).is_some());
        let mut after = since(Some(1));
        after.asked += Duration::from_millis(1);
        near.remember(Digest(5), &done(b"new"), WINDOW, after);
        assert_eq!(near.known(Digest(5), Some(1)), Some((Arc::new(receipt(b"new")), Fingerprint(3))));
    }

    #[test]
    fn an_event_is_known_while_other_nodes_are_heard_without_a_break() {
        let near = Near::new(WINDOW);
        let digest = Digest(5);
        near.remember(digest, &done(b"made"), WINDOW, since(None));
        assert_eq!(near.known(digest, Some(1)), None, "learned while nobody was heard");
        near.remember(digest, &done(b"made"), WINDOW, since(Some(1)));
        assert_eq!(near.known(digest, Some(1)), Some((Arc::new(receipt(b"made")), Fingerprint(3))));
        assert_eq!(near.known(digest, None), None);
        assert_eq!(near.known(digest, Some(2)), None, "something may have been missed in between");
        near.forget(digest);
        assert_eq!(near.known(digest, Some(1)), None);
    }

    #[test]
    fn nothing_outlasts_its_window_and_long_receipts_stay_away() {
        let near = Near::new(WINDOW);
        near.remember(Digest(1), &done(b"a"), Duration::ZERO, since(Some(1)));
        near.remember(Digest(2), &done(b"a"), Duration::from_nanos(1), since(Some(1)));
        near.remember(Digest(3), &done(&[b'a'; RECEIPT_BYTES_MAX + 1]), WINDOW, since(Some(1)));
        Near::new(Duration::ZERO).remember(Digest(4), &done(b"a"), WINDOW, since(Some(1)));
        for digest in 1..=4 {
            assert_eq!(near.known(Digest(digest), Some(1)), None, "{digest}");
        }
    }

    #[test]
    fn the_latest_events_are_kept_and_no_more_than_the_bound() {
        let near = Near::new(WINDOW);
        let most = 2 * GENERATION_MAX * SHARDS;
        let events = 3 * most as u128;
        let digest = |event: u128| Digest(event.wrapping_mul(0x9e37_79b9_7f4a_7c15) << 64 | event);
        for event in 0..events {
            near.remember(digest(event), &done(b"a"), WINDOW, since(Some(1)));
        }
        let known = |events: std::ops::Range<u128>| {
            events.filter(|event| near.known(digest(*event), Some(1)).is_some()).count()
        };
        let half = most as u128 / 2;
        assert_eq!(known(events - half..events), most / 2);
        assert!(known(0..events) <= most);
        let buckets = near.shards.iter().map(|shard| shard.lock().unwrap().young.capacity()).max();
        assert!(buckets.is_some_and(|capacity| capacity <= GENERATION_MAX), "{buckets:?}");
    }

    #[test]
    fn receipts_that_differ_are_kept_apart_and_within_their_bytes() {
        let near = Near::new(WINDOW);
        let digest = |event: u128| Digest(event.wrapping_mul(0x9e37_79b9_7f4a_7c15) << 64 | event);
        let made = |event: u128| done(format!("{event:0>1000}").as_bytes());
        let events = 2 * BYTES_MAX as u128 / 1000;
        for event in 0..events {
            near.remember(digest(event), &made(event), WINDOW, since(Some(1)));
        }
        let known = (0..events).filter_map(|event| Some((event, near.known(digest(event), Some(1))?.0)));
        let known: Vec<_> = known.collect();
        assert!((BYTES_MAX / 2200..BYTES_MAX / 900).contains(&known.len()), "{}", known.len());
        assert!(known.iter().all(|(event, receipt)| is_alike(receipt, &made(*event).receipt)));
    }
}
