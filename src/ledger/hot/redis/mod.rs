//! The hot store in Redis, Valkey or what speaks like them: standalone, Cluster or behind Sentinel. This folder
//! is the only one that names fred. A handle has one connection, on its own thread's runtime.

mod connect;
mod hearing;
mod keeper;
mod script;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use fred::clients::{Client, WithOptions};
use fred::error::ErrorKind;
use fred::interfaces::{ClientLike, KeysInterface, LuaInterface, PubsubInterface};
use fred::types::{Expiration, SetOptions, Value as Reply};
use futures_util::future::join_all;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use self::connect::Target;
use self::hearing::Hearing;
use self::keeper::Slot;
use self::script::Script;
use super::breaker::{Breaker, BreakerState, Counters, HotCounts, count};
use super::value::{self, Value};
use super::{HotAsk, HotDone, HotError, HotOpenError, HotSeen, Marking, Watched};
use crate::config::RedisConfig;
use crate::ledger::claim::{Digest, EventKey, Fence};

/// What fred says went wrong.
pub(super) type Cause = fred::error::Error;

/// Longest life of a key; Redis refuses an expiry past its clock's range.
const TTL_MAX: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

/// One thread's handle.
#[derive(Clone, Debug)]
pub struct Redis {
    node: Arc<Node>,
    slot: Arc<Slot>,
    breaker: Arc<Breaker>,
    /// The last handle's end ends the node's tasks.
    closes: Arc<DropGuard>,
}

/// How many timeouts of single commands one call may take: a script whose text must be sent first takes two.
const CALL_TIMEOUTS: u32 = 3;

/// What the handles of one process share.
#[derive(Debug)]
struct Node {
    target: Target,
    prefix: String,
    /// `<prefix>:settled`: where ends are told.
    channel: String,
    timeout: Duration,
    /// Set once the server refused `SET … NX GET` (before 7.0): scripts do the same from then on.
    scripted: AtomicBool,
    counters: Arc<Counters>,
    /// What the last probe that failed met.
    trouble: Mutex<Option<Cause>>,
    near_ttl: Duration,
    hearing: Hearing,
    /// Rung when a handle gave up a connection that had gone silent: others may be as deaf, and not know it.
    renewed: Notify,
    tracker: TaskTracker,
    closing: CancellationToken,
}

impl Node {
    /// Why a connection rests, where a probe has met the reason: for people.
    fn why(&self, resting: HotError) -> HotError {
        let met = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        met.as_ref().map_or(resting, |cause| HotError::Unusable {
            servers: self.target.servers(),
            cause: cause.details().to_owned(),
        })
    }
}

impl Redis {
    pub(super) async fn open(
        config: &RedisConfig,
        pushes_max: usize,
        tracker: &TaskTracker,
    ) -> Result<(Self, mpsc::Receiver<Digest>), HotOpenError> {
        let closing = CancellationToken::new();
        let node = Arc::new(Node {
            target: Target::parse(config)?,
            channel: format!("{}:settled", config.prefix),
            prefix: config.prefix.clone(),
            timeout: config.timeout,
            scripted: AtomicBool::new(false),
            counters: Arc::default(),
            trouble: Mutex::default(),
            near_ttl: config.near_ttl,
            hearing: Hearing::default(),
            renewed: Notify::new(),
            tracker: tracker.clone(),
            closing: closing.clone(),
        });
        let (sender, pushes) = mpsc::channel(pushes_max);
        tracker.spawn(keeper::listen(Arc::clone(&node), sender));
        Ok((Self::connect(node, Arc::new(closing.drop_guard())).await, pushes))
    }

    pub(super) async fn on_this_worker(&self) -> Self {
        Self::connect(Arc::clone(&self.node), Arc::clone(&self.closes)).await
    }

