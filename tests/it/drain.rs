//! Stopping: what is claimed is finished, settled and answered; what is done stays done.

use std::time::Duration;

use crate::support::{
    Connection, Gate, Gateway, Pair, Reply, Stores, Upstream, on_every_store, order, try_send,
};

on_every_store! {
    a_stop_finishes_what_is_under_way,
    what_is_done_is_a_duplicate_after_a_stop_and_after_a_kill,
}

async fn a_stop_finishes_what_is_under_way(pair: Pair) {
    // CLM-10: a deploy killed requests after the write, before the answer.
    let stores = Stores::open(pair).await;
    let gate = Gate::closed();
    let held = gate.clone();
    let upstream = Upstream::deciding(move |_, _| Reply::new(200, "done").behind(&held)).await;
    let mut gateway = Gateway::in_front_of(&upstream).on(&stores).start().await;
    let sends: Vec<_> = (0..20).map(|n| gateway.sending(&order(&format!("d{n}")))).collect();
    upstream.until_received(20).await;
    gateway.terminate();
    // Not ready any more, or not there any more: no balancer sends to it.
    let (admin, public) = (gateway.admin(), gateway.address());
    let ready = crate::support::Delivery::new("GET", "/ready");
    crate::support::eventually("the gateway to stop being ready", async || {
        try_send(admin, &ready).await.map_or(true, |answer| answer.status == 503)
    })
    .await;
    // New connections are refused, or closed without a verdict.
    crate::support::eventually("new connections to be refused", async || {
        match Connection::try_to(public).await {
            Err(_) => true,
            Ok(mut connection) => {
                let answer =
                    tokio::time::timeout(Duration::from_secs(2), connection.try_send(&order("late"))).await;
                matches!(answer, Ok(Err(_)))
            }
        }
    })
    .await;
    gate.open();
    for send in sends {
        let answer = send.await.unwrap();
        assert_eq!((answer.status, answer.text().as_str()), (200, "done"));
    }
    assert_eq!(gateway.wait_exit().await, Some(0));

    gateway.restart().await;
    for n in 0..20 {
        let copy = gateway.send(&order(&format!("d{n}"))).await;
        assert_eq!((copy.status, copy.verdict().as_str()), (200, "duplicate"));
    }
    let done = upstream.requests().iter().filter(|request| !request.text().contains("late")).count();
    assert_eq!(done, 20);
}

async fn what_is_done_is_a_duplicate_after_a_stop_and_after_a_kill(pair: Pair) {
    // EMB-2: state was gone after a restart.
    let stores = Stores::open(pair).await;
    let upstream = Upstream::answering(201, "kept").await;
    let mut gateway = Gateway::in_front_of(&upstream).on(&stores).start().await;
    gateway.send(&order("stopped")).await;
    gateway.terminate();
    assert_eq!(gateway.wait_exit().await, Some(0));
    gateway.restart().await;
    let copy = gateway.send(&order("stopped")).await;
    assert_eq!((copy.status, copy.text().as_str(), copy.verdict().as_str()), (201, "kept", "duplicate"));

    // At once after the answer: what was answered is durable.
    gateway.send(&order("killed")).await;
    gateway.kill();
    gateway.restart().await;
    let copy = gateway.send(&order("killed")).await;
    assert_eq!((copy.status, copy.text().as_str(), copy.verdict().as_str()), (201, "kept", "duplicate"));
    assert_eq!(upstream.received(), 2);
}

#[tokio::test]
async fn a_stop_without_anything_under_way_is_quick_and_clean() {
    let upstream = Upstream::answering(200, "").await;
    let mut gateway = Gateway::in_front_of(&upstream).start().await;
    // An idle kept-alive connection holds nothing up.
    let mut idle = gateway.connect().await;
    assert_eq!(idle.send(&order("1")).await.status, 200);
    gateway.terminate();
    assert_eq!(gateway.wait_exit().await, Some(0));
    assert!(idle.is_closed_within(Duration::from_secs(5)).await);
}

#[tokio::test]
async fn a_stop_does_not_wait_past_its_grace() {
    let upstream = Upstream::scripted([Reply::silence()]).await;
    let mut gateway = Gateway::in_front_of(&upstream).listen("grace = \"1s\"").start().await;
    let send = gateway.sending(&order("stuck"));
    upstream.until_received(1).await;
    gateway.terminate();
    assert_eq!(gateway.wait_exit().await, Some(1), "it ends by itself, within the grace");
    // Why was told in a line of its own form, which no reader of JSON took.
    let last = gateway.log_lines().pop().unwrap();
    assert_eq!(last["level"], "ERROR");
    assert!(last["message"].as_str().unwrap().contains("still under way after the grace of 1s"), "{last}");
    send.abort();
}
