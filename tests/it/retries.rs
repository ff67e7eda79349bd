//! A provider sends an event again: after a success, after a failure, much later, or all at once.

use std::time::{Duration, Instant};

use crate::support::{
    Delivery, Gate, Gateway, ORDERS, Pair, Reply, Stores, Upstream, eventually, on_every_store, order,
};

on_every_store! {
    a_failed_event_is_forwarded_again_until_it_succeeds,
    a_failed_attempt_is_released_in_both_layers,
    a_duplicate_does_not_open_the_door_for_the_next_one,
    an_event_is_remembered_for_its_window_and_no_longer,
    an_expired_row_does_not_block_when_the_sweep_is_late,
    duplicates_of_a_done_event_are_all_successes,
    a_window_longer_than_the_spread_of_copies_catches_them_all,
}

async fn a_failed_event_is_forwarded_again_until_it_succeeds(pair: Pair) {
    // CLM-3, PRV-6: the key was recorded before the handler ran; the handler failed, and the retry was "duplicate".
    let stores = Stores::open(pair).await;
    let upstream = Upstream::scripted([Reply::new(500, "broken"), Reply::new(200, "fine")]).await;
    let gateway = Gateway::in_front_of(&upstream).on(&stores).start().await;

    let first = gateway.send(&order("f1")).await;
    assert_eq!((first.status, first.text().as_str(), first.verdict().as_str()), (500, "broken", "first"));
    let second = gateway.send(&order("f1")).await;
    assert_eq!((second.status, second.text().as_str(), second.verdict().as_str()), (200, "fine", "first"));
    let third = gateway.send(&order("f1")).await;
    assert_eq!((third.status, third.text().as_str(), third.verdict().as_str()), (200, "fine", "duplicate"));

    let attempts: Vec<_> = upstream.requests().iter().map(|r| r.header("umavez-attempt")).collect();
    assert_eq!(attempts, [Some("1".to_owned()), Some("2".to_owned())]);
}

async fn a_failed_attempt_is_released_in_both_layers(pair: Pair) {
    // RED-5: only one layer was released after a failure, and the retry had to wait for the other to expire.
    let stores = Stores::open(pair).await;
    let upstream = Upstream::scripted([Reply::new(500, ""), Reply::new(200, "")]).await;
    let gateway = Gateway::in_front_of(&upstream).on(&stores).start().await;
    assert_eq!(gateway.send(&order("z1")).await.status, 500);
    assert_eq!(gateway.send(&order("z1")).await.status, 200);
    assert_eq!(upstream.received(), 2);
}

async fn a_duplicate_does_not_open_the_door_for_the_next_one(pair: Pair) {
    // CLM-7: rejecting a duplicate removed the mark, so every second duplicate slipped through.
    let stores = Stores::open(pair).await;
    let upstream = Upstream::answering(200, "ok").await;
    let gateway = Gateway::in_front_of(&upstream).on(&stores).start().await;
    let mut verdicts = Vec::new();
    for _ in 0..6 {
        verdicts.push(gateway.send(&order("again")).await.verdict());
    }
    for n in 0..20 {
        gateway.send(&order(&format!("other-{n}"))).await;
        if n % 4 == 0 {
            verdicts.push(gateway.send(&order("again")).await.verdict());
        }
    }
    verdicts.push(gateway.send(&order("again")).await.verdict());
    assert_eq!(verdicts.len(), 12);
    assert_eq!(verdicts.iter().filter(|verdict| *verdict == "duplicate").count(), 11);
    assert_eq!(upstream.received(), 21);
}

async fn an_event_is_remembered_for_its_window_and_no_longer(pair: Pair) {
    // CLM-5: seconds and milliseconds were mixed up, and keys lived a thousand times too long or too short.
    let stores = Stores::open(pair).await;
    let upstream = Upstream::answering(200, "").await;
    let route = format!("{ORDERS}hot_ttl = \"5s\"\ndurable_ttl = \"5s\"\n");
    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(&route).start().await;
    let begun = Instant::now();
    assert_eq!(gateway.send(&order("c5")).await.verdict(), "first");
    if stores.has_redis() {
        for key in stores.redis().keys().await {
            let left = stores.redis().command(&["PTTL", &key]).await.integer();
            assert!((1..=5000).contains(&left), "{key} lives for {left} ms");
        }
    }
    tokio::time::sleep(Duration::from_millis(3500)).await;
    let answer = gateway.send(&order("c5")).await;
    if begun.elapsed() < Duration::from_millis(4900) {
        assert_eq!(answer.verdict(), "duplicate", "inside the window");
    }
    tokio::time::sleep(Duration::from_millis(2200)).await;
    assert_eq!(gateway.send(&order("c5")).await.verdict(), "first", "a duplicate does not extend the window");
    assert_eq!(upstream.received(), 2);
}

