//! Traces: what a collector gets of each kind of request, whose parents are taken, and that a collector that is away
//! costs nobody anything.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use http::Version;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use umavez::config::{Config, Environment};

use crate::dashboards::Prometheus;
use crate::support::{
    Collector, Delivery, Gate, Gateway, ORDERS, Pair, Reply, Setup, Span, Stores, Upstream, eventually,
    nobody, order,
};
use crate::tls::app::App;
use crate::tls::pki::{Authority, Folder};

const SPANS: &str = "umavez_spans_total";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";
const CHAT: &str = r#"
[[route]]
name = "chat"
path = "/chat"
provider = "meta"
secret = "${S}"
"#;

/// Traced to this collector.
fn traced(upstream: &Upstream, collector: &Collector, settings: &str) -> Setup {
    Gateway::in_front_of(upstream).table(&format!("{}{settings}\n", collector.table()))
}

fn parent(flags: &str) -> String {
    format!("00-{TRACE}-{SPAN}-{flags}")
}

fn named<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let mut found = spans.iter().filter(|span| span.name == name);
    let span = found.next().unwrap_or_else(|| panic!("no span {name} in {spans:#?}"));
    assert!(found.next().is_none(), "two spans {name} in {spans:#?}");
    span
}

fn names(spans: &[Span]) -> Vec<&str> {
    spans.iter().map(|span| &*span.name).collect()
}

/// The spans of each trace, in the order in which the traces began.
fn by_trace(spans: Vec<Span>) -> Vec<Vec<Span>> {
    let mut traces: Vec<Vec<Span>> = Vec::new();
    for span in spans {
        match traces.iter_mut().find(|trace| trace[0].trace == span.trace) {
            Some(trace) => trace.push(span),
            None => traces.push(vec![span]),
        }
    }
    traces
}

/// One server span, and every other its child and within its time.
fn is_a_tree(spans: &[Span]) {
    let roots: Vec<&Span> = spans.iter().filter(|span| span.kind == SpanKind::Server).collect();
    let [root] = roots[..] else { panic!("not one root: {spans:#?}") };
    for span in spans {
        assert!(span.began > 1_700_000_000_000_000_000 && span.began <= span.ended, "{span:?}");
        if span.id != root.id {
            assert_eq!(span.parent, root.id, "{span:?}");
            assert!(root.began <= span.began && span.ended <= root.ended, "{span:?} not within {root:?}");
        }
    }
}

async fn two_of_one_event(pair: Pair, layer: &str) {
    let stores = Stores::open(pair).await;
    let upstream = Upstream::answering(201, "made").await;
    let collector = Collector::taking().await;
    let gateway = traced(&upstream, &collector, "resource = \"deployment.environment.name=a%20b\"")
        .on(&stores)
        .route(CHAT)
        .env("S", "s3cret")
        .start()
        .await;
    let body = r#"{"object":"page","entry":[{"id":"1","time":1,"messaging":[{"sender":{"id":"2"},"message":{"mid":"m_1"}}]}]}"#;
    let delivery =
        Delivery::json("/chat", body).signed_by_meta("s3cret").header("Host", "hooks.example:8443");
    assert_eq!(gateway.send(&delivery).await.verdict(), "first");
    assert_eq!(gateway.send(&delivery).await.verdict(), "duplicate");
    let traces = by_trace(collector.until_spans(8).await);
    let [first, copy] = &traces[..] else { panic!("{traces:#?}") };

    assert_eq!(names(first), ["POST /chat", "verify", "claim", "forward", "settle"]);
    is_a_tree(first);
    let root = &first[0];
    assert!(root.parent.is_empty() && !root.failed);
    let key = root.says("umavez.key").to_owned();
    assert!(key.len() == 8 && key.bytes().all(|byte| byte.is_ascii_hexdigit()), "{key}");
    let said: BTreeMap<&str, &str> =
        root.attributes.iter().map(|(name, value)| (&**name, &**value)).collect();
    assert_eq!(
        said,
        BTreeMap::from([
            ("http.request.method", "POST"),
            ("http.response.status_code", "201"),
            ("http.route", "/chat"),
            ("network.protocol.version", "1.1"),
            ("server.address", "hooks.example"),
            ("server.port", "8443"),
            ("umavez.answer", "forwarded"),
            ("umavez.attempt", "1"),
            ("umavez.key", &*key),
            ("umavez.mode", "inline"),
            ("umavez.provider", "meta"),
            ("umavez.route", "chat"),
            ("umavez.verdict", "first"),
            ("url.path", "/chat"),
            ("url.scheme", "http"),
        ])
    );
    assert_eq!(named(first, "claim").says("umavez.claimed.first"), "1");
    let forward = named(first, "forward");
    assert_eq!(forward.kind, SpanKind::Client);
    assert_eq!(
        (forward.says("umavez.outcome"), forward.says("http.response.status_code")),
        ("answered", "201")
    );
    assert_eq!(forward.says("server.address"), "127.0.0.1");
    assert_eq!(named(first, "settle").says("umavez.settlement"), "commit");
    let told = upstream.last().header("traceparent").unwrap();
    assert_eq!(told, format!("00-{}-{}-01", root.trace, forward.id), "the app's parent is the forward");

    assert_eq!(names(copy), ["POST /chat", "verify", "claim"]);
    is_a_tree(copy);
    assert_eq!((copy[0].says("umavez.verdict"), copy[0].says("umavez.answer")), ("duplicate", "replayed"));
    assert_eq!(copy[0].says("umavez.key"), key);
    assert_eq!(named(copy, "claim").says(&format!("umavez.duplicate.{layer}")), "1", "{copy:#?}");

    let resource = collector.resource();
    assert_eq!(resource["service.name"], "umavez");
    assert_eq!(resource["deployment.environment.name"], "a b");
    gateway.until_metric(SPANS, &[("result", "exported")], 8.0).await;
    // Each request's line leads to its trace.
    let lines = gateway.log_lines();
    let logged: Vec<&str> = lines.iter().filter_map(|line| line["trace_id"].as_str()).collect();
    assert_eq!(logged, [&root.trace, &copy[0].trace]);
}

