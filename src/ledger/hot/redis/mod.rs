//! The hot store in Redis, Valkey or what speaks like them: standalone, Cluster or behind Sentinel. This folder
//! is the only one that names fred. A handle has one connection, on its own thread's runtime.

mod cause;
mod connect;
mod doubts;
mod hearing;
mod keeper;
mod lane;
mod node;
mod script;
mod way;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use fred::error::ErrorKind;
use futures_util::future::join_all;
use tokio::sync::mpsc;
use tokio_util::sync::DropGuard;
use tokio_util::task::TaskTracker;

use self::cause::{is_elsewhere, is_lost, is_syntax_error, is_wrong_type};
use self::lane::{Deed, Errand, Turn, Underway};
use self::node::Node;
use self::script::Script;
use self::way::{Reply, Slot, Way};
use super::breaker::{Breaker, BreakerState, HotCounts, count};
use super::value::{self, Value};
use super::{Fit, HotAsk, HotDone, HotError, HotOpenError, HotSeen, Marking, Told, Watched};
use crate::config::RedisConfig;
use crate::ledger::claim::{EventKey, Fence};

/// What fred says went wrong.
pub(super) type Cause = fred::error::Error;

/// Longest life of a key; Redis refuses an expiry past its clock's range.
const TTL_MAX: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

/// Where it is looked whether a node has all slots: nodes own long runs of them.
const SLOTS_TRIED: [u16; 8] = [0, 2048, 4096, 6144, 8192, 10_240, 12_288, 16_383];

/// One thread's handle.
#[derive(Clone, Debug)]
pub struct Redis {
    node: Arc<Node>,
    slot: Arc<Slot>,
    breaker: Arc<Breaker>,
    /// The last handle's end ends the node's tasks.
    closes: Arc<DropGuard>,
}

/// What came of gathering.
enum Gathered {
    Said(Reply),
    /// To be run by itself; the lane, where there is one, knows that it is underway.
    Alone(Errand, Option<Underway>),
}

impl Redis {
    pub(super) async fn open(
        config: &RedisConfig,
        pushes_max: usize,
        tracker: &TaskTracker,
    ) -> Result<(Self, mpsc::Receiver<Told>), HotOpenError> {
        let node = Arc::new(Node::new(config, tracker)?);
        let closing = node.closing.clone();
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
        let way = &self.way()?;
        match asks {
            // The usual request carries one event: no vector of futures.
            [ask] => Ok(vec![self.claim_one(way, ask, true).await?]),
            many => {
                join_all(many.iter().map(|ask| self.claim_one(way, ask, false))).await.into_iter().collect()
            }
        }
    }

    async fn claim_one(&self, way: &Way, ask: &HotAsk, only: bool) -> Result<HotSeen, HotError> {
        let (name, mark) = (value::name(&self.node.prefix, &ask.key), value::mark(ask.fence).into());
        let errand = Errand { deed: Deed::Claim, name, value: mark, ttl: millis(ask.mark_ttl) };
        let reply = match self.gather(way, errand, only).await? {
            Gathered::Said(reply) => reply,
            Gathered::Alone(errand, _underway) => self.set_new(way, &errand).await?,
        };
        self.seen(reply, ask.fence)
    }

    /// Runs it with others, or gives it back to be run alone.
    async fn gather(&self, way: &Way, errand: Errand, only: bool) -> Result<Gathered, HotError> {
        let Some(lane) = &way.lane else { return Ok(Gathered::Alone(errand, None)) };
        let name = errand.name.clone();
        match lane.join(errand, self.node.timeout, only).await {
            Turn::Alone(errand, underway) => Ok(Gathered::Alone(errand, Some(underway))),
            Turn::Together(answer) => self.settle_answer(&name, answer).map(Gathered::Said),
        }
    }

