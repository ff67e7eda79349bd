//! Where the asks of one handle gather while an answer is on its way, to leave together as one script: what fred and
//! the system calls cost for each command, they then cost once for all. The first ask leaves at once, alone. A server
//! that keeps its keys apart, as a cluster's nodes and what stands before them do, is asked key by key. Knows no breaker
//! and no meaning of an answer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fred::clients::Client;
use fred::error::ErrorKind;
use fred::types::Value;
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::Cause;
use super::cause::{Apart, is_apart, is_unknown, plain};
use super::script;
use super::way::{Reply, reply, through};
use crate::clock::monotonic;

/// Longest that an ask waits for company while answers are on their way: a far Redis must not be slower for it.
const GATHER_MAX: Duration = Duration::from_millis(1);
/// Most keys, and bytes, of one script: Redis serves nobody else while it runs, about a millisecond of this many.
const KEYS_MAX: usize = 512;
const BYTES_MAX: usize = 1 << 20;
/// Most asks that wait to leave; past it one is refused. A stall meets the breaker long before.
const WAITING_MAX: usize = 65_536;

/// A handle on the lane; the last one's end ends it.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    desk: Arc<Desk>,
    _ends: Arc<DropGuard>,
}

/// What is done to a key, in the order in which the script does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Deed {
    /// `value` is the mark.
    Claim,
    /// `value` is the end's text.
    Done,
    /// `value` is the fence.
    Release,
}

#[derive(Debug)]
pub(super) struct Errand {
    pub(super) deed: Deed,
    pub(super) name: Bytes,
    pub(super) value: Bytes,
    pub(super) ttl: String,
}

/// How an errand fared.
#[derive(Debug)]
pub(super) enum Turn {
    /// Nobody else is there: the caller runs it by itself, and keeps this until it is done.
    Alone(Errand, Underway),
    Together(Result<Reply, Cause>),
}

/// A round trip to Redis, of which the lane knows: what comes meanwhile gathers.
#[derive(Debug)]
pub(super) struct Underway(Arc<Desk>);

type Answer = Result<Reply, Cause>;

#[derive(Debug, Default)]
struct Desk {
    state: Mutex<State>,
    /// Rung when something waits and may leave, or must be timed.
    rung: Notify,
    apart: Arc<Apart>,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<Asked>,
    /// Since when the oldest waits.
    since: Option<Instant>,
    /// Round trips, lone ones and scripts.
    underway: usize,
    ended: bool,
}

#[derive(Debug)]
struct Asked {
    errand: Errand,
    due: Instant,
    caller: oneshot::Sender<Answer>,
}

impl Lane {
    /// A lane over this client, served on the calling runtime until `stop` or until its last handle is dropped.
    pub(super) fn over(
        client: Client,
        apart: &Arc<Apart>,
        (tracker, stop): (&TaskTracker, &CancellationToken),
    ) -> Self {
        let desk = Arc::new(Desk { apart: Arc::clone(apart), ..Desk::default() });
        let stop = stop.child_token();
        let ends = Arc::new(stop.clone().drop_guard());
        let served = Arc::clone(&desk);
        tracker.spawn(async move {
            stop.run_until_cancelled(serve(&served, &client)).await;
            served.end();
        });
        Self { desk, _ends: ends }
    }

    /// Has the server learn the script before it is needed, and finds out whether it takes keys of several slots at once;
    /// these two are such. Where it may not learn, or forgets, the text goes along.
    pub(super) async fn teach(client: &Client, patience: Duration, apart: &Apart, keys: [&str; 2]) {
        let load = ["LOAD", script::TOGETHER.text()].map(Value::from).into();
        if let Err(cause) = Box::pin(through(client, patience, None, b"SCRIPT", load)).await {
            tracing::debug!(error = %cause, "redis did not learn the script of many keys");
        }
        // A release of what nobody holds: nothing changes.
        let release = |key: &str| Errand {
            deed: Deed::Release,
            name: Bytes::copy_from_slice(key.as_bytes()),
            value: Bytes::from_static(b"0"),
            ttl: String::new(),
        };
        let releases = words(script::TOGETHER.hash(), &keys.map(release).each_ref());
        let said = Box::pin(through(client, patience, None, b"EVALSHA", releases)).await;
        if said.is_err_and(|cause| is_apart(&cause)) {
            apart.is_so();
        }
    }

