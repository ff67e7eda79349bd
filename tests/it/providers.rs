//! Every fixture of every shipped provider, and the pure part of what keys promise: which items a delivery holds,
//! where each stands and what names it.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use proptest::prelude::*;
use umavez::providers::{Delivery, ItemRules, Items, Keyless, Provider};

use crate::support::fixtures::{Fixture, expected};

struct Case {
    name: String,
    provider: String,
    method: Method,
    url: String,
    headers: HeaderMap,
    body: Vec<u8>,
    /// Place, and parts unless keyless.
    items: Vec<(String, Option<Vec<String>>)>,
}

impl Case {
    fn delivery(&self) -> Delivery<'_> {
        Delivery {
            method: &self.method,
            url: &self.url,
            headers: &self.headers,
            path_params: &[],
            raw_body: &self.body,
            body: &self.body,
        }
    }
}

/// The table at the end of EXPECT.md.
fn cases() -> Vec<Case> {
    let expect = expected();
    let mut items: BTreeMap<String, (String, Vec<Named>)> = BTreeMap::new();
    for row in expect.lines().skip_while(|line| !line.starts_with("| case |")).skip(2) {
        let cells: Vec<&str> =
            row.trim_matches('|').split(" | ").map(|cell| cell.trim().trim_matches('`')).collect();
        let parts = (cells[3] != "keyless").then(|| serde_json::from_str(cells[3]).unwrap());
        let target = if cells[1].is_empty() { "POST /" } else { cells[1] };
        let case = items.entry(cells[0].into()).or_insert_with(|| (target.into(), Vec::new()));
        case.1.push((cells[2].into(), parts));
    }
    let case = |(name, (target, items)): (String, (String, Vec<_>))| {
        let (method, url) = target.split_once(' ').unwrap();
        let url = if url.starts_with('/') { format!("https://hooks.example.com{url}") } else { url.into() };
        let fixture = Fixture::named(&name);
        let provider = fixture.provider().to_owned();
        let Fixture { name, headers, body } = fixture;
        Case { name, provider, method: method.parse().unwrap(), url, headers, body, items }
    };
    items.into_iter().map(case).collect()
}

fn text(part: &[u8]) -> String {
    String::from_utf8_lossy(part).into_owned()
}

fn found(items: &Items) -> Vec<(String, Option<Vec<String>>)> {
    let parts = |item: &umavez::providers::Item| {
        item.parts.as_ref().ok().map(|parts| parts.iter().map(|part| text(part)).collect())
    };
    items.list.iter().map(|item| (item.place(), parts(item))).collect()
}

#[test]
fn every_fixture_yields_its_items_places_and_parts() {
    let mut seen = 0;
    for case in cases() {
        let Some(provider) = Provider::shipped(&case.provider) else { continue };
        seen += 1;
        assert_eq!(found(&provider.items(&case.delivery())), case.items, "{}", case.name);
    }
    assert!(seen > 0);
}

