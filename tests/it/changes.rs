//! What a person decides of an event while the app is busy with it: from then on its old owner has no say, on no node.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use umavez::clock::{Clock, UnixMillis, monotonic};
use umavez::config::{self, Limits};
use umavez::ledger::durable::{Durable, Override};
use umavez::ledger::hot::{Hot, Told};
use umavez::ledger::{
    Ask, Claim, Conditions, EventKey, Fingerprint, Ledger, OnUnknown, Receipt, Settlement, Terms, Verdict,
    Waited, Waiter, WithoutDurable,
};
use umavez::metrics;

use crate::support::{
    Answer, Gate, Gateway, ORDERS, Pair, Reply, Stores, Upstream, on_every_store, on_stores, order, within,
};

on_every_store! {
    a_copy_after_a_change_is_forwarded_though_the_first_is_under_way,
    copies_after_a_release_share_the_next_forward,
    what_a_person_calls_done_is_done_though_the_first_is_under_way,
}

on_stores! {
    a_change_through_one_node_holds_where_the_first_is_under_way:
    memory_postgres MemoryPostgres, redis_postgres RedisPostgres
}

on_stores! {
    who_waits_on_another_node_hears_of_a_change:
    memory_postgres MemoryPostgres, redis_postgres RedisPostgres
}

/// No wait of a copy ends by itself.
fn patient() -> String {
    format!("{ORDERS}in_flight_wait = \"50s\"\n")
}

/// An app that answers its first request `late` with this status once the gate opens, and each further one `new` at once.
async fn late_then_new(status: u16, gate: &Gate) -> Upstream {
    let gate = gate.clone();
    let late = move |_: &_, nth| match nth {
        1 => Reply::new(status, "late").behind(&gate),
        _ => Reply::new(200, "new"),
    };
    Upstream::deciding(late).await
}

async fn change(gateway: &Gateway, to: &str, id: &str) {
    let changed = gateway.ask_admin("POST", &format!("/events/{to}?key=orders:{id}")).await;
    assert_eq!(changed.status, 200, "{}", changed.text());
}

/// After a person had released or forgotten an event that the app was busy with, copies at the same node queued behind its
/// old owner: they got the released owner's answer as a `duplicate` of what the ledger called released, or 503.
async fn a_copy_after_a_change_is_forwarded_though_the_first_is_under_way(pair: Pair) {
    let stores = Stores::open(pair).await;
    for (to, status) in [("release", 200), ("release", 500), ("forget", 200), ("forget", 500)] {
        let gate = Gate::closed();
        let upstream = late_then_new(status, &gate).await;
        let gateway = Gateway::in_front_of(&upstream).on(&stores).route(&patient()).start().await;
        let id = format!("{to}-{status}");
        let first = gateway.sending(&order(&id));
        upstream.until_received(1).await;
        change(&gateway, to, &id).await;
        let copy = within("the copy's answer", gateway.send(&order(&id))).await;
        assert_eq!((copy.text().as_str(), copy.verdict().as_str()), ("new", "first"), "{id}");
        gate.open();
        let first = first.await.unwrap();
        assert_eq!((first.status, first.text().as_str()), (status, "late"));
        for _ in 0..2 {
            let copy = gateway.send(&order(&id)).await;
            assert_eq!((copy.text().as_str(), copy.verdict().as_str()), ("new", "duplicate"), "{id}");
        }
        assert_eq!(upstream.received(), 2);
    }
}