async fn an_expired_row_does_not_block_when_the_sweep_is_late(pair: Pair) {
    // CLM-9: rows past their time were still in the table when the clean-up was late, and blocked new claims.
    // Copies come the moment the window ends, again and again: no sweep is ever that punctual.
    let stores = Stores::open(pair).await;
    let upstream = Upstream::answering(200, "").await;
    let route = format!("{ORDERS}hot_ttl = \"2s\"\ndurable_ttl = \"2s\"\n");
    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(&route).start().await;
    for round in 0..20 {
        gateway.send(&order(&format!("c9-{round}"))).await;
    }
    tokio::time::sleep(Duration::from_millis(2100)).await;
    for round in 0..20 {
        assert_eq!(gateway.send(&order(&format!("c9-{round}"))).await.verdict(), "first");
    }
    assert_eq!(upstream.received(), 40);
}

async fn duplicates_of_a_done_event_are_all_successes(pair: Pair) {
    // CLM-13: duplicates were answered with an error; senders count failures and disable the endpoint after ten.
    let stores = Stores::open(pair).await;
    let upstream = Upstream::answering(202, "taken").await;
    let gateway = Gateway::in_front_of(&upstream).on(&stores).start().await;
    gateway.send(&order("done")).await;
    for _ in 0..20 {
        let answer = gateway.send(&order("done")).await;
        assert_eq!((answer.status, answer.text().as_str()), (202, "taken"));
        assert!(answer.is_replayed());
    }
    assert_eq!(upstream.received(), 1);
}

async fn a_window_longer_than_the_spread_of_copies_catches_them_all(pair: Pair) {
    // PRV-9, PRV-11: one event came up to 46 times spread over 29 hours, also long after a fast 200.
    let stores = Stores::open(pair).await;
    let upstream = Upstream::answering(200, "").await;
    let route =
        format!("{ORDERS}hot_ttl = \"1s\"\ndurable_ttl = \"120s\"\ntimeout = \"5s\"\nlease = \"9s\"\n");
    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(&route).start().await;
    for copy in 0..46 {
        let answer = gateway.send(&order("many")).await;
        assert!(answer.is_success());
        assert_eq!(answer.verdict(), if copy == 0 { "first" } else { "duplicate" });
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    assert_eq!(upstream.received(), 1);
}

#[tokio::test]
async fn a_refusal_on_purpose_is_passed_on_and_the_next_copy_is_forwarded() {
    // PRV-14: a handler answers 400 on purpose, so that the provider tries again later.
    let upstream = Upstream::scripted([Reply::new(400, "not yet"), Reply::new(200, "now")]).await;
    let gateway = Gateway::in_front_of(&upstream).start().await;
    let first = gateway.send(&order("s1")).await;
    assert_eq!((first.status, first.text().as_str()), (400, "not yet"));
    let second = gateway.send(&order("s1")).await;
    assert_eq!((second.status, second.text().as_str()), (200, "now"));
}

#[tokio::test]
async fn a_status_that_the_route_lists_as_done_is_final() {
    // PRV-14, the other way round: a route may say that its app's 409 means "I have it".
    let upstream = Upstream::answering(409, "have it").await;
    let route = format!("{ORDERS}done = [\"200-299\", \"409\"]\n");
    let gateway = Gateway::in_front_of(&upstream).route(&route).start().await;
    assert_eq!(gateway.send(&order("listed")).await.verdict(), "first");
    let copy = gateway.send(&order("listed")).await;
    assert_eq!((copy.status, copy.text().as_str(), copy.verdict().as_str()), (409, "have it", "duplicate"));
    assert_eq!(upstream.received(), 1);
}

#[tokio::test]
async fn a_first_sight_that_is_marked_as_a_retry_is_forwarded() {
    // PRV-7: a receiver dropped all that was marked as a retry; after a deploy the retry was the only delivery.
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).start().await;
    let retry =
        |n: &str| order("Ev01").header("X-Slack-Retry-Num", n).header("X-Slack-Retry-Reason", "http_timeout");
    assert_eq!(gateway.send(&retry("1")).await.verdict(), "first");
    assert_eq!(gateway.send(&retry("2")).await.verdict(), "duplicate");
    assert_eq!(upstream.received(), 1);
}

