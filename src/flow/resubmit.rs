//! A person lets a held event through: it is claimed anew, and its stored request goes the way of any other from there.
//! It was verified when it came, so its signature is not looked at again. Its sender was told that it is safe and won't
//! come again: unless the app takes it now, it is held again.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, StatusCode};

use super::proxy::{Replay, Work};
use super::{Arrived, Flow, Found};
use crate::ledger::durable::{DurableError, Override, Record, State};
use crate::ledger::{Claimed, Fence, Payload};
use crate::metrics::Said;
use crate::upstream::headers::Caller;
use crate::upstream::public_url;

/// What a replay came to.
#[derive(Clone, Debug)]
pub struct Resubmit {
    pub status: StatusCode,
    pub said: &'static str,
}

impl Resubmit {
    /// Where the event stands now: what the app did not take is held again.
    pub fn state(&self) -> &'static str {
        let done = [Said::First, Said::Duplicate].iter().any(|done| done.label() == self.said);
        if done { "done" } else { "held" }
    }
}

/// Why a payload can't be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ResubmitError {
    #[error("the stored request can't be read: {0}")]
    Unreadable(&'static str),
    #[error("no route of the configuration takes {0} any more")]
    NoRoute(String),
    #[error("only a held event can be replayed; this one is {0:?} now")]
    NotHeld(State),
    #[error("it is not remembered any more")]
    Gone,
    #[error("the durable store gave no answer")]
    Durable(#[source] DurableError),
}

impl Flow {
    /// Sends a held event's stored request again; items that are done meanwhile are left out of it.
    ///
    /// # Errors
    /// When the payload isn't one of ours, its route is gone, or the event isn't held any more: then nothing was changed.
    pub async fn resubmit(
        self: &Arc<Self>,
        record: &Record,
        payload: Payload,
        actor: &str,
    ) -> Result<Resubmit, ResubmitError> {
        let request = parse(&payload.request)?;
        let host = request.headers().get(http::header::HOST).and_then(|host| host.to_str().ok());
        let found = self.live.look(|shared| shared.find(request.method(), host, request.uri().path()));
        let Found::Event { route, path_params } = found else {
            return Err(ResubmitError::NoRoute(format!("{} {}", request.method(), request.uri().path())));
        };
        let caller = Caller { address: IpAddr::from([127, 0, 0, 1]), secure: false, trusted: true };
        let url = public_url(request.uri(), request.headers(), &caller, route.config.public_url.as_deref());
        let decoded = super::body::decoded(request.headers(), request.body(), route.config.body_limit)
            .unwrap_or_else(|_| request.body().clone());
        let mut arrived = Arrived { decoded, url, path_params, caller, request, _room: None };
        route.find_signed_url(&mut arrived);
        let items = route.items(&arrived);
        // Before the claim shows: a copy that came in between would sit there, and the replay would wait for it.
        let seat = self.ledger.reserve(record.digest).await;
        let (fence, lease) = (Fence::draw(), route.config.terms.lease);
        let changed = self.ledger.change(record, Override::Replay { fence, lease }, actor).await;
        match changed.map_err(ResubmitError::Durable)? {
            Some((State::Held, _)) => {}
            Some((now, _)) => return Err(ResubmitError::NotHeld(now)),
            None => return Err(ResubmitError::Gone),
        }
        let attempt = record.attempts.saturating_add(1);
        let claimed = Claimed { digest: record.digest, fence, attempt, seat };
        let replay = Some(Replay { claimed, payload: Arc::new(payload) });
        let mut trace = self.live.look(|shared| shared.trace_replay(arrived.request.headers()));
        trace.on(&route.config);
        let done = self.to_the_end(Work { route, arrived, items, unsigned: false, replay, trace }).await;
        let said = done.said;
        Ok(Resubmit { status: done.traced().status(), said })
    }
}

/// A held event's request as it was stored.
///
/// # Errors
/// When the payload isn't one of ours.
pub fn stored_request(payload: &Payload) -> Result<Request<Bytes>, ResubmitError> {
    parse(&payload.request)
}

fn parse(wire: &Bytes) -> Result<Request<Bytes>, ResubmitError> {
    let mut slots = [httparse::EMPTY_HEADER; 256];
    let mut head = httparse::Request::new(&mut slots);
    let length = match head.parse(wire) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) | Err(_) => {
            return Err(ResubmitError::Unreadable("its head is broken"));
        }
    };
    let mut request =
        Request::builder().method(head.method.unwrap_or_default()).uri(head.path.unwrap_or_default());
    for header in head.headers.iter() {
        request = request.header(header.name, header.value);
    }
    request.body(wire.slice(length..)).map_err(|_| ResubmitError::Unreadable("its head is not HTTP"))
}