    /// Joins what gathers. Of a request with one errand, one that nobody is before is told to run by itself.
    pub(super) async fn join(&self, errand: Errand, patience: Duration, only_one: bool) -> Turn {
        let now = monotonic();
        let answer = {
            let mut state = self.desk.state();
            if only_one && state.underway == 0 && state.waiting.is_empty() {
                state.underway += 1;
                return Turn::Alone(errand, Underway(Arc::clone(&self.desk)));
            }
            if state.ended {
                return Turn::Together(Err(Cause::new_canceled()));
            }
            if state.waiting.len() >= WAITING_MAX {
                let full = Cause::new(ErrorKind::Backpressure, "too many commands wait for redis");
                return Turn::Together(Err(full));
            }
            let (caller, answer) = oneshot::channel();
            state.waiting.push(Asked { errand, due: now + patience, caller });
            if state.since.is_none() {
                state.since = Some(now);
                self.desk.rung.notify_one();
            }
            answer
        };
        Turn::Together(answer.await.unwrap_or_else(|_| Err(Cause::new_canceled())))
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.underway -= 1;
        if state.underway == 0 && state.since.is_some() {
            self.0.rung.notify_one();
        }
    }
}

async fn serve(desk: &Arc<Desk>, client: &Client) {
    let mut running = FuturesUnordered::new();
    loop {
        // Ready tasks run first: they bring the script more keys.
        tokio::task::yield_now().await;
        for batch in desk.take() {
            let underway = Underway(Arc::clone(desk));
            // Boxed: fred's futures are large.
            running.push(Box::pin(async move {
                if let Some(batch) = run(client, batch).await {
                    desk.apart.is_so();
                    join_all(batch.into_iter().map(|asked| run(client, vec![asked]))).await;
                }
                drop(underway);
            }));
        }
        let gathered = desk.state().since.map(|since| since + GATHER_MAX);
        tokio::select! {
            Some(()) = running.next(), if !running.is_empty() => {}
            () = desk.rung.notified() => {}
            () = tokio::time::sleep_until(gathered.unwrap_or_else(monotonic).into()), if gathered.is_some() => {}
        }
    }
}

/// One script, and its answers to its callers. If it fails as a whole, it fails each of them: that is no verdict. What
/// the server takes only key by key is given back.
async fn run(client: &Client, mut batch: Vec<Asked>) -> Option<Vec<Asked>> {
    batch.sort_by_key(|asked| asked.errand.deed);
    let now = monotonic();
    let due = batch.iter().map(|asked| asked.due).min().unwrap_or(now);
    let patience = due.saturating_duration_since(now).max(Duration::from_millis(1));
    let (text, hash) = (script::TOGETHER.text(), script::TOGETHER.hash());
    let words = |script: &str| words(script, &batch.iter().map(|asked| &asked.errand).collect::<Vec<_>>());
    let mut said = through(client, patience, None, b"EVALSHA", words(hash)).await;
    if said.as_ref().is_err_and(is_unknown) {
        said = through(client, patience, None, b"EVAL", words(text)).await;
    }
    if batch.len() > 1 && said.as_ref().is_err_and(is_apart) {
        return Some(batch);
    }
    let answers = match said {
        Ok(Value::Array(answers)) if answers.len() == batch.len() => answers,
        said => {
            let odd = || Cause::new(ErrorKind::Protocol, "a script's answers are not as many as its keys");
            let cause = said.err().unwrap_or_else(odd);
            for asked in batch {
                drop(asked.caller.send(Err(cause.clone())));
            }
            return None;
        }
    };
    for (asked, answer) in batch.into_iter().zip(answers) {
        // A caller that went away needs none.
        drop(asked.caller.send(answer_of(answer)));
    }
    None
}

