//! One pass over a JSON body that records the places a [`Trie`] names and skips the rest: no DOM, no copies.
//! The structure of all of it is checked; escapes are decoded only where a name or a part is read.

use std::ops::Range;
use std::sync::Arc;

use memchr::memchr2;

use super::tree::{Kind, Stray, Tree, Unread};
use super::trie::{NONE, Trie};

/// Deepest nesting that is read.
pub(super) const DEPTH_MAX: usize = 128;
pub(super) const BOM: &[u8] = b"\xEF\xBB\xBF";

/// Reads `body`; the tree's root is node 0.
pub(super) fn scan(body: &[u8], trie: &Trie) -> Result<Tree, Unread> {
    let mut scan = Scan::over(body, trie);
    scan.value(0, NONE, 0, 0)?;
    scan.end()?;
    Ok(scan.tree)
}

pub(super) struct Scan<'a> {
    body: &'a [u8],
    pub(super) at: usize,
    trie: &'a Trie,
    tree: Tree,
}

impl<'a> Scan<'a> {
    pub(super) fn over(body: &'a [u8], trie: &'a Trie) -> Self {
        let at = if body.starts_with(BOM) { BOM.len() } else { 0 };
        Self { body, at, trie, tree: Tree::default() }
    }

    /// Nothing but white space may be left.
    pub(super) fn end(&mut self) -> Result<(), Unread> {
        self.space();
        if self.at == self.body.len() { Ok(()) } else { Err(Unread::Malformed) }
    }

    /// Records the value here. Recurses only along the trie, whose paths are short.
    fn value(&mut self, trie: usize, parent: usize, position: usize, depth: usize) -> Result<usize, Unread> {
        let first = self.peek()?;
        let id = self.tree.push(self.at, parent, position)?;
        let wanted = self.trie.node(trie);
        self.tree.nodes[id].envelope = wanted.envelope;
        let kind = match first {
            b'{' => Kind::Object,
            b'[' => Kind::Array,
            b'"' => Kind::Text,
            b'n' => Kind::Null,
            _ => Kind::Plain,
        };
        self.tree.nodes[id].kind = kind;
        match kind {
            Kind::Object if !wanted.members.is_empty() => self.object(trie, id, depth + 1)?,
            Kind::Array if wanted.each.is_some() || !wanted.positions.is_empty() => {
                self.array(trie, id, depth + 1)?;
            }
            Kind::Object | Kind::Array | Kind::Text | Kind::Null | Kind::Plain | Kind::Element(_) => {
                let start = self.at;
                self.skip(depth)?;
                self.stray(trie, id, None, start);
            }
        }
        self.tree.nodes[id].end = self.at;
        Ok(id)
    }

    fn object(&mut self, trie: usize, id: usize, depth: usize) -> Result<(), Unread> {
        let node = self.trie.node(trie);
        let slots = self.tree.give_slots(id, node.members.len());
        let mut judged = node.way.is_some();
        self.at += 1;
        if self.peek()? == b'}' {
            self.at += 1;
            return Ok(());
        }
        loop {
            let (start, end, escaped) = self.member()?;
            let name = &self.body[start..end];
            let decoded = if escaped { Some(unescape(name).ok_or(Unread::Malformed)?) } else { None };
            let name = decoded.as_deref().unwrap_or(name);
            let began = self.at;
            let known = match node.members.iter().position(|(wanted, _)| **wanted == *name) {
                Some(slot) => {
                    let child = self.value(node.members[slot].1, id, 0, depth)?;
                    self.tree.slots[slots + slot] = child;
                    self.trie.node(node.members[slot].1).known
                }
                None => {
                    self.skip(depth)?;
                    false
                }
            };
            if judged && !known {
                judged = !self.stray(trie, id, Some(start..end), began);
            }
            match self.take()? {
                b',' => {}
                b'}' => return Ok(()),
                _ => return Err(Unread::Malformed),
            }
        }
    }

    fn array(&mut self, trie: usize, id: usize, depth: usize) -> Result<(), Unread> {
        let node = self.trie.node(trie);
        self.at += 1;
        if self.peek()? == b']' {
            self.at += 1;
            return Ok(());
        }
        let mut last = NONE;
        for position in 0.. {
            let at = || node.positions.iter().find(|(wanted, _)| *wanted == position).map(|(_, next)| *next);
            match node.each.or_else(at) {
                Some(next) => {
                    let element = self.value(next, id, position, depth)?;
                    match self.tree.nodes.get_mut(last) {
                        Some(before) => before.next = element,
                        None => self.tree.nodes[id].first = element,
                    }
                    last = element;
                }
                None => self.skip(depth)?,
            }
            match self.take()? {
                b',' => {}
                b']' => return Ok(()),
                _ => return Err(Unread::Malformed),
            }
        }
        Err(Unread::Malformed)
    }

    /// Notes the value that began at `start` and was passed over just now, if it stands on a way to items and is a
    /// group with something in it.
    fn stray(&mut self, trie: usize, node: usize, name: Option<Range<usize>>, start: usize) -> bool {
        let Some(way) = &self.trie.node(trie).way else { return false };
        let mut span = start..self.at;
        let blank = |byte: &u8| byte.is_ascii_whitespace();
        span.start += self.body[span.clone()].iter().take_while(|byte| blank(byte)).count();
        let [b'{' | b'[', inside @ .., _] = &self.body[span.clone()] else { return false };
        let full = !inside.iter().all(blank);
        if full {
            self.tree.strays.push(Stray { node, way: Arc::clone(way), name, span });
        }
        full
    }

