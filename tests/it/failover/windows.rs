//! Narrow windows in which an event could be lost, doubled or misreported, each closed by a story.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::stores_down::wired;
use crate::support::{
    Delivery, Flags, Gate, Gateway, Kind, ORDERS, Pair, Reply, Script, Scripted, Stores, Upstream,
    eventually, frame, order,
};

/// An app that speaks just enough HTTP/2 to end each stream with these frames, and then closes or not.
struct Http2App {
    address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

impl Http2App {
    async fn ending_with(frames: &'static [u8], closes: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    // SETTINGS of its own, an acknowledgement of the other's, and what the story says.
                    let mut said = [[0, 0, 0, 4, 0, 0, 0, 0, 0], [0, 0, 0, 4, 1, 0, 0, 0, 0]].concat();
                    let mut preface = [0; 24];
                    stream.read_exact(&mut preface).await.ok();
                    // A connection that stays may bring the next request too: it is told the same.
                    while let Ok(id) = until_a_request_ended(&mut stream).await {
                        said.extend_from_slice(&about(id, frames));
                        stream.write_all(&said).await.ok();
                        said.clear();
                        if closes {
                            return;
                        }
                    }
                });
            }
        });
        Self { address, task }
    }
}

impl Drop for Http2App {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Frames that speak of the first stream, speaking of this one.
fn about(id: [u8; 4], frames: &[u8]) -> Vec<u8> {
    let mut frames = frames.to_vec();
    if let Some(stream) = frames.get_mut(5..9).filter(|stream| *stream == [0, 0, 0, 1]) {
        stream.copy_from_slice(&id);
    }
    frames
}

/// Reads until the end of the next request; its stream.
async fn until_a_request_ended(stream: &mut TcpStream) -> std::io::Result<[u8; 4]> {
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const END_STREAM: u8 = 1;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        stream.read_exact(&mut payload).await?;
        if (head[3] == DATA || head[3] == HEADERS) && head[4] & END_STREAM != 0 {
            return Ok([head[5], head[6], head[7], head[8]]);
        }
    }
}

