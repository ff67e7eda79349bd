//! What single provider files were found to say wrongly, or not at all: each a delivery that was lost, repeated, or
//! alarmed of.

use http::HeaderMap;
use umavez::providers::Provider;

use crate::signature_vectors::Sent;
use crate::support::{Delivery, Gateway, Upstream};

fn route(provider: &str) -> String {
    format!("[[route]]\nname = \"r\"\npath = \"/r\"\nprovider = \"{provider}\"\n")
}

fn key(provider: &str, body: &str) -> Vec<(String, Option<String>)> {
    let found = Provider::shipped(provider).unwrap().items(&Sent::new(body).delivery());
    let shown = |parts: &Vec<Box<[u8]>>| {
        parts.iter().map(|part| String::from_utf8_lossy(part)).collect::<Vec<_>>().join(" ")
    };
    found.list.iter().map(|item| (item.place(), item.parts.as_ref().ok().map(shown))).collect()
}

/// A provider, its body with this after the last member, and what its list begins with.
type Beside = (&'static str, fn(&str) -> String, &'static str);

/// Beside copies of Microsoft Graph's, Adyen's and Evolution's, what nobody had seen before was swallowed with the body
/// around them.
#[tokio::test]
async fn what_stands_beside_a_list_of_copies_reaches_the_app() {
    let graph = |more: &str| {
        format!(
            r#"{{"value":[{{"tenantId":"t","subscriptionId":"s","id":"1"}}],"validationTokens":["ey"]{more}}}"#
        )
    };
    let adyen = |more: &str| {
        format!(
            r#"{{"live":"false","notificationItems":[{{"NotificationRequestItem":{{"merchantAccountCode":"m","pspReference":"p","eventCode":"CAPTURE","success":"true"}}}}]{more}}}"#
        )
    };
    let evolution = |more: &str| {
        format!(
            r#"{{"event":"messages.upsert","instance":"i","data":[{{"key":{{"id":"1"}},"message":{{"a":[1]}}}}],"sender":"55"{more}}}"#
        )
    };
    let cases: [Beside; 3] = [
        ("microsoft-graph", graph, r#"{"value":["#),
        ("adyen", adyen, r#""notificationItems":["#),
        ("evolution", evolution, r#""data":["#),
    ];
    for (provider, body, list) in cases {
        let upstream = Upstream::answering(200, "").await;
        let gateway = Gateway::in_front_of(&upstream).route(&route(provider)).start().await;
        let send = |more: &str| Delivery::json("/r", body(more));
        assert_eq!(gateway.send(&send("")).await.verdict(), "first", "{provider}");
        assert_eq!(gateway.send(&send("")).await.verdict(), "duplicate", "{provider}");
        // What only describes, or is nothing, tells nothing new.
        for more in [r#","n":1,"s":"x""#, r#","more":[ ],"other":{}"#] {
            assert_eq!(gateway.send(&send(more)).await.verdict(), "duplicate", "{provider} {more}");
        }
        assert_eq!(upstream.received(), 1);
        let more = r#","lifecycle":[{"k":1}]"#;
        assert_eq!(gateway.send(&send(more)).await.verdict(), "keyless", "{provider}");
        let (seen, whole) = (upstream.last(), body(more));
        assert_eq!(seen.header("umavez-removed").as_deref(), Some("1"), "{provider}");
        let (before, _) = whole.split_once(list).unwrap();
        assert!(seen.text().starts_with(&format!("{before}{list}]")), "{provider}: {}", seen.text());
        assert!(seen.text().ends_with(&format!("{more}}}")), "{provider}: {}", seen.text());
    }
}

/// What stood beside Adyen's notification in its element of the list went with it: such a batch isn't cut.
#[tokio::test]
async fn what_stands_in_an_items_own_element_does_not_go_with_it() {
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).route(&route("adyen")).start().await;
    let body = |more: &str| {
        Delivery::json(
            "/r",
            format!(
                r#"{{"notificationItems":[{{"NotificationRequestItem":{{"merchantAccountCode":"m","pspReference":"p","eventCode":"CAPTURE","success":"true"}}{more}}}]}}"#
            ),
        )
    };
    assert_eq!(gateway.send(&body("")).await.verdict(), "first");
    assert_eq!(gateway.send(&body(r#","n":1"#)).await.verdict(), "duplicate");
    let strange = body(r#","OtherItem":{"id":7}"#);
    assert_eq!(gateway.send(&strange).await.verdict(), "keyless");
    assert_eq!(upstream.last().body, strange.body, "whole");
    assert_eq!(
        key("adyen", &String::from_utf8(strange.body).unwrap()),
        [
            ("notificationItems[0].NotificationRequestItem".to_owned(), Some("m p CAPTURE true".to_owned())),
            ("notificationItems[0].OtherItem".to_owned(), None)
        ]
    );
}

/// Where an event of Evolution's comes alone, what stands beside `data` is that event's: its copies stay copies.
#[test]
fn beside_an_event_that_comes_alone_nothing_is_another() {
    let body = r#"{"event":"messages.upsert","instance":"i","data":{"key":{"id":"1"}},"more":{"k":[1]}}"#;
    assert_eq!(key("evolution", body), [("data".to_owned(), Some("i messages.upsert 1".to_owned()))]);
    let none = r#"{"event":"messages.upsert","instance":"i","data":[],"more":{"k":[1]}}"#;
    assert_eq!(key("evolution", none), [("more".to_owned(), None)]);
}

const ORG: &str = "<OrganizationId>";

fn notifications(org: &str, ids: &[u32]) -> String {
    let items: String = ids
        .iter()
        .map(|id| {
            format!("<Notification><Id>{id}</Id><sObject><Id>r{id}</Id><N>x</N></sObject></Notification>")
        })
        .collect();
    format!("<notifications>{ORG}{org}</OrganizationId>{items}</notifications>")
}

fn soap(inside: &str) -> String {
    format!("<Envelope><Body>{inside}</Body></Envelope>")
}

/// Of two `notifications` in one SOAP body only the last one's were events: copies of the others reached the app again,
/// and new ones went with copies of the last.
#[tokio::test]
async fn every_notification_of_a_soap_body_is_an_event() {
    let upstream = Upstream::answering(200, "ok").await;
    let gateway = Gateway::in_front_of(&upstream).route(&route("salesforce")).start().await;
    let send = |text: String| Delivery::new("POST", "/r").header("Content-Type", "text/xml").body(text);
    let both = |a: &[u32], b: &[u32]| send(soap(&(notifications("A", a) + &notifications("B", b))));
    let named = |place: &str, parts: &str| (place.to_owned(), Some(parts.to_owned()));
    let found = key("salesforce", &String::from_utf8(both(&[1], &[1, 2]).body).unwrap());
    assert_eq!(
        found,
        [
            named("Notification[0]", "A 1"),
            named("notifications[1].Notification[0]", "B 1"),
            named("notifications[1].Notification[1]", "B 2")
        ]
    );
    assert_eq!(gateway.send(&both(&[1], &[1])).await.verdict(), "first");
    assert_eq!(gateway.send(&both(&[1], &[1])).await.verdict(), "duplicate");
    assert_eq!(gateway.send(&both(&[1, 2], &[1])).await.verdict(), "first");
    assert_eq!(upstream.last().text(), soap(&(notifications("A", &[2]) + &notifications("B", &[]))));
    // A key of a route's own that was written for one goes on to mean the item's.
    let own = ["xml:/Envelope/Body/notifications/OrganizationId", "@.Id"].map(str::to_owned);
    let rules = Provider::shipped("salesforce").unwrap().rules.under_key(&own).unwrap();
    let sent = Sent::new(both(&[1], &[2]).body);
    let parts: Vec<String> = rules
        .items(&sent.delivery())
        .list
        .iter()
        .map(|item| String::from_utf8_lossy(&item.parts.as_ref().unwrap().concat()).into_owned())
        .collect();
    assert_eq!(parts, ["A1", "B2"]);
}

/// An empty SOAP envelope, in which there is no `Ack`, was taken for one: the event never came again.
#[test]
fn an_envelope_with_nothing_in_it_acknowledges_nothing() {
    let salesforce = Provider::shipped("salesforce").unwrap();
    for (answer, refuses) in [
        ("<Envelope/>", true),
        ("<s:Envelope xmlns:s=\"u\"></s:Envelope>", true),
        ("<?xml version=\"1.0\"?><Envelope> \n </Envelope>", true),
        ("<Envelope><Body/></Envelope>", true),
        ("<Envelope>ok</Envelope>", true),
        ("", false),
        ("<ok/>", false),
        ("<Envelopes/>", false),
        ("{\"Envelope\":\"\"}", false),
    ] {
        assert_eq!(salesforce.is_refused_by(&HeaderMap::new(), Some(answer.as_bytes())), refuses, "{answer}");
    }
}

/// What a provider writes anew into each copy raised the alarm that is for two events under one key.
#[tokio::test]
async fn what_changes_from_copy_to_copy_is_no_conflict() {
    let hub = |attempt: u32, more: &str| {
        format!(
            r#"[{{"attemptNumber":{attempt},"portalId":1,"subscriptionId":7,"eventId":100,"objectId":5,"occurredAt":1{more}}}]"#
        )
    };
    let cases = [
        (
            "hotmart",
            r#"{"creation_date":1,"id":"e","event":"A","data":{"n":1}}"#.to_owned(),
            r#"{"creation_date":22,"id":"e","event":"A","data":{"n":1}}"#.to_owned(),
            r#"{"creation_date":1,"id":"e","event":"A","data":{"n":2}}"#.to_owned(),
        ),
        ("hubspot", hub(0, ""), hub(12, ""), hub(0, r#","propertyValue":"x""#)),
        (
            "google-pubsub",
            r#"{"message":{"messageId":"1","data":"a"},"subscription":"s","deliveryAttempt":1}"#.to_owned(),
            r#"{"message":{"messageId":"1","data":"a"},"subscription":"s","deliveryAttempt":10}"#.to_owned(),
            r#"{"message":{"messageId":"1","data":"b"},"subscription":"s","deliveryAttempt":1}"#.to_owned(),
        ),
        (
            "stripe",
            r#"{"id":"evt_1","pending_webhooks":2,"type":"a","data":{"pending_webhooks":1}}"#.to_owned(),
            r#"{"id":"evt_1","pending_webhooks":1,"type":"a","data":{"pending_webhooks":1}}"#.to_owned(),
            r#"{"id":"evt_1","pending_webhooks":2,"type":"a","data":{"pending_webhooks":2}}"#.to_owned(),
        ),
        (
            "paddle",
            r#"{"event_id":"e","notification_id":"ntf_1","data":{"n":1}}"#.to_owned(),
            r#"{"event_id":"e","notification_id":"ntf_22","data":{"n":1}}"#.to_owned(),
            r#"{"event_id":"e","notification_id":"ntf_1","data":{"n":2}}"#.to_owned(),
        ),
        (
            "mailgun",
            r#"{"signature":{"token":"a","timestamp":"1"},"event-data":{"id":"e","n":1}}"#.to_owned(),
            r#"{"signature":{"token":"bb","timestamp":"2"},"event-data":{"id":"e","n":1}}"#.to_owned(),
            r#"{"signature":{"token":"a","timestamp":"1"},"event-data":{"id":"e","n":2}}"#.to_owned(),
        ),
        (
            "eduzz",
            r#"{"id":"e","event":"a","data":{"id":1},"sentDate":"1"}"#.to_owned(),
            r#"{"id":"e","event":"a","data":{"id":1},"sentDate":"22"}"#.to_owned(),
            r#"{"id":"e","event":"a","data":{"id":2},"sentDate":"1"}"#.to_owned(),
        ),
        (
            "salesforce",
            soap(&notifications("A", &[1])),
            soap(&notifications("A", &[1]).replace("<N>x</N>", "<N>newer</N>")),
            soap(&notifications("A", &[1]).replace("<sObject>", "<Other/><sObject>")),
        ),
    ];
    for (provider, first, copy, other) in cases {
        let upstream = Upstream::answering(200, "").await;
        let gateway = Gateway::in_front_of(&upstream).route(&route(provider)).start().await;
        let conflicts = async || gateway.metrics().await.value("umavez_conflicts_total", &[("route", "r")]);
        assert_eq!(gateway.send(&Delivery::json("/r", first)).await.verdict(), "first", "{provider}");
        assert_eq!(gateway.send(&Delivery::json("/r", copy)).await.verdict(), "duplicate", "{provider}");
        assert_eq!(conflicts().await, 0.0, "{provider}");
        assert_eq!(gateway.send(&Delivery::json("/r", other)).await.verdict(), "duplicate", "{provider}");
        assert_eq!(conflicts().await, 1.0, "{provider}");
    }
}

/// A key of a route's own leaves out of the comparison what its provider's file does.
#[tokio::test]
async fn under_a_key_of_its_own_a_route_knows_what_changes_too() {
    let upstream = Upstream::answering(200, "").await;
    let lines = format!("{}key = [\"$.id\", \"$.event\"]\n", route("hotmart"));
    let gateway = Gateway::in_front_of(&upstream).route(&lines).start().await;
    let send =
        |date: u32| Delivery::json("/r", format!(r#"{{"id":"e","event":"A","creation_date":{date}}}"#));
    assert_eq!(gateway.send(&send(1)).await.verdict(), "first");
    assert_eq!(gateway.send(&send(2)).await.verdict(), "duplicate");
    assert_eq!(gateway.metrics().await.value("umavez_conflicts_total", &[("route", "r")]), 0.0);
}

/// A provider file that names what it can't find is told so.
#[test]
fn what_changes_is_named_by_a_path_into_the_item() {
    for (volatile, said) in [
        ("header:X-Attempt", "6:13: only $, xml: and @ paths are read here"),
        ("$.a[*].b", "6:13: a [*] in a part must also be in the item's path"),
        ("$.", "6:13: a member name is missing"),
    ] {
        let file = format!(
            "name = \"x\"\ndocs = \"d\"\nhot_ttl = \"1h\"\ndurable_ttl = \"1h\"\n[[item]]\nvolatile = [\"{volatile}\"]\n\
             key = [\"$.id\"]\n"
        );
        let error = Provider::parse("x.toml", &file).unwrap_err().to_string();
        assert!(error.starts_with(&format!("x.toml:{said}")), "{error}");
    }
}

/// Slack's hourly retries of delayed events came just after their event was forgotten, and a copy at Zoom was kept
/// waiting for longer than Zoom waits.
#[test]
fn windows_are_longer_than_retries_and_waits_shorter_than_patience() {
    let hours = |hours: u64| std::time::Duration::from_secs(hours * 3600);
    // The last retry that its pages tell of, by provider.
    for (name, last) in [
        ("slack", hours(24)),
        ("zoom", hours(2)),
        ("square", hours(24)),
        ("telegram", hours(24)),
        ("salesforce", hours(24)),
        ("sendgrid", hours(24)),
        ("hubspot", hours(24)),
        ("svix", hours(28)),
        ("resend", hours(28)),
        ("linear", hours(8)),
        ("mailgun", hours(8)),
        ("microsoft-graph", hours(4)),
        ("shopify", hours(4)),
        ("paypal", hours(72)),
        ("paddle", hours(72)),
        ("stripe", hours(72)),
        ("standard-webhooks", hours(76)),
        ("meta", hours(7 * 24)),
        ("google-pubsub", hours(7 * 24)),
        ("asaas", hours(14 * 24)),
        ("adyen", hours(30 * 24)),
        ("hotmart", hours(60 * 24)),
    ] {
        let provider = Provider::shipped(name).unwrap();
        assert!(provider.durable_ttl > last, "{name} forgets after {:?}", provider.durable_ttl);
    }
    for (name, patience) in [
        ("slack", 3),
        ("zoom", 3),
        ("microsoft-graph", 3),
        ("discord", 3),
        ("linear", 5),
        ("paddle", 5),
        ("shopify", 5),
        ("hubspot", 5),
    ] {
        let wait = Provider::shipped(name).unwrap().in_flight_wait;
        assert!(wait.is_some_and(|wait| wait.as_secs() < patience), "{name} gives up after {patience} s");
    }
}
