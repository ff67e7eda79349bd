//! When nobody can know whether the app acted: in flight, timed out, broken off.

use std::time::Duration;

use crate::support::{
    Connection, Delivery, Gate, Gateway, Line, ORDERS, Pair, Reply, Stores, Upstream, Wire, eventually,
    nobody, on_every_store, order,
};

on_every_store! {
    a_copy_in_flight_is_never_told_success_before_the_first_succeeded,
    a_waiting_copy_shares_the_success_of_the_first,
    a_hang_up_of_the_sender_loses_nothing,
    a_timed_out_event_is_forwarded_again_where_the_route_retries,
    a_timed_out_event_is_parked_where_the_route_holds,
    a_replay_that_fails_keeps_the_event_held,
    an_app_that_broke_off_its_answer_did_not_succeed,
    an_app_that_is_not_there_releases_the_event,
}

/// [`ORDERS`] with short times.
fn short(more: &str) -> String {
    format!("{ORDERS}timeout = \"1s\"\nlease = \"3s\"\nin_flight_wait = \"500ms\"\n{more}")
}

async fn a_copy_in_flight_is_never_told_success_before_the_first_succeeded(pair: Pair) {
    // CLM-2: a copy that arrived during processing was told 200; then the first failed, and nobody retried.
    let stores = Stores::open(pair).await;
    let gate = Gate::closed();
    let upstream = Upstream::scripted([Reply::new(500, "no").behind(&gate), Reply::new(200, "yes")]).await;
    let route = format!("{ORDERS}in_flight_wait = \"300ms\"\n");
    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(&route).start().await;
    let first = gateway.sending(&order("c2"));
    upstream.until_received(1).await;
    let impatient = gateway.send(&order("c2")).await;
    assert!(impatient.asks_for_a_retry(), "{}", impatient.status);
    assert_eq!(impatient.verdict(), "in_flight");
    let waiting = gateway.sending(&order("c2"));
    gate.open();
    assert_eq!(first.await.unwrap().status, 500);
    // It came before the failure (told to come again) or after it (forwarded): never a success that was not one.
    let waiting = waiting.await.unwrap();
    assert!(waiting.asks_for_a_retry() || waiting.text() == "yes", "{}", waiting.status);
    let last = gateway.send(&order("c2")).await;
    assert_eq!((last.status, last.text().as_str()), (200, "yes"));
    assert_eq!(upstream.received(), 2);
}

async fn a_waiting_copy_shares_the_success_of_the_first(pair: Pair) {
    // A copy that arrives while the first is with the app waits for it, and is answered as a duplicate.
    let stores = Stores::open(pair).await;
    let gate = Gate::closed();
    let upstream = Upstream::scripted([Reply::new(201, "made").behind(&gate)]).await;
    let route = format!("{ORDERS}in_flight_wait = \"30s\"\n");
    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(&route).start().await;
    let first = gateway.sending(&order("w1"));
    upstream.until_received(1).await;
    let copies: Vec<_> = (0..5).map(|_| gateway.sending(&order("w1"))).collect();
    // One that is read only then is a plain duplicate, and the story holds all the same.
    gateway.until_metric("umavez_connections", &[("listener", "public")], 6.0).await;
    gate.open();
    assert_eq!(first.await.unwrap().verdict(), "first");
    for copy in copies {
        let copy = copy.await.unwrap();
        assert_eq!((copy.status, copy.text().as_str()), (201, "made"));
        assert_eq!(copy.verdict(), "duplicate");
        assert!(copy.is_replayed());
    }
    assert_eq!(upstream.received(), 1);
    assert_eq!(gateway.metrics().await.value("umavez_duplicates_total", &[("route", "orders")]), 5.0);
}

