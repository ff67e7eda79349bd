//! What an operator writes, parsed into types that cannot be wrong. One TOML file, read to its end: every
//! problem is told at once, with its place and its mend.

mod acme;
mod admin;
mod capture;
mod changes;
mod credentials;
mod embedded;
mod fields;
mod filter;
mod handshake;
mod key;
mod load;
mod pattern;
mod problem;
mod providers;
mod risk;
mod route;
mod scopes;
mod secret;
mod sections;
mod source;
mod status;
mod store_url;
mod syntax;
mod target;
mod tls;
mod traces;
mod units;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use changes::Changes;
pub use embedded::WithoutFile;
pub use fields::FIELDS;
pub use filter::LogFilter;
pub use load::ConfigFile;
pub use pattern::{RoutePath, Scope};
pub use problem::{ConfigErrors, Fault, Place, Problem, Warning};
pub use secret::Secret;
pub use status::StatusSet;
pub use target::Target;
pub use traces::{Parent, Paths, Traces};
pub use units::{parse_duration, parse_size, show_duration, show_size};

use crate::ledger::Terms;
use crate::providers::{ItemRules, Provider};
use crate::tls::Files;

/// Everything one gateway runs on.
#[derive(Clone, Debug)]
pub struct Config {
    pub listen: Listen,
    /// Certificates and roots of both listeners and towards apps.
    pub tls: Files,
    pub hot: Hot,
    pub durable: Durable,
    /// Where what matches no route goes; 404 where none is set.
    pub upstream: Option<Target>,
    pub routes: Vec<Arc<RouteConfig>>,
    pub limits: Limits,
    pub log: Log,
    /// `None` where no spans are made, which is the default.
    pub traces: Option<Traces>,
}

impl Config {
    /// Whether any app is reached through TLS by what all apps share.
    pub fn has_encrypted_apps(&self) -> bool {
        let mut targets = self.upstream.iter().chain(self.routes.iter().map(|route| &route.upstream));
        targets.any(|target| target.is_secure() && target.files.is_none())
    }

    /// Whether spans go through TLS under the system's roots.
    pub fn has_encrypted_collector(&self) -> bool {
        let endpoint = self.traces.as_ref().map(|traces| &traces.endpoint);
        endpoint.is_some_and(|endpoint| endpoint.is_secure() && endpoint.files.is_none())
    }
}

/// How to log. `UMAVEZ_LOG` in the environment stands before `level`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    pub format: LogFormat,
    /// A filter as `tracing` reads it: `info`, `umavez=debug,warn`.
    pub level: String,
}

