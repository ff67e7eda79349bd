//! `mode = "shadow"`: what inline would have done is counted, and neither the app nor the sender notices anything.

use crate::support::{
    Delivery, Gate, Gateway, Metrics, Pair, Reply, Stores, Upstream, on_stores, order, send_all,
};

const SHADOW: &str = r#"
[[route]]
name = "orders"
path = "/hooks"
key = ["$.id"]
mode = "shadow"
on_unknown = "hold"
body_limit = "1KiB"
strip_headers = ["X-Retry"]
"#;

const SIGNED: &str = r#"
[[route]]
name = "chat"
path = "/chat"
provider = "meta"
secret = "${S}"
mode = "shadow"
"#;

/// Instantiates stories for a gateway by itself, and for one of several.
macro_rules! on_both {
    ($($story:ident),+ $(,)?) => { $(
        on_stores! { $story: embedded Embedded, redis_postgres RedisPostgres }
    )+ };
}

on_both! {
    every_copy_reaches_the_app_as_it_came_and_is_counted,
    copies_at_once_wait_for_nobody,
    what_was_seen_in_shadow_is_known_after_the_switch,
    an_unsigned_request_passes_and_leaves_no_trace,
    nothing_is_held_and_a_failure_lets_the_retry_count_as_first,
}

fn verdicts(metrics: &Metrics, route: &str) -> [f64; 4] {
    ["first", "duplicate", "in_flight", "unavailable"].map(|verdict| {
        let labels = [("route", route), ("mode", "shadow"), ("verdict", verdict)];
        metrics.value("umavez_items_total", &labels)
    })
}

