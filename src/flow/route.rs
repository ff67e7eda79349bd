//! Which route a request belongs to: host, then path pattern, then method. Paths are compared as they came,
//! byte for byte: nothing is decoded or normalised.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use http::Method;
use matchit::Router;

use crate::config::RouteConfig;

/// Every route, ready to be matched.
#[derive(Debug, Default)]
pub struct RouteTable {
    any_host: Paths,
    /// By lower-case host without port.
    hosts: HashMap<String, Paths>,
}

/// What a request matched.
#[derive(Clone, Debug)]
pub struct Found {
    pub route: Arc<RouteConfig>,
    /// The route's position in the configuration.
    pub index: usize,
    /// Values of the pattern's placeholders, as they stand in the path. Not allocated where there are none.
    pub path_params: Vec<(String, String)>,
    /// False where the path is the route's and the method isn't: a handshake, a probe.
    pub event: bool,
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

    /// The route of a request, by its path and, among routes of one path, by its method. `host` is as in the request: any case, with or
    /// without a port. A route of that host stands before routes of any host.
    pub fn find(&self, method: &Method, host: Option<&str>, path: &str) -> Option<Found> {
        if !self.hosts.is_empty()
            && let Some(paths) = host.and_then(|host| self.host(without_port(host)))
            && let Some(found) = paths.find(method, path)
        {
            return Some(found);
        }
        self.any_host.find(method, path)
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

/// The patterns of one host.
#[derive(Default)]
struct Paths {
    /// Leads to a position in `entries`.
    router: Router<usize>,
    /// The same by the pattern's text, for building.
    positions: HashMap<String, usize>,
    /// The routes under each pattern; their methods differ.
    entries: Vec<Vec<Entry>>,
}

/// One route under a pattern.
#[derive(Debug)]
struct Entry {
    route: Arc<RouteConfig>,
    index: usize,
    /// The route's own names for the pattern's placeholders, in order.
    names: Vec<String>,
}

impl Paths {
    /// Adds a route; gives the name of the one that is in its way.
    fn insert(&mut self, pattern: &str, index: usize, route: &Arc<RouteConfig>) -> Result<(), String> {
        let (pattern, names) = numbered(pattern);
        let position = match self.positions.get(&pattern) {
            Some(position) => *position,
            None => self.new_position(pattern)?,
        };
        let entries = &mut self.entries[position];
        if let Some(other) = entries.iter().find(|other| other.overlaps(route)) {
            return Err(other.route.name.to_string());
        }
        entries.push(Entry { route: Arc::clone(route), index, names });
        Ok(())
    }

    fn new_position(&mut self, pattern: String) -> Result<usize, String> {
        let position = self.entries.len();
        match self.router.insert(pattern.clone(), position) {
            Ok(()) => {}
            Err(matchit::InsertError::Conflict { with }) => {
                let other = self.positions.get(&with).and_then(|position| self.entries[*position].first());
                return Err(other.map_or(with, |entry| entry.route.name.to_string()));
            }
            Err(other) => return Err(other.to_string()),
        }
        self.positions.insert(pattern, position);
        self.entries.push(Vec::new());
        Ok(position)
    }

    /// Adds a route under a pattern that it only implies, unless another wants those requests.
    fn insert_where_free(&mut self, pattern: &str, index: usize, route: &Arc<RouteConfig>) {
        if self.insert(pattern, index, route).is_err() {
            tracing::debug!(route = %route.name, pattern, "an implied path belongs to another route");
        }
    }

    fn find(&self, method: &Method, path: &str) -> Option<Found> {
        let matched = self.router.at(path).ok()?;
        let entries = &self.entries[*matched.value];
        let event = entries.iter().find(|entry| takes(&entry.route, method));
        let entry = event.or_else(|| entries.first())?;
        let path_params = if entry.names.is_empty() {
            Vec::new()
        } else {
            // An implied pattern without the rest leaves its name without a value.
            let values = matched.params.iter().map(|(_, value)| value).chain(std::iter::repeat(""));
            entry.names.iter().cloned().zip(values.map(str::to_owned)).collect()
        };
        Some(Found { route: Arc::clone(&entry.route), index: entry.index, path_params, event: event.is_some() })
    }
}

impl fmt::Debug for Paths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Paths")
    }
}

impl Entry {
    /// Whether some request would be both routes'.
    fn overlaps(&self, other: &RouteConfig) -> bool {
        match (&self.route.methods, &other.methods) {
            (Some(mine), Some(others)) => mine.iter().any(|method| others.contains(method)),
            (Some(mine), None) => mine.iter().any(|method| takes(other, method)),
            (None, Some(others)) => others.iter().any(|method| takes(&self.route, method)),
            (None, None) => true,
        }
    }
}

/// Whether requests with this method are the route's events.
fn takes(route: &RouteConfig, method: &Method) -> bool {
    match &route.methods {
        Some(methods) => methods.contains(method),
        None => {
            ![Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE, Method::CONNECT].contains(method)
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

/// A pattern with its placeholders numbered, so that patterns which differ only in names are one; and the names.
fn numbered(pattern: &str) -> (String, Vec<String>) {
    let mut text = String::with_capacity(pattern.len());
    let mut names = Vec::new();
    for chunk in pattern.split_inclusive('}') {
        let Some((before, name)) = chunk.split_once('{') else {
            text.push_str(chunk);
            continue;
        };
        let name = name.trim_end_matches('}');
        let star = if name.starts_with('*') { "*" } else { "" };
        text.push_str(&format!("{before}{{{star}p{}}}", names.len()));
        names.push(name.trim_start_matches('*').to_owned());
    }
    (text, names)
}

/// A host without its port; `[::1]:80` becomes `[::1]`.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.is_empty() => name,
        Some(_) | None => host,
    }
}