async fn a_hang_up_of_the_sender_loses_nothing(pair: Pair) {
    // CLM-6: the sender's disconnect cancelled the bookkeeping, though the work was done; the retry ran it again.
    let stores = Stores::open(pair).await;
    let gate = Gate::closed();
    let upstream = Upstream::scripted([Reply::new(200, "done").behind(&gate)]).await;
    let route = format!("{ORDERS}in_flight_wait = \"200ms\"\n");
    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(&route).start().await;
    let mut impatient = Connection::to(gateway.address()).await;
    impatient.write(&order("c6").to_bytes("hooks.example")).await.unwrap();
    upstream.until_received(1).await;
    drop(impatient);
    let early = gateway.send(&order("c6")).await;
    assert!(early.asks_for_a_retry(), "{}", early.status);
    gate.open();
    upstream.until_answered(1).await;
    gateway.until_metric("umavez_settlements_total", &[("settlement", "commit")], 1.0).await;
    let late = gateway.send(&order("c6")).await;
    assert_eq!((late.status, late.text().as_str(), late.verdict().as_str()), (200, "done", "duplicate"));
    assert_eq!(upstream.received(), 1);
}

async fn a_timed_out_event_is_forwarded_again_where_the_route_retries(pair: Pair) {
    // CLM-12: a timeout is ambiguous. Policy `retry`: 504, and the next copy is forwarded.
    let stores = Stores::open(pair).await;
    let slow = Reply::new(200, "late").after(Duration::from_secs(3));
    let upstream = Upstream::scripted([slow, Reply::new(200, "in time")]).await;
    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(&short("")).start().await;
    assert_eq!(gateway.send(&order("c12")).await.status, 504);
    let second = gateway.send(&order("c12")).await;
    assert_eq!((second.status, second.text().as_str()), (200, "in time"));
    upstream.until_answered(2).await;
    let other = gateway.send(&order("another")).await;
    assert_eq!(other.text(), "in time", "a late answer is not taken for another request's");
    assert_eq!(gateway.send(&order("c12")).await.text(), "in time");
    assert_eq!(upstream.received(), 3);
    let unknown = [("route", "orders"), ("outcome", "unknown")];
    assert_eq!(gateway.metrics().await.value("umavez_outcomes_total", &unknown), 1.0);
}

async fn a_timed_out_event_is_parked_where_the_route_holds(pair: Pair) {
    // CLM-12, policy `hold`: the event is stored with its payload, alarmed, and waits for a person.
    let stores = Stores::open(pair).await;
    let upstream = Upstream::scripted([Reply::silence(), Reply::new(200, "replayed by a person")]).await;
    let route = short("on_unknown = \"hold\"\n");
    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(&route).start().await;
    for copy in 0..3 {
        let answer = gateway.send(&order("money")).await;
        assert_eq!((answer.status, answer.verdict().as_str()), (200, "held"), "copy {copy}");
    }
    assert_eq!(upstream.received(), 1);
    if pair == Pair::Embedded {
        gateway.until_metric("umavez_held", &[], 1.0).await;
    }
    let held = gateway.ask_admin("GET", "/events/held?limit=10").await.json();
    assert_eq!(held["held"][0]["key"], "orders:money");

    let replayed = gateway.ask_admin("POST", "/events/replay?key=orders:money").await;
    assert_eq!(replayed.status, 200, "{}", replayed.text());
    assert_eq!(upstream.received(), 2);
    assert_eq!(upstream.last().body, order("money").body);
    let copy = gateway.send(&order("money")).await;
    assert_eq!((copy.status, copy.verdict().as_str()), (200, "duplicate"));
    if pair == Pair::Embedded {
        // The gauge follows within seconds; once is enough to wait for it.
        gateway.until_metric("umavez_held", &[], 0.0).await;
    }
}

