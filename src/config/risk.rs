//! Settings that work and are risky: what is said of them, with the way out. Contradictions are errors, and stand
//! where the fields are read.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use http::uri::Scheme;
use http::{Method, StatusCode};

use super::problem::nearest;
use super::source::{Field, Section};
use super::{Listen, OnDurableDown, RouteConfig, RoutePath, Target, units};
use crate::providers::Provider;

/// Warns of what a route that is right on its own risks.
pub(super) fn warn_of_route(route: &Section<'_>, read: &RouteConfig) {
    warn_of_forgers(route, read);
    warn_of_forgetting(route, read);
    match read.on_durable_down {
        OnDurableDown::Reject => {}
        OnDurableDown::HotOnly => route.warn(
            "on_durable_down",
            "while the durable store is down the hot store decides alone: what it forgets meanwhile is forwarded again \
             when a copy comes",
        ),
        OnDurableDown::Bypass => route.warn(
            "on_durable_down",
            "while both stores are down every request is forwarded and none recorded: copies reach the app",
        ),
    }
}

/// Warns of a path in which something is meant for a placeholder, as other programs write them: no request matches it.
pub(super) fn warn_of_path(route: &Section<'_>, path: &RoutePath) {
    for segment in path.0.split('/') {
        let inner = segment.strip_prefix(':').or_else(|| segment.strip_prefix('<')?.strip_suffix('>'));
        let meant = match inner {
            Some(name) => format!("{{{name}}}"),
            None if segment.contains('*') && !segment.contains('{') => {
                "{*rest}, or {name} for one segment".to_owned()
            }
            None => continue,
        };
        let text = format!("{segment:?} matches these characters alone; if it stands for any, write {meant}");
        route.warn("path", text);
    }
}

/// A signature that nobody gave a secret for is warned of with the credentials; here it is routes that have none.
fn warn_of_forgers(route: &Section<'_>, read: &RouteConfig) {
    const RISK: &str = "whoever can reach the path can claim an event's key first, and the real one is then answered \
                        as a copy";
    if !read.client_names.is_empty() {
        return;
    }
    match &read.provider {
        None => {
            let mend = "keep it off the public listener, or name a provider file that signs";
            route.warn("key", format!("no signature is checked: {RISK}; {mend}"));
        }
        Some(provider) if provider.signature.is_none() => {
            let mend = "use a path that nobody guesses, or let only the provider reach it";
            route.warn(
                "provider",
                format!("{} signs nothing that this could check: {RISK}; {mend}", provider.name),
            );
        }
        Some(_) => {}
    }
}

/// What is forgotten too early passes again, and what counts as done too early is lost.
fn warn_of_forgetting(route: &Section<'_>, read: &RouteConfig) {
    let (ttl, show) = (read.terms.durable_ttl, units::show_duration);
    if let Some(provider) = &read.provider
        && ttl < provider.durable_ttl / 2
    {
        let (preset, name) = (show(provider.durable_ttl), &provider.name);
        let text = format!(
            "{} is far below the {preset} in which copies of {name} are known to come: those that come later are \
             forwarded again; leave it out, or write more",
            show(ttl)
        );
        route.warn("durable_ttl", text);
    }
    if route.field("done").is_some() && read.done.0.iter().any(|range| *range.end() >= 500) {
        route.warn(
            "done",
            "counts a failure of the app (5xx) as the end of an event: no copy passes any more, and what failed is lost; \
             leave 5xx out",
        );
    }
}

/// Warns of an answer to copies that isn't success to who gets it: it sends them again, or switches the URL off.
pub(super) fn warn_of_copies_answer(
    answer: &Section<'_>,
    provider: Option<&Provider>,
    status: StatusCode,
    content_type: Option<&str>,
    body: &str,
) {
    const RISK: &str = "copies told otherwise come again and again, and some senders switch the URL off";
    let statuses = provider.and_then(|provider| provider.success.as_deref()).unwrap_or(&[200..=299]);
    if !statuses.iter().any(|range| range.contains(&status.as_u16())) {
        let takes: Vec<String> = statuses.iter().map(show_range).collect();
        let who = provider.map_or("a sender", |provider| &provider.name);
        let text = format!(
            "copies are told {}, and {who} takes {} for success: {RISK}; write one of those",
            status.as_u16(),
            takes.join(", ")
        );
        answer.warn("status", text);
    }
    if let Some(provider) = provider
        && provider.misses_in(content_type, body.as_bytes())
    {
        let text = format!(
            "{} takes only an answer that acknowledges in its own words for success: {RISK}; leave duplicate_answer out",
            provider.name
        );
        answer.warn("body", text);
    }
}

fn show_range(range: &RangeInclusive<u16>) -> String {
    if range.start() == range.end() {
        range.start().to_string()
    } else {
        format!("{}-{}", range.start(), range.end())
    }
}

/// Warns of a method that is none of HTTP's own, which only a sender of that name's kind would use.
pub(super) fn warn_of_methods(route: &Section<'_>, methods: &[Method]) {
    const KNOWN: [&str; 9] = ["post", "put", "patch", "delete", "get", "head", "options", "trace", "connect"];
    for method in methods {
        let written = method.as_str().to_lowercase();
        if KNOWN.contains(&&*written) {
            continue;
        }
        let mend = match nearest(&written, KNOWN) {
            Some(near) => format!("did you mean \"{}\"?", near.to_uppercase()),
            None => "is it the sender's?".to_owned(),
        };
        route.warn(
            "method",
            format!("{method} is none of HTTP's own methods, and only such requests are events; {mend}"),
        );
    }
}