    async fn connect(node: Arc<Node>, closes: Arc<DropGuard>) -> Self {
        let breaker = Arc::new(Breaker::new(Arc::clone(&node.counters)));
        let slot = Arc::new(Slot::default());
        node.tracker.spawn(keeper::keep(Arc::clone(&node), Arc::clone(&slot), Arc::clone(&breaker)));
        let connected = breaker.wait_until(false);
        if tokio::time::timeout(keeper::FIRST_WAIT, connected).await.is_err() {
            tracing::warn!("redis is not there yet: the durable store decides alone until it is");
        }
        Self { slot, node, breaker, closes }
    }

    pub(super) async fn claim(&self, asks: &[HotAsk]) -> Result<Vec<HotSeen>, HotError> {
        let client = &self.client()?;
        match asks {
            // The usual request carries one event: no vector of futures.
            [ask] => Ok(vec![self.claim_one(client, ask).await?]),
            // Sent in one go: fred writes commands that wait in its queue with one system call, to every
            // cluster node at once.
            many => join_all(many.iter().map(|ask| self.claim_one(client, ask))).await.into_iter().collect(),
        }
    }

    async fn claim_one(&self, client: &WithOptions<Client>, ask: &HotAsk) -> Result<HotSeen, HotError> {
        let name = value::name(&self.node.prefix, &ask.key);
        let mark = value::mark(ask.fence);
        let reply = self.set(client, name, mark, ask.mark_ttl, Some(SetOptions::NX)).await?;
        self.seen(reply, ask.fence)
    }

    fn seen(&self, reply: Reply, asked: Fence) -> Result<HotSeen, HotError> {
        let Some(bytes) = self.bytes(reply)? else { return Ok(HotSeen::Claimed) };
        Ok(match Value::parse(&bytes) {
            Value::Done(done) => HotSeen::Done(done),
            Value::Mark { fence, .. } if fence == asked => HotSeen::Claimed,
            Value::Mark { exposed: true, .. } => HotSeen::Exposed,
            Value::Mark { .. } | Value::Forgotten => HotSeen::Processing,
            Value::Unreadable => {
                count(&self.node.counters.unreadable);
                HotSeen::Processing
            }
        })
    }

    /// One of the scripts that set a mark, for each of these.
    pub(super) async fn mark(&self, how: Marking, asks: &[HotAsk]) -> Result<Vec<HotSeen>, HotError> {
        let client = &self.client()?;
        let script = match how {
            Marking::Expose => &script::EXPOSE,
            Marking::Take => &script::TAKE,
        };
        let one = async |ask: &HotAsk| {
            let name = value::name(&self.node.prefix, &ask.key);
            let arguments =
                [ask.fence.0.to_string(), millis(ask.mark_ttl).to_string()].map(Bytes::from).into();
            self.seen(self.run(client, script, name, arguments).await?, ask.fence)
        };
        join_all(asks.iter().map(one)).await.into_iter().collect()
    }

    pub(super) async fn done(&self, ends: Vec<HotDone>) -> Result<(), HotError> {
        let client = &self.client()?;
        match &*ends {
            [end] => self.done_one(client, end).await,
            many => join_all(many.iter().map(|end| self.done_one(client, end))).await.into_iter().collect(),
        }
    }

    async fn done_one(&self, client: &WithOptions<Client>, end: &HotDone) -> Result<(), HotError> {
        let name = value::name(&self.node.prefix, &end.key);
        let reply = self.set(client, name.clone(), value::done(&end.done), end.ttl, None).await?;
        let old = self.bytes(reply)?.unwrap_or_default();
        if value::is_forgotten(&old) {
            return self.delete(client, name).await;
        }
        if value::is_watched(&old) {
            let digest = end.key.digest().to_string();
            let told = Box::pin(client.publish::<(), _, _>(self.node.channel.as_str(), digest));
            self.settle_answer(self.node.channel.as_bytes(), told.await)?;
        }
        Ok(())
    }

