//! From the operator's URL to a client of fred, configured to fail at once and to reconnect for ever.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fred::clients::Client;
use fred::interfaces::ClusterInterface;
use fred::socket2::TcpKeepalive;
use fred::types::cluster::ClusterRouting;
use fred::types::config::{
    Config, ConnectionConfig, PerformanceConfig, ReconnectPolicy, Server, ServerConfig, TcpConfig, TlsConfig,
};
use hyper_rustls::ConfigBuilderExt;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::super::HotOpenError;
use super::cause::Apart;
use crate::config::RedisConfig;

/// How long each step of connecting may take. Short: of a cluster, or of several sentinels, one is asked after the
/// other, and some may be dead.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Between two tries to connect, milliseconds.
const RECONNECT_DELAY_MS: u32 = 250;
/// Commands that wait to be written; past it a call is refused. A stall meets the breaker long before.
const WAITING_COMMANDS_MAX: usize = 65_536;
/// How many names are tried to find one in a given slot of a cluster.
const TAGS_MAX: u32 = 1 << 18;
/// Messages of the subscriber that wait to be looked at.
const WAITING_MESSAGES_MAX: usize = 1024;
/// Kept idle so long, a connection is asked whether it still lives.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// Where Redis is, and how to speak to it. Its URL holds the password: it is not printed.
pub(super) struct Target {
    config: Config,
    /// The masters of a cluster as they were last heard of: the one that the URL names may be dead.
    heard: Mutex<Vec<Server>>,
    /// Of what the URL names as one server.
    pub(super) apart: Arc<Apart>,
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Target(***)")
    }
}

impl Target {
    /// Where the URL says that Redis, or its sentinels, are: `host:port, host:port`.
    pub(super) fn servers(&self) -> String {
        let servers = self.config.server.hosts();
        servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }

    /// Understands `redis://`, `redis-cluster://` and `redis-sentinel://`, each with `rediss` for TLS and with
    /// `valkey` for `redis`. `?ca=FILE` trusts the certificates in a PEM file instead of the system's.
    pub(super) fn parse(config: &RedisConfig) -> Result<Self, HotOpenError> {
        let url = config.url.0.as_ref();
        let (scheme, rest) =
            url.split_once("://").ok_or_else(|| wrong("it has no scheme, as in redis://host"))?;
        let (kind, tls) = match scheme {
            "redis" | "valkey" => ("redis", false),
            "rediss" | "valkeys" => ("redis", true),
            "redis-cluster" | "valkey-cluster" => ("redis-cluster", false),
            "rediss-cluster" | "valkeys-cluster" => ("redis-cluster", true),
            "redis-sentinel" | "valkey-sentinel" => ("redis-sentinel", false),
            "rediss-sentinel" | "valkeys-sentinel" => ("redis-sentinel", true),
            other => {
                return Err(wrong(&format!(
                    "unknown scheme {other:?}; redis, rediss, redis-cluster or redis-sentinel"
                )));
            }
        };
        let (rest, ca) = take_ca(rest);
        if ca.is_some() && !tls {
            return Err(wrong("a CA file is of use only with TLS (rediss://)"));
        }
        let mut fred =
            Config::from_url(&format!("{kind}://{rest}")).map_err(|cause| wrong(cause.details()))?;
        // A first connection is tried at once and once; trying again is the keeper's work.
        fred.fail_fast = true;
        if tls {
            fred.tls = Some(tls_config(ca.as_deref())?);
        }
        Ok(Self { config: fred, heard: Mutex::default(), apart: Arc::default() })
    }

    /// A client, not yet connected.
    pub(super) fn client(&self) -> Client {
        let connection = ConnectionConfig {
            connection_timeout: CONNECT_TIMEOUT,
            internal_command_timeout: CONNECT_TIMEOUT,
            max_command_attempts: 1,
            max_command_buffer_len: WAITING_COMMANDS_MAX,
            tcp: TcpConfig {
                nodelay: Some(true),
                keepalive: Some(TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE)),
                ..TcpConfig::default()
            },
            // fred's own watch over silent connections arms a timer for every command; the breaker's probe
            // does the same at no request's cost.
            ..ConnectionConfig::default()
        };
        let performance = PerformanceConfig {
            broadcast_channel_capacity: WAITING_MESSAGES_MAX,
            ..PerformanceConfig::default()
        };
        let policy = ReconnectPolicy::new_constant(0, RECONNECT_DELAY_MS);
        let mut config = self.config.clone();
        if let ServerConfig::Clustered { hosts, .. } = &mut config.server {
            let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
            let named = hosts.clone();
            hosts.extend(heard.iter().filter(|server| !named.contains(server)).cloned());
        }
        Client::new(config, Some(performance), Some(connection), Some(policy))
    }

    /// Keeps the addresses of a cluster's masters as this client knows them.
    pub(super) fn remember(&self, client: &Client) {
        let Some(cluster) = client.cached_cluster_state() else { return };
        let masters = cluster.unique_primary_nodes();
        if !masters.is_empty() {
            *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = masters;
        }
    }

    /// Where a key lies among a cluster's nodes; without slots all lie together.
    pub(super) fn slot(&self, name: &[u8]) -> u16 {
        if self.has_slots() { ClusterRouting::hash_key(name) } else { 0 }
    }

    /// A name of ours in this slot.
    pub(super) fn name_in(&self, slot: u16, name: &str) -> String {
        let tagged = |tag: u32| format!("{name}{{{tag}}}");
        if !self.has_slots() {
            return name.to_owned();
        }
        // Tags fall on slots at random, so that one is found long before the last.
        let mut tags = 0..TAGS_MAX;
        let found = tags.find(|tag| ClusterRouting::hash_key(tag.to_string().as_bytes()) == slot);
        tagged(found.unwrap_or(0))
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.config.server, ServerConfig::Clustered { .. })
    }

    fn has_slots(&self) -> bool {
        self.is_cluster() || self.apart.holds()
    }
}

/// Takes `ca=FILE` out of a URL's query.
fn take_ca(rest: &str) -> (String, Option<String>) {
    let Some((address, query)) = rest.split_once('?') else { return (rest.to_owned(), None) };
    let mut ca = None;
    let mut kept = form_urlencoded::Serializer::new(String::new());
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        if name == "ca" {
            ca = Some(value.into_owned());
        } else {
            kept.append_pair(&name, &value);
        }
    }
    (format!("{address}?{}", kept.finish()), ca)
}

fn tls_config(ca: Option<&str>) -> Result<TlsConfig, HotOpenError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|cause| HotOpenError::Tls(Box::new(cause)))?;
    let client = match ca {
        // The system's roots, or those that SSL_CERT_FILE names.
        None => builder
            .with_native_roots()
            .map_err(|cause| HotOpenError::Tls(Box::new(cause)))?
            .with_no_client_auth(),
        Some(path) => builder.with_root_certificates(roots(path)?).with_no_client_auth(),
    };
    Ok(client.into())
}

fn roots(path: &str) -> Result<rustls::RootCertStore, HotOpenError> {
    let failed = |source| HotOpenError::CaFile { path: path.to_owned(), source };
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(failed)? {
        roots.add(certificate.map_err(failed)?).map_err(|cause| HotOpenError::Tls(Box::new(cause)))?;
    }
    Ok(roots)
}

fn wrong(what: &str) -> HotOpenError {
    HotOpenError::Url(what.to_owned())
}
