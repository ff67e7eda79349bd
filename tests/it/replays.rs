//! A person replays a held event: it is work under way like any other, its answer tells what the ledger recorded, and of a
//! batch the app gets what was meant and nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::cli::{code, stderr, umavez};
use crate::stores_down::wired;
use crate::support::{
    Answer, Delivery, Gate, Gateway, Line, ORDERS, Pair, Reply, Stores, Upstream, durable_toml, eventually,
    hot_toml, hub_sha256, on_every_store, on_stores, order, send, try_send, within,
};

on_every_store! {
    a_stop_waits_for_a_replay,
    a_replay_forwards_its_own_event_of_a_batch_and_no_other,
}

on_stores! {
    a_copy_that_the_database_keeps_waiting_stops_no_replay:
    memory_postgres MemoryPostgres, redis_postgres RedisPostgres
}

/// [`ORDERS`] where what nobody knows is held.
fn holding(more: &str) -> String {
    format!(
        "{ORDERS}on_unknown = \"hold\"\ntimeout = \"20s\"\nlease = \"40s\"\nin_flight_wait = \"300ms\"\n{more}"
    )
}

/// Batches, likewise.
const BATCHES: &str = r#"
[[route]]
name = "mail"
path = "/mail"
provider = "sendgrid"
on_unknown = "hold"
timeout = "20s"
lease = "40s"
in_flight_wait = "300ms"
"#;

/// A delivery to [`BATCHES`]; an empty id is an event without a key.
fn batch(ids: &[&str]) -> Delivery {
    let events: Vec<Value> = ids
        .iter()
        .map(|id| if id.is_empty() { json!({"event": "open"}) } else { json!({"sg_event_id": id}) })
        .collect();
    Delivery::json("/mail", json!(events).to_string())
}

/// The ids of the events in what the app got last.
fn got(upstream: &Upstream) -> Vec<String> {
    let events = upstream.last().json();
    let id = |event: &Value| event["sg_event_id"].as_str().unwrap_or_default().to_owned();
    events.as_array().unwrap().iter().map(id).collect()
}

/// An app that breaks off as long as it is away.
async fn app(away: &Arc<AtomicBool>) -> Upstream {
    let away = Arc::clone(away);
    Upstream::deciding(
        move |_, _| {
            if away.load(Ordering::SeqCst) { Reply::hang_up() } else { Reply::new(200, "done") }
        },
    )
    .await
}

/// What the event API answers.
async fn asked(gateway: &Gateway, what: &str, key: &str) -> Value {
    let answer = gateway.ask_admin("POST", &format!("/events/{what}?key={key}")).await;
    assert_eq!(answer.status, 200, "{what} {key}: {}", answer.text());
    answer.json()
}

async fn state(gateway: &Gateway, key: &str) -> String {
    let event = gateway.ask_admin("GET", &format!("/events?key={key}")).await.json();
    event["state"].as_str().unwrap_or("not remembered").to_owned()
}

/// A replay in a task of its own.
fn replaying(gateway: &Gateway, key: &str) -> JoinHandle<std::io::Result<Answer>> {
    let (admin, target) = (gateway.admin(), format!("/events/replay?key={key}"));
    tokio::spawn(async move { try_send(admin, &Delivery::new("POST", &target)).await })
}

/// Waits until a gateway that was told to stop has nothing left that came to its public listener.
async fn until_it_only_waits_for_decisions(gateway: &Gateway) {
    let decide = Delivery::new("POST", "/events/mark-done?key=orders:nobody");
    eventually("the gateway to take no decision any more", async || {
        // Once refused: it has closed its stores without waiting.
        try_send(gateway.admin(), &decide).await.map_or(true, |answer| answer.status == 503)
    })
    .await;
}

