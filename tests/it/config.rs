//! What an operator writes: the file of the contract loads, and every mistake is told with place and mend.

use std::path::{Path, PathBuf};
use std::time::Duration;

use umavez::config::{
    Config, ConfigErrors, DuplicateAnswer, Durable, Environment, FIELDS, Hot, OnUnsigned, Secret, StatusSet,
    Warning, WithoutFile,
};
use umavez::ledger::OnUnknown;

use crate::tls::pki;

const CONTRACT: &str = r#"
[listen]
public = "0.0.0.0:8080"          # providers come here
admin  = "127.0.0.1:9180"        # metrics, health, event API

[hot]
url = "redis://127.0.0.1:6379"   # rediss://, redis-cluster://, redis-sentinel://; left out: in the process

[durable]
url = "postgres://umavez@127.0.0.1/umavez"   # left out: sqlite, file umavez.db beside the config file

[upstream]
url = "http://127.0.0.1:3000"    # default for every route, and for what matches none

[[route]]
name     = "whatsapp"
path     = "/webhooks/meta"      # {name} matches one segment, {*rest} the rest
provider = "meta"                # items, keys, TTLs, signature scheme
secret   = "${META_APP_SECRET}"  # or a list, while rotating; or { file = "/run/secrets/meta" }
hot_ttl  = "72h"                 # the preset's unless set here

[[route]]
name  = "pix-reminder"
path  = "/internal/reminders/{tenant}"
scope = "pix:{tenant}"
key   = ["lembrete_pix", "$.transaction", "$.step"]   # literals, $.json, header:NAME, query:NAME, path:NAME, form:NAME
hot_ttl = "24h"
durable_ttl = "60d"
on_unknown = "hold"
"#;

const UPSTREAM: &str = "[upstream]\nurl = \"http://127.0.0.1:3000\"\n";
const HOURS: Duration = Duration::from_secs(3600);

