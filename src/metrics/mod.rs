//! Every metric: its name is written once, here, and its labels come from routes, providers and enums, never from a
//! request. Rooms hold handles made here, so that counting costs an atomic add and no look-up.

mod captures;
mod certificates;
mod exemplars;
mod limits;
mod openmetrics;
mod passed;
mod reloads;
mod spans;

use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

pub use captures::Captures;
pub use certificates::{Certificates, Handshake, Handshakes, Orders};
pub use exemplars::Exemplars;
pub use limits::{Connections, WaitingWrites};
pub use openmetrics::{OPENMETRICS, openmetrics, prefers_openmetrics};
pub use passed::Passed;
pub use reloads::Reloads;
pub use spans::Spans;

use crate::ledger::durable::DurableError;
use crate::ledger::hot::HotError;
use crate::ledger::{Layer, Settlement};

const ITEMS: &str = "umavez_items_total";
const REQUESTS: &str = "umavez_requests_total";
const DUPLICATES: &str = "umavez_duplicates_total";
const CONFLICTS: &str = "umavez_conflicts_total";
const UNSIGNED: &str = "umavez_unsigned_total";
const OUTCOMES: &str = "umavez_outcomes_total";
const SETTLEMENTS: &str = "umavez_settlements_total";
const EXPOSED: &str = "umavez_exposed_total";
const BYPASSED: &str = "umavez_bypassed_total";
const CAPTURES: &str = "umavez_captures_total";
const LEASE_LOST: &str = "umavez_lease_lost_total";
const UNSETTLED: &str = "umavez_unsettled";
const SETTLEMENTS_DROPPED: &str = "umavez_settlements_dropped_total";
const IN_FLIGHT: &str = "umavez_in_flight";
const BUFFERED: &str = "umavez_buffered_bytes";
const HELD: &str = "umavez_held";
const STORE_ERRORS: &str = "umavez_store_errors_total";
const BREAKER_OPEN: &str = "umavez_hot_breaker_open";
const SWEEPER_LAG: &str = "umavez_sweeper_lag_seconds";
const SWEPT: &str = "umavez_swept_total";
const REQUEST_DURATION: &str = "umavez_request_duration_seconds";
const OWN_DURATION: &str = "umavez_own_duration_seconds";
const UPSTREAM_DURATION: &str = "umavez_upstream_duration_seconds";
const STORE_DURATION: &str = "umavez_store_duration_seconds";
const PASSED: &str = "umavez_passed_total";
const RELOADS: &str = "umavez_config_reloads_total";
const RELOADED: &str = "umavez_config_last_reload_successful";
const RELOADED_AT: &str = "umavez_config_last_reload_success_timestamp_seconds";
const BUILD_INFO: &str = "umavez_build_info";
const CERTIFICATE_NOT_AFTER: &str = "umavez_certificate_not_after_timestamp_seconds";
const CERTIFICATE_CURRENT: &str = "umavez_certificate_current";
const TLS_HANDSHAKES: &str = "umavez_tls_handshakes_total";
const ACME_ORDERS: &str = "umavez_acme_orders_total";
const SPANS: &str = "umavez_spans_total";
const CONNECTIONS: &str = "umavez_connections";
const CONNECTIONS_MAX: &str = "umavez_connections_max";
const WAITING_WRITES: &str = "umavez_waiting_writes";
const WAITING_WRITES_MAX: &str = "umavez_waiting_writes_max";

/// Upper bounds of every latency histogram, in seconds.
const BUCKETS: [f64; 16] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];

/// Installs the recorder for this process and describes every metric.
///
/// # Errors
/// When a recorder is installed already.
pub fn install() -> Result<PrometheusHandle, BuildError> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_duration_seconds".into()), &BUCKETS)?
        .install_recorder()?;
    describe();
    gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    Ok(handle)
}

