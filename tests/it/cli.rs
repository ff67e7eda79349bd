//! The command line: exit codes, messages, and the keys of recorded deliveries.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::postgres::Postgres;
use crate::support::redis::Redis;
use crate::support::{Collector, Delivery, Gateway, Reply, Upstream, eventually, nobody};

pub(crate) fn umavez(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_umavez"));
    command.args(arguments).env_remove("UMAVEZ_SECRET").env_remove("UMAVEZ_LOG").output().unwrap()
}

pub(crate) fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn fixture(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name).display().to_string()
}

fn file(directory: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
    let path = directory.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn a_wrong_call_ends_with_64_and_says_why() {
    let wrong: &[(&[&str], &str)] = &[
        (&[], "Usage:"),
        (&["rum"], "similar subcommand"),
        (&["run"], "--config FILE (there is no umavez.toml here), or --upstream and --provider"),
        (&["run", "--admin", "127.0.0.1:1"], "its settings are in it"),
        (&["check"], "umavez.toml: cannot be read"),
        (&["run", "--config", "a", "--upstream", "b"], "cannot be used with"),
        (&["run", "--upstream", "http://127.0.0.1:1"], "--provider"),
        (&["run", "--config", "/nowhere.toml"], "/nowhere.toml: cannot be read"),
        (&["run", "--upstream", "x", "--provider", "hotmart"], "--upstream: the URL has no scheme; write"),
        (&["run", "--upstream", "http://a", "--provider", "hotmat"], "did you mean \"hotmart\"?"),
        (
            &["run", "--upstream", "http://a", "--provider", "hotmart", "--secret-env", "NOT_SET_1"],
            "NOT_SET_1 is not set",
        ),
        (&["check", "--config", "/nowhere.toml"], "/nowhere.toml: cannot be read"),
        (&["events", "show"], "KEY"),
        (&["events", "show", "--digest", "12"], "32 hex digits, or at least the first 8"),
        (&["events", "held", "--admin", "ftp://a"], "write http://host:port"),
        (&["keys", "--provider", "nope", "--headers", "/x", "--body", "/y"], "there is no provider \"nope\""),
        (
            &["keys", "--provider", "meta", "--headers", "/nowhere.headers", "--body", "/y"],
            "/nowhere.headers: ",
        ),
        (&["providers", "nope"], "there is no provider"),
        (&["run", "--upstream", "http://a", "--provider", "instagram"], "did you mean \"meta\"?"),
        (&["providers", "whatsapp"], "did you mean \"meta\"?"),
    ];
    for (arguments, said) in wrong {
        let output = umavez(arguments);
        assert_eq!(code(&output), 64, "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(said), "{arguments:?}: {}", stderr(&output));
        assert_eq!(stdout(&output), "", "{arguments:?}");
    }
}

#[test]
fn help_and_version_end_with_0() {
    for arguments in [
        &["--help"][..],
        &["--version"],
        &["help"],
        &["run", "--help"],
        &["check", "--help"],
        &["demo", "--help"],
        &["keys", "--help"],
        &["events", "--help"],
        &["events", "show", "--help"],
        &["providers", "--help"],
    ] {
        let output = umavez(arguments);
        assert_eq!(code(&output), 0, "{arguments:?}: {}", stderr(&output));
        assert!(!output.stdout.is_empty(), "{arguments:?}");
    }
    assert!(
        stdout(&umavez(&["--help"]))
            .contains("umavez run --upstream http://127.0.0.1:3000 --provider hotmart")
    );
}

#[test]
fn a_gateway_that_is_not_there_ends_with_1() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let output = umavez(&["events", "held", "--admin", &format!("http://{free}")]);
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("is it running?"), "{}", stderr(&output));
}

