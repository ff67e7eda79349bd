//! The words of the ledger: keys, fences, claims, verdicts and receipts. No I/O and no clock.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderName, HeaderValue};

use super::in_flight::Seat;
use crate::clock::UnixMillis;

/// Longest key text that appears as itself in the hot store, in bytes; longer ones appear as their digest.
pub const READABLE_TEXT_MAX: usize = 128;

/// What identifies an event: a scope and an ordered list of parts, as one text and its 128-bit digest.
///
/// The text is `scope:part:part`. Inside a part `\` and `:` are written `\\` and `\:`, control characters and
/// bytes that are not UTF-8 as `\xNN`, so that two part lists never meet in one text, and any byte a provider
/// can send is safe in every store.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct EventKey {
    text: Arc<str>,
    digest: Digest,
}

/// The first 128 bits of the SHA-256 of a key's text: what the stores compare.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub u128);

/// A set and a map by digest. A digest is half of a SHA-256: it needs no hashing again.
pub(super) type DigestSet = HashSet<Digest, BuildHasherDefault<Half>>;
pub(super) type DigestMap<T> = HashMap<Digest, T, BuildHasherDefault<Half>>;

#[derive(Default)]
pub(super) struct Half(u64);

impl Hasher for Half {
    fn write_u128(&mut self, digest: u128) {
        self.0 = u64::try_from(digest >> 64).expect("64 bits are left");
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("a digest is one number")
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl EventKey {
    /// Joins a scope and its parts. The scope is the operator's text and is taken as it is; values put into it
    /// from a request must have gone through [`EventKey::escape`].
    pub fn new<P: AsRef<[u8]>>(scope: &str, parts: &[P]) -> Self {
        let mut text = String::with_capacity(scope.len() + parts.len() * 24);
        text.push_str(scope);
        for part in parts {
            text.push(':');
            Self::escape(part.as_ref(), &mut text);
        }
        Self::from_text(text)
    }

    /// The key with this text form, as an operator pastes it from a log or from Redis.
    pub fn from_text(text: impl Into<Arc<str>>) -> Self {
        let text = text.into();
        let hash = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
        let mut first = [0_u8; 16];
        first.copy_from_slice(&hash.as_ref()[..16]);
        Self { digest: Digest(u128::from_be_bytes(first)), text }
    }

    /// The key of an event whose digest is known, and of whose text perhaps only the beginning is.
    pub fn known(text: impl Into<Arc<str>>, digest: Digest) -> Self {
        Self { text: text.into(), digest }
    }

    /// Appends one part to `text` in its escaped form.
    pub fn escape(part: &[u8], text: &mut String) {
        use std::fmt::Write as _;
        for chunk in part.utf8_chunks() {
            for character in chunk.valid().chars() {
                match character {
                    '\\' => text.push_str("\\\\"),
                    ':' => text.push_str("\\:"),
                    control if control.is_ascii_control() => {
                        write!(text, "\\x{:02x}", u32::from(control)).expect("a String takes any text");
                    }
                    other => text.push(other),
                }
            }
            for byte in chunk.invalid() {
                write!(text, "\\x{byte:02x}").expect("a String takes any text");
            }
        }
    }

    /// The text form, for people: may hold what a provider calls personal; logs show the digest instead.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The text where it is short and a header's value carries it as it is (ASCII, no space at either end), else `#` and
    /// the digest.
    pub fn readable(&self) -> std::borrow::Cow<'_, str> {
        let plain = self.text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
        let inner = !self.text.starts_with(' ') && !self.text.ends_with(' ');
        if self.text.len() <= READABLE_TEXT_MAX && plain && inner {
            std::borrow::Cow::Borrowed(&self.text)
        } else {
            std::borrow::Cow::Owned(format!("#{}", self.digest))
        }
    }

    /// What the stores compare.
    pub fn digest(&self) -> Digest {
        self.digest
    }
}

impl fmt::Debug for EventKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventKey({})", self.digest)
    }
}

/// 32 lower-case hex digits.
impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Digest {
    /// Which of up to 256 shards it is in, by its last bits: its first ones are what the map in there goes by.
    pub(super) fn shard(self) -> usize {
        usize::try_from(self.0 & 0xff).expect("eight bits fit")
    }

    /// The first eight hex digits, for logs.
    pub fn short(self) -> String {
        format!("{:08x}", self.0 >> 96)
    }
}

