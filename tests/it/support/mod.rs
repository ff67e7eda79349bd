//! What the stories stand on: the real gateway, a sender, a scripted app, wires that break, and real stores.

mod collector;
pub(crate) mod fixtures;
mod frames;
mod gateway;
mod h2;
mod http1;
mod load;
mod metrics;
mod patience;
pub(crate) mod postgres;
pub(crate) mod redis;
mod sender;
mod stores;
mod upstream;
mod wire;

use std::time::Duration;

pub(crate) use collector::{Collector, Span};
pub(crate) use frames::{Flags, Kind, Script, Scripted, Sender, block, frame};
pub(crate) use gateway::{Gateway, Setup};
pub(crate) use h2::send as send_h2;
pub(crate) use load::{Books, Load, deliver, forwards};
pub(crate) use metrics::Metrics;
/// For a story that goes on by intent: its time starts again.
pub(crate) use patience::begin as goes_on;
pub(crate) use sender::{
    Answer, Connection, Delivery, hub_sha1, hub_sha256, send, send_all, send_until_success, stripe_v1,
    try_send, unix_seconds,
};
pub(crate) use stores::{Pair, Stores, durable_toml, hot_toml, near, on_every_store, on_stores};
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

/// A port below the range that the kernel hands out, so that who is killed gets it back; low enough for a Redis
/// cluster's bus 10,000 above; and never the same for two stories.
pub(crate) fn free_port() -> u16 {
    static TRIED: std::sync::Mutex<Option<u16>> = std::sync::Mutex::new(None);
    let mut tried = TRIED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let free = |port| std::net::TcpListener::bind(("127.0.0.1", port)).is_ok();
    for _ in 0..12_000 {
        // Test processes beside this one begin elsewhere.
        let last = tried.unwrap_or_else(|| rand::random_range(10_000..22_000));
        let port = if last < 21_999 { last + 1 } else { 10_000 };
        *tried = Some(port);
        if free(port) && free(port + 10_000) {
            return port;
        }
    }
    panic!("no free port");
}

/// A loopback address where nobody listens.
pub(crate) fn nobody() -> std::net::SocketAddr {
    ([127, 0, 0, 1], free_port()).into()
}
