//! What a provider sends to check a URL: it reaches the app, or the gateway answers it; and no event passes for one.

use std::path::Path;

use umavez::config::{Config, Environment};

use crate::support::{Delivery, Gateway, Upstream, hub_sha256, unix_seconds};

const GRAPH: &str = "provider = \"microsoft-graph\"\nsecret = \"state\"\n";
const WOO: &str = "provider = \"woocommerce\"\nsecret = \"k\"\n";
const SLACK: &str = "provider = \"slack\"\nsecret = [\"new\", \"old\"]\n";
const ZOOM: &str = "provider = \"zoom\"\nsecret = [\"new\", \"old\"]\n";
const META: &str = "provider = \"meta\"\nsecret = \"k\"\n";
const ANSWER: &str = "handshake = \"answer\"\n";

fn route(settings: &str) -> String {
    format!("[[route]]\nname = \"r\"\npath = \"/hook\"\n{settings}")
}

async fn gateway(upstream: &Upstream, settings: &str) -> Gateway {
    Gateway::in_front_of(upstream).route(&route(settings)).start().await
}

fn form(body: &str) -> Delivery {
    Delivery::new("POST", "/hook").header("Content-Type", "application/x-www-form-urlencoded").body(body)
}

fn slack(body: &str, secret: &str) -> Delivery {
    let at = unix_seconds();
    let signature = format!("v0={}", sign_hex(secret, &format!("v0:{at}:{body}")));
    Delivery::json("/hook", body)
        .header("X-Slack-Request-Timestamp", &at.to_string())
        .header("X-Slack-Signature", &signature)
}

fn zoom(body: &str, secret: &str) -> Delivery {
    let at = unix_seconds();
    let signature = format!("v0={}", sign_hex(secret, &format!("v0:{at}:{body}")));
    Delivery::json("/hook", body)
        .header("x-zm-request-timestamp", &at.to_string())
        .header("x-zm-signature", &signature)
}

fn sign_hex(secret: &str, text: &str) -> String {
    hub_sha256(secret, text.as_bytes()).trim_start_matches("sha256=").to_owned()
}

#[tokio::test]
async fn an_unsigned_handshake_reaches_the_app_on_a_route_with_a_secret() {
    let upstream = Upstream::answering(200, "Validation: a b").await;
    let graph = gateway(&upstream, &format!("{GRAPH}on_keyless = \"reject\"\n")).await;
    let check = Delivery::new("POST", "/hook?validationToken=Validation%3A+a%20b");
    for _ in 0..2 {
        let answer = graph.send(&check).await;
        assert_eq!((answer.status, answer.verdict().as_str()), (200, "keyless"));
        assert_eq!(answer.text(), "Validation: a b");
    }
    assert_eq!(upstream.received(), 2);
    assert_eq!(upstream.last().target, "/hook?validationToken=Validation%3A+a%20b");
    assert_eq!(graph.metrics().await.value("umavez_unsigned_total", &[("route", "r")]), 0.0);

    let woo = gateway(&upstream, WOO).await;
    assert_eq!(woo.send(&form("webhook_id=12")).await.verdict(), "keyless");
    assert_eq!(upstream.last().text(), "webhook_id=12");
}

