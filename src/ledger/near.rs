//! What this node knows to be done without asking any store, for a few seconds: providers send most copies close
//! together. A near cache of the hot store, for the hot stores that other processes share. It forgets whenever it could
//! have missed that a person changed an event through another node.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderValue;

use super::claim::{Digest, Fingerprint, Receipt};
use crate::clock::monotonic;

/// A power of two: bits of a digest pick the shard.
const SHARDS: usize = 16;
/// Events that are remembered at most, in two generations: about 5 MiB where receipts are of the usual length.
const EVENTS_MAX: usize = 16_384;
const GENERATION_MAX: usize = EVENTS_MAX / SHARDS / 2;
/// Longest body of a receipt that is kept here, bytes.
const BODY_BYTES_MAX: usize = 512;
/// Most headers of a receipt that is kept here.
const HEADERS_MAX: usize = 8;

/// Done events of this node's recent past.
#[derive(Debug)]
pub(super) struct Near {
    shards: [Mutex<Shard>; SHARDS],
    /// Longest time that an event is remembered; zero remembers nothing.
    ttl: Duration,
}

#[derive(Debug, Default)]
struct Shard {
    young: HashMap<Digest, Known>,
    old: HashMap<Digest, Known>,
}

#[derive(Clone, Debug)]
struct Known {
    receipt: Arc<Receipt>,
    fingerprint: Fingerprint,
    until: Instant,
    /// During which unbroken hearing of other nodes it was learned.
    hearing: u64,
}

impl Near {
    pub(super) fn new(ttl: Duration) -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()), ttl }
    }

    /// What is known of a done event. `hearing` names the present unbroken hearing of what other nodes tell; during
    /// another one, or none, nothing is known.
    pub(super) fn known(&self, digest: Digest, hearing: Option<u64>) -> Option<(Arc<Receipt>, Fingerprint)> {
        let hearing = hearing.filter(|_| !self.ttl.is_zero())?;
        let shard = self.shard(digest);
        let known = shard.young.get(&digest).or_else(|| shard.old.get(&digest))?;
        let holds = known.hearing == hearing && monotonic() < known.until;
        holds.then(|| (Arc::clone(&known.receipt), known.fingerprint))
    }

    /// Remembers an event that the durable store has recorded as done, for no longer than `window`, what is left of its
    /// window in the hot store. Long receipts stay with the stores.
    pub(super) fn remember(
        &self,
        digest: Digest,
        receipt: &Receipt,
        fingerprint: Fingerprint,
        (window, hearing): (Duration, Option<u64>),
    ) {
        let ttl = self.ttl.min(window);
        let (Some(hearing), false) = (hearing, ttl.is_zero()) else { return };
        let Some(receipt) = compact(receipt) else { return };
        let known = Known { receipt: Arc::new(receipt), fingerprint, until: monotonic() + ttl, hearing };
        let mut shard = self.shard(digest);
        if shard.young.len() >= GENERATION_MAX {
            shard.old = std::mem::take(&mut shard.young);
        }
        shard.young.insert(digest, known);
    }

    /// A person changed the event, or it may be that one did.
    pub(super) fn forget(&self, digest: Digest) {
        let mut shard = self.shard(digest);
        shard.young.remove(&digest);
        shard.old.remove(&digest);
    }

    fn shard(&self, digest: Digest) -> MutexGuard<'_, Shard> {
        let top = usize::try_from(digest.0 >> 124).expect("four bits fit");
        // A poisoned map is still a map: every change to it is one call.
        self.shards[top % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The receipt in storage of its own: as it came, it keeps the whole buffer that the app's answer was read into.
fn compact(receipt: &Receipt) -> Option<Receipt> {
    let body = receipt.body.as_deref();
    let short = body.is_none_or(|body| body.len() <= BODY_BYTES_MAX) && receipt.headers.len() <= HEADERS_MAX;
    let own = |value: &HeaderValue| HeaderValue::from_bytes(value.as_bytes()).ok();
    let headers = receipt.headers.iter().map(|(name, value)| Some((name.clone(), own(value)?)));
    short.then(|| headers.collect::<Option<Vec<_>>>()).flatten().map(|headers| Receipt {
        status: receipt.status,
        headers,
        body: body.map(Bytes::copy_from_slice),
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

    #[test]
    fn an_event_is_known_while_other_nodes_are_heard_without_a_break() {
        let near = Near::new(WINDOW);
        let (digest, print) = (Digest(5), Fingerprint(3));
        near.remember(digest, &receipt(b"made"), print, (WINDOW, None));
        assert_eq!(near.known(digest, Some(1)), None, "learned while nobody was heard");
        near.remember(digest, &receipt(b"made"), print, (WINDOW, Some(1)));
        assert_eq!(near.known(digest, Some(1)), Some((Arc::new(receipt(b"made")), print)));
        assert_eq!(near.known(digest, None), None);
        assert_eq!(near.known(digest, Some(2)), None, "something may have been missed in between");
        near.forget(digest);
        assert_eq!(near.known(digest, Some(1)), None);
    }

    #[test]
    fn nothing_outlasts_its_window_and_long_receipts_stay_away() {
        let near = Near::new(WINDOW);
        near.remember(Digest(1), &receipt(b"a"), Fingerprint(1), (Duration::ZERO, Some(1)));
        near.remember(Digest(2), &receipt(b"a"), Fingerprint(1), (Duration::from_nanos(1), Some(1)));
        near.remember(Digest(3), &receipt(&[b'a'; BODY_BYTES_MAX + 1]), Fingerprint(1), (WINDOW, Some(1)));
        Near::new(Duration::ZERO).remember(Digest(4), &receipt(b"a"), Fingerprint(1), (WINDOW, Some(1)));
        for digest in 1..=4 {
            assert_eq!(near.known(Digest(digest), Some(1)), None, "{digest}");
        }
    }

    #[test]
    fn the_latest_events_are_kept_and_no_more_than_the_bound() {
        let near = Near::new(WINDOW);
        let events = 3 * EVENTS_MAX as u128;
        let digest = |event: u128| Digest((event % 16) << 124 | event);
        for event in 0..events {
            near.remember(digest(event), &receipt(b"a"), Fingerprint(1), (WINDOW, Some(1)));
        }
        let known = |events: std::ops::Range<u128>| {
            events.filter(|event| near.known(digest(*event), Some(1)).is_some()).count()
        };
        let half = EVENTS_MAX as u128 / 2;
        assert_eq!(known(events - half..events), EVENTS_MAX / 2);
        assert!(known(0..events) <= EVENTS_MAX);
    }
}