/// A copy after a release must not let each further one through: of two side by side one is forwarded, and its end is the
/// other's, whatever becomes of the old owner meanwhile.
async fn copies_after_a_release_share_the_next_forward(pair: Pair) {
    let stores = Stores::open(pair).await;
    let gates = [Gate::closed(), Gate::closed()];
    let held = gates.clone();
    let replies = [Reply::new(500, "late"), Reply::new(200, "new")];
    let upstream = Upstream::deciding(move |_, nth| replies[nth - 1].clone().behind(&held[nth - 1])).await;
    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(&patient()).start().await;
    let first = gateway.sending(&order("a"));
    upstream.until_received(1).await;
    change(&gateway, "release", "a").await;
    let copies = [gateway.sending(&order("a")), gateway.sending(&order("a")), gateway.sending(&order("a"))];
    upstream.until_received(2).await;
    gates[0].open();
    assert_eq!(first.await.unwrap().status, 500);
    gates[1].open();
    let mut verdicts = Vec::new();
    for copy in copies {
        let copy = within("a copy's answer", copy).await.unwrap();
        assert_eq!((copy.status, copy.text().as_str()), (200, "new"));
        verdicts.push(copy.verdict());
    }
    verdicts.sort_unstable();
    assert_eq!(verdicts, ["duplicate", "duplicate", "first"]);
    assert_eq!(upstream.received(), 2);
}

/// Copies of an event that a person had called done while the app was busy with it waited for the app all the same, and
/// got 503 when it failed.
async fn what_a_person_calls_done_is_done_though_the_first_is_under_way(pair: Pair) {
    let stores = Stores::open(pair).await;
    let gate = Gate::closed();
    let upstream = late_then_new(500, &gate).await;
    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(&patient()).start().await;
    let first = gateway.sending(&order("a"));
    upstream.until_received(1).await;
    let waiting = gateway.sending(&order("a"));
    change(&gateway, "mark-done", "a").await;
    let later = gateway.sending(&order("a"));
    for copy in [waiting, later] {
        let copy = within("a copy's answer", copy).await.unwrap();
        assert_eq!((copy.status, copy.verdict().as_str()), (200, "duplicate"));
    }
    gate.open();
    assert_eq!(first.await.unwrap().status, 500);
    assert_eq!(gateway.send(&order("a")).await.verdict(), "duplicate");
    assert_eq!(upstream.received(), 1);
}

/// Two nodes, the first of which is busy with the event `a` until the gate opens.
struct Busy {
    one: Gateway,
    two: Gateway,
    first: JoinHandle<Answer>,
    gate: Gate,
    upstream: Upstream,
}

async fn busy(stores: &Stores) -> Busy {
    let gate = Gate::closed();
    let upstream = late_then_new(200, &gate).await;
    let one = Gateway::in_front_of(&upstream).on(stores).route(&patient()).start().await;
    let two = Gateway::in_front_of(&upstream).on(stores).route(&patient()).start().await;
    let first = one.sending(&order("a"));
    upstream.until_received(1).await;
    Busy { one, two, first, gate, upstream }
}

/// A copy at the node of the old owner was answered with its `late` body, though the event had been released through
/// another node, forwarded there and done with another answer.
async fn a_change_through_one_node_holds_where_the_first_is_under_way(pair: Pair) {
    let stores = Stores::open(pair).await;
    let Busy { one, two, first, gate, upstream } = busy(&stores).await;
    change(&two, "release", "a").await;
    let copy = within("the copy's answer", two.send(&order("a"))).await;
    assert_eq!((copy.text().as_str(), copy.verdict().as_str()), ("new", "first"));
    let mut copy = one.sending(&order("a"));
    if stores.has_redis() {
        // Told of the change, it waits for the old owner no more.
        let copy = within("the copy's answer", &mut copy).await.unwrap();
        assert_eq!((copy.text().as_str(), copy.verdict().as_str()), ("new", "duplicate"));
    }
    gate.open();
    assert_eq!(first.await.unwrap().text(), "late");
    if !stores.has_redis() {
        // Nodes that share a database only learn of it when the old owner ends.
        let copy = within("the copy's answer", copy).await.unwrap();
        assert_eq!((copy.text().as_str(), copy.verdict().as_str()), ("new", "duplicate"));
    }
    assert_eq!(one.send(&order("a")).await.text(), "new");
    assert_eq!(upstream.received(), 2);
}