async fn every_copy_reaches_the_app_as_it_came_and_is_counted(pair: Pair) {
    let stores = Stores::open(pair).await;
    let upstream = Upstream::deciding(|_, nth| {
        Reply::with_headers(
            200 + u16::try_from(nth).unwrap(),
            &[("X-App", "own")],
            format!("{nth}").as_bytes(),
        )
    })
    .await;
    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(SHADOW).start().await;
    for nth in 1..=3 {
        let answer = gateway.send(&order("a").header("X-Retry", "yes")).await;
        assert_eq!((answer.status, answer.text()), (200 + nth, nth.to_string()));
        assert_eq!(answer.header("x-app").as_deref(), Some("own"));
        assert_eq!(answer.header("idempotency-replayed"), None);
        assert_eq!(answer.verdict(), if nth == 1 { "first" } else { "duplicate" });
    }
    for request in upstream.requests() {
        assert_eq!(request.text(), r#"{"id":"a"}"#);
        assert_eq!(request.header("x-retry").as_deref(), Some("yes"));
        for name in ["umavez-key", "umavez-attempt", "idempotency-key"] {
            assert_eq!(request.header(name), None, "{name}");
        }
    }
    // A copy whose bytes differ, and one without a key.
    assert_eq!(gateway.send(&Delivery::json("/hooks", r#"{"id":"a","n":7}"#)).await.status, 204);
    assert_eq!(gateway.send(&Delivery::json("/hooks", "{}")).await.verdict(), "keyless");
    let metrics = gateway.metrics().await;
    assert_eq!(verdicts(&metrics, "orders"), [1.0, 3.0, 0.0, 0.0]);
    assert_eq!(metrics.value("umavez_items_total", &[("verdict", "keyless"), ("mode", "shadow")]), 1.0);
    assert_eq!(metrics.value("umavez_conflicts_total", &[("mode", "shadow")]), 1.0);
    assert_eq!(metrics.value("umavez_requests_total", &[("answer", "forwarded"), ("mode", "shadow")]), 5.0);
    assert_eq!(metrics.value("umavez_requests_total", &[]), 5.0);
    assert_eq!(upstream.received(), 5);
    // The log tells it at the start, and of each request.
    assert!(gateway.logs().contains("in shadow: verdicts are counted, and every copy is forwarded"));
    crate::support::eventually("a line that tells the mode", async || {
        gateway.log_lines().iter().any(|line| line["mode"] == "shadow" && line["verdict"] == "duplicate")
    })
    .await;
}

async fn copies_at_once_wait_for_nobody(pair: Pair) {
    let stores = Stores::open(pair).await;
    let gate = Gate::closed();
    let held = gate.clone();
    let upstream = Upstream::deciding(move |_, nth| {
        let reply = Reply::new(200, "");
        if nth == 1 { reply.behind(&held) } else { reply }
    })
    .await;
    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(SHADOW).start().await;
    let first = gateway.sending(&order("a"));
    upstream.until_received(1).await;
    // All of them are answered while the first one is still at the app.
    let copies = gateway.send_copies(&order("a"), 10).await;
    assert!(copies.iter().all(|copy| copy.status == 200 && copy.verdict() == "in_flight"), "{copies:?}");
    assert_eq!(upstream.received(), 11);
    gate.open();
    assert_eq!(first.await.unwrap().verdict(), "first");
    // Inline they would have waited for it, and been answered as copies.
    let metrics = gateway.until_metric("umavez_items_total", &[("verdict", "duplicate")], 10.0).await;
    assert_eq!(verdicts(&metrics, "orders"), [1.0, 10.0, 0.0, 0.0]);
    assert_eq!(metrics.value("umavez_duplicates_total", &[("layer", "waited"), ("mode", "shadow")]), 10.0);
}

async fn what_was_seen_in_shadow_is_known_after_the_switch(pair: Pair) {
    let stores = Stores::open(pair).await;
    let upstream = Upstream::answering(201, "made").await;
    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(SHADOW).start().await;
    assert_eq!(gateway.send(&order("a")).await.verdict(), "first");
    assert_eq!(gateway.send(&order("a")).await.verdict(), "duplicate");
    gateway.edit("mode = \"shadow\"", "mode = \"inline\"");
    let reloaded = gateway.reload().await;
    assert_eq!((reloaded.status, &reloaded.json()["routes"]["changed"][0]), (200, &"orders".into()));
    let copy = gateway.send(&order("a")).await;
    assert_eq!((copy.status, copy.text().as_str(), copy.is_replayed()), (201, "made", true));
    assert_eq!(upstream.received(), 2);
    let metrics = gateway.metrics().await;
    assert_eq!(verdicts(&metrics, "orders"), [1.0, 1.0, 0.0, 0.0]);
    assert_eq!(metrics.value("umavez_items_total", &[("verdict", "duplicate"), ("mode", "inline")]), 1.0);
}

async fn an_unsigned_request_passes_and_leaves_no_trace(pair: Pair) {
    let stores = Stores::open(pair).await;
    let upstream = Upstream::answering(200, "").await;
    let gateway =
        Gateway::in_front_of(&upstream).on(&stores).route(SIGNED).env("S", "the-secret").start().await;
    let body = r#"{"object":"whatsapp_business_account","entry":[{"id":"1","changes":[{"field":"messages",
        "value":{"metadata":{"phone_number_id":"2"},"messages":[{"id":"wamid.1","type":"text"}]}}]}]}"#;
    let unsigned = gateway.send(&Delivery::json("/chat", body)).await;
    assert_eq!((unsigned.status, unsigned.verdict().as_str()), (200, "refused"));
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.value("umavez_unsigned_total", &[("route", "chat"), ("mode", "shadow")]), 1.0);
    assert_eq!(verdicts(&metrics, "chat"), [0.0; 4]);
    // A forged event takes nothing from the real one, also when the mode changes.
    let real = gateway.send(&Delivery::json("/chat", body).signed_by_meta("the-secret")).await;
    assert_eq!(real.verdict(), "first");
    assert_eq!(upstream.received(), 2);
}

async fn nothing_is_held_and_a_failure_lets_the_retry_count_as_first(pair: Pair) {
    let stores = Stores::open(pair).await;
    let upstream =
        Upstream::scripted([Reply::hang_up(), Reply::new(500, "no"), Reply::new(200, "yes")]).await;
    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(SHADOW).start().await;
    for (status, verdict) in [(502, "first"), (500, "first"), (200, "first"), (200, "duplicate")] {
        let answer = gateway.send(&order("a")).await;
        assert_eq!((answer.status, answer.verdict().as_str()), (status, verdict));
        // The claim ends beside the answer; the next copy shall find its end.
        gateway.until_metric("umavez_in_flight", &[], 0.0).await;
    }
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.value("umavez_settlements_total", &[("settlement", "hold")]), 0.0);
    assert_eq!(gateway.ask_admin("GET", "/events/held").await.json()["held"].as_array().unwrap().len(), 0);
}