/// With `admin` in an umavez.toml beside them `events` and `health` asked 127.0.0.1:9180 all the same, and said of a list
/// that the gateway "did not do it".
#[tokio::test]
async fn the_file_beside_a_command_tells_where_the_gateway_is_asked() {
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).start().await;
    let directory = tempfile::tempdir().unwrap();
    let asked = |admin: &str, arguments: &[&str]| {
        // What else is wrong with the file doesn't matter here.
        file(&directory, "umavez.toml", &format!("[listen]\npublik = 1\nadmin = \"{admin}\"\n"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_umavez"));
        command.args(arguments).current_dir(directory.path()).output().unwrap()
    };
    let output = asked(&gateway.admin().to_string(), &["health"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));

    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let output = asked(&format!("0.0.0.0:{}", free.port()), &["events", "held"]);
    assert_eq!(code(&output), 1);
    let said = format!("the gateway at http://{free} can't be asked: cannot connect; is it running?");
    assert!(stderr(&output).contains(&said), "{}", stderr(&output));
    assert!(stderr(&output).contains("--admin URL"), "{}", stderr(&output));
    let output = asked(&free.to_string(), &["events", "forget", "orders:a"]);
    assert!(stderr(&output).contains(&format!("http://{free} did not do it")), "{}", stderr(&output));
    // The flag comes first.
    let output = asked(&free.to_string(), &["health", "--admin", &format!("http://{}", gateway.admin())]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
}

#[test]
fn check_tells_every_problem_and_ends_with_64() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(
        &directory,
        "u.toml",
        "[listen]\npublik = 1\n[[route]]\nname = \"r\"\npath = \"/r\"\nprovider = \"metta\"\n",
    );
    let output = umavez(&["check", "--config", &path.display().to_string()]);
    assert_eq!(code(&output), 64);
    let told = stderr(&output);
    let shown = path.display();
    assert!(
        told.contains(&format!("{shown}:2:1: listen.publik: unknown field; did you mean `public`?\n")),
        "{told}"
    );
    assert!(told.contains(&format!("{shown}:6:12: route \"r\".provider: ")), "{told}");
    assert!(told.contains("route \"r\".upstream: is missing"), "{told}");
}

#[test]
fn check_shows_what_the_file_comes_to() {
    let directory = tempfile::tempdir().unwrap();
    let text = "[upstream]\nurl = \"http://127.0.0.1:3000\"\n[[route]]\nname = \"pix\"\npath = \"/pix\"\nkey = [\"$.id\"]\n";
    let path = file(&directory, "u.toml", text);
    let output = umavez(&["check", "--config", &path.display().to_string()]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let said = stdout(&output);
    assert!(said.contains("route     pix: "), "{said}");
    assert!(said.contains("durable   not there yet; it will be created at the start"), "{said}");
    assert!(!directory.path().join("umavez.db").exists(), "a check creates nothing");
    assert!(said.contains("u.toml: ok, 2 warnings"), "{said}");
    let warned = "u.toml:6:7: route \"pix\".key: no signature is checked: whoever can reach the path";
    assert!(stderr(&output).contains(warned), "{}", stderr(&output));
    assert!(stderr(&output).contains("single instance"), "{}", stderr(&output));
}

#[test]
fn check_of_stores_that_do_not_answer_ends_with_1_and_says_what_to_mend() {
    let directory = tempfile::tempdir().unwrap();
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let text = format!(
        "[upstream]\nurl = \"http://127.0.0.1:3000\"\n[hot]\nurl = \"redis://{nobody}\"\n\
         [durable]\nurl = \"postgres://umavez@{nobody}/umavez\"\n\
         [[route]]\nname = \"pix\"\npath = \"/pix\"\nkey = [\"$.id\"]\n"
    );
    let path = file(&directory, "u.toml", &text).display().to_string();
    let output = umavez(&["check", "--config", &path]);
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    let told = stderr(&output);
    for store in ["hot", "durable"] {
        assert!(told.contains(&format!("[{store}] url: the store does not answer: ")), "{told}");
        assert!(told.contains(&format!("mend [{store}] url")), "{told}");
    }
    assert!(told.contains(&format!("redis at {nobody} cannot be used: ")), "{told}");
    assert!(told.contains("cannot be used: Connection refused"), "in Rust's own notation: {told}");
    assert!(told.contains(&format!("the database at {nobody} cannot be reached: ")), "{told}");
    assert_eq!(code(&umavez(&["check", "--offline", "--config", &path])), 0);
}

/// What `check` says of a route, with this besides.
async fn checked(table: &str) -> (i32, String, String) {
    let directory = tempfile::tempdir().unwrap();
    let text = format!(
        "[upstream]\nurl = \"http://127.0.0.1:3000\"\n{table}\n\
         [[route]]\nname = \"pix\"\npath = \"/pix\"\nkey = [\"$.id\"]\n"
    );
    let path = file(&directory, "u.toml", &text).display().to_string();
    // Beside what it asks, which this thread serves.
    let output = tokio::task::spawn_blocking(move || umavez(&["check", "--config", &path])).await.unwrap();
    (code(&output), stdout(&output), stderr(&output))
}

/// A collector that wasn't there, or took nothing, was only noticed in the log of the running gateway.
#[tokio::test]
async fn check_tries_the_collector_and_warns_where_it_takes_no_spans() {
    let taking = Collector::taking().await;
    let (code, said, told) =
        checked(&format!("{}headers = {{ Authorization = \"Bearer x\" }}", taking.table())).await;
    assert_eq!(code, 0, "{told}");
    assert!(said.contains(&format!("traces    to {}", taking.url())), "{said}");
    assert!(said.contains("traces    answers\n") && !told.contains("[traces] endpoint"), "{said}{told}");
    assert!(taking.spans().is_empty());
    assert_eq!(taking.batches()[0].header("authorization").as_deref(), Some("Bearer x"));
    assert_eq!(taking.resource()["service.name"], "umavez");

    let stranger = Collector::replying([Reply::new(401, "")]).await;
    let elsewhere = Collector::replying([Reply::new(404, "")]).await;
    let gone = format!("[traces]\nendpoint = \"http://{}\"\n", nobody());
    for (table, why, mend) in [
        (stranger.table(), "it answered 401 Unauthorized", "mend [traces] headers"),
        (
            elsewhere.table(),
            "it answered 404 Not Found",
            "mend [traces] endpoint, to which /v1/traces is added",
        ),
        (gone, "", "start it, or mend [traces] endpoint"),
    ] {
        let (code, said, told) = checked(&table).await;
        assert_eq!(code, 0, "{told}");
        let warned = format!("u.toml: [traces] endpoint: the collector takes no spans: {why}");
        assert!(told.contains(&warned) && told.contains(&format!("; {mend} (warning)\n")), "{told}");
        assert!(!said.contains("traces    answers") && said.contains("u.toml: ok, 3 warnings"), "{said}");
    }
}

#[tokio::test]
async fn check_warns_of_a_cluster_that_is_named_as_one_server() {
    let redis = Redis::cluster_of_one().await;
    let (code, said, told) = checked(&format!("[hot]\nurl = \"{}\"\n", redis.url())).await;
    assert_eq!(code, 0, "{told}");
    assert!(said.contains("hot       answers, key by key\n"), "{said}");
    assert!(
        told.contains("u.toml: [hot] url: names one server") && told.contains("redis-cluster://"),
        "{told}"
    );
    let cluster = redis.url().replace("redis://", "redis-cluster://");
    let (code, said, told) = checked(&format!("[hot]\nurl = \"{cluster}\"\n")).await;
    assert_eq!(code, 0, "{told}");
    assert!(said.contains("hot       answers\n") && !told.contains("[hot] url"), "{said}{told}");
}

#[tokio::test]
async fn check_warns_of_stores_that_are_set_up_to_forget_or_to_refuse() {
    // Commits that a crash undoes, and a Redis that is full and evicts nothing, passed without a word.
    let (redis, postgres) = (Redis::start().await, Postgres::start());
    let tables = format!("[hot]\nurl = \"{}\"\n[durable]\nurl = \"{}\"\n", redis.url(), postgres.url());
    let risks = ["synchronous_commit = off", "maxmemory"];
    let (code, said, told) = checked(&tables).await;
    assert_eq!(code, 0, "{told}");
    assert!(said.contains("durable   answers\n") && risks.iter().all(|risk| !told.contains(risk)), "{told}");

    postgres.sql("alter system set synchronous_commit = off");
    postgres.sql("select pg_reload_conf()");
    eventually("the setting", async || postgres.sql("show synchronous_commit") == "off").await;
    // Some 94 of a hundred: full enough for a word, not so full that it refuses.
    redis.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await;
    assert_eq!(redis.command(&["SET", "filling", &"x".repeat(29_000_000)]).await.text(), "OK");
    redis.command(&["CONFIG", "SET", "maxmemory", "32000000"]).await;
    let (code, said, told) = checked(&tables).await;
    assert_eq!(code, 0, "{told}");
    assert!(told.contains("[durable] url: Postgres has synchronous_commit = off: "), "{told}");
    assert!(told.contains("evicts nothing (noeviction)"), "{told}");
    assert!(said.contains("u.toml: ok, 3 warnings"), "{said}");

    redis.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
    let (_, _, told) = checked(&tables).await;
    assert!(!told.contains("noeviction"), "{told}");
}

#[tokio::test]
async fn check_beside_a_running_gateway_is_no_failure() {
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).start().await;
    let folder = gateway.folder();
    let text = "[upstream]\nurl = \"http://127.0.0.1:3000\"\n[[route]]\nname = \"pix\"\npath = \"/pix\"\nkey = [\"$.id\"]\n";
    let path = folder.join("beside.toml");
    std::fs::write(&path, text).unwrap();
    let output = umavez(&["check", "--config", &path.display().to_string()]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stdout(&output).contains("durable   in use by a running gateway"), "{}", stdout(&output));
    // By another name the same file had another lock, and a second gateway took it.
    std::os::unix::fs::symlink("umavez.db", folder.join("other.db")).unwrap();
    std::fs::write(&path, format!("[durable]\nurl = \"sqlite:other.db\"\n{text}")).unwrap();
    let output = umavez(&["check", "--config", &path.display().to_string()]);
    assert!(stdout(&output).contains("durable   in use by a running gateway"), "{}", stdout(&output));
}

#[test]
fn check_takes_the_file_of_the_folder_where_none_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let text = "[upstream]\nurl = \"http://127.0.0.1:3000\"\n[[route]]\nname = \"pix\"\npath = \"/pix\"\nkey = [\"$.id\"]\n";
    file(&directory, "umavez.toml", text);
    let mut command = Command::new(env!("CARGO_BIN_EXE_umavez"));
    let output = command.args(["check", "--offline"]).current_dir(directory.path()).output().unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stdout(&output).contains("umavez.toml: ok"), "{}", stdout(&output));
    file(&directory, "umavez.toml", "[nope]\n");
    let mut command = Command::new(env!("CARGO_BIN_EXE_umavez"));
    let output = command.arg("run").current_dir(directory.path()).output().unwrap();
    assert_eq!(code(&output), 64, "{}", stderr(&output));
    assert!(stderr(&output).contains("umavez.toml:1"), "{}", stderr(&output));
}

