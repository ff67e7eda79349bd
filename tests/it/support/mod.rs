//! What the stories stand on: the real gateway, a sender, a scripted app, wires that break, and real stores.

mod gateway;
mod h2;
mod http1;
mod metrics;
mod patience;
pub(crate) mod postgres;
pub(crate) mod redis;
mod sender;
mod stores;
mod upstream;
mod wire;

use std::time::Duration;

pub(crate) use gateway::Gateway;
pub(crate) use h2::send as send_h2;
pub(crate) use sender::{
    Connection, Delivery, hub_sha1, hub_sha256, send, send_all, send_until_success, stripe_v1, try_send,
    unix_seconds,
};
pub(crate) use stores::{Pair, Stores, durable_toml, hot_toml, on_every_store};
pub(crate) use upstream::{Gate, Reply, Upstream};
pub(crate) use wire::{Line, Wire};

/// The route of every story that needs no other: one event per body, named by its `id`.
pub(crate) const ORDERS: &str = r#"
[[route]]
name = "orders"
path = "/hooks"
key = ["$.id"]
"#;

/// A delivery to [`ORDERS`].
pub(crate) fn order(id: &str) -> Delivery {
    Delivery::json("/hooks", format!(r#"{{"id":"{id}"}}"#))
}

/// The longest that anything here may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);

/// Waits for something that must come; names it where it does not.
pub(crate) async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, work).await {
        Ok(done) => done,
        Err(_) => panic!("waited {PATIENCE:?} for {what}"),
    }
}

/// Waits for something that another process brings about and that cannot be subscribed to.
pub(crate) async fn eventually(what: &str, mut happened: impl AsyncFnMut() -> bool) {
    within(what, async {
        while !happened().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// A port below the range that outgoing connections take, so that a killed server gets it back, and low enough
/// for the cluster bus 10,000 above.
pub(crate) fn free_port() -> u16 {
    for _ in 0..1000 {
        let port = rand::random_range(10_000..22_000);
        let bus = port + 10_000;
        let free = |port| std::net::TcpListener::bind(("127.0.0.1", port)).is_ok();
        if free(port) && free(bus) {
            return port;
        }
    }
    panic!("no free port");
}

/// A loopback address where nobody listens.
pub(crate) async fn nobody() -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap()
}
