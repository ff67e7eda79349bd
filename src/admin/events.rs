//! The event API: look an event up, list the held ones, and decide about them. Every change is recorded with its
//! actor, and the hot store forgets what it knew before the change shows.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use serde_json::{Value, json};

use super::{Admin, json as answer, payload};
use crate::clock::UnixMillis;
use crate::flow::ResubmitError;
use crate::ledger::durable::{DurableError, Override, Record, State};
use crate::ledger::{Digest, EventKey};

/// How many rows a list holds unless `limit` says otherwise, and at most.
const LIST_DEFAULT: usize = 100;
const LIST_MAX: usize = 1000;

/// Which change a path names.
pub(super) fn override_of(path: &str) -> Option<Override> {
    match path {
        "/events/mark-done" => Some(Override::MarkDone),
        "/events/release" => Some(Override::Release),
        "/events/forget" => Some(Override::Forget),
        "/events/allow-once" => Some(Override::AllowOnce),
        _ => None,
    }
}

impl Admin {
    pub(super) async fn show<B>(&self, request: &Request<B>) -> Response<Bytes> {
        let digest = match wanted(request) {
            Ok(digest) => digest,
            Err(why) => return bad(why),
        };
        match self.ledger.durable().look(digest).await {
            Ok(Some(record)) => match self.request_of(&record).await {
                Ok(request) => {
                    let mut told = event(&record);
                    told["request"] = request;
                    answer(StatusCode::OK, &told)
                }
                Err(error) => down(&error),
            },
            Ok(None) => never_seen(),
            Err(error) => down(&error),
        }
    }

    /// A held event's stored request, without what is secret in it; null for any other.
    async fn request_of(&self, record: &Record) -> Result<Value, DurableError> {
        let Some(id) = record.payload.filter(|_| record.state == State::Held) else { return Ok(Value::Null) };
        let stored = self.ledger.durable().payload(id).await?;
        Ok(stored.map_or(Value::Null, |stored| payload::shown(&stored, &self.flow, &record.route)))
    }

    pub(super) async fn held<B>(&self, request: &Request<B>) -> Response<Bytes> {
        match self.ledger.durable().held(limit(request)).await {
            Ok(records) => {
                answer(StatusCode::OK, &json!({"held": records.iter().map(event).collect::<Vec<_>>()}))
            }
            Err(error) => down(&error),
        }
    }

    pub(super) async fn actions<B>(&self, request: &Request<B>) -> Response<Bytes> {
        match self.ledger.durable().actions(limit(request)).await {
            Ok(actions) => {
                let rows = actions.iter().map(|action| {
                    json!({
                        "at": rfc3339(action.at),
                        "action": action.action,
                        "key": action.key,
                        "actor": action.actor,
                        "before": action.before.map(state),
                    })
                });
                answer(StatusCode::OK, &json!({"actions": rows.collect::<Vec<_>>()}))
            }
            Err(error) => down(&error),
        }
    }

    pub(super) async fn change<B>(
        &self,
        request: &Request<B>,
        to: Override,
        peer: SocketAddr,
    ) -> Response<Bytes> {
        let digest = match wanted(request) {
            Ok(digest) => digest,
            Err(why) => return bad(why),
        };
        let record = match self.ledger.durable().look(digest).await {
            Ok(Some(record)) => record,
            Ok(None) => return never_seen(),
            Err(error) => return down(&error),
        };
        match self.ledger.change(&record, to, &actor(peer)).await {
            Ok(Some((before, after))) if after == Some(before) => answer(
                StatusCode::CONFLICT,
                &json!({"error": format!("an event that is {} can't be changed this way", state(before)), "key": record.key, "before": state(before), "after": state(before)}),
            ),
            Ok(Some((before, after))) => answer(
                StatusCode::OK,
                &json!({"key": record.key, "before": state(before), "after": after.map(state)}),
            ),
            Ok(None) => never_seen(),
            Err(error) => down(&error),
        }
    }