/// A copy that waits on another node than the one that forwards: a release ends its wait, and the next copy there is
/// forwarded.
async fn who_waits_on_another_node_hears_of_a_change(pair: Pair) {
    let stores = Stores::open(pair).await;
    let Busy { one: _one, two, first, gate, upstream } = busy(&stores).await;
    let waiting = two.sending(&order("a"));
    two.until_metric("umavez_in_flight", &[], 1.0).await;
    change(&two, "release", "a").await;
    let next = within("the next copy's answer", two.send(&order("a"))).await;
    assert_eq!((next.text().as_str(), next.verdict().as_str()), ("new", "first"));
    // It looked before the next copy claimed the event, or waited for that one.
    let waiting = within("the waiting copy's answer", waiting).await.unwrap();
    let told = (waiting.status, waiting.verdict());
    assert!([(503, "in_flight".to_owned()), (200, "duplicate".to_owned())].contains(&told), "{told:?}");
    gate.open();
    assert_eq!(first.await.unwrap().text(), "late");
    assert_eq!(upstream.received(), 2);
}

/// Two nodes' ledgers over one SQLite file, which tell each other nothing.
struct Nodes {
    ledgers: [Ledger; 2],
    tracker: TaskTracker,
    stop: CancellationToken,
    _folder: tempfile::TempDir,
}

impl Nodes {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        let file = config::Durable::Sqlite {
            path: folder.path().join("umavez.db"),
            timeout: Duration::from_secs(5),
        };
        let durable = Durable::open(&file, &Limits::default(), &tracker).await.unwrap();
        let mut ledgers = Vec::new();
        for _ in 0..2 {
            let memory = config::Hot::Memory { bytes_max: 1 << 20 };
            let (hot, _): (Hot, mpsc::Receiver<Told>) = Hot::open(&memory, &tracker).await.unwrap();
            let (_nothing, none) = mpsc::channel(1);
            let metrics = metrics::Stores::new();
            let system = Clock::System;
            ledgers.push(Ledger::new((hot, none), durable.clone(), system, metrics, (&tracker, &stop)));
        }
        Self { ledgers: ledgers.try_into().unwrap(), tracker, stop, _folder: folder }
    }

    async fn end(self) {
        self.stop.cancel();
        for ledger in &self.ledgers {
            ledger.flushed().await;
            ledger.durable().close().await;
            ledger.hot().close();
        }
        self.tracker.close();
    }
}

fn ask() -> Ask {
    Ask { key: EventKey::from_text("orders:a"), fingerprint: Fingerprint(1) }
}

async fn claim(ledger: &Ledger) -> Verdict {
    let window = Duration::from_secs(600);
    let conditions = Conditions {
        route: Arc::from("orders"),
        terms: Terms {
            lease: Duration::from_secs(120),
            hot_ttl: window,
            durable_ttl: window,
            on_unknown: OnUnknown::Retry,
        },
        without_durable: WithoutDurable::Refuse,
        payload: None,
        claimed: None,
    };
    ledger.claim(vec![ask()], &conditions).await.pop().unwrap()
}

async fn first(ledger: &Ledger) -> Claim {
    let verdict = claim(ledger).await;
    let Verdict::First(claim) = verdict else { panic!("{verdict:?}") };
    claim
}

async fn behind(ledger: &Ledger) -> Waiter {
    let verdict = claim(ledger).await;
    let Verdict::InFlight(waiter) = verdict else { panic!("{verdict:?}") };
    waiter
}

/// `late`, `new`, or that it isn't done.
async fn ended(ledger: &Ledger, waiter: Waiter) -> String {
    let deadline = monotonic() + Duration::from_secs(300);
    let waited = within("the wait's end", ledger.wait(vec![waiter], deadline)).await.pop().unwrap();
    match waited {
        Waited::Done { receipt, .. } => String::from_utf8(receipt.body.clone().unwrap().to_vec()).unwrap(),
        Waited::NotDone => "not done".to_owned(),
        Waited::Held { .. } => panic!("nothing is held"),
    }
}

