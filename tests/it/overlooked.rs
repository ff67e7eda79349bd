//! Ids that stood in a delivery and were overlooked, and ids that were believed though nobody had signed them, told to
//! the shipped rules.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ring::hmac;
use umavez::providers::{ItemRules, Provider};

use crate::signature_vectors::Sent;
use crate::support::{Delivery, Gateway, Upstream, hub_sha256, unix_seconds};

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

/// A delivery that its `webhook-*` headers prove passed again as another event, under a `svix-id` that anybody had put
/// beside them: the key came from whichever id was there, signed or not.
#[tokio::test]
async fn an_id_beside_the_signed_one_names_nothing() {
    let secret = BASE64_STANDARD.encode("a secret of Standard Webhooks");
    let upstream = Upstream::answering(200, "").await;
    let routes: String = ["svix", "resend", "standard-webhooks"]
        .map(|name| {
            format!(
                "[[route]]\nname = \"{name}\"\npath = \"/{name}\"\nprovider = \"{name}\"\nsecret = \"${{HOOK}}\"\n"
            )
        })
        .concat();
    let gateway =
        Gateway::in_front_of(&upstream).env("HOOK", &format!("whsec_{secret}")).route(&routes).start().await;
    let stamp = unix_seconds().to_string();
    let signed = |provider: &str, prefix: &str, id: &str| {
        let body = r#"{"type":"order.created"}"#;
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"a secret of Standard Webhooks");
        let signature = hmac::sign(&key, format!("{id}.{stamp}.{body}").as_bytes());
        Delivery::json(&format!("/{provider}"), body)
            .header(&format!("{prefix}-id"), id)
            .header(&format!("{prefix}-timestamp"), &stamp)
            .header(&format!("{prefix}-signature"), &format!("v1,{}", BASE64_STANDARD.encode(signature)))
    };
    for provider in ["svix", "resend", "standard-webhooks"] {
        for (prefix, other) in [("svix", "webhook"), ("webhook", "svix")] {
            let genuine = signed(provider, prefix, &format!("msg_{prefix}"));
            assert_eq!(gateway.send(&genuine).await.verdict(), "first", "{provider} {prefix}");
            assert_eq!(gateway.send(&genuine).await.verdict(), "duplicate", "{provider} {prefix}");
            for (name, value) in [("id", "forged1"), ("id", ""), ("timestamp", "1")] {
                let again = genuine.clone().header(&format!("{other}-{name}"), value);
                let answer = gateway.send(&again).await;
                assert_eq!(answer.verdict(), "duplicate", "{provider} {prefix} {other}-{name}: {value}");
            }
            // A second signature is held to be the deciding one, or never looked at.
            let again = genuine
                .clone()
                .header(&format!("{other}-id"), "forged2")
                .header(&format!("{other}-timestamp"), &stamp)
                .header(&format!("{other}-signature"), "v1,AAAA");
            let answer = gateway.send(&again).await;
            assert_ne!(answer.verdict(), "first", "{provider} {prefix}");
            // And the id that was forged is still the real one's.
            let real = signed(provider, other, &format!("forged-{prefix}"));
            assert_eq!(gateway.send(&real).await.verdict(), "first", "{provider} {prefix}");
        }
    }
    assert_eq!(upstream.received(), 12);
}

