//! Events that share an id and are two all the same, told to the shipped rules: each story's first deliveries were once
//! taken for copies of each other, or never were.

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use umavez::providers::{Delivery, Provider};

/// The key of each item; `None` for one without.
type Keys = Vec<Option<Vec<String>>>;

fn keys_with(provider: &str, headers: &[(&str, &str)], body: &str) -> Keys {
    let name = |text: &str| HeaderName::from_bytes(text.as_bytes()).unwrap();
    let headers: HeaderMap =
        headers.iter().map(|(text, value)| (name(text), HeaderValue::from_str(value).unwrap())).collect();
    let items = Provider::shipped(provider).unwrap().items(&Delivery {
        method: &Method::POST,
        url: "https://hooks.example.com/r",
        headers: &headers,
        path_params: &[],
        raw_body: body.as_bytes(),
        body: body.as_bytes(),
    });
    let text = |part: &umavez::providers::Part| String::from_utf8(part.to_vec()).unwrap();
    let key = |item: umavez::providers::Item| Some(item.parts.ok()?.iter().map(text).collect());
    items.list.into_iter().map(key).collect()
}

/// The key of the only item.
fn key(provider: &str, body: &str) -> Option<Vec<String>> {
    let mut keys = keys_with(provider, &[], body);
    assert_eq!(keys.len(), 1, "{body}");
    keys.remove(0)
}

/// That each of these is an event of its own, with a key: no two keys are equal.
#[track_caller]
fn all_differ(keys: impl IntoIterator<Item = Option<Vec<String>>>) {
    let mut seen: Vec<Vec<String>> = Vec::new();
    for key in keys {
        let key = key.expect("it has a key");
        assert!(!seen.contains(&key), "{key:?} names two events");
        seen.push(key);
    }
}

fn told(parts: &[&str]) -> Option<Vec<String>> {
    Some(parts.iter().map(|part| (*part).to_owned()).collect())
}

/// A Mercado Pago order was paid and nobody heard: its `id` is the order's, the same when it is opened and closed.
#[test]
fn a_merchant_order_is_another_event_each_time_it_changes() {
    let order = |action: &str, status: &str, version: &str| {
        format!(
            r#"{{"action":"{action}","application_id":"7910800073137785","data":{{"currency_id":"","status":"{status}"}},
                "id":"23603350837","status":"{status}","type":"topic_merchant_order_wh","user_id":2012037660{version}}}"#
        )
    };
    let told = [
        order("create", "opened", r#","version":0"#),
        order("update", "opened", r#","version":1"#),
        order("update", "closed", r#","version":1"#),
        order("update", "closed", r#","version":2"#),
    ];
    all_differ(told.iter().map(|body| key("mercadopago", body)));
    assert_eq!(key("mercadopago", &told[0]), key("mercadopago", &told[0].replace("{\"action", "{ \"action")));
    assert_eq!(
        key("mercadopago", &order("update", "closed", "")),
        None,
        "nothing tells it from the next one"
    );
}

/// A fraud alert of Mercado Pago bears the payment's id as its own: it could be taken for another notification's copy.
#[test]
fn a_fraud_alert_is_not_the_notification_whose_number_is_its_payments() {
    let alert = |kind: &str, version: u32| {
        format!(
            r#"{{"action":"Created","data":{{"merchant_order":249940988000,"payment_id":58980959081}},"id":"58980959081",
                "type":"{kind}","user_id":224403329,"version":{version}}}"#
        )
    };
    let payment = r#"{"action":"payment.updated","data":{"id":"1"},"id":58980959081,"type":"payment","user_id":224403329}"#;
    let keys = [alert("stop_delivery_op_wh", 1), alert("stop_delivery_op_wh", 2), payment.to_owned()];
    all_differ(keys.iter().map(|body| key("mercadopago", body)));
}

/// Mercado Pago's subscriptions were forwarded as often as they came: they name the application and no seller.
#[test]
fn a_subscription_at_mercado_pago_has_a_key() {
    let update = |id: u64, version: u32| {
        format!(
            r#"{{"action":"updated","application_id":6300258978976800,"data":{{"id":"8aef01a4883161b001885f06d9391a79"}},
                "date":"2023-05-27T21:12:22Z","entity":"preapproval","id":{id},"type":"subscription_preapproval","version":{version}}}"#
        )
    };
    let parts = ["6300258978976800", "subscription_preapproval", "106059757011", "updated", "2"];
    assert_eq!(key("mercadopago", &update(106_059_757_011, 2)), told(&parts));
    all_differ([update(1, 2), update(1, 3), update(2, 3)].iter().map(|body| key("mercadopago", body)));
}