async fn a_replay_that_fails_keeps_the_event_held(pair: Pair) {
    // Its sender was told 200 and won't come again: a refusal, an app that is away or a second person must not lose it.
    let stores = Stores::open(pair).await;
    let gate = Gate::closed();
    let upstream = Upstream::scripted([
        Reply::hang_up(),
        Reply::new(500, "not yet"),
        Reply::hang_up(),
        Reply::new(200, "now").behind(&gate),
    ])
    .await;
    let route = short("on_unknown = \"hold\"\n").replace("\"1s\"", "\"20s\"").replace("\"3s\"", "\"40s\"");
    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(&route).start().await;
    let replay = async || gateway.ask_admin("POST", "/events/replay?key=orders:kept").await;
    assert_eq!(gateway.send(&order("kept")).await.verdict(), "held");
    for (status, attempt) in [(500, 2), (502, 3)] {
        let failed = replay().await.json();
        assert_eq!((&failed["answer"], &failed["verdict"]), (&status.into(), &"held".into()), "{failed}");
        assert_eq!(upstream.last().attempt(), attempt);
        let copy = gateway.send(&order("kept")).await;
        assert_eq!((copy.status, copy.verdict().as_str()), (200, "held"));
    }
    // Two persons at once: one sends it.
    let admin = gateway.admin();
    let first = tokio::spawn(async move {
        crate::support::send(admin, &Delivery::new("POST", "/events/replay?key=orders:kept")).await
    });
    upstream.until_received(4).await;
    assert_eq!(replay().await.status, 409);
    gate.open();
    assert_eq!(first.await.unwrap().json()["verdict"], "first");
    assert_eq!(gateway.send(&order("kept")).await.text(), "now");
    assert_eq!(upstream.received(), 4);
    let actions = gateway.ask_admin("GET", "/actions").await.json();
    assert_eq!(actions["actions"][0]["action"], "replay", "{actions}");
}

#[tokio::test]
async fn a_replay_is_not_stopped_by_a_copy_that_comes_just_then() {
    // A copy that came between a replay's claim and its forward sat at the event's place on this node: the replay waited
    // for the copy, the copy for the replay's lease, and nothing was sent. A slow Redis makes that moment long.
    let stores = Stores::open(Pair::RedisSqlite).await;
    let wire = Wire::to(([127, 0, 0, 1], stores.redis().port()).into()).await;
    let gate = Gate::closed();
    let upstream = Upstream::scripted([Reply::hang_up(), Reply::new(200, "at last").behind(&gate)]).await;
    let route = "on_unknown = \"hold\"\nin_flight_wait = \"20s\"\n";
    let gateway = Gateway::in_front_of(&upstream)
        .stores_toml(&format!("[hot]\nurl = \"redis://{}\"\ntimeout = \"4s\"", wire.address()))
        .route(&format!("{ORDERS}{route}"))
        .start()
        .await;
    assert_eq!(gateway.send(&order("slow")).await.verdict(), "held");
    wire.set(Line::Slow(Duration::from_millis(300)));
    let three = || (0..3).map(|_| gateway.sending(&order("slow")));
    // Some before its claim, some in between, some while the app has it.
    let mut copies: Vec<_> = three().collect();
    let admin = gateway.admin();
    let replay = tokio::spawn(async move {
        crate::support::send(admin, &Delivery::new("POST", "/events/replay?key=orders:slow")).await
    });
    eventually("its claim", async || {
        gateway.ask_admin("GET", "/events?key=orders:slow").await.json()["state"] == "processing"
    })
    .await;
    copies.extend(three());
    upstream.until_received(2).await;
    copies.extend(three());
    let open = [("listener", "public")];
    eventually("the last ones", async || gateway.metrics().await.value("umavez_connections", &open) >= 3.0)
        .await;
    gate.open();
    let replay = replay.await.unwrap().json();
    assert_eq!((&replay["answer"], &replay["verdict"]), (&200.into(), &"first".into()), "{replay}");
    for copy in copies {
        let copy = copy.await.unwrap();
        assert!(
            matches!(copy.verdict().as_str(), "held" | "duplicate"),
            "{} {}",
            copy.status,
            copy.verdict()
        );
        assert_eq!(copy.status, 200);
    }
    assert_eq!(upstream.received(), 2);
}