/// Names one holding of a claim. Random, never zero: a late owner's fence never equals its successor's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fence(pub i64);

impl Fence {
    /// A new fence, drawn from 63 random bits.
    pub fn draw() -> Self {
        Self(rand::random_range(1..=i64::MAX))
    }
}

/// 64 bits of the SHA-256 of what lasts of an item's bytes: tells a copy from another event under the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(pub i64);

impl Fingerprint {
    /// The fingerprint of bytes as they came, in one piece or several.
    pub fn of<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut whole = ring::digest::Context::new(&ring::digest::SHA256);
        for piece in pieces {
            whole.update(piece);
        }
        let hash = whole.finish();
        let mut first = [0_u8; 8];
        first.copy_from_slice(&hash.as_ref()[..8]);
        Self(i64::from_be_bytes(first))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// What a lapsed lease, or an outcome that nobody knows, means for a route's claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnUnknown {
    /// The next copy is forwarded again: a second e-mail at worst.
    #[default]
    Retry,
    /// The event is parked with its payload until a person decides: nothing twice where money moves.
    Hold,
}

/// How long a route's events are claimed and remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How long a claim in flight is honoured; longer than the route's upstream timeout.
    pub lease: Duration,
    /// How long the hot store remembers a done event, from its first claim.
    pub hot_ttl: Duration,
    /// How long the durable store remembers it, from its first claim; at least `hot_ttl`.
    pub durable_ttl: Duration,
    pub on_unknown: OnUnknown,
}

/// A forwarded request, stored with the claims of a route that holds: enough to replay it.
/// All items of one request share one payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    /// Random; every claim of the request refers to it.
    pub id: u128,
    /// The request in HTTP/1.1 wire form (`METHOD target`, headers, empty line, body), without hop-by-hop headers.
    pub request: Bytes,
}

/// How an event ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The status the app answered with.
    pub status: u16,
    /// `Content-Type`, `Location`, with a body `Content-Encoding`, and the route's allow-listed headers, in order.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The answer's body; `None` where it was longer than the route's `receipt_limit`, or none is kept.
    pub body: Option<Bytes>,
    /// When the event was settled, by the clock of the node that settled it.
    pub at: UnixMillis,
}

/// Which layer of the ledger knew an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layer {
    Hot,
    Durable,
    /// The copy waited for the one in flight, on this node or another.
    Waited,
}

impl Layer {
    pub fn label(self) -> &'static str {
        match self {
            Self::Hot => "hot",
            Self::Durable => "durable",
            Self::Waited => "waited",
        }
    }
}

/// The exclusive right to process one event. It ends once: by commit, release or hold, or its lease lapses.
#[derive(Debug)]
#[must_use = "commit, release or hold it"]
pub struct Claim {
    pub(super) key: EventKey,
    pub(super) fence: Fence,
    pub(super) attempt: u32,
    pub(super) terms: Terms,
    pub(super) route: Arc<str>,
    pub(super) fingerprint: Fingerprint,
    /// How long before `taken` the event was first claimed, by the durable store's clock.
    pub(super) age: Duration,
    /// When the claim was asked for, on this process's monotonic clock.
    pub(super) taken: Instant,
    pub(super) payload: Option<u128>,
    /// False where only the hot store holds the claim (`on_durable_down = "hot_only"`).
    pub(super) durable: bool,
    /// While the durable store is away the hot store decides alone on this route: it has to know of the end as well.
    pub(super) hot_decides: bool,
    /// The hot store took its whole time in vain when the event was claimed: its settlement doesn't wait for it again.
    pub(super) hot_silent: bool,
    /// Where copies on this node wait for the end.
    pub(super) seat: Seat,
}

impl Claim {
    pub fn key(&self) -> &EventKey {
        &self.key
    }

    /// 1 for the first forward of the event, then 2, 3, …
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// False where only the hot store holds it: what that store forgets may happen twice.
    pub fn is_durable(&self) -> bool {
        self.durable
    }
}

/// The end of a claim.
#[derive(Clone, Debug)]
pub enum Settlement {
    /// Done: copies get this receipt.
    Commit(Arc<Receipt>),
    /// Not processed: the next copy passes.
    Release,
    /// Parked for a person; only on routes whose claims carry a payload.
    Hold,
}
