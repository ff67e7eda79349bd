//! kill -9 at chosen points and at random under load, with Redis flushed and Postgres restarted in between:
//! the app's books must balance. Every event at least once; twice only where a kill left the outcome unknown on a
//! route that retries; never twice on a route that holds.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::support::{
    Connection, Delivery, Gateway, ORDERS, Pair, Reply, Stores, Upstream, eventually, on_every_store, order,
    send_until_success, try_send,
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
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
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

#[tokio::test]
async fn random_kills_on_a_route_that_retries_lose_nothing_and_double_only_what_they_made_unknown() {
    storm(Pair::RedisPostgres, "retry").await;
}

#[tokio::test]
async fn random_kills_on_a_route_that_holds_double_nothing() {
    storm(Pair::RedisPostgres, "hold").await;
}

#[tokio::test]
async fn random_kills_of_the_embedded_gateway_lose_nothing() {
    storm(Pair::Embedded, "retry").await;
}

#[tokio::test]
async fn random_kills_of_the_embedded_gateway_double_nothing_where_the_route_holds() {
    storm(Pair::Embedded, "hold").await;
}

const WORKERS: usize = 8;
const DISTURBANCES: usize = 8;

/// Senders that try again until 2xx, nodes that die, stores that forget and restart; then the app's books.
async fn storm(pair: Pair, on_unknown: &str) {
    let mut stores = Stores::open_own(pair).await;
    let upstream = Upstream::deciding(|_, nth| {
        let pause = [0, 3, 15, 40][nth % 4];
        Reply::new(200, "done").after(Duration::from_millis(pause))
    })
    .await;
    let start = || Gateway::in_front_of(&upstream).on(&stores).route(&route(on_unknown)).start();
    let mut nodes = vec![start().await];
    if stores.has_postgres() {
        nodes.push(start().await);
    }
    let addresses: Vec<SocketAddr> = nodes.iter().map(Gateway::address).collect();
    let over = tokio_util::sync::CancellationToken::new();
    let workers: Vec<_> =
        (0..WORKERS).map(|worker| tokio::spawn(work(worker, addresses.clone(), over.clone()))).collect();

    let mut kills = 0;
    for disturbance in 0..DISTURBANCES {
        tokio::time::sleep(Duration::from_millis(rand::random_range(150..500))).await;
        match disturbance % 4 {
            1 if stores.has_redis() => stores.redis().flush().await,
            3 if stores.has_postgres() => stores = restart_postgres(stores).await,
            0..=3 => {
                kills += 1;
                let chosen = rand::random_range(0..nodes.len());
                nodes[chosen].restart().await;
            }
            4.. => unreachable!("a remainder of four"),
        }
    }
    over.cancel();
    let mut sent: Vec<String> = Vec::new();
    for worker in workers {
        sent.extend(worker.await.unwrap());
    }
    balance(&nodes[0], &upstream, &sent, on_unknown, kills).await;
    drop(nodes);
    drop(stores);
}

async fn restart_postgres(mut stores: Stores) -> Stores {
    let restart = move || {
        let postgres = stores.postgres_mut();
        postgres.kill();
        postgres.restart();
        stores
    };
    tokio::task::spawn_blocking(restart).await.unwrap()
}

/// Sends event after event, each to a node of its own choice at every try, until the storm is over.
async fn work(
    worker: usize,
    nodes: Vec<SocketAddr>,
    over: tokio_util::sync::CancellationToken,
) -> Vec<String> {
    let mut sent = Vec::new();
    while !over.is_cancelled() {
        let id = format!("{worker}-{}", sent.len());
        let node = nodes[rand::random_range(0..nodes.len())];
        send_until_success(node, &order(&id)).await;
        if rand::random_bool(0.2) {
            // A copy after the success, maybe at another node.
            let node = nodes[rand::random_range(0..nodes.len())];
            send_until_success(node, &order(&id)).await;
        }
        sent.push(id);
    }
    sent
}

async fn balance(gateway: &Gateway, upstream: &Upstream, sent: &[String], on_unknown: &str, kills: usize) {
    assert!(sent.len() >= WORKERS, "the storm carried {} events", sent.len());
    let mut books: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for request in upstream.requests() {
        let id = request.json()["id"].as_str().unwrap().to_owned();
        books.entry(id).or_default().push(request.attempt());
    }
    let mut twice = 0;
    for id in sent {
        let attempts = books.get(id).cloned().unwrap_or_default();
        if attempts.is_empty() {
            // Never forwarded, yet told 2xx: only if it is parked, with its payload.
            let event = gateway.ask_admin("GET", &format!("/events?key=orders:{id}")).await;
            assert_eq!((on_unknown, event.json()["state"].as_str()), ("hold", Some("held")), "{id} is lost");
        }
        if attempts.len() > 1 {
            twice += 1;
            assert_eq!(on_unknown, "retry", "{id} was forwarded {attempts:?} on a route that holds");
            assert!(attempts.windows(2).all(|pair| pair[0] < pair[1]), "{id}: {attempts:?} are no retries");
        }
    }
    // Each kill makes at most one event of each sender unknown.
    assert!(twice <= kills * WORKERS, "{twice} events twice after {kills} kills");
}