#[tokio::test]
async fn an_event_is_named_by_what_the_log_shows_and_a_failed_replay_ends_with_1() {
    let upstream =
        Upstream::scripted([Reply::silence(), Reply::new(500, "not yet"), Reply::new(200, "now")]).await;
    let route = "[[route]]\nname = \"pix\"\npath = \"/pix\"\nkey = [\"$.id\"]\n\
                 timeout = \"300ms\"\nlease = \"2s\"\non_unknown = \"hold\"\n";
    let gateway = Gateway::in_front_of(&upstream).route(route).start().await;
    let answer = gateway.send(&Delivery::json("/pix", "{\"id\":\"7\"}")).await;
    assert_eq!(answer.verdict(), "held");
    let admin = format!("http://{}", gateway.admin());
    let events = async |action: &'static str, named: Vec<String>| {
        let mut arguments = vec!["events".to_owned(), action.to_owned(), "--admin".to_owned(), admin.clone()];
        arguments.extend(named);
        let ask = move || umavez(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        tokio::task::spawn_blocking(ask).await.unwrap()
    };
    let event: serde_json::Value =
        serde_json::from_slice(&events("show", vec!["pix:7".to_owned()]).await.stdout).unwrap();
    assert_eq!((&event["state"], &event["expires"]), (&"held".into(), &serde_json::Value::Null));
    let short: String = event["digest"].as_str().unwrap().chars().take(8).collect();
    let named = || vec!["--digest".to_owned(), short.clone()];
    let told = events("show", named()).await;
    assert!(stdout(&told).contains("\"key\": \"pix:7\""), "{}{}", stdout(&told), stderr(&told));
    let unknown = events("show", vec!["7".to_owned()]).await;
    assert_eq!(code(&unknown), 1);
    assert!(stderr(&unknown).contains("a key begins with its scope, such as"), "{}", stderr(&unknown));

    let failed = events("replay", named()).await;
    assert_eq!(code(&failed), 1, "{}", stdout(&failed));
    assert!(stdout(&failed).contains("\"state\": \"held\""), "{}", stdout(&failed));
    assert!(stderr(&failed).contains("the replay failed: the app did not take it (answer 500)"));
    // Which app it was that gave no answer, the log left to be guessed.
    let app = upstream.url().replace("http://", "");
    let lines = gateway.log_lines();
    let unanswered = lines.iter().find(|line| line["message"] == "no complete answer from the app").unwrap();
    assert_eq!(unanswered["app"], app.as_str());
    let done = events("replay", named()).await;
    assert_eq!(code(&done), 0, "{}", stderr(&done));
    assert!(stdout(&done).contains("\"state\": \"done\""), "{}", stdout(&done));
}

