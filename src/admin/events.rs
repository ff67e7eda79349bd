//! The event API: look an event up, list the held ones, and decide about them. Every change is recorded with its
//! actor, and the hot store forgets what it knew before the change shows.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use serde_json::{Value, json};

use super::{Admin, json as answer, payload};
use crate::clock::UnixMillis;
use crate::flow::{ResubmitError, Stands};
use crate::ledger::durable::{DurableError, Override, Record, State};
use crate::ledger::{Digest, EventKey};

/// How many rows a list holds unless `limit` says otherwise, and at most.
const LIST_DEFAULT: usize = 100;
const LIST_MAX: usize = 1000;
/// How many hex digits of a digest name an event at least: as many as logs show.
const PREFIX_MIN: u32 = 8;

/// What a person decides about an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Change(Override),
    Replay,
}

impl Decision {
    /// The one that a path names.
    pub(super) fn of(path: &str) -> Option<Self> {
        match path {
            "/events/mark-done" => Some(Self::Change(Override::MarkDone)),
            "/events/release" => Some(Self::Change(Override::Release)),
            "/events/forget" => Some(Self::Change(Override::Forget)),
            "/events/allow-once" => Some(Self::Change(Override::AllowOnce)),
            "/events/replay" => Some(Self::Replay),
            _ => None,
        }
    }
}

impl Admin {
    pub(super) async fn show<B>(&self, request: &Request<B>) -> Response<Bytes> {
        let record = match self.named(request).await {
            Ok(record) => record,
            Err(missing) => return missing.answer(),
        };
        match self.request_of(&record).await {
            Ok(request) => {
                let mut told = event(&record);
                told["request"] = request;
                answer(StatusCode::OK, &told)
            }
            Err(error) => down(&error),
        }
    }

    /// The event that a request names.
    async fn named<B>(&self, request: &Request<B>) -> Result<Record, Missing> {
        let Wanted { first, last, scoped, cut } = wanted(request).map_err(Missing::Unreadable)?;
        let mut found = self.ledger.durable().look_between(first, last).await.map_err(Missing::Unknown)?;
        match (found.pop(), found.pop()) {
            (Some(record), None) => Ok(record),
            (Some(other), Some(one)) => Err(Missing::Several([one.digest, other.digest])),
            (None, _) if cut => Err(Missing::Cut),
            (None, _) => Err(if scoped { Missing::NeverSeen } else { Missing::WithoutScope }),
        }
    }

    /// A held event's stored request, without what is secret in it; null for any other.
    async fn request_of(&self, record: &Record) -> Result<Value, DurableError> {
        let Some(id) = record.payload.filter(|_| record.state == State::Held) else { return Ok(Value::Null) };
        let stored = self.ledger.durable().payload(id).await?;
        Ok(stored.map_or(Value::Null, |stored| payload::shown(&stored, &self.flow, &record.route)))
    }

    pub(super) async fn held<B>(&self, request: &Request<B>) -> Response<Bytes> {
        let limit = match limit(request) {
            Ok(limit) => limit,
            Err(why) => return bad(&why),
        };
        match self.ledger.durable().held(limit).await {
            Ok(records) => {
                answer(StatusCode::OK, &json!({"held": records.iter().map(event).collect::<Vec<_>>()}))
            }
            Err(error) => down(&error),
        }
    }

    pub(super) async fn actions<B>(&self, request: &Request<B>) -> Response<Bytes> {
        let limit = match limit(request) {
            Ok(limit) => limit,
            Err(why) => return bad(&why),
        };
        match self.ledger.durable().actions(limit).await {
            Ok(actions) => {
                let rows = actions.iter().map(|action| {
                    json!({
                        "at": rfc3339(action.at),
                        "action": action.action,
                        "key": action.key,
                        "actor": action.actor,
                        "before": action.before.map(state),
                        "after": action.after.map(state),
                        // What was refused is recorded too, and left the event as it was.
                        "changed": action.before != action.after,
                    })
                });
                answer(StatusCode::OK, &json!({"actions": rows.collect::<Vec<_>>()}))
            }
            Err(error) => down(&error),
        }
    }

