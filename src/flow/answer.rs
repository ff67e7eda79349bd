//! Every answer that the gateway writes itself: receipts again, refusals, and the marks on what the app answered.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderName, LOCATION, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};

use crate::clock::UnixMillis;
use crate::config::{DuplicateAnswer, RouteConfig};
use crate::ledger::{LedgerError, Receipt};
use crate::metrics::{Answer, Said};
use crate::providers::Answer as Preset;
use crate::upstream::{Outcome, UpstreamError};

/// Tells the verdict, on every answer of a dedup route.
pub(super) const UMAVEZ: HeaderName = HeaderName::from_static("umavez");
/// Marks the answer to a copy.
pub(super) const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// What the `Umavez` header says where there is no verdict to tell.
pub(super) const REFUSED: &str = "refused";

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// What a receipt keeps on every route, the last with a body only.
const ALWAYS_KEPT: [HeaderName; 3] = [CONTENT_TYPE, LOCATION, CONTENT_ENCODING];

/// When a sender that met an event in flight, or a store that is away, should come again.
const RETRY_SOON: Duration = Duration::from_secs(1);
const RETRY_LATER: Duration = Duration::from_secs(5);

/// Why a request of a dedup route got neither the app's answer nor a receipt.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("the body is longer than the route's limit of {0} bytes")]
    TooLarge(usize),
    #[error("the request carries more than {0} events")]
    TooMany(usize),
    #[error("the body did not come within {0:?}")]
    TooSlow(Duration),
    #[error("the body is encoded more than {0} times over")]
    Wrapped(usize),
    #[error("the sender broke off")]
    Broken,
    #[error("the signature is missing or wrong")]
    Unsigned { answer: StatusCode },
    #[error("the request carries no event key, and the route takes none without")]
    Keyless,
    #[error("another copy of this event is being processed")]
    InFlight { answer: StatusCode },
    #[error("the gateway is busy with other bodies")]
    Busy,
    #[error("the ledger cannot be reached")]
    LedgerDown(#[source] Arc<LedgerError>),
    /// What another try may mend, for a provider that makes none after the status that says so.
    #[error("{0}")]
    TryAgain(Box<Refusal>),
}

impl Refusal {
    /// As it is told to this route's provider: one that never comes again after the status that fits (Amazon SNS after
    /// any 4xx) would lose an event over a connection that was slow once.
    pub(super) fn for_sender_of(self, config: &RouteConfig) -> Self {
        let status = self.status().as_u16();
        let last = config.provider.as_ref().is_some_and(|provider| {
            provider.final_statuses.iter().any(|statuses| statuses.contains(&status))
        });
        let transient = matches!(self, Self::TooSlow(_) | Self::Broken);
        if transient && last { Self::TryAgain(Box::new(self)) } else { self }
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::TooLarge(_) | Self::TooMany(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooSlow(_) => StatusCode::REQUEST_TIMEOUT,
            Self::Broken => StatusCode::BAD_REQUEST,
            Self::Wrapped(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Unsigned { answer } | Self::InFlight { answer } => *answer,
            Self::Keyless => StatusCode::UNPROCESSABLE_ENTITY,
            Self::LedgerDown(_) | Self::Busy | Self::TryAgain(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::InFlight { .. } | Self::TryAgain(_) => Some(RETRY_SOON),
            Self::LedgerDown(_) | Self::Busy => Some(RETRY_LATER),
            Self::TooLarge(_)
            | Self::TooMany(_)
            | Self::TooSlow(_)
            | Self::Wrapped(_)
            | Self::Broken
            | Self::Unsigned { .. }
            | Self::Keyless => None,
        }
    }

    /// What it is counted as.
    pub(super) fn class(&self) -> Answer {
        match self {
            Self::TooLarge(_) | Self::TooMany(_) => Answer::TooLarge,
            Self::TooSlow(_) | Self::Wrapped(_) | Self::Broken | Self::Keyless => Answer::Refused,
            Self::Unsigned { .. } => Answer::Unauthorized,
            Self::InFlight { .. } => Answer::InFlight,
            Self::Busy => Answer::Busy,
            Self::TryAgain(refusal) => refusal.class(),
            Self::LedgerDown(_) => Answer::Unavailable,
        }
    }

    /// What the `Umavez` header says of it.
    pub(super) fn said(&self) -> &'static str {
        match self {
            Self::InFlight { .. } => Said::InFlight.label(),
            Self::LedgerDown(_) => Said::Unavailable.label(),
            Self::Keyless => Said::Keyless.label(),
            Self::TryAgain(refusal) => refusal.said(),
            Self::TooLarge(_)
            | Self::TooMany(_)
            | Self::TooSlow(_)
            | Self::Wrapped(_)
            | Self::Broken
            | Self::Busy
            | Self::Unsigned { .. } => REFUSED,
        }
    }

    /// The answer. A sender that is told 200 though its signature is wrong gets an empty body.
    pub(super) fn answer(&self) -> Response<Bytes> {
        let status = self.status();
        let body = if status.is_success() { Bytes::new() } else { Bytes::from(format!("{self}\n")) };
        let mut answer = text(status, body);
        if let Some(after) = self.retry_after() {
            answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(after.as_secs()));
        }
        mark(&mut answer, self.said());
        answer
    }
}