/// A stop while the app had a replayed event closed the stores before its settlement: the replay said "done", and after
/// the restart the event was held again, and a second replay happened twice.
async fn a_stop_waits_for_a_replay(pair: Pair) {
    let stores = Stores::open(pair).await;
    let gate = Gate::closed();
    let upstream = Upstream::scripted([Reply::hang_up(), Reply::new(200, "done").behind(&gate)]).await;
    let mut gateway = Gateway::in_front_of(&upstream).on(&stores).route(&holding("")).start().await;
    assert_eq!(gateway.send(&order("stop")).await.verdict(), "held");
    let replay = replaying(&gateway, "orders:stop");
    upstream.until_received(2).await;
    gateway.terminate();
    until_it_only_waits_for_decisions(&gateway).await;
    // None begins that could outlast the grace.
    let late = gateway.ask_admin("POST", "/events/replay?key=orders:stop").await;
    assert_eq!(late.status, 503, "{}", late.text());
    assert!(late.text().contains("the gateway is stopping, and nothing was done"), "{}", late.text());
    assert_eq!(gateway.ask_admin("GET", "/live").await.status, 200);
    gate.open();
    let replay = replay.await.unwrap().unwrap().json();
    assert_eq!((&replay["state"], &replay["recorded"]), (&json!("done"), &json!(true)), "{replay}");
    assert_eq!(gateway.wait_exit().await, Some(0));
    assert!(!gateway.logs().contains("a settlement was dropped"), "{}", gateway.logs());

    gateway.restart().await;
    assert_eq!(state(&gateway, "orders:stop").await, "done");
    let copy = gateway.send(&order("stop")).await;
    assert_eq!((copy.text().as_str(), copy.verdict().as_str()), ("done", "duplicate"));
    assert_eq!(upstream.received(), 2);
}

/// A process that was followed by another closed the stores as well before a replay under way was settled.
#[tokio::test]
async fn a_takeover_waits_for_a_replay() {
    let stores = Stores::open(Pair::MemoryPostgres).await;
    let gate = Gate::closed();
    let upstream = Upstream::scripted([Reply::hang_up(), Reply::new(200, "done").behind(&gate)]).await;
    let setup = Gateway::in_front_of(&upstream).on(&stores).route(&holding(""));
    let mut gateway = setup.listen("handover = \"handover.sock\"").start().await;
    let mut idle = gateway.connect().await;
    assert_eq!(idle.send(&order("over")).await.verdict(), "held");
    let replay = replaying(&gateway, "orders:over");
    upstream.until_received(2).await;
    let admin = gateway.admin();
    let goes = async {
        assert!(idle.is_closed_within(Duration::from_secs(30)).await, "the one before stops");
        let event = send(admin, &Delivery::new("GET", "/events?key=orders:over")).await.json();
        assert_eq!(event["state"], "processing", "{event}");
        gate.open();
    };
    let (code, ()) = tokio::join!(gateway.take_over(), goes);
    assert_eq!(code, Some(0));
    let replay = replay.await.unwrap().unwrap().json();
    assert_eq!((&replay["state"], &replay["recorded"]), (&json!("done"), &json!(true)), "{replay}");
    assert_eq!(state(&gateway, "orders:over").await, "done");
}

/// A replay that outlasted the grace was settled nowhere, said "done" all the same, and the exit code was 0.
#[tokio::test]
async fn a_replay_past_the_grace_is_not_told_as_done() {
    let gate = Gate::closed();
    let upstream = Upstream::scripted([Reply::hang_up(), Reply::new(200, "done").behind(&gate)]).await;
    let setup = Gateway::in_front_of(&upstream).route(&holding("")).listen("grace = \"1s\"");
    let mut gateway = setup.start().await;
    assert_eq!(gateway.send(&order("late")).await.verdict(), "held");
    let replay = replaying(&gateway, "orders:late");
    upstream.until_received(2).await;
    gateway.terminate();
    let live = Delivery::new("GET", "/live");
    eventually("the end of the grace", async || try_send(gateway.admin(), &live).await.is_err()).await;
    gate.open();
    // Its answer may be cut off, but never wrong.
    if let Ok(replay) = replay.await.unwrap() {
        let replay = replay.json();
        assert_eq!((&replay["answer"], &replay["recorded"]), (&json!(200), &json!(false)), "{replay}");
        assert_ne!(replay["state"], "done", "{replay}");
    }
    assert_eq!(gateway.wait_exit().await, Some(1));
    gateway.restart().await;
    assert_eq!(state(&gateway, "orders:late").await, "processing", "until its lease is over");
}

/// What else a person asked for before the stop is carried out and told, however slow the store is.
#[tokio::test]
async fn a_stop_waits_for_a_persons_change() {
    let stores = Stores::open(Pair::MemoryPostgres).await;
    let (wire, durable) = wired(&stores, "20s").await;
    let upstream = Upstream::answering(200, "").await;
    let mut gateway = Gateway::in_front_of(&upstream).stores_toml(&durable).start().await;
    assert_eq!(gateway.send(&order("c")).await.verdict(), "first");
    wire.set(Line::Stalled);
    let (admin, forget) = (gateway.admin(), Delivery::new("POST", "/events/forget?key=orders:c"));
    let change = tokio::spawn(async move { try_send(admin, &forget).await });
    gateway.until_metric("umavez_connections", &[("listener", "admin")], 2.0).await;
    gateway.terminate();
    eventually("the stop", async || gateway.logs().contains("stopping: no new connections")).await;
    wire.resume();
    assert_eq!(change.await.unwrap().unwrap().json()["before"], "done");
    assert_eq!(gateway.wait_exit().await, Some(0));
    gateway.restart().await;
    assert_eq!(gateway.send(&order("c")).await.verdict(), "first");
}

