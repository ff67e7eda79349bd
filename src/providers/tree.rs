//! What a scan of a body found: only the places that the rules name, as spans of the body. No values are copied.

use std::ops::Range;
use std::sync::Arc;

use super::json;
use super::path::Step;
use super::trie::{Hop, NONE};

/// Most places that one body may have recorded; bounds memory under hostile bodies.
pub(super) const NODES_MAX: usize = 500_000;

/// Why a body gave no tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// Not JSON, XML or a form, or a broken one.
    Malformed,
    /// Nested past the bound.
    TooDeep,
    /// More places than the bound.
    TooMany,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Null,
    /// `true`, `false` or a number: its text is its value.
    Plain,
    /// A JSON string, quotes included in the span.
    Text,
    /// An XML element without child elements; the index of its text.
    Element(usize),
    Object,
    Array,
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) kind: Kind,
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) parent: usize,
    /// Position among an array's elements.
    pub(super) position: usize,
    /// The array's next element.
    pub(super) next: usize,
    /// Of an array its first element; of an object where its slots begin.
    pub(super) first: usize,
    pub(super) envelope: bool,
    /// An item, or something that holds one.
    pub(super) taken: bool,
}

/// Something that stands beside items, and that no rule knows.
#[derive(Clone, Debug)]
pub(super) struct Stray {
    /// The recorded object that holds it, or itself, where the rules expect something else in its place.
    pub(super) node: usize,
    /// The path of `node`.
    pub(super) way: Arc<[Step]>,
    /// Its name as it stands in the body.
    pub(super) name: Option<Range<usize>>,
    pub(super) span: Range<usize>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Tree {
    pub(super) nodes: Vec<Node>,
    /// For each recorded object one node (or `NONE`) per name that is looked for in it.
    pub(super) slots: Vec<usize>,
    /// Decoded texts of XML elements.
    pub(super) texts: Vec<Vec<u8>>,
    /// At most one for each node.
    pub(super) strays: Vec<Stray>,
}

/// Why a value can't be a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    Absent,
    Null,
    Blank,
    NotScalar,
}

impl Tree {
    pub(super) fn push(&mut self, start: usize, parent: usize, position: usize) -> Result<usize, Unread> {
        let id = self.nodes.len();
        if id >= NODES_MAX {
            return Err(Unread::TooMany);
        }
        let kind = Kind::Null;
        let (next, first) = (NONE, NONE);
        let (envelope, taken) = (false, false);
        self.nodes.push(Node { kind, start, end: start, parent, position, next, first, envelope, taken });
        Ok(id)
    }

    /// Makes room for `count` members of the object `id`.
    pub(super) fn give_slots(&mut self, id: usize, count: usize) -> usize {
        let first = self.slots.len();
        self.slots.resize(first + count, NONE);
        self.nodes[id].first = first;
        first
    }

    pub(super) fn span(&self, id: usize) -> Range<usize> {
        self.nodes[id].start..self.nodes[id].end
    }

    /// One step down; never for [`Hop::Each`], which leads to many.
    pub(super) fn child(&self, id: usize, hop: Hop) -> Option<usize> {
        let node = &self.nodes[id];
        let found = match (hop, node.kind) {
            (_, _) if node.first == NONE => NONE,
            (Hop::Member(slot), Kind::Object) => self.slots[node.first + slot],
            (Hop::At(position), Kind::Array) => {
                self.elements(id).find(|element| self.nodes[*element].position == position).unwrap_or(NONE)
            }
            (Hop::Member(_) | Hop::At(_) | Hop::Each, _) => NONE,
        };
        (found != NONE).then_some(found)
    }

    /// The recorded elements of an array, in order.
    pub(super) fn elements(&self, id: usize) -> impl Iterator<Item = usize> + '_ {
        let node = &self.nodes[id];
        let mut next = if node.kind == Kind::Array { node.first } else { NONE };
        std::iter::from_fn(move || {
            let current = next;
            next = self.nodes.get(current)?.next;
            Some(current)
        })
    }

    /// A node, what holds it, and so on up to the root.
    pub(super) fn and_above(&self, id: usize) -> impl Iterator<Item = usize> + '_ {
        let mut next = id;
        std::iter::from_fn(move || {
            let current = next;
            next = self.nodes.get(current)?.parent;
            Some(current)
        })
    }

    /// The list that a node is an element of; [`NONE`] where it is none.
    pub(super) fn list_of(&self, id: usize) -> usize {
        let parent = self.nodes.get(id).map_or(NONE, |node| node.parent);
        match self.nodes.get(parent) {
            Some(list) if list.kind == Kind::Array => parent,
            Some(_) | None => NONE,
        }
    }

    pub(super) fn descend(&self, mut id: usize, hops: &[Hop]) -> Option<usize> {
        for hop in hops {
            id = self.child(id, *hop)?;
        }
        Some(id)
    }

    /// The value of a scalar, unescaped.
    pub(super) fn scalar(&self, id: usize, body: &[u8]) -> Result<Box<[u8]>, Lack> {
        let span = self.span(id);
        let value = match self.nodes[id].kind {
            Kind::Null => return Err(Lack::Null),
            Kind::Object | Kind::Array => return Err(Lack::NotScalar),
            Kind::Plain => return Ok(body[span].into()),
            Kind::Text => json::unescape(&body[span.start + 1..span.end - 1]).ok_or(Lack::NotScalar)?,
            Kind::Element(text) => self.texts[text].as_slice().into(),
        };
        if is_blank(&value) { Err(Lack::Blank) } else { Ok(value) }
    }
}

/// Nothing, or white space alone.
pub(super) fn is_blank(value: &[u8]) -> bool {
    value.trim_ascii().is_empty() || str::from_utf8(value).is_ok_and(|text| text.trim().is_empty())
}