fn env(pairs: &[(&str, &str)]) -> Environment {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn parse(text: &str) -> Result<(Config, Vec<Warning>), ConfigErrors> {
    Config::parse(
        Path::new("/etc/umavez/u.toml"),
        text,
        &env(&[("META_APP_SECRET", "fixture-meta-app-secret")]),
    )
}

/// A file with one good route and `lines` added to it.
fn with_route(lines: &str) -> String {
    format!("{UPSTREAM}[[route]]\nname = \"r\"\npath = \"/r/{{tenant}}\"\nkey = [\"$.id\"]\n{lines}\n")
}

#[test]
fn the_example_of_the_contract_loads_unchanged() {
    let (config, warnings) = parse(CONTRACT).unwrap();
    let [of_pix] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(of_pix.to_string().contains("route \"pix-reminder\".key: no signature is checked"), "{of_pix}");
    assert!(matches!(config.hot, Hot::Redis(_)));
    assert!(matches!(config.durable, Durable::Postgres(_)));
    let [whatsapp, pix] = &config.routes[..] else { panic!("two routes") };
    assert_eq!(whatsapp.secrets, [Secret("fixture-meta-app-secret".into())]);
    assert_eq!(whatsapp.terms.hot_ttl, 72 * HOURS);
    assert_eq!(whatsapp.terms.durable_ttl, 8 * 24 * HOURS);
    assert_eq!(whatsapp.scope.0, "whatsapp");
    assert_eq!(whatsapp.terms.lease, Duration::from_secs(90));
    assert_eq!(pix.terms.on_unknown, OnUnknown::Hold);
    assert_eq!(pix.terms.durable_ttl, 60 * 24 * HOURS);
    assert_eq!(pix.scope.0, "pix:{tenant}");
    assert_eq!(pix.upstream.to_string(), "http://127.0.0.1:3000");
}

#[test]
fn a_missing_secret_is_named_at_its_place() {
    let errors = Config::parse(Path::new("u.toml"), CONTRACT, &env(&[])).unwrap_err().to_string();
    assert!(errors.starts_with("u.toml:19:12: route \"whatsapp\".secret: "), "{errors}");
    assert!(errors.contains("META_APP_SECRET is not set; set META_APP_SECRET"), "{errors}");
}

#[test]
fn every_mistake_has_its_place_and_a_mend() {
    // The line that is wrong, where the file's first line is the fourth of `with_route`; what is said.
    let wrong: &[(&str, &str)] = &[
        ("timout = \"8s\"", "7:1: route \"r\".timout: unknown field; did you mean `timeout`?"),
        ("timeout = \"8\"", "7:11: route \"r\".timeout: \"8\" has no unit; write"),
        ("timeout = 8", "7:11: route \"r\".timeout: a duration needs a unit; write \"8s\""),
        ("timeout = \"0s\"", "7:11: route \"r\".timeout: 0s is out of bounds; write"),
        ("timeout = true", "7:11: route \"r\".timeout: is true or false, not text; write"),
        ("lease = \"60s\"", "7:9: route \"r\".lease: 1m is not longer than the timeout of 1m; write"),
        (
            "in_flight_wait = \"60s\"",
            "7:18: route \"r\".in_flight_wait: is not shorter than the timeout of 1m; write",
        ),
        (
            "body_limit = \"1 XB\"",
            "7:14: route \"r\".body_limit: \"1 XB\" has the unknown unit \"XB\"; write",
        ),
        ("body_limit = 0", "7:14: route \"r\".body_limit: is out of bounds; write"),
        (
            "provider = \"metta\"",
            "7:12: route \"r\".provider: there is no provider \"metta\"; did you mean \"meta\"?",
        ),
        ("scope = \"x:{tenat}\"", "7:9: route \"r\".scope: the path has no {tenat}; did you mean {tenant}?"),
        ("host = \"https://a\"", "7:8: route \"r\".host: \"https://a\" is"),
        ("method = \"post\"", "7:10: route \"r\".method: \"post\" is no method; write"),
        ("method = []", "7:10: route \"r\".method: the list is empty; name"),
        (
            "on_unknown = \"retri\"",
            "7:14: route \"r\".on_unknown: \"retri\" is not known here; did you mean \"retry\"?",
        ),
        (
            "on_unsigned = 500",
            "7:15: route \"r\".on_unsigned: \"500\" is not known here; write \"401\" or \"200\"",
        ),
        ("on_durable_down = \"x\"", "7:19: route \"r\".on_durable_down: \"x\" is not known here; write"),
        ("done = [\"2yy\"]", "7:9: route \"r\".done: \"2yy\" names no statuses; write"),
        ("done = []", "7:8: route \"r\".done: the list is empty"),
        (
            "upstream = \"ftp://a\"",
            "7:12: route \"r\".upstream: the URL has the unknown scheme \"ftp\"; write",
        ),
        (
            "upstream = \"${NOWHERE}\"",
            "7:12: route \"r\".upstream: the environment variable NOWHERE is not set; set",
        ),
        ("secret = \"x\"", "7:10: route \"r\".secret: nothing checks it: the route has no provider; leave"),
        ("public_url = \"/x\"", "7:14: route \"r\".public_url: is no absolute URL; write"),
        ("receipt_limit = \"1GiB\"", "7:17: route \"r\".receipt_limit: is out of bounds; write"),
        (
            "receipt_headers = [\"a b\"]",
            "7:20: route \"r\".receipt_headers: \"a b\" is no header name; write",
        ),
        (
            "strip_headers = [\"Host\"]",
            "7:18: route \"r\".strip_headers: host belongs to the connection; leave",
        ),
        ("duplicate_answer = \"no\"", "7:20: route \"r\".duplicate_answer: is no answer; write"),
        (
            "duplicate_answer = { stats = 1 }",
            "7:22: route \"r\".duplicate_answer.stats: unknown field; did you mean `status`?",
        ),
        ("[listen]\npublic = \"8080\"", "8:10: listen.public: \"8080\" is no address; write"),
        (
            "[listen]\nadmin = \"0.0.0.0:9180\"",
            "8:9: listen.admin: 0.0.0.0:9180 can be reached from other machines",
        ),
        ("[listen]\nworkers = 0", "8:11: listen.workers: is not such a number; write a whole number from 1"),
        (
            "[listen]\ntrusted_proxies = [\"10.0.0.0/33\"]",
            "8:20: listen.trusted_proxies: \"10.0.0.0/33\" is no network",
        ),
        (
            "[listen]\nadmin_token = { file = \"/nowhere/token\" }",
            "8:24: listen.admin_token.file: /nowhere/token cannot be read",
        ),
        (
            "[hot]\nurl = \"memcached://a\"",
            "8:7: hot.url: the URL has no scheme that is known here; write one of redis://",
        ),
        ("[hot]\nprefix = \"\"", "8:10: hot.prefix: \"\" is no prefix"),
        ("[durable]\nurl = \"sqlite::memory:\"", "8:7: durable.url: names no file"),
        (
            "[durable]\nurl = \"mysql://a\"",
            "8:7: durable.url: the URL has no scheme that is known here; write one of postgres://",
        ),
        (
            "provider = \"meta\"\npublic_key = \"x\"",
            "8:14: route \"r\".public_key: the provider's signature has no use for a public_key; it needs",
        ),
        (
            "on_unknown = \"hold\"\non_durable_down = \"hot_only\"",
            "8:19: route \"r\".on_durable_down: goes against on_unknown = \"hold\"",
        ),
        (
            "on_durable_down = \"bypass\"\non_unknown = \"hold\"",
            "7:19: route \"r\".on_durable_down: goes against on_unknown = \"hold\"",
        ),
        ("[log]\nlevel = \"umavez=loud\"", "8:9: log.level: \"umavez=loud\" is no filter"),
        ("[log]\nformat = \"jsn\"", "8:10: log.format: \"jsn\" is not known here; did you mean \"json\"?"),
        ("[limts]\na = 1", "7:2: limts: unknown field; did you mean `limits`?"),
        (
            "[[route]]\nname = \"r\"\npath = \"/s\"\nkey = [\"$.id\"]",
            "8:8: route \"r\".name: another route has the same name; name",
        ),
        (
            "[[route]]\nname = \"s\"\npath = \"/r/{other}\"\nkey = [\"$.id\"]",
            "9:8: route \"s\".path: matches requests that the route \"r\" matches too",
        ),
        (
            "[[route]]\nname = \"s\"\npath = \"s\"\nkey = [\"$.id\"]",
            "9:8: route \"s\".path: \"s\" does not start with a slash; write \"/s\"",
        ),
        (
            "[[route]]\nname = \"s\"\npath = \"/s\"",
            "7:1: route \"s\".key: a route needs a provider or a key; write",
        ),
        ("[[route]]\npath = \"/s\"\nkey = [\"$.id\"]", "7:1: route 2.name: is missing; name it"),
        (
            "[[route]]\nname = \"a b\"\npath = \"/s\"\nkey = [\"$.id\"]",
            "8:8: route \"a b\".name: \"a b\" is no name for a route; write",
        ),
        ("[[route]]\nname = \"s\"\npath = \"/s\"\nkey = [\"$.id\", \"\"]", "10:16: route \"s\".key: "),
        ("[[route]]\nname = \"s\"\npath = \"/s\"\nkey = []", "10:7: route \"s\".key: has 0 parts; write"),
        (
            "[[route]]\nname = \"s\"\npath = \"/s/{order}\"\nkey = [\"$.id\", \"path:oder\"]",
            "10:16: route \"s\".key: path:oder reads nothing: the path has no {oder}; did you mean path:order?",
        ),
        (
            "[[route]]\nname = \"s\"\npath = \"/s\"\nkey = [\"$.id | path:zz?\"]",
            "10:8: route \"s\".key: path:zz reads nothing: the path has no {zz}; write a path with {zz}",
        ),
        // A literal before the part that is wrong was blamed for it.
        (
            "[[route]]\nname = \"s\"\npath = \"/s\"\nkey = [\"kind\", \"hash:body\"]",
            "10:16: route \"s\".key: key part 2 (\"hash:body\"): \"hash:\" is no prefix",
        ),
        (
            "[[route]]\nname = \"s\"\npath = \"/s\"\nkey = [\"kind\"]",
            "10:7: route \"s\".key: the key (kind): a key of literals alone is the same for every event; add",
        ),
        ("x = \"", "7:"),
        // Quotes forgotten, which was called an invalid float; what may be a secret is not repeated.
        ("mode = inline", "7:8: text needs quotes; write \"inline\""),
        ("timeout = 8s # short", "7:11: text needs quotes; write \"8s\""),
        ("capture_dir = /var/captures", "7:15: text needs quotes; write \"/var/captures\""),
        ("secret = hunter2", "7:10: text needs quotes; write secret = \"…\""),
        ("insecure = True", "7:12: is not written as TOML has it; write true"),
        ("key = [1 2]", "7:"),
        ("providers_dir = 1", "7:1: route \"r\".providers_dir: unknown field"),
    ];
    for (lines, said) in wrong {
        let errors = parse(&with_route(lines)).expect_err(lines).to_string();
        let expected = format!("/etc/umavez/u.toml:{said}");
        assert!(
            errors.lines().any(|line| line.starts_with(&expected)),
            "{lines}\n  expected {expected}\n  got {errors}"
        );
        for line in errors.lines() {
            assert!(line.contains("; "), "no mend: {line}");
        }
    }
}

#[test]
fn all_problems_are_told_at_once_in_the_files_order() {
    let text = "[listen]\npublic = \"x\"\ncolour = 1\n[[route]]\nname = \"r\"\npath = \"r\"\n[[route]]\nprovider = \"nope\"\n";
    let errors = parse(text).unwrap_err();
    let places: Vec<_> =
        errors.0.iter().filter_map(|problem| problem.place.at).map(|(line, _)| line).collect();
    assert!(errors.0.len() >= 8, "{errors}");
    assert!(places.is_sorted(), "{errors}");
}

#[test]
fn a_routes_other_fields_are_read_beside_an_unknown_provider() {
    let text = format!(
        "{UPSTREAM}[[route]]\nname = \"r\"\npath = \"/r\"\nprovider = \"hotmat\"\nsecret = \"${{META_APP_SECRET}}\"\n\
         body_limit = \"1XB\"\ndone = \"2yy\"\nmode = \"x\"\nmethod = \"post\"\nwebhook_id = \"W\"\n"
    );
    let errors = parse(&text).unwrap_err();
    let fields: Vec<&str> = errors.0.iter().filter_map(|problem| problem.field.rsplit('.').next()).collect();
    assert_eq!(fields, ["provider", "body_limit", "done", "mode", "method"], "{errors}");
}

#[test]
fn what_only_follows_from_a_misspelt_field_is_not_said() {
    let misspelt = |lines: &str| {
        let text = format!("{UPSTREAM}[[route]]\nname = \"r\"\npath = \"/r\"\n{lines}\n");
        parse(&text).unwrap_err().to_string()
    };
    for lines in [
        "provder = \"hotmart\"\nsecret = \"${META_APP_SECRET}\"",
        "provder = \"paypal\"\npublic_key = \"x\"\nwebhook_id = \"W\"",
        "provder = \"meta\"\nhandshake = \"answer\"\nverify_token = \"${META_APP_SECRET}\"",
        "kye = [\"$.id\"]",
        "key = [\"$.id\"]\nprovder = \"meta\"\nsecret = \"${META_APP_SECRET}\"",
    ] {
        let errors = misspelt(lines);
        assert_eq!(errors.lines().count(), 1, "{lines}\n{errors}");
        assert!(errors.contains("unknown field; did you mean"), "{lines}\n{errors}");
    }
    let route = "[[route]]\nname = \"r\"\npath = \"/r\"\nkey = [\"$.id\"]\n";
    for upstream in ["[upstream]\nulr = \"http://a\"\n", "[upstream]\nurl = \"ftp://a\"\n"] {
        let errors = parse(&format!("{upstream}{route}")).unwrap_err();
        assert_eq!(errors.0.len(), 1, "{errors}");
    }
}

#[test]
fn a_route_that_anybody_can_send_to_is_warned_of() {
    let told = |lines: &str| {
        let text = format!("{UPSTREAM}[[route]]\nname = \"s\"\npath = \"/s\"\n{lines}\n");
        let (_, warnings) = parse(&text).unwrap_or_else(|errors| panic!("{lines}: {errors}"));
        let told = warnings.iter().map(ToString::to_string);
        told.filter(|warning| warning.contains("can claim an event's key first")).collect::<Vec<_>>()
    };
    for (lines, said) in [
        ("key = [\"$.id\"]", "u.toml:6:7: route \"s\".key: no signature is checked: "),
        (
            "provider = \"salesforce\"",
            "u.toml:6:12: route \"s\".provider: salesforce signs nothing that this could check: ",
        ),
        (
            "provider = \"salesforce\"\nkey = [\"$.id\"]",
            "route \"s\".provider: salesforce signs nothing that this could check: ",
        ),
    ] {
        let told = told(lines);
        assert!(told.len() == 1 && told[0].contains(said), "{lines}: {told:?}");
    }
    for lines in [
        "provider = \"meta\"\nsecret = \"${META_APP_SECRET}\"",
        "provider = \"meta\"\nsecret = \"${META_APP_SECRET}\"\nkey = [\"$.id\"]",
        "key = [\"$.id\"]\nmode = \"shadow\"",
    ] {
        assert_eq!(told(lines), Vec::<String>::new(), "{lines}");
    }
}

#[test]
fn a_key_that_makes_a_batch_one_event_is_warned_of() {
    // A key of the whole body on a provider that groups events swallowed what was new in a batch, and nothing said so.
    let route = |lines: &str| format!("{UPSTREAM}[[route]]\nname = \"r\"\npath = \"/r\"\n{lines}\n");
    let told = |lines: &str| {
        let (_, warnings) = parse(&route(lines)).unwrap_or_else(|errors| panic!("{lines}: {errors}"));
        let told = warnings.iter().map(ToString::to_string);
        told.filter(|warning| warning.contains("puts several events into one")).collect::<Vec<_>>()
    };
    for (provider, key) in
        [("meta", "$.entry[0].id"), ("salesforce", "header:X-Id"), ("hubspot", "$[0].eventId")]
    {
        let told = told(&format!("provider = \"{provider}\"\nkey = [\"{key}\"]"));
        let wanted =
            format!("route \"r\".key: is of the whole delivery, and {provider} puts several events into one");
        assert!(told.len() == 1 && told[0].contains(&wanted), "{provider}: {told:?}");
    }
    for (provider, key) in [("meta", "@.id"), ("salesforce", "@.Id"), ("stripe", "$.id")] {
        assert_eq!(told(&format!("provider = \"{provider}\"\nkey = [\"{key}\"]")), Vec::<String>::new());
    }
    for lines in ["key = [\"@.id\"]", "provider = \"stripe\"\nkey = [\"$.type\", \"@.id\"]"] {
        let errors = parse(&route(lines)).unwrap_err().to_string();
        assert!(errors.contains("(\"@.id\"): @ is read in an item, and "), "{errors}");
        assert!(errors.contains("; write \"$.id\", from the body's root"), "{errors}");
    }
}

#[test]
fn without_a_route_it_is_said_what_becomes_of_requests() {
    for (text, said, not) in [
        ("", "everything is answered with 404", "passes through"),
        (UPSTREAM, "everything passes through", "404"),
    ] {
        let (_, warnings) = parse(text).unwrap();
        let told: Vec<&str> = warnings.iter().map(|warning| warning.text.as_str()).collect();
        assert!(told.iter().any(|warning| warning.contains(said)), "{told:?}");
        assert!(!told.iter().any(|warning| warning.contains(not)), "{told:?}");
    }
}

#[test]
fn a_file_that_is_not_there_is_told() {
    let errors = Config::load(Path::new("/nowhere/u.toml"), &env(&[])).unwrap_err().to_string();
    assert!(errors.starts_with("/nowhere/u.toml: cannot be read: "), "{errors}");
}

#[test]
fn no_secret_is_ever_printed() {
    let text = r#"
        [listen]
        admin_token = "hunter2-token-in-file"
        [hot]
        url = "redis://:hunter2-hot@127.0.0.1:6379"
        [durable]
        url = "postgres://u:${PASSWORD}@127.0.0.1/u"
        [upstream]
        url = "http://127.0.0.1:3000"
        [[route]]
        name = "r"
        path = "/r"
        provider = "meta"
        secret = ["${SECRET}", "hunter2-literal"]
    "#;
    let env = env(&[("PASSWORD", "hunter2-durable"), ("SECRET", "hunter2-env")]);
    let (config, warnings) = Config::parse(Path::new("u.toml"), text, &env).unwrap();
    let printed = format!("{config:?} {config:#?} {warnings:?}");
    assert!(!printed.contains("hunter2"), "{printed}");
    assert_eq!(config.routes[0].secrets.len(), 2);
    let told: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    for field in ["listen.admin_token", "hot.url", "route \"r\".secret"] {
        assert!(told.iter().any(|warning| warning.contains(field)), "{field}: {told:?}");
    }
    for broken in [
        text.replace("redis://", "radish://"),
        text.replace("postgres://", "mysql://"),
        text.replace("\"${SECRET}\"", "\"hunter2 ${\""),
        text.replace("\"${SECRET}\"", "\"hunter2 ${NOT_SET}\""),
        text.replace("\"/r\"", "\"r\""),
    ] {
        let errors = Config::parse(Path::new("u.toml"), &broken, &env).unwrap_err();
        assert!(!format!("{errors} {errors:?}").contains("hunter2"), "{errors}");
    }
}

#[test]
fn secrets_come_from_files_beside_the_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let secret = directory.path().join("meta.secret");
    let text = format!(
        "{UPSTREAM}[[route]]\nname = \"r\"\npath = \"/r\"\nprovider = \"meta\"\nsecret = [{{ file = \"meta.secret\" }}, \"${{A}}\"]\n"
    );
    let file = directory.path().join("u.toml");
    std::fs::write(&file, text).unwrap();
    std::fs::write(&secret, "from a file\r\n").unwrap();
    let env = env(&[("A", "from the environment")]);
    let (config, warnings) = Config::load(&file, &env).unwrap();
    let secrets: Vec<&str> = config.routes[0].secrets.iter().map(Secret::expose).collect();
    assert_eq!(secrets, ["from a file", "from the environment"]);
    assert!(!warnings.iter().any(|warning| warning.field.contains("secret")), "{warnings:?}");
    let Durable::Sqlite { path, .. } = config.durable else { panic!("embedded") };
    assert_eq!(path, directory.path().join("umavez.db"));

    std::fs::write(&secret, "\n").unwrap();
    let errors = Config::load(&file, &env).unwrap_err().to_string();
    assert!(errors.contains("is empty"), "{errors}");
    std::fs::write(&secret, vec![b'x'; 70_000]).unwrap();
    let errors = Config::load(&file, &env).unwrap_err().to_string();
    assert!(errors.contains("longer than 64KiB"), "{errors}");
}

