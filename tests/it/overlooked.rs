//! Ids that stood in a delivery and were overlooked, and ids that were believed though nobody had signed them, told to
//! the shipped rules.

use umavez::providers::{ItemRules, Provider};

use crate::signature_vectors::Sent;
use crate::support::{Delivery, Gateway, Upstream};

fn route(provider: &str) -> String {
    format!("[[route]]\nname = \"r\"\npath = \"/r\"\nprovider = \"{provider}\"\n")
}

/// Each item: where it stands, and its key's parts joined by spaces, or nothing.
fn items(rules: &ItemRules, sent: &Sent) -> Vec<(String, Option<String>)> {
    let key = |item: &umavez::providers::Item| {
        let parts = item.parts.as_ref().ok()?;
        Some(
            parts.iter().map(|part| String::from_utf8_lossy(part).into_owned()).collect::<Vec<_>>().join(" "),
        )
    };
    rules.items(&sent.delivery()).list.iter().map(|item| (item.place(), key(item))).collect()
}

/// The key of a delivery that is one item as a whole.
#[track_caller]
fn key(provider: &str, sent: &Sent) -> Option<String> {
    let mut found = items(&Provider::shipped(provider).unwrap().rules, sent);
    assert_eq!(found.len(), 1, "{found:?}");
    let (place, key) = found.remove(0);
    assert_eq!(place, "$");
    key
}

fn form(text: &str) -> Sent {
    Sent::new(text).header("Content-Type", "application/x-www-form-urlencoded")
}

