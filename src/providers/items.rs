//! Finds the items of a delivery and names each.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::Delivery;
use super::json;
use super::path::{Step, place};
use super::read::{Body, Reading};
use super::rules::{Bound, Format, ItemRules, PartRule, Rule, Source, Test};
use super::tree::{Kind, Lack, Stray, Tree, Unread};
use super::trie::{Hop, NONE};

/// One key part: any bytes, never blank.
pub type Part = Box<[u8]>;

/// The items of one delivery, in the body's order.
#[derive(Debug)]
pub struct Items {
    pub list: Vec<Item>,
    pub(super) tree: Tree,
    pub(super) format: Format,
}

/// One event inside a delivery.
#[derive(Debug)]
pub struct Item {
    /// What names it, after the scope.
    pub parts: Result<Vec<Part>, Keyless>,
    /// Its bytes in the body; the whole body where the item is the whole delivery.
    pub span: Range<usize>,
    /// What of it differs between copies of one event, in order.
    volatile: Vec<Range<usize>>,
    pub(super) node: usize,
    steps: Arc<[Step]>,
    positions: Vec<usize>,
    format: Format,
    /// No item that a rule names, but what stands beside such in `node`, and isn't known.
    pub(super) stray: bool,
}

/// Why an item has no key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keyless {
    /// The body could not be read.
    Unread(Unread),
    /// The body is fine, and no rule names anything in it.
    NoItem,
    /// The rule that names the item says that such items have no key.
    NoKey,
    /// It stands beside items, and nothing says that it only describes them.
    Stray,
    /// Every part that could tell events apart is optional and was left out.
    NothingLeft,
    Absent(Arc<str>),
    Null(Arc<str>),
    Blank(Arc<str>),
    NotScalar(Arc<str>),
}

impl fmt::Display for Keyless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unread(Unread::Malformed) => f.write_str("the body is not understood"),
            Self::Unread(Unread::TooDeep) => f.write_str("the body is nested too deeply"),
            Self::Unread(Unread::TooMany) => f.write_str("the body holds too many elements"),
            Self::NoItem => f.write_str("no rule names an item in the body"),
            Self::NoKey => f.write_str("items of this kind have no key"),
            Self::Stray => f.write_str("it stands beside items, and is not known to describe them"),
            Self::NothingLeft => f.write_str("every part that could tell events apart is absent"),
            Self::Absent(part) => write!(f, "{part} is absent"),
            Self::Null(part) => write!(f, "{part} is null"),
            Self::Blank(part) => write!(f, "{part} is blank"),
            Self::NotScalar(part) => write!(f, "{part} is not a single value"),
        }
    }
}

impl Items {
    /// A delivery that is no event.
    pub fn none() -> Self {
        Self { list: Vec::new(), tree: Tree::default(), format: Format::Whole }
    }
}

impl Item {
    /// Its bytes without what differs between copies of one event; `body` is the one that it was found in.
    pub fn lasting<'a>(&'a self, body: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let starts = std::iter::once(self.span.start).chain(self.volatile.iter().map(|span| span.end));
        let ends = self.volatile.iter().map(|span| span.start).chain(std::iter::once(self.span.end));
        starts.zip(ends).map(|(start, end)| body.get(start..end).unwrap_or_default())
    }

    /// Where the item stands in the body: `$`, `[0]`, `entry[0].changes[0].value.messages[0]`, `Notification[0]`.
    pub fn place(&self) -> String {
        if self.format != Format::Xml {
            return place(&self.steps, &self.positions);
        }
        // From the name of its list on. Of the lists around that the first one's first element goes without saying.
        let lists: Vec<usize> = (0..self.steps.len()).filter(|at| self.steps[*at] == Step::Each).collect();
        let around = self.positions.iter().take(lists.len().saturating_sub(1));
        let unsaid = around.take_while(|position| **position == 0).count();
        let named = lists.get(unsaid).copied().unwrap_or(self.steps.len());
        place(&self.steps[named.saturating_sub(1)..], self.positions.get(unsaid..).unwrap_or_default())
    }
}