#[test]
fn risky_settings_are_warned_of() {
    let wrong = [
        ("hot_ttl = \"9d\"\ndurable_ttl = \"8d\"", "route \"r\".durable_ttl: 8d is below the hot_ttl of 9d"),
        ("lease = \"61s\"", "route \"r\".lease: is only 1s longer than the timeout"),
        // Boot refused this, though a claim lives as long as its lease whatever the window is.
        (
            "durable_ttl = \"90s\"\nhot_ttl = \"10s\"",
            "7:15: route \"r\".durable_ttl: 90s is not longer than the lease of 90s: an event that takes as long",
        ),
        ("timeout = \"5m\"", "listen.grace of 75s is shorter than the longest route timeout of 5m"),
        ("[[route]]\nname = \"s\"\npath = \"/s\"\nprovider = \"meta\"", "route \"s\".secret: no secret"),
        (
            "[listen]\nadmin_token = \"${META_APP_SECRET}\"\n[durable]\nurl = \"sqlite:x.db\"",
            "run one gateway only",
        ),
        ("[durable]\nurl = \"sqlite:x.db\"", "a single instance only"),
        ("on_durable_down = \"bypass\"", "7:19: route \"r\".on_durable_down: while both stores are down"),
        (
            "on_durable_down = \"hot_only\"",
            "7:19: route \"r\".on_durable_down: while the durable store is down",
        ),
        (
            "[listen]\npublic = \"0.0.0.0:3000\"",
            "u.toml:2:7: upstream.url: points at this gateway's own public",
        ),
        (
            "upstream = \"http://localhost:8080\"",
            "7:12: route \"r\".upstream: points at this gateway's own public listener, 0.0.0.0:8080",
        ),
        (
            "[[route]]\nname = \"s\"\npath = \"/s\"\nprovider = \"meta\"\nsecret = \"${META_APP_SECRET}\"\n\
             key = [\"header:X-Event\"]",
            "route \"s\".key: events are named by the header x-event, which meta's signature does not cover",
        ),
        // Of these nothing was said.
        (
            "[listen]\ntrusted_proxies = [\"10.0.0.1\", \"0.0.0.0/0\"]",
            "listen.trusted_proxies: 0.0.0.0/0 is everybody",
        ),
        ("[listen]\ntrusted_proxies = [\"::/0\"]", "listen.trusted_proxies: ::/0 is everybody"),
        ("[listen]\nhandover = \"/tmp/umavez.sock\"", "listen.handover: others may write in /tmp"),
        (
            "[[route]]\nname = \"s\"\npath = \"/s\"\nprovider = \"meta\"\nsecret = \"${META_APP_SECRET}\"\n\
             hot_ttl = \"1h\"\ndurable_ttl = \"24h\"",
            "route \"s\".durable_ttl: 24h is far below the 8d in which copies of meta",
        ),
        ("done = [\"2xx\", \"5xx\"]", "7:8: route \"r\".done: counts a failure of the app"),
        ("done = [\"2xx\", 503]", "7:8: route \"r\".done: counts a failure of the app"),
        ("[hot]\nurl = \"redis://10.0.0.5:6379\"", "hot.url: is not encrypted, and leads to another machine"),
        (
            "[durable]\nurl = \"postgres://u@db.example.com/x?sslmode=disable\"",
            "durable.url: is not encrypted, and leads to another machine",
        ),
        ("capture_dir = \"/proc/nowhere\"", "route \"r\".capture_dir: /proc can't be written: "),
        ("capture_dir = \"/proc/version/x\"", "route \"r\".capture_dir: /proc/version is no folder: "),
    ];
    for (lines, said) in wrong {
        let (_, warnings) = parse(&with_route(lines)).unwrap_or_else(|errors| panic!("{lines}: {errors}"));
        let told: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        assert!(told.iter().any(|warning| warning.contains(said)), "{lines}: {told:#?}");
    }
}