#[tokio::test]
async fn a_slow_event_does_not_hold_up_another_one() {
    // PRV-13: created and updated arrive together or reversed; the gateway must neither order nor block them.
    let gate = Gate::closed();
    let slow = gate.clone();
    let upstream = Upstream::deciding(move |request, _| {
        let reply = Reply::new(200, "");
        if request.text().contains("evt_a") { reply.behind(&slow) } else { reply }
    })
    .await;
    let gateway = Gateway::in_front_of(&upstream).start().await;
    let first = gateway.sending(&order("evt_a"));
    upstream.until_received(1).await;
    assert_eq!(gateway.send(&order("evt_b")).await.status, 200);
    assert!(!first.is_finished(), "evt_b was answered while evt_a was still with the app");
    gate.open();
    assert_eq!(first.await.unwrap().status, 200);
}

#[tokio::test]
async fn requests_that_only_look_are_no_events() {
    // PRV-12: URL checks (GET with a challenge) are not events.
    let upstream = Upstream::answering(200, "123").await;
    let gateway = Gateway::in_front_of(&upstream).start().await;
    let target = "/hooks?hub.mode=subscribe&hub.challenge=123&hub.verify_token=t";
    for _ in 0..3 {
        let answer = gateway.send(&Delivery::new("GET", target)).await;
        assert_eq!((answer.status, answer.text().as_str()), (200, "123"));
        assert_eq!(gateway.send(&Delivery::new("HEAD", target)).await.status, 200);
        assert_eq!(gateway.send(&Delivery::new("OPTIONS", target)).await.status, 200);
    }
    assert_eq!(upstream.received(), 9);
    let looked = upstream.requests();
    assert!(looked.iter().all(|request| request.target == target));
    assert_eq!(looked.iter().filter(|request| request.method == "GET").count(), 3);
    assert_eq!(gateway.metrics().await.value("umavez_items_total", &[]), 0.0);
}

