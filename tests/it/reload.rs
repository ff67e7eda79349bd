//! SIGHUP and `POST /reload`: a right file takes effect in one step, a wrong one changes nothing and says why, and no
//! request notices either.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{
    Connection, Delivery, Gate, Gateway, ORDERS, Reply, Upstream, eventually, nobody, order, send, try_send,
    within,
};
use crate::tls::caller::Caller;
use crate::tls::pki::{Authority, Folder};

const ROUTE_B: &str = "\n[[route]]\nname = \"b\"\npath = \"/b\"\nkey = [\"$.id\"]\n";
const RELOADED: &str = "umavez_config_last_reload_successful";
const RELOADS: &str = "umavez_config_reloads_total";

#[tokio::test]
async fn routes_come_change_and_go_on_a_running_gateway() {
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).route(ORDERS).start().await;
    let mut kept = gateway.connect().await;
    let to_b = Delivery::json("/b", r#"{"id":"1"}"#);
    assert_eq!(kept.send(&to_b).await.verdict(), "", "no route yet: it passes through");

    gateway.edit("key = [\"$.id\"]\n", &format!("key = [\"$.id\"]\n{ROUTE_B}"));
    let told = gateway.reload().await;
    assert_eq!(told.status, 200);
    assert_eq!(
        told.json(),
        serde_json::json!({
            "reloaded": true,
            "routes": {"added": ["b"], "removed": [], "changed": []},
            "settings": [], "need_restart": [], "warnings": told.json()["warnings"],
        })
    );
    // A connection from before asks the new routes.
    assert_eq!(kept.send(&to_b).await.verdict(), "first");

    gateway
        .edit("name = \"orders\"", "name = \"orders\"\nduplicate_answer = { status = 299, body = \"seen\" }");
    gateway.edit(ROUTE_B.trim(), "");
    let told = gateway.reload().await.json();
    assert_eq!(told["routes"], serde_json::json!({"added": [], "removed": ["b"], "changed": ["orders"]}));
    assert_eq!(kept.send(&to_b).await.verdict(), "", "gone: it passes through again");
    gateway.send(&order("1")).await;
    assert_eq!(gateway.send(&order("1")).await.status, 299);

    let metrics = gateway.metrics().await;
    assert_eq!(metrics.value(RELOADS, &[("result", "success")]), 2.0);
    assert_eq!(metrics.value(RELOADS, &[("result", "failure")]), 0.0);
    assert_eq!(metrics.value(RELOADED, &[]), 1.0);
}

