//! The path patterns of one host's routes, and what they match: byte for byte, or spelled otherwise.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use http::Method;
use matchit::Router;

use super::route::Match;
use super::spelling::{canonical, canonical_pattern};
use crate::config::RouteConfig;

/// The patterns of one host.
#[derive(Default)]
pub(super) struct Paths {
    /// Leads to a position in `entries`.
    router: Router<usize>,
    /// The same by the pattern's text, for building.
    positions: HashMap<String, usize>,
    /// The routes under each pattern; their methods differ.
    entries: Vec<Vec<Entry>>,
    /// The same by canonical patterns: what is spelled otherwise leads to the first route that would be meant.
    canonical: Router<usize>,
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
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds a route; gives the name of the one that is in its way.
    pub(super) fn insert(
        &mut self,
        pattern: &str,
        index: usize,
        route: &Arc<RouteConfig>,
    ) -> Result<(), String> {
        // What is implied by `{*rest}`, its empty rest, is no name of its own.
        let own = pattern == route.path.0 || pattern.contains("{*");
        // The names are the route's own, also under a pattern that it only implies.
        let (pattern, (_, names)) = (numbered(pattern).0, numbered(&route.path.0));
        let canonical = own.then(|| canonical_pattern(&pattern)).flatten();
        let position = match self.positions.get(&pattern) {
            Some(position) => *position,
            None => self.new_position(pattern)?,
        };
        let entries = &mut self.entries[position];
        if let Some(other) = entries.iter().find(|other| other.overlaps(route)) {
            return Err(other.route.name.to_string());
        }
        entries.push(Entry { route: Arc::clone(route), index, names });
        if let Some(canonical) = canonical {
            // Of two that differ in spelling only, either tells what is wrong.
            self.canonical.insert(canonical, position).ok();
        }
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
    pub(super) fn insert_where_free(&mut self, pattern: &str, index: usize, route: &Arc<RouteConfig>) {
        if self.insert(pattern, index, route).is_err() {
            tracing::debug!(route = %route.name, pattern, "an implied path belongs to another route");
        }
    }

    pub(super) fn find_canonical(&self, method: &Method, path: &str) -> Option<usize> {
        let entries = &self.entries[*self.canonical.at(path).ok()?.value];
        entries.iter().find(|entry| takes(&entry.route, method)).map(|entry| entry.index)
    }

    /// The route of this path. Where a placeholder stands for something in it, another route of `hosts` may be meant, the
    /// first that is.
    pub(super) fn find(&self, method: &Method, path: &str, hosts: &[&Self]) -> Option<Match> {
        let matched = self.router.at(path).ok()?;
        let entries = &self.entries[*matched.value];
        let meant = |index: usize| {
            let path = if matched.params.is_empty() { return None } else { canonical(path) };
            let meant = hosts.iter().find_map(|paths| paths.find_canonical(method, &path));
            meant.filter(|meant| *meant != index)
        };
        let Some(entry) = entries.iter().find(|entry| takes(&entry.route, method)) else {
            let index = entries.first()?.index;
            let meant = meant(index);
            return Some(Match { index, event: false, path_params: Vec::new(), meant });
        };
        let path_params = if entry.names.is_empty() {
            Vec::new()
        } else {
            let values = matched.params.iter().map(|(_, value)| value);
            let values = values.chain(std::iter::repeat("")).map(str::to_owned);
            entry.names.iter().cloned().zip(values).collect()
        };
        Some(Match { index: entry.index, event: true, path_params, meant: meant(entry.index) })
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
