//! The hot store: one suite on both kinds, and what a Redis may do to a gateway.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc::Receiver;
use tokio_util::task::TaskTracker;
use umavez::clock::UnixMillis;
use umavez::config::{Hot as HotConfig, RedisConfig, Secret};
use umavez::ledger::hot::{
    BreakerState, Done, Fit, Hot, HotAsk, HotCounts, HotDone, HotError, HotOpenError, HotSeen, Long, Marking,
    Told, Watched,
};
use umavez::ledger::{EventKey, Fence, Fingerprint, Receipt};

use crate::support::redis::{Cluster, Redis, Reply, Sentinels};

const LEASE: Duration = Duration::from_secs(60);
const WINDOW: Duration = Duration::from_secs(600);

/// A hot store as one node has it: a handle, what other nodes tell, and the tasks behind both.
struct Node {
    hot: Hot,
    pushes: Receiver<Told>,
    tracker: TaskTracker,
}

impl Node {
    async fn open(config: &HotConfig) -> Self {
        let tracker = TaskTracker::new();
        let (hot, pushes) = Hot::open(config, &tracker).await.expect("the configuration is right");
        Self { hot, pushes, tracker }
    }

    async fn on(url: &str) -> Self {
        Self::open(&redis_config(url)).await
    }

    async fn in_memory() -> Self {
        Self::open(&HotConfig::Memory { bytes_max: 8 << 20 }).await
    }

    /// Everything that the store started has ended.
    async fn end(self) {
        self.hot.close();
        self.tracker.close();
        within("the tasks end", self.tracker.wait()).await;
    }

    async fn claims(&self, key: &EventKey, fence: i64) -> HotSeen {
        self.try_claim(key, fence).await.expect("the store answers")
    }

    async fn try_claim(&self, key: &EventKey, fence: i64) -> Result<HotSeen, HotError> {
        let seen = self.hot.claim(&[ask(key, fence)]).await?;
        assert_eq!(seen.len(), 1);
        Ok(seen.into_iter().next().unwrap())
    }

    /// Waits until the breaker stands as said; a lost server is noticed by the first call.
    async fn breaker_becomes(&self, state: BreakerState) {
        let probe = key("breaker");
        let turned = async {
            while self.hot.breaker_state() != state {
                self.try_claim(&probe, 1).await.ok();
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        within("the breaker turns", turned).await;
    }
}

fn redis_config(url: &str) -> HotConfig {
    HotConfig::Redis(RedisConfig {
        url: Secret(Arc::from(url)),
        prefix: "dedup".to_owned(),
        timeout: Duration::from_millis(500),
        near_ttl: Duration::ZERO,
    })
}

fn impatient(url: &str) -> HotConfig {
    HotConfig::Redis(RedisConfig {
        url: Secret(Arc::from(url)),
        prefix: "dedup".to_owned(),
        timeout: Duration::from_millis(50),
        near_ttl: Duration::ZERO,
    })
}

fn key(id: &str) -> EventKey {
    EventKey::new("hotmart", &[id])
}

fn ask(key: &EventKey, fence: i64) -> HotAsk {
    HotAsk { key: key.clone(), fence: Fence(fence), mark_ttl: LEASE }
}

fn made(body: &str) -> Done {
    let headers = vec![("content-type".parse().unwrap(), "text/plain".parse().unwrap())];
    let body = Some(Bytes::copy_from_slice(body.as_bytes()));
    let receipt = Receipt { status: 201, headers, body, at: UnixMillis(1_764_536_400_000) };
    Done { fingerprint: Fingerprint(-42), receipt }
}

fn end(key: &EventKey, done: &Done) -> HotDone {
    HotDone { key: key.clone(), done: done.clone(), ttl: WINDOW }
}

/// Ten seconds for what takes milliseconds, on any machine.
async fn within<T>(what: &str, happens: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), happens)
        .await
        .unwrap_or_else(|_| panic!("not in time: {what}"))
}

// The suite: what holds on every hot store. `a` and `b` are two nodes (or, in memory, two handles of one).

async fn an_event_is_claimed_once_among_many(a: &Node, b: &Hot) {
    for round in 0..20 {
        let key = key(&format!("parallel {round}"));
        let asks = (1..=50).map(|fence| {
            let (key, hot) = (key.clone(), if fence % 2 == 0 { &a.hot } else { b });
            async move { hot.claim(&[ask(&key, fence)]).await.unwrap() }
        });
        let seen: Vec<HotSeen> = futures_util::future::join_all(asks).await.into_iter().flatten().collect();
        assert_eq!(seen.iter().filter(|seen| **seen == HotSeen::Claimed).count(), 1);
        assert_eq!(seen.iter().filter(|seen| **seen == HotSeen::Processing).count(), 49);
    }
}