#[tokio::test]
async fn a_batch_is_forwarded_whole() {
    let upstream = Upstream::answering(200, "").await;
    let route = SIGNED.replace("secret = \"${S}\"\n", "");
    let gateway = Gateway::in_front_of(&upstream).route(&route).start().await;
    let body = |ids: &[&str]| {
        let messages: Vec<String> =
            ids.iter().map(|id| format!(r#"{{"id":"wamid.{id}","type":"text"}}"#)).collect();
        format!(
            r#"{{"object":"whatsapp_business_account","entry":[{{"id":"1","changes":[{{"field":"messages","value":{{"metadata":{{"phone_number_id":"2"}},"messages":[{}]}}}}]}}]}}"#,
            messages.join(", ")
        )
    };
    gateway.send(&Delivery::json("/chat", body(&["1", "2"]))).await;
    gateway.until_metric("umavez_in_flight", &[], 0.0).await;
    let second = body(&["2", "3", "1"]);
    assert_eq!(gateway.send(&Delivery::json("/chat", second.clone())).await.verdict(), "first");
    assert_eq!(upstream.last().text(), second);
    assert_eq!(upstream.last().header("umavez-removed"), None);
    assert_eq!(verdicts(&gateway.metrics().await, "chat"), [3.0, 2.0, 0.0, 0.0]);
}

#[tokio::test]
async fn what_is_past_the_limit_streams_to_the_app() {
    let upstream = Upstream::answering(200, "took it").await;
    let gateway = Gateway::in_front_of(&upstream).route(SHADOW).start().await;
    let long = format!(r#"{{"id":"a","text":"{}"}}"#, "x".repeat(100_000));
    for delivery in [Delivery::json("/hooks", long.clone()), Delivery::json("/hooks", long.clone()).chunked()]
    {
        let answer = gateway.send(&delivery).await;
        assert_eq!((answer.status, answer.text().as_str()), (200, "took it"));
        assert_eq!(upstream.last().text(), long);
    }
    let metrics = gateway.metrics().await;
    let told = metrics.value("umavez_requests_total", &[("answer", "too_large"), ("mode", "shadow")]);
    assert_eq!(told, 2.0, "inline they would have been refused");
}

#[tokio::test]
async fn without_any_store_everything_passes() {
    let mut stores = Stores::open_own(Pair::RedisPostgres).await;
    let upstream = Upstream::answering(200, "ok").await;
    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(SHADOW).start().await;
    assert_eq!(gateway.send(&order("before")).await.verdict(), "first");
    // Neither says that it is away: connections stay open, and nothing comes back.
    stores.postgres_mut().stall();
    stores.redis_mut().stall().await;
    let orders = (0..50).map(|n| (gateway.address(), order(&format!("o{n}")))).collect();
    let answers = send_all(orders).await;
    assert!(
        answers.iter().all(|answer| (answer.status, answer.text().as_str()) == (200, "ok")),
        "{answers:?}"
    );
    assert!(answers.iter().all(|answer| answer.verdict() == "unavailable"), "none waited for the stores");
    assert_eq!(upstream.received(), 51);
    let metrics = gateway.until_metric("umavez_items_total", &[("verdict", "unavailable")], 50.0).await;
    assert_eq!(verdicts(&metrics, "orders"), [1.0, 0.0, 0.0, 50.0]);
    stores.postgres_mut().resume();
    stores.redis_mut().resume().await;
}

#[test]
fn check_says_which_routes_are_in_shadow() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("umavez.toml");
    std::fs::write(&file, format!("[upstream]\nurl = \"http://127.0.0.1:1\"\n{SHADOW}")).unwrap();
    let checked = std::process::Command::new(env!("CARGO_BIN_EXE_umavez"))
        .args(["check", "--offline", "--config"])
        .arg(&file)
        .output()
        .unwrap();
    let (out, warned) = (String::from_utf8_lossy(&checked.stdout), String::from_utf8_lossy(&checked.stderr));
    assert!(checked.status.success(), "{warned}");
    assert!(out.contains("in shadow: counts, and forwards everything"), "{out}");
    assert!(warned.contains("route \"orders\".mode: in shadow"), "{warned}");
}
