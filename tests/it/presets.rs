//! What the field taught about single providers, told to the shipped rules.

use crate::support::fixtures::Fixture;
use crate::support::{Delivery, Gateway, Reply, Upstream};

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
async fn a_salesforce_notification_that_the_app_does_not_acknowledge_comes_again() {
    // `Ack` false is a 200 too: it counted as done, every retry was answered with it again, and the app never saw the
    // notification.
    let ack = |ack: &str| {
        let body = format!(
            "<?xml version=\"1.0\"?><s:Envelope xmlns:s=\"http://schemas.xmlsoap.org/soap/envelope/\"><s:Body>\
             <notificationsResponse xmlns=\"http://soap.sforce.com/2005/09/outbound\"><Ack>{ack}</Ack>\
             </notificationsResponse></s:Body></s:Envelope>"
        );
        Reply::with_headers(200, &[("Content-Type", "text/xml; charset=utf-8")], body.as_bytes())
    };
    let upstream = Upstream::scripted([ack("false"), ack("0"), ack(" true ")]).await;
    let gateway = Gateway::in_front_of(&upstream).route(&route("salesforce")).start().await;
    let fixture = Fixture::named("salesforce-two-notifications");
    let delivery = Delivery::new("POST", "/r").header("Content-Type", "text/xml").body(fixture.body);
    for verdict in ["first", "first", "first", "duplicate"] {
        let answer = gateway.send(&delivery).await;
        assert_eq!((answer.status, answer.verdict().as_str()), (200, verdict), "{}", answer.text());
    }
    assert_eq!(upstream.received(), 3);
}
