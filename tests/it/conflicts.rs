//! The same key with another body: a duplicate that shows, since an id that is reused would otherwise swallow events unseen.

use crate::support::{
    Delivery, Gateway, ORDERS, Pair, Reply, Stores, Upstream, eventually, on_every_store, on_stores,
};

on_every_store! {
    twins_in_one_batch_that_differ_show,
    a_copy_of_a_held_event_that_differs_shows,
    a_copy_of_an_event_with_a_long_answer_that_differs_shows,
}

on_stores! {
    a_copy_on_another_node_of_an_event_with_a_long_answer_shows_too:
    memory_postgres MemoryPostgres, redis_postgres RedisPostgres
}

fn paid(id: &str, sum: u32) -> Delivery {
    Delivery::json("/hooks", format!(r#"{{"id":"{id}","pay":{sum}}}"#))
}

/// Counted once, logged, and both fingerprints are in the record, which has this state.
async fn shows(gateway: &Gateway, route: &str, key: &str, state: &str) {
    let conflicts = gateway.metrics().await.value("umavez_conflicts_total", &[("route", route)]);
    assert_eq!(conflicts, 1.0);
    let told = || gateway.logs().matches("a copy differs from the event").count();
    eventually("a log line", async || told() > 0).await;
    assert_eq!(told(), 1, "{}", gateway.logs());
    let target = format!("/events?key={key}");
    let ask = async || gateway.ask_admin("GET", &target).await.json();
    eventually("the copy's fingerprint", async || ask().await["conflicting"].is_string()).await;
    let event = ask().await;
    assert_eq!(event["state"], state);
    assert_ne!(event["fingerprint"], event["conflicting"]);
}

/// The second of two items with one key was taken out of its batch, whatever it said, and nothing told of it.
async fn twins_in_one_batch_that_differ_show(pair: Pair) {
    let stores = Stores::open(pair).await;
    let upstream = Upstream::answering(200, "").await;
    let route = "[[route]]\nname = \"wa\"\npath = \"/wa\"\nprovider = \"meta\"\n";
    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(route).start().await;
    let twins = |first: u32, second: u32| {
        let message = |sum: u32| format!(r#"{{"from":"55","id":"wamid.X","text":{{"body":"pay {sum}"}}}}"#);
        let body = format!(
            r#"{{"object":"whatsapp_business_account","entry":[{{"id":"10","changes":[{{"value":{{"messaging_product":"whatsapp","metadata":{{"phone_number_id":"11"}},"messages":[{},{}]}},"field":"messages"}}]}}]}}"#,
            message(first),
            message(second)
        );
        Delivery::json("/wa", body)
    };
    assert_eq!(gateway.send(&twins(10, 10)).await.verdict(), "first");
    assert_eq!(gateway.metrics().await.value("umavez_conflicts_total", &[("route", "wa")]), 0.0);
    assert_eq!(gateway.send(&twins(10, 99)).await.verdict(), "duplicate");
    shows(&gateway, "wa", "wa:11:messages:wamid.X", "done").await;
}

/// A held event has no receipt, and what a copy of it said was not looked at.
async fn a_copy_of_a_held_event_that_differs_shows(pair: Pair) {
    let stores = Stores::open(pair).await;
    let upstream = Upstream::deciding(|_, _| Reply::hang_up()).await;
    let route = format!("{ORDERS}on_unknown = \"hold\"\n");
    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(&route).start().await;
    assert_eq!(gateway.send(&paid("h1", 10)).await.verdict(), "held");
    assert_eq!(gateway.send(&paid("h1", 10)).await.verdict(), "held");
    assert_eq!(gateway.metrics().await.value("umavez_conflicts_total", &[("route", "orders")]), 0.0);
    assert_eq!(gateway.send(&paid("h1", 99)).await.verdict(), "held");
    shows(&gateway, "orders", "orders:h1", "held").await;
    assert_eq!(upstream.received(), 1);
}

/// Where the receipt was too long for the hot store, the fingerprint that it has was not compared.
async fn a_copy_of_an_event_with_a_long_answer_that_differs_shows(pair: Pair) {
    let stores = Stores::open(pair).await;
    let upstream = Upstream::answering(200, &"x".repeat(5000)).await;
    let gateway = Gateway::in_front_of(&upstream).on(&stores).start().await;
    assert_eq!(gateway.send(&paid("l1", 10)).await.verdict(), "first");
    assert_eq!(gateway.send(&paid("l1", 10)).await.verdict(), "duplicate");
    assert_eq!(gateway.metrics().await.value("umavez_conflicts_total", &[("route", "orders")]), 0.0);
    assert_eq!(gateway.send(&paid("l1", 99)).await.verdict(), "duplicate");
    shows(&gateway, "orders", "orders:l1", "done").await;
}

/// The same through the hot store that nodes share, or the durable one.
async fn a_copy_on_another_node_of_an_event_with_a_long_answer_shows_too(pair: Pair) {
    let stores = Stores::open(pair).await;
    let upstream = Upstream::answering(200, &"x".repeat(5000)).await;
    let one = Gateway::in_front_of(&upstream).on(&stores).start().await;
    let two = Gateway::in_front_of(&upstream).on(&stores).start().await;
    assert_eq!(one.send(&paid("l2", 10)).await.verdict(), "first");
    assert_eq!(two.send(&paid("l2", 99)).await.verdict(), "duplicate");
    shows(&two, "orders", "orders:l2", "done").await;
    assert_eq!(upstream.received(), 1);
}