fn words(script: &str, errands: &[&Errand]) -> Vec<Value> {
    let count = |deed| errands.iter().filter(|errand| errand.deed == deed).count().to_string();
    let mut words: Vec<Value> = Vec::with_capacity(4 + 3 * errands.len());
    words.push(script.into());
    words.push(errands.len().to_string().into());
    words.extend(errands.iter().map(|errand| Value::Bytes(errand.name.clone())));
    words.extend([count(Deed::Claim), count(Deed::Done)].map(Value::from));
    for errand in errands {
        words.push(Value::Bytes(errand.value.clone()));
        words.push(Value::Bytes(Bytes::copy_from_slice(errand.ttl.as_bytes())));
    }
    words
}

/// What one key was refused stands in a list of its own: fred takes an error inside a list for the whole's.
fn answer_of(value: Value) -> Answer {
    let Value::Array(refused) = value else { return Ok(reply(value)) };
    let text = refused.into_iter().next().and_then(|text| text.as_string()).unwrap_or_default();
    Err(refusal(&text))
}

fn refusal(text: &str) -> Cause {
    let plain = plain(text);
    let kind = match plain.split(' ').next() {
        Some("NOAUTH" | "WRONGPASS") => ErrorKind::Auth,
        Some("WRONGTYPE") => ErrorKind::InvalidArgument,
        Some(_) | None => ErrorKind::Unknown,
    };
    Cause::new(kind, plain.to_owned())
}

impl Desk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What should leave now, in scripts of bounded length.
    fn take(&self) -> Vec<Vec<Asked>> {
        let mut state = self.state();
        let Some(since) = state.since else { return Vec::new() };
        if state.underway > 0 && monotonic() < since + GATHER_MAX {
            return Vec::new();
        }
        state.since = None;
        let keys_max = if self.apart.holds() { 1 } else { KEYS_MAX };
        let (mut batches, mut bytes) = (Vec::<Vec<Asked>>::new(), 0);
        for asked in std::mem::take(&mut state.waiting) {
            // A claim that nobody waits for would only stand in others' way. An end is worth its trip.
            if asked.errand.deed == Deed::Claim && asked.caller.is_closed() {
                continue;
            }
            bytes += asked.errand.name.len() + asked.errand.value.len();
            match batches.last_mut() {
                Some(batch) if batch.len() < keys_max && bytes <= BYTES_MAX => batch.push(asked),
                Some(_) | None => {
                    bytes = asked.errand.name.len() + asked.errand.value.len();
                    batches.push(vec![asked]);
                }
            }
        }
        state.underway += batches.len();
        batches
    }

    fn end(&self) {
        let mut state = self.state();
        state.ended = true;
        for asked in std::mem::take(&mut state.waiting) {
            drop(asked.caller.send(Err(Cause::new_canceled())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_kind_it_is() {
        assert_eq!(*refusal("NOAUTH Authentication required.").kind(), ErrorKind::Auth);
        assert_eq!(*refusal("@user_script: 7: -WRONGTYPE x").kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn what_leaves_together_is_bounded_and_without_abandoned_claims() {
        let desk = Desk::default();
        let mut callers = Vec::new();
        {
            let mut state = desk.state();
            state.since = Some(monotonic());
            for number in 0..KEYS_MAX * 2 + 2 {
                let deed = if number % 2 == 0 { Deed::Claim } else { Deed::Done };
                let (caller, answer) = oneshot::channel();
                // Of the first two both callers went away: the claim is dropped, the end goes.
                if number >= 2 {
                    callers.push(answer);
                }
                let errand = Errand { deed, name: Bytes::new(), value: Bytes::new(), ttl: String::new() };
                state.waiting.push(Asked { errand, due: monotonic(), caller });
            }
        }
        let sizes: Vec<usize> = desk.take().iter().map(Vec::len).collect();
        assert_eq!(sizes, [KEYS_MAX, KEYS_MAX, 1]);
        assert_eq!(desk.state().underway, 3);
        assert!(desk.take().is_empty());
        // One by one, where keys are kept apart.
        desk.apart.is_so();
        let mut state = desk.state();
        state.since = Some(monotonic());
        state.underway = 0;
        for _ in 0..3 {
            let errand =
                Errand { deed: Deed::Done, name: Bytes::new(), value: Bytes::new(), ttl: String::new() };
            let (caller, _answer) = oneshot::channel();
            state.waiting.push(Asked { errand, due: monotonic(), caller });
        }
        drop(state);
        assert_eq!(desk.take().iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 1]);
    }
}