/// Puts the verdict on an answer; the app's own headers of these names give way.
pub(super) fn mark(answer: &mut Response<Bytes>, said: &'static str) {
    answer.headers_mut().remove(REPLAYED);
    answer.headers_mut().insert(UMAVEZ, HeaderValue::from_static(said));
}

/// What is kept of the app's answer. How a body is encoded is kept with it, whatever the route lists: without that
/// nobody reads it. Without a body it would speak of nothing.
pub(super) fn receipt(answer: &Response<Bytes>, config: &RouteConfig, at: UnixMillis) -> Receipt {
    let body = (answer.body().len() <= config.receipt_limit).then(|| answer.body().clone());
    let encoding = body.as_ref().map(|_| CONTENT_ENCODING);
    let listed = config.receipt_headers.iter().filter(|name| !ALWAYS_KEPT.contains(name)).cloned();
    let kept = [CONTENT_TYPE, LOCATION].into_iter().chain(encoding).chain(listed);
    let headers = kept.flat_map(|name| {
        let values = answer.headers().get_all(&name).iter().cloned().collect::<Vec<HeaderValue>>();
        values.into_iter().map(move |value| (name.clone(), value))
    });
    Receipt { status: answer.status().as_u16(), headers: headers.collect(), body, at }
}

/// The first answer again, or what the route always answers to copies. Where the provider takes only some statuses for
/// success and the first answer's is none of them, its status is one of those: the event is done, and a provider that
/// is told so in words it doesn't know would send copies without end.
pub(super) fn replay(receipt: &Receipt, config: &RouteConfig) -> Response<Bytes> {
    let mut answer = match (&config.duplicate_answer, &receipt.body) {
        (DuplicateAnswer::Fixed { status, content_type, body }, _) => {
            fixed(*status, content_type.as_deref(), body.clone())
        }
        // Only its status and headers are known, and this provider reads the body.
        (DuplicateAnswer::Receipt, None) if preset(config).is_some() => accepted(config),
        (DuplicateAnswer::Receipt, body) => {
            let status = taken_for_success(receipt.status, success(config));
            let mut answer = fixed(
                StatusCode::from_u16(status).unwrap_or(StatusCode::OK),
                None,
                body.clone().unwrap_or_default(),
            );
            for (name, value) in &receipt.headers {
                answer.headers_mut().append(name, value.clone());
            }
            if body.is_none() {
                answer.headers_mut().remove(CONTENT_ENCODING);
            }
            if answer.status() == StatusCode::NO_CONTENT && status != receipt.status {
                *answer.body_mut() = Bytes::new();
                answer.headers_mut().remove(CONTENT_TYPE);
                answer.headers_mut().remove(CONTENT_ENCODING);
            }
            answer
        }
    };
    mark(&mut answer, Said::Duplicate.label());
    answer.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    answer
}

