//! What differs between the configuration that runs and the one that was read again: what a reload takes over, and
//! what only a restart does.

use std::sync::Arc;

use super::{Config, Limits, Listen, RouteConfig};
use crate::tls::Files;

/// What a reload changed, and what it left as it was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Routes by name.
    pub added: Vec<String>,
    pub removed: Vec<String>,
    pub changed: Vec<String>,
    /// Other settings that hold from now on, as they are written: `upstream.url`.
    pub settings: Vec<&'static str>,
    /// Settings that differ and are left as they were: they need a restart.
    pub need_restart: Vec<&'static str>,
}

impl Changes {
    /// Whether the file says what runs already.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn note<T: PartialEq>(&mut self, name: &'static str, running: &mut T, new: T) {
        if *running != new {
            *running = new;
            self.settings.push(name);
        }
    }

    fn leave<T: PartialEq>(&mut self, name: &'static str, running: &T, new: &T) {
        if running != new {
            self.need_restart.push(name);
        }
    }
}

impl Config {
    /// Takes over from `new` what can change while a gateway runs. Every field is named here, so that a new one has to
    /// be decided about.
    pub fn adopt(&mut self, new: Self) -> Changes {
        let mut changes = Changes::default();
        let Self { listen, tls, hot, durable, upstream, routes, limits, log, traces } = new;
        self.listen.adopt(listen, &mut changes);
        let Files { public, admin, app, own, collector } = tls;
        changes.note("public_tls", &mut self.tls.public, public);
        changes.note("admin_tls", &mut self.tls.admin, admin);
        changes.note("upstream.ca or client_certificate", &mut self.tls.app, app);
        // Told with the routes, which name them, and with the traces.
        self.tls.own = own;
        self.tls.collector = collector;
        changes.leave("hot", &self.hot, &hot);
        changes.leave("durable", &self.durable, &durable);
        changes.note("upstream.url", &mut self.upstream, upstream);
        self.limits.adopt(&limits, &mut changes);
        changes.leave("log", &self.log, &log);
        changes.note("traces", &mut self.traces, traces);
        compare_routes(&self.routes, &routes, &mut changes);
        self.routes = routes;
        changes
    }
}

impl Listen {
    fn adopt(&mut self, new: Self, changes: &mut Changes) {
        let Self { public, admin, admin_token, trusted_proxies, workers, grace, handover } = new;
        changes.leave("listen.public", &self.public, &public);
        changes.leave("listen.admin", &self.admin, &admin);
        changes.note("listen.admin_token", &mut self.admin_token, admin_token);
        changes.note("listen.trusted_proxies", &mut self.trusted_proxies, trusted_proxies);
        changes.leave("listen.workers", &self.workers, &workers);
        changes.leave("listen.grace", &self.grace, &grace);
        changes.leave("listen.handover", &self.handover, &handover);
    }
}

impl Limits {
    fn adopt(&mut self, new: &Self, changes: &mut Changes) {
        let Self {
            connections_max,
            header_timeout,
            header_bytes_max,
            body_timeout,
            idle_timeout,
            connect_timeout,
            answer_bytes_max,
            buffered_bytes_max,
            waiting_writes_max,
        } = new;
        changes.leave("limits.connections_max", &self.connections_max, connections_max);
        changes.leave("limits.header_timeout", &self.header_timeout, header_timeout);
        changes.leave("limits.header_bytes_max", &self.header_bytes_max, header_bytes_max);
        // These are the routes', which every request brings along.
        changes.note("limits.body_timeout", &mut self.body_timeout, *body_timeout);
        changes.leave("limits.idle_timeout", &self.idle_timeout, idle_timeout);
        changes.leave("limits.connect_timeout", &self.connect_timeout, connect_timeout);
        changes.note("limits.answer_bytes_max", &mut self.answer_bytes_max, *answer_bytes_max);
        changes.note("limits.buffered_bytes_max", &mut self.buffered_bytes_max, *buffered_bytes_max);
        changes.leave("limits.waiting_writes_max", &self.waiting_writes_max, waiting_writes_max);
    }
}

fn compare_routes(running: &[Arc<RouteConfig>], new: &[Arc<RouteConfig>], changes: &mut Changes) {
    let named = |routes: &[Arc<RouteConfig>], name: &str| {
        routes.iter().find(|route| &*route.name == name).map(Arc::clone)
    };
    for route in new {
        match named(running, &route.name) {
            None => changes.added.push(route.name.to_string()),
            Some(before) if !route.is_as(&before) => changes.changed.push(route.name.to_string()),
            Some(_) => {}
        }
    }
    let gone = running.iter().filter(|route| named(new, &route.name).is_none());
    changes.removed.extend(gone.map(|route| route.name.to_string()));
}

impl RouteConfig {
    /// Whether both say the same. Compared as they print, which takes in every field and the provider's rules; secrets,
    /// which don't print, by themselves.
    fn is_as(&self, other: &Self) -> bool {
        self.secrets == other.secrets
            && self.verify_tokens == other.verify_tokens
            && format!("{self:?}") == format!("{other:?}")
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Environment;

    const FILE: &str = r#"
[listen]
admin_token = "${T}"
[upstream]
url = "http://127.0.0.1:1"
[[route]]
name = "chat"
path = "/chat"
provider = "meta"
secret = "${S}"
[[route]]
name = "pay"
path = "/pay"
key = ["$.id"]
"#;

    fn read(text: &str, secret: &str) -> Config {
        let env = Environment::from(
            [("S", secret), ("T", "0123456789abcdef")]
                .map(|(name, value)| (name.to_owned(), value.to_owned())),
        );
        Config::parse(Path::new("u.toml"), text, &env).unwrap().0
    }

    #[test]
    fn what_is_the_same_is_no_change() {
        assert!(read(FILE, "one").adopt(read(FILE, "one")).is_empty());
    }

    #[test]
    fn routes_are_told_by_name_and_a_new_secret_is_a_change() {
        let mut running = read(FILE, "one");
        let new = FILE.replace("\"pay\"", "\"paid\"");
        let changes = running.adopt(read(&new, "two"));
        assert_eq!((changes.added, changes.removed), (vec!["paid".to_owned()], vec!["pay".to_owned()]));
        assert_eq!(changes.changed, ["chat"]);
        assert!(running.adopt(read(&new, "two")).is_empty(), "what was adopted runs now");
    }

    #[test]
    fn what_needs_a_restart_is_said_each_time() {
        let mut running = read(FILE, "one");
        let new =
            FILE.replace("[upstream]", "public = \"127.0.0.1:2\"\ntrusted_proxies = [\"::1\"]\n[upstream]");
        let new = format!("[durable]\ntimeout = \"1s\"\nurl = \"postgres://h/d\"\n{new}");
        for settings in [&["listen.trusted_proxies"][..], &[]] {
            let changes = running.adopt(read(&new, "one"));
            assert_eq!(changes.settings, settings);
            assert_eq!(changes.need_restart, ["listen.public", "durable"]);
        }
    }
}