/// Somebody else changed the event through another node while the app had it: the ledger said "released", and the replay
/// answered "done" all the same.
#[tokio::test]
async fn a_replay_tells_what_the_ledger_has_recorded() {
    let stores = Stores::open(Pair::RedisPostgres).await;
    let gate = Gate::closed();
    let behind = gate.clone();
    let upstream = Upstream::deciding(move |request, _| {
        if request.attempt() == 1 { Reply::hang_up() } else { Reply::new(200, "").behind(&behind) }
    })
    .await;
    let setup = || Gateway::in_front_of(&upstream).on(&stores).route(&holding(""));
    let (one, other) = (setup().start().await, setup().start().await);
    let changes = [("release", "released"), ("forget", "forgotten"), ("mark-done", "done")];
    for (change, _) in changes {
        assert_eq!(one.send(&order(change)).await.verdict(), "held");
    }
    let replays = changes.map(|(change, _)| replaying(&one, &format!("orders:{change}")));
    assert_eq!(one.send(&order("by hand")).await.verdict(), "held");
    let at = format!("http://{}", one.admin());
    let by_hand =
        tokio::task::spawn_blocking(move || umavez(&["events", "replay", "orders:by hand", "--admin", &at]));
    upstream.until_received(8).await;
    for (change, _) in changes {
        asked(&other, change, &format!("orders:{change}")).await;
    }
    asked(&other, "release", "orders:by%20hand").await;
    gate.open();
    for (replay, (_, state)) in replays.into_iter().zip(changes) {
        let told = replay.await.unwrap().unwrap().json();
        assert_eq!((&told["answer"], &told["verdict"]), (&json!(200), &json!("first")), "{told}");
        assert_eq!((&told["state"], &told["recorded"]), (&json!(state), &json!(false)), "{told}");
    }
    let by_hand = by_hand.await.unwrap();
    assert_eq!(code(&by_hand), 1);
    let said = stderr(&by_hand);
    assert!(
        said.contains("the app took it (answer 200), but somebody changed the event meanwhile"),
        "{said}"
    );
    assert!(said.contains("it is released now"), "{said}");
}

/// A copy that asked a slow database just then kept the event's place for over five seconds: the replay claimed the event,
/// waited for the copy, sent nothing, and the event was in flight until its lease was over.
async fn a_copy_that_the_database_keeps_waiting_stops_no_replay(pair: Pair) {
    let mut stores = Stores::open_own(pair).await;
    let upstream = Upstream::scripted([Reply::hang_up(), Reply::new(200, "done")]).await;
    let hot = if stores.has_redis() { hot_toml(&stores.redis_url()) } else { String::new() };
    // A fifth of it is what a lock is waited for.
    let toml = format!("{hot}{}timeout = \"60s\"\n", durable_toml(&stores.postgres_url()));
    let gateway = Gateway::in_front_of(&upstream).stores_toml(&toml).route(&holding("")).start().await;
    assert_eq!(gateway.send(&order("slow")).await.verdict(), "held");
    // Whoever claims or settles waits; whoever changes an event doesn't.
    stores.sql(
        "create function wait() returns trigger language plpgsql
             as 'begin perform pg_advisory_xact_lock(1); return null; end';
         create trigger wait before insert on umavez_event for each statement execute function wait()",
    );
    let lock = stores.postgres_mut().session("select pg_advisory_lock(1)");
    let copy = gateway.sending(&order("slow"));
    let waiting = "select count(*) from pg_locks where locktype = 'advisory' and not granted";
    eventually("the copy's claim", async || stores.sql(waiting) == "1").await;
    let replay = replaying(&gateway, "orders:slow");
    upstream.until_received(2).await;
    drop(lock);
    let replay = within("the replay's answer", replay).await.unwrap().unwrap().json();
    assert_eq!((&replay["state"], &replay["verdict"]), (&json!("done"), &json!("first")), "{replay}");
    // What it asked the database was from before the replay; on a very busy machine its time was over meanwhile.
    let copy = within("the copy's answer", copy).await.unwrap();
    assert!(copy.verdict() == "held" || copy.asks_for_a_retry(), "{} {}", copy.status, copy.verdict());
    assert_eq!(gateway.send(&order("slow")).await.text(), "done");
    assert_eq!(upstream.received(), 2);
}

