//! Random trouble under load: nodes killed and stopped, Redis flushed, killed and stalled, Postgres restarted, its
//! wire cut and its acknowledgements lost. Then the app's books must balance: every event at least once; twice only
//! where trouble left the outcome unknown on a route that retries; never twice on a route that holds.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use rand::seq::SliceRandom as _;
use tokio_util::sync::CancellationToken;

use crate::support::{
    Delivery, Gateway, Line, ORDERS, Pair, Reply, Stores, Upstream, Wire, deliver, durable_toml, forwards,
    hot_toml, near, order,
};

#[tokio::test]
async fn on_a_route_that_retries_nothing_is_lost_and_twice_is_only_what_trouble_made_unknown() {
    storm(Pair::RedisPostgres, "retry").await;
}

#[tokio::test]
async fn on_a_route_that_holds_nothing_is_lost_and_nothing_happens_twice() {
    storm(Pair::RedisPostgres, "hold").await;
}

#[tokio::test]
async fn the_embedded_gateway_loses_nothing() {
    storm(Pair::Embedded, "retry").await;
}

#[tokio::test]
async fn the_embedded_gateway_does_nothing_twice_where_the_route_holds() {
    storm(Pair::Embedded, "hold").await;
}

const WORKERS: usize = 8;
/// How often each kind of trouble comes.
const ROUNDS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    Kill,
    KillAll,
    /// SIGTERM: what is under way is finished.
    Stop,
    FlushRedis,
    RestartRedis,
    StallRedis,
    RestartPostgres,
    CutPostgres,
    /// What the gateway asks is done, and it never hears of it.
    LoseAcknowledgements,
}

impl Trouble {
    fn all(pair: Pair) -> &'static [Self] {
        match pair {
            Pair::RedisPostgres => &[
                Self::Kill,
                Self::KillAll,
                Self::Stop,
                Self::FlushRedis,
                Self::RestartRedis,
                Self::StallRedis,
                Self::RestartPostgres,
                Self::CutPostgres,
                Self::LoseAcknowledgements,
            ],
            Pair::Embedded | Pair::MemoryPostgres | Pair::RedisSqlite => {
                &[Self::Kill, Self::Stop, Self::KillAll, Self::Kill]
            }
        }
    }

    /// Whether it may leave the outcome of what was under way unknown.
    fn unsettles(self) -> bool {
        match self {
            Self::Kill
            | Self::KillAll
            | Self::RestartPostgres
            | Self::CutPostgres
            | Self::LoseAcknowledgements => true,
            Self::Stop | Self::FlushRedis | Self::RestartRedis | Self::StallRedis => false,
        }
    }
}

/// Everything that trouble can come to.
struct World {
    stores: Stores,
    redis: Option<Wire>,
    postgres: Option<Wire>,
    nodes: Vec<Gateway>,
}

impl World {
    async fn start(pair: Pair, upstream: &Upstream, on_unknown: &str) -> Self {
        let stores = Stores::open_own(pair).await;
        let route = format!(
            "{ORDERS}timeout = \"1s\"\nlease = \"3s\"\nin_flight_wait = \"200ms\"\n\
             on_unknown = \"{on_unknown}\"\n"
        );
        let mut world = Self { stores, redis: None, postgres: None, nodes: Vec::new() };
        let mut toml = String::new();
        if world.stores.has_redis() {
            let wire = wire_to(&world.stores.redis_url()).await;
            toml.push_str(&hot_toml(&format!("redis://{}", wire.address())));
            world.redis = Some(wire);
        }
        if world.stores.has_postgres() {
            let url = world.stores.postgres_url();
            let wire = wire_to(&url).await;
            let (_, database) = url.rsplit_once('/').unwrap();
            toml.push_str(&durable_toml(&format!("postgres://umavez@{}/{database}", wire.address())));
            toml.push_str("timeout = \"1s\"\n");
            world.postgres = Some(wire);
        }
        for _ in 0..if world.stores.has_postgres() { 2 } else { 1 } {
            let setup = Gateway::in_front_of(upstream).stores_toml(&near(&toml)).route(&route);
            world.nodes.push(setup.start().await);
        }
        world
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(Gateway::address).collect()
    }

    async fn meet(mut self, trouble: Trouble) -> Self {
        let chosen = rand::random_range(0..self.nodes.len());
        let a_while = Duration::from_millis(rand::random_range(50..600));
        match trouble {
            Trouble::Kill => self.nodes[chosen].restart().await,
            Trouble::KillAll => {
                self.nodes.iter_mut().for_each(Gateway::kill);
                for node in &mut self.nodes {
                    node.restart().await;
                }
            }
            Trouble::Stop => {
                self.nodes[chosen].terminate();
                assert_eq!(self.nodes[chosen].wait_exit().await, Some(0));
                self.nodes[chosen].restart().await;
            }
            Trouble::FlushRedis => self.stores.redis().flush().await,
            Trouble::RestartRedis => {
                self.stores.redis_mut().kill().await;
                tokio::time::sleep(a_while).await;
                self.stores.redis_mut().restart().await;
            }
            Trouble::StallRedis => self.disturb(self.redis.as_ref(), Line::Stalled, a_while).await,
            Trouble::RestartPostgres => {
                self = tokio::task::spawn_blocking(move || {
                    self.stores.postgres_mut().kill();
                    self.stores.postgres_mut().restart();
                    self
                })
                .await
                .unwrap();
            }
            Trouble::CutPostgres => self.disturb(self.postgres.as_ref(), Line::Cut, a_while).await,
            Trouble::LoseAcknowledgements => {
                self.disturb(self.postgres.as_ref(), Line::Deaf, a_while).await;
            }
        }
        self
    }

