//! Stores' URLs as an operator writes them: what no store could be reached by is said where it stands, before one is
//! asked. Pure: connects to none. A URL may hold a password, so no message shows it.

use std::net::IpAddr;

use url::{ParseError, Url};

use super::problem::{Fault, nearest};
use super::risk;
use super::secret::Secret;
use super::source::Field;

pub(super) const REDIS: [&str; 6] =
    ["redis", "rediss", "redis-cluster", "rediss-cluster", "redis-sentinel", "rediss-sentinel"];
pub(super) const POSTGRES: [&str; 2] = ["postgres", "postgresql"];

/// Parameters of a Postgres URL; `options[NAME]` besides.
const POSTGRES_PARAMETERS: [&str; 19] = [
    "application_name",
    "dbname",
    "host",
    "hostaddr",
    "options",
    "password",
    "port",
    "ssl-ca",
    "ssl-cert",
    "ssl-key",
    "ssl-mode",
    "ssl-root-cert",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "statement-cache-capacity",
    "target_session_attrs",
    "user",
];
/// What hosts put into the URLs that they hand out, for libpq; left unread.
const LIBPQ_PARAMETERS: [&str; 10] = [
    "channel_binding",
    "client_encoding",
    "connect_timeout",
    "fallback_application_name",
    "gssencmode",
    "keepalives",
    "keepalives_count",
    "keepalives_idle",
    "keepalives_interval",
    "sslsni",
];
const SSL_MODES: [&str; 6] = ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"];

const ENCODE: &str = "; in a user or password write /, ?, # and % as %2F, %3F, %23 and %25";

/// The URL of a store of one of these schemes, if it could lead to one.
pub(super) fn read(field: &Field<'_>, schemes: &[&str]) -> Option<Secret> {
    let url = field.expanded()?;
    let scheme = url.text.split_once("://").map_or("", |(scheme, _)| scheme);
    if !schemes.contains(&scheme) {
        let known = schemes.iter().map(|scheme| format!("{scheme}://")).collect::<Vec<_>>().join(", ");
        field.fail("the URL has no scheme that is known here", format!("write one of {known}"));
        return None;
    }
    let checked = if POSTGRES.contains(&scheme) { postgres(&url.text) } else { redis(scheme, &url.text) };
    if let Err(fault) = checked {
        field.report(fault);
        return None;
    }
    let password = url.text.rsplit_once('@').is_some_and(|(user, _)| {
        user.split_once("://")
            .is_some_and(|(_, user)| user.split_once(':').is_some_and(|(_, p)| !p.is_empty()))
    });
    if password && !url.from_env {
        field.source.warn(
            field.span.start,
            &field.name,
            "the password stands in this file; \"${NAME}\" inside the URL keeps it out",
        );
    }
    risk::warn_of_plain(field, &url.text);
    Some(Secret(url.text.into()))
}

fn redis(scheme: &str, text: &str) -> Result<(), Fault> {
    let (cluster, sentinel) = (scheme.ends_with("-cluster"), scheme.ends_with("-sentinel"));
    let example = match (cluster, sentinel) {
        (true, _) => "write redis-cluster://host:6379?node=host:6379",
        (_, true) => "write redis-sentinel://host:26379?sentinelServiceName=NAME",
        (false, false) => "write redis://host:6379",
    };
    let url = parsed(text, example)?;
    if url.host_str().is_none_or(str::is_empty) {
        return Err(Fault::new("the URL names no host", example));
    }
    let database = url.path().trim_start_matches('/');
    if !database.is_empty() && (cluster || database.parse::<u8>().is_err()) {
        let mend =
            if cluster { "leave it out: a cluster has one" } else { "write such as redis://host:6379/1" };
        let what =
            if cluster { "the URL names a database" } else { "the URL's database is no number up to 255" };
        return Err(Fault::new(what, mend));
    }
    let mut known = vec!["ca"];
    if cluster || sentinel {
        known.push("node");
    }
    if sentinel {
        known.extend(["sentinelServiceName", "sentinelUsername", "sentinelPassword"]);
    }
    for (name, value) in url.query_pairs() {
        known_parameter(&name, &known)?;
        let host_and_port = || value.split_once(':').filter(|(host, port)| !host.is_empty() && is_port(port));
        if name == "node" && host_and_port().is_none() {
            return Err(Fault::new("the URL's node is no host and port", "write node=host:6379"));
        }
        if name == "ca" && !scheme.starts_with("rediss") {
            let mend = format!("leave it out, or write {}", scheme.replacen("redis", "rediss", 1));
            return Err(Fault::new("the URL's ca is of use only with TLS", mend));
        }
    }
    if sentinel && !url.query_pairs().any(|(name, value)| name == "sentinelServiceName" && !value.is_empty())
    {
        return Err(Fault::new("the URL doesn't say which service of the sentinels is meant", example));
    }
    Ok(())
}

