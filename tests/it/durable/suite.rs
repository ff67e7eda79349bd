//! What holds on every durable store.

use crate::support::eventually;

use super::*;
use umavez::ledger::durable::{HotOnly, Override, State};

macro_rules! on_both {
    ($($story:ident),* $(,)?) => {
        mod on_postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $story() { super::$story(super::postgres()).await; })*
        }
        mod on_postgres_alone {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $story() { super::$story(super::alone_on_postgres()).await; })*
        }
        mod on_sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $story() { super::$story(super::sqlite()).await; })*
        }
    };
}

on_both![
    of_fifty_parallel_copies_one_is_claimed,
    a_done_event_gives_its_receipt_and_age,
    a_released_event_is_claimed_again_as_attempt_two_in_its_first_window,
    a_lapsed_claim_is_taken_over_and_its_late_owner_is_refused,
    a_lapsed_claim_that_holds_is_parked_with_its_payload,
    a_parked_event_is_found_though_no_copy_comes,
    whoever_held_a_claim_settles_it_though_its_lapse_has_parked_it,
    a_late_owner_settles_while_nobody_took_over,
    settling_or_claiming_twice_under_one_fence_changes_nothing,
    an_expired_event_is_new_without_any_sweep,
    a_claim_in_flight_outlives_its_window,
    the_sweeper_deletes_what_expired_and_nothing_else,
    a_payload_stays_until_the_last_event_of_its_request_has_gone,
    people_change_events_and_each_change_is_recorded,
    a_window_that_a_person_begins_is_as_long_as_the_first_one,
    odd_and_long_keys_are_kept_apart,
    an_event_twice_in_one_request_is_claimed_once,
    overlapping_requests_in_opposite_order_do_not_wait_for_each_other,
    what_the_hot_store_decided_alone_is_caught_up_with,
    a_persons_change_outlasts_the_catch_up,
    a_conflict_is_noted,
    a_peek_says_what_a_claim_would,
    a_full_queue_refuses_at_once,
    closing_writes_what_waits,
    what_is_committed_is_there_after_reopening,
    fifty_workers_with_repeats_meet_no_error,
];

