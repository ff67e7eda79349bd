//! Every section of the file and every field it may have. A field that is not here is an error, and
//! `deploy/reference.toml` holds each (a test compares them).

pub(super) const TOP: &[&str] = &[
    "listen",
    "public_tls",
    "admin_tls",
    "hot",
    "durable",
    "upstream",
    "limits",
    "log",
    "traces",
    "providers_dir",
    "route",
];

pub(super) const LISTEN: &[&str] =
    &["public", "admin", "admin_token", "trusted_proxies", "workers", "grace", "handover"];

/// Only senders' names are proved: the admin listener is where the authority doesn't come.
pub(super) const PUBLIC_TLS: &[&str] = &["certificates", "client_ca", "client_auth", "min_version", "acme"];

pub(super) const ACME: &[&str] =
    &["names", "contact", "terms_agreed", "cache", "directory", "directory_ca", "external_account"];

pub(super) const EXTERNAL_ACCOUNT: &[&str] = &["id", "key"];

/// Of `admin_tls`.
pub(super) const TLS: &[&str] = &["certificates", "client_ca", "client_auth", "min_version"];

/// Of each certificate.
pub(super) const PAIR: &[&str] = &["chain", "key"];

pub(super) const HOT: &[&str] = &["url", "prefix", "timeout", "near_ttl", "memory_limit"];

pub(super) const DURABLE: &[&str] = &["url", "timeout"];

/// Of `[upstream]`, and of a route's `upstream` that is a table.
pub(super) const UPSTREAM: &[&str] = &["url", "ca", "client_certificate", "server_name"];

pub(super) const LIMITS: &[&str] = &[
    "connections_max",
    "header_timeout",
    "header_bytes_max",
    "body_timeout",
    "idle_timeout",
    "connect_timeout",
    "answer_bytes_max",
    "buffered_bytes_max",
    "waiting_writes_max",
];

pub(super) const LOG: &[&str] = &["format", "level"];

pub(super) const TRACES: &[&str] =
    &["endpoint", "headers", "ca", "timeout", "sample_ratio", "parent", "paths", "service_name", "resource"];

pub(super) const ROUTE: &[&str] = &[
    "name",
    "host",
    "path",
    "mode",
    "method",
    "provider",
    "key",
    "scope",
    "secret",
    "public_key",
    "webhook_id",
    "public_url",
    "client_name",
    "upstream",
    "timeout",
    "lease",
    "in_flight_wait",
    "in_flight_answer",
    "body_limit",
    "done",
    "on_keyless",
    "on_unsigned",
    "on_unknown",
    "on_durable_down",
    "handshake",
    "verify_token",
    "receipt_limit",
    "receipt_headers",
    "duplicate_answer",
    "hot_ttl",
    "durable_ttl",
    "strip_headers",
    "capture_dir",
    "capture_files",
    "capture_bytes",
];

pub(super) const DUPLICATE_ANSWER: &[&str] = &["status", "content_type", "body"];

/// Sections and their fields, for whoever compares them with a document.
pub const FIELDS: &[(&str, &[&str])] = &[
    ("listen", LISTEN),
    ("public_tls", TLS),
    ("public_tls.acme", ACME),
    ("admin_tls", TLS),
    ("hot", HOT),
    ("durable", DURABLE),
    ("upstream", UPSTREAM),
    ("limits", LIMITS),
    ("log", LOG),
    ("traces", TRACES),
    ("route", ROUTE),
];