/// A binary CloudEvent whose data is an array was never deduplicated: each element counted as an item beside the event,
/// and one that looks like an event took its key, so that the real one was swallowed later.
#[tokio::test]
async fn the_data_of_a_binary_cloud_event_holds_no_events() {
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).route(&route("cloudevents")).start().await;
    let binary =
        |id: &str, data: &str| Delivery::json("/r", data).header("ce-source", "/lojas/1").header("ce-id", id);
    for data in
        [r#"[{"a":1}]"#, r#"[{"source":"/lojas/1","id":"A-9"},7]"#, "[]", r#"{"source":"/s","id":"1"}"#]
    {
        let sent = binary(data, data);
        for verdict in ["first", "duplicate", "duplicate"] {
            assert_eq!(gateway.send(&sent).await.verdict(), verdict, "{data}");
        }
        assert_eq!(upstream.last().text(), data);
    }
    let event = Delivery::json("/r", r#"[{"source":"/lojas/1","id":"A-9"}]"#);
    assert_eq!(gateway.send(&event).await.verdict(), "first", "no copy of what was only mentioned");
    assert_eq!(gateway.send(&event).await.verdict(), "duplicate");
    assert_eq!(upstream.received(), 5);
}

/// What stands inside an item was an item again, for a later rule.
#[test]
fn what_an_item_holds_is_no_item() {
    let head = "name = \"x\"\ndocs = \"d\"\nhot_ttl = \"1h\"\ndurable_ttl = \"1h\"\n";
    let rules = |items: &str| Provider::parse("x.toml", &format!("{head}{items}")).unwrap().rules;
    let order = "[[item]]\npath = \"$.orders[*]\"\nwhen = { \"@.id\" = true }\nkey = [\"@.id\"]\n\
                 [[item]]\npath = \"$.orders[*].lines[*]\"\nkey = [\"@.sku\"]\n";
    let sent =
        Sent::new(r#"{"orders":[{"id":1,"lines":[{"sku":"a"},{"sku":"b"}]},{"lines":[{"sku":"c"}]}]}"#);
    let named = |place: &str, key: &str| (place.to_owned(), Some(key.to_owned()));
    assert_eq!(items(&rules(order), &sent), [named("orders[0]", "1"), named("orders[1].lines[0]", "c")]);
    let whole = "[[item]]\nwhen = { \"$.id\" = true }\nkey = [\"$.id\"]\n[[item]]\npath = \"$.orders[*]\"\nkey = [\"@.id\"]\n";
    let sent = Sent::new(r#"{"id":9,"orders":[{"id":1},{"id":2}]}"#);
    assert_eq!(items(&rules(whole), &sent), [named("$", "9")]);
}

/// An empty list of events was one event without a key, to the rule that takes what is left: a strict route refused it
/// with 422, though there was nothing in it to refuse.
#[tokio::test]
async fn an_empty_batch_is_forwarded_also_where_every_event_needs_a_key() {
    let upstream = Upstream::answering(202, "").await;
    let routes = format!("{}on_keyless = \"reject\"\n", route("cloudevents"));
    let gateway = Gateway::in_front_of(&upstream).route(&routes).start().await;
    let batch = |body: &str| {
        Delivery::new("POST", "/r").header("Content-Type", "application/cloudevents-batch+json").body(body)
    };
    for body in ["[]", "[]", " [\n] "] {
        assert_eq!(gateway.send(&batch(body)).await.status, 202, "{body}");
        assert_eq!(upstream.last().text(), body);
    }
    assert_eq!(upstream.received(), 3);
    for body in ["[7]", "[{}]", "{}", "", "7"] {
        assert_eq!(gateway.send(&batch(body)).await.status, 422, "{body}");
    }
    assert_eq!(upstream.received(), 3);
    for (provider, body) in [
        ("cloudevents", "[]"),
        ("evolution", r#"{"instance":"i","event":"messages.upsert","data":[]}"#),
        ("hubspot", "[]"),
        ("meta", r#"{"entry":[{"id":"1","messaging":[]}]}"#),
        ("microsoft-graph", r#"{"value":[]}"#),
        ("sendgrid", "[]"),
        ("adyen", r#"{"notificationItems":[]}"#),
    ] {
        assert_eq!(items(&Provider::shipped(provider).unwrap().rules, &Sent::new(body)), [], "{provider}");
    }
    // An empty list beside what names the event takes nothing from it.
    let logout = r#"{"instance":"i","event":"logout.instance","date_time":"t","data":[]}"#;
    let named = [("data".to_owned(), Some("i logout.instance t".to_owned()))];
    assert_eq!(items(&Provider::shipped("evolution").unwrap().rules, &Sent::new(logout)), named);
}

/// Twilio Conversations tell of a message without a status: such a callback passed without a key, though the token that
/// names it was there.
#[test]
fn a_message_without_a_status_is_named_by_twilios_token() {
    let added = "EventType=onMessageAdded&AccountSid=AC1&ConversationSid=CH1&MessageSid=IM1";
    let token = |sent: Sent| key("twilio", &sent.header("I-Twilio-Idempotency-Token", "tok-1"));
    assert_eq!(token(form(added)).as_deref(), Some("tok-1"));
    assert_eq!(token(form(&format!("{added}&MessageStatus="))).as_deref(), Some("tok-1"));
    let by_get = |query: &str| Sent::new("").url(&format!("https://hooks.example.com/r?{query}"));
    assert_eq!(token(by_get(added)).as_deref(), Some("tok-1"));
    for status in ["MessageStatus", "SmsStatus"] {
        let sent = format!("AccountSid=AC1&MessageSid=SM1&{status}=sent");
        assert_eq!(token(form(&sent)).as_deref(), Some("AC1 SM1 sent"));
        assert_eq!(token(by_get(&sent)).as_deref(), Some("AC1 SM1 sent"));
    }
    // The newer name first, as before.
    let both = form("SmsStatus=queued&AccountSid=AC1&MessageSid=SM1&MessageStatus=sent");
    assert_eq!(token(both).as_deref(), Some("AC1 SM1 sent"));
    assert_eq!(key("twilio", &form(added)), None);
}

/// An unwrapped Pub/Sub message whose own data has a `subscription` passed without a key, though the headers name it.
#[test]
fn the_subscription_in_a_pubsub_messages_own_data_is_not_the_one_that_pushed_it() {
    let unwrapped = |body: &str| {
        Sent::new(body)
            .header("x-goog-pubsub-subscription-name", "projects/p/subscriptions/s")
            .header("x-goog-pubsub-message-id", "77")
    };
    for body in [
        r#"{"subscription":"gold","user":7}"#,
        r#"{"subscription":"gold","message":{"messageId":"mine"}}"#,
        r#"{"a":1}"#,
        "plain",
        "",
    ] {
        let named = Some("projects/p/subscriptions/s 77");
        assert_eq!(key("google-pubsub", &unwrapped(body)).as_deref(), named, "{body}");
    }
    // Wrapped, or with half of the headers: the body names it.
    let wrapped = r#"{"subscription":"projects/p/subscriptions/s","message":{"messageId":"78"}}"#;
    let half = Sent::new(wrapped).header("x-goog-pubsub-message-id", "77");
    for sent in [Sent::new(wrapped), half] {
        assert_eq!(key("google-pubsub", &sent).as_deref(), Some("projects/p/subscriptions/s 78"));
    }
}

/// A message that SNS delivers raw passed without a key where its own `Type` is one of SNS's words, though the headers
/// name it; and with the other words it counted as a handshake.
#[test]
fn the_type_in_an_sns_messages_own_body_is_not_the_envelopes() {
    let sns = Provider::shipped("aws-sns").unwrap();
    let raw = |body: &str| {
        Sent::new(body)
            .header("x-amz-sns-message-type", "Notification")
            .header("x-amz-sns-message-id", "77")
            .header("x-amz-sns-topic-arn", "arn:t")
            .header("x-amz-sns-rawdelivery", "true")
    };
    for body in [
        r#"{"Type":"Notification","Message":"m"}"#,
        r#"{"Type":"Notification","MessageId":"mine"}"#,
        r#"{"Type":"SubscriptionConfirmation"}"#,
        r#"{"Type":"UnsubscribeConfirmation","MessageId":"mine"}"#,
        r#"{"Type":"Order"}"#,
        "plain",
    ] {
        let sent = raw(body);
        assert_eq!(key("aws-sns", &sent).as_deref(), Some("arn:t 77"), "{body}");
        assert!(!sns.handshakes.iter().any(|handshake| handshake.is(&sent.delivery())), "{body}");
    }
    // What may be signed is named by what is signed, whatever the headers say.
    let envelope = r#"{"Type":"Notification","TopicArn":"arn:real","MessageId":"1","Message":"m"}"#;
    assert_eq!(key("aws-sns", &raw(envelope)).as_deref(), Some("arn:real 1"));
}