impl ItemRules {
    /// Finds the items of a delivery. Empty only where the body holds a list that the rules know, with nothing in it.
    pub fn items(&self, delivery: &Delivery<'_>) -> Items {
        let reading = Reading::new(delivery, &self.0);
        let nodes = reading.tree().map_or(1, |(tree, _)| tree.nodes.len().max(1));
        let mut search = Search {
            reading: &reading,
            found: Vec::new(),
            taken: vec![false; nodes],
            items: vec![false; nodes],
            empty: vec![false; nodes],
            met_list: false,
        };
        for rule in &self.0.rules {
            search.apply(rule);
        }
        // Where a delivery is one event, whatever stands beside it is that event's.
        let strays = if search.met_list { search.strays() } else { Vec::new() };
        let Search { mut found, taken, met_list, .. } = search;
        if met_list || !found.is_empty() {
            found.extend(strays);
        } else {
            let why = match &reading.body {
                Body::Unread(why) => Keyless::Unread(*why),
                Body::Json(..) | Body::Xml(_) | Body::Form | Body::Unneeded => Keyless::NoItem,
            };
            found.push(whole(Err(why), delivery));
        }
        found.sort_by_key(|item| item.span.start);
        let (mut tree, format) = match reading.body {
            Body::Json(tree, std::borrow::Cow::Borrowed(_)) => (tree, Format::Json),
            Body::Xml(tree) => (tree, Format::Xml),
            // Items inside a form's field can't be cut out of the form.
            Body::Json(..) | Body::Form | Body::Unread(_) | Body::Unneeded => {
                (Tree::default(), Format::Whole)
            }
        };
        for (node, taken) in tree.nodes.iter_mut().zip(taken) {
            node.taken = taken;
        }
        Items { list: found, tree, format }
    }
}

fn whole(parts: Result<Vec<Part>, Keyless>, delivery: &Delivery<'_>) -> Item {
    let span = 0..delivery.body.len();
    let (steps, positions, volatile) = (Arc::new([]), Vec::new(), Vec::new());
    Item { parts, span, volatile, node: 0, steps, positions, format: Format::Whole, stray: false }
}

/// The search for items: rules in order, and an element that an earlier rule took, or that holds one, or that one
/// holds, is no item again. So a wide rule at the end takes what the rules before it left.
struct Search<'a> {
    reading: &'a Reading<'a>,
    found: Vec<Item>,
    /// An item, or something that holds one.
    taken: Vec<bool>,
    items: Vec<bool>,
    /// Lists of items with nothing in them.
    empty: Vec<bool>,
    met_list: bool,
}