#[test]
fn what_only_looks_risky_is_not_warned_of() {
    let writable = tempfile::tempdir().unwrap();
    let handover = format!("[listen]\nhandover = \"{}/umavez.sock\"", writable.path().display());
    let captures = format!("capture_dir = \"{}/new/captures\"", writable.path().display());
    for (lines, not) in [
        ("[listen]\ntrusted_proxies = [\"10.0.0.0/8\", \"::1\"]", "everybody"),
        (&*handover, "handover"),
        (&*captures, "no delivery is kept"),
        (
            "[[route]]\nname = \"s\"\npath = \"/s\"\nprovider = \"meta\"\nsecret = \"${META_APP_SECRET}\"\n\
             durable_ttl = \"7d\"",
            "far below",
        ),
        ("done = [\"2xx\", 409]", "failure of the app"),
        ("[hot]\nurl = \"redis://redis:6379\"", "not encrypted"),
        ("[hot]\nurl = \"rediss://cache.example.com:6379\"", "not encrypted"),
        ("[durable]\nurl = \"postgres://u@127.0.0.1/x?sslmode=disable\"", "not encrypted"),
        ("[durable]\nurl = \"postgres://u@db.example.com/x?sslmode=verify-full\"", "not encrypted"),
    ] {
        let (_, warnings) = parse(&with_route(lines)).unwrap_or_else(|errors| panic!("{lines}: {errors}"));
        let told: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        assert!(!told.iter().any(|warning| warning.contains(not)), "{lines}: {told:#?}");
    }
}

