//! Every section but the routes: listen, hot, durable, upstream, limits, log.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use super::filter::LogFilter;
use super::problem::{Fault, nearest};
use super::source::{Field, Section, Source};
use super::{
    Durable, Hot, Limits, Listen, Log, LogFormat, PostgresConfig, RedisConfig, Target, fields, risk,
    store_url, tls,
};

pub(super) const SECOND: Duration = Duration::from_secs(1);
pub(super) const MINUTE: Duration = Duration::from_secs(60);
pub(super) const HOUR: Duration = Duration::from_secs(3600);
pub(super) const DAY: Duration = Duration::from_secs(86_400);
const MILLISECOND: Duration = Duration::from_millis(1);
const KIB: usize = 1024;
pub(super) const MIB: usize = 1024 * KIB;
const GIB: usize = 1024 * MIB;

/// `[durable] timeout`, unless it is set.
pub(super) const DURABLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Shortest admin token that is not warned of, bytes.
const ADMIN_TOKEN_MIN: usize = 16;

impl Default for Listen {
    fn default() -> Self {
        Self {
            public: SocketAddr::from(([0, 0, 0, 0], 8080)),
            admin: SocketAddr::from(([127, 0, 0, 1], 9180)),
            admin_token: None,
            trusted_proxies: Vec::new(),
            workers: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            grace: Duration::from_secs(75),
            handover: None,
        }
    }
}

impl Default for Hot {
    fn default() -> Self {
        Self::Memory { bytes_max: 64 * MIB }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 10_000,
            header_timeout: 10 * SECOND,
            header_bytes_max: 64 * KIB,
            body_timeout: 30 * SECOND,
            idle_timeout: 75 * SECOND,
            connect_timeout: 5 * SECOND,
            answer_bytes_max: 25 * MIB,
            buffered_bytes_max: 256 * MIB,
            waiting_writes_max: 4096,
        }
    }
}

pub(super) fn listen(top: &Section<'_>) -> Listen {
    let section = top.section("listen", fields::LISTEN);
    let default = Listen::default();
    let listen = Listen {
        public: section.parsed("public", parse_address).unwrap_or(default.public),
        admin: section.parsed("admin", parse_address).unwrap_or(default.admin),
        admin_token: section.field("admin_token").and_then(|field| field.secret()),
        trusted_proxies: section.field("trusted_proxies").map(|field| networks(&field)).unwrap_or_default(),
        workers: section.count("workers", 1..=1024).unwrap_or(default.workers),
        grace: section.duration("grace", Duration::ZERO..=HOUR).unwrap_or(default.grace),
        handover: section
            .field("handover")
            .and_then(|field| field.expanded())
            .map(|path| top.source.directory.join(path.text)),
    };
    if !listen.admin.ip().is_loopback() && section.field("admin_token").is_none() {
        let fault = Fault::new(
            format!("{} can be reached from other machines and there is no admin_token", listen.admin),
            "set admin_token = \"${UMAVEZ_ADMIN_TOKEN}\", or listen on 127.0.0.1",
        );
        section.fail("admin", fault);
    }
    if listen.public == listen.admin && listen.public.port() != 0 {
        let fault = Fault::new(format!("{} is also the public address", listen.admin), "use another port");
        section.fail("admin", fault);
    }
    if listen.admin_token.as_ref().is_some_and(|token| token.expose().len() < ADMIN_TOKEN_MIN) {
        section
            .warn("admin_token", format!("is shorter than {ADMIN_TOKEN_MIN} characters and can be guessed"));
    }
    risk::warn_of_listen(&section, &listen);
    listen
}

pub(super) fn parse_address(text: &str) -> Result<SocketAddr, Fault> {
    let mend = "write an IP address and a port, such as \"0.0.0.0:8080\" or \"[::]:8080\"";
    text.parse().map_err(|_| Fault::new(format!("{text:?} is no address"), mend))
}

fn networks(field: &Field<'_>) -> Vec<ipnet::IpNet> {
    let parse = |text: &str| {
        let address = text.parse().map(|address: std::net::IpAddr| address.into());
        text.parse().or(address).map_err(|_| {
            let mend = "write such as \"10.0.0.0/8\" or \"192.168.1.7\"";
            Fault::new(format!("{text:?} is no network"), mend)
        })
    };
    field.list().unwrap_or_default().iter().filter_map(|element| element.parsed(parse)).collect()
}

pub(super) fn hot(top: &Section<'_>) -> Hot {
    let section = top.section("hot", fields::HOT);
    let prefix = section.parsed("prefix", parse_prefix).unwrap_or_else(|| "dedup".to_owned());
    let timeout = section.duration("timeout", MILLISECOND..=5 * SECOND).unwrap_or(50 * MILLISECOND);
    let near_ttl = section.duration("near_ttl", Duration::ZERO..=MINUTE).unwrap_or(10 * SECOND);
    let bytes_max = section.size("memory_limit", MIB..=64 * GIB).unwrap_or(8 * MIB);
    match section.field("url").and_then(|field| store_url::read(&field, &store_url::REDIS)) {
        Some(url) => Hot::Redis(RedisConfig { url, prefix, timeout, near_ttl }),
        None => Hot::Memory { bytes_max },
    }
}

fn parse_prefix(text: &str) -> Result<String, Fault> {
    if text.is_empty() || text.len() > 64 || !text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'{')
    {
        let mend = "write 1 to 64 visible ASCII characters other than `{`";
        return Err(Fault::new(format!("{text:?} is no prefix for names in Redis"), mend));
    }
    Ok(text.to_owned())
}

/// The durable store where none is named, beside the configuration.
const EMBEDDED_FILE: &str = "umavez.db";