async fn the_same_fence_finds_its_own_mark(a: &Node) {
    let key = key("lost acknowledgement");
    assert_eq!(a.claims(&key, 7).await, HotSeen::Claimed);
    assert_eq!(a.claims(&key, 7).await, HotSeen::Claimed);
    assert_eq!(a.claims(&key, 8).await, HotSeen::Processing);
}

async fn a_done_event_is_known_with_its_receipt(a: &Node, b: &Hot) {
    let odd =
        Done { receipt: Receipt { body: None, ..made("").receipt }, fingerprint: Fingerprint(i64::MAX) };
    for (id, done) in [("a", &made("made\n\n\u{0}ü")), ("b", &made("")), ("c", &odd)] {
        let key = key(&format!("done {id}"));
        assert_eq!(a.claims(&key, 1).await, HotSeen::Claimed);
        a.hot.done(vec![end(&key, done)]).await.unwrap();
        assert_eq!(b.claim(&[ask(&key, 2)]).await.unwrap(), [HotSeen::Done(done.clone())]);
    }
    let long = made(&"x".repeat(5000));
    let key = key("long receipt");
    a.hot.done(vec![end(&key, &long)]).await.unwrap();
    // Status and headers were left out with the body: while the durable store was away, copies were told neither.
    let receipt = Some(Receipt { body: None, ..long.receipt });
    let known = Long { fingerprint: long.fingerprint, receipt };
    assert_eq!(b.watch(&key).await.unwrap(), Watched::Long(known.clone()));
    assert_eq!(a.claims(&key, 1).await, HotSeen::Long(known));
}

async fn a_batch_is_answered_in_order(a: &Node) {
    let keys: Vec<EventKey> = (0..200).map(|id| key(&format!("batch {id}"))).collect();
    let ends = keys.iter().step_by(2).map(|key| end(key, &made(key.text()))).collect();
    a.hot.done(ends).await.unwrap();
    let asks: Vec<HotAsk> = keys.iter().map(|key| ask(key, 1)).collect();
    let seen = a.hot.claim(&asks).await.unwrap();
    for (index, (key, seen)) in keys.iter().zip(&seen).enumerate() {
        let right = if index % 2 == 0 { HotSeen::Done(made(key.text())) } else { HotSeen::Claimed };
        assert_eq!(*seen, right);
    }
    assert_eq!(seen.len(), keys.len());
    assert_eq!(a.hot.claim(&[]).await.unwrap(), []);
}

async fn only_its_own_fence_releases_a_mark(a: &Node) {
    let key = key("released");
    assert_eq!(a.claims(&key, 1).await, HotSeen::Claimed);
    a.hot.release(vec![(key.clone(), Fence(2))]).await.unwrap();
    assert_eq!(a.claims(&key, 3).await, HotSeen::Processing);
    a.hot.release(vec![(key.clone(), Fence(1))]).await.unwrap();
    assert_eq!(a.claims(&key, 3).await, HotSeen::Claimed);
    a.hot.done(vec![end(&key, &made("kept"))]).await.unwrap();
    a.hot.release(vec![(key.clone(), Fence(3))]).await.unwrap();
    assert_eq!(a.claims(&key, 4).await, HotSeen::Done(made("kept")));
    a.hot.forget(&key).await.unwrap();
    assert_eq!(a.claims(&key, 5).await, HotSeen::Processing);
}

/// The first end that was on its way when a person changed its event took itself back, and the word of the change with it:
/// the second one stood, and answered copies against the person's decision for its whole window.
async fn no_end_that_was_on_its_way_lands_on_what_a_person_changed(a: &Node) {
    let key = key("changed");
    a.hot.done(vec![end(&key, &made("before"))]).await.unwrap();
    a.hot.forget(&key).await.unwrap();
    // For a while a hint to ask the durable store.
    for late in ["late", "later", "last"] {
        a.hot.done(vec![end(&key, &made(late))]).await.unwrap();
        assert_eq!(a.claims(&key, 5).await, HotSeen::Processing);
        // And those that come together.
        a.hot.done(vec![end(&key, &made(late)), end(&key, &made(late))]).await.unwrap();
        assert_eq!(a.claims(&key, 5).await, HotSeen::Processing);
    }
    assert_eq!(a.hot.watch(&key).await.unwrap(), Watched::Absent);
}

/// The next end told, less those of events that were forgotten before: nodes are told of that too.
async fn told_next(told: &mut Receiver<Told>, forgotten: &[&EventKey]) -> Option<Told> {
    loop {
        let next = told.recv().await;
        if !forgotten.iter().any(|forgotten| next == Some(Told::Ended(forgotten.digest()))) {
            return next;
        }
    }
}