async fn of_fifty_parallel_copies_one_is_claimed(database: Database) {
    let store = database.open().await;
    for event in 0..20 {
        let copies = (0..50).map(|_| {
            let store = store.clone();
            tokio::spawn(async move { claim(&store, &ask(&format!("event:{event}"))).await })
        });
        let mut claimed = 0;
        for copy in copies.collect::<Vec<_>>() {
            match copy.await.unwrap() {
                Seen::Claimed { attempt, .. } => {
                    assert_eq!(attempt, 1);
                    claimed += 1;
                }
                Seen::Processing { lease_left } => assert!(lease_left <= MINUTE),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(claimed, 1);
    }
}

async fn a_done_event_gives_its_receipt_and_age(database: Database) {
    let store = database.open().await;
    let first = ask("shop:1");
    assert_eq!(attempt(&claim(&store, &first).await), 1);
    assert_eq!(settle(&store, &first, End::Commit(receipt("made"))).await, Settled::Recorded);
    let copy = ClaimAsk { fingerprint: Fingerprint(7), ..ask("shop:1") };
    let Seen::Done { receipt: kept, age, fingerprint } = claim(&store, &copy).await else { panic!() };
    assert_eq!(kept, *receipt("made"));
    assert_eq!(fingerprint, first.fingerprint);
    assert!(age < MINUTE);
}

async fn a_released_event_is_claimed_again_as_attempt_two_in_its_first_window(database: Database) {
    let store = database.open().await;
    let first = ask("shop:1");
    claim(&store, &first).await;
    let before = store.look(first.key.digest()).await.unwrap().unwrap();
    assert_eq!(settle(&store, &first, End::Release).await, Settled::Recorded);
    assert_eq!(store.look(first.key.digest()).await.unwrap().unwrap().state, State::Released);
    tokio::time::sleep(Duration::from_millis(5)).await;
    let second = ask("shop:1");
    assert_eq!(attempt(&claim(&store, &second).await), 2);
    let after = store.look(first.key.digest()).await.unwrap().unwrap();
    assert_eq!((after.first_claimed, after.expires), (before.first_claimed, before.expires));
    assert_eq!(settle(&store, &first, End::Commit(receipt("late"))).await, Settled::LeaseLost);
}

async fn a_lapsed_claim_is_taken_over_and_its_late_owner_is_refused(database: Database) {
    let store = database.open().await;
    let first = ask_for("shop:1", Duration::from_millis(80), MINUTE);
    claim(&store, &first).await;
    let (second, seen) = claim_after_lapse(&store, &ask("shop:1")).await;
    assert_eq!(attempt(&seen), 2);
    assert_eq!(settle(&store, &first, End::Commit(receipt("late"))).await, Settled::LeaseLost);
    assert_eq!(settle(&store, &first, End::Release).await, Settled::LeaseLost);
    assert_eq!(settle(&store, &second, End::Commit(receipt("own"))).await, Settled::Recorded);
    let Seen::Done { receipt: kept, .. } = claim(&store, &ask("shop:1")).await else { panic!() };
    assert_eq!(kept, *receipt("own"));
}

async fn a_lapsed_claim_that_holds_is_parked_with_its_payload(database: Database) {
    let store = database.open().await;
    let first = hold("pix:1", Duration::from_millis(80));
    claim(&store, &first).await;
    // What is parked is the first one's, whatever the copy that finds it carries.
    let copy = ClaimAsk { fingerprint: Fingerprint(99), ..hold("pix:1", MINUTE) };
    let (_, seen) = claim_after_lapse(&store, &copy).await;
    assert_eq!(seen, Seen::Held { fingerprint: first.fingerprint });
    let stranger = hold("pix:1", MINUTE);
    assert_eq!(settle(&store, &stranger, End::Commit(receipt("late"))).await, Settled::LeaseLost);
    let held = store.held(10).await.unwrap();
    assert_eq!(held.len(), 1);
    let payload = store.payload(held[0].payload.unwrap()).await.unwrap().unwrap();
    assert_eq!(payload, **first.payload.as_ref().unwrap());
}

async fn a_parked_event_is_found_though_no_copy_comes(database: Database) {
    let store = database.open().await;
    claim(&store, &hold("pix:1", Duration::from_millis(50))).await;
    claim(&store, &hold("pix:2", MINUTE)).await;
    while store.sweep(100).await.unwrap().held == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(store.held(10).await.unwrap()[0].key, "pix:1");
    assert!(matches!(claim(&store, &hold("pix:1", MINUTE)).await, Seen::Held { .. }));
}

async fn whoever_held_a_claim_settles_it_though_its_lapse_has_parked_it(database: Database) {
    // A store that was away for longer than a lease parked the claim when it came back, and then refused the settlement
    // that had waited for it: events that their app had answered were held.
    let store = database.open().await;
    let done = hold("pix:1", Duration::from_millis(50));
    let released = hold("pix:2", Duration::from_millis(50));
    claim(&store, &done).await;
    claim(&store, &released).await;
    eventually("both are parked", async || {
        store.sweep(100).await.unwrap();
        store.held(10).await.unwrap().len() == 2
    })
    .await;
    assert_eq!(
        settle(&store, &hold("pix:1", MINUTE), End::Commit(receipt("other"))).await,
        Settled::LeaseLost
    );
    assert_eq!(settle(&store, &done, End::Commit(receipt("made"))).await, Settled::Recorded);
    assert_eq!(settle(&store, &released, End::Release).await, Settled::Recorded);
    assert!(store.held(10).await.unwrap().is_empty());
    assert!(matches!(claim(&store, &hold("pix:1", MINUTE)).await, Seen::Done { .. }));
    assert_eq!(attempt(&claim(&store, &hold("pix:2", MINUTE)).await), 2);
    assert!(store.payload(done.payload.unwrap().id).await.unwrap().is_none());
}

async fn a_late_owner_settles_while_nobody_took_over(database: Database) {
    let store = database.open().await;
    let first = ask_for("shop:1", Duration::from_millis(1), MINUTE);
    claim(&store, &first).await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(settle(&store, &first, End::Commit(receipt("late"))).await, Settled::Recorded);
}

async fn settling_or_claiming_twice_under_one_fence_changes_nothing(database: Database) {
    let store = database.open().await;
    let first = ask("shop:1");
    assert_eq!(attempt(&claim(&store, &first).await), 1);
    assert_eq!(attempt(&claim(&store, &first).await), 1);
    for how in [End::Commit(receipt("made")), End::Commit(receipt("made"))] {
        assert_eq!(settle(&store, &first, how).await, Settled::Recorded);
    }
    assert_eq!(settle(&store, &first, End::Release).await, Settled::LeaseLost);
    let never = ask("shop:2");
    assert_eq!(settle(&store, &never, End::Release).await, Settled::LeaseLost);
}

async fn an_expired_event_is_new_without_any_sweep(database: Database) {
    let store = database.open().await;
    let first = ask_for("shop:1", MINUTE, Duration::from_millis(150));
    claim(&store, &first).await;
    settle(&store, &first, End::Commit(receipt("made"))).await;
    let released = ask_for("shop:2", MINUTE, Duration::from_millis(1));
    claim(&store, &released).await;
    settle(&store, &released, End::Release).await;
    let seen = loop {
        match claim(&store, &ask("shop:1")).await {
            Seen::Done { .. } => tokio::time::sleep(Duration::from_millis(10)).await,
            other => break other,
        }
    };
    assert_eq!(attempt(&seen), 1);
    let Seen::Claimed { attempt: 1, age } = claim(&store, &ask("shop:2")).await else { panic!() };
    assert_eq!(age, Duration::ZERO);
}

async fn a_claim_in_flight_outlives_its_window(database: Database) {
    let store = database.open().await;
    let first = ask_for("shop:1", MINUTE, Duration::from_millis(1));
    claim(&store, &first).await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert!(matches!(claim(&store, &ask("shop:1")).await, Seen::Processing { .. }));
    assert_eq!(store.sweep(10).await.unwrap().deleted, 0);
    assert_eq!(settle(&store, &first, End::Commit(receipt("made"))).await, Settled::Recorded);
}

async fn the_sweeper_deletes_what_expired_and_nothing_else(database: Database) {
    let store = database.open().await;
    let short = Duration::from_millis(1);
    let done: Vec<_> = (0..30).map(|n| ask_for(&format!("done:{n}"), MINUTE, short)).collect();
    store.claim(done.clone()).await.unwrap();
    store.settle(done.iter().map(|ask| end(ask, End::Commit(receipt("")))).collect()).await.unwrap();
    let held = ClaimAsk { durable_ttl: short, ..hold("held:1", MINUTE) };
    claim(&store, &held).await;
    settle(&store, &held, End::Hold).await;
    claim(&store, &ask_for("running:1", MINUTE, short)).await;
    claim(&store, &ask("young:1")).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    let first = store.sweep(20).await.unwrap();
    assert_eq!(first.deleted, 20);
    assert!(first.lag > Duration::ZERO);
    let second = store.sweep(20).await.unwrap();
    assert_eq!((second.deleted, second.lag), (10, Duration::ZERO));
    assert_eq!(store.sweep(20).await.unwrap().deleted, 0);
    for kept in ["held:1", "running:1", "young:1"] {
        assert!(store.look(EventKey::from_text(kept).digest()).await.unwrap().is_some(), "{kept}");
    }
    assert!(matches!(claim(&store, &hold("held:1", MINUTE)).await, Seen::Held { .. }));
}

async fn a_payload_stays_until_the_last_event_of_its_request_has_gone(database: Database) {
    let store = database.open().await;
    let one = hold("pix:1", MINUTE);
    let two = ClaimAsk { payload: one.payload.clone(), ..hold("pix:2", MINUTE) };
    let id = one.payload.as_ref().unwrap().id;
    store.claim(vec![one.clone(), two.clone()]).await.unwrap();
    settle(&store, &one, End::Commit(receipt(""))).await;
    assert!(store.payload(id).await.unwrap().is_some());
    settle(&store, &two, End::Hold).await;
    assert!(store.payload(id).await.unwrap().is_some());
    store.change(two.key.digest(), Override::Release, "ana").await.unwrap();
    assert!(store.payload(id).await.unwrap().is_none());
    // A duplicate's payload is never stored.
    let copy = hold("pix:1", MINUTE);
    claim(&store, &copy).await;
    assert!(store.payload(copy.payload.as_ref().unwrap().id).await.unwrap().is_none());
}

async fn people_change_events_and_each_change_is_recorded(database: Database) {
    let store = database.open().await;
    let held = hold("pix:1", MINUTE);
    let digest = held.key.digest();
    claim(&store, &held).await;
    settle(&store, &held, End::Hold).await;
    let mut expected = Vec::new();
    for (change, before, after) in [
        (Override::MarkDone, State::Held, Some(State::Done)),
        (Override::Release, State::Done, Some(State::Done)),
        (Override::AllowOnce, State::Done, Some(State::Released)),
        (Override::Forget, State::Released, None),
    ] {
        assert_eq!(store.change(digest, change, "ana").await.unwrap(), Some((before, after)));
        expected.push((change.label().to_owned(), "pix:1".to_owned(), Some(before), after));
    }
    assert_eq!(store.change(digest, Override::Forget, "ana").await.unwrap(), None);
    expected.push(("forget".to_owned(), digest.to_string(), None, None));
    let mut recorded: Vec<_> = store.actions(10).await.unwrap();
    assert!(recorded.iter().all(|action| action.actor == "ana" && action.at.0 > 1_600_000_000_000));
    recorded.reverse();
    let recorded: Vec<_> = recorded.into_iter().map(|a| (a.action, a.key, a.before, a.after)).collect();
    assert_eq!(recorded, expected);
    // Whoever holds a claim that a person took away can no longer settle it.
    let first = ask("shop:1");
    claim(&store, &first).await;
    store.change(first.key.digest(), Override::Release, "ana").await.unwrap();
    assert_eq!(settle(&store, &first, End::Commit(receipt(""))).await, Settled::LeaseLost);
    assert_eq!(attempt(&claim(&store, &ask("shop:1")).await), 2);
}

/// Each replay, and each time that a person said done, made a window longer by the time since the event's first claim:
/// one held for a month and replayed now and then was remembered for a year.
async fn a_window_that_a_person_begins_is_as_long_as_the_first_one(database: Database) {
    let store = database.open().await;
    let held = hold("pix:1", MINUTE);
    let digest = held.key.digest();
    let Seen::Claimed { .. } = claim(&store, &held).await else { panic!() };
    settle(&store, &held, End::Hold).await;
    let mut before = store.look(digest).await.unwrap().unwrap();
    let window = before.expires.0 - before.first_claimed.0;
    let mut settling = held;
    for round in 0..3 {
        // The clock goes on meanwhile.
        tokio::time::sleep(Duration::from_millis(5)).await;
        settling.fence = Fence::draw();
        let replay = Override::Replay { fence: settling.fence, lease: MINUTE };
        store.change(digest, replay, "ana").await.unwrap();
        let replayed = store.look(digest).await.unwrap().unwrap();
        assert!(replayed.first_claimed > before.first_claimed, "{round}");
        assert_eq!(replayed.expires.0 - replayed.first_claimed.0, window, "{round}");
        assert_eq!(settle(&store, &settling, End::Hold).await, Settled::Recorded);
        before = replayed;
    }
    for round in 0..3 {
        tokio::time::sleep(Duration::from_millis(5)).await;
        store.change(digest, Override::MarkDone, "ana").await.unwrap();
        let done = store.look(digest).await.unwrap().unwrap();
        assert!(done.first_claimed > before.first_claimed, "{round}");
        assert_eq!(done.expires.0 - done.first_claimed.0, window, "{round}");
        // To let it through again is no new window.
        store.change(digest, Override::AllowOnce, "ana").await.unwrap();
        let allowed = store.look(digest).await.unwrap().unwrap();
        assert_eq!((allowed.first_claimed, allowed.expires), (done.first_claimed, done.expires));
        before = done;
    }
}

async fn odd_and_long_keys_are_kept_apart(database: Database) {
    let store = database.open().await;
    let long = "x".repeat(6000);
    let huge = "ü".repeat(10_000);
    let parts: Vec<Vec<&[u8]>> = vec![
        vec![long.as_bytes()],
        vec![huge.as_bytes()],
        vec![b"a:b", b"c"],
        vec![b"a", b"b:c"],
        vec![b"a\0b"],
        vec![b"a\\x00b"],
        vec![b"\xff\xfe"],
        vec![b"'; drop table umavez_event; --"],
        vec![b"\"],[\"}{"],
        vec!["\u{1f600}\u{202e}".as_bytes()],
        vec![b"A"],
        vec![b"a"],
        vec![b"a "],
    ];
    let asks: Vec<_> =
        parts.iter().map(|parts| ClaimAsk { key: EventKey::new("odd", parts), ..ask("") }).collect();
    for seen in store.claim(asks.clone()).await.unwrap() {
        assert_eq!(attempt(&seen), 1);
    }
    for ask in &asks {
        let record = store.look(ask.key.digest()).await.unwrap().unwrap();
        assert_eq!(record.event_key().digest(), ask.key.digest());
        // The text of 20 MB that one sender can make an id of was stored whole, for every list of events.
        let text = ask.key.text();
        if text.len() <= 1024 {
            assert_eq!(record.key, text);
        } else {
            let (kept, cut) = record.key.rsplit_once('…').unwrap();
            assert!(text.starts_with(kept) && (1020..=1024).contains(&kept.len()), "{kept}");
            assert_eq!(cut, format!(" (cut: {} bytes)", text.len()));
        }
    }
}

async fn an_event_twice_in_one_request_is_claimed_once(database: Database) {
    let store = database.open().await;
    let asks = vec![ask("shop:1"), ask("shop:2"), ask("shop:1")];
    let seen = store.claim(asks).await.unwrap();
    assert!(matches!(seen.as_slice(), [Seen::Claimed { .. }, Seen::Claimed { .. }, Seen::Processing { .. }]));
}

async fn overlapping_requests_in_opposite_order_do_not_wait_for_each_other(database: Database) {
    let nodes = match &database {
        Database::Postgres(_) | Database::Alone(_) => vec![database.open().await, database.open().await],
        // One process to a file: its two "nodes" are two clones.
        Database::Sqlite(_) => {
            let store = database.open().await;
            vec![store.clone(), store]
        }
    };
    for round in 0..100 {
        let keys: Vec<_> = (0..20).map(|n| format!("event:{round}:{n}")).collect();
        let requests = nodes.iter().enumerate().map(|(node, store)| {
            let mut asks: Vec<_> = keys.iter().map(|key| ask(key)).collect();
            if node == 1 {
                asks.reverse();
            }
            let store = store.clone();
            tokio::spawn(async move { store.claim(asks).await.unwrap() })
        });
        let mut claimed = 0;
        for request in requests.collect::<Vec<_>>() {
            claimed +=
                request.await.unwrap().iter().filter(|seen| matches!(seen, Seen::Claimed { .. })).count();
        }
        assert_eq!(claimed, 20);
    }
}

/// An event that the hot store alone has decided, first claimed half a minute ago.
fn alone(text: &str, receipt: Option<Arc<Receipt>>) -> HotOnly {
    let ask = ask(text);
    HotOnly {
        key: ask.key,
        route: ask.route,
        fence: ask.fence,
        lease: ask.lease,
        durable_ttl: ask.durable_ttl,
        on_unknown: ask.on_unknown,
        fingerprint: ask.fingerprint,
        age: Duration::from_secs(30),
        receipt,
    }
}

async fn what_the_hot_store_decided_alone_is_caught_up_with(database: Database) {
    let store = database.open().await;
    let event = alone;
    let known = ask("known:1");
    claim(&store, &known).await;
    let done = ask("known:2");
    claim(&store, &done).await;
    settle(&store, &done, End::Commit(receipt("durable"))).await;
    let events = vec![
        event("new:1", Some(receipt("hot"))),
        event("new:2", None),
        event("known:1", Some(receipt("hot"))),
        event("known:2", Some(receipt("hot"))),
    ];
    store.record_hot_only(events).await.unwrap();
    for (text, body) in [("new:1", "hot"), ("known:1", "hot"), ("known:2", "durable")] {
        let Seen::Done { receipt: kept, age, .. } = claim(&store, &ask(text)).await else { panic!("{text}") };
        assert_eq!(kept, *receipt(body), "{text}");
        assert!(text != "new:1" || age >= Duration::from_secs(30));
    }
    assert!(matches!(claim(&store, &ask("new:2")).await, Seen::Processing { .. }));
}

/// What a person had changed since the claim became done again; what one had changed before is brought forward to done.
async fn a_persons_change_outlasts_the_catch_up(database: Database) {
    let store = database.open().await;
    for (text, change) in [("shop:1", Override::AllowOnce), ("shop:2", Override::Forget)] {
        let first = ask(text);
        claim(&store, &first).await;
        settle(&store, &first, End::Commit(receipt("old"))).await;
        store.change(first.key.digest(), change, "ana").await.unwrap();
        // It changes nothing, and is recorded all the same.
        store.change(first.key.digest(), Override::AllowOnce, "ana").await.unwrap();
        let late = alone(text, Some(receipt("late")));
        store.record_hot_only(vec![late.clone()]).await.unwrap();
        let stands = store.peek(vec![first.key.digest()]).await.unwrap();
        assert_eq!(stands, [None], "{text}");
        // The clock goes on meanwhile.
        tokio::time::sleep(Duration::from_millis(5)).await;
        store.record_hot_only(vec![HotOnly { age: Duration::ZERO, ..late }]).await.unwrap();
        let Seen::Done { receipt: kept, .. } = claim(&store, &ask(text)).await else { panic!("{text}") };
        assert_eq!(kept, *receipt("late"), "{text}");
    }
    // What people refused themselves, or asked of what nobody knew, is no change.
    let unknown = alone("shop:3", Some(receipt("hot")));
    assert_eq!(store.change(unknown.key.digest(), Override::Forget, "ana").await.unwrap(), None);
    store.record_hot_only(vec![unknown]).await.unwrap();
    assert!(matches!(claim(&store, &ask("shop:3")).await, Seen::Done { .. }));
}

async fn a_conflict_is_noted(database: Database) {
    let store = database.open().await;
    let first = ask("shop:1");
    claim(&store, &first).await;
    store.note_conflict(first.key.digest(), Fingerprint(42));
    loop {
        let record = store.look(first.key.digest()).await.unwrap().unwrap();
        if record.conflicting == Some(Fingerprint(42)) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn a_peek_says_what_a_claim_would(database: Database) {
    let store = database.open().await;
    let (running, done, released) = (ask("a"), ask("b"), ask("c"));
    store.claim(vec![running.clone(), done.clone(), released.clone()]).await.unwrap();
    store.settle(vec![end(&done, End::Commit(receipt("made"))), end(&released, End::Release)]).await.unwrap();
    let digests = ["a", "b", "c", "d"].map(|text| EventKey::from_text(text).digest());
    let seen = store.peek(digests.to_vec()).await.unwrap();
    assert!(matches!(seen.as_slice(), [Some(Seen::Processing { .. }), Some(Seen::Done { .. }), None, None]));
}

async fn a_full_queue_refuses_at_once(database: Database) {
    let config = database.config();
    let store = Durable::open(&config, &limits(4), &TaskTracker::new()).await.unwrap();
    let writes = (0..400).map(|n| {
        let store = store.clone();
        tokio::spawn(async move { store.claim(vec![ask(&format!("event:{n}"))]).await })
    });
    let mut refused = 0;
    for write in writes.collect::<Vec<_>>() {
        match write.await.unwrap() {
            Ok(seen) => assert_eq!(attempt(&seen[0]), 1),
            Err(DurableError::Full) => refused += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(refused > 0);
    assert_eq!(attempt(&claim(&store, &ask("after")).await), 1);
}

async fn closing_writes_what_waits(database: Database) {
    // A caller that was half-way through its sending when the store was closed never heard of it.
    for round in 0..10 {
        closing_answers_everybody(&database, round).await;
    }
}

async fn closing_answers_everybody(database: &Database, round: usize) {
    let store = database.open().await;
    let asks: Vec<_> = (0..200).map(|n| ask(&format!("event:{round}:{n}"))).collect();
    store.claim(asks.clone()).await.unwrap();
    let settles: Vec<_> = asks
        .iter()
        .map(|ask| {
            let (store, settle) = (store.clone(), end(ask, End::Commit(receipt(""))));
            async move { store.settle(vec![settle]).await }
        })
        .collect();
    let all = tokio::spawn(futures_util::future::join_all(settles));
    while store.waiting() == 0 && !all.is_finished() {
        tokio::task::yield_now().await;
    }
    store.close().await;
    // Each was written, or refused: never neither.
    let all = tokio::time::timeout(MINUTE, all).await.expect("everybody hears how it ended");
    let written = all.unwrap().iter().filter(|settled| settled.is_ok()).count();
    assert!(written > 0);
    assert!(store.claim(vec![ask("late")]).await.is_err());
}

async fn what_is_committed_is_there_after_reopening(database: Database) {
    let store = database.open().await;
    let first = ask("shop:1");
    claim(&store, &first).await;
    settle(&store, &first, End::Commit(receipt("made"))).await;
    store.close().await;
    drop(store);
    let store = database.open().await;
    assert!(matches!(claim(&store, &ask("shop:1")).await, Seen::Done { .. }));
}

async fn fifty_workers_with_repeats_meet_no_error(database: Database) {
    let store = database.open().await;
    let effects = Arc::new(std::sync::Mutex::new(HashMap::new()));
    let workers = (0..50).map(|worker| {
        let (store, effects) = (store.clone(), Arc::clone(&effects));
        tokio::spawn(async move {
            for n in 0..40 {
                // A third of all is another worker's event.
                let owner = if n % 3 == 0 { (worker + 1) % 50 } else { worker };
                deliver(&store, &format!("event:{owner}:{n}"), &effects).await;
            }
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.await.unwrap();
    }
    let effects = effects.lock().unwrap();
    assert!(effects.values().all(|count| *count == 1));
}