impl Search<'_> {
    fn apply(&mut self, rule: &Rule) {
        let line = &mut Vec::with_capacity(rule.hops.len() + 1);
        match (rule.format, &self.reading.body) {
            (Format::Whole, _) => {
                line.push(if self.reading.tree().is_some() { 0 } else { NONE });
                self.visit(rule, line);
            }
            (Format::Json, Body::Json(..)) | (Format::Xml, Body::Xml(_)) => {
                line.push(0);
                self.walk(rule, 0, line);
            }
            (Format::Json | Format::Xml, _) => {}
        }
    }

    /// Goes down the rule's path from the last node of `line`.
    fn walk(&mut self, rule: &Rule, depth: usize, line: &mut Vec<usize>) {
        let Some(hop) = rule.hops.get(depth) else { return self.visit(rule, line) };
        let Some((tree, _)) = self.reading.tree() else { return };
        let at = line[depth];
        if self.items[at] {
            return;
        }
        if *hop != Hop::Each {
            if let Some(next) = tree.child(at, *hop) {
                line.push(next);
                self.walk(rule, depth + 1, line);
                line.pop();
            }
            return;
        }
        if tree.nodes[at].kind == Kind::Array {
            self.met_list = true;
            self.empty[at] = tree.elements(at).next().is_none();
        }
        for next in tree.elements(at) {
            line.push(next);
            self.walk(rule, depth + 1, line);
            line.pop();
        }
    }

    fn visit(&mut self, rule: &Rule, line: &[usize]) {
        let node = line.last().copied().filter(|node| *node != NONE).unwrap_or(0);
        if self.taken[node] || !rule.when.iter().all(|(source, test)| self.holds(source, test, line)) {
            return;
        }
        let parts = match &rule.parts {
            Some(parts) => self.parts(parts, line),
            None => Err(Keyless::NoKey),
        };
        if parts.is_err() && self.empty[node] {
            return; // nothing is in it, and nothing names it
        }
        for ancestor in line {
            if let Some(taken) = self.taken.get_mut(*ancestor) {
                *taken = true;
            }
        }
        self.taken[node] = true;
        self.items[node] = true;
        self.found.push(self.item(rule, node, line, parts));
    }

    fn item(&self, rule: &Rule, node: usize, line: &[usize], parts: Result<Vec<Part>, Keyless>) -> Item {
        let volatile = self.volatile(rule, line, node);
        let Some((tree, _)) = self.reading.tree().filter(|_| rule.format != Format::Whole) else {
            return Item { volatile, ..whole(parts, self.reading.delivery) };
        };
        let pairs = rule.hops.iter().zip(&line[1..]).filter(|(hop, _)| **hop == Hop::Each);
        let positions = pairs.map(|(_, node)| tree.nodes[*node].position).collect();
        let span = self.span(tree.span(node));
        let (steps, format) = (Arc::clone(&rule.steps), rule.format);
        Item { parts, span, volatile, node, steps, positions, format, stray: false }
    }

    /// Where in the delivery that stands which differs between copies of the item at the end of `line`.
    fn volatile(&self, rule: &Rule, line: &[usize], item: usize) -> Vec<Range<usize>> {
        let (Body::Json(tree, std::borrow::Cow::Borrowed(_)) | Body::Xml(tree)) = &self.reading.body else {
            return Vec::new();
        };
        let bounds = rule.volatile.iter().filter_map(|(_, source)| match source {
            Source::Json(bound) | Source::Xml(bound) => Some(bound),
            Source::Literal(_) | Source::Header(_) | Source::Query(_) | Source::Path(_) | Source::Form(_) => {
                None
            }
        });
        let node = |bound: &Bound| tree.descend(*line.get(bound.from)?, &bound.hops);
        let inside = |node: &usize| tree.and_above(*node).any(|around| around == item);
        let nodes = bounds.filter_map(node).filter(inside);
        let mut spans: Vec<Range<usize>> = nodes.map(|node| tree.span(node)).collect();
        spans.retain(|span| span.start < span.end);
        spans.sort_by_key(|span| (span.start, std::cmp::Reverse(span.end)));
        let mut end = 0;
        spans.retain(|span| {
            span.start >= end && {
                end = span.end;
                true
            }
        });
        spans
    }

    /// Where in the delivery something stands that its tree has at `span`.
    fn span(&self, span: Range<usize>) -> Range<usize> {
        match &self.reading.body {
            Body::Json(_, std::borrow::Cow::Owned(_)) => 0..self.reading.delivery.body.len(),
            Body::Json(..) | Body::Xml(_) | Body::Form | Body::Unread(_) | Body::Unneeded => span,
        }
    }

    /// What stands beside the items and isn't known: it passes as they do without a key. What is inside an item is
    /// that item's.
    fn strays(&self) -> Vec<Item> {
        let Some((tree, text)) = self.reading.tree() else { return Vec::new() };
        let outside = |stray: &&Stray| !tree.and_above(stray.node).any(|node| self.items[node]);
        let item = |stray: &Stray| {
            let mut steps = stray.way.to_vec();
            if let Some(name) = stray.name.clone().and_then(|name| json::unescape(&text[name])) {
                steps.push(Step::Member(String::from_utf8_lossy(&name).into()));
            }
            let mut positions: Vec<usize> = tree
                .and_above(stray.node)
                .filter(|node| tree.list_of(*node) != NONE)
                .map(|node| tree.nodes[node].position)
                .collect();
            positions.reverse();
            Item {
                parts: Err(Keyless::Stray),
                span: self.span(stray.span.clone()),
                volatile: Vec::new(),
                node: stray.node,
                steps: steps.into(),
                positions,
                format: Format::Json,
                stray: true,
            }
        };
        tree.strays.iter().filter(outside).map(item).collect()
    }

    fn holds(&self, source: &Source, test: &Test, line: &[usize]) -> bool {
        let value = self.reading.value(source, line);
        match test {
            // An object or array is there, though it can't be a part.
            Test::Present(wanted) => matches!(value, Ok(_) | Err(Lack::NotScalar)) == *wanted,
            Test::There => matches!(value, Ok(_) | Err(Lack::NotScalar | Lack::Blank)),
            Test::OneOf(values) => value.is_ok_and(|value| {
                // XML is laid out as its writer likes, and `true` on a line of its own is `true`.
                let value = if matches!(source, Source::Xml(_)) { value.trim_ascii() } else { &value };
                values.iter().any(|wanted| **wanted == *value)
            }),
        }
    }

    fn parts(&self, rules: &[PartRule], line: &[usize]) -> Result<Vec<Part>, Keyless> {
        let mut parts = Vec::with_capacity(rules.len());
        let mut named = false;
        for rule in rules {
            let mut lack = Lack::Absent;
            let mut found = None;
            for source in &rule.sources {
                match self.reading.value(source, line) {
                    Ok(value) => {
                        named |= !matches!(source, Source::Literal(_));
                        found = Some(value);
                        break;
                    }
                    Err(Lack::Absent) => {}
                    Err(other) => lack = other,
                }
            }
            match found {
                Some(value) => parts.push(value),
                None if rule.optional && lack != Lack::NotScalar => {}
                None => return Err(self.keyless(lack, &rule.text)),
            }
        }
        if named { Ok(parts) } else { Err(Keyless::NothingLeft) }
    }

    fn keyless(&self, lack: Lack, part: &Arc<str>) -> Keyless {
        let part = Arc::clone(part);
        match (lack, &self.reading.body) {
            (Lack::Absent, Body::Unread(why)) => Keyless::Unread(*why),
            (Lack::Absent, _) => Keyless::Absent(part),
            (Lack::Null, _) => Keyless::Null(part),
            (Lack::Blank, _) => Keyless::Blank(part),
            (Lack::NotScalar, _) => Keyless::NotScalar(part),
        }
    }
}