fn describe() {
    describe_counter!(ITEMS, "Items by route, provider, mode and verdict.");
    describe_counter!(REQUESTS, "Requests of dedup routes by class of answer.");
    describe_counter!(DUPLICATES, "Duplicates by the layer that knew them.");
    describe_counter!(CONFLICTS, "Duplicates whose bytes differ from those of the event that was processed.");
    describe_counter!(UNSIGNED, "Requests whose signature was missing or wrong.");
    describe_counter!(OUTCOMES, "What forwarding to the app came to.");
    describe_counter!(SETTLEMENTS, "Claims ended, by how.");
    describe_counter!(EXPOSED, "Items decided by the hot store alone while the durable store was away.");
    describe_counter!(BYPASSED, "Items forwarded without dedup while both stores were away.");
    describe_counter!(CAPTURES, "Deliveries to be written to files, by what became of them.");
    describe_counter!(LEASE_LOST, "Settlements that came after their lease had lapsed.");
    describe_gauge!(UNSETTLED, "Settlements that the durable store has not recorded yet.");
    describe_counter!(
        SETTLEMENTS_DROPPED,
        "What too many waiting settlements left no room for: its lease lapses."
    );
    describe_gauge!(IN_FLIGHT, "Events that this node is busy with.");
    describe_gauge!(BUFFERED, Unit::Bytes, "What the bodies of requests of dedup routes take.");
    describe_gauge!(HELD, "Events parked for a person.");
    describe_counter!(STORE_ERRORS, "Store calls that gave no answer.");
    describe_gauge!(BREAKER_OPEN, "1 while requests do not ask the hot store.");
    describe_gauge!(SWEEPER_LAG, Unit::Seconds, "How long the oldest expired row is overdue for deletion.");
    describe_counter!(SWEPT, "Expired rows deleted.");
    describe_histogram!(REQUEST_DURATION, Unit::Seconds, "Whole requests of dedup routes.");
    describe_histogram!(OWN_DURATION, Unit::Seconds, "The gateway's own share of a request.");
    describe_histogram!(UPSTREAM_DURATION, Unit::Seconds, "The app's share of a request.");
    describe_histogram!(STORE_DURATION, Unit::Seconds, "Calls to the stores.");
    describe_counter!(PASSED, "Requests passed through without dedup, by what the app answered.");
    describe_counter!(RELOADS, "Times that the configuration was read again, by what came of it.");
    describe_gauge!(RELOADED, "1 where what was read last is what runs.");
    describe_gauge!(RELOADED_AT, Unit::Seconds, "When what runs was read, seconds since 1970.");
    describe_gauge!(BUILD_INFO, "Always 1; the labels tell the build.");
    describe_gauge!(
        CERTIFICATE_NOT_AFTER,
        Unit::Seconds,
        "When the certificate in use expires, since the epoch."
    );
    describe_gauge!(
        CERTIFICATE_CURRENT,
        "0 while what is on disk is of no use, or a certificate can't be ordered; what was before is in use."
    );
    describe_counter!(TLS_HANDSHAKES, "TLS handshakes with callers, by how they ended.");
    describe_counter!(ACME_ORDERS, "Certificates ordered by ACME, by what came of it.");
    describe_counter!(SPANS, "Spans of traces, by what became of them.");
    describe_gauge!(CONNECTIONS, "Open connections of a listener.");
    describe_gauge!(CONNECTIONS_MAX, "How many it may have: whoever comes then waits.");
    describe_gauge!(WAITING_WRITES, "Claims and settlements that wait for the durable store.");
    describe_gauge!(WAITING_WRITES_MAX, "How many of each may wait: a request beyond is refused.");
}

/// What a request of a dedup route was answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Forwarded,
    Replayed,
    InFlight,
    Unauthorized,
    TooLarge,
    Unavailable,
    UpstreamError,
    Held,
    Handshake,
    Refused,
    Busy,
}

impl Answer {
    const ALL: [Self; 11] = [
        Self::Forwarded,
        Self::Replayed,
        Self::InFlight,
        Self::Unauthorized,
        Self::TooLarge,
        Self::Unavailable,
        Self::UpstreamError,
        Self::Held,
        Self::Handshake,
        Self::Refused,
        Self::Busy,
    ];

