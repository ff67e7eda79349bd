//! Which route a request belongs to: host, then path pattern, then method. Paths are compared as they came,
//! byte for byte: nothing is decoded or normalised.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use http::Method;

use super::paths::Paths;
use super::spelling::canonical;
use crate::config::RouteConfig;

/// Every route, ready to be matched.
#[derive(Debug, Default)]
pub struct RouteTable {
    any_host: Paths,
    /// By lower-case host without port.
    hosts: HashMap<String, Paths>,
}

/// The route that a request's host and path belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    /// The route's position in the configuration.
    pub index: usize,
    /// False where the route's events come by other methods: the request passes through.
    pub event: bool,
    /// Values of the pattern's placeholders, as they stand in the path. Not allocated where there are none, or
    /// where the request is no event.
    pub path_params: Vec<(String, String)>,
    /// Another route, whose event this is for an app that reads the path as that route has it: the matched one only has
    /// a placeholder there.
    pub meant: Option<usize>,
}

/// Two routes that want the same requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteConflict {
    /// Names of the two, in the configuration's order.
    pub first: String,
    pub second: String,
    pub second_index: usize,
}

impl fmt::Display for RouteConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "matches requests that the route {:?} matches too", self.first)
    }
}

impl RouteTable {
    /// Builds the table, or names every pair of routes that matches the same host, path and method.
    pub fn new(routes: &[Arc<RouteConfig>]) -> Result<Self, Vec<RouteConflict>> {
        let mut table = Self::default();
        let mut conflicts = Vec::new();
        for (index, route) in routes.iter().enumerate() {
            let paths = table.paths(route.host.as_deref());
            if let Err(first) = paths.insert(&route.path.0, index, route) {
                conflicts.push(RouteConflict { first, second: route.name.to_string(), second_index: index });
            }
        }
        // What a pattern matches besides its own text comes last and gives way to any route that was written.
        for (index, route) in routes.iter().enumerate() {
            for pattern in implied_patterns(route) {
                table.paths(route.host.as_deref()).insert_where_free(&pattern, index, route);
            }
        }
        if conflicts.is_empty() { Ok(table) } else { Err(conflicts) }
    }

    /// The route of a request; `None` where no route has its path. `host` is as in the request: any case, with or
    /// without a port. A route of that host stands before routes of any host.
    pub fn find(&self, method: &Method, host: Option<&str>, path: &str) -> Option<Match> {
        let own = self.own(host);
        let found = own.and_then(|paths| paths.find(method, path, &[paths]));
        if found.as_ref().is_some_and(|found| found.event || found.meant.is_some()) {
            return found;
        }
        let any = match own {
            Some(own) => self.any_host.find(method, path, &[own, &self.any_host]),
            None => self.any_host.find(method, path, &[&self.any_host]),
        };
        match found {
            Some(_) => any.filter(|any| any.event).or(found),
            None => any,
        }
    }

    /// The route whose event this would be if its path were spelled as the route has it.
    pub fn find_misspelled(&self, method: &Method, host: Option<&str>, path: &str) -> Option<usize> {
        if self.hosts.is_empty() && self.any_host.is_empty() {
            return None;
        }
        let path = canonical(path);
        let own = self.own(host).and_then(|paths| paths.find_canonical(method, &path));
        own.or_else(|| self.any_host.find_canonical(method, &path))
    }

    /// The patterns of this host alone.
    fn own(&self, host: Option<&str>) -> Option<&Paths> {
        match host {
            Some(host) if !self.hosts.is_empty() => {
                let name = without_port(host);
                self.host(name.strip_suffix('.').unwrap_or(name))
            }
            Some(_) | None => None,
        }
    }

    fn host(&self, host: &str) -> Option<&Paths> {
        if host.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return self.hosts.get(host.to_ascii_lowercase().as_str());
        }
        self.hosts.get(host)
    }

    fn paths(&mut self, host: Option<&str>) -> &mut Paths {
        match host {
            Some(host) => self.hosts.entry(host.to_ascii_lowercase()).or_default(),
            None => &mut self.any_host,
        }
    }
}

/// Patterns a route also matches: the empty rest of `{*rest}`, and what is below it for a provider that appends
/// to the path.
fn implied_patterns(route: &RouteConfig) -> Vec<String> {
    let path = route.path.0.as_str();
    let mut patterns = Vec::new();
    if let Some((before, _)) = path.split_once("{*") {
        patterns.push(before.to_owned());
    } else if route.provider.as_ref().is_some_and(|provider| provider.subpaths) {
        let base = path.trim_end_matches('/');
        patterns.push(format!("{base}/{{*rest}}"));
        patterns.push(format!("{base}/"));
    }
    patterns
}

