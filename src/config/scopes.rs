//! Whether keys of two routes can be one and the same text, since a scope may hold a `:` as keys do between their parts.
//! It is warned of only: another spelling of keys would forget what is done.

use std::sync::Arc;

use super::RouteConfig;
use super::pattern::{Piece, pieces};
use crate::ledger::EventKey;
use crate::providers::KeyShape;

/// What stands between two `:` of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    /// Always this.
    Text(String),
    /// Anything between these.
    Open(String, String),
}

/// A segment, and whether keys go without it too.
type Step = (Segment, bool);

/// A route's scope, and what its keys look like.
struct Keys {
    scope: Vec<Segment>,
    whole: Vec<Vec<Step>>,
}

/// What is warned of, by the place of the route in the list; `scoped` tells those with a scope of their own.
pub(super) fn that_meet(routes: &[Arc<RouteConfig>], scoped: &[bool]) -> Vec<(usize, String)> {
    if !scoped.contains(&true) {
        return Vec::new(); // their names differ, and hold no `:`
    }
    let keys: Vec<Keys> = routes.iter().map(|route| Keys::of(route)).collect();
    let mut found = Vec::new();
    for (at, route) in routes.iter().enumerate().filter(|(at, _)| scoped[*at]) {
        if let Some((one, other)) = run_together(&route.scope.0) {
            let text = format!(
                "nothing tells where {{{one}}} ends and {{{other}}} begins: two paths can have one scope, and then an event \
                 of one counts as a copy of the other's; write : between them"
            );
            found.push((at, text));
        }
        // Each pair once. One and the same scope is meant.
        let met = |(other, with): &(usize, &Arc<RouteConfig>)| {
            let first = *other < at || *other > at && !scoped[*other];
            first && route.scope != with.scope && keys[at].meet(&keys[*other])
        };
        let mut others = routes.iter().enumerate().filter(met).map(|(_, with)| &*with.name);
        let Some(first) = others.next() else { continue };
        let more = match others.count() {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        let text = format!(
            "keys of this route and of {first:?}{more} can be the same text, as those of scope \"a:b\" with one part and of \
             \"a\" with two can: one's event then counts as a copy of the other's; begin the scopes with words of their own"
        );
        found.push((at, text));
    }
    found
}

impl Keys {
    fn of(route: &RouteConfig) -> Self {
        let scope = segments(&route.scope.0);
        let whole = route.items.key_shapes().iter().map(|shape| steps(&scope, shape)).collect();
        Self { scope, whole }
    }

    fn meet(&self, other: &Self) -> bool {
        self.scope.iter().zip(&other.scope).all(|(a, b)| a.meets(b))
            && self.whole.iter().any(|a| other.whole.iter().any(|b| can_be_equal(a, b)))
    }
}

fn steps(scope: &[Segment], shape: &KeyShape) -> Vec<Step> {
    let of_scope = scope.iter().map(|segment| (segment.clone(), false));
    let parts = shape.0.iter().map(|(text, optional)| {
        let segment = match text {
            Some(text) => {
                let mut escaped = String::new();
                EventKey::escape(text, &mut escaped);
                Segment::Text(escaped)
            }
            None => Segment::Open(String::new(), String::new()),
        };
        (segment, *optional)
    });
    of_scope.chain(parts).collect()
}

/// Whether some key has both forms: row by row, which of `b`'s beginnings a beginning of `a` can be.
fn can_be_equal(a: &[Step], b: &[Step]) -> bool {
    let without = |row: &mut Vec<bool>| {
        for (at, (_, optional)) in b.iter().enumerate() {
            row[at + 1] |= row[at] && *optional;
        }
    };
    let mut row = vec![false; b.len() + 1];
    row[0] = true;
    without(&mut row);
    for (segment, optional) in a {
        let mut next: Vec<bool> = if *optional { row.clone() } else { vec![false; b.len() + 1] };
        for (at, (other, _)) in b.iter().enumerate() {
            next[at + 1] |= row[at] && segment.meets(other);
        }
        without(&mut next);
        row = next;
    }
    row[b.len()]
}

impl Segment {
    fn meets(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Text(a), Self::Text(b)) => a == b,
            (Self::Text(text), Self::Open(start, end)) | (Self::Open(start, end), Self::Text(text)) => {
                text.len() >= start.len() + end.len() && text.starts_with(&**start) && text.ends_with(&**end)
            }
            (Self::Open(start, end), Self::Open(other_start, other_end)) => {
                (start.starts_with(&**other_start) || other_start.starts_with(&**start))
                    && (end.ends_with(&**other_end) || other_end.ends_with(&**end))
            }
        }
    }
}

/// A scope between its own `:`. What a placeholder stands for holds none.
fn segments(scope: &str) -> Vec<Segment> {
    let mut found = vec![Segment::Text(String::new())];
    let mut escaped = false;
    for piece in pieces(scope) {
        let Piece::Text(text) = piece else {
            let last = found.last_mut().expect("it begins with one");
            *last = match std::mem::replace(last, Segment::Text(String::new())) {
                Segment::Text(start) | Segment::Open(start, _) => Segment::Open(start, String::new()),
            };
            continue;
        };
        for character in text.chars() {
            if character == ':' && !escaped {
                found.push(Segment::Text(String::new()));
                continue;
            }
            escaped = character == '\\' && !escaped;
            match found.last_mut().expect("it begins with one") {
                Segment::Text(text) | Segment::Open(_, text) => text.push(character),
            }
        }
    }
    found
}

/// The first two placeholders that one segment of a scope holds.
fn run_together(scope: &str) -> Option<(&str, &str)> {
    let mut before = None;
    for piece in pieces(scope) {
        match piece {
            Piece::Text(text) if text.contains(':') => before = None,
            Piece::Name(name) => {
                if let Some(before) = before.replace(name) {
                    return Some((before, name));
                }
            }
            Piece::Text(_) | Piece::Open => {}
        }
    }
    None
}
