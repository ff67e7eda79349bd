//! kill -9 at chosen points of an event's life. What many kills and outages under load may do: `storm`.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::support::{
    Connection, Delivery, Gateway, ORDERS, Pair, Reply, Stores, Upstream, eventually, nobody, on_every_store,
    order, send_until_success, try_send,
};

on_every_store! {
    a_claim_that_died_with_its_node_passes_after_the_lease,
    a_claim_that_died_with_its_node_is_parked_where_the_route_holds,
    a_node_killed_before_it_forwarded_loses_no_event,
}

fn route(on_unknown: &str) -> String {
    format!(
        "{ORDERS}timeout = \"1s\"\nlease = \"3s\"\nin_flight_wait = \"200ms\"\non_unknown = \"{on_unknown}\"\n\
         durable_ttl = \"72h\"\n"
    )
}

async fn a_claim_that_died_with_its_node_passes_after_the_lease(pair: Pair) {
    // CLM-4: the process died between claim and completion; the record stayed, and every copy was a "duplicate".
    let stores = Stores::open(pair).await;
    let upstream = Upstream::scripted([Reply::silence(), Reply::new(200, "at last")]).await;
    let mut gateway = Gateway::in_front_of(&upstream).on(&stores).route(&route("retry")).start().await;
    let claimed = Instant::now();
    let send = gateway.sending(&order("c4"));
    upstream.until_received(1).await;
    gateway.kill();
    send.abort();
    gateway.restart().await;
    let early = gateway.send(&order("c4")).await;
    if claimed.elapsed() < Duration::from_millis(2900) {
        assert!(early.asks_for_a_retry(), "{}", early.status);
        assert_eq!(early.verdict(), "in_flight");
    }
    eventually("the lease to lapse", async || gateway.send(&order("c4")).await.status == 200).await;
    assert!(
        claimed.elapsed() >= Duration::from_millis(2900),
        "only after the lease: {:?}",
        claimed.elapsed()
    );
    assert_eq!(upstream.received(), 2);
    assert_eq!(upstream.last().attempt(), 2);
    let copy = gateway.send(&order("c4")).await;
    assert_eq!((copy.text().as_str(), copy.verdict().as_str()), ("at last", "duplicate"));
}

async fn a_claim_that_died_with_its_node_is_parked_where_the_route_holds(pair: Pair) {
    // CLM-4, policy `hold`: what nobody can know is for a person to decide; the payload survived the kill.
    let stores = Stores::open(pair).await;
    let upstream = Upstream::scripted([Reply::silence(), Reply::silence(), Reply::new(200, "by hand")]).await;
    let mut gateway = Gateway::in_front_of(&upstream).on(&stores).route(&route("hold")).start().await;
    let send = gateway.sending(&order("c4"));
    upstream.until_received(1).await;
    gateway.kill();
    send.abort();
    gateway.restart().await;
    eventually("the event to be parked", async || gateway.send(&order("c4")).await.verdict() == "held").await;
    assert_eq!(gateway.send(&order("c4")).await.status, 200);
    assert_eq!(upstream.received(), 1);
    // The node that replays it dies as well: it is held again.
    let admin = gateway.admin();
    let replay = Delivery::new("POST", "/events/replay?key=orders:c4");
    let dying = tokio::spawn(async move { try_send(admin, &replay).await.is_ok() });
    upstream.until_received(2).await;
    gateway.kill();
    assert!(!dying.await.unwrap());
    gateway.restart().await;
    eventually("it to be held again", async || gateway.send(&order("c4")).await.verdict() == "held").await;
    assert_eq!(upstream.received(), 2);
    let replayed = gateway.ask_admin("POST", "/events/replay?key=orders:c4").await;
    assert_eq!(replayed.status, 200, "{}", replayed.text());
    assert_eq!(upstream.last().body, order("c4").body);
    assert_eq!(gateway.send(&order("c4")).await.verdict(), "duplicate");
}

async fn a_node_killed_before_it_forwarded_loses_no_event(pair: Pair) {
    // Killed after the claim and before the forward: nothing reached the app, and the event is not lost.
    let stores = Stores::open(pair).await;
    let clogged = Clogged::listen().await;
    let url = format!("http://{}", clogged.address);
    let mut gateway = Gateway::in_front_of_url(&url).on(&stores).route(&route("retry")).start().await;
    // Of two at once, the one that is told "in flight" proves the other's claim. Connecting is given up after a while,
    // and releases the event: so each round sends two.
    let claimed = async || {
        let mut first = Connection::to(gateway.address()).await;
        first.write(&order("before").to_bytes("hooks.example")).await.unwrap();
        let second = gateway.send(&order("before")).await;
        second.verdict() == "in_flight"
    };
    eventually("the claim", claimed).await;
    gateway.kill();
    let listener = clogged.replace();
    let upstream = Upstream::on(listener, |_, _| Reply::new(200, "here"));
    gateway.restart().await;
    let told = send_until_success(gateway.address(), &order("before")).await;
    assert_eq!(upstream.received(), 1, "{told:?}");
    assert_eq!(gateway.send(&order("before")).await.verdict(), "duplicate");
}

/// A port whose queue of waiting connections is full: who connects hangs, and nothing was sent.
struct Clogged {
    address: SocketAddr,
    socket: socket2::Socket,
    waiting: Vec<tokio::task::JoinHandle<()>>,
}

impl Clogged {
    async fn listen() -> Self {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.set_reuse_address(true).unwrap();
        socket.bind(&nobody().into()).unwrap();
        socket.listen(0).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        let waiting = (0..4)
            .map(|_| {
                tokio::spawn(async move {
                    let held = tokio::net::TcpStream::connect(address).await;
                    std::future::pending::<()>().await;
                    drop(held);
                })
            })
            .collect();
        eventually("the queue to be full", async || {
            let tried =
                tokio::time::timeout(Duration::from_millis(300), tokio::net::TcpStream::connect(address));
            tried.await.is_err()
        })
        .await;
        Self { address, socket, waiting }
    }

    /// Frees the port, and listens there in earnest.
    fn replace(self) -> tokio::net::TcpListener {
        self.waiting.iter().for_each(tokio::task::JoinHandle::abort);
        drop(self.socket);
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(self.address).unwrap();
        socket.listen(64).unwrap()
    }
}