/// The event is stored and waits for a person: the sender has done its part, and is told so in words that it knows.
pub(super) fn held(config: &RouteConfig) -> Response<Bytes> {
    let mut answer = accepted(config);
    mark(&mut answer, Said::Held.label());
    answer
}

/// What the sender takes for success where there is no answer of the app to repeat: what the route answers to copies,
/// if that is a success, or what the provider wants to read.
fn accepted(config: &RouteConfig) -> Response<Bytes> {
    let ok = StatusCode::OK.as_u16();
    match (&config.duplicate_answer, preset(config)) {
        (DuplicateAnswer::Fixed { status, content_type, body }, _) if status.is_success() => {
            fixed(*status, content_type.as_deref(), body.clone())
        }
        (DuplicateAnswer::Fixed { .. } | DuplicateAnswer::Receipt, Some(preset)) => fixed(
            StatusCode::from_u16(preset.status).unwrap_or(StatusCode::OK),
            preset.content_type.as_deref(),
            preset.body.clone().into(),
        ),
        (DuplicateAnswer::Fixed { .. } | DuplicateAnswer::Receipt, None) => {
            let status = StatusCode::from_u16(taken_for_success(ok, success(config)));
            fixed(status.unwrap_or(StatusCode::OK), None, Bytes::new())
        }
    }
}

fn fixed(status: StatusCode, content_type: Option<&str>, body: Bytes) -> Response<Bytes> {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    if let Some(value) = content_type.and_then(|text| HeaderValue::try_from(text).ok()) {
        answer.headers_mut().insert(CONTENT_TYPE, value);
    }
    answer
}

fn preset(config: &RouteConfig) -> Option<&Preset> {
    config.provider.as_ref()?.duplicate_answer.as_ref()
}

fn success(config: &RouteConfig) -> Option<&[RangeInclusive<u16>]> {
    config.provider.as_ref()?.success.as_deref()
}

fn taken_for_success(status: u16, success: Option<&[RangeInclusive<u16>]>) -> u16 {
    let Some(success) = success else { return status };
    if success.iter().any(|range| range.contains(&status)) {
        return status;
    }
    let ok = StatusCode::OK.as_u16();
    match success.first() {
        Some(first) if !success.iter().any(|range| range.contains(&ok)) => *first.start(),
        Some(_) => ok,
        None => status,
    }
}

/// The app's answer, or what stands for the answer that it didn't give.
pub(super) fn forwarded(outcome: Outcome, said: Said) -> (Response<Bytes>, Answer) {
    let (mut answer, class) = match outcome {
        Outcome::Answered(answer) => (answer, Answer::Forwarded),
        Outcome::NeverSent(error) => failed(StatusCode::BAD_GATEWAY, &error),
        Outcome::Unknown(error @ UpstreamError::Timeout(_)) => failed(StatusCode::GATEWAY_TIMEOUT, &error),
        Outcome::Unknown(error) => failed(StatusCode::BAD_GATEWAY, &error),
    };
    mark(&mut answer, said.label());
    (answer, class)
}

fn failed(status: StatusCode, error: &UpstreamError) -> (Response<Bytes>, Answer) {
    (text(status, Bytes::from(format!("{error}\n"))), Answer::UpstreamError)
}

/// A line of text.
pub(super) fn text(status: StatusCode, body: Bytes) -> Response<Bytes> {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, TEXT);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_told_success_in_the_statuses_that_its_provider_takes_for_it() {
        let exactly_200 = [200..=200];
        let ranges = [204..=204, 200..=201];
        let only_204 = [204..=204];
        for (status, success, told) in [
            (201, None, 201),
            (302, None, 302),
            (200, Some(&exactly_200[..]), 200),
            (201, Some(&exactly_200[..]), 200),
            (204, Some(&exactly_200[..]), 200),
            (302, Some(&exactly_200[..]), 200),
            (204, Some(&ranges[..]), 204),
            (202, Some(&ranges[..]), 200),
            (200, Some(&only_204[..]), 204),
        ] {
            assert_eq!(taken_for_success(status, success), told, "{status} {success:?}");
        }
    }
}