    /// Passes over one value of any kind, checking its structure. Iterative: a bit per open bracket.
    fn skip(&mut self, depth: usize) -> Result<(), Unread> {
        let mut objects: u128 = 0;
        let mut open = 0;
        loop {
            let first = self.peek()?;
            match first {
                b'{' | b'[' => {
                    open += 1;
                    if depth + open > DEPTH_MAX {
                        return Err(Unread::TooDeep);
                    }
                    let is_object = first == b'{';
                    objects = objects << 1 | u128::from(is_object);
                    self.at += 1;
                    let close = if is_object { b'}' } else { b']' };
                    if self.peek()? != close {
                        if is_object {
                            self.member()?;
                        }
                        continue;
                    }
                }
                b'"' => {
                    self.string()?;
                }
                _ => self.plain(first)?,
            }
            // After a value: close what ends here, or go on to the next one.
            loop {
                if open == 0 {
                    return Ok(());
                }
                let in_object = objects & 1 == 1;
                match self.take()? {
                    b',' => {
                        if in_object {
                            self.member()?;
                        }
                        break;
                    }
                    b'}' if in_object => {}
                    b']' if !in_object => {}
                    _ => return Err(Unread::Malformed),
                }
                open -= 1;
                objects >>= 1;
            }
        }
    }

    /// Reads a member's name and the colon after it; gives the name's span and whether it holds escapes.
    fn member(&mut self) -> Result<(usize, usize, bool), Unread> {
        if self.peek()? != b'"' {
            return Err(Unread::Malformed);
        }
        let name = self.string()?;
        if self.take()? == b':' { Ok(name) } else { Err(Unread::Malformed) }
    }

    /// As [`Self::member`]; gives the name as it stands there.
    pub(super) fn name(&mut self) -> Result<&'a [u8], Unread> {
        let (start, end, _) = self.member()?;
        Ok(&self.body[start..end])
    }

    /// Passes over a string; gives the span between its quotes and whether it holds escapes.
    pub(super) fn string(&mut self) -> Result<(usize, usize, bool), Unread> {
        let start = self.at + 1;
        let mut at = start;
        let mut escaped = false;
        loop {
            let found = self.quote_or_escape(at).ok_or(Unread::Malformed)?;
            if self.body[found] == b'"' {
                self.at = found + 1;
                return Ok((start, found, escaped));
            }
            escaped = true;
            at = found + 2;
        }
    }

    /// Most strings are short: a few steps by hand cost less than the call.
    #[inline]
    fn quote_or_escape(&self, at: usize) -> Option<usize> {
        let rest = self.body.get(at..)?;
        let near = rest.len().min(16);
        match rest[..near].iter().position(|byte| matches!(byte, b'"' | b'\\')) {
            Some(found) => Some(at + found),
            None => memchr2(b'"', b'\\', &rest[near..]).map(|found| at + near + found),
        }
    }

    pub(super) fn plain(&mut self, first: u8) -> Result<(), Unread> {
        let word: &[u8] = match first {
            b't' => b"true",
            b'f' => b"false",
            b'n' => b"null",
            b'-' | b'0'..=b'9' => return self.number(),
            _ => return Err(Unread::Malformed),
        };
        if self.body[self.at..].starts_with(word) {
            self.at += word.len();
            Ok(())
        } else {
            Err(Unread::Malformed)
        }
    }

    fn number(&mut self) -> Result<(), Unread> {
        if self.body[self.at] == b'-' {
            self.at += 1;
        }
        self.digits()?;
        if self.body.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.body.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.body.get(self.at), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), Unread> {
        let start = self.at;
        while self.body.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        if self.at > start { Ok(()) } else { Err(Unread::Malformed) }
    }

    fn space(&mut self) {
        while matches!(self.body.get(self.at), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    /// The next byte that isn't white space; stays on it.
    pub(super) fn peek(&mut self) -> Result<u8, Unread> {
        self.space();
        self.body.get(self.at).copied().ok_or(Unread::Malformed)
    }

    pub(super) fn take(&mut self) -> Result<u8, Unread> {
        let byte = self.peek()?;
        self.at += 1;
        Ok(byte)
    }
}

/// Decodes the inside of a JSON string. A lone surrogate becomes its three generalised UTF-8 bytes, so that
/// different strings stay different; `None` for an escape that JSON doesn't know.
pub(super) fn unescape(text: &[u8]) -> Option<Box<[u8]>> {
    if memchr::memchr(b'\\', text).is_none() {
        return Some(text.into());
    }
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        out.extend_from_slice(&rest[..at]);
        let escape = *rest.get(at + 1)?;
        rest = &rest[at + 2..];
        let plain = match escape {
            b'"' | b'\\' | b'/' => escape,
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                let mut unit = hex4(rest)?;
                rest = &rest[4..];
                if let (0xD800..=0xDBFF, Some(tail)) = (unit, rest.strip_prefix(b"\\u"))
                    && let Some(low @ 0xDC00..=0xDFFF) = hex4(tail)
                {
                    unit = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
                    rest = &tail[4..];
                }
                push_scalar(unit, &mut out);
                continue;
            }
            _ => return None,
        };
        out.push(plain);
    }
    out.extend_from_slice(rest);
    Some(out.into())
}

fn hex4(text: &[u8]) -> Option<u32> {
    let digits = text.get(..4)?;
    digits.iter().try_fold(0, |value, digit| Some(value << 4 | char::from(*digit).to_digit(16)?))
}

fn push_scalar(code: u32, out: &mut Vec<u8>) {
    match char::from_u32(code) {
        Some(character) => out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        None => {
            let tail = |shift: u32| u8::try_from(code >> shift & 0x3F).expect("six bits") | 0x80;
            let lead = u8::try_from(code >> 12).expect("a surrogate has 16 bits") | 0xE0;
            out.extend_from_slice(&[lead, tail(6), tail(0)]);
        }
    }
}
