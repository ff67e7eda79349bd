//! Lets a request through untouched: any size, both ways, as it comes; WebSockets and other upgrades included.
//! Claims nothing and remembers nothing.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::spelling::climbs;
use crate::config::Target;
use crate::listen::Slot;
use crate::trace::{Trace, Unanswered};
use crate::upstream::headers::{self, Caller};
use crate::upstream::{Body, BodyFault, Upstream, UpstreamError, trailers};

/// How long the two ends of an upgrade may take to be ready for each other.
const SWITCH_MAX: Duration = Duration::from_secs(10);

/// Where upgraded connections live on, beyond the request that made them.
#[derive(Clone, Debug)]
pub struct Tunnels {
    /// Drain waits for it.
    pub tracker: TaskTracker,
    /// Cancelled when the gateway stops: tunnels end, their owners connect anew elsewhere.
    pub shutdown: CancellationToken,
}

/// Passes a request to the app and its answer back; what was read of its body already goes first. Failures are answered
/// 502 or 504.
pub async fn pass(
    upstream: &Upstream,
    target: &Target,
    (read, mut request): (Bytes, Request<Incoming>),
    caller: &Caller,
    trace: &mut Trace,
    tunnels: &Tunnels,
    slot: Slot,
) -> Response<Body> {
    // Out of the part of the app that is served.
    if !target.prefix.is_empty() && climbs(request.uri().path().trim_start_matches('/')) {
        return text(StatusCode::NOT_FOUND, "the path leads elsewhere\n");
    }
    let version = request.version();
    let upgrade = headers::upgrade(request.headers()).filter(|_| version == http::Version::HTTP_11);
    let theirs = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
    let announced = trailers::announced(request.headers());
    headers::to_app(request.headers_mut(), version, caller);
    trailers::announce(request.headers_mut(), announced);
    if let Some(protocol) = upgrade {
        headers::set_upgrade(request.headers_mut(), protocol);
    }
    // Last: what `Connection` names was the sender's.
    trace.passing(request.headers_mut());
    let mut answer = match upstream.stream(target, read, request).await {
        Ok(answer) => answer,
        Err(error) => {
            match error.is_of_the_sender() {
                None => tracing::warn!(error = error.told(), "a request could not be passed to the app"),
                Some(fault) => tracing::debug!(%fault, "a sender broke off"),
            }
            return failure(&error);
        }
    };
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        let Some(theirs) = theirs else {
            return failure(&UpstreamError::Switched);
        };
        let ours = hyper::upgrade::on(&mut answer);
        tunnels.tracker.spawn(tunnel(theirs, ours, tunnels.shutdown.clone(), slot));
    }
    answer
}

/// What a sender is told about a failure of the app.
pub(super) fn failure(error: &UpstreamError) -> Response<Body> {
    let (status, told) = match (error.is_of_the_sender(), error) {
        (Some(BodyFault::Broken(_)), _) => (StatusCode::BAD_REQUEST, "the request's body broke off\n"),
        (Some(BodyFault::Idle(_)), _) => (StatusCode::REQUEST_TIMEOUT, "the request's body did not come\n"),
        (None, UpstreamError::Timeout(_)) => {
            (StatusCode::GATEWAY_TIMEOUT, "the app did not answer in time\n")
        }
        (None, UpstreamError::Connect(_)) => (StatusCode::BAD_GATEWAY, "the app cannot be reached\n"),
        (None, UpstreamError::Broken(_)) => (StatusCode::BAD_GATEWAY, "the connection to the app broke\n"),
        (None, UpstreamError::TooLong(_)) => (StatusCode::BAD_GATEWAY, "the app's answer is too long\n"),
        (None, UpstreamError::Switched) => (StatusCode::BAD_GATEWAY, "the app switched protocols unasked\n"),
    };
    let mut answer = text(status, told);
    answer.extensions_mut().insert(Unanswered::of(error));
    answer
}

fn text(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain");
    response.headers_mut().insert(http::header::CONTENT_TYPE, plain);
    response
}

/// Copies between sender and app until either ends, or the gateway stops. Bounded by the connection's slot.
async fn tunnel(theirs: OnUpgrade, ours: OnUpgrade, shutdown: CancellationToken, _slot: Slot) {
    let both = async { tokio::try_join!(theirs, ours) };
    let (theirs, ours) = match tokio::time::timeout(SWITCH_MAX, both).await {
        Ok(Ok(ends)) => ends,
        Ok(Err(error)) => return tracing::debug!(%error, "an upgrade came to nothing"),
        Err(_elapsed) => return tracing::debug!("an upgrade came to nothing in time"),
    };
    let (mut theirs, mut ours) = (TokioIo::new(theirs), TokioIo::new(ours));
    tokio::select! {
        result = tokio::io::copy_bidirectional(&mut theirs, &mut ours) => {
            if let Err(error) = result {
                tracing::debug!(%error, "an upgraded connection broke");
            }
        }
        () = shutdown.cancelled() => {}
    }
}