#[tokio::test]
async fn a_stream_that_the_app_refused_was_not_processed() {
    // RFC 9113, 8.7: the event is free for its next copy at once, also where the route holds what nobody knows.
    const REFUSED_STREAM: &[u8] = &[0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 7];
    const GOAWAY_BELOW_OURS: &[u8] = &[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for (frames, closes) in [(REFUSED_STREAM, false), (GOAWAY_BELOW_OURS, false), (GOAWAY_BELOW_OURS, true)] {
        let app = Http2App::ending_with(frames, closes).await;
        let gateway = holding(&app).await;
        for _ in 0..2 {
            let answer = gateway.send(&order("refused")).await;
            assert_eq!((answer.status, answer.verdict().as_str()), (502, "first"), "{frames:?}");
        }
        let never_sent = [("route", "orders"), ("outcome", "never_sent")];
        assert_eq!(gateway.metrics().await.value("umavez_outcomes_total", &never_sent), 2.0);
    }
}

#[tokio::test]
async fn a_stream_that_the_app_refused_once_is_opened_again() {
    // An app that went away in good order (GOAWAY) cost each request that met it a 502, though it had said that it had not
    // processed them, and its successor was there.
    let refused: Script = |id| frame(Kind::Reset, Flags::None, id, &7_u32.to_be_bytes());
    let leaving: Script = |_| frame(Kind::GoAway, Flags::None, 0, &[0; 8]);
    let app = Scripted::start().await;
    let gateway = Gateway::in_front_of_url(&app.url()).route(ORDERS).start().await;
    let stories = [("refused", &[refused, refused][..]), ("left", &[leaving]), ("both", &[refused, leaving])];
    for (id, scripts) in stories {
        scripts.iter().for_each(|script| app.next(*script));
        let answer = gateway.send(&order(id)).await;
        assert_eq!((answer.status, answer.verdict().as_str()), (200, "first"), "{id}");
        app.next(leaving);
        let passed = gateway.send(&Delivery::new("GET", "/elsewhere")).await;
        assert_eq!(passed.status, 200, "{id}");
    }
    let committed = [("route", "orders"), ("settlement", "commit")];
    assert_eq!(gateway.metrics().await.value("umavez_settlements_total", &committed), 3.0);
}

#[tokio::test]
async fn a_stream_that_the_app_gave_up_may_have_been_processed() {
    const INTERNAL_ERROR: &[u8] = &[0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 2];
    const GOAWAY_AFTER_OURS: &[u8] = &[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    for (frames, closes) in [(INTERNAL_ERROR, false), (GOAWAY_AFTER_OURS, true), (&[][..], true)] {
        let app = Http2App::ending_with(frames, closes).await;
        let gateway = holding(&app).await;
        assert_eq!(gateway.send(&order("unknown")).await.verdict(), "held", "{frames:?}");
        let unknown = [("route", "orders"), ("outcome", "unknown")];
        assert_eq!(gateway.metrics().await.value("umavez_outcomes_total", &unknown), 1.0);
    }
}

async fn holding(app: &Http2App) -> Gateway {
    let route = format!("{ORDERS}timeout = \"10s\"\non_unknown = \"hold\"\n");
    Gateway::in_front_of_url(&format!("h2c://{}", app.address)).route(&route).start().await
}

#[tokio::test]
async fn a_settlement_that_lands_after_its_lease_is_counted_though_it_waited_in_the_background() {
    let stores = Stores::open(Pair::MemoryPostgres).await;
    let gate = Gate::closed();
    let upstream =
        Upstream::scripted([Reply::new(200, "first").behind(&gate), Reply::new(200, "second")]).await;
    let route = format!("{ORDERS}timeout = \"2s\"\nlease = \"3s\"\nin_flight_wait = \"100ms\"\n");
    let (wire, toml) = wired(&stores, "1s").await;
    let cut_off = Gateway::in_front_of(&upstream).stores_toml(&toml).route(&route).start().await;
    let other = Gateway::in_front_of(&upstream).on(&stores).route(&route).start().await;
    let first = cut_off.sending(&order("late"));
    upstream.until_received(1).await;
    wire.cut();
    gate.open();
    assert_eq!(first.await.unwrap().text(), "first");
    cut_off.until_metric("umavez_unsettled", &[], 1.0).await;
    eventually("the lease to lapse", async || other.send(&order("late")).await.text() == "second").await;
    wire.resume();
    cut_off.until_metric("umavez_lease_lost_total", &[("route", "orders")], 1.0).await;
    cut_off.until_metric("umavez_unsettled", &[], 0.0).await;
    assert_eq!(other.send(&order("late")).await.text(), "second", "the late owner changed nothing");
}

#[tokio::test]
async fn a_copy_that_waited_and_differs_leaves_its_fingerprint() {
    let stores = Stores::open(Pair::MemoryPostgres).await;
    let gate = Gate::closed();
    let upstream = Upstream::scripted([Reply::new(200, "done").behind(&gate)]).await;
    let route = format!("{ORDERS}in_flight_wait = \"30s\"\n");
    let one = Gateway::in_front_of(&upstream).on(&stores).route(&route).start().await;
    let two = Gateway::in_front_of(&upstream).on(&stores).route(&route).start().await;
    let body = |id: &str, n: u32| Delivery::json("/hooks", format!(r#"{{"id":"{id}","n":{n}}}"#));
    let firsts = [one.sending(&body("here", 1)), one.sending(&body("there", 1))];
    upstream.until_received(2).await;
    let copies = [one.sending(&body("here", 2)), two.sending(&body("there", 2))];
    tokio::time::sleep(Duration::from_millis(300)).await;
    gate.open();
    for sent in firsts.into_iter().chain(copies) {
        assert_eq!(sent.await.unwrap().text(), "done");
    }
    for node in [&one, &two] {
        let metrics = node.metrics().await;
        assert_eq!(metrics.value("umavez_conflicts_total", &[]), 1.0);
        assert_eq!(metrics.value("umavez_duplicates_total", &[("layer", "waited")]), 1.0);
    }
    eventually("both copies to be noted", async || {
        stores.sql("select count(*) from umavez_event where conflicting <> fingerprint") == "2"
    })
    .await;
}

#[tokio::test]
async fn what_a_person_settles_after_its_window_is_remembered_for_another_one() {
    // A held event waits for its person for ever; its copies come from then on as they always may.
    let stores = Stores::open(Pair::MemoryPostgres).await;
    let upstream = Upstream::scripted([Reply::hang_up(), Reply::hang_up(), Reply::new(200, "by hand")]).await;
    let route = format!("{ORDERS}on_unknown = \"hold\"\nhot_ttl = \"1h\"\ndurable_ttl = \"1h\"\n");
    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(&route).start().await;
    for id in ["replayed", "marked"] {
        assert_eq!(gateway.send(&order(id)).await.verdict(), "held");
    }
    stores.sql("update umavez_event set first_claimed = first_claimed - 8e6, expires = expires - 8e6");
    let replayed = gateway.ask_admin("POST", "/events/replay?key=orders:replayed").await;
    assert_eq!(replayed.status, 200, "{}", replayed.text());
    let marked = gateway.ask_admin("POST", "/events/mark-done?key=orders:marked").await;
    assert_eq!(marked.status, 200, "{}", marked.text());
    assert_eq!(upstream.received(), 3);
    for id in ["replayed", "marked"] {
        assert_eq!(gateway.send(&order(id)).await.verdict(), "duplicate", "{id}");
    }
    assert_eq!(upstream.received(), 3);
}

/// An event that a person settled after its hot window was as old as before to the hot store, which was told nothing of
/// it: each of its copies asked the durable store.
#[tokio::test]
async fn what_a_person_settles_after_its_window_is_known_to_the_hot_store() {
    let stores = Stores::open(Pair::RedisPostgres).await;
    let upstream = Upstream::scripted([Reply::hang_up(), Reply::hang_up(), Reply::new(200, "by hand")]).await;
    let route = format!("{ORDERS}on_unknown = \"hold\"\nhot_ttl = \"1h\"\ndurable_ttl = \"5h\"\n");
    let gateway = Gateway::in_front_of(&upstream).on(&stores).route(&route).start().await;
    for id in ["replayed", "marked"] {
        assert_eq!(gateway.send(&order(id)).await.verdict(), "held");
    }
    stores.sql("update umavez_event set first_claimed = first_claimed - 8e6, expires = expires - 8e6");
    for (change, id) in [("replay", "replayed"), ("mark-done", "marked")] {
        let changed = gateway.ask_admin("POST", &format!("/events/{change}?key=orders:{id}")).await;
        assert_eq!(changed.status, 200, "{}", changed.text());
        let hot = async || gateway.metrics().await.value("umavez_duplicates_total", &[("layer", "hot")]);
        // Redis keeps the word of a change for a while, and learns of no end meanwhile: unless it has forgotten that.
        stores.redis().flush().await;
        assert_eq!(gateway.send(&order(id)).await.verdict(), "duplicate", "{id}");
        let before = hot().await;
        assert_eq!(gateway.send(&order(id)).await.verdict(), "duplicate", "{id}");
        assert_eq!(hot().await, before + 1.0, "{id}");
    }
    assert_eq!(upstream.received(), 3);
}
