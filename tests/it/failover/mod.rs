//! More than one machine: gateways behind a balancer, and stores that fail over under load. The app's books must balance
//! each time: nothing lost, and nothing twice but what the route's policy allows.

mod cluster;
mod hot_only;
mod nginx;
mod postgres;
mod sentinel;
mod windows;

use std::net::SocketAddr;

pub(crate) use hot_only::{exposed, until_durable};

use crate::support::{Gateway, ORDERS, Upstream};

/// Two nodes on the same stores.
async fn two_nodes(upstream: &Upstream, stores: &str, route: &str) -> [Gateway; 2] {
    let start = || Gateway::in_front_of(upstream).stores_toml(stores).route(route).start();
    let (one, two) = tokio::join!(start(), start());
    [one, two]
}

fn addresses(nodes: &[Gateway]) -> Vec<SocketAddr> {
    nodes.iter().map(Gateway::address).collect()
}

/// A route whose claims outlive any outage of a story: what is done twice then is nobody's lapsed lease.
fn patient_route() -> String {
    format!("{ORDERS}timeout = \"5s\"\nlease = \"60s\"\nin_flight_wait = \"1s\"\n")
}
