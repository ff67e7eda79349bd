//! Stores that are down, slow, refused or forgetful: never a wrong verdict, and what the policy says.

mod durable;
mod old_redis;
mod policies;
mod postgres;
mod redis;

use crate::support::{Stores, Wire, durable_toml, hot_toml};

/// A Postgres behind a wire, and the configuration that goes through it.
pub(crate) async fn wired(stores: &Stores, timeout: &str) -> (Wire, String) {
    let url = stores.postgres_url();
    let (before, database) = url.rsplit_once('/').unwrap();
    let (_, server) = before.rsplit_once('@').unwrap();
    let wire = Wire::to(server.parse().unwrap()).await;
    let durable = durable_toml(&format!("postgres://umavez@{}/{database}", wire.address()));
    let hot = if stores.has_redis() { hot_toml(&stores.redis_url()) } else { String::new() };
    (wire, format!("{hot}{durable}timeout = \"{timeout}\"\n"))
}
