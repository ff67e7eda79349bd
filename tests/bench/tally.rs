//! What a run counted: latencies and kinds of answers. Adds up across threads.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::answer::Answer;
use crate::event::Event;

/// Give up on a server after so many broken connections.
pub(crate) const ERRORS_MAX: u64 = 1_000;

pub(crate) struct Tally {
    latencies_us: Histogram<u64>,
    /// How long the counted part took.
    span: Duration,
    /// Every complete answer, warm-up included: what CPU time is divided by.
    pub(crate) total: u64,
    /// Answers that count.
    answered: u64,
    not_2xx: u64,
    /// Connections that broke, answers that couldn't be read.
    pub(crate) errors: u64,
    copies: u64,
    /// Answers marked `Idempotency-Replayed`.
    replayed: u64,
    /// Copies of a finished event that weren't recognised: a second effect.
    copies_passed: u64,
    /// New events answered as duplicates: a lost event.
    firsts_swallowed: u64,
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self {
            latencies_us: Histogram::new_with_bounds(1, 120_000_000, 3).expect("the bounds are in order"),
            span: Duration::ZERO,
            total: 0,
            answered: 0,
            not_2xx: 0,
            errors: 0,
            copies: 0,
            replayed: 0,
            copies_passed: 0,
            firsts_swallowed: 0,
        }
    }

    /// Counts an answer; its latency only when it came inside the counted part.
    pub(crate) fn answer(&mut self, event: Event, answer: &Answer, latency: Duration, counts: bool) {
        self.total += 1;
        self.copies += u64::from(event.copy);
        self.replayed += u64::from(answer.replayed);
        self.copies_passed += u64::from(event.copy && !answer.replayed);
        self.firsts_swallowed += u64::from(!event.copy && answer.replayed);
        self.not_2xx += u64::from(!(200..300).contains(&answer.status));
        if counts {
            self.answered += 1;
            self.latencies_us
                .saturating_record(u64::try_from(latency.as_micros()).unwrap_or(u64::MAX).max(1));
        }
    }

    pub(crate) fn span(&mut self, span: Duration) {
        self.span = self.span.max(span);
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.latencies_us.add(&other.latencies_us).expect("both have the same bounds");
        self.span(other.span);
        self.total += other.total;
        self.answered += other.answered;
        self.not_2xx += other.not_2xx;
        self.errors += other.errors;
        self.copies += other.copies;
        self.replayed += other.replayed;
        self.copies_passed += other.copies_passed;
        self.firsts_swallowed += other.firsts_swallowed;
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        let quantile = |q: f64| self.latencies_us.value_at_quantile(q);
        let seconds = self.span.as_secs_f64().max(0.001);
        let answered = u32::try_from(self.answered).map_or(f64::MAX, f64::from);
        serde_json::json!({
            "per_second": (answered / seconds).round(),
            "p50_us": quantile(0.5),
            "p90_us": quantile(0.9),
            "p99_us": quantile(0.99),
            "p999_us": quantile(0.999),
            "max_us": self.latencies_us.max(),
            "seconds": seconds,
            "answered": self.answered,
            "total": self.total,
            "not_2xx": self.not_2xx,
            "errors": self.errors,
            "copies": self.copies,
            "replayed": self.replayed,
            "copies_passed": self.copies_passed,
            "firsts_swallowed": self.firsts_swallowed,
        })
    }
}
