//! Decides what an upstream attempt means for its claims. Pure: no I/O, no clock, no config.

use super::body;
use crate::config::StatusSet;
use crate::ledger::OnUnknown;
use crate::providers::Provider;
use crate::upstream::Outcome;

/// Longest answer that is decoded to be looked at, bytes: an acknowledgement is short.
const DECODED_BYTES_MAX: usize = 1024 * 1024;

/// How the claims of a forwarded request end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The app has done it.
    Commit,
    /// It has not, or the route takes that risk: the next copy passes.
    Release,
    /// Nobody knows: a person decides.
    Hold,
}

/// The rule.
pub(super) fn rule(outcome: &Outcome, done: &StatusSet, on_unknown: OnUnknown) -> Ending {
    match (outcome, on_unknown) {
        (Outcome::Answered(answer), _) if done.contains(answer.status()) => Ending::Commit,
        (Outcome::Answered(_) | Outcome::NeverSent(_), _) => Ending::Release,
        (Outcome::Unknown(_), OnUnknown::Hold) => Ending::Hold,
        (Outcome::Unknown(_), OnUnknown::Retry) => Ending::Release,
    }
}

/// Whether the app refuses an event in an answer whose status says otherwise, as this provider's protocol has it.
pub(super) fn refuses(outcome: &Outcome, provider: Option<&Provider>) -> bool {
    match (outcome, provider) {
        (Outcome::Answered(answer), Some(provider)) if provider.reads_answers() => {
            let (headers, raw) = (answer.headers(), answer.body());
            // Some apps name an encoding that they don't use.
            let plain = || raw.trim_ascii_start().starts_with(b"<").then(|| raw.clone());
            let body = body::decoded(headers, raw, DECODED_BYTES_MAX).ok().or_else(plain);
            provider.is_refused_by(headers, body.as_deref())
        }
        (Outcome::Answered(_) | Outcome::NeverSent(_) | Outcome::Unknown(_), _) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use http::Response;

    use super::*;
    use crate::upstream::UpstreamError;

    fn answered(status: u16) -> Outcome {
        Outcome::Answered(Response::builder().status(status).body(Bytes::new()).expect("a valid status"))
    }

    #[test]
    fn every_outcome_ends_its_claims_as_the_contract_says() {
        let done = StatusSet(vec![200..=299, 302..=302]);
        let timeout = || UpstreamError::Timeout(Duration::from_secs(1));
        let table = [
            (answered(200), OnUnknown::Hold, Ending::Commit),
            (answered(299), OnUnknown::Retry, Ending::Commit),
            (answered(302), OnUnknown::Retry, Ending::Commit),
            (answered(301), OnUnknown::Hold, Ending::Release),
            (answered(404), OnUnknown::Retry, Ending::Release),
            (answered(500), OnUnknown::Hold, Ending::Release),
            (Outcome::NeverSent(timeout()), OnUnknown::Hold, Ending::Release),
            (Outcome::NeverSent(timeout()), OnUnknown::Retry, Ending::Release),
            (Outcome::Unknown(timeout()), OnUnknown::Hold, Ending::Hold),
            (Outcome::Unknown(timeout()), OnUnknown::Retry, Ending::Release),
        ];
        for (outcome, on_unknown, ending) in table {
            assert_eq!(rule(&outcome, &done, on_unknown), ending, "{outcome:?} {on_unknown:?}");
        }
    }
}
