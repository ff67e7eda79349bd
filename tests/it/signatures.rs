//! Signature before claim: who can't sign can't make the gateway swallow an event.

use crate::signature_vectors::sender;
use crate::support::{
    Delivery, Gateway, Pair, Reply, Stores, Upstream, hub_sha256, on_every_store, stripe_v1, unix_seconds,
};

on_every_store! {
    a_forged_delivery_claims_nothing,
    one_event_to_two_endpoint_records_is_forwarded_once,
}

const META: &str = "[[route]]\nname = \"wa\"\npath = \"/wa\"\nprovider = \"meta\"\nsecret = \"k\"\n";
const STRIPE: &str =
    "[[route]]\nname = \"pay\"\npath = \"/pay\"\nprovider = \"stripe\"\nsecret = [\"new\", \"old\"]\n";

fn whatsapp(id: &str) -> Delivery {
    Delivery::json(
        "/wa",
        format!(
            r#"{{"object":"whatsapp_business_account","entry":[{{"id":"1","changes":[{{"value":{{"metadata":{{"phone_number_id":"2"}},"messages":[{{"id":"{id}"}}]}},"field":"messages"}}]}}]}}"#
        ),
    )
}

fn payment(id: &str) -> Delivery {
    Delivery::json("/pay", format!(r#"{{"id":"{id}","object":"event","type":"invoice.paid"}}"#))
}

async fn a_forged_delivery_claims_nothing(pair: Pair) {
    // SEC-1: an unsigned request claimed a key first; the genuine event was then dropped.
    let stores = Stores::open(pair).await;
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(META).start().await;
    let forged = [
        whatsapp("v1"),
        whatsapp("v1").header("X-Hub-Signature-256", "sha256=00"),
        whatsapp("v1").header("X-Hub-Signature-256", &hub_sha256("guessed", &whatsapp("v1").body)),
        whatsapp("v1").header("X-Hub-Signature-256", &hub_sha256("k", &whatsapp("v2").body)),
        whatsapp("v1").header("X-Hub-Signature-256", ""),
        whatsapp("v1").raw_header("X-Hub-Signature-256", b"sha256=\xff\xfe"),
    ];
    for delivery in &forged {
        assert_eq!(gateway.send(delivery).await.status, 401);
    }
    assert_eq!(upstream.received(), 0);
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.value("umavez_items_total", &[]), 0.0);
    assert_eq!(metrics.value("umavez_unsigned_total", &[("route", "wa")]), 6.0);
    assert_eq!(metrics.value("umavez_requests_total", &[("answer", "unauthorized")]), 6.0);
    if stores.has_redis() {
        // The breaker's probe leaves a key of its own for a second.
        let claimed = stores.redis().keys().await;
        assert!(claimed.iter().all(|key| key.ends_with(":#probe")), "{claimed:?}");
    }

    let genuine = whatsapp("v1").signed_by_meta("k");
    assert_eq!(gateway.send(&genuine).await.verdict(), "first");
    assert_eq!(gateway.send(&genuine).await.verdict(), "duplicate");
    assert_eq!(upstream.received(), 1);
}

async fn one_event_to_two_endpoint_records_is_forwarded_once(pair: Pair) {
    // PRV-10: two endpoint records point to one URL; the event comes twice at once with different signatures.
    let stores = Stores::open(pair).await;
    let upstream = Upstream::answering(200, "ok").await;
    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(STRIPE).start().await;
    let (one, two) = tokio::join!(
        gateway.sending(&payment("evt_9").signed_by_stripe("new")),
        gateway.sending(&payment("evt_9").signed_by_stripe("old"))
    );
    for answer in [one.unwrap(), two.unwrap()] {
        assert_eq!((answer.status, answer.text().as_str()), (200, "ok"));
    }
    assert_eq!(upstream.received(), 1);
}

#[tokio::test]
async fn an_old_or_half_right_stripe_signature_is_refused() {
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).route(STRIPE).start().await;
    let now = unix_seconds();
    let body = payment("evt_1").body;
    let refused = [
        payment("evt_1").signed_by_stripe_at(&["new"], now - 900),
        payment("evt_1").signed_by_stripe_at(&["other"], now),
        payment("evt_1")
            .header("Stripe-Signature", &format!("t={},v1={}", now + 1, stripe_v1("new", now, &body))),
        payment("evt_1").header("Stripe-Signature", &format!("t={now},v0={}", stripe_v1("new", now, &body))),
        payment("evt_1").header("Stripe-Signature", &format!("t={now}")),
        payment("evt_1"),
    ];
    for delivery in &refused {
        assert_eq!(gateway.send(delivery).await.status, 401, "{delivery:?}");
    }
    assert_eq!(upstream.received(), 0);
    // While a secret rotates, a sender signs with both, and one match is enough.
    let rotating = payment("evt_1").signed_by_stripe_at(&["retired", "old"], now);
    assert_eq!(gateway.send(&rotating).await.status, 200);
    assert_eq!(upstream.last().headers_named("stripe-signature"), [rotating.signature()]);
}