#[test]
fn windows_follow_each_other() {
    for (lines, hot, durable) in [
        ("", 72, 192),
        ("hot_ttl = \"24h\"", 24, 192),
        ("hot_ttl = \"30d\"", 720, 720),
        ("durable_ttl = \"4d\"", 72, 96),
        ("hot_ttl = \"9d\"\ndurable_ttl = \"8d\"", 216, 216),
    ] {
        let (config, _) = parse(&with_route(lines)).unwrap();
        let terms = config.routes[0].terms;
        assert_eq!((terms.hot_ttl, terms.durable_ttl), (hot * HOURS, durable * HOURS), "{lines}");
    }
}

#[test]
fn a_short_timeout_shortens_the_wait_that_nobody_wrote() {
    let (config, _) = parse(&with_route("timeout = \"4s\"")).unwrap();
    assert_eq!(config.routes[0].in_flight_wait, Duration::from_secs(2));
    assert_eq!(config.routes[0].terms.lease, Duration::from_secs(34));
}

#[test]
fn choices_are_taken_as_words_or_numbers() {
    let lines = "on_unsigned = \"200\"\nin_flight_answer = 409\ndone = [\"2xx\", 302, \"400-404\"]\nmethod = \"PUT\"\n\
        duplicate_answer = { status = 202, content_type = \"text/plain\", body = \"[accepted]\" }\nreceipt_limit = 0";
    let (config, _) = parse(&with_route(lines)).unwrap();
    let route = &config.routes[0];
    assert_eq!(route.on_unsigned, OnUnsigned::AcceptAndDrop);
    assert_eq!(route.in_flight_answer, http::StatusCode::CONFLICT);
    assert_eq!(route.done, StatusSet(vec![200..=299, 302..=302, 400..=404]));
    assert_eq!(route.methods, Some(vec![http::Method::PUT]));
    assert_eq!(
        route.duplicate_answer,
        DuplicateAnswer::Fixed {
            status: http::StatusCode::ACCEPTED,
            content_type: Some("text/plain".to_owned()),
            body: "[accepted]".into()
        }
    );
}

