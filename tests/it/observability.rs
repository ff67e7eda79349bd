//! What an operator sees: counters that are exact, series that are bounded, secrets that never show.

use std::time::Duration;

use crate::stores_down::wired;
use crate::support::{
    Delivery, Gate, Gateway, Line, ORDERS, Pair, Reply, Stores, Upstream, eventually, nobody, order,
};

#[tokio::test]
async fn nothing_that_a_sender_chooses_becomes_a_series() {
    // OBS-1: the raw path as a label gave series without bound.
    let upstream = Upstream::answering(200, "").await;
    let wild = "[[route]]\nname = \"wild\"\npath = \"/wild/{*rest}\"\nkey = [\"$.id\"]\n";
    let gateway = Gateway::in_front_of(&upstream).route(wild).start().await;
    let mut connection = gateway.connect().await;
    let mut ask = async |n: usize| {
        connection.send(&Delivery::json(&format!("/wild/{n}/x"), format!(r#"{{"id":"{n}"}}"#))).await;
        connection.send(&Delivery::new("GET", &format!("/nowhere/{n}"))).await;
        connection.send(&Delivery::new(&format!("M{}", n % 97), &format!("/nowhere/{n}"))).await;
    };
    for n in 0..50 {
        ask(n).await;
    }
    let before = gateway.metrics().await;
    let (memory, _) = gateway.memory();
    for n in 50..2000 {
        ask(n).await;
    }
    let after = gateway.metrics().await;
    assert!(after.series() < before.series() + 100, "{} then {}", before.series(), after.series());
    assert!(after.text().len() < before.text().len() * 2);
    assert!(!after.text().contains("nowhere") && !after.text().contains("/wild/"));
    let (now, _) = gateway.memory();
    assert!(now < memory + 24 * 1024, "{memory} then {now} KiB");
}

#[tokio::test]
async fn a_store_that_fails_shows_and_is_no_duplicate() {
    // OBS-2: a store failure was swallowed; dedup was off for days, and nothing was visible.
    let stores = Stores::open(Pair::MemoryPostgres).await;
    let (wire, toml) = wired(&stores, "1s").await;
    let upstream = Upstream::answering(200, "").await;
    let route = format!("{ORDERS}on_durable_down = \"bypass\"\n");
    let gateway = Gateway::in_front_of(&upstream).stores_toml(&toml).route(&route).start().await;
    gateway.send(&order("protected")).await;
    wire.set(Line::Cut);
    for n in 0..10 {
        assert_eq!(gateway.send(&order(&format!("u{n}"))).await.status, 200);
    }
    let metrics = gateway.metrics().await;
    // The hot store in the process goes on deciding: exposed, but not yet without any dedup.
    assert_eq!(metrics.value("umavez_exposed_total", &[("route", "orders")]), 10.0);
    assert_eq!(metrics.value("umavez_bypassed_total", &[("route", "orders")]), 0.0);
    assert!(metrics.value("umavez_store_errors_total", &[("store", "durable")]) >= 1.0);
    assert_eq!(metrics.value("umavez_duplicates_total", &[]), 0.0);
    assert_eq!(upstream.received(), 11);
}

#[tokio::test]
async fn counters_say_exactly_what_happened() {
    // OBS-3: nobody could see how often a provider repeats.
    let gate = Gate::closed();
    let held = gate.clone();
    let upstream = Upstream::deciding(move |request, _| match request.text().as_str() {
        r#"{"id":"slow"}"# => Reply::new(200, "").behind(&held),
        r#"{"id":"fails"}"# => Reply::new(500, ""),
        _ => Reply::new(200, ""),
    })
    .await;
    let route = "[[route]]\nname = \"a\"\npath = \"/hooks\"\nkey = [\"$.id\"]\nin_flight_wait = \"100ms\"\n";
    let gateway = Gateway::in_front_of(&upstream).route(route).start().await;
    let slow = gateway.sending(&order("slow"));
    upstream.until_received(1).await;
    assert_eq!(gateway.send(&order("slow")).await.verdict(), "in_flight");
    gate.open();
    slow.await.unwrap();
    for id in ["one", "two", "one", "one", "two", "slow", "slow", "fails"] {
        gateway.send(&order(id)).await;
    }
    let metrics = gateway.metrics().await;
    let items = |verdict: &str| metrics.value("umavez_items_total", &[("route", "a"), ("verdict", verdict)]);
    // 3 firsts and the one that failed; 5 duplicates; 1 refusal in flight.
    assert_eq!((items("first"), items("duplicate"), items("in_flight")), (4.0, 5.0, 1.0));
    let requests =
        |answer: &str| metrics.value("umavez_requests_total", &[("route", "a"), ("answer", answer)]);
    assert_eq!((requests("forwarded"), requests("replayed"), requests("in_flight")), (4.0, 5.0, 1.0));
    let settled =
        |how: &str| metrics.value("umavez_settlements_total", &[("route", "a"), ("settlement", how)]);
    assert_eq!((settled("commit"), settled("release"), settled("hold")), (3.0, 1.0, 0.0));
    assert_eq!(metrics.value("umavez_duplicates_total", &[("route", "a")]), 5.0);
    assert_eq!(metrics.value("umavez_outcomes_total", &[("route", "a"), ("outcome", "answered")]), 4.0);
    assert_eq!(metrics.value("umavez_build_info", &[]), 1.0);
    for histogram in ["umavez_request_duration_seconds", "umavez_own_duration_seconds"] {
        assert_eq!(metrics.value(&format!("{histogram}_count"), &[]), 10.0, "{histogram}");
    }
    assert_eq!(metrics.value("umavez_upstream_duration_seconds_count", &[]), 4.0);
    assert!(metrics.value("umavez_store_duration_seconds_count", &[("store", "durable")]) >= 4.0);

    // One line per request tells the verdict and a short digest of the key, and never the key.
    let told = |verdict: &str| gateway.log_lines().iter().filter(|line| line["verdict"] == verdict).count();
    // Lines come through a pipe: the last one may be on its way.
    eventually("ten lines", async || told("first") + told("duplicate") + told("in_flight") == 10).await;
    assert_eq!((told("first"), told("duplicate"), told("in_flight")), (4, 5, 1));
    assert!(!gateway.logs().contains("orders:one") && !gateway.logs().contains("a:one"));
}

#[tokio::test]
async fn no_token_of_a_request_shows_in_logs_or_metrics() {
    // SEC-2: tokens in the path or query ended up in logs and metric labels.
    let upstream = Upstream::answering(200, "").await;
    let dead = nobody();
    let routes = format!(
        "[[route]]\nname = \"in\"\npath = \"/h/{{token}}/in\"\nkey = [\"path:token\", \"$.id\"]\nbody_limit = \"1KiB\"\n\
         [[route]]\nname = \"dead\"\npath = \"/dead/{{token}}\"\nkey = [\"$.id\"]\nupstream = \"http://{dead}\"\n\
         [[route]]\nname = \"signed\"\npath = \"/signed/{{token}}\"\nprovider = \"meta\"\nsecret = \"${{S}}\"\n"
    );
    let gateway = Gateway::in_front_of(&upstream).route(&routes).env("S", "k_SECRET111").start().await;
    let with = |target: &str, pad: usize| {
        Delivery::json(
            &format!("{target}?token=q_SECRET456"),
            format!(r#"{{"id":"b_SECRET000","pad":"{}"}}"#, "x".repeat(pad)),
        )
        .header("Authorization", "Bearer h_SECRET789")
    };
    let runs = [
        ("/h/tok_SECRET123/in", 0, 200),
        ("/h/tok_SECRET123/in", 0, 200),
        ("/h/tok_SECRET123/in", 2000, 413),
        ("/nowhere/tok_SECRET123", 0, 200),
        ("/dead/tok_SECRET123", 0, 502),
        ("/signed/tok_SECRET123", 0, 401),
    ];
    for (target, pad, status) in runs {
        assert_eq!(gateway.send(&with(target, pad)).await.status, status, "{target}");
    }
    let shown = format!("{}\n{}", gateway.metrics().await.text(), gateway.logs());
    for line in shown.lines() {
        assert!(!line.contains("SECRET"), "{line}");
    }
}

#[tokio::test]
async fn health_is_told_on_the_admin_listener_only() {
    let upstream = Upstream::answering(200, "the app").await;
    let gateway = Gateway::in_front_of(&upstream).start().await;
    for target in ["/live", "/ready"] {
        assert_eq!(gateway.ask_admin("GET", target).await.status, 200, "{target}");
        assert_eq!(gateway.send(&Delivery::new("GET", target)).await.text(), "the app");
    }
    assert_eq!(gateway.ask_admin("GET", "/nowhere").await.status, 404);
    assert_eq!(gateway.ask_admin("GET", "/events?key=orders:unknown").await.status, 404);
    assert!((400..500).contains(&gateway.ask_admin("POST", "/events/release").await.status));
}

#[tokio::test]
async fn a_web_page_cannot_have_the_operators_browser_ask() {
    // Any page that a browser on the gateway's machine showed could forget events, mark them done, have the
    // configuration read again, and by a name of its own that led to 127.0.0.1 read what the admin listener tells.
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).start().await;
    gateway.send(&order("a")).await;
    let address = gateway.admin().to_string();
    let ask = async |method: &str, target: &str, header: (&str, &str)| {
        let ask = Delivery::new(method, target).header(header.0, header.1);
        crate::support::send(gateway.admin(), &ask).await.status
    };
    let foreign =
        [("Host", "evil.example"), ("Origin", "https://evil.example"), ("Sec-Fetch-Site", "cross-site")];
    let pages = [
        ("POST", "/events/mark-done?key=orders:a"),
        ("POST", "/events/forget?key=orders:a"),
        ("POST", "/events/replay?key=orders:a"),
        ("POST", "/reload"),
        ("GET", "/events?key=orders:a"),
        ("GET", "/events/held"),
        ("GET", "/metrics"),
    ];
    for (method, target) in pages {
        for header in foreign {
            assert_eq!(ask(method, target, header).await, 403, "{method} {target} {header:?}");
        }
    }
    assert!(gateway.ask_admin("GET", "/actions").await.text().contains("\"actions\":[]"));
    assert_eq!(gateway.send(&order("a")).await.verdict(), "duplicate");
    // Who scrapes, probes, or looks by its address, does as before.
    let own = format!("http://{address}");
    for header in [("Host", &*address), ("Host", "localhost"), ("Origin", &own), ("Sec-Fetch-Site", "none")] {
        assert_eq!(ask("GET", "/metrics", header).await, 200, "{header:?}");
    }
    for target in ["/live", "/ready"] {
        assert_eq!(ask("GET", target, foreign[0]).await, 200, "{target}");
    }
}

#[tokio::test]
async fn an_admin_token_is_asked_for_where_one_is_set() {
    let upstream = Upstream::answering(200, "").await;
    let gateway =
        Gateway::in_front_of(&upstream).listen("admin_token = \"${T}\"").env("T", "t0ken").start().await;
    let ask = async |header: Option<&str>| {
        let mut ask = Delivery::new("GET", "/events/held");
        if let Some(header) = header {
            ask = ask.header("Authorization", header);
        }
        crate::support::send(gateway.admin(), &ask).await.status
    };
    assert_eq!(ask(None).await, 401);
    assert_eq!(ask(Some("Bearer wrong")).await, 401);
    assert_eq!(ask(Some("Bearer t0ken")).await, 200);
    let named = Delivery::new("GET", "/events/held").header("Host", "umavez.internal");
    let named = named.header("Authorization", "Bearer t0ken");
    assert_eq!(crate::support::send(gateway.admin(), &named).await.status, 200);
    tokio::time::timeout(Duration::from_secs(5), ask(Some("Basic t0ken"))).await.unwrap();
}