/// The warning about ids that no signature covers asked whether any way of signing covers them.
#[test]
fn a_provider_file_that_believes_either_id_is_told_so() {
    let shipped = include_str!("../../src/providers/svix.toml");
    let (signature, _) = shipped.split_once("[[item]]").unwrap();
    let open = |items: &str| {
        let provider = Provider::parse("svix.toml", &format!("{signature}{items}")).unwrap();
        let names: Vec<String> = provider.unsigned_key_headers().iter().map(ToString::to_string).collect();
        names.join(" ")
    };
    assert_eq!(open("[[item]]\nkey = [\"header:svix-id | header:webhook-id\"]\n"), "svix-id webhook-id");
    let (there, away) =
        ("when = { \"header:svix-signature\" = true }", "when = { \"header:svix-signature\" = false }");
    let item = |when: &str, id: &str| format!("[[item]]\n{when}\nkey = [\"header:{id}\"]\n");
    assert_eq!(open(&(item(there, "svix-id") + &item(away, "webhook-id"))), "");
    assert_eq!(open(&(item(there, "webhook-id") + &item(away, "svix-id"))), "webhook-id svix-id");
    assert_eq!(open(&(item(there, "svix-id") + &item("", "webhook-id"))), "webhook-id");
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

/// A SendGrid batch that carries no signature was forwarded whole on a route without a key, as if cutting could break
/// one: [a, b], then [b, c], and the app got b twice.
#[tokio::test]
async fn a_batch_that_nobody_signed_is_cut() {
    let upstream = Upstream::answering(200, "").await;
    let routes = format!(
        "{}[[route]]\nname = \"wa\"\npath = \"/wa\"\nprovider = \"meta\"\n",
        route("sendgrid").replace("\"/r\"", "\"/sg\"")
    );
    let gateway = Gateway::in_front_of(&upstream).route(&routes).start().await;
    let batch = |ids: &[&str]| {
        let items: Vec<String> = ids.iter().map(|id| format!(r#"{{"sg_event_id":"{id}"}}"#)).collect();
        Delivery::json("/sg", format!("[{}]", items.join(",")))
    };
    gateway.send(&batch(&["a", "b"])).await;
    gateway.send(&batch(&["b", "c"])).await;
    assert_eq!(upstream.last().text(), r#"[{"sg_event_id":"c"}]"#);
    assert_eq!(upstream.last().header("umavez-removed").as_deref(), Some("1"));
    // A signature that the route can't check may be true, and the app may look at it.
    let signed = batch(&["c", "d"]).header("X-Twilio-Email-Event-Webhook-Signature", "MEUCIQ==");
    gateway.send(&signed).await;
    assert_eq!(upstream.last().body, signed.body);

    let messages = |ids: &[&str]| {
        let items: Vec<String> = ids.iter().map(|id| format!(r#"{{"id":"{id}"}}"#)).collect();
        let value = format!(r#"{{"metadata":{{"phone_number_id":"1"}},"messages":[{}]}}"#, items.join(","));
        Delivery::json("/wa", format!(r#"{{"entry":[{{"id":"1","changes":[{{"value":{value}}}]}}]}}"#))
    };
    gateway.send(&messages(&["a", "b"])).await;
    gateway.send(&messages(&["b", "c"])).await;
    assert_eq!(upstream.last().body, messages(&["c"]).body);
    let signed = messages(&["c", "d"]);
    let signature = hub_sha256("another's", &signed.body);
    let signed = signed.header("X-Hub-Signature-256", &signature);
    gateway.send(&signed).await;
    assert_eq!(upstream.last().body, signed.body);
}

/// A path that came back to inside of its place was refused with 404, its event for good; and what the listener or the
/// route itself refused on a route's path carried no verdict.
#[tokio::test]
async fn a_path_that_stays_in_its_place_is_an_event_and_a_refused_one_is_told_so() {
    let upstream = Upstream::answering(200, "").await;
    let route = "[[route]]\nname = \"h\"\npath = \"/h/{*rest}\"\nkey = [\"$.id\"]\n";
    let gateway = Gateway::in_front_of(&upstream).route(route).start().await;
    for (path, status, verdict) in [
        ("/h/x/../y", 200, "first"),
        ("/h/x/%2e%2e/y", 200, "first"),
        ("/h/..", 404, "refused"),
        ("/h/x/..", 404, "refused"),
        ("/h/x/../../y", 404, "refused"),
        ("/h/x%2fz/../../y", 404, "refused"),
        ("/h/..%2fx/y", 404, "refused"),
    ] {
        let told = gateway.send(&Delivery::json(path, format!(r#"{{"id":"{path}"}}"#))).await;
        assert_eq!((told.status, told.verdict().as_str()), (status, verdict), "{path}");
        if status == 200 {
            assert_eq!(upstream.last().target, path);
        }
    }
    let told = gateway.send(&Delivery::new("TRACE", "/h/x")).await;
    assert_eq!((told.status, told.verdict().as_str()), (405, "refused"));
    let elsewhere = gateway.send(&Delivery::new("TRACE", "/elsewhere")).await;
    assert_eq!((elsewhere.status, elsewhere.header("umavez")), (405, None));
}

/// `bearer` in lower case was no bearer, and `HEAD /live`, which monitors send, no page; a wrong method was a missing one.
#[tokio::test]
async fn the_admin_listener_reads_requests_as_http_has_them() {
    let upstream = Upstream::answering(200, "").await;
    let gateway =
        Gateway::in_front_of(&upstream).listen("admin_token = \"a token of the tests\"").start().await;
    let ask = async |method: &str, path: &str, scheme: &str| {
        let asked =
            Delivery::new(method, path).header("Authorization", &format!("{scheme} a token of the tests"));
        crate::support::send(gateway.admin(), &asked).await
    };
    for scheme in ["Bearer", "bearer", "BEARER"] {
        assert_eq!(ask("GET", "/metrics", scheme).await.status, 200, "{scheme}");
    }
    for scheme in ["Basic", "Bearer:", ""] {
        assert_eq!(ask("GET", "/metrics", scheme).await.status, 401, "{scheme}");
    }
    for path in ["/live", "/ready", "/metrics", "/events/held"] {
        let head = ask("HEAD", path, "Bearer").await;
        assert_eq!((head.status, head.body.len()), (200, 0), "{path}");
        assert!(head.header("content-length").is_some_and(|length| length != "0"), "{path}");
    }
    for (method, path, allowed) in [
        ("POST", "/live", "GET, HEAD"),
        ("DELETE", "/events", "GET, HEAD"),
        ("GET", "/reload", "POST"),
        ("GET", "/events/replay", "POST"),
        ("PUT", "/events/forget", "POST"),
    ] {
        let told = ask(method, path, "Bearer").await;
        assert_eq!((told.status, told.header("allow").as_deref()), (405, Some(allowed)), "{method} {path}");
    }
    assert_eq!(ask("POST", "/nowhere", "Bearer").await.status, 404);
}