async fn an_app_that_broke_off_its_answer_did_not_succeed(pair: Pair) {
    // RSP-4: the app died in the middle of its answer; half a body passed as a complete 200 and was stored.
    let stores = Stores::open(pair).await;
    let half =
        Reply::raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n0123456789012345678901234567890123456789");
    let chunks = Reply::raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
    let upstream =
        Upstream::scripted([half.closing(), Reply::new(200, "a"), chunks.closing(), Reply::new(200, "b")])
            .await;
    let gateway = Gateway::in_front_of(&upstream).on(&stores).start().await;
    for (id, text) in [("half", "a"), ("chunks", "b")] {
        let broken = gateway.send(&order(id)).await;
        assert!(broken.status == 502 || !broken.complete, "{}", broken.status);
        let retry = gateway.send(&order(id)).await;
        assert_eq!((retry.status, retry.text().as_str(), retry.verdict().as_str()), (200, text, "first"));
        assert_eq!(gateway.send(&order(id)).await.text(), text);
    }
    assert_eq!(upstream.received(), 4);
}

async fn an_app_that_is_not_there_releases_the_event(pair: Pair) {
    // Provably nothing was sent: 502, released, and the next copy passes, on a route that holds as well.
    let stores = Stores::open(pair).await;
    let address = nobody();
    let route = short("on_unknown = \"hold\"\n");
    let gateway =
        Gateway::in_front_of_url(&format!("http://{address}")).on(&stores).route(&route).start().await;
    assert_eq!(gateway.send(&order("early")).await.status, 502);
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    let upstream = Upstream::on(listener, |_, _| Reply::new(200, "here"));
    assert_eq!(gateway.send(&order("early")).await.text(), "here");
    assert_eq!(upstream.received(), 1);
    let metrics = gateway.metrics().await;
    assert_eq!(metrics.value("umavez_outcomes_total", &[("outcome", "never_sent")]), 1.0);
    assert_eq!(metrics.value("umavez_settlements_total", &[("settlement", "release")]), 1.0);
}

#[tokio::test]
async fn a_post_is_never_sent_twice_by_the_pool() {
    // PRX-1: a reused connection was closed by the app; the POST was sent again and ran twice.
    let upstream =
        Upstream::scripted([Reply::new(200, "one"), Reply::hang_up(), Reply::new(200, "two")]).await;
    // One thread: so that the second request surely meets the first one's connection.
    let gateway = Gateway::in_front_of(&upstream).listen("workers = 1").start().await;
    assert_eq!(gateway.send(&order("p1")).await.text(), "one");
    assert_eq!(gateway.send(&order("p2")).await.status, 502);
    assert_eq!(upstream.received(), 2, "sent once");
    let requests = upstream.requests();
    assert_eq!(requests[0].connection, requests[1].connection, "the story needs a reused connection");
    assert_eq!(gateway.send(&order("p2")).await.text(), "two", "released");
}