async fn released(ledger: &Ledger) {
    let record = ledger.durable().look(ask().key.digest()).await.unwrap().unwrap();
    ledger.change(&record, Override::Release, "a story").await.unwrap();
}

fn done(body: &'static str) -> Settlement {
    let body = Some(bytes::Bytes::from_static(body.as_bytes()));
    Settlement::Commit(Arc::new(Receipt { status: 200, headers: Vec::new(), body, at: UnixMillis(1) }))
}

/// Whoever queued behind an owner whose claim a person had ended was told the owner's result, which the ledger doesn't have.
#[tokio::test]
async fn a_lost_claim_has_no_say_where_the_change_was_not_told() {
    let nodes = Nodes::start().await;
    let [one, two] = &nodes.ledgers;
    let late = first(one).await;
    let waiter = behind(one).await;
    released(two).await;
    let later = behind(one).await;
    let wait = async { tokio::join!(ended(one, waiter), ended(one, later)) };
    let (told, landed) = tokio::join!(wait, one.settle(vec![late], done("late")));
    assert_eq!(landed.lease_lost, 1);
    assert_eq!(told, ("not done".to_owned(), "not done".to_owned()));
    // The same with another owner in between, who has done it.
    let late = first(one).await;
    let waiter = behind(one).await;
    released(two).await;
    let new = first(two).await;
    assert_eq!(two.settle(vec![new], done("new")).await.recorded, 1);
    assert_eq!(one.settle(vec![late], Settlement::Release).await.lease_lost, 1);
    assert_eq!(ended(one, waiter).await, "new");
    assert!(matches!(claim(one).await, Verdict::Duplicate { .. }));
    nodes.end().await;
}

/// The end of an owner whose claim a person had ended was told to who waited for the next owner at the same node.
#[tokio::test]
async fn an_old_owners_end_is_not_its_successors() {
    let nodes = Nodes::start().await;
    let [one, _] = &nodes.ledgers;
    let late = first(one).await;
    let early = behind(one).await;
    released(one).await;
    let new = first(one).await;
    let waiter = behind(one).await;
    assert_eq!(one.in_flight(), 1);
    assert_eq!(one.settle(vec![late], done("late")).await.lease_lost, 1);
    assert_eq!(one.in_flight(), 1, "the successor's seat is gone");
    let another = behind(one).await;
    let settled = async {
        let copies = one.wait(vec![waiter], monotonic()).await;
        assert!(matches!(copies[..], [Waited::NotDone]), "{copies:?}");
        one.settle(vec![new], done("new")).await
    };
    let waiting = async { tokio::join!(ended(one, another), ended(one, early)) };
    let (landed, told) = tokio::join!(settled, waiting);
    assert_eq!(landed.recorded, 1);
    // One that waited before the release looks at the stores, and then waits for the next owner.
    assert_eq!(told, ("new".to_owned(), "new".to_owned()));
    assert_eq!(one.in_flight(), 0);
    nodes.end().await;
}

/// A release ends the wait of who waits then, at once, as no owner is left to wait for.
#[tokio::test]
async fn who_waits_when_an_event_is_released_is_told() {
    let nodes = Nodes::start().await;
    let [one, two] = &nodes.ledgers;
    let late = first(one).await;
    let (here, there) = (behind(one).await, behind(two).await);
    let copies = async { tokio::join!(ended(one, here), ended(two, there)) };
    let (told, ()) = tokio::join!(copies, released(one));
    assert_eq!(told, ("not done".to_owned(), "not done".to_owned()));
    let new = first(two).await;
    assert_eq!(one.settle(vec![late], Settlement::Release).await.lease_lost, 1);
    assert_eq!(two.settle(vec![new], done("new")).await.recorded, 1);
    assert!(matches!(claim(one).await, Verdict::Duplicate { .. }));
    nodes.end().await;
}