/// The fixtures that are handshakes, the secret to answer with, and the answer that EXPECT.md wants.
/// A case, how its item shows, and the status and body where the gateway answers it.
type Shaken = (&'static str, &'static str, Option<(u16, &'static str)>);

const HANDSHAKES: &[Shaken] = &[
    ("discord-ping", "", Some((204, ""))),
    ("graph-validation-handshake", "", Some((200, "Validation: fixture token+1"))),
    ("slack-url-verification", "", Some((200, "fixture-challenge-3eZbrw"))),
    ("sns-subscription-confirmation", "", None),
    (
        "zoom-url-validation",
        "fixture-zoom-secret-token",
        Some((200, "{\"plainToken\":\"fixturePlainToken01\",\"encryptedToken\":\"0b579bcb")),
    ),
];

#[test]
fn the_handshakes_among_the_fixtures_and_nothing_else_are_told_and_answered() {
    for case in cases() {
        let provider = Provider::shipped(&case.provider).unwrap();
        let delivery = case.delivery();
        let found = provider.handshakes.iter().find(|handshake| handshake.is(&delivery));
        let known = HANDSHAKES.iter().find(|(name, ..)| *name == case.name);
        assert_eq!(found.is_some(), known.is_some(), "{}", case.name);
        let (Some(handshake), Some((_, secret, wanted))) = (found, known) else { continue };
        assert!(case.items.iter().all(|(_, parts)| parts.is_none()), "{}", case.name);
        let answer = handshake.answer(&delivery, &[], Some(secret.as_bytes()));
        match (answer, wanted) {
            (Some(answer), Some((status, body))) => {
                assert_eq!(answer.status, *status);
                assert!(answer.body.starts_with(body), "{}: {}", case.name, answer.body);
            }
            (answer, wanted) => assert_eq!(answer.is_some(), wanted.is_some(), "{}", case.name),
        }
    }
}

#[test]
fn every_shipped_provider_has_a_fixture() {
    let cases = cases();
    for name in Provider::names() {
        let has = cases.iter().any(|case| case.provider == *name);
        assert!(has, "{name} has no fixture");
    }
}

/// A JSON delivery without headers of its own.
fn json(rules: &ItemRules, body: &[u8]) -> Items {
    with_headers(rules, &HeaderMap::new(), body)
}

fn with_headers(rules: &ItemRules, headers: &HeaderMap, body: &[u8]) -> Items {
    rules.items(&Delivery {
        method: &Method::POST,
        url: "https://hooks.example.com/hooks/x?a=%2B1",
        headers,
        path_params: &[("tenant".into(), "t1".into())],
        raw_body: body,
        body,
    })
}

fn rule(key: &[&str]) -> ItemRules {
    ItemRules::from_key(&key.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>()).unwrap()
}

/// The parts of the only item, or why it has none.
fn parts(key: &[&str], body: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let items = json(&rule(key), body);
    assert_eq!(items.list.len(), 1);
    match &items.list[0].parts {
        Ok(parts) => Ok(parts.iter().map(|part| part.to_vec()).collect()),
        Err(why) => Err(why.to_string()),
    }
}

#[test]
fn a_blank_null_or_nested_id_is_no_key() {
    for (body, why) in [
        (r#"{"id":""}"#, "$.id is blank"),
        (r#"{"id":"   "}"#, "$.id is blank"),
        (r#"{"id":"\u00a0\t"}"#, "$.id is blank"),
        (r#"{"id":null}"#, "$.id is null"),
        (r#"{"id":{"a":1}}"#, "$.id is not a single value"),
        (r#"{"id":[1]}"#, "$.id is not a single value"),
        (r#"{"ID":"1"}"#, "$.id is absent"),
        ("[]", "$.id is absent"),
        ("", "the body is not understood"),
        (r#"{"id":"1"} x"#, "the body is not understood"),
        (r#"{"id":"1",}"#, "the body is not understood"),
        (r#"{"id":"1""#, "the body is not understood"),
        (r#"{"id" "1"}"#, "the body is not understood"),
        (r#"{"id":"1","x":[1 2]}"#, "the body is not understood"),
        (r#"{"id":"1","x":{]}"#, "the body is not understood"),
        (r#"{"id":"1","x":tru}"#, "the body is not understood"),
    ] {
        assert_eq!(parts(&["$.id"], body.as_bytes()), Err(why.into()), "{body}");
    }
    assert_eq!(parts(&["$.id"], br#"{"id":"a1"}"#), Ok(vec![b"a1".to_vec()]));
}

#[test]
fn digits_escapes_and_repeated_members_give_the_parts_they_mean() {
    for (body, part) in [
        (r#"{"id":9007199254740993}"#, &b"9007199254740993"[..]),
        (r#"{"id":7}"#, b"7"),
        (r#"{"id":"7"}"#, b"7"),
        (r#"{"id":-1.50E+3}"#, b"-1.50E+3"),
        (r#"{"id":true}"#, b"true"),
        (r#"{"id":"ev\u0000t"}"#, b"ev\0t"),
        (r#"{"id":"a\/\"\\\n"}"#, b"a/\"\\\n"),
        (r#"{"id":"\ud83d\ude00"}"#, "😀".as_bytes()),
        (r#"{"id":"\ud83d"}"#, b"\xED\xA0\xBD"),
        (r#"{"id":"\ud83dx\ude00"}"#, b"\xED\xA0\xBDx\xED\xB8\x80"),
        (r#"{"i\u0064":"1"}"#, b"1"),
        (r#"{"id":"first","x":1,"id":"last"}"#, b"last"),
        ("\u{feff}{\"id\":\"bom\"}\r\n", b"bom"),
    ] {
        assert_eq!(parts(&["$.id"], body.as_bytes()), Ok(vec![part.to_vec()]), "{body}");
    }
}

#[test]
fn nesting_is_bounded_and_never_overflows() {
    let nested = |depth: usize| format!(r#"{{"id":"1","x":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
    assert!(parts(&["$.id"], nested(120).as_bytes()).is_ok());
    assert_eq!(parts(&["$.id"], nested(128).as_bytes()), Err("the body is nested too deeply".into()));
    assert_eq!(
        parts(&["$.id"], "[".repeat(1_000_000).as_bytes()),
        Err("the body is nested too deeply".into())
    );
}

#[test]
fn parts_come_from_headers_query_path_and_literals_without_a_readable_body() {
    let mut headers = HeaderMap::new();
    headers.insert("x-event-id", HeaderValue::from_bytes(&[0x6B, 0xE9, 0x31]).unwrap());
    let items = with_headers(&rule(&["a", "header:X-Event-Id", "query:a", "path:tenant"]), &headers, b"\xff");
    let parts = items.list[0].parts.as_ref().unwrap();
    assert_eq!(parts.iter().map(|part| &**part).collect::<Vec<_>>(), [&b"a"[..], b"k\xE91", b"+1", b"t1"]);
}

#[test]
fn alternatives_take_the_first_present_and_optional_parts_are_left_out() {
    let key = ["$.a | $.b | $.c", "$.s?"];
    assert_eq!(parts(&key, br#"{"a":null,"b":"2","c":"3"}"#), Ok(vec![b"2".to_vec()]));
    assert_eq!(parts(&key, br#"{"c":3,"s":"x"}"#), Ok(vec![b"3".to_vec(), b"x".to_vec()]));
    assert_eq!(parts(&key, br#"{"a":" ","s":"x"}"#), Err("$.a | $.b | $.c is blank".into()));
    assert_eq!(parts(&key, br#"{"a":1,"s":[]}"#), Err("$.s? is not a single value".into()));
    assert_eq!(parts(&["x", "$.s?"], b"{}"), Err("every part that could tell events apart is absent".into()));
    assert_eq!(parts(&[r#"$["a.b"][1]"#], br#"{"a.b":[1,2,3]}"#), Ok(vec![b"2".to_vec()]));
}

#[test]
fn the_steps_of_one_message_have_keys_of_their_own() {
    let key = ["$.instance", "$.event", "$.data.key.id", "$.data.status?"];
    let body = |event: &str, status: &str| {
        format!(r#"{{"instance":"i","event":"{event}","data":{{"key":{{"id":"3EB0AA"}}{status}}}}}"#)
    };
    let mut keys = vec![parts(&key, body("messages.upsert", "").as_bytes()).unwrap()];
    for status in ["SERVER_ACK", "DELIVERY_ACK", "READ"] {
        let status = format!(r#","status":"{status}""#);
        keys.push(parts(&key, body("messages.update", &status).as_bytes()).unwrap());
    }
    keys.dedup();
    assert_eq!(keys.len(), 4);
}

#[test]
fn form_fields_are_parts() {
    let mut headers = HeaderMap::new();
    headers
        .insert("content-type", HeaderValue::from_static("application/x-www-form-urlencoded; charset=UTF-8"));
    let items = with_headers(
        &rule(&["form:MessageSid", "form:MessageStatus"]),
        &headers,
        b"MessageSid=SM01&MessageStatus=sent",
    );
    assert_eq!(found(&items), [("$".into(), Some(vec!["SM01".into(), "sent".into()]))]);
}

#[test]
fn xml_elements_are_parts_and_entities_of_its_own_are_refused() {
    let key = ["xml:/Envelope/Body/Id"];
    for (body, part) in [
        ("<s:Envelope xmlns:s='u'><s:Body><Id>1 &amp; &#50;</Id></s:Body></s:Envelope>", Ok("1 & 2")),
        ("<Envelope><Body><Id><![CDATA[<3>]]></Id></Body></Envelope>", Ok("<3>")),
        ("<Envelope><Body><Id>1</Id><Id>2</Id></Body></Envelope>", Ok("2")),
        ("<Envelope><Body><Id/></Body></Envelope>", Err("xml:/Envelope/Body/Id is blank")),
        (
            "<Envelope><Body><Id>x<b/></Id></Body></Envelope>",
            Err("xml:/Envelope/Body/Id is not a single value"),
        ),
        ("<Envelope><Body/></Envelope>", Err("xml:/Envelope/Body/Id is absent")),
        ("<Envelope><Body><Id>&e;</Id></Body></Envelope>", Err("the body is not understood")),
        (
            "<!DOCTYPE a [<!ENTITY e \"x\">]><Envelope><Body><Id>&e;</Id></Body></Envelope>",
            Err("the body is not understood"),
        ),
        ("<Envelope><Body><Id>1</Id></Body>", Err("the body is not understood")),
        ("<Envelope><Body><Id>1</Body></Id></Envelope>", Err("the body is not understood")),
    ] {
        let part = part.map(|part| vec![part.as_bytes().to_vec()]).map_err(String::from);
        assert_eq!(parts(&key, body.as_bytes()), part, "{body}");
    }
}

#[test]
fn a_key_rule_that_cannot_be_meant_is_an_error_with_its_mend() {
    for (key, error) in [
        (&["$.a", "fixo:b"][..], "write \"literal:fixo:b\" if the text itself is meant"),
        (&["only"], "a key of literals alone"),
        (&[], "a key needs at least one part"),
        (&["$.a", "@.b | @.c?"], "the route has no provider with items; write \"$.b | $.c?\""),
        (&["$.a[*].b"], "a [*] in a part must also be in the item's path"),
        (&["$.a[0].b", "$.a[x].b"], "in [ ] stands *, a position from 0, or a name in double quotes"),
        (&["$.a."], "a member name is missing after '.'"),
        (&["header:"], "a name is missing after \"header:\""),
        (&["header:a b"], "is not understood"),
        (&["$.a", ""], "a part must not be empty"),
        (&["$.a", "what?"], "written \"literal:what?\""),
    ] {
        let key: Vec<String> = key.iter().map(|part| (*part).to_owned()).collect();
        let told = ItemRules::from_key(&key).unwrap_err().to_string();
        assert!(told.contains(error), "{told}");
    }
}

/// The keys of a provider's items under a route's own `key`.
fn under(provider: &str, key: &[&str], body: &str) -> Vec<Result<String, String>> {
    let key: Vec<String> = key.iter().map(|part| (*part).to_owned()).collect();
    let rules = Provider::shipped(provider).unwrap().rules.under_key(&key).unwrap();
    let shown = |parts: Vec<Box<[u8]>>| {
        let texts: Vec<_> = parts.iter().map(|part| String::from_utf8_lossy(part).into_owned()).collect();
        texts.join(" ")
    };
    let list = json(&rules, body.as_bytes()).list;
    list.into_iter().map(|item| item.parts.map(shown).map_err(|why| why.to_string())).collect()
}

#[test]
fn a_key_of_its_own_is_taken_of_each_item_and_of_the_body_around_it() {
    let meta = r#"{"object":"waba","entry":[{"id":"e1","changes":[{"value":{"messages":[{"id":"a"},{"id":"b"}]}}]},
        {"id":"e2","changes":[{"value":{"statuses":[{"id":"a","type":"payment"},{"id":"c"},{}]}}]}]}"#;
    let keys = under("meta", &["$.object", "$.entry[*].id", "@.id"], meta);
    let no_key = || Err("items of this kind have no key".to_owned());
    let absent = || Err("@.id is absent".to_owned());
    let named = |text: &str| Ok(text.to_owned());
    // A payment's statuses are told apart by nothing, whatever the key.
    assert_eq!(keys, [named("waba e1 a"), named("waba e1 b"), no_key(), named("waba e2 c"), absent()]);
    let graph =
        r#"{"value":[{"subscriptionId":"s","lifecycleEvent":"missed"},{"subscriptionId":"s","id":"1"}]}"#;
    assert_eq!(under("microsoft-graph", &["@.subscriptionId", "@.id?"], graph), [no_key(), named("s 1")]);
    assert_eq!(under("cloudevents", &["@.id"], r#"{"id":"1"}"#), [named("1")], "an item by itself");
    // Without such a part it is of the whole delivery.
    assert_eq!(under("hubspot", &["$[0].eventId"], r#"[{"eventId":1},{"eventId":2}]"#), [named("1")]);
    let told = Provider::shipped("stripe").unwrap().rules.under_key(&["@.id".to_owned()]).unwrap_err();
    let wanted = "@ is read in an item, and the provider's deliveries are one event each; write \"$.id\"";
    assert!(told.to_string().contains(wanted), "{told}");
    let key = ["@.id".to_owned(), "$.nowhere[*].id".to_owned()];
    let told = Provider::shipped("meta").unwrap().rules.under_key(&key).unwrap_err();
    assert!(told.to_string().starts_with("key part 2 (\"$.nowhere[*].id\"): a [*] in a part must"), "{told}");
}

#[test]
fn a_provider_file_that_is_wrong_says_where_and_how_to_mend_it() {
    let head = "name = \"x\"\ndocs = \"d\"\nhot_ttl = \"1h\"\ndurable_ttl = \"1h\"\n";
    for (rest, error) in [
        ("[[item]]\nkey = [\"$.id\"]\ncolour = 1\n", "x.toml:7:1: unknown field `colour`"),
        ("[[item]]\nkey = [\"a\", \"oops:b\"]\n", "x.toml:6:13: \"oops:\" is no prefix"),
        ("[[item]]\npath = \"$.a[*]\"\nkey = [\"$.b[*].c\"]\n", "x.toml:7:8: a [*] in a part must also"),
        ("[[item]]\npath = \"a\"\nkey = [\"$.b\"]\n", "x.toml:6:8: an item's path begins with $"),
        ("[[item]]\npath = \"$.a\"\n", "an item needs a key"),
        ("[[item]]\nkey = [\"$.id\"]\nwhen = { \"$.a\" = 1 }\n", "x.toml:7:18: invalid type"),
        ("[[item]]\nkey = [\"$.id\"]\nwhen = { \"a\" = \"1\" }\n", "x.toml:7:10: \"a\" is no path"),
        ("done = [\"2xx\"]\n[[item]]\nkey = [\"$.id\"]\n", "x.toml:5:8: \"2xx\" is no status"),
        ("in_flight_wait = \"4 s\"\n[[item]]\nkey = [\"$.id\"]\n", "x.toml:5:18: \"4 s\" is no duration"),
        ("strip_headers = [\"a b\"]\n[[item]]\nkey = [\"$.id\"]\n", "x.toml:5:17: no header can be named"),
        (
            "[[item]]\nkey = [\"$.id\"]\n[[handshake]]\nunsigned = true\nwhen = { \"$.type\" = \"ping\" }\n",
            "an unsigned handshake needs body = \"empty\" or form_only",
        ),
        (
            "[[item]]\nkey = [\"$.id\"]\n[[handshake]]\nwhen = { \"$.a\" = true }\nanswer = { text = \"a\" }\n",
            "x.toml:9:19: \"a\" is no path",
        ),
        ("", "missing field `item`"),
    ] {
        let told = Provider::parse("x.toml", &format!("{head}{rest}")).unwrap_err().to_string();
        assert!(told.contains(error), "{told}");
    }
    let longer =
        head.replace("durable_ttl = \"1h\"", "durable_ttl = \"30m\"") + "[[item]]\nkey = [\"$.id\"]\n";
    let told = Provider::parse("x.toml", &longer).unwrap_err().to_string();
    assert_eq!(told, "x.toml:4:15: durable_ttl must be at least hot_ttl");
}

/// A provider file could say what refuses an event, and not what it takes to be done: an answer that said neither, or
/// nothing at all, was done.
#[test]
fn an_answer_refuses_by_what_it_says_and_by_what_it_leaves_out() {
    let head = "name = \"x\"\ndocs = \"d\"\nhot_ttl = \"1h\"\ndurable_ttl = \"1h\"\n";
    let refuses = |rule: &str, body: &str| {
        let provider =
            Provider::parse("x.toml", &format!("{head}{rule}\n[[item]]\nkey = [\"$.id\"]\n")).unwrap();
        assert_eq!(provider.reads_answers(), !rule.is_empty());
        provider.is_refused_by(&HeaderMap::new(), Some(body.as_bytes()))
    };
    let not = r#"not_done = { "$.ok" = ["false", "no"] }"#;
    let when = r#"done_when = { "$.ok" = "true" }"#;
    let both = "not_done = { \"$.code\" = true }\ndone_when = { \"$.code\" = \"0\" }";
    let xml = r#"done_when = { "xml:/a/ok" = "1" }"#;
    for (rule, body, refused) in [
        ("", r#"{"ok":false}"#, false),
        (not, r#"{"ok":false}"#, true),
        (not, r#"{"ok":"maybe"}"#, false),
        (not, "", false),
        (when, r#"{"ok":true}"#, false),
        (when, r#"{"ok":" true "}"#, true),
        (when, r#"{"ok":"maybe"}"#, true),
        (when, r#"{"ok":null}"#, true),
        (when, "[]", true),
        (when, "", true),
        (both, r#"{"code":0}"#, false),
        (both, r#"{"code":2}"#, true),
        (both, r#"{"ok":1}"#, false),
        (both, "", false),
        (xml, "<a><ok>\n1\n</ok></a>", false),
        (xml, "<a><ok>11</ok></a>", true),
        (xml, "<a>1</a>", true),
    ] {
        assert_eq!(refuses(rule, body), refused, "{rule} {body}");
    }
    let wrong = format!("{head}done_when = {{ \"ok\" = \"1\" }}\n[[item]]\nkey = [\"$.id\"]\n");
    let told = Provider::parse("x.toml", &wrong).unwrap_err().to_string();
    assert!(told.contains("x.toml:5:15: \"ok\" is no path"), "{told}");
}

#[test]
fn an_empty_list_holds_nothing_and_an_unknown_shape_is_one_keyless_item() {
    let meta = &Provider::shipped("meta").unwrap().rules;
    assert_eq!(found(&json(meta, br#"{"entry":[]}"#)), []);
    assert_eq!(found(&json(meta, br#"{"hello":1}"#)), [("$".into(), None)]);
    assert_eq!(found(&json(meta, b"{")), [("$".into(), None)]);
    let unknown = br#"{"entry":[{"id":"1","changes":[{"field":"account_update","value":{}}]}]}"#;
    assert_eq!(found(&json(meta, unknown)), [("entry[0].changes[0]".into(), None)]);
}

#[test]
fn emptied_changes_and_entries_go_with_their_items_and_nothing_else_does() {
    let meta = &Provider::shipped("meta").unwrap().rules;
    let change = |list: &str| {
        format!(r#"{{"value":{{"metadata":{{"phone_number_id":"1"}},{list}}}, "field":"messages"}}"#)
    };
    let body = format!(
        r#"{{ "entry": [ {{"id":"a","changes":[{} , {}]}} , {{"id":"b","changes":[{}]}} ] , "x":1.0 }}"#,
        change(r#""messages":[ {"id":"m1"}, {"id":"m2"} ]"#),
        change(r#""errors":[{"code":1}]"#),
        change(r#""statuses":[{"id":"m1","status":"read"}]"#),
    );
    let items = json(meta, body.as_bytes());
    assert_eq!(items.list.len(), 4);
    assert!(items.can_cut());
    let cut = |removed: &[usize]| text(&items.without(body.as_bytes(), removed));
    assert_eq!(cut(&[]), body);
    assert_eq!(cut(&[0]), body.replace(r#"{"id":"m1"}, "#, ""));
    assert_eq!(cut(&[1]), body.replace(r#", {"id":"m2"}"#, ""));
    let first = change(r#""messages":[ {"id":"m1"}, {"id":"m2"} ]"#);
    assert_eq!(cut(&[0, 1]), body.replace(&format!("{first} , "), ""));
    let second =
        format!(r#" , {{"id":"b","changes":[{}]}}"#, change(r#""statuses":[{"id":"m1","status":"read"}]"#));
    assert_eq!(cut(&[3]), body.replace(&second, ""));
}

/// A fixture's delivery, cut.
fn cut_fixture(name: &str, removed: &[usize]) -> (String, String) {
    let cases = cases();
    let case = cases.iter().find(|case| case.name == name).unwrap();
    let items = Provider::shipped(&case.provider).unwrap().items(&case.delivery());
    assert!(items.can_cut(), "{name}");
    (text(&case.body), text(&items.without(&case.body, removed)))
}

#[test]
fn items_wrapped_in_objects_and_xml_elements_are_cut_whole() {
    let (body, cut) = cut_fixture("adyen-batch-two-items", &[0]);
    let at = body.find(r#"{"NotificationRequestItem"#).unwrap();
    let second = at + 1 + body.get(at + 1..).unwrap().find(r#"{"NotificationRequestItem"#).unwrap();
    assert_eq!(cut, format!("{}{}", body.get(..at).unwrap(), body.get(second..).unwrap()));
    let (body, cut) = cut_fixture("salesforce-two-notifications", &[1]);
    let at = body.rfind("<Notification>").unwrap();
    let end = body.rfind("</Notification>").unwrap() + "</Notification>".len();
    assert_eq!(cut, format!("{}{}", body.get(..at).unwrap(), body.get(end..).unwrap()));
    let (body, cut) = cut_fixture("sendgrid-batch", &[0, 2]);
    let kept = body.find(r#"},{"#).unwrap() + 2;
    let end = body.rfind(r#"},{"#).unwrap() + 1;
    assert_eq!(cut, format!("[{}]\r\n", body.get(kept..end).unwrap()));
}

#[test]
fn json_inside_a_form_field_is_read_and_never_cut() {
    let mut headers = HeaderMap::new();
    headers.insert("content-type", HeaderValue::from_static("application/x-www-form-urlencoded"));
    let body = b"payload=%7B%22issue%22%3A%7B%22id%22%3A7%7D%7D&kind=a";
    let items = with_headers(&rule(&["$.issue.id", "form:kind"]), &headers, body);
    assert_eq!(found(&items), [("$".into(), Some(vec!["7".into(), "a".into()]))]);
    assert!(!items.can_cut());
    assert_eq!(items.list[0].span, 0..body.len());
}

#[test]
fn key_headers_that_the_scheme_does_not_sign_are_told() {
    let told = |name: &str| Provider::shipped(name).unwrap().unsigned_key_headers();
    assert_eq!(told("stripe"), [] as [HeaderName; 0]);
    assert_eq!(told("github"), ["x-github-hook-id", "x-github-delivery"]);
    assert_eq!(told("resend"), [] as [HeaderName; 0]);
    assert_eq!(told("linear"), ["linear-delivery"]);
}

/// A white-space run, a scalar, and batches of them, as hostile as JSON allows.
fn space() -> impl Strategy<Value = String> {
    prop_oneof![4 => Just(String::new()), 1 => "[ \n\r\t]{1,3}"]
}

fn noise() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("null".to_owned()),
        Just("1.50E+2".to_owned()),
        Just(r#""a\u00e9\"},{\\""#.to_owned()),
        Just(r#"{"id":"decoy","x":[{"id":[]},{}]}"#.to_owned()),
        Just(r#"[ ]"#.to_owned()),
    ]
}

fn message(id: usize) -> impl Strategy<Value = String> {
    (space(), space(), noise(), any::<bool>()).prop_map(move |(before, after, noise, keyed)| {
        let id = if keyed { format!("\"wamid.{id}\"") } else { "null".to_owned() };
        format!(r#"{before}{{"x":{noise},"id"{after}:{id},"status":"sent" }}{after}"#)
    })
}

/// `shape` says how many items each list of each entry holds.
fn whatsapp(shape: Vec<Vec<usize>>) -> impl Strategy<Value = String> {
    let mut id = 0;
    let mut entries = Vec::new();
    for changes in shape {
        let mut lists = Vec::new();
        for count in changes {
            let messages: Vec<_> = (0..count)
                .map(|_| {
                    id += 1;
                    message(id)
                })
                .collect();
            let list = (messages, space(), noise(), any::<bool>()).prop_map(|(messages, space, noise, statuses)| {
                let name = if statuses { "statuses" } else { "messages" };
                let messages = if messages.is_empty() { space } else { messages.join(",") };
                format!(r#"{{"value":{{"metadata":{{"phone_number_id":1}},"y":{noise},"{name}":[{messages}]}}}}"#)
            });
            lists.push(list);
        }
        entries.push((lists, space(), noise()).prop_map(|(lists, space, noise)| {
            format!(r#"{space}{{"z":{noise},"changes":[{}]{space}}}"#, lists.join(","))
        }));
    }
    (entries, space(), any::<bool>()).prop_map(|(entries, space, bom)| {
        let bom = if bom { "\u{feff}" } else { "" };
        format!("{bom}{space}{{\"entry\":[{}],\"n\":1.0}}{space}\r\n", entries.join(","))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_left_of_a_cut_batch_keeps_its_bytes_and_its_keys(
        body in prop::collection::vec(prop::collection::vec(0_usize..4, 0..4), 0..4).prop_flat_map(whatsapp),
        picks in prop::collection::vec(any::<bool>(), 64),
    ) {
        let provider = Provider::shipped("meta").unwrap();
        let whole = json(&provider.rules, body.as_bytes());
        let removable = |index: &usize| picks[*index % 64] && whole.list[*index].parts.is_ok();
        let removed: Vec<usize> = (0..whole.list.len()).filter(removable).collect();
        prop_assume!(removed.len() < whole.list.len());
        let cut = whole.without(body.as_bytes(), &removed);
        let plain = cut.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&cut);
        prop_assert!(serde_json::from_slice::<serde_json::Value>(plain).is_ok(), "{}", text(&cut));
        let left = json(&provider.rules, &cut);
        let kept = whole.list.iter().enumerate().filter(|(index, _)| !removed.contains(index));
        let kept: Vec<_> = kept.map(|(_, item)| item).collect();
        // What stood beside items that went is an item of another kind in what is left: it has no key there either.
        prop_assert_eq!(left.list.len(), kept.len());
        for (left, kept) in left.list.iter().zip(kept) {
            let (now, then) = (&cut[left.span.clone()], &body.as_bytes()[kept.span.clone()]);
            prop_assert_eq!(left.parts.is_ok(), kept.parts.is_ok());
            if kept.parts == Err(Keyless::Stray) {
                prop_assert!(text(now).contains(&text(then)), "{} of {}", text(now), text(then));
            } else {
                prop_assert_eq!(&left.parts, &kept.parts);
                prop_assert_eq!(now, then);
            }
        }
        // Nothing is new and nothing is out of order: the cut body is the old one with holes.
        let mut rest = body.bytes();
        prop_assert!(cut.iter().all(|byte| rest.any(|known| known == *byte)));
    }

    #[test]
    fn any_bytes_are_read_and_cut_without_a_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
        for name in Provider::names() {
            let items = json(&Provider::shipped(name).unwrap().rules, &body);
            for removed in 0..items.list.len() {
                prop_assert!(items.without(&body, &[removed]).len() <= body.len());
            }
        }
    }

    #[test]
    fn what_serde_json_reads_is_read_alike(body in "[\\[\\]{}\":,0-9a-z\\\\ .eE+-]{0,40}") {
        let theirs = serde_json::from_str::<&serde_json::value::RawValue>(&body).is_ok();
        let read = !matches!(parts(&["$.id"], body.as_bytes()), Err(why) if why == "the body is not understood");
        prop_assert!(read || !theirs, "{}", body);
    }
}

/// An item's place, and its key parts where it has a key.
type Named = (String, Option<Vec<String>>);