#[tokio::test]
async fn a_wrong_file_changes_nothing_and_every_problem_is_told() {
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).route(ORDERS).route(ROUTE_B).start().await;
    let began = gateway.metrics().await.value("umavez_config_last_reload_success_timestamp_seconds", &[]);
    assert!(began > 1.6e9);
    gateway.edit("path = \"/b\"", "path = \"/new\"\nsecret = { file = \"/nowhere\" }\ntimeot = \"1s\"");
    let told = gateway.reload().await;
    assert_eq!(told.status, 422);
    let told = told.json();
    assert_eq!(told["reloaded"], false);
    let problems = told["problems"].as_array().unwrap();
    let fields: Vec<&str> = problems.iter().map(|problem| problem["field"].as_str().unwrap()).collect();
    assert!(fields.contains(&"route \"b\".timeot"), "{told}");
    assert!(fields.contains(&"route \"b\".secret"), "{told}");
    for problem in problems {
        assert!(problem["place"].as_str().unwrap().contains("umavez.toml:"), "{problem}");
        assert!(!problem["what"].as_str().unwrap().is_empty(), "{problem}");
        assert!(!problem["mend"].as_str().unwrap().is_empty(), "{problem}");
    }

    gateway.signal("HUP");
    let metrics = gateway.until_metric(RELOADS, &[("result", "failure")], 2.0).await;
    assert_eq!((metrics.value(RELOADED, &[]), metrics.value(RELOADS, &[("result", "success")])), (0.0, 0.0));
    assert_eq!(metrics.value("umavez_config_last_reload_success_timestamp_seconds", &[]), began);
    eventually("the log tells each problem", async || {
        let lines = gateway.log_lines();
        let told = |field: &str| {
            lines
                .iter()
                .any(|line| line["by"] == "SIGHUP" && line["field"] == field && line["level"] == "ERROR")
        };
        told("route \"b\".timeot") && told("route \"b\".secret")
    })
    .await;
    // All is as it was.
    assert_eq!(gateway.send(&Delivery::json("/b", r#"{"id":"1"}"#)).await.verdict(), "first");
    assert_eq!(gateway.send(&Delivery::json("/new", r#"{"id":"1"}"#)).await.verdict(), "");

    // A file that was cut short is a valid one: it took every route away, and the admin token with them.
    let file = gateway.folder().join("umavez.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, "").unwrap();
    let told = gateway.reload().await;
    assert_eq!(told.status, 422);
    assert!(told.text().contains("no [[route]] any more"), "{}", told.text());
    std::fs::write(&file, text).unwrap();

    // Two routes that want the same are a problem as at the start.
    gateway.edit("path = \"/new\"\nsecret = { file = \"/nowhere\" }\ntimeot = \"1s\"", "path = \"/hooks\"");
    assert!(gateway.reload().await.text().contains("the route \\\"orders\\\" matches too"));
    gateway.edit(
        "path = \"/hooks\"\nkey = [\"$.id\"]\n\n\n[[route]]",
        "path = \"/o\"\nkey = [\"$.id\"]\n[[route]]",
    );
    assert_eq!(gateway.reload().await.status, 200);
    assert_eq!(gateway.metrics().await.value(RELOADED, &[]), 1.0);
}

#[tokio::test]
async fn a_request_under_way_ends_under_what_it_began_with() {
    let gate = Gate::closed();
    let held = gate.clone();
    let upstream = Upstream::deciding(move |request, _| {
        let slow = request.text().contains("slow");
        if slow { Reply::new(404, "gone").behind(&held) } else { Reply::new(200, "") }
    })
    .await;
    let route = ORDERS.replace("name =", "done = [\"2xx\", 404]\nname =");
    let gateway = Gateway::in_front_of(&upstream).route(&route).route(ROUTE_B).start().await;
    let slow = gateway.sending(&order("slow"));
    upstream.until_received(1).await;
    // Its route goes, and with it what its 404 means.
    gateway.edit("path = \"/hooks\"", "path = \"/elsewhere\"");
    gateway.edit("done = [\"2xx\", 404]\n", "");
    assert_eq!(gateway.reload().await.status, 200);
    gate.open();
    let answer = slow.await.unwrap();
    assert_eq!((answer.status, answer.text().as_str(), answer.verdict().as_str()), (404, "gone", "first"));
    // It was done, by the rule of its time.
    let copy = gateway.send(&Delivery::json("/elsewhere", r#"{"id":"slow"}"#)).await;
    assert_eq!((copy.status, copy.verdict().as_str()), (404, "duplicate"));
}

#[tokio::test]
async fn secrets_rotate_through_their_files() {
    let upstream = Upstream::answering(200, "").await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    std::fs::write(&file, "old\n").unwrap();
    let route = format!(
        "[[route]]\nname = \"chat\"\npath = \"/chat\"\nprovider = \"meta\"\nsecret = {{ file = {file:?} }}\n"
    );
    let gateway = Gateway::in_front_of(&upstream).route(&route).start().await;
    let status = async |secret: &str| {
        let body = r#"{"object":"page","entry":[]}"#;
        gateway.send(&Delivery::json("/chat", body).signed_by_meta(secret)).await.status
    };
    assert_eq!((status("old").await, status("new").await), (200, 401));
    std::fs::write(&file, "new\n").unwrap();
    assert_eq!((status("old").await, status("new").await), (200, 401), "not before it is told to");
    gateway.signal("HUP");
    gateway.until_metric(RELOADS, &[("result", "success")], 1.0).await;
    assert_eq!((status("old").await, status("new").await), (401, 200));
    assert!(!gateway.logs().contains("\"old\"") && !gateway.logs().contains("\"new\""));
}

#[tokio::test]
async fn what_needs_a_restart_is_left_and_named() {
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).route(ORDERS).start().await;
    let other = nobody();
    gateway
        .edit(&format!("public = \"{}\"", gateway.address()), &format!("public = \"{other}\"\nworkers = 3"));
    gateway.edit("[upstream]", "[durable]\nurl = \"sqlite:other.db\"\n[limits]\nidle_timeout = \"3s\"\nbody_timeout = \"9s\"\n[upstream]");
    for settings in [&["limits.body_timeout"][..], &[]] {
        let told = gateway.reload().await;
        let told = (told.status, told.json());
        assert_eq!(told.0, 200);
        let restart = ["listen.public", "listen.workers", "durable", "limits.idle_timeout"];
        assert_eq!((&told.1["need_restart"], &told.1["settings"]), (&restart.into(), &settings.into()));
    }
    assert_eq!(gateway.send(&order("1")).await.verdict(), "first", "it listens where it did");
    assert!(try_send(other, &order("1")).await.is_err());
    let lines = gateway.log_lines();
    assert!(
        lines.iter().any(|line| line["setting"] == "listen.public" && line["level"] == "WARN"),
        "{lines:?}"
    );
}

#[tokio::test]
async fn the_admin_token_and_the_trusted_proxies_change_at_once() {
    let upstream = Upstream::answering(200, "").await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "the-first-token-of-all").unwrap();
    let gateway = Gateway::in_front_of(&upstream)
        .listen(&format!("admin_token = {{ file = {file:?} }}\n#trusted"))
        .start()
        .await;
    let bearer = |token: &str| format!("Bearer {token}");
    let ask = async |method: &str, target: &str, token: &str| {
        send(gateway.admin(), &Delivery::new(method, target).header("Authorization", &bearer(token))).await
    };
    assert_eq!(gateway.reload().await.status, 401, "nobody else may");
    let forwarded = order("1").header("X-Forwarded-Proto", "https");
    gateway.send(&forwarded).await;
    assert_eq!(upstream.last().header("x-forwarded-proto").as_deref(), Some("http"));
    std::fs::write(&file, "the-second-token-of-all").unwrap();
    gateway.edit("#trusted", "trusted_proxies = [\"127.0.0.1\"]");
    let told = ask("POST", "/reload", "the-first-token-of-all").await;
    assert_eq!(told.json()["settings"], serde_json::json!(["listen.admin_token", "listen.trusted_proxies"]));
    assert_eq!(ask("GET", "/metrics", "the-first-token-of-all").await.status, 401);
    assert_eq!(ask("GET", "/metrics", "the-second-token-of-all").await.status, 200);
    gateway.send(&order("2").header("X-Forwarded-Proto", "https")).await;
    assert_eq!(upstream.last().header("x-forwarded-proto").as_deref(), Some("https"));
}

#[tokio::test]
async fn a_providers_file_of_ones_own_is_read_again() {
    let upstream = Upstream::answering(200, "").await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine.toml");
    let shipped = std::fs::read_to_string("src/providers/hotmart.toml").unwrap();
    let mine = shipped.replace("name = \"hotmart\"", "name = \"mine\"");
    std::fs::write(&file, &mine).unwrap();
    // The directory is named at the file's top, before any table.
    let gateway = Gateway::in_front_of(&upstream)
        .route("[[route]]\nname = \"m\"\npath = \"/m\"\nprovider = \"hotmart\"\n")
        .start()
        .await;
    gateway.edit("[listen]", &format!("providers_dir = {:?}\n[listen]", folder.path()));
    gateway.edit("provider = \"hotmart\"", "provider = \"mine\"");
    assert_eq!(gateway.reload().await.json()["routes"]["changed"], serde_json::json!(["m"]));
    assert_eq!(gateway.reload().await.json()["routes"]["changed"], serde_json::json!([]), "nothing new");
    std::fs::write(&file, mine.replace("72h", "71h")).unwrap();
    let told = gateway.reload().await;
    let changed = told.json()["routes"]["changed"].clone();
    assert_eq!((changed, mine.contains("72h")), (serde_json::json!(["m"]), true), "{}", told.text());
    std::fs::write(&file, "name = 7").unwrap();
    assert_eq!(gateway.reload().await.status, 422);
}

#[tokio::test]
async fn reloads_under_load_lose_no_request_and_double_no_series() {
    let upstream = Upstream::answering(200, "ok").await;
    let gateway = Gateway::in_front_of(&upstream).route(ORDERS).route(ROUTE_B).start().await;
    gateway.send(&order("before")).await;
    let (address, series) = (gateway.address(), gateway.metrics().await.series());
    let stop = Arc::new(AtomicBool::new(false));
    let senders: Vec<_> = (0..4)
        .map(|sender| {
            let stop = Arc::clone(&stop);
            tokio::spawn(async move {
                let (mut kept, mut sent) = (Connection::to(address).await, 0);
                while !stop.load(Ordering::Relaxed) {
                    let delivery = order(&format!("{sender}-{sent}"));
                    let answer = if sender % 2 == 0 {
                        kept.send(&delivery).await
                    } else {
                        send(address, &delivery).await
                    };
                    assert_eq!((answer.status, answer.verdict().as_str()), (200, "first"), "{sender}-{sent}");
                    sent += 1;
                }
                sent
            })
        })
        .collect();
    let mut before = "timeout = \"60s\"".to_owned();
    gateway.edit("path = \"/b\"", &format!("path = \"/b\"\n{before}"));
    for round in 0..40 {
        upstream.until_received(upstream.received() + 1).await;
        let next = format!("timeout = \"{}s\"", 10 + round);
        gateway.edit(&before, &next);
        before = next;
        assert_eq!(gateway.reload().await.json()["routes"]["changed"], serde_json::json!(["b"]));
    }
    stop.store(true, Ordering::Relaxed);
    let mut sent = 1;
    for sender in senders {
        sent += sender.await.unwrap();
    }
    assert!(sent > 40, "{sent} requests in 40 reloads");
    assert_eq!(upstream.received(), sent);
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.series(), series);
    let counted = metrics.value("umavez_items_total", &[("route", "orders"), ("verdict", "first")]);
    assert!((counted - f64::from(u32::try_from(sent).unwrap())).abs() < 0.5, "{counted} of {sent}");
    assert_eq!(metrics.value(RELOADS, &[("result", "success")]), 40.0);
}

#[tokio::test]
async fn a_reload_whose_file_does_not_come_holds_up_neither_the_next_nor_a_stop() {
    // A read that never ended (a FIFO; a file system that hangs) left every later reload without an answer, and
    // kept the process after SIGTERM.
    let upstream = Upstream::answering(200, "").await;
    let mut gateway = Gateway::in_front_of(&upstream).route(ORDERS).start().await;
    let file = gateway.folder().join("umavez.toml");
    let aside = gateway.folder().join("aside.toml");
    std::fs::rename(&file, &aside).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&file).status().unwrap();
    assert!(made.success());

    let told = within("an answer", gateway.reload()).await;
    assert_eq!(told.status, 422, "{}", told.text());
    assert!(told.text().contains("took longer than"), "{}", told.text());
    assert_eq!(gateway.metrics().await.value(RELOADED, &[]), 0.0);

    let fifo = gateway.folder().join("fifo");
    std::fs::rename(&file, &fifo).unwrap();
    std::fs::copy(&aside, &file).unwrap();
    assert_eq!(within("an answer", gateway.reload()).await.status, 200);

    std::fs::rename(&fifo, &file).unwrap();
    gateway.signal("HUP");
    gateway.terminate();
    assert_eq!(gateway.wait_exit().await, Some(0), "{}", gateway.logs());
}

#[tokio::test]
async fn certificates_come_and_change_by_a_reload_and_a_broken_one_changes_nothing() {
    let (authority, folder) = (Authority::new(), Folder::new());
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).route(ORDERS).start().await;
    let mut plain = gateway.connect().await;
    // Once it has an answer it is known to be up: how it is spoken to is decided as it is accepted, not as it knocks.
    assert_eq!(plain.send(&order("1")).await.verdict(), "first");
    let old = authority.issue(&["hooks.example"]);
    let pair = folder.pair("old", &old);
    gateway.edit("[upstream]", &format!("[public_tls]\ncertificates = {pair}\n[upstream]"));
    assert_eq!(gateway.reload().await.json()["settings"], serde_json::json!(["public_tls"]));
    let caller = Caller::trusting(&authority, "hooks.example");
    assert_eq!(caller.shown(gateway.address()).await, old.der());
    assert_eq!(caller.send(gateway.address(), &order("1")).await.unwrap().status(), 200);
    // Who was connected before goes on as before.
    assert_eq!(plain.send(&order("1")).await.verdict(), "duplicate");

    // The new pair's key is another's, and a route goes in the same file: neither is taken.
    let new = authority.issue(&["hooks.example"]);
    let wrong = folder.pair("new", &new).replace("new.key", "old.key");
    assert!(wrong.contains("old.key"), "{wrong}");
    gateway.edit(&pair, &wrong);
    gateway.edit("path = \"/hooks\"", "path = \"/elsewhere\"");
    let told = gateway.reload().await;
    assert_eq!(told.status, 422, "{}", told.text());
    assert!(told.text().contains("public_tls.certificates"), "{}", told.text());
    assert_eq!(caller.shown(gateway.address()).await, old.der());
    assert_eq!(plain.send(&order("1")).await.verdict(), "duplicate");

    gateway.edit("old.key", "new.key");
    assert_eq!(gateway.reload().await.status, 200);
    assert_eq!(caller.shown(gateway.address()).await, new.der());
    assert_eq!(plain.send(&order("1")).await.verdict(), "", "the route is elsewhere now");
}