    fn seen(&self, reply: Reply, asked: Fence) -> Result<HotSeen, HotError> {
        let Some(bytes) = self.bytes(reply)? else { return Ok(HotSeen::Claimed) };
        Ok(match Value::parse(&bytes) {
            Value::Done(done) => HotSeen::Done(done),
            Value::Long(long) => HotSeen::Long(long),
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
        let way = &self.way()?;
        let script = match how {
            Marking::Expose => &script::EXPOSE,
            Marking::Take => &script::TAKE,
        };
        let one = async |ask: &HotAsk| {
            let name = value::name(&self.node.prefix, &ask.key);
            let (fence, ttl) = (ask.fence.0.to_string(), millis(ask.mark_ttl));
            self.seen(self.run(way, script, &name, &[fence.as_bytes(), ttl.as_bytes()]).await?, ask.fence)
        };
        join_all(asks.iter().map(one)).await.into_iter().collect()
    }

    pub(super) async fn done(&self, ends: Vec<HotDone>) -> Result<(), HotError> {
        let way = &self.way()?;
        match &*ends {
            [end] => self.done_one(way, end, true).await,
            many => {
                join_all(many.iter().map(|end| self.done_one(way, end, false))).await.into_iter().collect()
            }
        }
    }

    async fn done_one(&self, way: &Way, end: &HotDone, only: bool) -> Result<(), HotError> {
        let (name, text) = (value::name(&self.node.prefix, &end.key), value::done(&end.done).into());
        let errand = Errand { deed: Deed::Done, name, value: text, ttl: millis(end.ttl) };
        match self.gather(way, errand, only).await? {
            Gathered::Said(Reply::Number(1)) => self.tell(way, Told::Ended(end.key.digest())).await,
            Gathered::Said(_) => Ok(()),
            Gathered::Alone(Errand { name, value, ttl, .. }, _underway) => {
                let (channel, digest) = (self.node.channel.as_bytes(), end.key.digest().to_string());
                let arguments = [&*value, ttl.as_bytes(), channel, digest.as_bytes()];
                self.run(way, &script::DONE, &name, &arguments).await.map(drop)
            }
        }
    }

    async fn tell(&self, way: &Way, told: Told) -> Result<(), HotError> {
        let told = keeper::message(told);
        let words = [b"PUBLISH", self.node.channel.as_bytes(), told.as_bytes()];
        self.ask(way, None, &words).await.map(|_| ())
    }

    pub(super) async fn release(&self, keys: Vec<(EventKey, Fence)>) -> Result<(), HotError> {
        let (way, only) = (&self.way()?, keys.len() == 1);
        let one = async |key: &EventKey, fence: Fence| {
            let (name, fence) = (value::name(&self.node.prefix, key), fence.0.to_string().into());
            let errand = Errand { deed: Deed::Release, name, value: fence, ttl: String::new() };
            match self.gather(way, errand, only).await? {
                Gathered::Said(Reply::Number(1)) => self.tell(way, Told::Ended(key.digest())).await,
                Gathered::Said(_) => Ok(()),
                Gathered::Alone(Errand { name, value, .. }, _underway) => {
                    let digest = key.digest().to_string();
                    let arguments = [&*value, self.node.channel.as_bytes(), digest.as_bytes()];
                    self.run(way, &script::RELEASE, &name, &arguments).await.map(|_| ())
                }
            }
        };
        join_all(keys.iter().map(|(key, fence)| one(key, *fence))).await.into_iter().collect()
    }

    pub(super) async fn watch(&self, key: &EventKey) -> Result<Watched, HotError> {
        let name = value::name(&self.node.prefix, key);
        let reply = self.run(&self.way()?, &script::WATCH, &name, &[]).await?;
        Ok(match self.bytes(reply)?.map(|bytes| Value::parse(&bytes)) {
            Some(Value::Mark { exposed: false, .. }) => Watched::Watching,
            Some(Value::Mark { exposed: true, .. }) => Watched::WatchingExposed,
            Some(Value::Done(done)) => Watched::Done(done),
            Some(Value::Long(long)) => Watched::Long(long),
            Some(Value::Unreadable | Value::Forgotten) | None => Watched::Absent,
        })
    }

    /// Leaves a word that outlasts whatever is on its way: an end that comes later doesn't land.
    pub(super) async fn forget(&self, key: &EventKey) -> Result<(), HotError> {
        let name = value::name(&self.node.prefix, key);
        let ttl = millis(value::FORGOTTEN_TTL);
        let words = [b"SET", &*name, value::FORGOTTEN, b"PX", ttl.as_bytes()];
        let way = &self.way()?;
        self.ask(way, Some(&name), &words).await?;
        self.tell(way, Told::Ended(key.digest())).await
    }

    pub(super) async fn changed(&self, key: &EventKey) -> Result<(), HotError> {
        self.tell(&self.way()?, Told::Changed(key.digest())).await
    }

    pub(super) fn near_ttl(&self) -> Duration {
        self.node.near_ttl
    }

    pub(super) fn hearing(&self) -> Option<u64> {
        self.node.hearing.unbroken()
    }

    pub(super) async fn ping(&self) -> Result<Fit, HotError> {
        let way = &self.way().map_err(|resting| self.node.why(resting))?;
        let target = &self.node.target;
        let probe = format!("{}:#probe", self.node.prefix);
        // A script, as most of what is asked: it may be forbidden. This one changes no more than a mark.
        self.run(way, &script::WATCH, probe.as_bytes(), &[]).await?;
        if target.is_cluster() || !target.apart.holds() {
            return Ok(Fit::Whole);
        }
        // Of several nodes this one has a part.
        for slot in SLOTS_TRIED {
            let name = target.name_in(slot, &probe);
            way.ask(self.node.timeout, None, &[b"GET", name.as_bytes()])
                .await
                .map_err(|cause| self.node.unusable(&cause))?;
        }
        Ok(Fit::KeyByKey)
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

    /// Value and expiry in one command where nothing is there, or what is: a key without a time to live can't be.
    async fn set_new(&self, way: &Way, errand: &Errand) -> Result<Reply, HotError> {
        let (name, bytes, ttl) = (&*errand.name, &*errand.value, errand.ttl.as_bytes());
        if !self.node.scripted.load(Ordering::Relaxed) {
            let words = [b"SET", name, bytes, b"PX", ttl, b"GET", b"NX"];
            match way.ask(self.node.timeout, self.slot_of(Some(name)), &words).await {
                Err(cause) if is_syntax_error(&cause) => self.node.fall_back_to_scripts(),
                answer => return self.settle_answer(name, answer),
            }
        }
        self.run(way, &script::CLAIM, name, &[bytes, ttl]).await
    }

    /// One script on one key; its text is sent only where the server doesn't know it.
    async fn run(
        &self,
        way: &Way,
        script: &Script,
        name: &[u8],
        arguments: &[&[u8]],
    ) -> Result<Reply, HotError> {
        let slot = self.slot_of(Some(name));
        let mut words: Vec<&[u8]> = vec![b"EVALSHA", script.hash().as_bytes(), b"1", name];
        words.extend(arguments);
        let mut answer = way.ask(self.node.timeout, slot, &words).await;
        if answer.as_ref().is_err_and(cause::is_unknown) {
            words.splice(..2, [&b"EVAL"[..], script.text().as_bytes()]);
            answer = way.ask(self.node.timeout, slot, &words).await;
        }
        self.settle_answer(name, answer)
    }

    async fn ask(&self, way: &Way, name: Option<&[u8]>, words: &[&[u8]]) -> Result<Reply, HotError> {
        let answer = way.ask(self.node.timeout, self.slot_of(name), words).await;
        self.settle_answer(name.unwrap_or_default(), answer)
    }

    fn slot_of(&self, name: Option<&[u8]>) -> Option<u16> {
        name.filter(|_| self.node.target.is_cluster()).map(|name| self.node.target.slot(name))
    }

    /// A string's bytes. Another type is none that we wrote; Redis says WRONGTYPE before it comes to that.
    fn bytes(&self, reply: Reply) -> Result<Option<Bytes>, HotError> {
        match reply {
            Reply::Nil => Ok(None),
            Reply::Value(bytes) => Ok(Some(bytes)),
            Reply::Number(_) | Reply::Word => {
                let cause = Cause::new(ErrorKind::Protocol, "an answer that is no string");
                self.settle_answer(&[], Err(cause))
            }
        }
    }

    /// The way to Redis, unless the breaker is open.
    fn way(&self) -> Result<Way, HotError> {
        let way = if self.breaker.is_open() { None } else { self.slot.way() };
        if way.is_none() {
            count(&self.node.counters.rested);
        }
        way.ok_or(HotError::Resting)
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
        // The URL names one server, which has a part of the keys: what it doesn't have is what a probe must ask for.
        let astray = is_elsewhere(&cause) && !self.node.target.is_cluster();
        if astray {
            self.node.target.apart.is_so();
        }
        // One key of a wrong type says nothing of the server. What says that no write will pass (LOADING,
        // READONLY after a failover, OOM, MISCONF, NOAUTH, …) rests like a silence does.
        if !is_wrong_type(&cause) {
            self.breaker.failed(self.node.target.slot(name), astray || is_lost(&cause));
        }
        Err(HotError::Refused(Box::new(cause)))
    }
}

/// At least one: a TTL of nothing is no TTL, which Redis refuses.
fn millis(ttl: Duration) -> String {
    ttl.min(TTL_MAX).as_millis().max(1).to_string()
}