    async fn disturb(&self, wire: Option<&Wire>, line: Line, a_while: Duration) {
        let wire = wire.unwrap();
        wire.set(line);
        tokio::time::sleep(a_while).await;
        if line == Line::Deaf {
            // A connection that lost a part of what it was told is of no use to anybody.
            wire.cut();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        wire.resume();
    }
}

async fn wire_to(url: &str) -> Wire {
    let (_, server) = url.rsplit_once("://").unwrap();
    let server = server.rsplit_once('@').map_or(server, |(_, server)| server);
    let server = server.split_once('/').map_or(server, |(server, _)| server);
    Wire::to(server.parse().unwrap()).await
}

async fn storm(pair: Pair, on_unknown: &str) {
    let upstream = Upstream::deciding(|_, nth| {
        let pause = [0, 3, 15, 40][nth % 4];
        Reply::new(200, "done").after(Duration::from_millis(pause))
    })
    .await;
    let mut world = World::start(pair, &upstream, on_unknown).await;
    let over = CancellationToken::new();
    let workers: Vec<_> =
        (0..WORKERS).map(|worker| tokio::spawn(work(worker, world.addresses(), over.clone()))).collect();

    let mut troubles = Trouble::all(pair).repeat(ROUNDS);
    troubles.shuffle(&mut rand::rng());
    for trouble in &troubles {
        tokio::time::sleep(Duration::from_millis(rand::random_range(100..400))).await;
        world = world.meet(*trouble).await;
    }
    over.cancel();
    let mut books = Books { sent: Vec::new(), on_unknown: on_unknown.to_owned(), troubles };
    for worker in workers {
        books.sent.extend(worker.await.unwrap());
    }
    books.balance(&world.nodes, &upstream).await;
}

/// Sends event after event, now and then in copies, until the storm is over.
async fn work(worker: usize, nodes: Vec<SocketAddr>, over: CancellationToken) -> Vec<String> {
    let mut sent = Vec::new();
    while !over.is_cancelled() {
        let id = format!("{worker}-{}", sent.len());
        match rand::random_range(0..4) {
            // Two at once, maybe at two nodes.
            0 => drop(tokio::join!(deliver(&nodes, &id), deliver(&nodes, &id))),
            // A copy after the success.
            1 => {
                deliver(&nodes, &id).await;
                deliver(&nodes, &id).await;
            }
            _ => drop(deliver(&nodes, &id).await),
        }
        sent.push(id);
    }
    sent
}

struct Books {
    sent: Vec<String>,
    on_unknown: String,
    troubles: Vec<Trouble>,
}

impl Books {
    async fn balance(&self, nodes: &[Gateway], upstream: &Upstream) {
        assert!(self.sent.len() >= WORKERS, "the storm carried {} events", self.sent.len());
        let addresses: Vec<SocketAddr> = nodes.iter().map(Gateway::address).collect();
        let after = upstream.received();
        let mut parked = Vec::new();
        for id in &self.sent {
            if deliver(&addresses, id).await == "held" {
                parked.push(id.as_str());
            }
        }
        let forwards = forwards(upstream);
        match self.on_unknown.as_str() {
            "hold" => {
                assert_eq!(upstream.received(), after, "a copy of an accepted event was forwarded");
                for id in &self.sent {
                    let attempts = forwards.get(id).map_or(0, Vec::len);
                    assert!(attempts <= 1, "{id} was forwarded {attempts} times on a route that holds");
                    // Never forwarded, yet told 2xx: only if it is parked.
                    assert!(attempts == 1 || parked.contains(&id.as_str()), "{id} is lost");
                }
                self.settle_parked(&nodes[0], &parked, upstream).await;
            }
            _ => self.retried(&forwards, &parked),
        }
    }

    fn retried(&self, forwards: &BTreeMap<String, Vec<u32>>, parked: &[&str]) {
        assert!(parked.is_empty(), "{parked:?} are parked on a route that retries");
        let mut twice = 0;
        for id in &self.sent {
            let attempts = forwards.get(id).unwrap_or_else(|| panic!("{id} is lost"));
            assert!(attempts.windows(2).all(|pair| pair[0] < pair[1]), "{id}: {attempts:?} are no retries");
            twice += usize::from(attempts.len() > 1);
        }
        // Each trouble makes at most one event of each sender unknown.
        let unsettling = self.troubles.iter().filter(|trouble| trouble.unsettles()).count();
        assert!(twice <= unsettling * WORKERS, "{twice} events twice after {:?}", self.troubles);
    }

    /// A person replays what is parked: its payload is there, and then it is done.
    async fn settle_parked(&self, node: &Gateway, parked: &[&str], upstream: &Upstream) {
        for id in parked {
            let replay = format!("/events/replay?key=orders:{id}");
            let answer = crate::support::send(node.admin(), &Delivery::new("POST", &replay)).await;
            assert_eq!(answer.json()["verdict"], "first", "{id}: {}", answer.text());
            assert_eq!(upstream.last().body, order(id).body);
            assert_eq!(node.send(&order(id)).await.verdict(), "duplicate");
        }
    }
}
