//! Redis under three sentinels: the master is killed under load, or an operator moves it.

use super::{addresses, patient_route, two_nodes};
use crate::support::redis::{Redis, Sentinels};
use crate::support::{Gateway, Load, Pair, Stores, Upstream, eventually, hot_toml, order};

#[tokio::test]
async fn a_master_killed_under_sentinels_and_load_loses_and_doubles_no_event() {
    let story = Story::begin().await;
    let Story { mut sentinels, .. } = story;
    sentinels.master.kill().await;
    Story { sentinels, ..story }.ends_on_the_replica().await;
}

#[tokio::test]
async fn an_operators_failover_under_load_loses_and_doubles_no_event() {
    // The old master lives on as a replica: connections stay open, and it refuses to write.
    let story = Story::begin().await;
    let told = story.sentinels.sentinels[0].command(&["SENTINEL", "FAILOVER", "umavez"]).await;
    assert_eq!(told.text(), "OK");
    story.ends_on_the_replica().await;
}

/// Two nodes at work on Postgres and on Redis under sentinels.
struct Story {
    nodes: [Gateway; 2],
    load: Load,
    upstream: Upstream,
    sentinels: Sentinels,
    // Last: dropped after those that use it.
    _stores: Stores,
}

impl Story {
    async fn begin() -> Self {
        let stores = Stores::open(Pair::MemoryPostgres).await;
        let sentinels = Box::pin(Sentinels::start()).await;
        let upstream = Upstream::answering(200, "done").await;
        let toml = format!("{}{}", hot_toml(&sentinels.url()), stores.toml());
        let nodes = two_nodes(&upstream, &toml, &patient_route()).await;
        let load = Load::on(addresses(&nodes));
        load.carries(100).await;
        Self { nodes, load, upstream, sentinels, _stores: stores }
    }

    async fn ends_on_the_replica(self) {
        let replica = &self.sentinels.replica;
        eventually("the replica to be promoted", async || {
            replica.command(&["ROLE"]).await.text().starts_with("master")
        })
        .await;
        self.load.carries(100).await;
        for (n, node) in self.nodes.iter().enumerate() {
            is_in_use(replica, node, &format!("after-{n}")).await;
        }
        self.load.carries(100).await;
        self.load.balances_exactly(&self.upstream).await;
    }
}

/// What a node settles now is on this server.
async fn is_in_use(redis: &Redis, node: &Gateway, id: &str) {
    let mut tries = 0;
    eventually("the node to write to the new master", async || {
        tries += 1;
        let id = format!("{id}-{tries}");
        assert_eq!(node.send(&order(&id)).await.verdict(), "first");
        redis.command(&["GET", &format!("dedup:orders:{id}")]).await.text().starts_with("done")
    })
    .await;
}