#[test]
fn without_a_file_everything_posted_is_an_event() {
    let given = WithoutFile {
        upstream: "http://127.0.0.1:3000".to_owned(),
        provider: "hotmart".to_owned(),
        secret: Some(Secret("s3cret".into())),
        listen: Some("127.0.0.1:0".parse().unwrap()),
        admin: None,
        data: PathBuf::from("here.db"),
    };
    let (config, warnings) = Config::without_file(&given).unwrap();
    let every_path = warnings.last().map(ToString::to_string).unwrap_or_default();
    assert!(
        every_path.starts_with(
            "the command line: --provider: whatever is posted, to any path, counts as sent by hotmart"
        ),
        "{every_path}"
    );
    assert!(every_path.contains("not sign is answered with 401"), "{every_path}");
    let unsigned = WithoutFile { secret: None, ..given.clone() };
    let (_, warnings) = Config::without_file(&unsigned).unwrap();
    assert!(!warnings.iter().any(|warning| warning.text.contains("401")), "{warnings:?}");
    assert_eq!(config.routes.len(), 1);
    assert_eq!(&*config.routes[0].name, "hotmart");
    assert_eq!(config.routes[0].secrets, [Secret("s3cret".into())]);
    assert!(matches!(&config.durable, Durable::Sqlite { path, .. } if path == Path::new("here.db")));
    let table = umavez::flow::RouteTable::new(&config.routes).unwrap();
    for path in ["/", "/a", "/a/b/c"] {
        assert!(table.find(&http::Method::POST, None, path).is_some_and(|found| found.event), "{path}");
    }

    let wrong = WithoutFile { upstream: "127.0.0.1:3000".to_owned(), provider: "hotmat".to_owned(), ..given };
    let errors = Config::without_file(&wrong).unwrap_err().to_string();
    let lines: Vec<&str> = errors.lines().collect();
    assert_eq!(lines.len(), 2, "{errors}");
    assert!(lines[0].starts_with("the command line: --upstream: the URL has no scheme; write"), "{errors}");
    assert!(lines[1].ends_with("there is no provider \"hotmat\"; did you mean \"hotmart\"?"), "{errors}");
}

