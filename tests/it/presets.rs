//! What the field taught about single providers, told to the shipped rules.

use crate::support::fixtures::Fixture;
use crate::support::{Delivery, Gateway, Reply, Upstream, hub_sha256, unix_seconds};

fn route(provider: &str) -> String {
    format!("[[route]]\nname = \"r\"\npath = \"/r\"\nprovider = \"{provider}\"\n")
}

#[tokio::test]
async fn two_shopify_subscriptions_of_one_event_are_one_forward() {
    // PRV-5: the per-subscription id differs while the event is the same; copies arrive in the same instant.
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).route(&route("shopify")).start().await;
    let copy = |webhook: &str| {
        Delivery::json("/r", "{}")
            .header("X-Shopify-Topic", "orders/updated")
            .header("X-Shopify-Shop-Domain", "shop.myshopify.com")
            .header("X-Shopify-Event-Id", "e-1")
            .header("X-Shopify-Webhook-Id", webhook)
    };
    let (one, two) = tokio::join!(gateway.sending(&copy("w-1")), gateway.sending(&copy("w-2")));
    assert!(one.unwrap().is_success() && two.unwrap().is_success());
    assert_eq!(upstream.received(), 1);
}

#[tokio::test]
async fn a_github_redelivery_passes_until_the_app_has_taken_it() {
    // PRV-6: a dedup layer swallowed a requested redelivery, which keeps its GUID, although the first try had failed.
    let upstream = Upstream::scripted([Reply::new(500, "broken"), Reply::new(200, "fine")]).await;
    let gateway = Gateway::in_front_of(&upstream).route(&route("github")).start().await;
    let delivery = |hook: &str| {
        Delivery::json("/r", r#"{"action":"opened"}"#)
            .header("X-GitHub-Hook-ID", hook)
            .header("X-GitHub-Delivery", "11111111-0000-4000-8000-000000000001")
    };
    let mut answers = Vec::new();
    for _ in 0..3 {
        let answer = gateway.send(&delivery("1")).await;
        answers.push((answer.status, answer.verdict()));
    }
    let told: Vec<(u16, &str)> =
        answers.iter().map(|(status, verdict)| (*status, verdict.as_str())).collect();
    assert_eq!(told, [(500, "first"), (200, "first"), (200, "duplicate")]);
    assert_eq!(upstream.received(), 2);
    // The GUID is shared by every hook that hears of the event: another hook's copy is another event.
    assert_eq!(gateway.send(&delivery("2")).await.verdict(), "first");
}

#[tokio::test]
async fn a_slack_event_that_is_first_seen_as_a_retry_is_forwarded() {
    // PRV-7: a receiver dropped everything marked as a retry; for events missed during a deploy it was the only delivery.
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).route(&route("slack")).start().await;
    let retry = |number: &str| {
        Delivery::json("/r", r#"{"type":"event_callback","event_id":"Ev01"}"#)
            .header("X-Slack-Retry-Num", number)
            .header("X-Slack-Retry-Reason", "http_timeout")
    };
    assert_eq!(gateway.send(&retry("1")).await.verdict(), "first");
    assert_eq!(upstream.last().header("x-slack-retry-num"), None, "the mark that makes apps drop it is gone");
    assert_eq!(gateway.send(&retry("2")).await.verdict(), "duplicate");
    assert_eq!(upstream.received(), 1);
}

#[tokio::test]
async fn hubspot_items_that_share_an_event_id_are_all_forwarded() {
    // PRV-8: eventId is not guaranteed unique, and a retry raises attemptNumber; the body is a bare array.
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).route(&route("hubspot")).start().await;
    let batch = |attempt: &str| {
        let item = |subscription: u32, object: u32| {
            format!(
                r#"{{"eventId":100,"portalId":1,"subscriptionId":{subscription},"objectId":{object},"occurredAt":1{attempt}}}"#
            )
        };
        Delivery::json("/r", format!("[{},{}]", item(7, 5), item(8, 6)))
    };
    let first = batch("");
    assert_eq!(gateway.send(&first).await.verdict(), "first");
    assert_eq!(upstream.last().body, first.body);
    let again = gateway.send(&batch(r#","attemptNumber":1"#)).await;
    assert_eq!((again.status, again.verdict().as_str()), (200, "duplicate"));
    assert_eq!(upstream.received(), 1);
}

#[tokio::test]
async fn a_route_may_name_the_items_of_its_providers_batches_otherwise() {
    // A key of `@` parts put the provider's items aside: they were then of the whole body, nothing was found in it, and
    // every delivery was keyless and forwarded.
    let upstream = Upstream::answering(200, "").await;
    let own = format!("{}key = [\"@.portalId\", \"@.eventId\"]\n", route("hubspot"));
    let gateway = Gateway::in_front_of(&upstream).route(&own).start().await;
    let batch = |ids: &[u32]| {
        let items: Vec<String> = ids.iter().map(|id| format!(r#"{{"portalId":1,"eventId":{id}}}"#)).collect();
        Delivery::json("/r", format!("[{}]", items.join(",")))
    };
    assert_eq!(gateway.send(&batch(&[1, 2])).await.verdict(), "first");
    assert_eq!(gateway.send(&batch(&[2, 1])).await.verdict(), "duplicate");
    assert_eq!(gateway.send(&batch(&[2, 3])).await.verdict(), "first");
    assert_eq!(upstream.last().body, batch(&[3]).body);
    assert_eq!(upstream.last().header("umavez-removed").as_deref(), Some("1"));
    assert_eq!(upstream.received(), 2);
}

/// What a SOAP app answers Salesforce with.
fn acknowledges(ack: &str) -> String {
    format!(
        "<?xml version=\"1.0\"?><s:Envelope xmlns:s=\"http://schemas.xmlsoap.org/soap/envelope/\"><s:Body>\
         <notificationsResponse xmlns=\"http://soap.sforce.com/2005/09/outbound\">{ack}</notificationsResponse>\
         </s:Body></s:Envelope>"
    )
}

/// `Ack` false is a 200 too, and so is a fault: each counted as done unless it was `false` or `0` to the letter, every
/// retry was answered with it again, and the app never saw the notification.
#[tokio::test]
async fn a_salesforce_notification_that_the_app_does_not_acknowledge_comes_again() {
    let fault = acknowledges("").replace("notificationsResponse", "Fault");
    let ack = acknowledges("<Ack>true</Ack>");
    let refusals = [
        acknowledges("<Ack>false</Ack>"),
        acknowledges("<Ack>0</Ack>"),
        acknowledges("<Ack>\n false \n</Ack>"),
        acknowledges("<Ack/>"),
        acknowledges("<Ack>TRUE</Ack>"),
        acknowledges(""),
        fault,
    ];
    let answered = |body: &str| {
        Reply::with_headers(200, &[("Content-Type", "text/xml; charset=utf-8")], body.as_bytes())
    };
    let fixture = Fixture::named("salesforce-two-notifications");
    let delivery = Delivery::new("POST", "/r").header("Content-Type", "text/xml").body(fixture.body);
    for accepted in [
        ack.clone(),
        ack.replace("true", " 1 "),
        ack.replace("true", "\n\ttrue\r\n"),
        format!("\u{feff}{ack}"),
        // An app that speaks no SOAP is done by its status.
        String::new(),
        "ok".to_owned(),
    ] {
        let script = refusals.iter().chain([&accepted]).map(|body| answered(body));
        let upstream = Upstream::scripted(script).await;
        let gateway = Gateway::in_front_of(&upstream).route(&route("salesforce")).start().await;
        for refusal in &refusals {
            let answer = gateway.send(&delivery).await;
            assert_eq!((answer.status, answer.verdict().as_str()), (200, "first"), "{refusal}");
            assert_eq!(&answer.text(), refusal, "Salesforce is told what the app said");
        }
        for verdict in ["first", "duplicate"] {
            let answer = gateway.send(&delivery).await;
            assert_eq!((answer.verdict(), answer.text()), (verdict.to_owned(), accepted.clone()));
        }
        assert_eq!(upstream.received(), refusals.len() + 1);
    }
}

/// A retry of Linear's after a first try that failed was 401 for good: it comes a minute, an hour or seven hours later
/// with the stamp of the first.
#[tokio::test]
async fn a_retry_of_linear_keeps_its_first_stamp_and_passes() {
    let upstream = Upstream::scripted([Reply::new(500, ""), Reply::new(500, ""), Reply::new(200, "")]).await;
    let secret = format!("{}secret = \"k\"\n", route("linear"));
    let gateway = Gateway::in_front_of(&upstream).route(&secret).start().await;
    let stamped = |age_s: u64| {
        let body = format!(r#"{{"action":"update","webhookTimestamp":{}}}"#, (unix_seconds() - age_s) * 1000);
        let signature = hub_sha256("k", body.as_bytes()).replace("sha256=", "");
        Delivery::json("/r", body).header("Linear-Signature", &signature).header("Linear-Delivery", "d-1")
    };
    let mut told = Vec::new();
    for age_s in [66, 3_700, 25_500, 25_500, 9 * 3_600] {
        let answer = gateway.send(&stamped(age_s)).await;
        told.push((answer.status, answer.header("umavez").unwrap_or_default()));
    }
    let told: Vec<(u16, &str)> = told.iter().map(|(status, verdict)| (*status, verdict.as_str())).collect();
    assert_eq!(told[..4], [(500, "first"), (500, "first"), (200, "first"), (200, "duplicate")]);
    assert_eq!(told[4].0, 401);
}

/// A message's `<Redirect>` to the same route was a copy of the message, and of a bulk edit at Shopify only one product
/// came through: the preset's keys hold both for one event. A key of the route's own tells them apart.
#[tokio::test]
async fn a_key_of_the_routes_own_tells_steps_and_resources_apart() {
    let routes = recipe("A key of the route's own");
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).route(&routes).start().await;
    let message = |query: &str, token: &str| {
        Delivery::new("POST", &format!("/webhooks/sms{query}"))
            .header("Content-Type", "application/x-www-form-urlencoded")
            .header("I-Twilio-Idempotency-Token", token)
            .body("AccountSid=AC1&MessageSid=SM3&SmsStatus=received")
    };
    let edit = |event: &str, webhook: &str| {
        Delivery::json("/webhooks/shopify", r#"{"id":1}"#)
            .header("X-Shopify-Topic", "products/update")
            .header("X-Shopify-Shop-Domain", "loja.myshopify.com")
            .header("X-Shopify-Event-Id", event)
            .header("X-Shopify-Webhook-Id", webhook)
    };
    for (delivery, verdict) in [
        (message("", "t1"), "first"),
        (message("?step=2", "t2"), "first"),
        (message("", "t1"), "duplicate"),
        (message("?step=2", "t2"), "duplicate"),
        (edit("e-1", "w-1"), "first"),
        (edit("e-1", "w-2"), "first"),
        (edit("e-1", "w-2"), "duplicate"),
    ] {
        assert_eq!(gateway.send(&delivery).await.verdict(), verdict, "{}", delivery.target);
    }
    assert_eq!(upstream.received(), 4);
}

/// The routes of a recipe as `docs/recipes.md` has them, without their secrets: nothing is signed here.
fn recipe(title: &str) -> String {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/recipes.md")).unwrap();
    let (_, section) = page.split_once(&format!("\n## {title}\n")).unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let (_, toml) = section.split_once("```toml\n").unwrap();
    let (toml, _) = toml.split_once("```").unwrap();
    toml.lines().filter(|line| !line.starts_with("secret")).map(|line| format!("{line}\n")).collect()
}