/// A host without its port; `[::1]:80` becomes `[::1]`.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.is_empty() => name,
        Some(_) | None => host,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{Config, Environment};

    /// Routes by name, host, path and method; an empty host or method is left out.
    fn routes(written: &[(&str, &str, &str, &str)]) -> Result<RouteTable, String> {
        let mut file = String::new();
        for (name, host, path, method) in written {
            file.push_str(&format!(
                "[[route]]\nname = {name:?}\npath = {path:?}\nupstream = \"http://127.0.0.1:1\"\n"
            ));
            let provider = *name == "evolution";
            file.push_str(if provider { "provider = \"evolution\"\n" } else { "key = [\"$.id\"]\n" });
            for (field, value) in [("host", host), ("method", method)].iter().filter(|(_, v)| !v.is_empty()) {
                file.push_str(&format!("{field} = {value:?}\n"));
            }
        }
        let config = Config::parse(Path::new("u.toml"), &file, &Environment::new());
        let (config, _) = config.map_err(|errors| errors.to_string())?;
        RouteTable::new(&config.routes).map_err(|conflicts| format!("{conflicts:?}"))
    }

    #[test]
    fn host_then_path_then_method() {
        let table = routes(&[
            ("exact", "", "/a/exact", ""),
            ("one", "", "/a/{x}", ""),
            ("rest", "", "/b/{*rest}", ""),
            ("put", "", "/m", "PUT"),
            ("get", "", "/m", "GET"),
            ("own", "hooks.example.com", "/a/exact", "POST"),
            ("evolution", "", "/evo", ""),
            ("below", "", "/evo/connection-update", ""),
        ])
        .unwrap();
        let found = |method: &str, host: &str, path: &str| {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let found = table.find(&method, Some(host).filter(|host| !host.is_empty()), path)?;
            let params: Vec<String> =
                found.path_params.iter().map(|(name, value)| format!("{name}={value}")).collect();
            Some((found.index, found.event, params.join(",")))
        };
        let event = |index: usize, params: &str| Some((index, true, params.to_owned()));
        let passes = |index: usize| Some((index, false, String::new()));
        assert_eq!(found("POST", "", "/a/exact"), event(0, ""));
        assert_eq!(found("POST", "", "/a/other"), event(1, "x=other"));
        assert_eq!(found("POST", "", "/a/%2e%2E"), event(1, "x=%2e%2E"));
        assert_eq!(found("POST", "", "/a/"), None);
        assert_eq!(found("POST", "", "/A/exact"), None);
        assert_eq!(found("POST", "", "//a/exact"), None);
        assert_eq!(found("POST", "", "/a/exact/"), None);
        assert_eq!(found("POST", "", "/b/c/d"), event(2, "rest=c/d"));
        assert_eq!(found("POST", "", "/b/"), event(2, "rest="));
        assert_eq!(found("POST", "", "/b"), None);
        assert_eq!(found("PUT", "", "/m"), event(3, ""));
        assert_eq!(found("GET", "", "/m"), event(4, ""));
        assert_eq!(found("POST", "", "/m"), passes(3));
        assert_eq!(found("HEAD", "", "/a/exact"), passes(0));
        assert_eq!(found("POST", "Hooks.Example.COM:8443", "/a/exact"), event(5, ""));
        assert_eq!(found("PUT", "hooks.example.com", "/a/exact"), event(0, ""));
        assert_eq!(found("GET", "hooks.example.com", "/a/exact"), passes(5));
        assert_eq!(found("POST", "other.example.com", "/a/exact"), event(0, ""));
        assert_eq!(found("POST", "[::1]:80", "/a/exact"), event(0, ""));
        assert_eq!(found("POST", "", "/evo"), event(6, ""));
        assert_eq!(found("POST", "", "/evo/messages-upsert"), event(6, ""));
        assert_eq!(found("POST", "", "/evo/connection-update"), event(7, ""));
    }

    #[test]
    fn another_spelling_of_a_path_is_known_for_what_it_is() {
        let table = routes(&[
            ("exact", "", "/a/exact", ""),
            ("one", "", "/Tenants/{x}/In/", ""),
            ("rest", "", "/b/{*rest}", ""),
            ("own", "hooks.example.com", "/own", "POST"),
            ("evolution", "", "/evo", ""),
        ])
        .unwrap();
        let meant = |method: Method, host: &str, path: &str| {
            assert!(table.find(&method, Some(host), path).is_none_or(|found| !found.event), "{path}");
            table.find_misspelled(&method, Some(host), path)
        };
        for path in ["/A/exact", "/a/exact/", "//a/exact", "/a/%65xact", "/a/./exact", "/c/../a/exact;v=1"] {
            assert_eq!(meant(Method::POST, "any", path), Some(0), "{path}");
            assert_eq!(meant(Method::GET, "any", path), None, "{path}");
        }
        assert_eq!(meant(Method::POST, "any", "/tenants/Shop/in"), Some(1));
        assert_eq!(meant(Method::POST, "any", "/B/c/d"), Some(2));
        assert_eq!(meant(Method::POST, "hooks.example.com.:443", "/OWN"), Some(3));
        assert_eq!(meant(Method::POST, "other.example.com", "/OWN"), None);
        assert_eq!(meant(Method::POST, "any", "/EVO/messages-upsert"), Some(4));
        for path in ["/", "/a", "/a/exact/more", "/b", "/login/", "/Other"] {
            assert_eq!(meant(Method::POST, "any", path), None, "{path}");
        }
    }

    #[test]
    fn routes_that_want_the_same_requests_are_refused() {
        let refused = [
            [("a", "", "/x", ""), ("b", "", "/x", "")],
            [("a", "", "/x", ""), ("b", "", "/x", "PATCH")],
            [("a", "", "/{n}", "PUT"), ("b", "", "/{m}", "PUT")],
            [("a", "h.example.com", "/x", ""), ("b", "H.example.com", "/x", "")],
            [("a", "", "/{x}", ""), ("b", "", "/{*rest}", "")],
        ];
        for written in refused {
            let told = routes(&written).unwrap_err();
            assert!(told.contains("the route \"a\" matches too"), "{written:?}: {told}");
        }
        let taken = [
            [("a", "", "/x", "GET"), ("b", "", "/x", "")],
            [("a", "", "/x", "PUT"), ("b", "", "/x", "POST")],
            [("a", "", "/x/y", ""), ("b", "", "/{*rest}", "")],
            [("a", "h.example.com", "/x", ""), ("b", "", "/x", "")],
        ];
        for written in taken {
            assert!(routes(&written).is_ok(), "{written:?}");
        }
    }
}
