//! What a node remembers itself of done events: copies cost no store, and what a person changes through another node
//! holds here too, and whatever becomes of who asked for it.

use std::time::Duration;

use crate::stores_down::wired;
use crate::support::{Gateway, Line, Pair, Stores, Upstream, eventually, order, send_h2};

/// So long that in these stories nothing but forgetting ends it.
const LONG: &str = "[hot]\nnear_ttl = \"60s\"\n";

fn remembering(stores: &Stores) -> String {
    stores.near_toml().replace("[hot]\n", LONG)
}

#[tokio::test]
async fn copies_of_what_a_node_knows_to_be_done_ask_no_store() {
    let stores = Stores::open(Pair::RedisPostgres).await;
    let upstream = Upstream::answering(201, "made").await;
    let gateway = Gateway::in_front_of(&upstream).stores_toml(&remembering(&stores)).start().await;
    let calls = async |store| {
        gateway.metrics().await.value("umavez_store_duration_seconds_count", &[("store", store)])
    };
    assert_eq!(gateway.send(&order("a")).await.verdict(), "first");
    let before = (calls("hot").await, calls("durable").await);
    for _ in 0..20 {
        let copy = gateway.send(&order("a")).await;
        assert_eq!((copy.status, copy.text().as_str(), copy.verdict().as_str()), (201, "made", "duplicate"));
    }
    assert_eq!((calls("hot").await, calls("durable").await), before);
    let hot = [("route", "orders"), ("layer", "hot")];
    assert_eq!(gateway.metrics().await.value("umavez_duplicates_total", &hot), 20.0);
    // Another event with the same beginning is another event.
    assert_eq!(gateway.send(&order("ab")).await.verdict(), "first");
    assert_eq!(upstream.received(), 2);
}

#[tokio::test]
async fn what_a_person_changes_through_one_node_holds_on_the_other() {
    let stores = Stores::open(Pair::RedisPostgres).await;
    let upstream = Upstream::answering(200, "").await;
    let near = remembering(&stores);
    let one = Gateway::in_front_of(&upstream).stores_toml(&near).start().await;
    let two = Gateway::in_front_of(&upstream).stores_toml(&near).start().await;
    for round in 1..=3 {
        for change in ["allow-once", "forget"] {
            let id = format!("{change}-{round}");
            assert_eq!(two.send(&order(&id)).await.verdict(), "first");
            assert_eq!(two.send(&order(&id)).await.verdict(), "duplicate");
            let changed = one.ask_admin("POST", &format!("/events/{change}?key=orders:{id}")).await;
            assert_eq!(changed.status, 200, "{}", changed.text());
            // Redis tells the other node, which takes as long as a message does.
            while two.send(&order(&id)).await.verdict() != "first" {}
            assert_eq!(two.send(&order(&id)).await.verdict(), "duplicate");
        }
    }
    assert_eq!(upstream.received(), 12);
}

#[tokio::test]
async fn a_node_that_cannot_hear_the_others_remembers_nothing() {
    let mut stores = Stores::open(Pair::RedisPostgres).await;
    let upstream = Upstream::answering(200, "").await;
    let near = remembering(&stores);
    let one = Gateway::in_front_of(&upstream).stores_toml(&near).start().await;
    let two = Gateway::in_front_of(&upstream).stores_toml(&near).start().await;
    assert_eq!(two.send(&order("a")).await.verdict(), "first");
    assert_eq!(two.send(&order("a")).await.verdict(), "duplicate");
    stores.redis_mut().kill().await;
    // Once nothing is heard, what was learned before counts for nothing: each copy asks the durable store.
    let durable = [("route", "orders"), ("layer", "durable")];
    while two.metrics().await.value("umavez_duplicates_total", &durable) < 1.0 {
        assert_eq!(two.send(&order("a")).await.verdict(), "duplicate");
    }
    let changed = one.ask_admin("POST", "/events/allow-once?key=orders:a").await;
    assert_eq!(changed.status, 200, "{}", changed.text());
    assert_eq!(two.send(&order("a")).await.verdict(), "first");
    // What is heard again after a break begins with nothing either.
    stores.redis_mut().restart().await;
    two.until_metric("umavez_hot_breaker_open", &[], 0.0).await;
    assert_eq!(two.send(&order("a")).await.verdict(), "duplicate");
    assert_eq!(upstream.received(), 2);
}

/// After a flush a node answered from what it remembered itself, and Redis stayed without the event until that was over.
#[tokio::test]
async fn a_copy_after_a_flush_brings_the_event_back_to_redis() {
    let stores = Stores::open(Pair::RedisPostgres).await;
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).stores_toml(&remembering(&stores)).start().await;
    assert_eq!(gateway.send(&order("a")).await.verdict(), "first");
    assert_eq!(gateway.send(&order("a")).await.verdict(), "duplicate");
    for _ in 0..3 {
        stores.redis().flush().await;
        // Redis tells of it, which takes as long as a message does.
        eventually("the event in redis", async || {
            assert_eq!(gateway.send(&order("a")).await.verdict(), "duplicate");
            stores.redis().command(&["GET", "dedup:orders:a"]).await.text().starts_with("done ")
        })
        .await;
    }
    assert_eq!(upstream.received(), 1);
}

/// A person's change that Postgres took slowly, and whose asker went away meanwhile, was recorded; Redis never heard of it,
/// and answered copies against it for its whole window.
#[tokio::test]
async fn a_change_holds_although_its_asker_went_away() {
    let stores = Stores::open(Pair::RedisPostgres).await;
    let upstream = Upstream::answering(200, "").await;
    let (wire, toml) = wired(&stores, "20s").await;
    let gateway = Gateway::in_front_of(&upstream).stores_toml(&toml).start().await;
    assert_eq!(gateway.send(&order("a")).await.verdict(), "first");
    assert_eq!(gateway.send(&order("a")).await.verdict(), "duplicate");
    wire.set(Line::Slow(Duration::from_millis(300)));
    let admin = gateway.admin();
    let asked = http::Request::post(format!("http://{admin}/events/allow-once?key=orders:a"));
    // By HTTP/2, which tells the gateway that nobody waits any more.
    let asker = tokio::spawn(send_h2(admin, asked.body("").unwrap()));
    let changing = "select count(*) from pg_stat_activity
                    where query like '-- umavez: change%' and pid <> pg_backend_pid()";
    eventually("the change to be under way", async || stores.sql(changing) == "1").await;
    asker.abort();
    assert!(asker.await.unwrap_err().is_cancelled(), "it heard of its change: this proves nothing");
    eventually("the change", async || stores.sql("select state from umavez_event") == "2").await;
    wire.resume();
    assert_eq!(gateway.send(&order("a")).await.verdict(), "first");
    assert_eq!(upstream.received(), 2);
}