/// The replay of one event of a batch forwarded its neighbours too, where a person had released or forgotten them; and each
/// time again whatever was done once its window was over.
async fn a_replay_forwards_its_own_event_of_a_batch_and_no_other(pair: Pair) {
    let stores = Stores::open(pair).await;
    let away = Arc::new(AtomicBool::new(true));
    let upstream = app(&away).await;
    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(BATCHES).start().await;
    assert_eq!(gateway.send(&batch(&["a", "b", "c", "", "d", "e"])).await.verdict(), "held");
    away.store(false, Ordering::SeqCst);
    asked(&gateway, "mark-done", "mail:a").await;
    asked(&gateway, "release", "mail:b").await;
    asked(&gateway, "forget", "mail:c").await;

    let told = asked(&gateway, "replay", "mail:d").await;
    assert_eq!(
        (&told["state"], &told["recorded"], &told["others"]),
        (&json!("done"), &json!(true), &json!(0))
    );
    // What has no key goes along: nobody can tell whose it is.
    assert_eq!(got(&upstream), ["", "d"]);
    assert_eq!(upstream.last().header("umavez-removed").as_deref(), Some("4"));
    for (key, now) in
        [("a", "done"), ("b", "released"), ("c", "not remembered"), ("d", "done"), ("e", "held")]
    {
        assert_eq!(state(&gateway, &format!("mail:{key}")).await, now, "{key}");
    }
    // A neighbour that is held waits for its own replay, which may fail and come again.
    away.store(true, Ordering::SeqCst);
    assert_eq!(asked(&gateway, "replay", "mail:e").await["state"], "held");
    away.store(false, Ordering::SeqCst);
    assert_eq!(asked(&gateway, "replay", "mail:e").await["state"], "done");
    assert_eq!(got(&upstream), ["", "e"]);
    // What was released and forgotten passes when its sender sends it.
    assert_eq!(gateway.send(&batch(&["a", "b", "c", "d", "e"])).await.verdict(), "first");
    assert_eq!(got(&upstream), ["b", "c"]);
}

/// A held event waits for as long as nobody decides, and its neighbours' windows end meanwhile: they were claimed anew, and
/// happened again.
#[tokio::test]
async fn a_replay_leaves_out_neighbours_whose_window_is_over() {
    let stores = Stores::open(Pair::RedisPostgres).await;
    let away = Arc::new(AtomicBool::new(true));
    let upstream = app(&away).await;
    let route = format!("{BATCHES}hot_ttl = \"1s\"\ndurable_ttl = \"1s\"\n");
    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(&route).start().await;
    assert_eq!(gateway.send(&batch(&["replayed", "marked", "last"])).await.verdict(), "held");
    away.store(false, Ordering::SeqCst);
    asked(&gateway, "replay", "mail:replayed").await;
    assert_eq!(got(&upstream), ["replayed"]);
    asked(&gateway, "mark-done", "mail:marked").await;
    for key in ["mail:replayed", "mail:marked"] {
        eventually("its window to end", async || state(&gateway, key).await == "not remembered").await;
    }
    assert_eq!(asked(&gateway, "replay", "mail:last").await["state"], "done");
    assert_eq!(got(&upstream), ["last"]);
}