    pub(super) async fn release(&self, keys: Vec<(EventKey, Fence)>) -> Result<(), HotError> {
        let client = &self.client()?;
        let one = async |key: &EventKey, fence: Fence| {
            let arguments = vec![
                Bytes::from(fence.0.to_string()),
                Bytes::from(self.node.channel.clone()),
                Bytes::from(key.digest().to_string()),
            ];
            self.run(client, &script::RELEASE, value::name(&self.node.prefix, key), arguments)
                .await
                .map(|_| ())
        };
        join_all(keys.iter().map(|(key, fence)| one(key, *fence))).await.into_iter().collect()
    }

    pub(super) async fn watch(&self, key: &EventKey) -> Result<Watched, HotError> {
        let client = &self.client()?;
        let reply = self.run(client, &script::WATCH, value::name(&self.node.prefix, key), Vec::new()).await?;
        Ok(match self.bytes(reply)?.map(|bytes| Value::parse(&bytes)) {
            Some(Value::Mark { exposed: false, .. }) => Watched::Watching,
            Some(Value::Mark { exposed: true, .. }) => Watched::WatchingExposed,
            Some(Value::Done(done)) => Watched::Done(done),
            Some(Value::Unreadable | Value::Forgotten) | None => Watched::Absent,
        })
    }

    /// Leaves a word that outlasts whatever is on its way: an end that lands later takes itself back.
    pub(super) async fn forget(&self, key: &EventKey) -> Result<(), HotError> {
        let client = &self.client()?;
        let name = value::name(&self.node.prefix, key);
        let expiry = Some(Expiration::PX(millis(value::FORGOTTEN_TTL)));
        let answer = client.set::<(), _, _>(name.clone(), value::forgotten(), expiry, None, false);
        let answer = Box::pin(answer).await;
        self.settle_answer(&name, answer)?;
        let digest = key.digest().to_string();
        let told = Box::pin(client.publish::<(), _, _>(self.node.channel.as_str(), digest));
        self.settle_answer(self.node.channel.as_bytes(), told.await)
    }

    async fn delete(&self, client: &WithOptions<Client>, name: Bytes) -> Result<(), HotError> {
        let answer = Box::pin(client.del::<(), _>(name.clone())).await;
        self.settle_answer(&name, answer)
    }

    pub(super) fn near_ttl(&self) -> Duration {
        self.node.near_ttl
    }

    pub(super) fn hearing(&self) -> Option<u64> {
        self.node.hearing.unbroken()
    }

    pub(super) async fn ping(&self) -> Result<(), HotError> {
        let client = &self.client().map_err(|resting| self.node.why(resting))?;
        self.settle_answer(&[], Box::pin(client.ping::<()>(None)).await)
    }

    pub(super) fn breaker_state(&self) -> BreakerState {
        self.node.counters.state()
    }

    pub(super) fn counts(&self) -> HotCounts {
        self.node.counters.read()
    }

    pub(super) fn close(&self) {
        self.node.closing.cancel();
    }

    /// Value and expiry in one command, and what was there before: a key without a time to live can't be.
    async fn set(
        &self,
        client: &WithOptions<Client>,
        name: Bytes,
        bytes: Bytes,
        ttl: Duration,
        only: Option<SetOptions>,
    ) -> Result<Reply, HotError> {
        let ttl = millis(ttl);
        if !self.node.scripted.load(Ordering::Relaxed) {
            let expiry = Some(Expiration::PX(ttl));
            // Boxed, as all of fred's futures here: each is 7 KiB, which the request's would carry and move.
            let answer = Box::pin(client.set(name.clone(), bytes.clone(), expiry, only.clone(), true));
            match answer.await {
                Err(cause) if is_syntax_error(&cause) => self.node.fall_back_to_scripts(),
                answer => return self.settle_answer(&name, answer),
            }
        }
        let script = if only.is_some() { &script::CLAIM } else { &script::DONE };
        self.run(client, script, name, vec![bytes, Bytes::from(ttl.to_string())]).await
    }