async fn who_watches_an_event_is_told_of_its_end(a: &Node, b: &Hot, told: &mut Receiver<Told>) {
    let [finished, failed, quiet] = ["finished", "failed", "quiet"].map(|id| key(&format!("watched {id}")));
    for key in [&finished, &failed, &quiet] {
        assert_eq!(b.watch(key).await.unwrap(), Watched::Absent);
        assert_eq!(a.claims(key, 1).await, HotSeen::Claimed);
    }
    assert_eq!(b.watch(&finished).await.unwrap(), Watched::Watching);
    assert_eq!(b.watch(&failed).await.unwrap(), Watched::Watching);
    assert_eq!(b.watch(&failed).await.unwrap(), Watched::Watching);
    a.hot.done(vec![end(&quiet, &made("quiet"))]).await.unwrap();
    a.hot.done(vec![end(&finished, &made("finished"))]).await.unwrap();
    let forgotten = &[&key("released"), &key("changed")];
    assert_eq!(
        within("told of the success", told_next(told, forgotten)).await,
        Some(Told::Ended(finished.digest()))
    );
    a.hot.release(vec![(failed.clone(), Fence(1))]).await.unwrap();
    assert_eq!(
        within("told of the release", told_next(told, forgotten)).await,
        Some(Told::Ended(failed.digest()))
    );
    assert_eq!(b.watch(&finished).await.unwrap(), Watched::Done(made("finished")));
    assert_eq!(b.watch(&failed).await.unwrap(), Watched::Absent);
}

async fn a_watched_mark_still_answers_to_its_fence(a: &Node) {
    let key = key("watched by its own");
    assert_eq!(a.claims(&key, 1).await, HotSeen::Claimed);
    assert_eq!(a.hot.watch(&key).await.unwrap(), Watched::Watching);
    assert_eq!(a.claims(&key, 1).await, HotSeen::Claimed);
    assert_eq!(a.claims(&key, 2).await, HotSeen::Processing);
}

async fn any_key_a_provider_can_send_is_one_event(a: &Node) {
    let long = "x".repeat(10_000);
    let ids: [&[u8]; 8] =
        [b"ev\0t", b"evt", b"ev", b"k\xe91", b"\r\n*1\r\n", b"{1}{2}", " ü ".as_bytes(), long.as_bytes()];
    for round in [HotSeen::Claimed, HotSeen::Processing] {
        for (fence, id) in (1..).zip(ids) {
            let fence = if round == HotSeen::Claimed { fence } else { 100 };
            assert_eq!(a.claims(&EventKey::new("odd", &[id]), fence).await, round);
        }
    }
}