/// Mercado Pago's orders (Orders API) were forwarded as often as they came: they have no notification id. Where a body
/// shows an `id` after all it is the order's, which a processed and a refunded order share.
#[test]
fn an_order_at_mercado_pago_has_a_key_in_which_its_version_counts() {
    let order = |head: &str, action: &str, version: &str| {
        format!(
            r#"{{{head}"action":"{action}","api_version":"v1","application_id":"76506430185983","user_id":"724484980",
                "type":"order","data":{{"id":"ORD01","status":"x"{version}}}}}"#
        )
    };
    let parts = ["724484980", "order", "ORD01", "order.processed", "3"];
    assert_eq!(key("mercadopago", &order("", "order.processed", r#","version":3"#)), told(&parts));
    let each = [
        order("", "order.processed", r#","version":3"#),
        order(r#""id":"ORD01","#, "order.refunded", r#","version":4"#),
        order(r#""id":"ORD01","#, "order.refunded", r#","version":5"#),
    ];
    all_differ(each.iter().map(|body| key("mercadopago", body)));
    let unversioned = order(r#""id":"ORD01","#, "order.refunded", "");
    assert_eq!(key("mercadopago", &unversioned), None, "a second refund would look the same");
}

/// WhatsApp's statuses of one payment, or of two.
fn statuses(list: &[&str]) -> Keys {
    let list = list.join(",");
    let body = format!(
        r#"{{"entry":[{{"id":"9","time":1,"changes":[{{"field":"messages","value":{{"metadata":{{"phone_number_id":"11"}},
            "statuses":[{list}]}}}}]}}]}}"#
    );
    keys_with("meta", &[], &body)
}

fn payment(status: &str, timestamp: u32, transaction: &str) -> String {
    format!(
        r#"{{"id":"wamid.A","status":"{status}","type":"payment","timestamp":"{timestamp}","recipient_id":"55",
            "payment":{{"reference_id":"r1",{transaction}"currency":"INR"}}}}"#
    )
}