#[tokio::test]
async fn a_key_reused_with_another_body_is_a_duplicate_that_shows() {
    // Same key, other body: an id that is reused would otherwise swallow events unseen.
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).start().await;
    gateway.send(&Delivery::json("/hooks", r#"{"id":"r1","total":10}"#)).await;
    let copy = gateway.send(&Delivery::json("/hooks", r#"{"id":"r1","total":99}"#)).await;
    assert_eq!((copy.status, copy.verdict().as_str()), (200, "duplicate"));
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.value("umavez_conflicts_total", &[("route", "orders")]), 1.0);
    // Noted beside the answer, not before it.
    let ask = async || gateway.ask_admin("GET", "/events?key=orders:r1").await.json();
    eventually("the copy's fingerprint", async || ask().await["conflicting"].is_string()).await;
    let event = ask().await;
    assert_eq!(event["state"], "done");
    assert_ne!(event["fingerprint"], event["conflicting"]);
}

#[tokio::test]
async fn an_operator_lets_one_event_through_once_and_forgets_another() {
    // A redelivery that a person asked for keeps its id; the operator lets it through, and that is recorded.
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).start().await;
    for id in ["once", "forgotten"] {
        gateway.send(&order(id)).await;
    }
    let allowed = gateway.ask_admin("POST", "/events/allow-once?key=orders:once").await;
    assert_eq!(allowed.status, 200, "{}", allowed.text());
    assert_eq!((&allowed.json()["before"], &allowed.json()["after"]), (&"done".into(), &"released".into()));
    let forgotten = gateway.ask_admin("POST", "/events/forget?key=orders:forgotten").await;
    assert_eq!(forgotten.status, 200, "{}", forgotten.text());
    for id in ["once", "forgotten"] {
        assert_eq!(gateway.send(&order(id)).await.verdict(), "first", "{id}");
        assert_eq!(gateway.send(&order(id)).await.verdict(), "duplicate", "{id}");
    }
    assert_eq!(upstream.received(), 4);
    let actions = gateway.ask_admin("GET", "/actions?limit=10").await.text();
    assert!(actions.contains("orders:once") && actions.contains("orders:forgotten"), "{actions}");
}

#[tokio::test]
async fn the_record_tells_what_became_of_what_a_person_asked_for() {
    // What the gateway had refused was listed like what it had done.
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).start().await;
    gateway.send(&order("sure")).await;
    let refused = gateway.ask_admin("POST", "/events/release?key=orders:sure").await;
    assert_eq!(refused.status, 409, "{}", refused.text());
    let forgotten = gateway.ask_admin("POST", "/events/forget?key=orders:sure").await;
    assert_eq!(forgotten.status, 200, "{}", forgotten.text());
    let listed = gateway.ask_admin("GET", "/actions").await.json();
    let told: Vec<_> = listed["actions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|action| ["action", "before", "after", "changed"].map(|field| action[field].clone()))
        .collect();
    let forget = ["forget".into(), "done".into(), serde_json::Value::Null, true.into()];
    assert_eq!(told, [forget, ["release".into(), "done".into(), "done".into(), false.into()]]);
}

#[tokio::test]
async fn a_list_is_never_cut_without_a_word() {
    // `limit=5000` was taken, and the list ended after 1,000.
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).start().await;
    for list in ["/events/held", "/actions"] {
        assert_eq!(gateway.ask_admin("GET", &format!("{list}?limit=1000")).await.status, 200);
        for limit in ["1001", "0", "all"] {
            let answer = gateway.ask_admin("GET", &format!("{list}?limit={limit}")).await;
            assert_eq!(answer.status, 400, "{list} {limit}");
            assert!(answer.text().contains("from 1 to 1000"), "{}", answer.text());
        }
    }
}

/// A key as `events held` shows it, cut, was called one that is not remembered; nothing said that the digest beside it is
/// what to write.
#[tokio::test]
async fn a_cut_key_leads_to_its_digest() {
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).start().await;
    let id = "x".repeat(2000);
    assert_eq!(gateway.send(&order(&id)).await.verdict(), "first");
    let digest = umavez::ledger::EventKey::from_text(format!("orders:{id}")).digest();
    let shown = gateway.ask_admin("GET", &format!("/events?digest={digest}")).await.json();
    let cut: String = form_urlencoded::byte_serialize(shown["key"].as_str().unwrap().as_bytes()).collect();
    for (method, path) in [("GET", "/events"), ("POST", "/events/release")] {
        let told = gateway.ask_admin(method, &format!("{path}?key={cut}")).await;
        assert_eq!(told.status, 404);
        assert!(told.text().contains("--digest"), "{}", told.text());
    }
}

/// Of a long key only the beginning is stored as text: what a person decides about the event must reach it all the same.
#[tokio::test]
async fn an_event_with_a_long_key_is_forgotten_in_both_layers() {
    let stores = Stores::open(Pair::RedisPostgres).await;
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).on(&stores).start().await;
    let id = "x".repeat(100_000);
    assert_eq!(gateway.send(&order(&id)).await.verdict(), "first");
    assert_eq!(gateway.send(&order(&id)).await.verdict(), "duplicate");
    let digest = umavez::ledger::EventKey::from_text(format!("orders:{id}")).digest();
    let shown = gateway.ask_admin("GET", &format!("/events?digest={digest}")).await.json();
    assert!(shown["key"].as_str().unwrap().ends_with("xx… (cut: 100007 bytes)"), "{shown}");
    let forgotten = gateway.ask_admin("POST", &format!("/events/forget?digest={digest}")).await;
    assert_eq!(forgotten.status, 200, "{}", forgotten.text());
    assert_eq!(gateway.send(&order(&id)).await.verdict(), "first");
    assert_eq!(upstream.received(), 2);
}