#[test]
fn keys_undo_a_content_encoding() {
    use std::io::Write as _;
    let directory = tempfile::tempdir().unwrap();
    let plain = std::fs::read(fixture("stripe-invoice-paid.body")).unwrap();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&plain).unwrap();
    let body = directory.path().join("b");
    std::fs::write(&body, packed.finish().unwrap()).unwrap();
    let headers = file(&directory, "h", "Content-Type: application/json\nContent-Encoding: gzip\n");
    let (headers, body) = (headers.display().to_string(), body.display().to_string());
    let output = umavez(&["keys", "--provider", "stripe", "--headers", &headers, "--body", &body]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stdout(&output).contains("stripe:evt_FIXTURE0000000000000001"), "{}", stdout(&output));
}

#[test]
fn keys_of_a_recorded_delivery_are_printed_a_line_each() {
    let keys = |provider: &str, case: &str| {
        let output = umavez(&[
            "keys",
            "--provider",
            provider,
            "--headers",
            &fixture(&format!("{case}.headers")),
            "--body",
            &fixture(&format!("{case}.body")),
        ]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        stdout(&output)
    };
    assert_eq!(
        keys("stripe", "stripe-invoice-paid"),
        "{\"item\":\"$\",\"parts\":[\"evt_FIXTURE0000000000000001\"],\"key\":\"stripe:evt_FIXTURE0000000000000001\"}\n"
    );
    let batch = keys("meta", "whatsapp-messages-batch");
    assert_eq!(batch.lines().count(), 3, "{batch}");
    assert!(
        batch.starts_with(
            "{\"item\":\"entry[0].changes[0].value.messages[0]\",\"parts\":[\"100000000000011\",\"messages\",\
         \"wamid.RklYVFVSRS1JTi0wMDAwMDAwMDAwMDAwMQ==\"],\"key\":\"meta:100000000000011:messages:\
         wamid.RklYVFVSRS1JTi0wMDAwMDAwMDAwMDAwMQ==\"}\n"
        ),
        "{batch}"
    );
    let keyless = keys("meta", "whatsapp-errors-only");
    assert!(keyless.contains("\"parts\":null,\"why\":\""), "{keyless}");
}

#[test]
fn keys_of_a_route_take_its_scope_and_path_parameters() {
    let directory = tempfile::tempdir().unwrap();
    let text = "[upstream]\nurl = \"http://127.0.0.1:3000\"\n[[route]]\nname = \"pix\"\npath = \"/pix/{tenant}\"\n\
        scope = \"pix:{tenant}\"\nkey = [\"lembrete\", \"$.id\", \"header:X-Step\"]\n";
    let config = file(&directory, "u.toml", text).display().to_string();
    let headers =
        file(&directory, "h", "Content-Type: application/json\r\nX-Step: 2:b\n").display().to_string();
    let body = file(&directory, "b", "{\"id\": 7}").display().to_string();
    let arguments = ["keys", "--route", "pix", "--config", &config, "--headers", &headers, "--body", &body];
    let request = ["--request", "POST https://hooks.example.com/pix/loja"];
    let output = umavez(&[&arguments[..], &request[..]].concat());
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(
        stdout(&output),
        "{\"item\":\"$\",\"parts\":[\"lembrete\",\"7\",\"2:b\"],\"key\":\"pix:loja:lembrete:7:2\\\\:b\"}\n"
    );
    let elsewhere = ["--request", "POST https://hooks.example.com/other"];
    let output = umavez(&[&arguments[..], &elsewhere[..]].concat());
    assert_eq!(code(&output), 64);
    assert!(stderr(&output).contains("is not the route \"pix\"'s"), "{}", stderr(&output));
}

#[test]
fn keys_of_a_route_need_no_secret_of_the_file() {
    // A captured delivery couldn't be looked at on a desk: the file's every secret, certificate and address was asked
    // for, those of other routes too.
    let directory = tempfile::tempdir().unwrap();
    let text = "[listen]\nadmin_token = { file = \"/run/secrets/nowhere\" }\nhandover = \"${NOT_SET_DIR}/h\"\n\
        [public_tls]\ncertificates = [{ chain = \"/nowhere.pem\", key = \"${NOT_SET_KEY}\" }]\n\
        client_ca = \"${NOT_SET_CA}\"\n\
        [hot]\nurl = \"redis://:${NOT_SET_1}@h\"\n[durable]\nurl = \"${NOT_SET_2}\"\n[upstream]\nurl = \"${NOT_SET_3}\"\n\
        [[route]]\nname = \"shop\"\npath = \"/shop\"\nprovider = \"shopify\"\nsecret = \"${NOT_SET_4}\"\n\
        client_name = \"shop.example\"\n\
        [[route]]\nname = \"pay\"\npath = \"/pay\"\nprovider = \"paypal\"\npublic_key = { file = \"/nowhere\" }\n\
        webhook_id = \"${NOT_SET_5}\"\nupstream = \"${NOT_SET_6}\"\n\
        [[route]]\nname = \"pix\"\npath = \"/pix\"\nkey = [\"$.id\"]\ncapture_dir = \"${NOT_SET_7}\"\n";
    let config = file(&directory, "u.toml", text).display().to_string();
    let headers = file(&directory, "h", "Content-Type: application/json\n").display().to_string();
    let body = file(&directory, "b", "{\"id\": 7}").display().to_string();
    let keys = |whose: &[&str]| {
        let files = ["--config", &config, "--headers", &headers, "--body", &body];
        umavez(&[&["keys"], whose, &files].concat())
    };
    let output = keys(&["--route", "pix"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stdout(&output).contains("\"key\":\"pix:7\""), "{}", stdout(&output));
    for route in ["shop", "pay"] {
        assert_eq!(code(&keys(&["--route", route])), 0, "{route}");
    }
    // What keys do need is asked for, and what is written wrongly is still told.
    let start = text.to_owned();
    std::fs::write(&config, format!("providers_dir = \"${{NOT_SET_8}}\"\n{start}")).unwrap();
    let output = keys(&["--route", "pix"]);
    assert_eq!(code(&output), 64);
    assert!(stderr(&output).contains("providers_dir: the environment variable NOT_SET_8 is not set"));
    std::fs::write(&config, start.replace("key = [", "keys = [")).unwrap();
    let output = keys(&["--route", "pix"]);
    assert_eq!(code(&output), 64);
    assert!(stderr(&output).contains("did you mean `key`?"), "{}", stderr(&output));
    // Serving by it still asks for everything.
    std::fs::write(&config, start).unwrap();
    let output = umavez(&["check", "--offline", "--config", &config]);
    assert_eq!(code(&output), 64);
    for n in 1..=7 {
        assert!(stderr(&output).contains(&format!("NOT_SET_{n} is not set")), "{n}: {}", stderr(&output));
    }
}

/// The page told of Adyen's batches that the rest is signed anew, and that no signature is needed, and in its summary of
/// the first scheme only: for Twilio and GitLab the one that hardly anybody uses.
#[test]
fn the_providers_page_tells_every_scheme_and_how_the_items_of_a_batch_are_signed() {
    let made = stdout(&umavez(&["providers", "--markdown"]));
    let scheme = |name: &str| {
        let row = made.lines().find(|line| line.contains(&format!("| `{name}` |"))).unwrap();
        row.split(" | ").nth(2).unwrap().to_owned()
    };
    for (name, schemes) in [
        ("twilio", "HMAC-SHA1, or HMAC-SHA256"),
        ("gitlab", "the secret itself, or HMAC-SHA256"),
        ("meta", "HMAC-SHA256, or HMAC-SHA1"),
        ("svix", "HMAC-SHA256"),
        ("hubspot", "HMAC-SHA256, or SHA-256 of secret and text"),
        ("cloudevents", "none"),
    ] {
        assert_eq!(scheme(name), schemes, "{name}");
    }
    let batch = |title: &str| {
        let (_, section) = made.split_once(&format!("\n## {title}\n")).unwrap();
        let (section, _) = section.split_once("\n## ").unwrap();
        let row = section.lines().find_map(|line| line.strip_prefix("| a batch | ")).unwrap();
        row.trim_end_matches(" |").to_owned()
    };
    assert_eq!(batch("Adyen"), "items seen before are cut out; no new signature is needed");
    assert!(batch("HubSpot").ends_with("the rest is signed anew with the route's secret"));
    assert!(batch("SendGrid").starts_with("forwarded whole if anything in it is new"));
    let terminal = stdout(&umavez(&["providers", "adyen"]));
    assert!(terminal.contains("copies are cut out of the body\n"), "{terminal}");
}

/// The page told neither what a signature covers nor how it is written; and it left the rules' conditions out, so that
/// Meta's statuses seemed never to have a key.
#[test]
fn the_providers_page_tells_what_is_signed_and_when_a_rule_counts() {
    let made = stdout(&umavez(&["providers", "--markdown"]));
    for said in [
        "HMAC-SHA256 in the header x-hub-signature-256, written `sha256={hex}`, over `{body}`; else HMAC-SHA1",
        "written `v0={hex}`, over `v0:{timestamp}:{body}`, the time in the header x-slack-request-timestamp, up to 5m old",
        "`{header:paypal-transmission-id}\\|{header:paypal-transmission-time}",
        "`Message\\n{json:Message}\\n",
        "the secret in base64 after `whsec_`",
        "the public key in hex",
        "the first that fits counts",
        "    where @.payment.transaction.refunds[1] is there: no key\n    where @.payment is there: ",
        "    otherwise: $.entry[*].changes[*].value.metadata.phone_number_id?, statuses, @.id, @.status",
        "    where @.field is comments or live_comments: ",
    ] {
        assert!(made.contains(said), "{said}");
    }
    let terminal = stdout(&umavez(&["providers", "meta"]));
    for said in [
        "\nsigned     HMAC-SHA256 in the header x-hub-signature-256, written sha256={hex}, over {body}\n",
        ".statuses[*], where @.payment is there: ",
        "the first that fits counts",
    ] {
        assert!(terminal.contains(said), "{said}: {terminal}");
    }
    // A copy that differs by the provider's own doing raises an alert, and the reader is told.
    let told = stdout(&umavez(&["providers", "adyen"]));
    assert!(told.contains("raises the alert UmavezConflicts: leave the route out"), "{told}");
    for name in ["hotmart", "hubspot", "google-pubsub", "salesforce"] {
        let told = stdout(&umavez(&["providers", name]));
        assert!(told.contains("no conflict") && !told.contains("UmavezConflicts"), "{told}");
    }
}

#[test]
fn the_providers_page_is_what_the_provider_files_say() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/providers.md");
    let written = std::fs::read_to_string(page).unwrap_or_default();
    let made = stdout(&umavez(&["providers", "--markdown"]));
    let differs = written.lines().zip(made.lines()).find(|(written, made)| written != made);
    assert!(written == made, "renew it: umavez providers --markdown > docs/providers.md ({differs:?})");
    // What is pasted from the page is a route that serves.
    let blocks: Vec<&str> =
        made.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(blocks.len(), umavez::providers::Provider::names().len());
    let folder = tempfile::tempdir().unwrap();
    for block in blocks {
        let text = crate::docs::file_of(block, folder.path());
        let wanted = block.split("${").skip(1).filter_map(|rest| rest.split('}').next());
        let environment = wanted.map(|name| (name.to_owned(), secret_for(name).to_owned())).collect();
        let config = umavez::config::Config::parse(Path::new("u.toml"), &text, &environment);
        assert!(config.is_ok(), "{block}: {}", config.unwrap_err());
    }
}

/// A secret, public key or certificate of the form that the provider gives out.
pub(crate) fn secret_for(variable: &str) -> &'static str {
    match variable {
        "ADYEN_SECRET" => "00112233445566778899AABBCCDDEEFF00112233445566778899AABBCCDDEEFF",
        "PAGARME_SECRET" => "user:password",
        "DISCORD_PUBLIC_KEY" => "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "SENDGRID_PUBLIC_KEY" => {
            "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEaxfR8uEsQkf4vOblY6RA8ncDfYEt6zOg9KE5RdiYwpZP40Li/hp/m47n60p8D54WK84zV2sxXs7LtkBoN79R9Q=="
        }
        file if file.ends_with(".pem") => include_str!("../fixtures/certificates/paypal.pem"),
        _ => "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    }
}