fn postgres(text: &str) -> Result<(), Fault> {
    const EXAMPLE: &str = "write postgres://user@host:5432/database";
    let (before, query) = text.split_once('?').unwrap_or((text, ""));
    let (scheme, rest) = before.split_once("://").unwrap_or(("postgres", before));
    // As the ledger takes it apart: several servers, of which the one that takes writes is used.
    let (user, rest) = rest.rsplit_once('@').map_or(("", rest), |(user, rest)| (user, rest));
    let (servers, path) = rest.split_once('/').map_or((rest, ""), |(servers, path)| (servers, path));
    if user.contains(['/', '#']) {
        let mend = format!("{EXAMPLE}{ENCODE}");
        return Err(Fault::new("the URL's user or password holds a / or #, which end a host's name", mend));
    }
    let at = if user.is_empty() { "" } else { "@" };
    for server in servers.split(',') {
        if server.is_empty() && servers.contains(',') {
            return Err(Fault::new("the URL names a server without a host", EXAMPLE));
        }
        parsed(&format!("{scheme}://{user}{at}{server}/{path}?{query}"), EXAMPLE)?;
    }
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let read = !(name.starts_with("options[") && name.ends_with(']'));
        if read && !LIBPQ_PARAMETERS.contains(&&*name) {
            known_parameter(&name, &POSTGRES_PARAMETERS)?;
        }
        let right = match &*name {
            "sslmode" | "ssl-mode" => SSL_MODES.iter().any(|mode| value.eq_ignore_ascii_case(mode)),
            "port" => is_port(&value),
            "hostaddr" => value.parse::<IpAddr>().is_ok(),
            "statement-cache-capacity" => value.parse::<usize>().is_ok(),
            _ => true,
        };
        if !right {
            let mend = match &*name {
                "sslmode" | "ssl-mode" => format!("write {}", SSL_MODES.join(", ")),
                "port" => "write a number from 1 to 65535".to_owned(),
                "hostaddr" => "write an IP address, or host=NAME".to_owned(),
                _ => "write a number".to_owned(),
            };
            return Err(Fault::new(format!("the URL's {name} is none that is known here"), mend));
        }
    }
    Ok(())
}

fn parsed(text: &str, example: &str) -> Result<Url, Fault> {
    let hint = if text.contains('@') { ENCODE } else { "" };
    let mend = || format!("{example}{hint}");
    match Url::parse(text) {
        Ok(url) if url.port() == Some(0) => Err(Fault::new("the URL's port is 0", mend())),
        Ok(url) => Ok(url),
        Err(ParseError::InvalidPort) => {
            Err(Fault::new("the URL's port is no number from 1 to 65535", mend()))
        }
        Err(ParseError::EmptyHost) => Err(Fault::new("the URL names no host", mend())),
        Err(error) => Err(Fault::new(format!("the URL can't be read: {error}"), mend())),
    }
}

fn known_parameter(name: &str, known: &[&str]) -> Result<(), Fault> {
    if known.contains(&name) {
        return Ok(());
    }
    // What isn't a word may be the rest of a password.
    let word =
        name.len() <= 40 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    let told = if word { format!(" {name:?}") } else { String::new() };
    let mend = match nearest(name, known.iter().copied()).filter(|_| word) {
        Some(near) => format!("did you mean {near:?}?"),
        None => format!("leave it out; known are {}", known.join(", ")),
    };
    Err(Fault::new(format!("the URL has a parameter{told} that is not known here"), mend))
}