/// A WhatsApp refund was lost: it repeats the message's id and the status `captured` of the payment. And of two attempts
/// at one payment in one post the second was cut out.
#[test]
fn a_refund_and_a_second_attempt_are_events_of_their_own() {
    let transaction = |id: &str, status: &str, refunds: &str| {
        format!(r#""transaction":{{"id":"{id}","status":"{status}","type":"razorpay","refunds":{refunds}}},"#)
    };
    let refund = |status: &str| format!(r#"[{{"id":"rfnd_1","status":"{status}"}}]"#);
    let posts = [
        payment("pending", 7, &transaction("t1", "pending", "null")),
        payment("pending", 7, &transaction("t2", "pending", "null")),
        payment("pending", 8, &transaction("t2", "pending", "null")),
        payment("captured", 8, &transaction("t2", "success", "null")),
        payment("captured", 8, &transaction("t2", "success", &refund("pending"))),
        payment("captured", 8, &transaction("t2", "success", &refund("completed"))),
        payment("captured", 9, &transaction("t2", "success", &refund("completed"))),
    ];
    let posts: Vec<&str> = posts.iter().map(String::as_str).collect();
    let keys = statuses(&posts);
    assert_eq!(keys.len(), posts.len());
    assert_eq!(keys, statuses(&posts), "a retry has the keys of the first try");
    all_differ(keys);
    let two = r#"[{"id":"rfnd_1","status":"completed"},{"id":"rfnd_2","status":"completed"}]"#;
    let several = payment("captured", 9, &transaction("t2", "success", two));
    let unnamed = payment("captured", 9, "");
    let bare = r#"{"id":"wamid.A","status":"captured","type":"payment","timestamp":"9"}"#;
    assert_eq!(statuses(&[&several, &unnamed, bare]), [None, None, None], "nothing names the one event");
}

/// One event of a page's `messaging` or `standby`.
fn messaging(list: &str, event: &str) -> Option<Vec<String>> {
    let sent = r#""sender":{"id":"7"},"recipient":{"id":"3"},"timestamp":1786363199900"#;
    key(
        "meta",
        &format!(r#"{{"object":"page","entry":[{{"id":"3","time":1,"{list}":[{{{sent},{event}}}]}}]}}"#),
    )
}

/// In `standby` an unsent message was a copy of the message: it repeats the mid. Its postbacks, reactions, edits, reads
/// and deliveries had no key at all.
#[test]
fn each_kind_of_messaging_is_an_event_of_its_own_also_in_standby() {
    let kinds = [
        r#""message":{"mid":"m1","text":"olá"}"#,
        r#""message":{"mid":"m1","is_deleted":true}"#,
        r#""message":{"mid":"m1","is_echo":true,"text":"olá"}"#,
        r#""postback":{"mid":"m1","payload":"p"}"#,
        r#""reaction":{"mid":"m1","action":"react"}"#,
        r#""reaction":{"mid":"m1","action":"unreact"}"#,
        r#""message_edit":{"mid":"m1","num_edit":1}"#,
        r#""message_edit":{"mid":"m1","num_edit":2}"#,
        r#""read":{"mid":"m1"}"#,
        r#""read":{"watermark":5}"#,
        r#""delivery":{"mids":["m1"],"watermark":5}"#,
    ];
    let each = |list: &'static str| kinds.iter().map(move |event| messaging(list, event));
    all_differ(each("messaging").chain(each("standby")));
    assert_eq!(messaging("standby", r#""game_play":{"mid":"m1"}"#), None);
}

/// One change of a page, an Instagram account or a WhatsApp Business account, told at a time.
fn change(field: &str, time: u32, value: &str) -> Option<Vec<String>> {
    key(
        "meta",
        &format!(
            r#"{{"entry":[{{"id":"9","time":{time},"changes":[{{"field":"{field}","value":{{{value}}}}}]}}]}}"#
        ),
    )
}

/// Meta's leads, mentions and notices about templates, numbers and accounts had no key: each retry was forwarded again.
#[test]
fn what_meta_tells_about_an_account_has_a_key_of_what_happened_and_when() {
    assert_eq!(change("leadgen", 5, r#""leadgen_id":"44","form_id":"1""#), told(&["9", "leadgen", "44"]));
    let approved = r#""event":"APPROVED","message_template_id":77,"message_template_language":"pt_BR""#;
    let parts = ["9", "message_template_status_update", "77", "APPROVED", "5"];
    assert_eq!(change("message_template_status_update", 5, approved), told(&parts));
    all_differ([
        change("mentions", 5, r#""media_id":"1","comment_id":"2""#),
        change("mentions", 5, r#""media_id":"1","comment_id":"3""#),
        change("mentions", 5, r#""media_id":"1""#),
        change("mentions", 6, r#""media_id":"1""#),
        change("message_template_status_update", 5, approved),
        change("message_template_status_update", 6, approved),
        change("message_template_status_update", 5, &approved.replace("77", "78")),
        change("message_template_status_update", 5, &approved.replace("APPROVED", "PAUSED")),
        change("message_template_quality_update", 5, r#""message_template_id":77,"new_quality_score":"RED""#),
        change("template_category_update", 5, r#""message_template_id":77,"new_category":"UTILITY""#),
        change("phone_number_quality_update", 5, r#""display_phone_number":"55","event":"FLAGGED""#),
        change("phone_number_quality_update", 5, r#""display_phone_number":"56","event":"FLAGGED""#),
        change(
            "phone_number_name_update",
            5,
            r#""display_phone_number":"55","decision":"APPROVED","requested_verified_name":"Loja""#,
        ),
        change("account_review_update", 5, r#""decision":"APPROVED""#),
        change("account_update", 5, r#""event":"PARTNER_ADDED","waba_info":{"waba_id":"1"}"#),
        change("account_update", 5, r#""event":"PARTNER_ADDED","waba_info":{"waba_id":"2"}"#),
        change("account_update", 5, r#""phone_number":"55","event":"VERIFIED_ACCOUNT""#),
    ]);
    for (field, value) in [
        (
            "account_update",
            r#""event":"VOLUME_BASED_PRICING_TIER_UPDATE","volume_tier_info":{"region":"BR"}"#,
        ),
        ("account_update", r#""event":"ACCOUNT_VIOLATION","violation_info":{"violation_type":"SPAM"}"#),
        ("business_capability_update", r#""max_daily_conversation_per_phone":1000"#),
        ("message_template_status_update", r#""event":"APPROVED""#),
        ("mentions", ""),
    ] {
        assert_eq!(change(field, 5, value), None, "{field} {value}: a second may hold two of it");
    }
}

/// Votes in a poll and edits of a message were lost at Evolution: they come without a status, and it fills in the one
/// that the message had already been told by.
#[test]
fn votes_and_edits_at_evolution_pass_beside_the_status_that_they_repeat() {
    let update = |more: &str| {
        format!(
            r#"{{"keyId":"3EB0","remoteJid":"5511@s.whatsapp.net","fromMe":true,"status":"SERVER_ACK"{more}}}"#
        )
    };
    let posted = |data: &str| {
        format!(
            r#"{{"event":"messages.update","instance":"loja","data":{data},"date_time":"2026-08-10T09:00:00.123Z"}}"#
        )
    };
    let status = told(&["loja", "messages.update", "3EB0", "SERVER_ACK"]);
    assert_eq!(key("evolution", &posted(&update(""))), status);
    assert_eq!(key("evolution", &posted(&update(r#","pollUpdates":null"#))), status);
    let vote = update(r#","pollUpdates":[{"name":"sim","voters":["55@s.whatsapp.net"]}]"#);
    let edit = update(r#","message":{"editedMessage":{"message":{"conversation":"oi"}}}"#);
    for data in [&vote, &edit, &vote.replace("SERVER_ACK", "DELETED"), &edit.replace("keyId", "id")] {
        assert_eq!(key("evolution", &posted(data)), None, "{data}");
    }
    let batch = format!("[{},{vote},{edit}]", update(""));
    assert_eq!(keys_with("evolution", &[], &posted(&batch)), [status, None, None]);
}

/// Two people who left one Zoom meeting in the same millisecond counted as one; two who registered did, too.
#[test]
fn two_people_in_one_millisecond_at_zoom_are_two_events() {
    let event = |kind: &str, object: &str| {
        format!(
            r#"{{"event":"{kind}","event_ts":1786363198500,"payload":{{"account_id":"A","object":{{"uuid":"u=="{object}}}}}}}"#
        )
    };
    all_differ(
        [
            event("meeting.participant_left", r#","participant":{"participant_uuid":"p1","user_id":"1"}"#),
            event("meeting.participant_left", r#","participant":{"participant_uuid":"p2","user_id":"1"}"#),
            event("meeting.participant_left", r#","participant":{"participant_uuid":"p2","user_id":"2"}"#),
            event("meeting.registration_created", r#","registrant":{"id":"r1"}"#),
            event("meeting.registration_created", r#","registrant":{"id":"r2"}"#),
            event("meeting.chat_message_sent", r#","chat_message":{"message_id":"c1"}"#),
            event("meeting.chat_message_sent", r#","chat_message":{"message_id":"c2"}"#),
        ]
        .iter()
        .map(|body| key("zoom", body)),
    );
    let ended = event("meeting.ended", "");
    assert_eq!(key("zoom", &ended), told(&["A", "meeting.ended", "u==", "1786363198500"]));
}

/// Of what one action of a Shopify merchant set off, all but the first were copies in the newer Events: they share an
/// event id, while the delivery has one of its own.
#[test]
fn deliveries_of_shopifys_events_are_told_apart_by_more_than_the_event_id() {
    let events = |more: &[(&str, &str)]| {
        let head = [
            ("Shopify-Shop-Domain", "loja.myshopify.com"),
            ("Shopify-Topic", "Product"),
            ("Shopify-Event-Id", "e-1"),
            ("X-Shopify-Topic", "Product"),
            ("X-Shopify-Shop-Domain", "loja.myshopify.com"),
        ];
        keys_with("shopify", &[head.as_slice(), more].concat(), "{}").remove(0)
    };
    let by_id = |id: &'static str| events(&[("Shopify-Webhook-Id", id), ("Shopify-Action", "update")]);
    assert_eq!(by_id("w-1"), told(&["loja.myshopify.com", "Product", "w-1"]));
    all_differ([
        by_id("w-1"),
        by_id("w-2"),
        events(&[("Shopify-Action", "update"), ("Shopify-Resource-Id", "gid://shopify/Product/1")]),
        events(&[("Shopify-Action", "update"), ("Shopify-Resource-Id", "gid://shopify/Product/2")]),
        events(&[("Shopify-Action", "delete"), ("Shopify-Resource-Id", "gid://shopify/Product/2")]),
        events(&[
            ("Shopify-Action", "delete"),
            ("Shopify-Resource-Id", "gid://shopify/Product/2"),
            ("Shopify-Handle", "h"),
        ]),
    ]);
}

/// A delivery that lacked what only tells sources apart (the shop, the hook, the account, the number, a signature on a
/// route without a secret) had no key, and each of its copies reached the app.
#[test]
fn a_delivery_without_the_name_of_its_source_still_has_its_id() {
    let by_headers = |provider: &str, headers: &[(&str, &str)]| keys_with(provider, headers, "{}").remove(0);
    assert_eq!(by_headers("github", &[("X-GitHub-Delivery", "g-1")]), told(&["g-1"]));
    assert_eq!(by_headers("shopify", &[("X-Shopify-Event-Id", "e-1")]), told(&["e-1"]));
    assert_eq!(by_headers("shopify", &[("Shopify-Webhook-Id", "w-1"), ("Shopify-Topic", "Product")]), {
        told(&["Product", "w-1"])
    });
    for provider in ["svix", "resend", "standard-webhooks"] {
        for header in ["svix-id", "webhook-id"] {
            assert_eq!(by_headers(provider, &[(header, "msg_1")]), told(&["msg_1"]), "{provider} {header}");
        }
    }
    let form = [("Content-Type", "application/x-www-form-urlencoded")];
    let status = keys_with("twilio", &form, "MessageSid=SM1&MessageStatus=sent").remove(0);
    assert_eq!(status, told(&["SM1", "sent"]));
    let message =
        r#"{"entry":[{"id":"1","changes":[{"field":"messages","value":{"messages":[{"id":"m"}]}}]}]}"#;
    assert_eq!(key("meta", message), told(&["messages", "m"]));
    let update =
        r#"{"event":"messages.update","instance":"a","data":{"keyId":"k","status":"READ","fromMe":true}}"#;
    assert_eq!(key("evolution", update), told(&["a", "messages.update", "k", "READ"]));
}