    /// Carries a decision out in a task that the drain waits for: whoever hangs up doesn't break it off half-way, and the
    /// stores are there until it is recorded. A gateway that stops begins none that may take as long as the app does.
    pub(super) async fn decide(
        self: &Arc<Self>,
        decision: Decision,
        request: Request<()>,
        peer: SocketAddr,
    ) -> Response<Bytes> {
        // Before it looks: what closes in between waits for it.
        let token = self.decisions.token();
        let late = decision == Decision::Replay && self.draining.is_cancelled();
        if late || self.decisions.is_closed() {
            let why = "the gateway is stopping, and nothing was done: ask again when it runs";
            return answer(StatusCode::SERVICE_UNAVAILABLE, &json!({"error": why}));
        }
        let admin = Arc::clone(self);
        let decided = self.decisions.spawn(async move {
            let _token = token;
            match decision {
                Decision::Change(to) => admin.change(&request, to, peer).await,
                Decision::Replay => admin.replay(&request, peer).await,
            }
        });
        decided.await.unwrap_or_else(|_| {
            let why = "it broke off: look where the event stands before you ask again";
            answer(StatusCode::INTERNAL_SERVER_ERROR, &json!({"error": why}))
        })
    }

    async fn change(&self, request: &Request<()>, to: Override, peer: SocketAddr) -> Response<Bytes> {
        let record = match self.named(request).await {
            Ok(record) => record,
            Err(missing) => return missing.answer(),
        };
        match self.ledger.change(&record, to, &actor(peer)).await {
            Ok(Some((before, after))) if after == Some(before) => answer(
                StatusCode::CONFLICT,
                &json!({"error": unchanged(before, to), "key": record.key, "before": state(before), "after": state(before)}),
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
    async fn replay(&self, request: &Request<()>, peer: SocketAddr) -> Response<Bytes> {
        let record = match self.named(request).await {
            Ok(record) => record,
            Err(missing) => return missing.answer(),
        };
        let durable = self.ledger.durable();
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
                &json!({
                    "key": record.key,
                    "before": "held",
                    "state": match sent.state {
                        Stands::At(now) => state(now),
                        Stands::Forgotten => "forgotten",
                        Stands::Unknown => "unknown",
                    },
                    "recorded": sent.recorded,
                    "answer": sent.status.as_u16(),
                    "verdict": sent.said,
                    "others": sent.others,
                }),
            ),
            Err(ResubmitError::Durable(error)) => down(&error),
            Err(
                error @ (ResubmitError::Unreadable(_)
                | ResubmitError::NoRoute(_)
                | ResubmitError::NoItem(_)
                | ResubmitError::NotHeld(_)
                | ResubmitError::Gone),
            ) => answer(StatusCode::CONFLICT, &json!({"error": error.to_string(), "key": record.key})),
        }
    }
}

/// Which event a request names: digests from the first to the last, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    first: Digest,
    last: Digest,
    /// A key that has no scope before it is no whole one.
    scoped: bool,
    /// Nor is what is shown of a long one.
    cut: bool,
}