    pub fn label(self) -> &'static str {
        match self {
            Self::Forwarded => "forwarded",
            Self::Replayed => "replayed",
            Self::InFlight => "in_flight",
            Self::Unauthorized => "unauthorized",
            Self::TooLarge => "too_large",
            Self::Unavailable => "unavailable",
            Self::UpstreamError => "upstream_error",
            Self::Held => "held",
            Self::Handshake => "handshake",
            Self::Refused => "refused",
            Self::Busy => "busy",
        }
    }
}

/// The verdict on one item, as it is counted and as the `Umavez` header tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    First,
    Duplicate,
    InFlight,
    Held,
    Keyless,
    Unavailable,
}

impl Said {
    const ALL: [Self; 6] =
        [Self::First, Self::Duplicate, Self::InFlight, Self::Held, Self::Keyless, Self::Unavailable];

    pub fn label(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Duplicate => "duplicate",
            Self::InFlight => "in_flight",
            Self::Held => "held",
            Self::Keyless => "keyless",
            Self::Unavailable => "unavailable",
        }
    }
}

/// One route's handles.
#[derive(Clone, Debug)]
pub struct Route {
    items: [Counter; Said::ALL.len()],
    requests: [Counter; Answer::ALL.len()],
    duplicates: [Counter; 3],
    pub conflicts: Counter,
    pub unsigned: Counter,
    pub answered: Counter,
    pub never_sent: Counter,
    pub unknown: Counter,
    settlements: [Counter; 3],
    pub exposed: Counter,
    pub bypassed: Counter,
    pub lease_lost: Counter,
    pub captures: Captures,
    pub whole: Histogram,
    /// Traces of requests in each bucket of `whole`.
    pub exemplars: Exemplars,
    pub own: Histogram,
    pub upstream: Histogram,
}

impl Route {
    /// Registers every series of the route, so that each is there from the start with 0.
    /// Verdicts carry the route's mode: in shadow they were counted, and nothing else came of them.
    pub fn new(name: &Arc<str>, provider: &str, mode: &'static str) -> Self {
        let route = || name.to_string();
        let provider = provider.to_owned();
        Self {
            items: Said::ALL.map(|said| {
                counter!(ITEMS, "route" => route(), "provider" => provider.clone(), "mode" => mode, "verdict" => said.label())
            }),
            requests: Answer::ALL
                .map(|answer| counter!(REQUESTS, "route" => route(), "mode" => mode, "answer" => answer.label())),
            duplicates: [Layer::Hot, Layer::Durable, Layer::Waited]
                .map(|layer| counter!(DUPLICATES, "route" => route(), "mode" => mode, "layer" => layer.label())),
            conflicts: counter!(CONFLICTS, "route" => route(), "mode" => mode),
            unsigned: counter!(UNSIGNED, "route" => route(), "mode" => mode),
            answered: counter!(OUTCOMES, "route" => route(), "outcome" => "answered"),
            never_sent: counter!(OUTCOMES, "route" => route(), "outcome" => "never_sent"),
            unknown: counter!(OUTCOMES, "route" => route(), "outcome" => "unknown"),
            settlements: ["commit", "release", "hold"]
                .map(|settlement| counter!(SETTLEMENTS, "route" => route(), "settlement" => settlement)),
            exposed: counter!(EXPOSED, "route" => route()),
            bypassed: counter!(BYPASSED, "route" => route()),
            lease_lost: counter!(LEASE_LOST, "route" => route()),
            captures: Captures::new(name),
            whole: histogram!(REQUEST_DURATION, "route" => route()),
            exemplars: Exemplars::of(name),
            own: histogram!(OWN_DURATION, "route" => route()),
            upstream: histogram!(UPSTREAM_DURATION, "route" => route()),
        }
    }

    pub fn items(&self, said: Said, count: usize) {
        let index = Said::ALL.iter().position(|each| *each == said).expect("ALL lists every verdict");
        self.items[index].increment(wide(count));
    }