#[tokio::test]
async fn a_first_and_its_copy_are_told_step_by_step() {
    two_of_one_event(Pair::Embedded, "hot").await;
}

#[tokio::test]
async fn and_on_redis_and_postgres() {
    two_of_one_event(Pair::RedisPostgres, "hot").await;
}

#[tokio::test]
async fn what_fails_is_told_as_failed() {
    let upstream = Upstream::answering(500, "").await;
    let collector = Collector::taking().await;
    let dead = format!(
        "[[route]]\nname = \"dead\"\npath = \"/dead\"\nkey = [\"$.id\"]\nupstream = \"http://{}\"\n",
        nobody()
    );
    let keyless =
        "[[route]]\nname = \"keyed\"\npath = \"/keyed\"\nkey = [\"$.id\"]\non_keyless = \"reject\"\n";
    let gateway = traced(&upstream, &collector, "")
        .route(ORDERS)
        .route(CHAT)
        .route(&dead)
        .route(keyless)
        .env("S", "s3cret")
        .start()
        .await;
    for (delivery, status) in [
        (Delivery::json("/chat", "{}"), 401),
        (order("a"), 500),
        (Delivery::json("/dead", r#"{"id":"1"}"#), 502),
        (Delivery::json("/keyed", "{}"), 422),
        (Delivery::new("GET", "/page"), 500),
    ] {
        assert_eq!(gateway.send(&delivery).await.status, status, "{delivery:?}");
    }
    let traces = by_trace(collector.until_spans(2 + 4 + 4 + 1 + 2).await);
    let [refused, failed, dead, keyless, passed] = &traces[..] else { panic!("{traces:#?}") };

    assert_eq!(names(refused), ["POST /chat", "verify"]);
    assert!(!refused[0].failed && named(refused, "verify").failed, "a refusal is no failure of ours");
    assert_eq!(
        (refused[0].says("umavez.verdict"), refused[0].says("umavez.answer")),
        ("refused", "unauthorized")
    );

    assert_eq!(names(failed), ["POST /hooks", "claim", "forward", "settle"]);
    assert!(failed[0].failed && named(failed, "forward").failed);
    assert_eq!(failed[0].says("error.type"), "500");
    assert_eq!(named(failed, "settle").says("umavez.settlement"), "release");

    assert!(dead[0].failed);
    let forward = named(dead, "forward");
    assert_eq!((forward.says("umavez.outcome"), forward.says("error.type")), ("never_sent", "connect"));
    assert!(forward.failed && forward.says("http.response.status_code").is_empty());

    assert_eq!((names(keyless), keyless[0].says("umavez.verdict")), (vec!["POST /keyed"], "keyless"));

    assert_eq!(names(passed), ["GET", "forward"]);
    assert_eq!(passed[0].says("umavez.route"), "");
    for trace in &traces {
        is_a_tree(trace);
    }
}

#[tokio::test]
async fn a_copy_that_waits_tells_how_long() {
    let gate = Gate::closed();
    let upstream = Upstream::scripted([Reply::new(200, "").behind(&gate)]).await;
    let collector = Collector::taking().await;
    let route = format!("{ORDERS}in_flight_wait = \"100ms\"\n");
    let gateway = traced(&upstream, &collector, "").route(&route).start().await;
    let slow = gateway.sending(&order("slow"));
    upstream.until_received(1).await;
    assert_eq!(gateway.send(&order("slow")).await.verdict(), "in_flight");
    gate.open();
    slow.await.unwrap();
    let spans = collector.until_spans(4 + 3).await;
    let wait = named(&spans, "wait");
    assert_eq!((wait.says("umavez.items"), wait.says("umavez.late")), ("1", "true"));
    let own: Vec<&Span> = spans.iter().filter(|span| span.trace == wait.trace).collect();
    assert_eq!(own.len(), 3, "{spans:#?}");
    let claim = own.iter().find(|span| span.name == "claim").unwrap();
    assert_eq!(claim.says("umavez.claimed.in_flight"), "1");
}

#[tokio::test]
async fn items_of_a_batch_are_counted_in_its_claim() {
    let upstream = Upstream::answering(200, "").await;
    let collector = Collector::taking().await;
    let gateway = traced(&upstream, &collector, "").route(CHAT).env("S", "s3cret").start().await;
    let delivery = |ids: &[&str]| {
        let message = |id: &&str| format!(r#"{{"sender":{{"id":"2"}},"message":{{"mid":"{id}"}}}}"#);
        let messages = ids.iter().map(message).collect::<Vec<_>>().join(",");
        Delivery::json(
            "/chat",
            format!(r#"{{"object":"page","entry":[{{"id":"1","time":1,"messaging":[{messages}]}}]}}"#),
        )
        .signed_by_meta("s3cret")
    };
    gateway.send(&delivery(&["m_1"])).await;
    gateway.send(&delivery(&["m_1", "m_2", "m_3"])).await;
    let traces = by_trace(collector.until_spans(10).await);
    let claim = named(&traces[1], "claim");
    assert_eq!(claim.says("umavez.items"), "3");
    assert_eq!((claim.says("umavez.claimed.first"), claim.says("umavez.duplicate.hot")), ("2", "1"));
    assert_eq!(named(&traces[1], "settle").says("umavez.items"), "2");
}

#[tokio::test]
async fn a_trusted_proxys_trace_goes_on_and_a_strangers_is_a_link() {
    let upstream = Upstream::answering(200, "").await;
    let collector = Collector::taking().await;
    let gateway = traced(&upstream, &collector, "").listen("trusted_proxies = [\"127.0.0.1\"]").start().await;
    let send = async |delivery: Delivery| {
        gateway.send(&delivery.header("tracestate", "rojo=1").header("tracestate", "congo=2")).await;
        upstream.last()
    };
    // What doesn't follow the specification is no parent: a new trace begins, and what vendors said goes.
    let malformed =
        [format!("00-{}-{SPAN}-01", TRACE.to_uppercase()), format!("ff-{TRACE}-{SPAN}-01"), "x".to_owned()];
    for (n, bad) in malformed.iter().enumerate() {
        let got = send(order(&format!("bad{n}")).header("traceparent", bad)).await;
        let told = got.header("traceparent").unwrap();
        assert!(told.starts_with("00-") && told.ends_with("-01") && !told.contains(TRACE), "{told}");
        assert!(got.headers_named("tracestate").is_empty());
        assert_eq!(got.headers_named("traceparent").len(), 1);
    }
    for spans in by_trace(collector.until_spans(12).await) {
        assert!(spans[0].parent.is_empty() && spans[0].links.is_empty());
    }

    for (n, delivery) in [order("a"), Delivery::new("GET", "/page")].into_iter().enumerate() {
        let got = send(delivery.header("traceparent", &parent("01"))).await;
        assert_eq!(got.headers_named("tracestate"), ["rojo=1", "congo=2"], "as it came");
        let spans = collector.until_spans([16, 18][n]).await;
        let spans: Vec<Span> = spans.into_iter().filter(|span| span.trace == TRACE).skip([0, 4][n]).collect();
        let root = &spans[0];
        assert_eq!((&*root.parent, &*root.state), (SPAN, "rojo=1,congo=2"));
        let forward = named(&spans, "forward");
        assert_eq!(forward.parent, root.id);
        assert_eq!(got.header("traceparent").unwrap(), format!("00-{TRACE}-{}-01", forward.id));
    }

    // The same from anybody else is a link.
    gateway.edit("trusted_proxies = [\"127.0.0.1\"]", "trusted_proxies = [\"192.0.2.1\"]");
    assert_eq!(gateway.reload().await.status, 200);
    let got = send(order("b").header("traceparent", &parent("01"))).await;
    assert!(got.headers_named("tracestate").is_empty());
    assert!(!got.header("traceparent").unwrap().contains(TRACE));
    let spans = collector.until_spans(22).await;
    let root = spans.iter().find(|span| !span.links.is_empty()).unwrap();
    assert_eq!((root.links.as_slice(), &*root.parent), (&[TRACE.to_owned()][..], ""));
    assert!(root.trace != TRACE);
}

/// On a request that passed through, `Connection: traceparent` took our own `traceparent` off as well: the app's spans
/// hung from nothing.
#[tokio::test]
async fn what_a_sender_means_for_one_hop_is_not_our_word_to_the_app() {
    let upstream = Upstream::answering(200, "").await;
    let collector = Collector::taking().await;
    let gateway = traced(&upstream, &collector, "parent = \"anyone\"").start().await;
    for (n, delivery) in [order("a"), Delivery::new("GET", "/page")].into_iter().enumerate() {
        let named = delivery.header("Connection", "traceparent, tracestate, x-mine").header("x-mine", "1");
        gateway.send(&named.header("traceparent", &parent("01")).header("tracestate", "rojo=1")).await;
        let got = upstream.last();
        let spans = collector.until_spans([4, 6][n]).await;
        let forward = spans.iter().filter(|span| span.name == "forward").nth(n).unwrap();
        assert_eq!(got.headers_named("traceparent"), [format!("00-{TRACE}-{}-01", forward.id)]);
        assert!(got.header("tracestate").is_none() && got.header("x-mine").is_none());
    }
}

#[tokio::test]
async fn a_parent_decides_about_sampling_where_it_is_taken_and_the_share_does_elsewhere() {
    let upstream = Upstream::answering(200, "").await;
    for (settings, flags, told, sampled) in [
        // Nobody's parent is taken, whatever it asks for.
        ("sample_ratio = 0.0\nparent = \"nobody\"", "01", "00", false),
        ("sample_ratio = 1\nparent = \"nobody\"", "00", "01", true),
        // The default, and no trusted proxy.
        ("sample_ratio = 0", "01", "00", false),
        ("sample_ratio = 0\nparent = \"anyone\"", "01", "01", true),
        ("parent = \"anyone\"", "00", "00", false),
        ("parent = \"anyone\"", "03", "03", true),
    ] {
        let collector = Collector::taking().await;
        let mut gateway = traced(&upstream, &collector, settings).start().await;
        gateway.send(&order("a").header("traceparent", &parent(flags))).await;
        let got = upstream.last().header("traceparent").unwrap();
        assert!(got.ends_with(&format!("-{told}")), "{settings}, {flags}: {got}");
        // An end sends what is left.
        gateway.terminate();
        assert_eq!(gateway.wait_exit().await, Some(0));
        assert_eq!(!collector.spans().is_empty(), sampled, "{settings}, {flags}");
    }
}

#[tokio::test]
async fn off_everything_passes_as_it_came() {
    let upstream = Upstream::answering(200, "").await;
    let gateway = Gateway::in_front_of(&upstream).table("[traces]\nsample_ratio = 1.0").start().await;
    for delivery in [order("a"), Delivery::new("GET", "/page")] {
        let theirs = delivery.header("traceparent", "anything at all").header("tracestate", "Not=Right");
        gateway.send(&theirs.header("tracestate", "x=1")).await;
        let got = upstream.last();
        assert_eq!(got.headers_named("traceparent"), ["anything at all"]);
        assert_eq!(got.headers_named("tracestate"), ["Not=Right", "x=1"]);
    }
    gateway.send(&order("b")).await;
    assert_eq!(upstream.last().header("traceparent"), None);
    assert!(!gateway.logs().contains("trace_id"));
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.value(SPANS, &[]), 0.0);
    assert!(metrics.text().contains("umavez_spans_total{result=\"dropped\"} 0"), "it is there all the same");
    let asked =
        Delivery::new("GET", "/metrics").header("Accept", "application/openmetrics-text;version=1.0.0");
    let answer = crate::support::send(gateway.admin(), &asked).await;
    assert!(answer.header("content-type").unwrap().starts_with("text/plain"));
}

#[tokio::test]
async fn a_held_event_that_is_replayed_tells_of_the_trace_that_it_came_with() {
    let upstream = Upstream::scripted([Reply::hang_up(), Reply::new(200, "")]).await;
    let collector = Collector::taking().await;
    let gateway =
        traced(&upstream, &collector, "").route(&format!("{ORDERS}on_unknown = \"hold\"\n")).start().await;
    assert_eq!(gateway.send(&order("money")).await.verdict(), "held");
    let came = collector.until_spans(4).await;
    let forward = named(&came, "forward");
    assert_eq!((forward.says("umavez.outcome"), forward.says("error.type")), ("unknown", "broken"));
    assert_eq!(named(&came, "settle").says("umavez.settlement"), "hold");

    assert_eq!(gateway.ask_admin("POST", "/events/replay?key=orders:money").await.status, 200);
    let spans = collector.until_spans(8).await;
    let replay = named(&spans, "replay");
    assert_eq!(replay.links, [came[0].trace.clone()]);
    assert_eq!((replay.says("umavez.verdict"), replay.says("umavez.attempt")), ("first", "2"));
    let own: Vec<Span> = spans.iter().filter(|span| span.trace == replay.trace).cloned().collect();
    assert_eq!(names(&own), ["replay", "claim", "forward", "settle"]);
    assert!(own.iter().skip(1).all(|span| span.parent == replay.id));
    let told = upstream.last().header("traceparent").unwrap();
    assert_eq!(told, format!("00-{}-{}-01", replay.trace, named(&own, "forward").id));
}

#[tokio::test]
async fn in_shadow_the_asking_is_told_beside_the_forward() {
    let upstream = Upstream::answering(200, "").await;
    let collector = Collector::taking().await;
    let gateway =
        traced(&upstream, &collector, "").route(&format!("{ORDERS}mode = \"shadow\"\n")).start().await;
    gateway.send(&order("a")).await;
    gateway.send(&order("a")).await;
    let traces = by_trace(collector.until_spans(4 + 3).await);
    let [first, copy] = &traces[..] else { panic!("{traces:#?}") };
    for (trace, verdict) in [(first, "first"), (copy, "duplicate")] {
        let root = named(trace, "POST /hooks");
        assert_eq!((root.says("umavez.mode"), root.says("umavez.verdict")), ("shadow", verdict));
        assert!(trace.iter().all(|span| span.id == root.id || span.parent == root.id));
    }
    assert_eq!(named(first, "settle").says("umavez.settlement"), "commit");
    assert_eq!(named(copy, "claim").says("umavez.duplicate.hot"), "1");
    let told = upstream.last().header("traceparent").unwrap();
    assert!(told.contains(&named(copy, "forward").id), "{told}");
}

#[tokio::test]
async fn a_sender_that_hangs_up_leaves_its_trace() {
    let gate = Gate::closed();
    let upstream = Upstream::scripted([Reply::new(200, "").behind(&gate)]).await;
    let collector = Collector::taking().await;
    let gateway = traced(&upstream, &collector, "").start().await;
    let sending = gateway.sending(&order("a"));
    upstream.until_received(1).await;
    sending.abort();
    assert!(sending.await.unwrap_err().is_cancelled());
    gate.open();
    let spans = collector.until_spans(4).await;
    is_a_tree(&spans);
    let root = named(&spans, "POST /hooks");
    // It may have heard that the sender is gone only after it had answered.
    assert!(root.says("error.type") == "cancelled" || root.says("umavez.verdict") == "first", "{root:?}");
    assert_eq!(named(&spans, "settle").says("umavez.settlement"), "commit");
}

#[tokio::test]
async fn no_secret_key_or_token_is_in_any_exported_byte() {
    let upstream = Upstream::answering(200, "b_SECRET222").await;
    let routes = format!(
        "[[route]]\nname = \"in\"\npath = \"/h/{{token}}/in\"\nkey = [\"path:token\", \"$.id\"]\n\
         [[route]]\nname = \"dead\"\npath = \"/dead/{{token}}\"\nkey = [\"$.id\"]\nupstream = \"http://{}\"\n\
         [[route]]\nname = \"signed\"\npath = \"/signed/{{token}}\"\nprovider = \"meta\"\nsecret = \"${{S}}\"\n",
        nobody()
    );
    let start = async |collector: &Collector, settings: &str| {
        traced(&upstream, collector, &format!("headers = {{ Authorization = \"${{AUTH}}\" }}\n{settings}"))
            .route(&routes)
            .env("S", "k_SECRET111")
            .env("AUTH", "Bearer for-the-collector")
            .start()
            .await
    };
    let with = |target: &str| {
        Delivery::json(&format!("{target}?token=q_SECRET456"), r#"{"id":"b_SECRET000"}"#)
            .header("Authorization", "Bearer h_SECRET789")
            .header("User-Agent", "u_SECRET333")
            .header("X-Forwarded-For", "f_SECRET444")
    };
    let collector = Collector::taking().await;
    let gateway = start(&collector, "").await;
    let mut odd = with("/h/tok_SECRET123/in");
    "SECRET".clone_into(&mut odd.method);
    for (delivery, status) in [
        (with("/h/tok_SECRET123/in"), 200),
        (with("/h/tok_SECRET123/in"), 200),
        (odd, 200),
        (with("/dead/tok_SECRET123"), 502),
        (with("/signed/tok_SECRET123"), 401),
        (with("/nowhere/tok_SECRET123"), 200),
        (with("/H/tok_SECRET123/in"), 404),
    ] {
        assert_eq!(gateway.send(&delivery).await.status, status, "{delivery:?}");
    }
    let spans = collector.until_spans(4 + 2 + 2 + 4 + 2 + 2 + 1).await;
    for batch in collector.batches() {
        assert!(!batch.body.windows(6).any(|bytes| bytes == b"SECRET"), "{}", batch.text());
        assert_eq!(batch.header("authorization").as_deref(), Some("Bearer for-the-collector"));
        assert_eq!(batch.header("content-type").as_deref(), Some("application/x-protobuf"));
        assert_eq!((&*batch.method, &*batch.target), ("POST", "/v1/traces"));
    }
    assert_eq!(spans[0].says("url.path"), "/h/{token}/in");
    assert!(spans.iter().any(|span| span.says("http.request.method") == "_OTHER"));
    assert!(!gateway.logs().contains("for-the-collector"));

    // Whole paths are told where the file says so: still less the query.
    let collector = Collector::taking().await;
    let gateway = start(&collector, "paths = \"whole\"").await;
    gateway.send(&with("/nowhere/at/all")).await;
    gateway.send(&with("/h/t/in")).await;
    let spans = collector.until_spans(6).await;
    let paths: Vec<&str> =
        spans.iter().map(|span| span.says("url.path")).filter(|path| !path.is_empty()).collect();
    assert_eq!(paths, ["/nowhere/at/all", "/h/t/in"]);
}

#[tokio::test]
async fn a_collector_that_is_away_costs_nobody_anything_and_every_span_is_accounted_for() {
    let upstream = Upstream::answering(200, "").await;
    let table = format!("[traces]\nendpoint = \"http://{}\"", nobody());
    let mut gateway = Gateway::in_front_of(&upstream).table(&table).start().await;
    let mut connection = gateway.connect().await;
    // More than fit into the queue.
    for n in 0..6000 {
        assert_eq!(connection.send(&Delivery::new("GET", &format!("/{n}"))).await.status, 200);
    }
    let lost = async || {
        let metrics = gateway.metrics().await;
        let value = |result| metrics.value(SPANS, &[("result", result)]);
        (value("dropped"), value("failed"), value("exported"))
    };
    eventually("what doesn't fit is dropped, what was tried in vain has failed", async || {
        let (dropped, failed, exported) = lost().await;
        assert_eq!(exported, 0.0);
        dropped > 0.0 && failed > 0.0
    })
    .await;
    let told = gateway.logs().matches("the collector takes no spans").count();
    assert_eq!(told, 1, "one line, not one for each batch");
    drop(connection);
    gateway.terminate();
    assert_eq!(gateway.wait_exit().await, Some(0));
}

#[tokio::test]
async fn a_collector_that_stalls_holds_up_neither_requests_nor_the_end() {
    let upstream = Upstream::answering(200, "").await;
    let collector = Collector::replying([Reply::silence()]).await;
    let mut gateway = traced(&upstream, &collector, "timeout = \"1m\"").start().await;
    gateway.send(&order("a")).await;
    collector.until_received(1).await;
    gateway.send(&order("b")).await;
    gateway.terminate();
    // The collector would have a minute: longer than any story waits.
    assert_eq!(gateway.wait_exit().await, Some(0));
    assert!(gateway.logs().contains("spans that the collector has not taken"));
}

#[tokio::test]
async fn what_the_collector_puts_off_is_sent_again_and_what_it_refuses_is_not() {
    let upstream = Upstream::answering(200, "").await;
    let later = Reply::with_headers(503, &[("Retry-After", "0")], b"");
    let replies = [later.clone(), later, Reply::new(200, ""), Reply::new(400, ""), Collector::rejecting(3)];
    let collector = Collector::replying(replies).await;
    let gateway = traced(&upstream, &collector, "").start().await;
    gateway.send(&order("a")).await;
    gateway.until_metric(SPANS, &[("result", "exported")], 4.0).await;
    let batches = collector.batches();
    assert_eq!(batches.len(), 3);
    assert!(batches.iter().all(|batch| batch.body == batches[0].body), "the same spans again");
    assert!(gateway.logs().contains("the collector takes spans again"));
    gateway.send(&order("b")).await;
    gateway.until_metric(SPANS, &[("result", "failed")], 4.0).await;
    gateway.send(&order("c")).await;
    gateway.until_metric(SPANS, &[("result", "failed")], 7.0).await;
    gateway.until_metric(SPANS, &[("result", "exported")], 5.0).await;
    assert_eq!(collector.batches().len(), 5);
}

#[tokio::test]
async fn a_stop_sends_what_is_left() {
    let upstream = Upstream::answering(200, "").await;
    let collector = Collector::taking().await;
    let mut gateway = traced(&upstream, &collector, "").start().await;
    for n in 0..50 {
        gateway.send(&order(&n.to_string())).await;
    }
    gateway.terminate();
    assert_eq!(gateway.wait_exit().await, Some(0));
    assert_eq!(collector.spans().len(), 200);
}

#[tokio::test]
async fn a_reload_turns_traces_on_leads_them_elsewhere_and_turns_them_off() {
    let upstream = Upstream::answering(200, "").await;
    let (one, two) = (Collector::taking().await, Collector::taking().await);
    let gateway = Gateway::in_front_of(&upstream).table("[traces]\n#here").start().await;
    gateway.send(&order("a")).await;
    let reload = async |from: &str, to: &str| {
        gateway.edit(from, to);
        let told = gateway.reload().await;
        assert_eq!(told.status, 200, "{}", told.text());
        assert_eq!(told.json()["settings"], serde_json::json!(["traces"]));
    };
    reload("#here", &format!("endpoint = \"{}\"", one.url())).await;
    gateway.send(&order("b")).await;
    // What the first has not got yet reaches it after the second has taken its place.
    reload(&one.url(), &two.url()).await;
    gateway.send(&order("c")).await;
    assert_eq!((one.until_spans(4).await.len(), two.until_spans(4).await.len()), (4, 4));
    reload(&format!("endpoint = \"{}\"", two.url()), "#here").await;
    gateway.send(&order("d")).await;
    assert_eq!(upstream.last().header("traceparent"), None);
    gateway.edit("#here", "endpoint = \"127.0.0.1:4318\"");
    let told = gateway.reload().await;
    assert_eq!(told.status, 422, "{}", told.text());
    assert!(told.text().contains("traces.endpoint"), "{}", told.text());
}

#[tokio::test]
async fn a_collector_behind_tls_is_asked_under_its_own_roots() {
    let upstream = Upstream::answering(200, "").await;
    let (authority, folder) = (Authority::new(), Folder::new());
    let app = App::showing(&authority.issue(&["localhost"]), &[b"h2", b"http/1.1"]).await;
    let ca = folder.put("ca.pem", &authority.pem);
    let table = format!(
        "[traces]\nendpoint = \"https://localhost:{}\"\nca = \"{}\"",
        app.address.port(),
        ca.display()
    );
    let gateway = Gateway::in_front_of(&upstream).table(&table).start().await;
    gateway.send(&order("a")).await;
    gateway.until_metric(SPANS, &[("result", "exported")], 4.0).await;
    let asked = app.asked();
    assert_eq!((asked[0].version, asked[0].name.as_deref()), (Version::HTTP_2, Some("localhost")));
}

/// The roots of a collector were read once and never again: with new ones its spans were lost until a restart; and the
/// metrics told of their file after the configuration had let it go.
#[tokio::test]
async fn the_roots_of_a_collector_are_taken_as_they_change_and_let_go() {
    let upstream = Upstream::answering(200, "").await;
    let (before, after, folder) = (Authority::new(), Authority::new(), Folder::new());
    let app = App::showing(&before.issue(&["localhost"]), &[b"http/1.1"]).await;
    let ca = folder.put("ca.pem", &before.pem).display().to_string();
    let table = format!("[traces]\nendpoint = \"https://localhost:{}\"\nca = \"{ca}\"", app.address.port());
    let gateway = Gateway::in_front_of(&upstream).table(&table).start().await;
    let current = ("umavez_certificate_current", [("side", "collector"), ("file", ca.as_str())]);
    gateway.send(&order("a")).await;
    gateway.until_metric(SPANS, &[("result", "exported")], 4.0).await;
    assert_eq!(gateway.metrics().await.value(current.0, &current.1), 1.0);

    // What is of no use is not taken.
    folder.put("ca.pem", "rubbish");
    gateway.until_metric(current.0, &current.1, 0.0).await;
    folder.put("ca.pem", &after.pem);
    gateway.until_metric(current.0, &current.1, 1.0).await;
    app.show(&after.issue(&["localhost"]));
    gateway.send(&order("b")).await;
    gateway.until_metric(SPANS, &[("result", "exported")], 8.0).await;

    gateway.edit(&table, "");
    assert_eq!(gateway.reload().await.status, 200);
    assert!(gateway.metrics().await.value(current.0, &current.1).is_nan());
}

#[tokio::test]
async fn a_real_prometheus_finds_the_trace_of_a_slow_request() {
    let upstream =
        Upstream::scripted([Reply::new(200, "").after(Duration::from_millis(60)), Reply::new(200, "")]).await;
    let collector = Collector::taking().await;
    let gateway = traced(&upstream, &collector, "").start().await;
    let prometheus = Box::pin(Prometheus::watching(&gateway)).await;
    gateway.send(&order("slow")).await;
    gateway.send(&order("quick")).await;
    let traces = by_trace(collector.until_spans(8).await);
    let mut exemplars = Vec::new();
    eventually("both exemplars", async || {
        let now = crate::support::unix_seconds();
        let target = format!(
            "/api/v1/query_exemplars?query=umavez_request_duration_seconds_bucket&start={}&end={}",
            now - 600,
            now + 600
        );
        let data = prometheus.ask(&target).await;
        exemplars = data
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|series| series["exemplars"].as_array().unwrap().clone())
            .collect();
        exemplars.len() >= 2
    })
    .await;
    for trace in &traces {
        let found = exemplars.iter().find(|exemplar| exemplar["labels"]["trace_id"] == *trace[0].trace);
        let found = found.unwrap_or_else(|| panic!("{} is not in {exemplars:?}", trace[0].trace));
        let took: f64 = found["value"].as_str().unwrap().parse().unwrap();
        let span = Duration::from_nanos(trace[0].ended - trace[0].began).as_secs_f64();
        assert!((took - span).abs() < 0.05, "{took} and {span}");
    }
    // The samples are the same in both formats, and Prometheus reads the counters by their own names.
    prometheus.until("umavez_items_total{verdict=\"first\"} == 2").await;
    prometheus.until("umavez_spans_total{result=\"exported\"} == 8").await;
    let scrape = async |accept: &str| {
        let asked = Delivery::new("GET", "/metrics").header("Accept", accept);
        let answer = crate::support::send(gateway.admin(), &asked).await;
        (answer.header("content-type").unwrap(), answer.text())
    };
    let (kind, open) = scrape("application/openmetrics-text;version=1.0.0,text/plain;q=0.5").await;
    assert_eq!(kind, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert!(open.ends_with("# EOF\n") && !open.contains("\n\n"));
    let (kind, plain) = scrape("text/plain").await;
    assert!(kind.starts_with("text/plain") && !plain.contains(" # {"));
    let series = |text: &str| {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        lines
            .map(|line| line.split(' ').next().unwrap().to_owned())
            .collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(series(&open), series(&plain));
}

#[test]
fn what_is_wrong_with_the_settings_is_told_with_its_mend() {
    let parse = |lines: &str| {
        let text = format!("[upstream]\nurl = \"http://127.0.0.1:1\"\n[traces]\n{lines}\n");
        let env = Environment::from([("AUTH".to_owned(), "a\nb".to_owned())]);
        Config::parse(Path::new("u.toml"), &text, &env)
    };
    for (lines, problem) in [
        ("endpoint = \"127.0.0.1:4318\"", "4:12: traces.endpoint: the URL has no scheme; write"),
        (
            "endpoint = \"http://h:4318/v1/traces\"",
            "4:12: traces.endpoint: ends with /v1/traces, which is added to it; leave that out",
        ),
        ("sample_ratio = 1.5", "4:16: traces.sample_ratio: is no share; write a number from 0 to 1"),
        ("sample_ratio = \"1%\"", "4:16: traces.sample_ratio: is no share; write"),
        ("sample_ratio = nan", "4:16: traces.sample_ratio: is no share; write"),
        ("parent = \"anyon\"", "4:10: traces.parent: \"anyon\" is not known here; did you mean \"anyone\"?"),
        ("paths = \"all\"", "4:9: traces.paths: \"all\" is not known here; write"),
        ("timeout = \"2m\"", "4:11: traces.timeout: 2m is out of bounds; write"),
        ("headers = \"a\"", "4:11: traces.headers: is text, not a table; write such as"),
        ("headers = { \"a b\" = \"x\" }", "traces.headers.a b: no header has such a name; write"),
        ("headers = { a = \"${AUTH}\" }", "traces.headers.a: holds characters that no header may; write"),
        ("headers = { a = \"${GONE}\" }", "traces.headers.a: the environment variable GONE is not set; set"),
        ("headers = { a = { file = \"gone\" } }", "traces.headers.a.file: gone cannot be read"),
        ("service_name = \"\"", "4:16: traces.service_name: is no name of a service; write"),
        ("resource = \"a\"", "4:12: traces.resource: is no list of at most 64 attributes; write"),
        ("ca = \"gone.pem\"", "traces.ca: gone.pem"),
        ("endpont = \"http://h\"", "4:1: traces.endpont: unknown field; did you mean `endpoint`?"),
    ] {
        let Err(errors) = parse(lines) else { panic!("{lines} is taken") };
        assert!(errors.to_string().contains(problem), "{lines}: {errors}");
    }
    let (config, warnings) = parse(
        "endpoint = \"https://h/base\"\nheaders = { Authorization = \"Basic abc\" }\nparent = \"anyone\"\nsample_ratio = 0.25",
    )
    .unwrap();
    let traces = config.traces.unwrap();
    assert_eq!((traces.endpoint.to_string(), traces.sample_ratio), ("https://h/base".to_owned(), 0.25));
    assert!(!format!("{traces:?}").contains("abc"));
    let warned: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    assert!(
        warned
            .iter()
            .any(|line| line.contains("traces.headers.Authorization: the secret stands in this file"))
    );
    assert!(warned.iter().any(|line| line.contains("traces.parent: whoever sends a traceparent decides")));
}