/// A batch that was signed by a key which only its provider has went whole with each replay, and nobody was told.
#[tokio::test]
async fn a_batch_that_cannot_be_cut_is_replayed_whole_and_says_so() {
    let away = Arc::new(AtomicBool::new(true));
    let upstream = app(&away).await;
    let gateway = Gateway::in_front_of(&upstream).route(BATCHES).start().await;
    let signed = |ids| batch(ids).header("X-Twilio-Email-Event-Webhook-Signature", "AA==");
    assert_eq!(gateway.send(&signed(&["a", "b", "c", "d"])).await.verdict(), "held");
    away.store(false, Ordering::SeqCst);
    asked(&gateway, "mark-done", "mail:d").await;
    let told = asked(&gateway, "replay", "mail:a").await;
    assert_eq!((&told["state"], &told["others"]), (&json!("done"), &json!(3)), "{told}");
    assert_eq!(got(&upstream), ["a", "b", "c", "d"]);
    eventually("its log line", async || gateway.logs().contains("replayed whole")).await;
    // Its neighbours are where they were.
    for (key, now) in [("b", "held"), ("c", "held"), ("d", "done")] {
        assert_eq!(state(&gateway, &format!("mail:{key}")).await, now, "{key}");
    }
    let at = format!("http://{}", gateway.admin());
    let by_hand =
        tokio::task::spawn_blocking(move || umavez(&["events", "replay", "mail:b", "--admin", &at]));
    let by_hand = by_hand.await.unwrap();
    let said = stderr(&by_hand);
    assert_eq!(code(&by_hand), 0, "{said}");
    assert!(
        said.contains("the batch can't be cut, so the app got the whole of it: 3 other events"),
        "{said}"
    );
    // One that is alone in its request has no neighbours to tell of.
    away.store(true, Ordering::SeqCst);
    assert_eq!(gateway.send(&signed(&["alone"])).await.verdict(), "held");
    away.store(false, Ordering::SeqCst);
    assert_eq!(asked(&gateway, "replay", "mail:alone").await["others"], 0);
}

#[tokio::test]
async fn what_is_cut_for_a_replay_is_signed_for_the_app() {
    let route = BATCHES.replace("sendgrid", "meta").replace("on_unknown", "secret = \"s3cret\"\non_unknown");
    let away = Arc::new(AtomicBool::new(true));
    let upstream = app(&away).await;
    let gateway = Gateway::in_front_of(&upstream).route(&route).start().await;
    let message = |id: &str| json!({"from": "55", "id": id, "timestamp": "1786363197"});
    let body = json!({"object": "whatsapp_business_account", "entry": [{"id": "10", "changes": [{
        "field": "messages",
        "value": {"metadata": {"phone_number_id": "11"}, "messages": [message("one"), message("two")]},
    }]}]});
    let delivery = Delivery::json("/mail", body.to_string()).signed_by_meta("s3cret");
    assert_eq!(gateway.send(&delivery).await.verdict(), "held");
    away.store(false, Ordering::SeqCst);
    assert_eq!(asked(&gateway, "replay", "mail:11:messages:two").await["others"], 0);
    let last = upstream.last();
    assert_eq!(
        last.json()["entry"][0]["changes"][0]["value"]["messages"],
        json!([message("two")]),
        "{}",
        last.text()
    );
    assert_eq!(last.header("x-hub-signature-256").unwrap(), hub_sha256("s3cret", &last.body));
}

/// Where a route had another name by then, or another key, a replay claimed the event under its new key, forwarded it, said
/// "done", and the old one was held again for ever.
#[tokio::test]
async fn a_replay_finds_its_event_under_the_rules_of_today() {
    let away = Arc::new(AtomicBool::new(true));
    let upstream = app(&away).await;
    let gateway = Gateway::in_front_of(&upstream).route(&holding("")).route(BATCHES).start().await;
    assert_eq!(gateway.send(&order("old")).await.verdict(), "held");
    assert_eq!(gateway.send(&batch(&["x", "y"])).await.verdict(), "held");
    away.store(false, Ordering::SeqCst);
    gateway.edit("name = \"orders\"", "name = \"renamed\"");
    assert_eq!(gateway.reload().await.status, 200);
    assert_eq!(asked(&gateway, "replay", "orders:old").await["state"], "done");
    let last = upstream.last();
    assert_eq!((last.header("umavez-key").as_deref(), last.attempt()), (Some("orders:old"), 2));
    assert_eq!(state(&gateway, "orders:old").await, "done");

    // By another name its batch's events are known by their bytes.
    gateway.edit("name = \"mail\"", "name = \"post\"");
    assert_eq!(gateway.reload().await.status, 200);
    assert_eq!(asked(&gateway, "replay", "mail:x").await["state"], "done");
    assert_eq!(got(&upstream), ["x"]);
    // By other rules nobody knows which of them it is.
    gateway.edit("provider = \"sendgrid\"", "key = [\"$.id\"]");
    assert_eq!(gateway.reload().await.status, 200);
    let told = gateway.ask_admin("POST", "/events/replay?key=mail:y").await;
    assert_eq!(told.status, 409, "{}", told.text());
    assert!(told.text().contains("has its key changed since?"), "{}", told.text());
    assert_eq!(state(&gateway, "mail:y").await, "held");
    assert_eq!(upstream.received(), 4);
}