    /// Sends a held event's stored request again, now.
    pub(super) async fn replay<B>(&self, request: &Request<B>, peer: SocketAddr) -> Response<Bytes> {
        let digest = match wanted(request) {
            Ok(digest) => digest,
            Err(why) => return bad(why),
        };
        let durable = self.ledger.durable();
        let record = match durable.look(digest).await {
            Ok(Some(record)) => record,
            Ok(None) => return never_seen(),
            Err(error) => return down(&error),
        };
        let (State::Held, Some(id)) = (record.state, record.payload) else {
            let why = format!("only a held event can be replayed; this one is {}", state(record.state));
            return answer(StatusCode::CONFLICT, &json!({"error": why, "key": record.key}));
        };
        let payload = match durable.payload(id).await {
            Ok(Some(payload)) => payload,
            Ok(None) => {
                return answer(
                    StatusCode::CONFLICT,
                    &json!({"error": "its payload is gone", "key": record.key}),
                );
            }
            Err(error) => return down(&error),
        };
        match self.flow.resubmit(&record, payload, &actor(peer)).await {
            Ok(sent) => answer(
                StatusCode::OK,
                &json!({"key": record.key, "before": "held", "answer": sent.status.as_u16(), "verdict": sent.said}),
            ),
            Err(ResubmitError::Durable(error)) => down(&error),
            Err(
                error @ (ResubmitError::Unreadable(_)
                | ResubmitError::NoRoute(_)
                | ResubmitError::NotHeld(_)
                | ResubmitError::Gone),
            ) => answer(StatusCode::CONFLICT, &json!({"error": error.to_string(), "key": record.key})),
        }
    }
}

/// The event that a request names: `?key=` with its text form, or `?digest=` with 32 hex digits.
fn wanted<B>(request: &Request<B>) -> Result<Digest, &'static str> {
    let query = request.uri().query().unwrap_or_default();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*name {
            "key" => return Ok(EventKey::from_text(&*value).digest()),
            "digest" => {
                let hex = u128::from_str_radix(value.trim_start_matches('#'), 16);
                return hex.map(Digest).map_err(|_| "digest: write 32 hex digits");
            }
            _ => {}
        }
    }
    Err("name the event: ?key=scope:part or ?digest=32 hex digits")
}

fn limit<B>(request: &Request<B>) -> usize {
    let query = request.uri().query().unwrap_or_default();
    form_urlencoded::parse(query.as_bytes())
        .find(|(name, _)| name == "limit")
        .and_then(|(_, value)| value.parse().ok())
        .unwrap_or(LIST_DEFAULT)
        .clamp(1, LIST_MAX)
}

fn event(record: &Record) -> Value {
    json!({
        "key": record.key,
        "digest": record.digest.to_string(),
        "route": record.route,
        "state": state(record.state),
        "attempts": record.attempts,
        "first_claimed": rfc3339(record.first_claimed),
        "expires": rfc3339(record.expires),
        "lease_until": record.lease_until.map(rfc3339),
        "fingerprint": record.fingerprint.to_string(),
        "conflicting": record.conflicting.map(|other| other.to_string()),
        "receipt": record.receipt.as_ref().map(|receipt| json!({
            "status": receipt.status,
            "at": rfc3339(receipt.at),
            "body_bytes": receipt.body.as_ref().map(Bytes::len),
        })),
    })
}

fn state(state: State) -> &'static str {
    match state {
        State::Processing => "processing",
        State::Done => "done",
        State::Released => "released",
        State::Held => "held",
    }
}

fn actor(peer: SocketAddr) -> String {
    format!("admin API from {}", peer.ip())
}

fn never_seen() -> Response<Bytes> {
    answer(StatusCode::NOT_FOUND, &json!({"error": "no such event is remembered"}))
}

fn bad(why: &str) -> Response<Bytes> {
    answer(StatusCode::BAD_REQUEST, &json!({"error": why}))
}

fn down(error: &DurableError) -> Response<Bytes> {
    tracing::error!(
        error = error as &dyn std::error::Error,
        "the event API got no answer from the durable store"
    );
    answer(StatusCode::SERVICE_UNAVAILABLE, &json!({"error": error.to_string()}))
}

/// RFC 3339, UTC, milliseconds.
fn rfc3339(at: UnixMillis) -> String {
    at.rfc3339()
}