#[test]
fn a_provider_file_that_is_wrong_is_told_once() {
    // Beside the mistake the route was told that there is no such provider, with a list of forty others.
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("providers")).unwrap();
    let file = "name = \"mine\"\ndocs = \"x\"\nhot_ttl = \"1h\"\ndurable_ttl = \"1h\"\n\
        duplicate_answer = { status = 99 }\n[[item]]\nkey = [\"$.id\"]\n";
    std::fs::write(directory.path().join("providers/mine.toml"), file).unwrap();
    let route = |provider: &str| {
        format!(
            "providers_dir = \"providers\"\n[upstream]\nurl = \"http://127.0.0.1:1\"\n\
             [[route]]\nname = \"r\"\npath = \"/r\"\nprovider = \"{provider}\"\n"
        )
    };
    let told = |provider: &str| {
        let errors = Config::parse(&directory.path().join("u.toml"), &route(provider), &Environment::new());
        errors.unwrap_err().0.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let mine = told("mine");
    assert_eq!(mine.len(), 1, "{mine:?}");
    assert!(mine[0].contains("mine.toml:5:20: a copy is told 99, which is no success; write"), "{mine:?}");
    assert!(told("yours").iter().any(|line| line.contains("there is no provider \"yours\"")));
}

#[test]
fn a_file_that_is_no_utf8_is_told_with_its_place() {
    // It was told as a file that umavez's user may not read, without a line.
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("u.toml");
    std::fs::write(&file, b"# n\xc3\xa3o\n# \xc3\xa3 n\xe3o\n").unwrap();
    let errors = Config::load(&file, &Environment::new()).unwrap_err().to_string();
    assert!(errors.ends_with("u.toml:2:6: is not UTF-8: byte 0xe3; save the file as UTF-8"), "{errors}");

    std::fs::create_dir(directory.path().join("providers")).unwrap();
    std::fs::write(directory.path().join("providers/mine.toml"), b"name = \"mine\"\n# n\xe3o\n").unwrap();
    let text = with_route("provider = \"mine\"");
    let errors = Config::parse(&file, &format!("providers_dir = \"providers\"\n{text}"), &Environment::new());
    let errors = errors.unwrap_err().to_string();
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains("mine.toml:2:4: is not UTF-8: byte 0xe3; save"), "{errors}");
}