#[tokio::test]
async fn no_event_passes_for_a_handshake() {
    let upstream = Upstream::answering(200, "").await;
    let graph = gateway(&upstream, GRAPH).await;
    let notices = r#"{"value":[{"id":"1","tenantId":"t","subscriptionId":"s","clientState":"guessed"}]}"#;
    let forged = [
        Delivery::json("/hook?validationToken=x", notices),
        Delivery::json("/hook?validationToken=x", " "),
        Delivery::json("/hook?validationToken=x", notices).chunked(),
        Delivery::json("/hook?validationToken=", notices),
        Delivery::json("/hook", notices),
    ];
    for delivery in &forged {
        assert_eq!(graph.send(delivery).await.status, 401, "{delivery:?}");
    }
    let woo = gateway(&upstream, WOO).await;
    let forged = [
        form("webhook_id=12&id=7"),
        form("webhook_id=12&webhook_id=13"),
        form("webhook_id=12&"),
        form("webhook_id="),
        form("id=7"),
        form(""),
        Delivery::json("/hook", "webhook_id=12"),
        Delivery::json("/hook", r#"{"webhook_id":12,"id":7}"#),
    ];
    for delivery in &forged {
        assert_eq!(woo.send(delivery).await.status, 401, "{delivery:?}");
    }
    // A signature is demanded of what only looks like a signed provider's handshake.
    let slack_gateway = gateway(&upstream, SLACK).await;
    let challenge = r#"{"type":"url_verification","challenge":"c"}"#;
    assert_eq!(slack_gateway.send(&Delivery::json("/hook", challenge)).await.status, 401);
    assert_eq!(slack_gateway.send(&slack(challenge, "guessed")).await.status, 401);
    assert_eq!(upstream.received(), 0);
}

#[tokio::test]
async fn an_event_that_says_it_is_a_handshake_is_still_an_event() {
    let upstream = Upstream::answering(200, "").await;
    let gateway = gateway(&upstream, &format!("{SLACK}{ANSWER}")).await;
    let both = r#"{"type":"url_verification","challenge":"c","event_id":"Ev1"}"#;
    assert_eq!(gateway.send(&slack(both, "new")).await.verdict(), "first");
    assert_eq!(gateway.send(&slack(both, "new")).await.verdict(), "duplicate");
    assert_eq!(upstream.received(), 1);
}

#[tokio::test]
async fn the_gateway_echoes_what_graph_slack_and_meta_want_to_read() {
    let upstream = Upstream::answering(404, "from the app").await;
    let graph = gateway(&upstream, &format!("{GRAPH}{ANSWER}")).await;
    let answer =
        graph.send(&Delivery::new("POST", "/hook?validationToken=Validation%3A+a%2Bb%3Cscript%3E")).await;
    assert_eq!((answer.status, answer.text().as_str()), (200, "Validation: a+b<script>"));
    assert_eq!(answer.header("Content-Type").unwrap(), "text/plain; charset=utf-8");
    assert_eq!(answer.header("X-Content-Type-Options").unwrap(), "nosniff");
    assert_eq!(answer.verdict(), "keyless");
    let metrics = graph.metrics().await;
    assert_eq!(metrics.value("umavez_requests_total", &[("answer", "handshake")]), 1.0);

    let slack_gateway = gateway(&upstream, &format!("{SLACK}{ANSWER}")).await;
    let challenge = r#"{"token":"t","challenge":"c-\u00e9","type":"url_verification"}"#;
    let answer = slack_gateway.send(&slack(challenge, "old")).await;
    assert_eq!((answer.status, answer.text().as_str()), (200, "c-é"));

    let meta = gateway(&upstream, &format!("{META}{ANSWER}verify_token = [\"t1\", \"t2\"]\n")).await;
    let ask = |token: &str| {
        let target = format!("/hook?hub.mode=subscribe&hub.challenge=1158201444&hub.verify_token={token}");
        Delivery::new("GET", &target)
    };
    for token in ["t1", "t2"] {
        let answer = meta.send(&ask(token)).await;
        assert_eq!((answer.status, answer.text().as_str()), (200, "1158201444"));
    }
    assert_eq!(upstream.received(), 0);
    // Another token may be the app's own: the app says what it thinks of it.
    for token in ["t3", "", "t"] {
        assert_eq!(meta.send(&ask(token)).await.text(), "from the app");
    }
    assert_eq!(meta.send(&Delivery::new("GET", "/hook")).await.text(), "from the app");
    assert_eq!(upstream.received(), 4);
}

#[tokio::test]
async fn zooms_token_is_hashed_under_the_secret_that_it_was_signed_with() {
    // The answer's members came in the order of their names, not in the one that Zoom documents.
    let upstream = Upstream::answering(404, "").await;
    let gateway = gateway(&upstream, &format!("{ZOOM}{ANSWER}")).await;
    let body = r#"{"event":"endpoint.url_validation","payload":{"plainToken":"q\"1"},"event_ts":1}"#;
    for secret in ["new", "old"] {
        let answer = gateway.send(&zoom(body, secret)).await;
        let hashed = sign_hex(secret, "q\"1");
        assert_eq!(answer.text(), format!(r#"{{"plainToken":"q\"1","encryptedToken":"{hashed}"}}"#));
        assert_eq!(answer.header("Content-Type").unwrap(), "application/json");
    }
    assert_eq!(gateway.send(&zoom(body, "guessed")).await.status, 401);
    assert_eq!(upstream.received(), 0);
}

#[tokio::test]
async fn woocommerces_ping_is_answered_and_an_endless_challenge_goes_to_the_app() {
    let upstream = Upstream::answering(418, "").await;
    let woo = gateway(&upstream, &format!("{WOO}{ANSWER}")).await;
    assert_eq!(woo.send(&form("webhook_id=12")).await.status, 200);
    assert_eq!(upstream.received(), 0);
    let graph = gateway(&upstream, &format!("{GRAPH}{ANSWER}")).await;
    let long = format!("/hook?validationToken={}", "x".repeat(5000));
    assert_eq!(graph.send(&Delivery::new("POST", &long)).await.status, 418);
}

#[test]
fn a_route_that_lacks_what_answering_takes_is_refused() {
    let problems = |settings: &str| {
        let text = format!("[upstream]\nurl = \"http://127.0.0.1:1\"\n{}", route(settings));
        Config::parse(Path::new("u.toml"), &text, &Environment::new()).unwrap_err().to_string()
    };
    for (settings, said) in [
        (format!("{META}{ANSWER}"), "verify_token: is missing: the gateway answers handshakes"),
        (format!("{META}verify_token = \"t\"\n"), "verify_token: is not used: the app answers handshakes"),
        (format!("{SLACK}{ANSWER}verify_token = \"t\"\n"), "repeats no token"),
        (format!("provider = \"slack\"\n{ANSWER}"), "only a signed handshake can be answered"),
        (format!("provider = \"aws-sns\"\n{ANSWER}"), "no handshake that the gateway can answer"),
        (format!("key = [\"$.id\"]\n{ANSWER}"), "no handshake that the gateway can answer"),
        (format!("{META}handshake = \"both\"\n"), "write \"forward\" or \"answer\""),
    ] {
        assert!(problems(&settings).contains(said), "{settings}: {}", problems(&settings));
    }
}