/// Warns of what lets strangers in where the listeners are.
pub(super) fn warn_of_listen(section: &Section<'_>, read: &Listen) {
    if let Some(everyone) = read.trusted_proxies.iter().find(|network| network.prefix_len() == 0) {
        let text = format!(
            "{everyone} is everybody: any sender then says whose address, host and scheme the app and the signatures \
             see; name the proxies' own addresses"
        );
        section.warn("trusted_proxies", text);
    }
    if let Some(path) = &read.handover
        && let Some(folder) = path.parent()
        && others_write(folder)
    {
        let text = format!(
            "others may write in {}: whoever puts a socket there first keeps the next process from taking over; name a \
             folder of umavez's user, such as /run/umavez",
            folder.display()
        );
        section.warn("handover", text);
    }
}

fn others_write(folder: &Path) -> bool {
    folder.metadata().is_ok_and(|metadata| metadata.mode() & 0o002 != 0)
}

/// Warns of a store's URL by which keys, answers and the password go unencrypted to another machine. No message shows
/// the URL.
pub(super) fn warn_of_plain(field: &Field<'_>, url: &str) {
    let mend = match url.split_once("://") {
        Some(("redis" | "redis-cluster" | "redis-sentinel", _)) => "write rediss for redis in it",
        Some(("postgres" | "postgresql", rest)) if rest.contains("sslmode=disable") => {
            "write sslmode=verify-full in it"
        }
        Some(_) | None => return,
    };
    if leads_elsewhere(url) {
        let text = format!(
            "is not encrypted, and leads to another machine: who is on the way reads and writes; {mend}"
        );
        field.source.warn(field.span.start, &field.name, text);
    }
}

/// Whether any host of a store's URL is, by all that its spelling tells, another machine's: no loopback address, no
/// socket's path, and no name without a dot, which is a neighbour's in a network of containers.
fn leads_elsewhere(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    // A password may hold anything but an `@` that isn't the last one before the host.
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    let hosts = rest.split(['/', '?']).next().unwrap_or_default();
    hosts.split(',').any(|host| {
        let host = match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
            Some((host, _)) => host,
            None => host.split(':').next().unwrap_or_default(),
        };
        match host.parse::<IpAddr>() {
            Ok(address) => !address.is_loopback() && !address.is_unspecified(),
            Err(_) => host.trim_end_matches('.').contains('.'),
        }
    })
}

/// Warns of an app's `field` that leads back to the public listener.
pub(super) fn warn_of_loop(section: &Section<'_>, field: &str, target: Option<&Target>, public: SocketAddr) {
    if target.is_some_and(|target| leads_to(target, public)) {
        let text = format!(
            "points at this gateway's own public listener, {public}: requests go in circles; name the app"
        );
        section.warn(field, text);
    }
}

/// Whether `target` is the listener at `public`, as far as addresses tell: names are not looked up.
fn leads_to(target: &Target, public: SocketAddr) -> bool {
    let default = if target.scheme == Scheme::HTTPS { 443 } else { 80 };
    let host = target.authority.host();
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>().ok();
    let local = host.eq_ignore_ascii_case("localhost")
        || address.is_some_and(|address| address.is_loopback() || address.is_unspecified());
    target.authority.port_u16().unwrap_or(default) == public.port()
        && (address == Some(public.ip())
            || local && (public.ip().is_unspecified() || (address.is_none() && public.ip().is_loopback())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_on_another_machine_is_known() {
        for (url, elsewhere) in [
            ("redis://10.0.0.5:6379", true),
            ("redis://:pass@word@cache.example.com:6379/0", true),
            ("redis-cluster://[2001:db8::1]:6379", true),
            ("postgres://u:p@127.0.0.1,db2.example:5433/x?sslmode=disable", true),
            ("redis://127.0.0.1:6379", false),
            ("redis://:p.q@localhost", false),
            ("redis://[::1]:6379", false),
            ("redis://redis:6379", false),
            ("postgres:///x?host=/run/postgresql&sslmode=disable", false),
            ("postgres://u@%2Frun%2Fpostgresql/x", false),
        ] {
            assert_eq!(leads_elsewhere(url), elsewhere, "{url}");
        }
    }

    #[test]
    fn an_app_that_is_the_gateway_itself_is_known() {
        for (url, public, same) in [
            ("http://127.0.0.1:8080", "0.0.0.0:8080", true),
            ("http://localhost:8080/app", "0.0.0.0:8080", true),
            ("http://LOCALHOST:8080", "127.0.0.1:8080", true),
            ("http://0.0.0.0:8080", "0.0.0.0:8080", true),
            ("http://[::1]:8080", "[::]:8080", true),
            ("http://10.0.0.7:8080", "10.0.0.7:8080", true),
            ("http://127.0.0.1", "0.0.0.0:80", true),
            ("https://127.0.0.1", "0.0.0.0:443", true),
            ("http://127.0.0.1:3000", "0.0.0.0:8080", false),
            ("http://127.0.0.2:8080", "127.0.0.1:8080", false),
            ("http://127.0.0.1:8080", "10.0.0.7:8080", false),
            ("http://10.0.0.8:8080", "10.0.0.7:8080", false),
            ("http://app:8080", "0.0.0.0:8080", false),
        ] {
            let target = Target::parse(url).unwrap();
            assert_eq!(leads_to(&target, public.parse().unwrap()), same, "{url} from {public}");
        }
    }
}