pub(super) fn durable(top: &Section<'_>) -> Durable {
    let section = top.section("durable", fields::DURABLE);
    let timeout = section.duration("timeout", 10 * MILLISECOND..=MINUTE).unwrap_or(DURABLE_TIMEOUT);
    let directory = &top.source.directory;
    let sqlite = |path: &str| Durable::Sqlite { path: directory.join(path), timeout };
    let embedded = || sqlite(EMBEDDED_FILE);
    let Some(field) = section.field("url") else { return embedded() };
    let Some(expanded) = field.expanded() else { return embedded() };
    if let Some(path) = expanded.text.strip_prefix("sqlite:") {
        let path = path.strip_prefix("//").unwrap_or(path);
        if path.is_empty() || path.contains(":memory:") || path.contains('?') {
            field.fail(
                "names no file: the durable store must survive a restart",
                "write \"sqlite:umavez.db\"",
            );
        }
        return sqlite(path);
    }
    match store_url::read(&field, &store_url::POSTGRES) {
        Some(url) => {
            if directory.join(EMBEDDED_FILE).is_file() {
                let text = "umavez.db lies beside this file, and Postgres knows nothing of its events, held ones included; \
                            move them (docs/operations.md, \"From SQLite to Postgres\"), or take that file away";
                section.warn("url", text);
            }
            Durable::Postgres(PostgresConfig { url, timeout })
        }
        None => embedded(),
    }
}

pub(super) fn upstream(section: &Section<'_>) -> Option<Target> {
    let server_name = tls::server_name(section);
    Some(Target { server_name, ..target(&section.field("url")?)? })
}

/// A route's own app: a URL, reached as all are that share `[upstream]`'s certificates; or a table, with its own.
pub(super) fn own_upstream(field: &Field<'_>) -> Option<Target> {
    let Some(table) = field.value.as_table() else { return target(field) };
    let (name, span) = (field.name.clone(), field.span.clone());
    let section = Section::open(field.source, name, Some(table), span, fields::UPSTREAM);
    let (files, server_name) = (tls::app_files(&section), tls::server_name(&section));
    let Some(url) = section.field("url") else {
        if !section.misspells("url") {
            section.fail(
                "url",
                Fault::new("is missing", "write { url = \"https://host:port\", ca = \"FILE\" }"),
            );
        }
        return None;
    };
    let target = target(&url)?;
    for unused in ["ca", "client_certificate", "server_name"] {
        if !target.is_secure() && field.source.serves() && section.field(unused).is_some() {
            let mend = "leave it out, or write https://";
            section.fail(unused, Fault::new("is not used: the app is reached without TLS", mend));
        }
    }
    Some(Target { files: Some(Arc::new(files)), server_name, ..target })
}

/// An app's base URL, with `${NAME}` replaced.
pub(super) fn target(field: &Field<'_>) -> Option<Target> {
    let Some(expanded) = field.expanded() else { return nowhere(field.source) };
    match Target::parse(&expanded.text) {
        Ok(target) => Some(target),
        Err(fault) => {
            field.report(fault);
            None
        }
    }
}

/// An app for who asks none.
pub(super) fn nowhere(source: &Source<'_>) -> Option<Target> {
    (!source.serves()).then(|| Target::parse("http://nowhere.invalid").expect("it is a URL"))
}

pub(super) fn limits(top: &Section<'_>) -> Limits {
    let section = top.section("limits", fields::LIMITS);
    let default = Limits::default();
    let time = |name, default| section.duration(name, 10 * MILLISECOND..=HOUR).unwrap_or(default);
    let bytes = |name, bounds: RangeInclusive<usize>, default| section.size(name, bounds).unwrap_or(default);
    Limits {
        connections_max: section.count("connections_max", 1..=1_000_000).unwrap_or(default.connections_max),
        header_timeout: time("header_timeout", default.header_timeout),
        header_bytes_max: bytes("header_bytes_max", 8 * KIB..=MIB, default.header_bytes_max),
        body_timeout: time("body_timeout", default.body_timeout),
        idle_timeout: time("idle_timeout", default.idle_timeout),
        connect_timeout: time("connect_timeout", default.connect_timeout),
        answer_bytes_max: bytes("answer_bytes_max", KIB..=GIB, default.answer_bytes_max),
        buffered_bytes_max: bytes("buffered_bytes_max", MIB..=64 * GIB, default.buffered_bytes_max),
        waiting_writes_max: section
            .count("waiting_writes_max", 16..=1_000_000)
            .unwrap_or(default.waiting_writes_max),
    }
}

pub(super) fn log(top: &Section<'_>) -> Log {
    let section = top.section("log", fields::LOG);
    let format = section.parsed("format", |text| match text {
        "auto" => Ok(LogFormat::Auto),
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        other => Err(unknown_word(other, &["auto", "text", "json"])),
    });
    let level = section.parsed("level", LogFilter::parse);
    if level.as_ref().is_some_and(|filter| !filter.names_us) {
        section
            .warn("level", "names others only: nothing of umavez is logged; add a level, such as \"info\"");
    }
    let level = level.map_or_else(|| Log::default().level, |filter| filter.text);
    Log { format: format.unwrap_or_default(), level }
}

/// What to say of a word outside a closed set.
pub(super) fn unknown_word(written: &str, known: &[&str]) -> Fault {
    let number = written.bytes().all(|byte| byte.is_ascii_digit());
    let mend = match nearest(written, known.iter().copied()).filter(|_| !number) {
        Some(name) => format!("did you mean \"{name}\"?"),
        None => format!("write \"{}\"", known.join("\" or \"")),
    };
    Fault::new(format!("{written:?} is not known here"), mend)
}
