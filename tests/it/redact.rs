//! Live credentials never show: in what people see of held events, in logs, in what is kept of deliveries. What goes to
//! the app, or is stored to go there, keeps them.

use std::fmt::Write as _;

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use proptest::prelude::*;
use umavez::providers::{Delivery as Sent, HIDDEN, ItemRules, Provider, Redactor};

use crate::support::fixtures::{Fixture, expected};
use crate::support::{Delivery, Gateway, Reply, Upstream};

/// A secret as it stands in any body: no letter of it needs an escape.
const PLANTED: &str = "live-7f3c9d1e5b";

fn hotmart() -> Redactor {
    let provider = Provider::shipped("hotmart").unwrap();
    Redactor::new(Some(&provider), Some(&provider.rules))
}

fn content_type(value: &'static str) -> HeaderMap {
    HeaderMap::from_iter([(http::header::CONTENT_TYPE, HeaderValue::from_static(value))])
}

fn shown(redactor: &Redactor, content: &'static str, body: &str) -> String {
    match redactor.body(&content_type(content), body.as_bytes()) {
        Ok(text) => String::from_utf8(text.into_owned()).unwrap(),
        Err(withheld) => withheld.to_string(),
    }
}

#[test]
fn credentials_are_hidden_and_every_other_byte_stays() {
    let form = "application/x-www-form-urlencoded";
    for (content, body, wanted) in [
        // What the provider's file marks; repeated members each; a name in escapes; numbers; what is inside.
        ("application/json", r#"{"hottok":"S", "id" :7}"#, r#"{"hottok":"[redacted]", "id" :7}"#),
        (
            "application/json",
            r#"{"hottok":"S","id":1.0,"hottok":"S2"}"#,
            r#"{"hottok":"[redacted]","id":1.0,"hottok":"[redacted]"}"#,
        ),
        ("text/plain", r#"{"hott\u006fk":"S"}"#, r#"{"hott\u006fk":"[redacted]"}"#),
        ("application/json", r#"{"hottok":{"a":["S"]}}"#, r#"{"hottok":"[redacted]"}"#),
        ("application/json", r#"{"hottok":123456}"#, r#"{"hottok":"[redacted]"}"#),
        // What tells of a credential by its name, wherever it stands.
        (
            "application/json",
            r#"[{"data":{"apiKey":"S","client_secret":"S","keyId":"k"}}]"#,
            r#"[{"data":{"apiKey":"[redacted]","client_secret":"[redacted]","keyId":"k"}}]"#,
        ),
        (
            "application/json",
            r#"{"credentials":{"user":"S","list":["S",null]}}"#,
            r#"{"credentials":{"user":"[redacted]","list":["[redacted]",null]}}"#,
        ),
        (
            "application/json",
            r#"{"senha":"S","chave_api":"S","chave":"k","contraseña":"S","clave":"S","resenha":"k"}"#,
            r#"{"senha":"[redacted]","chave_api":"[redacted]","chave":"k","contraseña":"[redacted]","clave":"[redacted]","resenha":"k"}"#,
        ),
        ("application/json", r#"{"apikey":null}"#, r#"{"apikey":null}"#),
        (form, "a=1&token=S&b=%20x+y&token=S2", "a=1&token=%5Bredacted%5D&b=%20x+y&token=%5Bredacted%5D"),
        (
            form,
            "payload=%7B%22id%22%3A7%2C%22hottok%22%3A%22S%22%7D&x=1",
            "payload=%7B%22id%22%3A7%2C%22hottok%22%3A%22%5Bredacted%5D%22%7D&x=1",
        ),
        (
            "text/xml",
            "<?xml version=\"1.0\"?><a:E xmlns:a='u'><Token t='1'>S&amp;<![CDATA[S]]></Token><Id apiKey='S'>7</Id></a:E>",
            "<?xml version=\"1.0\"?><a:E xmlns:a='u'><Token t='[redacted]'>[redacted]</Token><Id apiKey='[redacted]'>7</Id></a:E>",
        ),
        ("application/json", "", ""),
        ("application/json", " \n", " \n"),
    ] {
        let rules = ItemRules::from_key(&["$.id".to_owned()]).unwrap();
        let provider = Provider::shipped("hotmart").unwrap();
        assert_eq!(shown(&Redactor::new(Some(&provider), Some(&rules)), content, body), wanted);
    }
}

#[test]
fn a_body_that_cannot_be_read_is_withheld_with_its_length() {
    for (content, body) in [
        ("application/json", format!("{{\"hottok\":\"{PLANTED}\"")),
        ("application/json", PLANTED.to_owned()),
        ("text/xml", format!("<a><token>{PLANTED}</a>")),
        ("multipart/form-data; boundary=x", format!("--x\r\nname=token\r\n\r\n{PLANTED}\r\n--x--")),
        ("application/json", format!("{}\"{PLANTED}\"", "[".repeat(200))),
    ] {
        let told = shown(&hotmart(), content, &body);
        assert!(told.starts_with(&format!("[withheld: {} bytes", body.len())), "{told}");
        assert!(!told.contains(PLANTED), "{told}");
    }
}

#[test]
fn headers_and_urls_hide_what_their_names_tell_of() {
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("x-hotmart-hottok", PLANTED),
        ("authorization", "Bearer live-7f3c9d1e5b"),
        ("cookie", "session=live-7f3c9d1e5b"),
        ("cookie", "second=live-7f3c9d1e5b"),
        ("x-api-key", PLANTED),
        ("x-event-id", "e1"),
        ("x-hub-signature-256", "sha256=00"),
    ] {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        headers.append(name, HeaderValue::from_static(value));
    }
    let seen = hotmart().headers(&headers);
    let lines: Vec<String> =
        seen.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
    let names = ["x-hotmart-hottok", "authorization", "cookie", "cookie", "x-api-key"];
    let mut wanted: Vec<String> = names.iter().map(|name| format!("{name}: {HIDDEN}")).collect();
    wanted.extend(["x-event-id: e1".to_owned(), "x-hub-signature-256: sha256=00".to_owned()]);
    assert_eq!(lines, wanted);

    let params = [("token".to_owned(), PLANTED.to_owned()), ("tenant".to_owned(), "t1".to_owned())];
    assert_eq!(
        hotmart().url(&format!("https://h.example/t1/{PLANTED}/in?a=%2b&token={PLANTED}&apiKey=&b"), &params),
        "https://h.example/t1/%5Bredacted%5D/in?a=%2b&token=%5Bredacted%5D&apiKey=%5Bredacted%5D&b"
    );
}

#[test]
fn what_names_events_is_shown_though_its_name_tells_of_a_credential() {
    let key = ["header:X-Event-Token", "$.token", "query:token", "path:secret"].map(str::to_owned);
    let redactor = Redactor::new(None, Some(&ItemRules::from_key(&key).unwrap()));
    let headers =
        HeaderMap::from_iter([(HeaderName::from_static("x-event-token"), HeaderValue::from_static("e1"))]);
    assert_eq!(redactor.headers(&headers), headers);
    assert_eq!(shown(&redactor, "application/json", r#"{"token":"e1"}"#), r#"{"token":"e1"}"#);
    assert_eq!(
        shown(&redactor, "application/json", r#"{"a":{"token":"e1"}}"#),
        r#"{"a":{"token":"[redacted]"}}"#
    );
    let params = [("secret".to_owned(), "e1".to_owned())];
    assert_eq!(redactor.url("/e1?token=e1", &params), "/e1?token=e1");
}

/// Slack's `response_url` stood in clear in captures and in what `events show` tells: whoever has it may post, without
/// a token, for half an hour.
#[test]
fn a_url_that_lets_its_holder_post_is_hidden_wherever_it_stands() {
    let slack = Provider::shipped("slack").unwrap();
    let slack = Redactor::new(Some(&slack), Some(&slack.rules));
    let url = "https://hooks.slack.com/commands/T0/1/S";
    let form = "application/x-www-form-urlencoded";
    let escaped = url.replace(':', "%3A").replace('/', "%2F");
    let command = format!("token=S&command=%2Fpay&text=7&response_url={escaped}&trigger_id=1.2");
    let hidden = "token=%5Bredacted%5D&command=%2Fpay&text=7&response_url=%5Bredacted%5D&trigger_id=1.2";
    assert_eq!(shown(&slack, form, &command), hidden);
    let click = format!(
        r#"{{"type":"block_actions","response_url":"{url}","response_urls":[{{"response_url":"{url}"}}],"id":7}}"#
    );
    let seen = shown(&slack, "application/json", &click);
    assert_eq!(seen, click.replace(url, HIDDEN));
    let packed: String = click
        .bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' => char::from(byte).to_string(),
            other => format!("%{other:02X}"),
        })
        .collect();
    let seen = shown(&slack, form, &format!("payload={packed}"));
    assert_eq!(seen.matches("%5Bredacted%5D").count(), 2, "{seen}");
    assert!(!seen.contains("hooks.slack.com"), "{seen}");
    // A route with a key of its own names no provider.
    let own = Redactor::new(None, Some(&ItemRules::from_key(&["$.id".to_owned()]).unwrap()));
    for (content, body) in [(form, &command), ("application/json", &click)] {
        let seen = shown(&own, content, body);
        assert!(seen.contains("redacted") && !seen.contains("hooks.slack.com"), "{seen}");
    }
    // Whoever has this one ends the subscription.
    let sns = Provider::shipped("aws-sns").unwrap();
    let body = r#"{"Type":"Notification","UnsubscribeURL":"https://sns.example/?Action=Unsubscribe"}"#;
    let seen = shown(&Redactor::new(Some(&sns), Some(&sns.rules)), "text/plain", body);
    assert_eq!(seen, r#"{"Type":"Notification","UnsubscribeURL":"[redacted]"}"#);
}

#[test]
fn the_routes_own_secrets_are_hidden_wherever_they_stand() {
    let redactor = Redactor::default().knowing([PLANTED.as_bytes(), b"ab"]);
    let body = format!(r#"{{"note":"tok={PLANTED};","ab":1}}"#);
    assert_eq!(shown(&redactor, "application/json", &body), r#"{"note":"tok=[redacted];","ab":1}"#);
    assert_eq!(redactor.url(&format!("/in/{PLANTED}"), &[]), "/in/[redacted]");
    let headers = HeaderMap::from_iter([(
        HeaderName::from_static("x-note"),
        HeaderValue::from_static("is live-7f3c9d1e5b"),
    )]);
    assert_eq!(redactor.headers(&headers)["x-note"], "is [redacted]");
    assert!(!format!("{redactor:?}").contains("live"));
}

/// A JSON document in which some values are secret.
#[derive(Clone, Debug)]
enum Json {
    Secret,
    Text(&'static str),
    List(Vec<Json>),
    Object(Vec<(&'static str, Json)>),
}

const CREDENTIALS: &[&str] =
    &["hottok", "apikey", "Authorization", "access_token", "clientSecret", "pass\\u0077ord"];

fn json() -> impl Strategy<Value = Json> {
    let texts =
        prop::sample::select(vec!["\"x\"", "12.50", "true", "null", "\"\\u00e9\\\"\\\\\"", "-0", "\"é\""]);
    texts.prop_map(Json::Text).prop_recursive(5, 60, 6, |inner| {
        let name = prop::sample::select(vec!["id", "a.b", "", "data", "dat\\u0061", "keyId", "nested"]);
        let member = prop_oneof![
            3 => (name, inner.clone()),
            1 => prop::sample::select(CREDENTIALS).prop_map(|name| (name, Json::Secret)),
        ];
        prop_oneof![
            prop::collection::vec(inner, 0..5).prop_map(Json::List),
            prop::collection::vec(member, 0..5).prop_map(Json::Object),
        ]
    })
}

/// Writes the document, each secret as `secret`, with white space that no writer would repeat.
fn write(json: &Json, secret: &str, out: &mut String) {
    let space = [" ", "", "\n", "", "\t", ""];
    let gap = |out: &mut String, before: usize| out.push_str(space[before % 6]);
    match json {
        Json::Secret => out.push_str(secret),
        Json::Text(text) => out.push_str(text),
        Json::List(list) => {
            out.push('[');
            for (index, element) in list.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                gap(out, index);
                write(element, secret, out);
                gap(out, index + 2);
            }
            out.push(']');
        }
        Json::Object(members) => {
            out.push('{');
            for (index, (name, value)) in members.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                gap(out, index + 2);
                write!(out, "\"{name}\"").unwrap();
                gap(out, index + 4);
                out.push(':');
                write(value, secret, out);
            }
            out.push('}');
        }
    }
}

fn written(json: &Json, secret: &str) -> String {
    let mut out = String::new();
    write(json, secret, &mut out);
    out
}

proptest! {
    #[test]
    fn a_planted_secret_never_shows_and_the_rest_stays(json in json(), secret in "[a-z0-9!#-Z]{6,40}") {
        let quoted = format!("\"{secret}\"");
        let body = written(&json, &quoted);
        let seen = shown(&hotmart(), "application/json", &body);
        prop_assert_eq!(&seen, &written(&json, "\"[redacted]\""));
        // The same inside a form's field.
        let form = |secret: &str| {
            let text = written(&json, secret);
            format!("a=1&data={}", percent_encoding::utf8_percent_encode(&text, percent_encoding::NON_ALPHANUMERIC))
        };
        if body.starts_with(['{', '[']) {
            let seen = shown(&hotmart(), "application/x-www-form-urlencoded", &form(&quoted));
            prop_assert_eq!(seen, form("\"[redacted]\""));
        }
    }

    #[test]
    fn any_bytes_are_shown_without_the_secret_or_withheld(
        before in prop::collection::vec(any::<u8>(), 0..60),
        after in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let member = format!("{{\"hottok\":\"{PLANTED}\"}}");
        let body = [&before, member.as_bytes(), &after].concat();
        if let Ok(seen) = hotmart().body(&content_type("application/json"), &body) {
            prop_assert!(!String::from_utf8_lossy(&seen).contains(PLANTED), "{:?}", String::from_utf8_lossy(&seen));
        }
    }
}

#[test]
fn no_fixture_shows_its_token_and_each_keeps_its_keys() {
    let expect = expected();
    let secrets: Vec<&str> = expect
        .lines()
        .filter_map(|line| line.strip_prefix("- ")?.strip_suffix('`')?.split_once(": `"))
        .map(|(_, value)| value)
        .filter(|value| value.starts_with("fixture-"))
        .collect();
    let mut carried = 0;
    for fixture in Fixture::all() {
        let provider = Provider::shipped(fixture.provider()).unwrap();
        let Fixture { name, headers, body } = fixture;
        let redactor = Redactor::new(Some(&provider), Some(&provider.rules));
        let seen_headers = redactor.headers(&headers);
        let seen = redactor.body(&headers, &body).unwrap_or_else(|withheld| panic!("{name}: {withheld}"));
        let whole =
            |headers: &HeaderMap, body: &[u8]| format!("{headers:?}{}", String::from_utf8_lossy(body));
        for secret in &secrets {
            carried += usize::from(whole(&headers, &body).contains(secret));
            assert!(!whole(&seen_headers, &seen).contains(secret), "{name} shows {secret}");
        }
        let keys = |headers: &HeaderMap, body: &[u8]| -> Vec<_> {
            let url = "https://hooks.example.com/in?data.id=1&type=payment";
            let sent = Sent { method: &Method::POST, url, headers, path_params: &[], raw_body: body, body };
            provider.items(&sent).list.into_iter().map(|item| (item.place(), item.parts)).collect()
        };
        assert_eq!(keys(&headers, &body), keys(&seen_headers, &seen), "{name}");
    }
    assert!(carried >= 6, "the fixtures carry {carried} secrets");
}

#[tokio::test]
async fn a_held_event_is_shown_without_its_credentials_and_replayed_with_them() {
    let upstream = Upstream::scripted([Reply::silence(), Reply::new(200, "")]).await;
    let route = "[[route]]\nname = \"evo\"\npath = \"/evo/{token}\"\nprovider = \"evolution\"\n\
                 timeout = \"300ms\"\nlease = \"2s\"\non_unknown = \"hold\"\n";
    let gateway =
        Gateway::in_front_of(&upstream).route(route).env("UMAVEZ_LOG", "umavez=trace,debug").start().await;
    let body = format!(
        r#"{{"event":"messages.upsert","instance":"loja","data":{{"key":{{"id":"3EB0AA"}}}},"apikey":"{PLANTED}","apikey":"{PLANTED}"}}"#
    );
    let delivery = Delivery::json(&format!("/evo/{PLANTED}?apikey={PLANTED}&n=1"), body.clone())
        .header("Authorization", &format!("Bearer {PLANTED}"))
        .header("X-Kept", "yes");
    assert_eq!(gateway.send(&delivery).await.verdict(), "held");
    let key = "evo:loja:messages.upsert:3EB0AA";
    let told = gateway.ask_admin("GET", &format!("/events?key={key}")).await;
    let request = &told.json()["request"];
    assert_eq!(request["request"], "POST /evo/%5Bredacted%5D?apikey=%5Bredacted%5D&n=1", "{}", told.text());
    assert_eq!(request["body"], body.replace(PLANTED, HIDDEN));
    assert_eq!(request["body_bytes"], body.len());
    let headers = request["headers"].as_array().unwrap();
    assert!(headers.contains(&serde_json::json!(["x-kept", "yes"])), "{headers:?}");
    assert!(headers.contains(&serde_json::json!(["authorization", HIDDEN])), "{headers:?}");
    let held = gateway.ask_admin("GET", "/events/held").await;
    for seen in [told.text(), held.text()] {
        assert!(!seen.contains(PLANTED), "{seen}");
    }

    let replayed = gateway.ask_admin("POST", &format!("/events/replay?key={key}")).await;
    assert_eq!(replayed.json()["answer"], 200, "{}", replayed.text());
    let received = upstream.last();
    assert_eq!(received.text(), body);
    assert_eq!(received.header("authorization").unwrap(), format!("Bearer {PLANTED}"));
    assert_eq!(received.target, format!("/evo/{PLANTED}?apikey={PLANTED}&n=1"));
    assert_eq!(
        gateway.ask_admin("GET", &format!("/events?key={key}")).await.json()["request"],
        serde_json::Value::Null
    );
    assert!(!gateway.logs().contains(PLANTED), "{}", gateway.logs());
}

#[tokio::test]
async fn a_receipt_is_answered_as_it_was_and_only_its_size_is_shown() {
    let echo = format!(r#"{{"seen":{{"hottok":"{PLANTED}"}}}}"#);
    let upstream = Upstream::answering(200, &echo).await;
    let route = format!(
        "[[route]]\nname = \"hotmart\"\npath = \"/hotmart\"\nprovider = \"hotmart\"\nsecret = \"{PLANTED}\"\n"
    );
    let gateway =
        Gateway::in_front_of(&upstream).route(&route).env("UMAVEZ_LOG", "umavez=trace,debug").start().await;
    let delivery = Delivery::json("/hotmart", format!(r#"{{"id":"h1","hottok":"{PLANTED}"}}"#));
    for verdict in ["first", "duplicate"] {
        let answer = gateway.send(&delivery.clone().header("X-Hotmart-Hottok", PLANTED)).await;
        assert_eq!((answer.verdict().as_str(), answer.text()), (verdict, echo.clone()));
    }
    // Refused, which is told with its reason.
    assert_eq!(gateway.send(&delivery.header("X-Hotmart-Hottok", "wrong-token-5b")).await.status, 401);
    let told = gateway.ask_admin("GET", "/events?key=hotmart:h1").await;
    assert_eq!(told.json()["receipt"]["body_bytes"], echo.len());
    for seen in [told.text(), gateway.logs()] {
        assert!(!seen.contains(PLANTED) && !seen.contains("wrong-token-5b"), "{seen}");
    }
}
