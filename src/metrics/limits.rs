//! Handles for what has a limit that makes others wait: connections, and writes for the durable store.

use metrics::{Gauge, gauge};

use super::{CONNECTIONS, CONNECTIONS_MAX, WAITING_WRITES, WAITING_WRITES_MAX, float};

/// One listener's open connections.
#[derive(Clone, Debug)]
pub struct Connections {
    listener: &'static str,
    open: Gauge,
}

impl Connections {
    pub fn new(listener: &'static str, max: usize) -> Self {
        gauge!(CONNECTIONS_MAX, "listener" => listener).set(float(max));
        let open = gauge!(CONNECTIONS, "listener" => listener);
        open.set(0.0);
        Self { listener, open }
    }

    pub fn listener(&self) -> &'static str {
        self.listener
    }

    pub fn opened(&self) {
        self.open.increment(1.0);
    }

    pub fn closed(&self) {
        self.open.decrement(1.0);
    }
}

/// Claims and settlements that wait for the durable store, each in a queue of its own.
#[derive(Clone, Debug)]
pub struct WaitingWrites {
    claims: Gauge,
    settlements: Gauge,
    max: Gauge,
}

impl WaitingWrites {
    pub(super) fn new() -> Self {
        let waiting = |queue: &'static str| gauge!(WAITING_WRITES, "queue" => queue);
        Self {
            claims: waiting("claims"),
            settlements: waiting("settlements"),
            max: gauge!(WAITING_WRITES_MAX),
        }
    }

    /// What is read when Prometheus asks: those that wait, and how many of each may.
    pub fn sample(&self, claims: usize, settlements: usize, max: usize) {
        self.claims.set(float(claims));
        self.settlements.set(float(settlements));
        self.max.set(float(max));
    }
}