/// Why no event is meant.
enum Missing {
    Unreadable(&'static str),
    Unknown(DurableError),
    NeverSeen,
    WithoutScope,
    Cut,
    /// At least these two begin so.
    Several([Digest; 2]),
}

impl Missing {
    fn answer(self) -> Response<Bytes> {
        match self {
            Self::Unreadable(why) => bad(why),
            Self::Unknown(error) => down(&error),
            Self::NeverSeen => never_seen(),
            Self::WithoutScope => answer(
                StatusCode::NOT_FOUND,
                &json!({"error": "no such event is remembered; a key begins with its scope, such as \
                    hotmart:3f0c8b51, and what logs show is the beginning of its digest: --digest 18cb05c2"}),
            ),
            Self::Cut => answer(
                StatusCode::NOT_FOUND,
                &json!({"error": "this is the beginning of a long key; name the event by its digest, which is shown \
                    beside it: --digest 18cb05c2"}),
            ),
            Self::Several([one, other]) => answer(
                StatusCode::CONFLICT,
                &json!({"error": format!("several events' digests begin so, such as {one} and {other}; write more digits")}),
            ),
        }
    }
}

/// What a request names: `?key=` with an event's text form, or `?digest=` with 32 hex digits, or the first of them.
fn wanted<B>(request: &Request<B>) -> Result<Wanted, &'static str> {
    let query = request.uri().query().unwrap_or_default();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*name {
            "key" => {
                let digest = EventKey::from_text(&*value).digest();
                let cut = value.contains("… (cut: ") && value.ends_with(" bytes)");
                return Ok(Wanted { first: digest, last: digest, scoped: value.contains([':', '#']), cut });
            }
            "digest" => {
                return digests(value.trim_start_matches('#'))
                    .ok_or("digest: write 32 hex digits, or at least the first 8");
            }
            _ => {}
        }
    }
    Err("name the event: ?key=scope:part or ?digest=32 hex digits, or the first 8 of them")
}

/// All digests that begin with these hex digits.
fn digests(hex: &str) -> Option<Wanted> {
    let digits = u32::try_from(hex.len()).ok().filter(|digits| (PREFIX_MIN..=32).contains(digits))?;
    if !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let free = 4 * (32 - digits);
    let first = u128::from_str_radix(hex, 16).ok()? << free;
    Some(Wanted { first: Digest(first), last: Digest(first | ((1 << free) - 1)), scoped: true, cut: false })
}

/// How many rows are asked for; a shorter list than that must mean that there are no more.
fn limit<B>(request: &Request<B>) -> Result<usize, String> {
    let query = request.uri().query().unwrap_or_default();
    let Some((_, value)) = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "limit") else {
        return Ok(LIST_DEFAULT);
    };
    let limit = value.parse().ok().filter(|limit| (1..=LIST_MAX).contains(limit));
    limit.ok_or_else(|| format!("limit: write a number from 1 to {LIST_MAX}"))
}

fn event(record: &Record) -> Value {
    json!({
        "key": record.key,
        "digest": record.digest.to_string(),
        "route": record.route,
        "state": state(record.state),
        "attempts": record.attempts,
        "first_claimed": rfc3339(record.first_claimed),
        // A held event waits for as long as nobody decides.
        "expires": (record.state != State::Held).then(|| rfc3339(record.expires)),
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

/// Why a decision changed nothing.
fn unchanged(before: State, to: Override) -> String {
    let there = match to {
        Override::MarkDone => before == State::Done,
        Override::Release => before == State::Released,
        Override::Forget | Override::AllowOnce | Override::Replay { .. } => false,
    };
    let before = state(before);
    if there {
        format!("the event is {before} already")
    } else {
        format!("an event that is {before} can't be changed this way")
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_of_a_digest_stands_for_all_that_begin_so() {
        let range = |hex| digests(hex).map(|wanted| (wanted.first.0, wanted.last.0));
        assert_eq!(range("18cb05c2"), Some((0x18cb_05c2 << 96, (0x18cb_05c3 << 96) - 1)));
        let whole = 0x8d3c_1f0a_5b7e_4c2d_9f6a_1b3c_5d7e_9f01;
        assert_eq!(range("8d3c1f0a5b7e4c2d9f6a1b3c5d7e9f01"), Some((whole, whole)));
        assert_eq!(range("ffffffff"), Some((0xffff_ffff << 96, u128::MAX)));
        for wrong in ["", "18cb05c", "+8cb05c2", "18cb05cg", "8d3c1f0a5b7e4c2d9f6a1b3c5d7e9f012"] {
            assert_eq!(range(wrong), None, "{wrong}");
        }
    }
}
