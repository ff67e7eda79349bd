//! Settings that work and are risky: what is said of them, with the way out. Contradictions are errors, and stand
//! where the fields are read.

use std::net::{IpAddr, SocketAddr};

use http::uri::Scheme;

use super::source::Section;
use super::{OnDurableDown, RouteConfig, Target};

/// Warns of what a route that is right on its own risks.
pub(super) fn warn_of_route(route: &Section<'_>, read: &RouteConfig) {
    warn_of_forgers(route, read);
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