async fn marks_and_ends_lapse(a: &Node) {
    let (mark, done) = (key("short mark"), key("short end"));
    let short = Duration::from_millis(300);
    a.hot.claim(&[HotAsk { mark_ttl: short, ..ask(&mark, 1) }]).await.unwrap();
    assert_eq!(a.hot.watch(&mark).await.unwrap(), Watched::Watching);
    a.hot.done(vec![HotDone { ttl: short, ..end(&done, &made("")) }]).await.unwrap();
    for key in [mark, done] {
        let lapsed = async {
            while a.claims(&key, 2).await != HotSeen::Claimed {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        within("it lapses", lapsed).await;
    }
}

async fn a_mark_is_set_once_more(a: &Node) {
    let (mine, taken) = (key("exposed"), key("contested"));
    assert_eq!(a.claims(&mine, 1).await, HotSeen::Claimed);
    assert_eq!(a.hot.mark(Marking::Expose, &[ask(&mine, 1)]).await.unwrap(), [HotSeen::Claimed]);
    assert_eq!(a.claims(&taken, 1).await, HotSeen::Claimed);
    assert_eq!(a.hot.mark(Marking::Take, &[ask(&taken, 2)]).await.unwrap(), [HotSeen::Claimed]);
}

async fn everything_holds(mut a: Node, b: &Hot, b_is_told: Option<&mut Receiver<Told>>) -> Node {
    an_event_is_claimed_once_among_many(&a, b).await;
    the_same_fence_finds_its_own_mark(&a).await;
    a_done_event_is_known_with_its_receipt(&a, b).await;
    a_batch_is_answered_in_order(&a).await;
    only_its_own_fence_releases_a_mark(&a).await;
    no_end_that_was_on_its_way_lands_on_what_a_person_changed(&a).await;
    a_watched_mark_still_answers_to_its_fence(&a).await;
    any_key_a_provider_can_send_is_one_event(&a).await;
    marks_and_ends_lapse(&a).await;
    a_mark_is_set_once_more(&a).await;
    match b_is_told {
        Some(told) => who_watches_an_event_is_told_of_its_end(&a, b, told).await,
        None => {
            let (_none, nothing) = tokio::sync::mpsc::channel(1);
            let mut told = std::mem::replace(&mut a.pushes, nothing);
            who_watches_an_event_is_told_of_its_end(&a, b, &mut told).await;
        }
    }
    a
}

/// The suite on two nodes of one Redis.
async fn everything_holds_on(url: &str) {
    let a = Node::on(url).await;
    let mut b = Node::on(url).await;
    // Nobody hears a push before it subscribed: wait for one that comes through.
    let heard = async {
        for round in 0.. {
            let key = key(&format!("first push {round}"));
            a.claims(&key, 1).await;
            b.hot.watch(&key).await.unwrap();
            a.hot.release(vec![(key.clone(), Fence(1))]).await.unwrap();
            let told = tokio::time::timeout(Duration::from_millis(100), b.pushes.recv()).await;
            if told == Ok(Some(Told::Ended(key.digest()))) {
                return;
            }
        }
    };
    within("the other node hears", heard).await;
    let a = everything_holds(a, &b.hot, Some(&mut b.pushes)).await;
    assert_eq!(a.hot.breaker_state(), BreakerState::Closed);
    assert_eq!((a.hot.counts(), b.hot.counts()), (HotCounts::default(), HotCounts::default()));
    a.end().await;
    b.end().await;
}

#[tokio::test]
async fn the_hot_store_in_memory_holds() {
    let a = Node::in_memory().await;
    let b = a.hot.on_this_worker().await;
    everything_holds(a, &b, None).await.end().await;
}

#[tokio::test]
async fn the_hot_store_in_redis_holds() {
    let redis = Redis::start().await;
    everything_holds_on(&redis.url()).await;
    for key in redis.keys().await {
        let left = redis.command(&["PTTL", &key]).await.integer();
        let longest = i64::try_from(WINDOW.as_millis()).unwrap();
        assert!((0..=longest).contains(&left) || left == -2, "{key} lives {left} ms");
    }
}

#[tokio::test]
async fn the_hot_store_in_redis_holds_over_tls() {
    let redis = Redis::builder().tls().start().await;
    let ca = redis.ca_file();
    everything_holds_on(&format!("{}?ca={}", redis.url(), ca.display())).await;
}

#[tokio::test]
async fn a_stranger_s_certificate_is_not_trusted() {
    let redis = Redis::builder().tls().start().await;
    let stranger = Redis::builder().tls().start().await;
    let url = format!("{}?ca={}", redis.url(), stranger.ca_file().display());
    let node = Node::on(&url).await;
    assert!(matches!(node.try_claim(&key("tls"), 1).await, Err(HotError::Resting)));
}

#[tokio::test]
async fn an_acl_user_with_the_documented_rights_suffices() {
    let redis = Redis::builder().acl_user("umavez", "p:w/%").start().await;
    let url = redis.url().replace("p:w/%", "p%3Aw%2F%25");
    let node = Node::on(&format!("{url}/0")).await;
    assert_eq!(node.hot.ping().await.unwrap(), Fit::Whole);
    everything_holds_on(&url).await;
    assert_eq!(redis.acl_log().await, "", "something was refused");
    // A user who may do less is seen to be refused: else this would prove nothing.
    redis.command(&["ACL", "SETUSER", "umavez", "-eval", "-evalsha"]).await;
    let HotError::Refused(why) = node.hot.ping().await.unwrap_err() else { panic!() };
    assert!(why.to_string().contains("NOPERM"), "{why}");
    assert_ne!(redis.acl_log().await, "");
}

#[tokio::test]
async fn and_so_do_those_of_a_cluster() {
    let cluster = Box::pin(Cluster::start_with_user()).await;
    everything_holds_on(&cluster.url()).await;
    for node in &cluster.nodes {
        assert_eq!(node.acl_log().await, "", "something was refused");
    }
}

/// A plain URL of a cluster's node: what left together was refused, since its keys lay in several slots, and the breaker
/// opened and closed all the time.
#[tokio::test]
async fn a_cluster_of_one_node_is_asked_key_by_key() {
    let redis = Redis::cluster_of_one().await;
    everything_holds_on(&redis.url()).await;
    let node = Node::on(&redis.url()).await;
    assert_eq!(node.hot.ping().await.unwrap(), Fit::KeyByKey);
    let cluster = Node::on(&redis.url().replace("redis://", "redis-cluster://")).await;
    assert_eq!(cluster.hot.ping().await.unwrap(), Fit::Whole);
}

#[tokio::test]
async fn a_redis_that_becomes_a_cluster_behind_a_nodes_back_is_asked_key_by_key() {
    let mut redis = Redis::start().await;
    let node = Node::on(&redis.url()).await;
    a_batch_is_answered_in_order(&node).await;
    redis.kill().await;
    node.breaker_becomes(BreakerState::Open).await;
    redis.restart_as_cluster().await;
    node.breaker_becomes(BreakerState::Closed).await;
    let opened = node.hot.counts().opened;
    for _ in 0..3 {
        redis.flush().await;
        a_batch_is_answered_in_order(&node).await;
    }
    assert_eq!(node.hot.counts().opened, opened);
    assert_eq!(node.hot.ping().await.unwrap(), Fit::KeyByKey);
}

/// A plain URL of one node of several: it answered the probe, so that the breaker closed, and refused two thirds of all
/// keys, so that it opened again, all the time; nothing said why.
#[tokio::test]
async fn one_node_of_several_rests_until_its_url_is_mended() {
    let cluster = Box::pin(Cluster::start()).await;
    let slot = cluster.nodes[0].command(&["CLUSTER", "KEYSLOT", "dedup:#probe"]).await.integer();
    // The one that has the key that a probe asks for.
    let part = cluster.nodes[usize::try_from(slot / 5461).unwrap().min(2)].url();
    let node = Node::on(&part).await;
    for round in 0..100 {
        node.try_claim(&key(&format!("somewhere {round}")), 1).await.ok();
    }
    assert_eq!(node.hot.breaker_state(), BreakerState::Open);
    // So long that a probe which asks for the wrong key closes it.
    for _ in 0..200 {
        assert_eq!(node.hot.breaker_state(), BreakerState::Open);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(node.hot.counts().opened, 1);
    let told = node.hot.ping().await.unwrap_err().to_string();
    assert!(told.contains("one node of a cluster") && told.contains("MOVED "), "{told}");
    // A node that has asked nothing yet says the same.
    let told = Node::on(&part).await.hot.ping().await.unwrap_err().to_string();
    assert!(told.contains("one node of a cluster") && told.contains("MOVED "), "{told}");
}

/// An end that came by itself to an event which a person had changed stood there as done for a moment, and was taken back
/// in a second step; where the node died between the two, or its connection broke, it stood for its whole window.
#[tokio::test]
async fn an_end_that_comes_alone_never_stands_on_what_a_person_changed() {
    let redis = Redis::start().await;
    let mut node = Node::on(&redis.url()).await;
    let late = key("late");
    node.hot.forget(&late).await.unwrap();
    let mut monitor = redis.connect().await.unwrap();
    assert_eq!(monitor.ask(&[b"MONITOR"]).await.unwrap(), Reply::Simple("OK".to_owned()));
    node.hot.done(vec![end(&late, &made("late"))]).await.unwrap();
    redis.command(&["SET", "the last word", "x"]).await;
    let mut steps = Vec::new();
    loop {
        let line = within("redis reports its commands", monitor.next()).await.unwrap().text();
        if line.contains("the last word") {
            break;
        }
        steps.extend(line.contains("hotmart:late").then_some(line));
    }
    assert!(steps.iter().any(|step| step.contains("EVAL")), "{steps:#?}");
    assert!(steps.iter().all(|step| !step.to_ascii_uppercase().contains("\"SET\"")), "{steps:#?}");
    // An end that stands is told to who watches.
    let watched = key("watched");
    assert_eq!(node.claims(&watched, 1).await, HotSeen::Claimed);
    assert_eq!(node.hot.watch(&watched).await.unwrap(), Watched::Watching);
    node.hot.done(vec![end(&watched, &made("told"))]).await.unwrap();
    assert_eq!(
        within("told", told_next(&mut node.pushes, &[&late])).await,
        Some(Told::Ended(watched.digest()))
    );
    assert_eq!(node.claims(&watched, 3).await, HotSeen::Done(made("told")));
}

#[tokio::test]
async fn the_hot_store_in_a_cluster_holds() {
    let cluster = Cluster::start().await;
    everything_holds_on(&cluster.url()).await;
    assert!(cluster.keys().await.len() > 200);
}

#[tokio::test]
async fn a_failover_under_sentinel_is_followed() {
    let mut sentinels = Sentinels::start().await;
    let node = Node::on(&sentinels.url()).await;
    assert_eq!(node.claims(&key("before"), 1).await, HotSeen::Claimed);
    sentinels.master.kill().await;
    node.breaker_becomes(BreakerState::Open).await;
    node.breaker_becomes(BreakerState::Closed).await;
    assert_eq!(node.claims(&key("after"), 1).await, HotSeen::Claimed);
    assert!(sentinels.replica.keys().await.contains(&"dedup:hotmart:after".to_owned()));
}

#[tokio::test]
async fn an_operator_can_read_what_redis_holds() {
    let redis = Redis::start().await;
    let node = Node::on(&redis.url()).await;
    let (running, finished) = (key("3f0c8b51"), EventKey::new("hotmart", &["x".repeat(200)]));
    node.claims(&running, 77).await;
    node.hot.done(vec![end(&finished, &made("hello"))]).await.unwrap();
    assert_eq!(redis.command(&["GET", "dedup:hotmart:3f0c8b51"]).await.text(), "processing - 77");
    let name = format!("dedup:#{}", finished.digest());
    assert_eq!(
        redis.command(&["GET", &name]).await.text(),
        "done 201 ffffffffffffffd6 1764536400000 5\ncontent-type: text/plain\n\nhello"
    );
    let left = redis.command(&["PTTL", "dedup:hotmart:3f0c8b51"]).await.integer();
    assert!((1..=60_000).contains(&left));
}

#[tokio::test]
async fn what_somebody_else_wrote_is_never_a_verdict() {
    let redis = Redis::start().await;
    let node = Node::on(&redis.url()).await;
    for value in ["", "1", "done", "done 200", "done 200 x 1 0\n\n", "processing", "OK"] {
        redis.command(&["SET", "dedup:hotmart:odd", value]).await;
        assert_eq!(node.claims(&key("odd"), 1).await, HotSeen::Processing, "{value:?}");
        assert_eq!(node.hot.watch(&key("odd")).await.unwrap(), Watched::Absent, "{value:?}");
        node.hot.release(vec![(key("odd"), Fence(1))]).await.unwrap();
        assert_eq!(redis.command(&["GET", "dedup:hotmart:odd"]).await.text(), value);
    }
    redis.command(&["DEL", "dedup:hotmart:odd"]).await;
    redis.command(&["LPUSH", "dedup:hotmart:odd", "x"]).await;
    for _ in 0..10 {
        assert!(matches!(node.try_claim(&key("odd"), 1).await, Err(HotError::Refused(_))));
    }
    // Whatever is asked of it: before 7.0 a script says so in words of its own.
    for _ in 0..10 {
        assert!(node.hot.done(vec![end(&key("odd"), &made(""))]).await.is_err());
        assert!(node.hot.release(vec![(key("odd"), Fence(1))]).await.is_err());
        assert!(node.hot.watch(&key("odd")).await.is_err());
    }
    assert_eq!(node.claims(&key("even"), 1).await, HotSeen::Claimed, "one odd key rests nobody");
}

#[tokio::test]
async fn value_and_expiry_are_always_one_command() {
    let redis = Redis::start().await;
    let node = Node::on(&redis.url()).await;
    let mut monitor = redis.connect().await.unwrap();
    assert_eq!(monitor.ask(&[b"MONITOR"]).await.unwrap(), Reply::Simple("OK".to_owned()));
    for id in 0..1000_i64 {
        let key = key(&id.to_string());
        node.claims(&key, id + 1).await;
        match id % 4 {
            0 => node.hot.done(vec![end(&key, &made(""))]).await.unwrap(),
            1 => node.hot.release(vec![(key, Fence(id + 1))]).await.unwrap(),
            2 => assert_eq!(node.hot.watch(&key).await.unwrap(), Watched::Watching),
            _ => {}
        }
    }
    redis.command(&["SET", "the last word", "x"]).await;
    loop {
        let line = within("redis reports its commands", monitor.next()).await.unwrap().text();
        if line.contains("the last word") {
            break;
        }
        let command = line.to_ascii_uppercase();
        let sets = command.contains("\"SET\"");
        assert!(!sets || command.contains("\"PX\""), "{line}");
        assert!(!command.contains("EXPIRE\""), "{line}");
    }
    let keys = redis.keys().await;
    assert!(keys.len() >= 750);
    for key in keys.iter().filter(|key| key.starts_with("dedup:")) {
        assert!(redis.command(&["PTTL", key]).await.integer() != -1, "{key} would live for ever");
    }
}

#[tokio::test]
async fn a_stalled_redis_costs_a_few_requests_their_deadline_and_the_rest_nothing() {
    let redis = Redis::start().await;
    let node = Node::open(&impatient(&redis.url())).await;
    assert_eq!(node.claims(&key("before"), 1).await, HotSeen::Claimed);
    redis.stall().await;
    let mut slow = 0;
    loop {
        match node.try_claim(&key("meanwhile"), 5).await {
            Err(HotError::Slow(_)) => slow += 1,
            Err(HotError::Resting) => break,
            other => panic!("a stalled redis said {other:?}"),
        }
    }
    assert_eq!(slow, 3);
    assert_eq!(node.hot.breaker_state(), BreakerState::Open);
    for _ in 0..1000 {
        assert!(matches!(node.try_claim(&key("meanwhile"), 5).await, Err(HotError::Resting)));
    }
    assert_eq!((node.hot.counts().slow, node.hot.counts().opened), (3, 1));
    redis.resume().await;
    node.breaker_becomes(BreakerState::Closed).await;
    // What timed out here had landed there: the fence knows it again.
    assert_eq!(node.claims(&key("meanwhile"), 5).await, HotSeen::Claimed);
    assert_eq!(node.claims(&key("before"), 2).await, HotSeen::Processing);
}

#[tokio::test]
async fn a_long_stall_ends_too() {
    let redis = Redis::start().await;
    let node = Node::open(&impatient(&redis.url())).await;
    redis.stall().await;
    node.breaker_becomes(BreakerState::Open).await;
    // Long enough for the probes to give the old connection up.
    tokio::time::sleep(Duration::from_secs(3)).await;
    redis.resume().await;
    node.breaker_becomes(BreakerState::Closed).await;
    assert_eq!(node.claims(&key("after"), 1).await, HotSeen::Claimed);
}

#[tokio::test]
async fn a_restarted_redis_is_used_again_and_its_pushes_come_through() {
    let mut redis = Redis::start().await;
    let mut node = Node::on(&redis.url()).await;
    let worker = node.hot.on_this_worker().await;
    assert_eq!(node.claims(&key("a"), 1).await, HotSeen::Claimed);
    redis.kill().await;
    node.breaker_becomes(BreakerState::Open).await;
    assert!(matches!(node.try_claim(&key("a"), 2).await, Err(HotError::Resting)));
    redis.restart().await;
    let back = async {
        while worker.claim(&[ask(&key("b"), 1)]).await.is_err() || node.try_claim(&key("a"), 3).await.is_err()
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within("both connections are back", back).await;
    let heard = async {
        for round in 0.. {
            let key = key(&format!("push {round}"));
            node.claims(&key, 1).await;
            worker.watch(&key).await.unwrap();
            node.hot.release(vec![(key.clone(), Fence(1))]).await.unwrap();
            if tokio::time::timeout(Duration::from_millis(100), node.pushes.recv()).await.is_ok() {
                return;
            }
        }
    };
    within("pushes are heard again", heard).await;
    assert_eq!(node.hot.breaker_state(), BreakerState::Closed);
}

#[tokio::test]
async fn a_redis_that_is_down_at_the_start_is_found_when_it_comes() {
    let mut redis = Redis::start().await;
    redis.kill().await;
    let node = Node::on(&redis.url()).await;
    assert!(matches!(node.try_claim(&key("early"), 1).await, Err(HotError::Resting)));
    redis.restart().await;
    node.breaker_becomes(BreakerState::Closed).await;
    assert_eq!(node.claims(&key("late"), 1).await, HotSeen::Claimed);
}

#[tokio::test]
async fn a_flushed_redis_is_new_and_warm_again() {
    let redis = Redis::start().await;
    let node = Node::on(&redis.url()).await;
    node.hot.done(vec![end(&key("a"), &made("kept"))]).await.unwrap();
    redis.flush().await;
    redis.command(&["SCRIPT", "FLUSH"]).await;
    assert_eq!(node.claims(&key("a"), 1).await, HotSeen::Claimed);
    node.hot.done(vec![end(&key("a"), &made("kept"))]).await.unwrap();
    assert_eq!(node.claims(&key("a"), 2).await, HotSeen::Done(made("kept")));
    assert_eq!(node.hot.watch(&key("a")).await.unwrap(), Watched::Done(made("kept")));
}

#[tokio::test]
async fn what_leaves_together_is_decided_key_by_key() {
    let redis = Redis::start().await;
    let mut node = Node::on(&redis.url()).await;
    let scripts = async || {
        let stats = redis.command(&["INFO", "commandstats"]).await.text();
        let calls =
            |line: &str| line.split_once("calls=").unwrap().1.split(',').next().unwrap().parse::<u32>();
        stats
            .lines()
            .filter(|line| line.starts_with("cmdstat_eval"))
            .map(|line| calls(line).unwrap())
            .sum::<u32>()
    };
    for round in 0..3 {
        // A server that knows no script any more is told its text.
        redis.command(&["SCRIPT", "FLUSH"]).await;
        let named = |id: &str| key(&format!("{id} {round}"));
        let [fresh, taken, odd, watched, forgotten, mine] =
            ["fresh", "taken", "odd", "watched", "forgotten", "mine"].map(named);
        for key in [&taken, &watched, &mine] {
            assert_eq!(node.claims(key, 1).await, HotSeen::Claimed);
        }
        assert_eq!(node.hot.watch(&watched).await.unwrap(), Watched::Watching);
        node.hot.forget(&forgotten).await.unwrap();
        redis.command(&["LPUSH", &format!("dedup:{}", odd.text()), "x"]).await;
        let before = scripts().await;
        // The first leaves alone; what is asked before its answer gathers.
        let (first, fresh_too, taken_too, refused, ended, told, lost, released, kept) = tokio::join!(
            node.try_claim(&fresh, 5),
            node.try_claim(&fresh, 6),
            node.try_claim(&taken, 7),
            node.try_claim(&odd, 8),
            node.hot.done(vec![end(&taken, &made("done"))]),
            node.hot.done(vec![end(&watched, &made("told"))]),
            node.hot.done(vec![end(&forgotten, &made("late"))]),
            node.hot.release(vec![(mine.clone(), Fence(1))]),
            node.hot.release(vec![(fresh.clone(), Fence(9))]),
        );
        assert_eq!((first.unwrap(), fresh_too.unwrap()), (HotSeen::Claimed, HotSeen::Processing));
        assert_eq!(taken_too.unwrap(), HotSeen::Processing);
        assert!(matches!(refused, Err(HotError::Refused(_))), "{refused:?}");
        for done in [ended, told, lost, released, kept] {
            done.unwrap();
        }
        assert!(scripts().await <= before + 2, "they did not leave together");
        assert_eq!(
            within("told of the end", told_next(&mut node.pushes, &[&forgotten])).await,
            Some(Told::Ended(watched.digest()))
        );
        assert_eq!(node.claims(&taken, 10).await, HotSeen::Done(made("done")));
        assert_eq!(node.claims(&watched, 10).await, HotSeen::Done(made("told")));
        assert_eq!(node.claims(&forgotten, 10).await, HotSeen::Processing, "the late end didn't land");
        assert_eq!(node.claims(&mine, 10).await, HotSeen::Claimed);
        assert_eq!(node.claims(&fresh, 10).await, HotSeen::Processing, "kept from a stranger's fence");
        assert_eq!(node.hot.breaker_state(), BreakerState::Closed);
    }
}

#[tokio::test]
async fn a_script_that_fails_is_no_verdict_for_any_of_its_keys() {
    let redis = Redis::builder().acl_user("umavez", "secret").start().await;
    let node = Node::on(&redis.url()).await;
    let asks: Vec<HotAsk> = (0..1200).map(|id| ask(&key(&format!("all {id}")), 1)).collect();
    assert!(node.hot.claim(&asks).await.unwrap().iter().all(|seen| *seen == HotSeen::Claimed));
    redis.command(&["ACL", "SETUSER", "umavez", "-@scripting"]).await;
    assert!(matches!(node.hot.claim(&asks).await, Err(HotError::Refused(_))));
}

#[tokio::test]
async fn who_gives_up_waiting_stands_in_nobody_s_way() {
    let redis = Redis::start().await;
    let node = Node::on(&redis.url()).await;
    let mut dropped = 0;
    for round in 0..20 {
        let keys: Vec<EventKey> = (0..20).map(|id| key(&format!("gone {round} {id}"))).collect();
        let gone = futures_util::future::join_all(keys.iter().map(|key| node.try_claim(key, 1)));
        // Dropped with its asks gathered, and one underway.
        tokio::select! {
            biased;
            _ = gone => {}
            () = tokio::task::yield_now() => dropped += 1,
        }
        let stays: Vec<HotAsk> = (0..20).map(|id| ask(&key(&format!("stays {round} {id}")), 2)).collect();
        let seen = within("the others are answered", node.hot.claim(&stays)).await.unwrap();
        assert!(seen.iter().all(|seen| *seen == HotSeen::Claimed));
    }
    assert!(dropped > 0, "all were answered: this proves nothing");
    assert_eq!(node.hot.breaker_state(), BreakerState::Closed);
}

#[tokio::test]
async fn a_redis_that_takes_no_writes_rests_and_is_never_a_verdict() {
    let redis = Redis::start().await;
    let node = Node::on(&redis.url()).await;
    node.hot.done(vec![end(&key("a"), &made("kept"))]).await.unwrap();
    let set = async |name: &str, value: &str| {
        assert_eq!(redis.command(&["CONFIG", "SET", name, value]).await.text(), "OK");
    };
    set("maxmemory", "1").await; // OOM
    node.breaker_becomes(BreakerState::Open).await;
    set("maxmemory", "0").await;
    node.breaker_becomes(BreakerState::Closed).await;
    redis.command(&["REPLICAOF", "127.0.0.1", "1"]).await; // READONLY
    node.breaker_becomes(BreakerState::Open).await;
    redis.command(&["REPLICAOF", "NO", "ONE"]).await;
    node.breaker_becomes(BreakerState::Closed).await;
    assert_eq!(node.claims(&key("new"), 1).await, HotSeen::Claimed);
}

#[tokio::test]
async fn a_wrong_url_is_told_at_the_start_without_its_password() {
    let wrong = [
        "localhost:6379",
        "http://u:hush@localhost",
        "redis://",
        "redis://u:hush@localhost:99999",
        "redis-sentinel://u:hush@localhost",
        "redis://localhost?ca=/etc/x.pem",
        "rediss://localhost?ca=/nonexistent/ca.pem",
    ];
    for url in wrong {
        let failed: HotOpenError =
            Hot::open(&redis_config(url), &TaskTracker::new()).await.expect_err("it cannot be opened");
        let told = format!("{failed} {failed:?}");
        assert!(!told.contains("hush"), "{told}");
        println!("{url} {failed}");
    }
}

#[tokio::test]
async fn memory_stays_within_its_bytes_and_falls_back() {
    let node = Node::open(&HotConfig::Memory { bytes_max: 1 << 20 }).await;
    let short = Duration::from_millis(500);
    for id in 0..20_000 {
        node.hot.claim(&[HotAsk { mark_ttl: short, ..ask(&key(&id.to_string()), 1) }]).await.unwrap();
    }
    let bounded = async {
        while node.hot.bytes() > 1 << 20 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within("it is bounded", bounded).await;
    let emptied = async {
        while node.hot.bytes() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within("it falls back when idle", emptied).await;
    node.end().await;
}