#[tokio::test]
async fn a_wrong_hottok_is_refused() {
    let upstream = Upstream::answering(200, "").await;
    let route =
        "[[route]]\nname = \"hot\"\npath = \"/hot\"\nprovider = \"hotmart\"\nsecret = \"${HOTTOK}\"\n";
    let gateway = Gateway::in_front_of(&upstream).route(route).env("HOTTOK", "tok-1").start().await;
    let event = || Delivery::json("/hot", r#"{"id":"h1","event":"PURCHASE_APPROVED"}"#);
    for delivery in
        [event(), event().header("X-HOTMART-HOTTOK", "tok-2"), event().header("X-HOTMART-HOTTOK", "tok-")]
    {
        assert_eq!(gateway.send(&delivery).await.status, 401);
    }
    assert_eq!(gateway.send(&event().header("X-Hotmart-Hottok", "tok-1")).await.verdict(), "first");
    assert!(!gateway.logs().contains("tok-1"));
}

#[tokio::test]
async fn a_route_may_take_and_drop_what_is_not_signed() {
    // For providers that disable a URL on errors: 200, nothing forwarded, nothing claimed, and counted.
    let upstream = Upstream::answering(200, "from the app").await;
    let route = format!("{META}on_unsigned = \"200\"\n");
    let gateway = Gateway::in_front_of(&upstream).route(&route).start().await;
    let answer = gateway.send(&whatsapp("v1")).await;
    assert_eq!((answer.status, answer.text().as_str()), (200, ""));
    assert_eq!(upstream.received(), 0);
    assert_eq!(gateway.metrics().await.value("umavez_unsigned_total", &[("route", "wa")]), 1.0);
    assert_eq!(gateway.send(&whatsapp("v1").signed_by_meta("k")).await.verdict(), "first");
}

impl Delivery {
    fn signature(&self) -> String {
        let header = self.headers.iter().find(|(name, _)| name == "Stripe-Signature").unwrap();
        String::from_utf8(header.1.clone()).unwrap()
    }
}

/// A committed delivery of `tests/fixtures`, to `target`.
fn fixture(case: &str, target: &str) -> Delivery {
    let path = |ending: &str| format!("{}/tests/fixtures/{case}.{ending}", env!("CARGO_MANIFEST_DIR"));
    let delivery = Delivery::new("POST", target).body(std::fs::read(path("body")).unwrap());
    let headers = std::fs::read_to_string(path("headers")).unwrap();
    let pairs = headers.lines().filter_map(|line| line.split_once(": "));
    pairs
        .filter(|(name, _)| *name != "Content-Length")
        .fold(delivery, |delivery, (name, value)| delivery.header(name, value))
}

#[tokio::test]
async fn a_signature_under_a_certificate_is_held_to_the_one_that_the_operator_gave() {
    let certificates = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/certificates");
    let upstream = Upstream::answering(200, "").await;
    let route = |certificate: &str| {
        format!(
            "[[route]]\nname = \"{certificate}\"\npath = \"/{certificate}\"\nprovider = \"paypal\"\n\
             webhook_id = \"WH-FIXTURE-ENDPOINT\"\n\
             public_key = {{ file = \"{certificates}/{certificate}.pem\" }}\n"
        )
    };
    let gateway = Gateway::in_front_of(&upstream).route(&route("paypal")).route(&route("sns")).start().await;
    let genuine = fixture("paypal-capture-completed", "/paypal");
    let mut forged = genuine.clone();
    forged.body =
        String::from_utf8(genuine.body.clone()).unwrap().replace("invented", "changed").into_bytes();
    assert_ne!(forged.body, genuine.body);
    assert_eq!(gateway.send(&forged).await.status, 401);
    let elsewhere = fixture("paypal-capture-completed", "/sns");
    assert_eq!(gateway.send(&elsewhere).await.status, 401, "under another's certificate");
    assert_eq!(gateway.send(&genuine).await.verdict(), "first");
    assert_eq!(gateway.send(&genuine).await.verdict(), "duplicate");
    assert_eq!(upstream.received(), 1);
    assert_eq!(upstream.last().body, genuine.body);
}

#[test]
fn what_a_route_leaves_unproven_is_said_when_it_is_checked() {
    let told = |provider: &str, more: &str| {
        let file = format!(
            "[upstream]\nurl = \"http://127.0.0.1:1\"\n\
             [[route]]\nname = \"r\"\npath = \"/r\"\nprovider = \"{provider}\"\n{more}\n"
        );
        let environment = [("K".to_owned(), "0123456789abcdef".to_owned())].into();
        let parsed = umavez::config::Config::parse(std::path::Path::new("u.toml"), &file, &environment);
        match parsed {
            Ok((_, warnings)) => warnings.iter().map(|warning| format!("{warning}\n")).collect::<String>(),
            Err(errors) => errors.to_string(),
        }
    };
    let sns = told("aws-sns", "");
    assert!(sns.contains("so its signature is not verified: whoever guesses an event's key"), "{sns}");
    let certificate = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/certificates/paypal.pem");
    let pem = format!("public_key = {{ file = \"{certificate}\" }}");
    let paypal = told("paypal", &format!("{pem}\nwebhook_id = \"WH-1\""));
    assert!(paypal.contains("paypal's signature covers a checksum of the body only"), "{paypal}");
    let missing = told("paypal", &pem);
    assert!(missing.contains("webhook_id: is missing, and the provider's signature covers it"), "{missing}");
    let unused = told("stripe", "secret = \"${K}\"\nwebhook_id = \"WH-1\"");
    assert!(unused.contains("webhook_id: nothing uses it"), "{unused}");
    let wrong = told("aws-sns", "public_key = \"not a certificate\"");
    assert!(wrong.contains("public_key: the public key should be PEM text"), "{wrong}");
    let mailgun = told("mailgun", "secret = \"${K}\"");
    assert!(
        mailgun.contains("events are named by $.event-data.id, which mailgun's signature does not cover"),
        "{mailgun}"
    );
    let github = told("github", "secret = \"${K}\"");
    assert!(github.contains("makes the gateway swallow that"), "{github}");
    assert_eq!(
        told("stripe", "secret = \"${K}\"").lines().filter(|line| line.contains("signature")).count(),
        0
    );
}

#[tokio::test]
async fn a_signature_over_the_url_holds_with_the_whole_url_and_with_its_base() {
    // The documents say the whole URL; the path was put behind it once more, and every signature failed.
    let upstream = Upstream::answering(200, "").await;
    for url in ["https://hooks.example.com/hooks/twilio", "https://hooks.example.com"] {
        let route = format!(
            "[[route]]\nname = \"sms\"\npath = \"/hooks/twilio\"\nprovider = \"twilio\"\n\
             secret = \"fixture-twilio-auth-token\"\npublic_url = \"{url}\"\n"
        );
        let gateway = Gateway::in_front_of(&upstream).route(&route).start().await;
        let sent = Delivery::new("POST", "/hooks/twilio")
            .header("Content-Type", "application/x-www-form-urlencoded; charset=UTF-8")
            .header("X-Twilio-Signature", "ay1JQg5nmb6KqwwGtGDc5Rh1WGs=")
            .body(include_bytes!("../fixtures/twilio-sms-status-sent.body"));
        assert_eq!(gateway.send(&sent).await.verdict(), "first", "{url}");
    }
}

/// The URL that the providers of the stories below call; a proxy in front makes another path of it.
const CALLED: &str = "https://hooks.example.com/hooks/all";

fn behind_a_proxy(provider: &str, public_url: &str) -> String {
    format!(
        "[[route]]\nname = \"{provider}\"\npath = \"/in/{provider}\"\nprovider = \"{provider}\"\nsecret = \"k\"\n\
         public_url = \"{public_url}\"\n"
    )
}

fn square(url: &str, query: &str, id: &str) -> Delivery {
    let body = format!(r#"{{"merchant_id":"m","event_id":"{id}"}}"#);
    let signature = sender::hmac_sha256(b"k", format!("{url}{query}{body}").as_bytes());
    Delivery::json(&format!("/in/square{query}"), body)
        .header("x-square-hmacsha256-signature", &sender::base64(&signature))
}

fn hubspot_item(id: u32) -> String {
    format!(r#"{{"portalId":1,"subscriptionId":2,"eventId":{id},"objectId":4,"occurredAt":5}}"#)
}

fn hubspot_v3(url: &str, body: &str, stamp: &str) -> String {
    sender::base64(&sender::hmac_sha256(b"k", format!("POST{url}{body}{stamp}").as_bytes()))
}

fn hubspot(url: &str, ids: &[u32], stamp: &str) -> Delivery {
    let items: Vec<String> = ids.iter().map(|id| hubspot_item(*id)).collect();
    let body = format!("[{}]", items.join(","));
    let signature = hubspot_v3(url, &body, stamp);
    Delivery::json("/in/hubspot", body)
        .header("X-HubSpot-Signature-v3", &signature)
        .header("X-HubSpot-Request-Timestamp", stamp)
}

#[tokio::test]
async fn a_public_url_given_whole_holds_where_a_proxy_in_front_changes_the_path() {
    // It was put before the path that arrived, whatever path it had itself, and every genuine delivery got 401.
    let upstream = Upstream::answering(200, "").await;
    let whole = "https://hooks.example.com/hooks/twilio";
    let twilio = behind_a_proxy("twilio", whole).replace("\"k\"", "\"fixture-twilio-auth-token\"");
    let gateway = Gateway::in_front_of(&upstream)
        .route(&twilio)
        .route(&behind_a_proxy("square", CALLED))
        .route(&behind_a_proxy("hubspot", CALLED))
        .start()
        .await;
    let sms = fixture("twilio-sms-status-sent", "/in/twilio");
    assert_eq!(gateway.send(&sms).await.verdict(), "first");
    assert_eq!(gateway.send(&square(CALLED, "?a=%20", "e1")).await.verdict(), "first");

    // As a base it holds too; any other URL doesn't.
    let base = format!("{CALLED}/in/square");
    assert_eq!(gateway.send(&square(&base, "", "e2")).await.verdict(), "first");
    for url in [
        "https://hooks.example.com/in/square",
        "https://hooks.example.com/hooks",
        "https://a.example/hooks/all",
    ] {
        assert_eq!(gateway.send(&square(url, "", "e3")).await.status, 401, "{url}");
    }

    // What is left of a batch is signed anew for the URL that its sender signed.
    let stamp = (unix_seconds() * 1000).to_string();
    assert_eq!(gateway.send(&hubspot(CALLED, &[1], &stamp)).await.verdict(), "first");
    for (url, ids, left) in [(CALLED.to_owned(), [1, 2], 2), (format!("{CALLED}/in/hubspot"), [1, 3], 3)] {
        assert_eq!(gateway.send(&hubspot(&url, &ids, &stamp)).await.verdict(), "first", "{url}");
        let got = upstream.last();
        let body = format!("[{}]", hubspot_item(left));
        assert_eq!(String::from_utf8(got.body.clone()).unwrap(), body);
        assert_eq!(got.header("x-hubspot-signature-v3"), Some(hubspot_v3(&url, &body, &stamp)), "{url}");
    }
}

#[tokio::test]
async fn a_replay_is_signed_for_the_url_that_the_sender_signed() {
    // With a `public_url` whose path the request doesn't continue, what was cut of a stored batch fitted another URL.
    let upstream = Upstream::scripted([Reply::silence(), Reply::new(200, "")]).await;
    let short = "on_unknown = \"hold\"\ntimeout = \"500ms\"\nin_flight_wait = \"200ms\"\n";
    let route = format!("{}{short}", behind_a_proxy("hubspot", CALLED));
    let gateway = Gateway::in_front_of(&upstream).route(&route).start().await;
    let stamp = (unix_seconds() * 1000).to_string();
    assert_eq!(gateway.send(&hubspot(CALLED, &[1, 2], &stamp)).await.verdict(), "held");
    let replayed = gateway.ask_admin("POST", "/events/replay?key=hubspot:1:2:2:4:5").await;
    assert_eq!(replayed.status, 200, "{}", replayed.text());
    let (got, body) = (upstream.last(), format!("[{}]", hubspot_item(2)));
    assert_eq!(String::from_utf8(got.body.clone()).unwrap(), body);
    assert_eq!(got.header("x-hubspot-signature-v3"), Some(hubspot_v3(CALLED, &body, &stamp)));
}

#[tokio::test]
async fn another_spelling_of_a_routes_path_does_not_slip_past_its_signature() {
    // Flask decodes `%68`, Express takes `/Shop/` for `/shop`: what passed as "no route" ran the handler unsigned.
    let upstream = Upstream::answering(200, "done").await;
    let route =
        "[[route]]\nname = \"shop\"\npath = \"/webhooks/shop\"\nprovider = \"hotmart\"\nsecret = \"${S}\"\n";
    let gateway = Gateway::in_front_of(&upstream).route(route).env("S", "right").start().await;
    let forged = |path: &str| Delivery::json(path, r#"{"id":"a","event":"PURCHASE_APPROVED"}"#);
    assert_eq!(gateway.send(&forged("/webhooks/shop")).await.status, 401);
    for path in [
        "/webhooks/%73hop",
        "//webhooks/shop",
        "/webhooks/shop/",
        "/Webhooks/Shop",
        "/x/../webhooks/shop",
        "/webhooks/shop;v=1?x=y",
        "/webhooks%2Fshop",
    ] {
        let answer = gateway.send(&forged(path)).await;
        assert_eq!(answer.status, 404, "{path}");
        assert!(answer.text().contains("/webhooks/shop"), "{path}: {}", answer.text());
    }
    assert_eq!(upstream.received(), 0);
    let refused = [("route", "shop"), ("answer", "refused")];
    assert_eq!(gateway.metrics().await.value("umavez_requests_total", &refused), 7.0);
    // Other paths are the app's, and so are other methods.
    assert_eq!(gateway.send(&forged("/webhooks/Shopping/")).await.status, 200);
    assert_eq!(gateway.send(&Delivery::new("GET", "/Webhooks/Shop")).await.status, 200);
}

#[tokio::test]
async fn another_spelling_does_not_slip_past_a_signature_as_another_routes_event() {
    // Beside a route for `/{*rest}` that nobody signs, `/Webhooks/Shop` was its event, and the app's handler for the signed
    // `/webhooks/shop` ran unsigned.
    let upstream = Upstream::answering(200, "done").await;
    let shop =
        "[[route]]\nname = \"shop\"\npath = \"/webhooks/shop\"\nprovider = \"hotmart\"\nsecret = \"${S}\"\n";
    let tenant = "[[route]]\nname = \"tenant\"\npath = \"/t/{tenant}/in\"\nprovider = \"hotmart\"\nsecret = \"${S}\"\n";
    let own = "[[route]]\nname = \"own\"\nhost = \"hooks.example\"\npath = \"/own\"\nprovider = \"hotmart\"\nsecret = \"${S}\"\n";
    let rest = "[[route]]\nname = \"rest\"\npath = \"/{*rest}\"\nkey = [\"$.id\"]\n";
    let watched = "[[route]]\nname = \"watched\"\npath = \"/watched\"\nkey = [\"$.id\"]\nmode = \"shadow\"\n";
    let gateway = Gateway::in_front_of(&upstream);
    let gateway = gateway.route(rest).route(shop).route(tenant).route(own).route(watched).env("S", "right");
    let gateway = gateway.start().await;
    let forged =
        |path: &str| Delivery::json(path, format!(r#"{{"id":"{path}","event":"PURCHASE_APPROVED"}}"#));
    for path in [
        "/Webhooks/Shop",
        "//webhooks/shop",
        "/webhooks/shop/",
        "/webhooks/%73hop",
        "/x/../webhooks/shop",
        "/x/..;/webhooks/shop",
        "/T/a/in",
        "/t/a/x/../in",
        "/Own",
    ] {
        let mut connection = gateway.connect().await;
        connection.write(&forged(path).to_bytes("hooks.example")).await.unwrap();
        let answer = connection.answer("POST").await.unwrap();
        assert_eq!((answer.status, answer.verdict().as_str()), (404, "refused"), "{path}");
    }
    assert_eq!(upstream.received(), 0);
    // The rest is the other route's: what is no spelling of a signed path, and what is one of a path that refuses nothing.
    for path in ["/webhooks/shopping", "/Webhooks/Shop/more", "/webhooks/", "/T/A/B/in", "/Watched"] {
        let answer = gateway.send(&forged(path)).await;
        assert_eq!((answer.status, answer.verdict().as_str()), (200, "first"), "{path}");
    }
    // A route that asks who sends loses nothing to one that doesn't.
    assert_eq!(gateway.send(&forged("/t/a%2fb/in")).await.status, 401);
}

#[tokio::test]
async fn a_placeholder_that_climbs_is_no_event_of_its_route() {
    // `/internal/..%2f..%2fwebhooks` is `/webhooks` to nginx, whose fence it passed, and was the inner route's event here.
    let upstream = Upstream::answering(200, "done").await;
    let route = "[[route]]\nname = \"inner\"\npath = \"/internal/{tenant}\"\nkey = [\"$.id\"]\n";
    let gateway = Gateway::in_front_of(&upstream).route(route).start().await;
    for (path, status) in [
        ("/internal/..%2f..%2fwebhooks", 404),
        ("/internal/%2e%2E%5cwebhooks", 404),
        ("/internal/loja%2f1", 200),
        ("/internal/loja..br", 200),
    ] {
        let answer = gateway.send(&Delivery::json(path, format!(r#"{{"id":"{path}"}}"#))).await;
        assert_eq!(answer.status, status, "{path}");
    }
    assert_eq!(upstream.received(), 2);
}

#[tokio::test]
async fn a_token_in_a_path_stays_out_of_the_log() {
    // A request for another spelling of `/h/{token}/in` was refused with its whole path in the log, the token too.
    let upstream = Upstream::answering(200, "done").await;
    let route = "[[route]]\nname = \"shop\"\npath = \"/h/{token}/in\"\nkey = [\"$.id\"]\n";
    let gateway = Gateway::in_front_of(&upstream).route(route).start().await;
    for (path, status) in [
        ("/h/tok_SECRET123/in/", 404),
        ("/H/tok_SECRET123/in", 404),
        ("/h/tok_SECRET123/in?also=tok_SECRET123", 200),
        ("/elsewhere/tok_SECRET123?also=tok_SECRET123", 200),
    ] {
        let answer = gateway.send(&Delivery::json(path, r#"{"id":"a"}"#)).await;
        assert_eq!(answer.status, status, "{path}");
        assert!(status == 200 || answer.text().contains("/h/{token}/in"), "{path}: {}", answer.text());
    }
    let logs = gateway.logs();
    assert_eq!(logs.matches("another spelling of a route's path").count(), 2, "{logs}");
    assert!(logs.contains("/h/{token}/in") && !logs.contains("tok_SECRET123"), "{logs}");
}