impl Default for Log {
    fn default() -> Self {
        Self { format: LogFormat::Auto, level: "info".to_owned() }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Text where stderr is a terminal, else JSON.
    #[default]
    Auto,
    Text,
    Json,
}

#[derive(Clone, Debug)]
pub struct Listen {
    pub public: SocketAddr,
    pub admin: SocketAddr,
    /// Required unless `admin` is a loopback address.
    pub admin_token: Option<Secret>,
    /// Peers whose `Forwarded` / `X-Forwarded-*` are believed.
    pub trusted_proxies: Vec<ipnet::IpNet>,
    /// How many threads serve; default: the cores this process may use.
    pub workers: usize,
    /// How long a stop waits for what is under way; default 75 s (longer than the default route timeout).
    pub grace: Duration,
    /// A Unix socket through which the next gateway process gets this one's listening sockets.
    pub handover: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hot {
    /// In the process, at most so many bytes.
    Memory {
        bytes_max: usize,
    },
    Redis(RedisConfig),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisConfig {
    /// `redis://`, `rediss://`, `redis-cluster://`, `redis-sentinel://`; may hold a password, so it is a secret.
    pub url: Secret,
    /// What key names begin with; default `dedup`.
    pub prefix: String,
    /// How long a request may wait for Redis before the durable store decides alone; default 50 ms.
    pub timeout: Duration,
    /// How long a node answers copies of a done event by itself, without Redis; default 10 s, zero for never.
    pub near_ttl: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Durable {
    Sqlite { path: PathBuf, timeout: Duration },
    Postgres(PostgresConfig),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresConfig {
    pub url: Secret,
    /// How long one statement may take before the store counts as unreachable; default 5 s.
    pub timeout: Duration,
}

/// Bounds of the public listener and the durable store's queue.
#[derive(Clone, Debug)]
pub struct Limits {
    pub connections_max: usize,
    pub header_timeout: Duration,
    pub header_bytes_max: usize,
    /// How long reading one request's body may take on a dedup route.
    pub body_timeout: Duration,
    /// How long a kept-alive connection may idle.
    pub idle_timeout: Duration,
    pub connect_timeout: Duration,
    /// Longest answer of an app on a dedup route, bytes.
    pub answer_bytes_max: usize,
    /// What the bodies of all requests of dedup routes may take together, bytes: past it a request gets 503.
    pub buffered_bytes_max: usize,
    /// Claims and settlements waiting for the durable store; past it a request is `unavailable`.
    pub waiting_writes_max: usize,
}

/// One dedup route as written, with the provider's presets filled in.
#[derive(Clone, Debug)]
pub struct RouteConfig {
    pub name: Arc<str>,
    pub host: Option<String>,
    pub path: RoutePath,
    pub mode: Mode,
    /// Methods whose requests are events; default every method but GET, HEAD, OPTIONS, (TRACE, CONNECT).
    pub methods: Option<Vec<http::Method>>,
    pub provider: Option<Arc<Provider>>,
    /// The route's `key`, or the provider's items.
    pub items: ItemRules,
    pub scope: Scope,
    pub secrets: Vec<Secret>,
    pub public_key: Option<String>,
    /// The id that the provider gave the webhook, where its signature covers that.
    pub webhook_id: Option<String>,
    pub public_url: Option<String>,
    /// Whose client certificate a request has to come with, by any of these names; empty where none is needed.
    pub client_names: Vec<String>,
    pub upstream: Target,
    pub timeout: Duration,
    pub terms: Terms,
    pub in_flight_wait: Duration,
    /// 503 unless the route chooses 409.
    pub in_flight_answer: http::StatusCode,
    pub body_limit: usize,
    /// `limits.body_timeout`, `limits.answer_bytes_max` and `limits.buffered_bytes_max`, which hold for every route.
    pub body_timeout: Duration,
    pub answer_bytes_max: usize,
    pub buffered_bytes_max: usize,
    pub done: StatusSet,
    pub on_keyless: OnKeyless,
    pub on_unsigned: OnUnsigned,
    pub on_durable_down: OnDurableDown,
    /// Whether the gateway answers the provider's handshakes itself.
    pub handshake: HandshakeBy,
    /// The tokens that the operator chose at the provider, for handshakes that repeat one.
    pub verify_tokens: Vec<Secret>,
    /// Longest body kept in a receipt, bytes; 0 keeps none.
    pub receipt_limit: usize,
    /// Response headers kept in a receipt besides `Content-Type`, `Location` and, with a body, `Content-Encoding`.
    pub receipt_headers: Vec<http::HeaderName>,
    pub duplicate_answer: DuplicateAnswer,
    /// Request headers removed from first-seen forwards (retry markers).
    pub strip_headers: Vec<http::HeaderName>,
    /// Where deliveries are written to files, if anywhere.
    pub capture: Option<Capture>,
}

/// A folder for deliveries, and its bounds: past either, the oldest go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    pub folder: PathBuf,
    pub deliveries_max: usize,
    pub bytes_max: usize,
}

/// What a route does with the verdicts on its events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Copies are answered by the gateway.
    #[default]
    Inline,
    /// Verdicts are counted, and everything is forwarded as it came.
    Shadow,
}

impl Mode {
    pub fn label(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Shadow => "shadow",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnKeyless {
    #[default]
    Forward,
    Reject,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnUnsigned {
    #[default]
    Unauthorized,
    AcceptAndDrop,
}

/// Who answers what a provider sends to check a URL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HandshakeBy {
    #[default]
    App,
    Gateway,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDurableDown {
    #[default]
    Reject,
    HotOnly,
    Bypass,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DuplicateAnswer {
    /// The first answer again.
    #[default]
    Receipt,
    /// Always this.
    Fixed { status: http::StatusCode, content_type: Option<String>, body: bytes::Bytes },
}

/// What the environment gave, for `${NAME}`.
pub type Environment = BTreeMap<String, String>;