#[tokio::test]
async fn a_route_may_answer_409_while_the_first_copy_is_in_flight() {
    let gates = [Gate::closed(), Gate::closed()];
    let behind = |gate: &Gate| Reply::new(200, "").behind(gate);
    let upstream = Upstream::scripted([behind(&gates[0]), behind(&gates[1])]).await;
    let short = "in_flight_wait = \"100ms\"\nin_flight_answer = 409\n";
    // Amazon SNS never sends again after a 4xx: it was told 409 all the same, and lost the event with the first copy.
    let sns = format!("[[route]]\nname = \"sns\"\npath = \"/sns\"\nprovider = \"aws-sns\"\n{short}");
    let routes = format!("{ORDERS}{short}{sns}");
    let gateway = Gateway::in_front_of(&upstream).route(&routes).start().await;
    let notification = Delivery::json("/sns", r#"{"Type":"Notification","TopicArn":"t","MessageId":"m"}"#);
    for (number, (event, status)) in [(order("x"), 409), (notification, 503)].into_iter().enumerate() {
        let first = gateway.sending(&event);
        upstream.until_received(number + 1).await;
        let copy = gateway.send(&event).await;
        assert_eq!((copy.status, copy.verdict().as_str()), (status, "in_flight"));
        assert!(copy.header("retry-after").is_some());
        gates[number].open();
        assert_eq!(first.await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn a_person_marks_a_held_event_done_or_lets_the_next_copy_pass() {
    let upstream = Upstream::scripted([Reply::hang_up(), Reply::hang_up(), Reply::new(200, "again")]).await;
    let gateway = Gateway::in_front_of(&upstream).route(&short("on_unknown = \"hold\"\n")).start().await;
    for id in ["paid", "unpaid"] {
        assert_eq!(gateway.send(&order(id)).await.verdict(), "held");
    }
    let done = gateway.ask_admin("POST", "/events/mark-done?key=orders:paid").await.json();
    assert_eq!((&done["before"], &done["after"]), (&"held".into(), &"done".into()), "{done}");
    let released = gateway.ask_admin("POST", "/events/release?key=orders:unpaid").await.json();
    assert_eq!((&released["before"], &released["after"]), (&"held".into(), &"released".into()), "{released}");
    let copy = gateway.send(&order("paid")).await;
    assert_eq!((copy.status, copy.verdict().as_str()), (200, "duplicate"));
    let copy = gateway.send(&order("unpaid")).await;
    assert_eq!((copy.text().as_str(), copy.verdict().as_str()), ("again", "first"));
    assert_eq!(upstream.received(), 3);
}

#[tokio::test]
async fn a_switch_of_protocols_that_nobody_asked_for_is_no_answer() {
    // The app's 101 to a POST was passed on as its final answer.
    let switch =
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello";
    let upstream = Upstream::scripted([Reply::raw(switch), Reply::new(200, "done")]).await;
    let gateway = Gateway::in_front_of(&upstream).route(&short("")).start().await;
    let answer = gateway.send(&order("switch")).await;
    assert_eq!((answer.status, answer.verdict().as_str()), (502, "first"), "{}", answer.text());
    let unknown = [("route", "orders"), ("outcome", "unknown")];
    assert_eq!(gateway.metrics().await.value("umavez_outcomes_total", &unknown), 1.0);
    let retry = gateway.send(&order("switch")).await;
    assert_eq!((retry.status, retry.text().as_str(), retry.verdict().as_str()), (200, "done", "first"));
    assert_eq!(upstream.last().attempt(), 2);

    let upstream = Upstream::scripted([Reply::raw(switch)]).await;
    let holds = short("on_unknown = \"hold\"\n");
    let gateway = Gateway::in_front_of(&upstream).route(&holds).start().await;
    assert_eq!(gateway.send(&order("switch")).await.verdict(), "held");
}

/// An answer with so many headers.
fn with_headers(count: usize) -> Reply {
    let headers: Vec<(String, &str)> = (0..count).map(|n| (format!("x-{n}"), "1")).collect();
    let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    Reply::with_headers(200, &headers, b"done")
}

#[tokio::test]
async fn an_answer_with_many_headers_is_the_apps_answer() {
    // An answer with more than 100 headers couldn't be read: 502 after the app had done its work, and again at each retry.
    let upstream = Upstream::scripted([with_headers(150), with_headers(1100)]).await;
    let holds = short("on_unknown = \"hold\"\n");
    let gateway = Gateway::in_front_of(&upstream).route(&holds).start().await;
    let answer = gateway.send(&order("many")).await;
    assert_eq!((answer.status, answer.text().as_str(), answer.verdict().as_str()), (200, "done", "first"));
    assert_eq!(answer.headers_named("x-149"), ["1"]);
    assert_eq!(gateway.send(&order("many")).await.verdict(), "duplicate");
    // One that can't be read still says nothing of what the app did.
    assert_eq!(gateway.send(&order("more")).await.verdict(), "held");
    let unknown = [("route", "orders"), ("outcome", "unknown")];
    assert_eq!(gateway.metrics().await.value("umavez_outcomes_total", &unknown), 1.0);
    assert_eq!(upstream.received(), 2);
}