    /// One script on one key; its text is sent only where the server doesn't know it.
    async fn run(
        &self,
        client: &WithOptions<Client>,
        script: &Script,
        name: Bytes,
        arguments: Vec<Bytes>,
    ) -> Result<Reply, HotError> {
        let answer = Box::pin(client.evalsha(script.hash(), vec![name.clone()], arguments.clone()));
        let answer = match answer.await {
            Err(cause) if cause.details().starts_with("NOSCRIPT") => {
                Box::pin(client.eval(script.text(), vec![name.clone()], arguments)).await
            }
            answer => answer,
        };
        self.settle_answer(&name, answer)
    }

    /// A string's bytes. Another type is none that we wrote; Redis says WRONGTYPE before it comes to that.
    fn bytes(&self, reply: Reply) -> Result<Option<Bytes>, HotError> {
        if let Reply::Null = reply {
            return Ok(None);
        }
        let kind = reply.kind();
        if let Reply::Bytes(bytes) = reply {
            return Ok(Some(bytes));
        }
        if let Reply::String(text) = reply {
            return Ok(Some(text.into_inner()));
        }
        let what = format!("an answer of kind {kind:?}");
        self.settle_answer(&[], Err(Cause::new(ErrorKind::Protocol, what)))
    }

    /// The client, unless the breaker is open.
    fn client(&self) -> Result<WithOptions<Client>, HotError> {
        let client = if self.breaker.is_open() { None } else { self.slot.client() };
        if client.is_none() {
            count(&self.node.counters.rested);
        }
        client.ok_or(HotError::Resting)
    }

    /// No call outlasts this, whatever becomes of the connection under it: a command that met the end of fred's
    /// routing task may never be answered, nor time out by itself.
    pub(super) async fn bounded<T>(
        &self,
        call: impl Future<Output = Result<T, HotError>>,
    ) -> Result<T, HotError> {
        let Ok(answer) = tokio::time::timeout(CALL_TIMEOUTS * self.node.timeout, call).await else {
            count(&self.node.counters.slow);
            self.breaker.failed(self.breaker.suspect(), true);
            return Err(HotError::Slow(self.node.timeout));
        };
        answer
    }

    /// Tells the breaker what came of a call on this key.
    fn settle_answer<T>(&self, name: &[u8], answer: Result<T, Cause>) -> Result<T, HotError> {
        let cause = match answer {
            Ok(value) => {
                self.breaker.answered(|| self.node.target.slot(name));
                return Ok(value);
            }
            Err(cause) => cause,
        };
        if *cause.kind() == ErrorKind::Timeout {
            count(&self.node.counters.slow);
            self.breaker.failed(self.node.target.slot(name), false);
            return Err(HotError::Slow(self.node.timeout));
        }
        count(&self.node.counters.refused);
        // One key of a wrong type says nothing of the server. What says that no write will pass (LOADING,
        // READONLY after a failover, OOM, MISCONF, NOAUTH, …) rests like a silence does.
        if !cause.details().starts_with("WRONGTYPE") {
            self.breaker.failed(self.node.target.slot(name), is_lost(&cause));
        }
        Err(HotError::Refused(Box::new(cause)))
    }
}

impl Node {
    fn fall_back_to_scripts(&self) {
        if !self.scripted.swap(true, Ordering::Relaxed) {
            tracing::info!("redis is older than 7.0: claims go through scripts");
        }
    }
}

/// True where the connection is gone, or the server is one that takes no writes.
fn is_lost(cause: &Cause) -> bool {
    let gone = matches!(
        cause.kind(),
        ErrorKind::IO | ErrorKind::Canceled | ErrorKind::Backpressure | ErrorKind::Auth
    );
    gone || cause.details().starts_with("READONLY") || cause.details().starts_with("LOADING")
}

fn is_syntax_error(cause: &Cause) -> bool {
    cause.details().starts_with("ERR syntax error")
}

/// At least one: a TTL of nothing is no TTL, which Redis refuses.
fn millis(ttl: Duration) -> i64 {
    i64::try_from(ttl.min(TTL_MAX).as_millis()).unwrap_or(i64::MAX).max(1)
}