    pub fn request(&self, answer: Answer) {
        let index = Answer::ALL.iter().position(|each| *each == answer).expect("ALL lists every answer");
        self.requests[index].increment(1);
    }

    pub fn duplicate(&self, layer: Layer) {
        let index = match layer {
            Layer::Hot => 0,
            Layer::Durable => 1,
            Layer::Waited => 2,
        };
        self.duplicates[index].increment(1);
    }

    pub fn settled(&self, settlement: &Settlement, count: usize) {
        let index = match settlement {
            Settlement::Commit(_) => 0,
            Settlement::Release => 1,
            Settlement::Hold => 2,
        };
        self.settlements[index].increment(wide(count));
    }
}

/// The stores' handles.
#[derive(Clone, Debug)]
pub struct Stores {
    hot_errors: Counter,
    durable_errors: Counter,
    hot: Histogram,
    durable: Histogram,
    unsettled: Gauge,
    dropped: Counter,
    in_flight: Gauge,
    buffered: Gauge,
    held: Gauge,
    breaker_open: Gauge,
    sweeper_lag: Gauge,
    swept: Counter,
    pub waiting: WaitingWrites,
}

impl Stores {
    pub fn new() -> Self {
        Self {
            hot_errors: counter!(STORE_ERRORS, "store" => "hot"),
            durable_errors: counter!(STORE_ERRORS, "store" => "durable"),
            hot: histogram!(STORE_DURATION, "store" => "hot"),
            durable: histogram!(STORE_DURATION, "store" => "durable"),
            unsettled: gauge!(UNSETTLED),
            dropped: counter!(SETTLEMENTS_DROPPED),
            in_flight: gauge!(IN_FLIGHT),
            buffered: gauge!(BUFFERED),
            held: gauge!(HELD),
            breaker_open: gauge!(BREAKER_OPEN),
            sweeper_lag: gauge!(SWEEPER_LAG),
            swept: counter!(SWEPT),
            waiting: WaitingWrites::new(),
        }
    }

    pub fn hot_took(&self, took: Duration) {
        self.hot.record(took);
    }

    pub fn durable_took(&self, took: Duration) {
        self.durable.record(took);
    }

    /// Counts a failure; the breaker's own refusals are no news and only counted.
    pub fn hot_failed(&self, error: &HotError) {
        self.hot_errors.increment(1);
        tracing::debug!(error = error as &dyn std::error::Error, "the hot store gave no answer");
    }

    pub fn durable_failed(&self, error: &DurableError) {
        self.durable_errors.increment(1);
        tracing::debug!(error = error as &dyn std::error::Error, "the durable store gave no answer");
    }

    /// A settlement for which no room was left in the background.
    pub fn dropped(&self) {
        self.dropped.increment(1);
    }

    /// A settlement of this route that found its claim gone when it was tried again in the background.
    pub fn lease_lost_late(&self, route: &Arc<str>) {
        counter!(LEASE_LOST, "route" => route.to_string()).increment(1);
    }

    /// What is read when Prometheus asks.
    pub fn sample(&self, unsettled: usize, in_flight: usize, buffered_bytes: usize, breaker_open: bool) {
        self.unsettled.set(float(unsettled));
        self.in_flight.set(float(in_flight));
        self.buffered.set(float(buffered_bytes));
        self.breaker_open.set(if breaker_open { 1.0 } else { 0.0 });
    }

    pub fn swept(&self, deleted: u64, lag: Duration) {
        self.swept.increment(deleted);
        self.sweeper_lag.set(lag.as_secs_f64());
    }

    pub fn held(&self, events: usize) {
        self.held.set(float(events));
    }
}

impl Default for Stores {
    fn default() -> Self {
        Self::new()
    }
}

fn wide(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

fn float(count: usize) -> f64 {
    let rough = |count: usize| f64::from(u32::try_from(count >> 12).unwrap_or(u32::MAX)) * 4096.0;
    u32::try_from(count).map_or_else(|_| rough(count), f64::from)
}