fn reference() -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/reference.toml")).unwrap()
}

#[test]
fn the_reference_holds_every_field() {
    let reference = reference();
    for (section, fields) in FIELDS {
        let header = if *section == "route" { "[[route]]".to_owned() } else { format!("[{section}]") };
        let (_, after) =
            reference.split_once(&format!("\n{header}\n")).unwrap_or_else(|| panic!("no {header}"));
        let body = after.split("\n[").next().unwrap();
        for field in *fields {
            let held = body.lines().any(|line| {
                line.trim_start_matches('#').split_once(" = ").is_some_and(|(name, _)| name == *field)
            });
            assert!(held, "{section}.{field} is not in the reference");
        }
    }
}

#[test]
fn the_reference_says_the_defaults() {
    let (written, _) = parse(&reference()).unwrap();
    let least = "[[route]]\nname = \"reference\"\npath = \"/webhooks/reference/{tenant}\"\nkey = [\"$.id\"]\n\
        upstream = \"http://127.0.0.1:3000\"\n";
    let (default, _) = parse(least).unwrap();
    assert_eq!(format!("{written:#?}"), format!("{default:#?}"));
}

#[test]
fn what_the_reference_leaves_out_is_right_too() {
    let reference = reference();
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("providers")).unwrap();
    let tls = directory.path().join("tls");
    std::fs::create_dir(&tls).unwrap();
    let names =
        ["hooks.example.com", "admin", "gateway", "clients", "operators", "apps", "directory", "collector"];
    for name in names {
        pki::pair(&tls, name);
    }
    let setting = |line: &str| {
        // The route's provider signs with a secret: it has no use for the public key and the id of others. And a token is of use
        // only where the gateway answers handshakes.
        let other = ["#public_key", "#webhook_id", "#verify_token"].iter().any(|word| line.starts_with(word));
        !other
            && line
                .strip_prefix('#')
                .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_lowercase()))
    };
    let lines: Vec<&str> = reference
        .lines()
        .map(|line| if setting(line) { line.trim_start_matches('#') } else { line })
        .collect();
    let names = [
        "UMAVEZ_ADMIN_TOKEN",
        "PGPASSWORD",
        "META_APP_SECRET",
        "PUBLIC_KEY",
        "ACME_EAB_KEY",
        "OTLP_AUTHORIZATION",
    ];
    let env: Environment = names.map(|name| (name.to_owned(), "0123456789abcdef".to_owned())).into();
    if let Err(errors) = Config::parse(&directory.path().join("reference.toml"), &lines.join("\n"), &env) {
        panic!("{errors}");
    }
}

/// A route that takes long bodies was refused where three of them were more than all bodies may take together.
#[test]
fn room_for_all_bodies_grows_with_the_longest_one() {
    let text = |limits: &str, body: &str| {
        format!(
            "{limits}[upstream]\nurl = \"http://127.0.0.1:1\"\n[[route]]\nname = \"r\"\npath = \"/r\"\n\
             key = [\"$.id\"]\nbody_limit = \"{body}\"\n"
        )
    };
    for (limits, body, mib) in [
        ("", "25MiB", 256),
        ("", "100MiB", 300),
        ("[limits]\nbuffered_bytes_max = \"1MiB\"\n", "1MiB", 3),
        ("[limits]\nbuffered_bytes_max = \"1GiB\"\n", "100MiB", 1024),
    ] {
        let (config, _) =
            Config::parse(Path::new("u.toml"), &text(limits, body), &Environment::new()).unwrap();
        assert_eq!(config.routes[0].buffered_bytes_max, mib << 20, "{limits} {body}");
    }
}