fn is_port(text: &str) -> bool {
    text.parse::<u16>().is_ok_and(|port| port > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(url: &str) -> String {
        let scheme = url.split_once("://").unwrap().0;
        let checked = if POSTGRES.contains(&scheme) { postgres(url) } else { redis(scheme, url) };
        checked.map_or_else(|fault| fault.to_string(), |()| String::new())
    }

    #[test]
    fn a_url_that_leads_nowhere_is_told_before_a_store_is_asked() {
        // Each passed `check --offline`, and ended `check` and `run` with 1, without a place; unknown parameters were
        // taken without a word.
        for (url, why) in [
            ("redis://h:zz", "port is no number"),
            ("redis://127.0.0.1:99999", "port is no number"),
            ("redis://h:0", "port is 0"),
            ("redis://:99999", "the URL"),
            ("redis://:6379", "names no host"),
            ("redis://", "names no host"),
            ("redis://127.0.0.1:1/abc", "no number up to 255"),
            ("redis://127.0.0.1:1/256", "no number up to 255"),
            ("redis://h/1/2", "no number up to 255"),
            ("redis://h?foo=bar", "parameter \"foo\""),
            ("redis://h?node=b:1", "parameter \"node\""),
            ("redis://h?ca=/x", "write rediss"),
            ("redis-cluster://h/1", "a cluster has one"),
            ("redis-cluster://h?node=b", "write node=host:6379"),
            ("rediss-cluster://h?nodes=b:1", "did you mean \"node\"?"),
            ("redis-sentinel://h", "which service"),
            ("redis-sentinel://h?sentinelservicename=x", "did you mean \"sentinelServiceName\"?"),
            ("redis://u:12?secret@h", "a parameter that is not known"),
            ("redis://u:secret/x@h", "%2F"),
            ("postgres://u:p@127.0.0.1:abc/x", "port is no number"),
            ("postgres://u:p@:99999999/x", "the URL"),
            ("postgres://u@a,b:0/x", "port is 0"),
            ("postgres://u@a,/x", "without a host"),
            ("postgres://h/x?sslmode=zzz", "verify-full"),
            ("postgres://h/x?port=zz", "1 to 65535"),
            ("postgres://h/x?foo=bar", "parameter \"foo\""),
            ("postgres://h/x?ssl_mode=require", "did you mean"),
            ("postgres://u:secret#1@h/x", "the URL"),
            // The host was `u`, which nobody had written.
            ("postgres://u:12/secret@h/x", "%2F"),
        ] {
            let told = told(url);
            assert!(told.contains(why), "{url}: {told}");
            assert!(!told.contains("secret"), "{url}: {told}");
        }
    }

    #[test]
    fn what_stores_take_passes() {
        for url in [
            "redis://127.0.0.1:6379",
            "redis://h",
            "redis://h/",
            "rediss://u:p%2F@h:1/15?ca=/etc/ca.pem",
            "redis://:pass@word@cache.example.com:6379/0",
            "redis-cluster://[2001:db8::1]:6379",
            "rediss-cluster://a:1?node=b:2&node=c:3&ca=x.pem",
            "redis-sentinel://a:1?sentinelServiceName=m&node=b:2&sentinelUsername=u&sentinelPassword=p",
            "postgres://h",
            "postgresql://u:p@h/x",
            "postgres:///db?host=/run/postgresql",
            "postgres://u@%2Frun%2Fpostgresql/x",
            "postgres://u@a,[::1]:5/db?sslmode=VERIFY-FULL&sslrootcert=/x&target_session_attrs=read-write",
            "postgres://h/x?options=-c%20a%3Db&options[c]=d&statement-cache-capacity=0&hostaddr=::1",
        ] {
            assert_eq!(told(url), "", "{url}");
        }
    }
}
