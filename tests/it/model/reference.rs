//! The reference ledger: what the contract says of one event, as a plain set of rows that are possible. Time is
//! known only within the bounds of a call, and a call that failed may have been done all the same: then several
//! rows are possible, and each answer of the real ledger leaves those that could have given it.

use std::time::Duration;

use umavez::ledger::OnUnknown;
use umavez::ledger::durable::{self, Override};

/// How long a claim is honoured.
pub(super) const LEASE: Duration = Duration::from_millis(250);
pub(super) const HOT_TTL: Duration = Duration::from_millis(1200);
pub(super) const DURABLE_TTL: Duration = Duration::from_millis(2500);
/// The stores count whole milliseconds, by another clock than this one's.
pub(super) const SLACK: i64 = 10;

/// From the earliest to the latest moment at which something may have happened, milliseconds since the start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Span(pub(super) i64, pub(super) i64);

impl Span {
    fn after(self, wait: Duration) -> Self {
        let wait = i64::try_from(wait.as_millis()).unwrap();
        Self(self.0 + wait, self.1 + wait)
    }

    /// Whether this moment may still be to come at `now`.
    fn may_be_ahead(self, now: Self) -> bool {
        now.0 <= self.1 + SLACK
    }

    /// Whether this moment may have passed at `now`.
    fn may_be_past(self, now: Self) -> bool {
        now.1 + SLACK >= self.0
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum State {
    New,
    Claimed {
        by: u64,
        hold: bool,
        lapses: Span,
        /// Nobody heard that it was claimed: it is given back some time.
        ghost: bool,
    },
    /// `None` where a person said so.
    Done(Option<u64>),
    Released,
    /// Whose claim lapsed, or was ended so: a late wish of the same owner to hold it is granted.
    Held(Option<u64>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) state: State,
    pub(super) first_claimed: Span,
    pub(super) expires: Span,
    pub(super) attempts: u32,
}

/// What a ledger said of a claim.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Said {
    First(u32),
    Duplicate(Option<u64>),
    InFlight,
    Held,
    Unavailable,
}

/// How a claim is ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Ending {
    Commit,
    Release,
    Hold,
}

impl Row {
    pub(super) const NEW: Self =
        Self { state: State::New, first_claimed: Span(0, 0), expires: Span(0, 0), attempts: 0 };

    fn with(self, state: State) -> Self {
        Self { state, ..self }
    }

    /// What a claim may be told, and what the row is then.
    pub(super) fn claim(self, by: u64, on_unknown: OnUnknown, now: Span) -> Vec<(Said, Self)> {
        let claimed = State::Claimed {
            by,
            hold: on_unknown == OnUnknown::Hold,
            lapses: now.after(LEASE),
            ghost: false,
        };
        let anew = Self { state: claimed, first_claimed: now, expires: now.after(DURABLE_TTL), attempts: 1 };
        let again = Self { attempts: self.attempts + 1, ..self.with(claimed) };
        let mut may = Vec::new();
        let mut take = |within_window: bool| {
            if within_window && self.expires.may_be_ahead(now) {
                may.push((Said::First(again.attempts), again));
            }
            if self.expires.may_be_past(now) {
                may.push((Said::First(1), anew));
            }
        };
        match self.state {
            State::New => may.push((Said::First(1), anew)),
            State::Released => take(true),
            State::Done(by) => {
                take(false);
                if self.expires.may_be_ahead(now) {
                    may.push((Said::Duplicate(by), self));
                }
            }
            State::Held(_) => may.push((Said::Held, self)),
            State::Claimed { by, hold, lapses, ghost } => {
                if ghost {
                    take(true);
                }
                if lapses.may_be_past(now) && !hold {
                    take(true);
                }
                if lapses.may_be_past(now) && hold {
                    may.push((Said::Held, self.with(State::Held(Some(by)))));
                }
                if lapses.may_be_ahead(now) {
                    may.push((Said::InFlight, self));
                }
            }
        }
        may
    }

    /// What the row may be after a claim that gave no answer.
    pub(super) fn claim_unheard(self, by: u64, on_unknown: OnUnknown, now: Span) -> Vec<Self> {
        let mut may = vec![self];
        for (_, mut row) in self.claim(by, on_unknown, now) {
            if let State::Claimed { by: owner, ghost, .. } = &mut row.state
                && *owner == by
            {
                *ghost = true;
            }
            may.push(row);
        }
        may
    }

    /// The row after the claim `by` is ended; `None` where that claim doesn't hold the event any more.
    pub(super) fn settle(self, by: u64, ending: Ending) -> Option<Self> {
        match self.state {
            // Also where it was parked meanwhile because its lease lapsed: whoever held it knows what became of it.
            State::Claimed { by: owner, .. } | State::Held(Some(owner)) if owner == by => {
                Some(self.with(match ending {
                    Ending::Commit => State::Done(Some(by)),
                    Ending::Release => State::Released,
                    Ending::Hold => State::Held(Some(by)),
                }))
            }
            State::Claimed { .. } | State::New | State::Done(_) | State::Released | State::Held(_) => None,
        }
    }

    /// The row after a person's decision, where the ledger says that the state was `before`.
    pub(super) fn change(self, to: Override, before: Option<durable::State>, now: Span) -> Option<Self> {
        let Some(before) = before else {
            // What has expired may have been swept.
            let gone = self.state == State::New || self.expires.may_be_past(now);
            return gone.then_some(Self::NEW);
        };
        let fits = match self.state {
            State::New => false,
            State::Claimed { ghost, .. } => {
                before == durable::State::Processing || (ghost && before == durable::State::Released)
            }
            State::Done(_) => before == durable::State::Done,
            State::Released => before == durable::State::Released,
            State::Held(_) => before == durable::State::Held,
        };
        let done = before == durable::State::Done;
        let released = self.with(State::Released);
        fits.then_some(match to {
            Override::Forget => Self::NEW,
            Override::MarkDone if done => self,
            Override::MarkDone => {
                let done = self.with(State::Done(None));
                Self { first_claimed: now, expires: self.window_from(now), ..done }
            }
            Override::Release if done => self,
            Override::Release => released,
            Override::AllowOnce if done => released,
            Override::AllowOnce => self,
            Override::Replay { .. } => unreachable!("no history here sends a payload again"),
        })
    }

    /// When a window ends that a person's decision has begun.
    fn window_from(self, now: Span) -> Span {
        let (shortest, longest) =
            (self.expires.0 - self.first_claimed.1, self.expires.1 - self.first_claimed.0);
        Span(now.0 + shortest, now.1 + longest)
    }

    /// What the row may be after a sweep.
    pub(super) fn sweep(self, now: Span) -> Vec<Self> {
        let mut may = vec![self];
        if let State::Claimed { by, hold: true, lapses, .. } = self.state
            && lapses.may_be_past(now)
        {
            may.push(self.with(State::Held(Some(by))));
        }
        let lapsed = match self.state {
            State::Claimed { hold, lapses, .. } => !hold && lapses.may_be_past(now),
            State::Done(_) | State::Released => true,
            State::New | State::Held(_) => false,
        };
        if lapsed && self.expires.may_be_past(now) {
            may.push(Self::NEW);
        }
        may
    }
}
