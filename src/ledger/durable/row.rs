//! One event's row as both databases give it, and what it says to who asks. Pure: no SQL and no clock;
//! `now` is always the database's.

use std::borrow::Cow;
use std::time::Duration;

use super::{End, Override, Record, Seen, SettleAsk, State, receipt};
use crate::clock::UnixMillis;
use crate::ledger::claim::{Digest, EventKey, Fence, Fingerprint};

/// Bytes of a key's text that are stored. It is for people: what identifies the event is the digest.
const TEXT_MAX: usize = 1024;

/// What deciding and reading need of a row. Times are the database's milliseconds.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) digest: Digest,
    pub(super) state: State,
    pub(super) fence: Fence,
    pub(super) attempts: u32,
    pub(super) first_claimed: i64,
    pub(super) lease_until: i64,
    pub(super) expires: i64,
    pub(super) fingerprint: Fingerprint,
    pub(super) receipt: Option<Vec<u8>>,
}

impl Row {
    /// What this row says to a claim that the database has just written into it.
    pub(super) fn won(self, now: i64) -> Seen {
        match self.state {
            State::Processing => self.claimed(now),
            // The claim met a lapsed lease under `OnUnknown::Hold`, and parked it.
            State::Held | State::Done | State::Released => Seen::Held { fingerprint: self.fingerprint },
        }
    }

    /// What this row says to a claim under `fence`, or to a look without one. `None` where the event may be
    /// claimed: it is released, its window is over, or its lease lapsed.
    pub(super) fn seen(self, fence: Option<Fence>, now: i64) -> Option<Seen> {
        match self.state {
            State::Processing if self.lease_until <= now => None,
            State::Processing if Some(self.fence) == fence => Some(self.claimed(now)),
            State::Processing => {
                Some(Seen::Processing { lease_left: millis(self.lease_until.saturating_sub(now)) })
            }
            State::Done if self.expires <= now => None,
            State::Done => Some(Seen::Done {
                age: millis(now.saturating_sub(self.first_claimed)),
                fingerprint: self.fingerprint,
                receipt: self.receipt.and_then(receipt::decode).unwrap_or_else(receipt::empty),
            }),
            State::Released => None,
            State::Held => Some(Seen::Held { fingerprint: self.fingerprint }),
        }
    }

    /// Whether this row shows that `ask` has been recorded by an earlier try.
    pub(super) fn records(&self, ask: &SettleAsk) -> bool {
        self.fence == ask.fence && self.state == ask.end.state()
    }

    fn claimed(&self, now: i64) -> Seen {
        Seen::Claimed { attempt: self.attempts, age: millis(now.saturating_sub(self.first_claimed)) }
    }
}

/// A row with what only people want to know.
#[derive(Debug)]
pub(super) struct FullRow {
    pub(super) row: Row,
    pub(super) key: String,
    pub(super) route: String,
    pub(super) conflicting: Option<i64>,
    pub(super) payload: Option<u128>,
}

impl FullRow {
    pub(super) fn record(self) -> Record {
        let Row {
            digest, state, attempts, first_claimed, lease_until, expires, fingerprint, receipt, ..
        } = self.row;
        Record {
            key: self.key,
            digest,
            route: self.route,
            state,
            attempts,
            first_claimed: unix(first_claimed),
            expires: unix(expires),
            lease_until: (state == State::Processing).then(|| unix(lease_until)),
            fingerprint,
            conflicting: self.conflicting.map(Fingerprint),
            receipt: receipt.and_then(receipt::decode),
            payload: self.payload,
        }
    }
}

impl End {
    pub(super) fn state(&self) -> State {
        match self {
            Self::Commit(_) => State::Done,
            Self::Release => State::Released,
            Self::Hold => State::Held,
        }
    }
}

impl State {
    /// The number that stands for this state in every database.
    pub(super) fn number(self) -> i16 {
        match self {
            Self::Processing => 0,
            Self::Done => 1,
            Self::Released => 2,
            Self::Held => 3,
        }
    }

    /// `None` for a number that no version has written.
    pub(super) fn from_number(number: i64) -> Option<Self> {
        match number {
            0 => Some(Self::Processing),
            1 => Some(Self::Done),
            2 => Some(Self::Released),
            3 => Some(Self::Held),
            _ => None,
        }
    }
}

impl Override {
    /// What a row in this state becomes: `None` where it is deleted. The same state means that nothing changes.
    pub(super) fn after(self, before: State) -> Option<State> {
        match (self, before) {
            (Self::Forget, _) => None,
            (Self::MarkDone, _) => Some(State::Done),
            (Self::Release, State::Held | State::Processing | State::Released) => Some(State::Released),
            (Self::Release, State::Done) => Some(State::Done),
            (Self::AllowOnce, State::Done) => Some(State::Released),
            (Self::Replay { .. }, State::Held) => Some(State::Processing),
            (Self::AllowOnce, State::Held | State::Processing | State::Released)
            | (Self::Replay { .. }, State::Processing | State::Done | State::Released) => Some(before),
        }
    }
}

/// A key's text as it is stored: a long one is cut, and tells how long it was.
pub(super) fn stored_text(key: &EventKey) -> Cow<'_, str> {
    let text = key.text();
    if text.len() <= TEXT_MAX {
        return Cow::Borrowed(text);
    }
    let (kept, _) = text.split_at(text.floor_char_boundary(TEXT_MAX));
    Cow::Owned(format!("{kept}… (cut: {} bytes)", text.len()))
}

/// A span in milliseconds; zero for one that would be negative.
pub(super) fn millis(span: i64) -> Duration {
    Duration::from_millis(u64::try_from(span).unwrap_or(0))
}

/// A duration in the database's milliseconds.
pub(super) fn span(duration: Duration) -> i64 {
    // A window of more than a million years ends with the type's.
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 4).min(i64::MAX / 4)
}

pub(super) fn unix(at: i64) -> UnixMillis {
    UnixMillis(u64::try_from(at).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters_and_says_so() {
        let text = |text: &str| stored_text(&EventKey::from_text(text)).into_owned();
        let whole = "x".repeat(TEXT_MAX);
        assert_eq!(text(&whole), whole);
        assert_eq!(text(&format!("{whole}y")), format!("{whole}… (cut: 1025 bytes)"));
        let odd = format!("x{}", "ü".repeat(TEXT_MAX));
        assert_eq!(text(&odd), format!("x{}… (cut: 2049 bytes)", "ü".repeat(TEXT_MAX / 2 - 1)));
    }
}