#[test]
fn providers_are_listed() {
    let listed = stdout(&umavez(&["providers"]));
    let known: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(known.is_sorted() && known.len() == umavez::providers::Provider::names().len(), "{listed}");
    for line in [
        "evolution          Evolution API",
        "hotmart            Hotmart",
        "meta               Meta (WhatsApp",
    ] {
        assert!(listed.lines().any(|listed| listed.starts_with(line)), "{listed}");
    }
}

#[test]
fn a_provider_is_told_with_a_route_to_copy() {
    let directory = tempfile::tempdir().unwrap();
    for name in umavez::providers::Provider::names() {
        let told = stdout(&umavez(&["providers", name]));
        for line in ["docs ", "item ", "remembered ", "signature ", "batch "] {
            assert!(told.contains(&format!("\n{line}")), "{name} has no {line}: {told}");
        }
        let (_, route) = told.split_once("\n[[route]]\n").unwrap_or_else(|| panic!("{told}"));
        let config = format!("[upstream]\nurl = \"http://127.0.0.1:3000\"\n[[route]]\n{route}");
        // Any secret will do for the shape; some providers' have one of their own.
        let kept = config.lines().filter(|line| !line.contains("${") && !line.contains("{ file"));
        let unsigned: String = kept.map(|line| format!("{line}\n")).collect();
        let path = file(&directory, &format!("{name}.toml"), &unsigned).display().to_string();
        let output = umavez(&["check", "--offline", "--config", &path]);
        assert_eq!(code(&output), 0, "{name}: {}", stderr(&output));
    }
}
