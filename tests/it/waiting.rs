//! Copies that wait for events in flight on another node: all of a request side by side, for no longer than its patience.

use std::time::{Duration, Instant};

use crate::stores_down::wired;
use crate::support::{
    Delivery, Gate, Gateway, Line, ORDERS, Pair, Reply, Stores, Upstream, eventually, on_stores, order,
};

on_stores! {
    a_batch_waits_for_all_of_its_events_at_once:
    memory_postgres MemoryPostgres, redis_postgres RedisPostgres
}

on_stores! {
    a_silent_database_lengthens_no_wait:
    memory_postgres MemoryPostgres, redis_postgres RedisPostgres
}

const META: &str = r#"
[[route]]
name = "wa"
path = "/wa"
provider = "meta"
timeout = "60s"
lease = "90s"
"#;

/// A WhatsApp delivery with this many messages.
pub(crate) fn batch(messages: usize) -> Delivery {
    let messages: Vec<_> = (0..messages).map(|n| format!(r#"{{"from":"55","id":"wamid.{n}"}}"#)).collect();
    Delivery::json(
        "/wa",
        format!(
            r#"{{"object":"whatsapp_business_account","entry":[{{"id":"10","changes":[{{"value":{{"messaging_product":"whatsapp","metadata":{{"phone_number_id":"11"}},"messages":[{}]}},"field":"messages"}}]}}]}}"#,
            messages.join(",")
        ),
    )
}

/// How often the database was asked, since its log tells of it, where events stand.
pub(crate) fn looks(stores: &mut Stores) -> usize {
    stores.postgres_mut().log().matches("umavez: peek").count()
}

/// Has the database log every statement from now on.
pub(crate) async fn log_statements(stores: &mut Stores) {
    stores.sql("alter system set log_statement = 'all'");
    stores.sql("select pg_reload_conf()");
    // A statement of ours is logged once the server has read that.
    let postgres = stores.postgres_mut();
    eventually("logged statements", async || {
        postgres.sql("select 'told'");
        postgres.log().contains("select 'told'")
    })
    .await;
}

/// Each event was waited for after the other, with a watch and a look at the database of its own: 1,000 that had all
/// ended took seconds.
async fn a_batch_waits_for_all_of_its_events_at_once(pair: Pair) {
    const ITEMS: usize = 1000;
    let mut stores = Stores::open_own(pair).await;
    let gate = Gate::closed();
    let held = gate.clone();
    let upstream = Upstream::deciding(move |_, _| Reply::new(200, "done").behind(&held)).await;
    let route = format!("{META}in_flight_wait = \"30s\"\n");
    let one = Gateway::in_front_of(&upstream).on(&stores).route(&route).start().await;
    let two = Gateway::in_front_of(&upstream).on(&stores).route(&route).start().await;
    let first = one.sending(&batch(ITEMS));
    upstream.until_received(1).await;
    let copy = two.sending(&batch(ITEMS));
    two.until_metric("umavez_in_flight", &[], 1000.0).await;
    log_statements(&mut stores).await;
    let before = looks(&mut stores);
    gate.open();
    assert_eq!(first.await.unwrap().verdict(), "first");
    let copy = copy.await.unwrap();
    assert_eq!((copy.status, copy.verdict().as_str()), (200, "duplicate"), "{}", copy.text());
    let asked = looks(&mut stores) - before;
    assert!(asked < ITEMS / 3, "asked {asked} times for {ITEMS} events");
    let duplicates = [("route", "wa"), ("verdict", "duplicate")];
    assert_eq!(two.metrics().await.value("umavez_items_total", &duplicates), 1000.0);
    assert_eq!(upstream.received(), 1);
}

/// A look at a database that had fallen silent outlasted the request's patience by the database's, and so did the next
/// event's: three took thirty seconds of the one that they might.
async fn a_silent_database_lengthens_no_wait(pair: Pair) {
    let stores = Stores::open(pair).await;
    let gate = Gate::closed();
    let held = gate.clone();
    let upstream = Upstream::deciding(move |_, _| Reply::new(200, "done").behind(&held)).await;
    let (wire, toml) = wired(&stores, "40s").await;
    let one = Gateway::in_front_of(&upstream).on(&stores).route(META).start().await;
    let route = format!("{META}in_flight_wait = \"3s\"\n");
    let two = Gateway::in_front_of(&upstream).stores_toml(&toml).route(&route).start().await;
    let first = one.sending(&batch(3));
    upstream.until_received(1).await;
    let copy = two.sending(&batch(3));
    // Its claim was answered: from now on it waits.
    two.until_metric("umavez_store_duration_seconds_count", &[("store", "durable")], 1.0).await;
    wire.set(Line::Stalled);
    let began = Instant::now();
    let copy = copy.await.unwrap();
    assert_eq!(copy.verdict(), "in_flight");
    assert!(copy.asks_for_a_retry());
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    wire.resume();
    gate.open();
    assert_eq!(first.await.unwrap().verdict(), "first");
    eventually("the copy's answer", async || two.send(&batch(3)).await.verdict() == "duplicate").await;
    assert_eq!(upstream.received(), 1);
}

/// Twice a second the database was looked at where no push can come, since nodes share nothing else: a copy was woken up to
/// half a second late.
#[tokio::test]
async fn nodes_that_share_a_database_only_look_many_times_a_second() {
    let mut stores = Stores::open_own(Pair::MemoryPostgres).await;
    let gate = Gate::closed();
    let held = gate.clone();
    let upstream = Upstream::deciding(move |_, _| Reply::new(200, "done").behind(&held)).await;
    let route = format!("{ORDERS}in_flight_wait = \"15s\"\n");
    let one = Gateway::in_front_of(&upstream).on(&stores).route(&route).start().await;
    let two = Gateway::in_front_of(&upstream).on(&stores).route(&route).start().await;
    log_statements(&mut stores).await;
    let first = one.sending(&order("far"));
    upstream.until_received(1).await;
    let copy = two.sending(&order("far"));
    // Twice a second would be thirty in the whole wait.
    eventually("many looks", async || looks(&mut stores) > 60 || copy.is_finished()).await;
    assert!(!copy.is_finished(), "{} looks", looks(&mut stores));
    gate.open();
    assert_eq!(first.await.unwrap().verdict(), "first");
    let copy = copy.await.unwrap();
    assert_eq!((copy.text().as_str(), copy.verdict().as_str()), ("done", "duplicate"));
}

/// Others' events that had ended while this request forwarded its own were no longer looked at once its patience was
/// over: the sender had to come again.
#[tokio::test]
async fn what_ended_during_a_long_forward_is_known_after_it() {
    let stores = Stores::open(Pair::RedisPostgres).await;
    let gates = [Gate::closed(), Gate::closed()];
    let held = gates.clone();
    let upstream = Upstream::deciding(move |_, nth| Reply::new(200, "").behind(&held[nth - 1])).await;
    let route = format!("{META}in_flight_wait = \"1ms\"\n");
    let one = Gateway::in_front_of(&upstream).on(&stores).route(&route).start().await;
    let two = Gateway::in_front_of(&upstream).on(&stores).route(&route).start().await;
    let first = one.sending(&batch(1));
    upstream.until_received(1).await;
    let both = two.sending(&batch(2));
    upstream.until_received(2).await;
    gates[0].open();
    assert_eq!(first.await.unwrap().verdict(), "first");
    gates[1].open();
    let both = both.await.unwrap();
    assert_eq!((both.status, both.verdict().as_str()), (200, "first"), "{}", both.text());
    let copies = [("route", "wa"), ("verdict", "duplicate")];
    assert_eq!(two.metrics().await.value("umavez_items_total", &copies), 1.0);
}
