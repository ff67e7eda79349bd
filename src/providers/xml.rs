//! One pass over an XML body that records the elements a [`Trie`] names, by local name: namespaces are ignored,
//! the five predefined entities and character references are decoded. A document type, and so any entity of its
//! own, external or expanding, makes the body not understood.

use quick_xml::events::{BytesRef, Event};
use quick_xml::reader::Reader;

use super::json::BOM;
use super::tree::{Kind, Tree, Unread};
use super::trie::{NONE, Trie};

const DEPTH_MAX: usize = 128;

/// Reads `body`; the tree's root, node 0, stands for the document, above its root element.
pub(super) fn scan(body: &[u8], trie: &Trie) -> Result<Tree, Unread> {
    let mut scan = Scan { trie, tree: Tree::default(), open: Vec::new(), rooted: false };
    scan.tree.push(0, NONE, 0)?;
    scan.tree.nodes[0].kind = Kind::Object;
    scan.tree.nodes[0].end = body.len();
    scan.tree.give_slots(0, trie.node(0).members.len());
    let (mut reader, before) = reader(body);
    loop {
        let start = before + offset(&reader)?;
        let event = reader.read_event().map_err(|_| Unread::Malformed)?;
        let end = before + offset(&reader)?;
        match event {
            Event::Start(tag) => scan.open(tag.local_name().into_inner().as_bytes(), start)?,
            Event::Empty(tag) => {
                scan.open(tag.local_name().into_inner().as_bytes(), start)?;
                scan.close(end);
            }
            Event::End(_) => scan.close(end),
            Event::Text(text) => scan.text(text.as_bytes())?,
            Event::CData(text) => scan.text(text.as_bytes())?,
            Event::GeneralRef(reference) => {
                let character = resolve(&reference).ok_or(Unread::Malformed)?;
                scan.text(character.encode_utf8(&mut [0; 4]).as_bytes())?;
            }
            Event::DocType(_) => return Err(Unread::Malformed),
            Event::Comment(_) | Event::Decl(_) | Event::PI(_) => {}
            Event::Eof => break,
        }
    }
    if scan.rooted && scan.open.is_empty() { Ok(scan.tree) } else { Err(Unread::Malformed) }
}

/// A reader of what follows the byte order marks, and how long those are: it would pass over one uncounted.
pub(super) fn reader(body: &[u8]) -> (Reader<&[u8]>, usize) {
    let mut text = body;
    while let Some(rest) = text.strip_prefix(BOM) {
        text = rest;
    }
    (Reader::from_reader(text), body.len() - text.len())
}

pub(super) fn offset(reader: &Reader<&[u8]>) -> Result<usize, Unread> {
    usize::try_from(reader.buffer_position()).map_err(|_| Unread::TooMany)
}

pub(super) fn resolve(reference: &BytesRef<'_>) -> Option<char> {
    if reference.is_char_ref() {
        return reference.resolve_char_ref().ok().flatten();
    }
    match &**reference {
        "lt" => Some('<'),
        "gt" => Some('>'),
        "amp" => Some('&'),
        "apos" => Some('\''),
        "quot" => Some('"'),
        _ => None,
    }
}

/// An element that isn't closed yet: its node and its place in the trie, where the rules name it.
struct Open {
    known: Option<(usize, usize)>,
    /// Its text so far, where its value may be asked for.
    text: Option<Vec<u8>>,
}

struct Scan<'a> {
    trie: &'a Trie,
    tree: Tree,
    open: Vec<Open>,
    rooted: bool,
}

impl Scan<'_> {
    fn open(&mut self, name: &[u8], start: usize) -> Result<(), Unread> {
        if self.open.len() >= DEPTH_MAX {
            return Err(Unread::TooDeep);
        }
        let parent = match self.open.last_mut() {
            Some(parent) => {
                parent.text = None; // it has an element inside, so it is no scalar
                parent.known
            }
            None if self.rooted => return Err(Unread::Malformed),
            None => Some((0, 0)),
        };
        self.rooted = true;
        let known = match parent {
            Some((node, trie)) => self.record(node, trie, name, start)?,
            None => None,
        };
        let text = known.map(|_| Vec::new());
        self.open.push(Open { known, text });
        Ok(())
    }

    /// Records an element if the rules name it under `parent`.
    fn record(
        &mut self,
        parent: usize,
        trie: usize,
        name: &[u8],
        start: usize,
    ) -> Result<Option<(usize, usize)>, Unread> {
        let members = &self.trie.node(trie).members;
        let Some(slot) = members.iter().position(|(wanted, _)| **wanted == *name) else { return Ok(None) };
        let slot_at = self.tree.nodes[parent].first + slot;
        let next = members[slot].1;
        let Some(each) = self.trie.node(next).each else {
            let id = self.element(next, start, parent, 0)?;
            self.tree.slots[slot_at] = id;
            return Ok(Some((id, next)));
        };
        // Elements of one name that a wildcard names hang on a node of their own, like a JSON array's.
        let list = match self.tree.slots[slot_at] {
            NONE => {
                let list = self.tree.push(start, parent, 0)?;
                self.tree.nodes[list].kind = Kind::Array;
                self.tree.slots[slot_at] = list;
                list
            }
            list => list,
        };
        // Until the document is read, `end` of a list is its last element.
        let position = if self.tree.nodes[list].first == NONE {
            0
        } else {
            self.tree.nodes[self.tree.nodes[list].end].position + 1
        };
        let id = self.element(each, start, list, position)?;
        if position == 0 {
            self.tree.nodes[list].first = id;
        } else {
            let last = self.tree.nodes[list].end;
            self.tree.nodes[last].next = id;
        }
        self.tree.nodes[list].end = id;
        Ok(Some((id, each)))
    }

    fn element(
        &mut self,
        trie: usize,
        start: usize,
        parent: usize,
        position: usize,
    ) -> Result<usize, Unread> {
        let id = self.tree.push(start, parent, position)?;
        self.tree.nodes[id].kind = Kind::Object;
        self.tree.nodes[id].envelope = self.trie.node(trie).envelope;
        self.tree.give_slots(id, self.trie.node(trie).members.len());
        Ok(id)
    }

    fn close(&mut self, end: usize) {
        let Some(Open { known: Some((id, _)), text }) = self.open.pop() else { return };
        self.tree.nodes[id].end = end;
        if let Some(text) = text {
            self.tree.nodes[id].kind = Kind::Element(self.tree.texts.len());
            self.tree.texts.push(text);
        }
    }

    fn text(&mut self, more: &[u8]) -> Result<(), Unread> {
        match self.open.last_mut() {
            Some(Open { text: Some(text), .. }) => text.extend_from_slice(more),
            Some(_) => {}
            None if more.trim_ascii().is_empty() => {}
            None => return Err(Unread::Malformed),
        }
        Ok(())
    }
}
