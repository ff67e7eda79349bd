//! Bodies, answers and settings that were taken for what they are not: cut in the wrong place, for done, for a ping, for
//! harmless.

use std::io::Write;
use std::path::Path;

use http::HeaderMap;
use umavez::config::{Config, Environment};
use umavez::providers::{Provider, Redactor};

use crate::signature_vectors::Sent;
use crate::support::{Delivery, Gateway, Reply, Upstream};

const META: &str = "[[route]]\nname = \"wa\"\npath = \"/wa\"\nprovider = \"meta\"\nsecret = \"s3cret\"\n";

/// A change of WhatsApp's with these members beside what describes them.
fn change(members: &str) -> String {
    format!(
        r#"{{"value":{{"messaging_product":"whatsapp","metadata":{{"phone_number_id":"11"}},"contacts":[{{"wa_id":"55"}}],{members}}},"field":"messages"}}"#
    )
}

fn entry<S: AsRef<str>>(changes: &[S], more: &str) -> String {
    let changes: Vec<&str> = changes.iter().map(AsRef::as_ref).collect();
    format!(r#"{{"id":"10","time":1.0,"changes":[{}]{more}}}"#, changes.join(" , "))
}

fn body(entries: &[String]) -> String {
    format!(r#"{{"object":"whatsapp_business_account", "entry":[{}]}}"#, entries.join(" , "))
}

fn message(id: &str) -> String {
    format!(r#""messages":[{{"id":"{id}"}}]"#)
}

fn meta(body: &str) -> Delivery {
    Delivery::json("/wa", body).signed_by_meta("s3cret")
}

/// A change or an entry was cut out whole with its last copy, and what nobody had seen before went with it; with nothing
/// new elsewhere such a body was swallowed.
#[tokio::test]
async fn what_stands_beside_copies_and_is_not_understood_reaches_the_app() {
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).route(META).start().await;
    let known = change(&message("old"));
    assert_eq!(gateway.send(&meta(&body(&[entry(&[&known], "")]))).await.verdict(), "first");
    let strange = [
        r#""group_updates":[{"x":1}]"#,
        r#""event":{"x":1}"#,
        r#""statuses":{"id":"no list"}"#,
        r#""\u0067roup":[ [] ]"#,
    ];
    for (number, more) in strange.iter().enumerate() {
        // Alone.
        let beside = change(&format!("{},{more}", message("old")));
        let answer = gateway.send(&meta(&body(&[entry(&[&beside], "")]))).await;
        assert_eq!((answer.status, answer.verdict().as_str()), (200, "keyless"), "{more}");
        let emptied = beside.replace(r#"{"id":"old"}"#, "");
        assert_eq!(upstream.last().text(), body(&[entry(&[&emptied], "")]));
        assert_eq!(upstream.last().header("umavez-removed").as_deref(), Some("1"));
        // Beside something new, of which the envelope stays as well; one of copies alone goes.
        let new = change(&message(&format!("new{number}")));
        let sent = body(&[entry(&[known.clone(), beside, new.clone()], "")]);
        assert_eq!(gateway.send(&meta(&sent)).await.verdict(), "first", "{more}");
        assert_eq!(upstream.last().text(), body(&[entry(&[emptied, new], "")]));
    }
    // An entry's own, and the body's.
    let sent = body(&[entry(&[&known], r#","custom":[{"k":1}]"#)]);
    assert_eq!(gateway.send(&meta(&sent)).await.verdict(), "keyless");
    assert_eq!(upstream.last().text(), body(&[entry::<&str>(&[], r#","custom":[{"k":1}]"#)]));
    let sent = body(&[entry(&[&known], "")]).replace(r#", "entry""#, r#","more":{"k":[]},"entry""#);
    assert_eq!(gateway.send(&meta(&sent)).await.verdict(), "keyless");
    let emptied = body(&[]).replace(r#", "entry""#, r#","more":{"k":[]},"entry""#);
    assert_eq!(upstream.last().text(), emptied);

    // What describes the copies, and what is nothing, tells nothing new.
    let received = upstream.received();
    for more in [r#""n":1,"s":"x","b":true"#, r#""group_updates":[ ],"event":{},"errors":null"#] {
        let sent = body(&[entry(
            &[change(&format!("{},{more}", message("old")))],
            r#","hop_context":[{"app_id":1}]"#,
        )]);
        assert_eq!(gateway.send(&meta(&sent)).await.verdict(), "duplicate", "{more}");
    }
    assert_eq!(upstream.received(), received);
}

/// What is inside an item is that item's, and where it stands is told as of items.
#[test]
fn what_stands_beside_items_is_told_with_its_place() {
    let provider = Provider::shipped("meta").unwrap();
    let items = |body: &str| -> Vec<(String, bool)> {
        let found = provider.items(&Sent::new(body).delivery());
        found.list.iter().map(|item| (item.place(), item.parts.is_ok())).collect()
    };
    let strange = change(&format!(r#"{},"a b":{{"c":1}},"second":[1]"#, message("m")));
    assert_eq!(
        items(&body(&[entry(&[change(&message("m")), strange], "")])),
        [
            ("entry[0].changes[0].value.messages[0]".to_owned(), true),
            ("entry[0].changes[1].value.messages[0]".to_owned(), true),
            ("entry[0].changes[1].value[\"a b\"]".to_owned(), false),
        ]
    );
    let comment = r#"{"field":"comments","value":{"id":"c1","from":{"id":"7"},"media":[1]}}"#;
    assert_eq!(items(&body(&[entry(&[comment], "")])), [("entry[0].changes[0]".to_owned(), true)]);
    assert_eq!(items(r#"{"entry":{"id":"1"}}"#), [("$".to_owned(), false)]);
    assert_eq!(
        items(r#"{"entry":[{"messaging":{"message":{"mid":"m"}}}, [1]]}"#),
        [("entry[0].messaging".to_owned(), false), ("entry[1]".to_owned(), false)]
    );
}

/// A batch of XML with a byte order mark was cut three bytes too early: the app got no XML. What is hidden in captures
/// began three bytes too early as well.
#[tokio::test]
async fn xml_with_a_byte_order_mark_is_cut_where_its_elements_are() {
    let upstream = Upstream::answering(200, "").await;
    let route = "[[route]]\nname = \"sf\"\npath = \"/sf\"\nprovider = \"salesforce\"\n";
    let gateway = Gateway::in_front_of(&upstream).route(route).start().await;
    let notices = |ids: &[u32]| {
        let items: String =
            ids.iter().map(|id| format!("<Notification><Id>{id}</Id></Notification>")).collect();
        format!(
            "\u{feff}<Envelope><Body><notifications><OrganizationId>O</OrganizationId><SessionId>live</SessionId>{items}</notifications></Body></Envelope>"
        )
    };
    let send = |text: String| {
        Delivery::new("POST", "/sf").header("Content-Type", "text/xml; charset=utf-8").body(text)
    };
    assert_eq!(gateway.send(&send(notices(&[1]))).await.verdict(), "first");
    assert_eq!(gateway.send(&send(notices(&[1, 2]))).await.verdict(), "first");
    assert_eq!(upstream.last().text(), notices(&[2]));

    let provider = Provider::shipped("salesforce").unwrap();
    let redactor = Redactor::new(Some(&provider), None);
    let sent = Sent::new(notices(&[1])).header("content-type", "text/xml");
    let shown = String::from_utf8(redactor.body(&sent.headers, &sent.body).unwrap().into_owned()).unwrap();
    assert!(!shown.contains("live") && shown.contains("</OrganizationId><SessionId>"), "{shown}");
}

/// An app that refused in anything but clean UTF-8 XML had the event committed: it never came again.
#[tokio::test]
async fn a_soap_answer_that_cannot_be_read_acknowledges_nothing() {
    let soap = |inside: &str| {
        format!(
            "<s:Envelope xmlns:s=\"http://schemas.xmlsoap.org/soap/envelope/\"><s:Body>{inside}</s:Body></s:Envelope>"
        )
    };
    let ack = |said: &str| soap(&format!("<notificationsResponse><Ack>{said}</Ack></notificationsResponse>"));
    let fault = |text: &str| soap(&format!("<s:Fault><faultstring>{text}</faultstring></s:Fault>"));
    let latin1 = |text: &str| -> Vec<u8> {
        let text = format!("<?xml version=\"1.0\" encoding=\"ISO-8859-1\"?><!-- \u{e9} -->{text}");
        text.chars().map(|character| u8::try_from(u32::from(character)).unwrap()).collect()
    };
    let utf16 = |text: &str, mark: bool, unit: fn(u16) -> [u8; 2]| -> Vec<u8> {
        let mark = mark.then_some(0xFEFF);
        mark.into_iter().chain(text.encode_utf16()).flat_map(unit).collect()
    };
    let cut = |text: &str, by: usize| text.as_bytes()[..text.len() - by].to_vec();
    let xml = "text/xml; charset=utf-8";
    let refusals: Vec<(&str, Vec<u8>)> = vec![
        (xml, latin1(&ack("false"))),
        (xml, latin1(&fault("n\u{e3}o processado"))),
        ("text/html", latin1(&fault("n\u{e3}o processado"))),
        (xml, utf16(&ack("false"), true, u16::to_le_bytes)),
        (xml, utf16(&ack("false"), true, u16::to_be_bytes)),
        (xml, utf16(&ack("false"), false, u16::to_le_bytes)),
        ("", fault("a & b").into()),
        ("", fault("n&atilde;o").into()),
        ("", ack("true & false").into()),
        ("", format!("<!DOCTYPE x>{}", fault("x")).into()),
        ("", cut(&ack("false"), 30)),
        ("", cut(&ack("true"), 30)),
        (xml, b"<?xml version=\"1.0\"?><s:Env".to_vec()),
        ("application/soap+xml", b"<s:Env".to_vec()),
        ("", utf16(&ack("false"), true, u16::to_le_bytes).into_iter().take(121).collect()),
    ];
    let accepted: Vec<(&str, Vec<u8>)> = vec![
        (xml, latin1(&ack("true"))),
        (xml, utf16(&ack("true"), true, u16::to_be_bytes)),
        // No SOAP at all: done by its status.
        ("text/html", b"<!DOCTYPE html><html><body>ok<br></body></html>".to_vec()),
        ("text/html", b"<html><body>ok</body></html>".to_vec()),
        (xml, b"ok & done".to_vec()),
        ("application/json", b"{\"ok\":".to_vec()),
    ];
    let route = "[[route]]\nname = \"sf\"\npath = \"/sf\"\nprovider = \"salesforce\"\n";
    let answered = |(kind, body): &(&str, Vec<u8>)| {
        let headers: &[(&str, &str)] = if kind.is_empty() { &[] } else { &[("Content-Type", kind)] };
        Reply::with_headers(200, headers, body)
    };
    let upstream = Upstream::scripted(refusals.iter().chain(&accepted).map(answered)).await;
    let gateway = Gateway::in_front_of(&upstream).route(route).start().await;
    let notice = |id: usize| {
        let text = format!(
            "<Envelope><Body><notifications><OrganizationId>O</OrganizationId><Notification><Id>{id}</Id></Notification></notifications></Body></Envelope>"
        );
        Delivery::new("POST", "/sf").header("Content-Type", "text/xml").body(text)
    };
    for (kind, refusal) in &refusals {
        let verdict = gateway.send(&notice(0)).await.verdict();
        assert_eq!(verdict, "first", "before {kind} {}", String::from_utf8_lossy(refusal));
    }
    for (number, (kind, accepted)) in accepted.iter().enumerate() {
        for verdict in ["first", "duplicate"] {
            let said = gateway.send(&notice(number)).await.verdict();
            assert_eq!(said, verdict, "{kind} {}", String::from_utf8_lossy(accepted));
        }
    }
    assert_eq!(upstream.received(), refusals.len() + accepted.len());
}

/// An answer whose encoding can't be undone was read as the bytes it came in, which refuse nothing.
#[test]
fn an_acknowledgement_in_a_broken_encoding_is_none() {
    let salesforce = Provider::shipped("salesforce").unwrap();
    let headers = |kind: &str| -> HeaderMap {
        HeaderMap::from_iter([(http::header::CONTENT_TYPE, kind.parse().unwrap())])
    };
    assert!(salesforce.is_refused_by(&headers("text/xml"), None));
    assert!(salesforce.is_refused_by(&headers("Application/SOAP+XML; charset=utf-8"), None));
    assert!(!salesforce.is_refused_by(&headers("text/plain"), None));
    assert!(!Provider::shipped("stripe").unwrap().is_refused_by(&headers("text/xml"), None));
}

/// Any unsigned text after `webhook_id=`, and any with a wrong signature, reached the app as WooCommerce's ping.
#[tokio::test]
async fn a_ping_of_woocommerce_is_a_number_and_shows_no_signature() {
    let upstream = Upstream::answering(200, "").await;
    let route = "[[route]]\nname = \"w\"\npath = \"/w\"\nprovider = \"woocommerce\"\nsecret = \"k\"\n";
    let gateway = Gateway::in_front_of(&upstream).route(route).start().await;
    let form = |body: &str| {
        Delivery::new("POST", "/w").header("Content-Type", "application/x-www-form-urlencoded").body(body)
    };
    for body in [
        "webhook_id=' OR 1=1 --",
        "webhook_id=%3Cscript%3E",
        "webhook_id=1.0",
        "webhook_id=-1",
        "webhook_id=+1",
        "webhook_id=12%20",
        "webhook_id=123456789012345678901",
        "webhook_id=%D9%A1",
    ] {
        assert_eq!(gateway.send(&form(body)).await.status, 401, "{body}");
    }
    for signature in ["bad", "", " "] {
        let shown = form("webhook_id=7").header("X-WC-Webhook-Signature", signature);
        assert_eq!(gateway.send(&shown).await.status, 401, "{signature:?}");
    }
    assert_eq!(upstream.received(), 0);
    let ping = gateway.send(&form("webhook_id=7")).await;
    assert_eq!((ping.status, ping.verdict().as_str()), (200, "keyless"));
    assert_eq!(upstream.last().text(), "webhook_id=7");
}

/// A cut batch went out with the digests of the body that it came in.
#[tokio::test]
async fn a_cut_batch_carries_no_digest_of_the_body_that_it_was() {
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).route(META).start().await;
    let digests = ["Content-MD5", "Content-Digest", "Repr-Digest", "Digest"];
    let batch = |ids: &[&str]| {
        let changes: Vec<String> = ids.iter().map(|id| change(&message(id))).collect();
        let sent = meta(&body(&[entry(&changes, "")]));
        digests.iter().fold(sent, |sent, name| sent.header(name, "sha-256=:AA==:"))
    };
    gateway.send(&batch(&["1"])).await;
    let whole = upstream.last();
    gateway.send(&batch(&["1", "2"])).await;
    let cut = upstream.last();
    assert_eq!(cut.header("umavez-removed").as_deref(), Some("1"));
    for name in digests {
        assert_eq!(whole.header(name).as_deref(), Some("sha-256=:AA==:"), "whole, it is as it came");
        assert_eq!(cut.header(name), None, "{name}");
    }
}

/// A signature that covers a digest of the body can't be made anew for a cut one: taking the digest away broke the app's
/// own check.
#[tokio::test]
async fn a_batch_whose_digest_is_signed_is_forwarded_whole() {
    let file = "name = \"digested\"\ndocs = \"d\"\nhot_ttl = \"1h\"\ndurable_ttl = \"1h\"\n[signature]\n\
                scheme = \"hmac-sha256\"\nheader = \"X-Sig\"\nformat = \"{hex}\"\nsigned = \"{header:Content-Digest}\"\n\
                [[item]]\npath = \"$[*]\"\nkey = [\"@.id\"]\n";
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("digested.toml"), file).unwrap();
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream)
        .route("[[route]]\nname = \"d\"\npath = \"/d\"\nprovider = \"sendgrid\"\n")
        .start()
        .await;
    gateway.edit("[listen]", &format!("providers_dir = {:?}\n[listen]", folder.path()));
    gateway.edit("sendgrid", "digested");
    assert_eq!(gateway.ask_admin("POST", "/reload").await.status, 200);
    let batch = |text: &str| Delivery::json("/d", text);
    gateway.send(&batch(r#"[{"id":1}]"#)).await;
    let signed = batch(r#"[{"id":1},{"id":2}]"#).header("Content-Digest", "sha-256=:AA==:");
    assert_eq!(gateway.send(&signed).await.verdict(), "first");
    assert_eq!(upstream.last().text(), r#"[{"id":1},{"id":2}]"#);
    assert_eq!(upstream.last().header("content-digest").as_deref(), Some("sha-256=:AA==:"));
    gateway.send(&batch(r#"[{"id":1},{"id":3}]"#)).await;
    assert_eq!(upstream.last().text(), r#"[{"id":3}]"#);
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Some hundred bytes that unfold to 128 MiB under two encodings were passed on as a body without a key.
#[tokio::test]
async fn a_bomb_in_a_bomb_is_too_large() {
    let upstream = Upstream::answering(200, "").await;
    let route = "[[route]]\nname = \"r\"\npath = \"/r\"\nkey = [\"$.id\"]\nbody_limit = \"1MiB\"\n";
    let gateway = Gateway::in_front_of(&upstream).route(route).start().await;
    let twice =
        |bytes: &[u8]| Delivery::json("/r", gzip(&gzip(bytes))).header("Content-Encoding", "gzip, gzip");
    let bomb = twice(&vec![b' '; 128 << 20]);
    assert!(bomb.body.len() < 1024);
    assert_eq!(gateway.send(&bomb).await.status, 413);
    assert_eq!(gateway.send(&twice(&vec![b' '; 2 << 20])).await.status, 413);
    assert_eq!(upstream.received(), 0);
    assert_eq!(gateway.send(&twice(br#"{"id":1}"#)).await.verdict(), "first");
}

/// Three encodings on top of each other were not undone: copies passed without a key, and bombs to the app.
#[tokio::test]
async fn a_body_that_is_encoded_many_times_over_is_undone_or_refused() {
    let upstream = Upstream::answering(200, "").await;
    let route = "[[route]]\nname = \"r\"\npath = \"/r\"\nkey = [\"$.id\"]\nbody_limit = \"1MiB\"\n";
    let gateway = Gateway::in_front_of(&upstream).route(route).start().await;
    let wrapped = |times: usize, bytes: &[u8]| {
        let body = (0..times).fold(bytes.to_vec(), |inside, _| gzip(&inside));
        Delivery::json("/r", body).header("Content-Encoding", &vec!["gzip"; times].join(", "))
    };
    for verdict in ["first", "duplicate"] {
        assert_eq!(gateway.send(&wrapped(3, br#"{"id":3}"#)).await.verdict(), verdict);
        assert_eq!(gateway.send(&wrapped(8, br#"{"id":8}"#)).await.verdict(), verdict);
    }
    assert_eq!(upstream.received(), 2);
    assert_eq!(upstream.last().body, wrapped(8, br#"{"id":8}"#).body, "byte for byte as it came");
    assert_eq!(gateway.send(&wrapped(3, &vec![b' '; 128 << 20])).await.status, 413);
    let refused = gateway.send(&wrapped(9, br#"{"id":9}"#)).await;
    assert_eq!((refused.status, refused.verdict().as_str()), (415, "refused"));
    assert_eq!(refused.text(), "the body is encoded more than 8 times over\n");
    assert_eq!(upstream.received(), 2);
    // An encoding that isn't known is another matter.
    let strange = Delivery::json("/r", "?").header("Content-Encoding", "gzip, gzip, aws-chunked");
    assert_eq!(gateway.send(&strange).await.verdict(), "keyless");
}

/// What `umavez check` says of a configuration with these lines after an app's URL.
fn told(lines: &str) -> Result<Vec<String>, String> {
    let env: Environment = [("K".to_owned(), "abc".to_owned())].into_iter().collect();
    let text = format!("[upstream]\nurl = \"http://127.0.0.1:3000\"\n{lines}");
    let parsed = Config::parse(Path::new("u.toml"), &text, &env);
    parsed
        .map(|(_, warnings)| warnings.iter().map(ToString::to_string).collect())
        .map_err(|errors| errors.to_string())
}

fn route(provider: &str, lines: &str) -> String {
    format!("[[route]]\nname = \"r\"\npath = \"/{{t}}\"\nprovider = \"{provider}\"\n{lines}\n")
}

/// A fixed `duplicate_answer` that its provider takes for a failure was used, and nothing was said of it: each copy came
/// again and again.
#[test]
fn an_answer_to_copies_that_is_no_success_is_warned_of() {
    let fixed = |provider: &str, answer: &str| {
        let key = format!("[[route]]\nname = \"r\"\npath = \"/r\"\nkey = [\"$.id\"]\n{answer}\n");
        if provider.is_empty() { key } else { route(provider, answer) }
    };
    for (provider, status, said) in [
        ("asaas", 202, "copies are told 202, and asaas takes 200 for success"),
        ("discord", 200, "copies are told 200, and discord takes 204 for success"),
        ("woocommerce", 404, "copies are told 404, and woocommerce takes 200-302 for success"),
        ("zoom", 202, "copies are told 202, and zoom takes 200, 204 for success"),
        ("stripe", 500, "copies are told 500, and stripe takes 200-299 for success"),
        ("stripe", 301, "copies are told 301, and stripe takes 200-299 for success"),
        ("", 404, "copies are told 404, and a sender takes 200-299 for success"),
        ("", 302, "copies are told 302, and a sender takes 200-299 for success"),
    ] {
        let warnings =
            told(&fixed(provider, &format!("duplicate_answer = {{ status = {status} }}"))).unwrap();
        let found = warnings.iter().any(|warning| warning.contains(said) && warning.contains("7:31"));
        assert!(provider.is_empty() || found, "{provider} {status}: {warnings:#?}");
        assert!(warnings.iter().any(|warning| warning.contains(said)), "{provider} {status}: {warnings:#?}");
    }
    let body =
        "r\".duplicate_answer.body: salesforce takes only an answer that acknowledges in its own words";
    let silent = told(&fixed("salesforce", "duplicate_answer = { status = 200, body = \"ok\" }")).unwrap();
    assert!(silent.iter().any(|warning| warning.contains(body)), "{silent:#?}");
    let ack = Provider::shipped("salesforce").unwrap().duplicate_answer.as_ref().unwrap().body.clone();
    for fine in [
        fixed("salesforce", &format!("duplicate_answer = {{ content_type = \"text/xml\", body = '{ack}' }}")),
        fixed("asaas", "duplicate_answer = { status = 200 }"),
        fixed("stripe", "duplicate_answer = { status = 204 }"),
        fixed("", "duplicate_answer = { status = 202, body = \"{}\", content_type = \"application/json\" }"),
        fixed("asaas", "duplicate_answer = \"receipt\""),
    ] {
        let warnings = told(&fine).unwrap();
        assert!(!warnings.iter().any(|warning| warning.contains("duplicate_answer")), "{warnings:#?}");
    }
}

/// Of key parts from the query that no signature covers `umavez check` warned, of those from the path and of a scope with
/// placeholders it didn't: a signed body that was sent again to another path was a new event.
#[test]
fn what_the_path_tells_and_nobody_signed_is_warned_of() {
    let warned = |provider: &str, lines: &str, said: &str| {
        let warnings = told(&route(provider, lines)).unwrap();
        warnings.iter().filter(|warning| warning.contains(said)).count()
    };
    let key = "secret = \"${K}\"\nkey = [\"path:t\", \"$.id\"]";
    let said = "route \"r\".key: events are named by path:t, which stripe's signature does not cover";
    assert_eq!(warned("stripe", key, said), 1);
    let scope = "secret = \"${K}\"\nscope = \"x:{t}\"";
    let said = "route \"r\".scope: events are kept apart by path:t, which stripe's signature does not cover";
    assert_eq!(warned("stripe", scope, said), 1);
    // A scheme that covers the URL covers its path; a token covers nothing, as is said elsewhere.
    for provider in ["twilio", "hotmart"] {
        assert_eq!(warned(provider, scope, "path:t"), 0, "{provider}");
    }
    assert_eq!(warned("stripe", "secret = \"${K}\"\nscope = \"x\"", "path:"), 0);
}

/// Keys of `scope = "s:{t}"` on one route and of `scope = "s"` with one part more on another could be one text, and one
/// route's event then a copy of the other's: nothing was said of it.
#[test]
fn scopes_whose_keys_can_meet_are_warned_of() {
    let scoped = |name: &str, scope: &str, key: &str| {
        let scope = if scope.is_empty() { String::new() } else { format!("scope = \"{scope}\"\n") };
        format!("[[route]]\nname = \"{name}\"\npath = \"/{name}/{{t}}/{{u}}\"\nkey = [{key}]\n{scope}")
    };
    let (one, two) = ("\"$.id\"", "\"$.type\", \"$.id\"");
    for (pair, meet) in [
        ([("a", "s:{t}", one), ("b", "s", two)], true),
        ([("a", "s:{t}", one), ("s", "", two)], true),
        ([("s", "", two), ("b", "s:{t}", one)], true),
        ([("a", "{t}", one), ("b", "", one)], true),
        ([("a", "s:x{t}", one), ("b", "s:{t}y", one)], true),
        ([("a", "s:{t}", one), ("b", "s", "\"$.id\", \"$.more?\"")], true),
        ([("a", "s:{t}", "\"$.id\", \"literal:paid\""), ("b", "s:x", "\"$.id\", \"$.x?\"")], true),
        ([("a", "s:x", one), ("b", "s", "\"literal:x\", \"$.id\"")], true),
        // As many parts, other words, or one scope on purpose.
        ([("a", "s:{t}", one), ("b", "s", one)], false),
        ([("a", "s:{t}", one), ("b", "z:{t}", one)], false),
        ([("a", "s:x{t}", one), ("b", "s:y{t}", one)], false),
        ([("a", "s:x", one), ("b", "s", "\"literal:y\", \"$.id\"")], false),
        ([("a", "s:{t}", "\"$.id\", \"paid\""), ("b", "s", "\"$.a\", \"$.id\", \"void\"")], false),
        ([("a", "s", one), ("b", "s", one)], false),
        ([("a", "s:{t}", one), ("b", "s:{t}", two)], false),
        ([("a", "", two), ("b", "", one)], false),
        ([("a", "s\\\\:{t}", one), ("b", "s", two)], false),
    ] {
        let lines: String = pair.iter().map(|(name, scope, key)| scoped(name, scope, key)).collect();
        let warnings = told(&lines).unwrap();
        let found: Vec<_> = warnings.iter().filter(|warning| warning.contains(".scope: keys of")).collect();
        assert_eq!(found.len(), usize::from(meet), "{pair:?}: {found:#?}");
    }
    let lines =
        [("a", "s:{t}", one), ("b", "s", two), ("s", "", two)].map(|(n, s, k)| scoped(n, s, k)).concat();
    let warnings = told(&lines).unwrap();
    let said = "u.toml:12:9: route \"b\".scope: keys of this route and of \"a\" can be the same text";
    assert!(warnings.iter().any(|warning| warning.contains(said)), "{warnings:#?}");
    let together = told(&scoped("a", "{t}.{u}", one)).unwrap();
    let said = "route \"a\".scope: nothing tells where {t} ends and {u} begins";
    assert!(together.iter().any(|warning| warning.contains(said)), "{together:#?}");
    assert!(
        !told(&scoped("a", "{t}:{u}", one)).unwrap().iter().any(|warning| warning.contains("nothing tells"))
    );
}

/// What other programs understand was taken as it stands, without a word: a path of Express matched no request, so that all
/// of them passed; `data.id` in a key was the same for every event; `$NAME` was the secret itself, and everything 401.
#[test]
fn what_other_programs_would_read_otherwise_is_warned_of() {
    let keyed = |path: &str, key: &str| {
        let lines = format!("[[route]]\nname = \"r\"\npath = \"{path}\"\nkey = [{key}]\n");
        told(&lines)
            .unwrap()
            .into_iter()
            .filter(|warning| !warning.contains("no signature"))
            .collect::<Vec<_>>()
    };
    for (path, said) in [
        (
            "/orders/:id",
            "u.toml:5:8: route \"r\".path: \":id\" matches these characters alone; if it stands for any, write {id}",
        ),
        ("/orders/<id>", "\"<id>\" matches these characters alone; if it stands for any, write {id}"),
        ("/orders/*", "\"*\" matches these characters alone; if it stands for any, write {*rest}"),
    ] {
        let warnings = keyed(path, "\"$.id\"");
        assert!(warnings.iter().any(|warning| warning.contains(said)), "{path}: {warnings:#?}");
    }
    let warnings = keyed("/r", "\"$.at\", \"data.id\"");
    let said = "u.toml:6:16: route \"r\".key: \"data.id\" is a literal, the same in every event";
    assert!(warnings.iter().any(|warning| warning.contains(said)), "{warnings:#?}");
    assert!(warnings.iter().any(|warning| warning.contains("write \"$.data.id\", or \"literal:data.id\"")));
    for (path, key) in [
        ("/orders/{id}/{*rest}", "\"order\", \"v1\", \"$.id\""),
        ("/a:b", "\"literal:data.id\", \"a. b\", \"$.data.id\""),
    ] {
        let warnings = keyed(path, key);
        assert!(
            !warnings.iter().any(|warning| warning.contains("route \"r\"")),
            "{path} {key}: {warnings:#?}"
        );
    }
    let warnings = told(&route("stripe", "secret = \"$STRIPE_SECRET\"")).unwrap();
    let said = "begins with $ as a variable does, and is taken as it stands; write \"${NAME}\"";
    assert!(warnings.iter().any(|warning| warning.contains(said)), "{warnings:#?}");
}

/// `level = "inof"` was right to `umavez check`, and the gateway then logged nothing at all; so were other words that
/// mean nothing.
#[test]
fn words_that_mean_nothing_are_told() {
    for (lines, said) in [
        ("[log]\nlevel = \"inof\"\n", "u.toml:4:9: log.level: \"inof\" is no level"),
        ("[log]\nlevel = \"inof\"\n", "did you mean \"info\"?"),
        ("[log]\nlevel = \"umavze=debug\"\n", "did you mean \"umavez\"?"),
        ("[log]\nlevel = \"verbose\"\n", "log.level: \"verbose\" is no level"),
    ] {
        let errors = told(lines).unwrap_err();
        assert!(errors.contains(said), "{lines}: {errors}");
    }
    let media = route("stripe", "secret = \"${K}\"\nduplicate_answer = { content_type = \"json\" }");
    assert!(told(&media).unwrap_err().contains("duplicate_answer.content_type: is no media type"));
    for (lines, said) in [
        ("[log]\nlevel = \"hyper=debug\"\n".to_owned(), "nothing of umavez is logged"),
        (route("stripe", "secret = \"${K}\"\nmethod = [\"PUT\", \"PSOT\"]"), "did you mean \"POST\"?"),
    ] {
        let warnings = told(&lines).unwrap();
        assert!(warnings.iter().any(|warning| warning.contains(said)), "{lines}: {warnings:#?}");
    }
    for lines in ["[log]\nlevel = \"umavez=debug,warn\"\n", "[log]\nlevel = \"off\"\n"] {
        assert!(!told(lines).unwrap().iter().any(|warning| warning.contains("log")), "{lines}");
    }
}

/// A variable that logs nothing was taken as well.
#[test]
fn a_filter_of_the_environment_that_would_log_nothing_ends_the_start() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_umavez"))
        .args(["run", "--upstream", "http://127.0.0.1:1", "--provider", "stripe"])
        .env("UMAVEZ_LOG", "inof")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(64), "{said}");
    assert!(
        said.contains("UMAVEZ_LOG: \"inof\" is no level") && said.contains("did you mean \"info\"?"),
        "{said}"
    );
}
