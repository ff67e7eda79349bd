//! Cuts items out of a body. What stays, stays byte for byte: number spelling, key order, escapes, white space.

use std::ops::Range;

use super::items::Items;
use super::rules::Format;
use super::trie::NONE;

impl Items {
    /// Whether single items can be cut out: each is an element of a list of the body, or alone in one, but for what
    /// only describes it.
    pub fn can_cut(&self) -> bool {
        let named = self.list.iter().filter(|item| !item.stray);
        let mut elements: Vec<usize> = named.map(|item| self.element_of(item.node)).collect();
        elements.sort_unstable();
        let shared = elements.windows(2).any(|pair| pair[0] == pair[1]);
        // What isn't known would go with the element around an item.
        let mut strays = self.list.iter().filter(|item| item.stray);
        let beside = strays
            .any(|stray| self.tree.and_above(stray.node).any(|node| elements.binary_search(&node).is_ok()));
        self.format != Format::Whole && !shared && !beside && !elements.contains(&NONE)
    }

    /// The body without the items at these places of `list`. An element around them that the provider file calls an
    /// envelope goes too when all its items went and only what describes them is left in it. Only for rules where
    /// [`Items::can_cut`] holds; `body` is the one that the items were found in.
    pub fn without(&self, body: &[u8], removed: &[usize]) -> Vec<u8> {
        let gone = self.gone(removed);
        let mut lists: Vec<usize> =
            (0..gone.len()).filter(|node| gone[*node]).map(|node| self.tree.list_of(node)).collect();
        lists.sort_unstable();
        lists.dedup();
        let mut cuts = Vec::new();
        for list in lists {
            if list != NONE && !self.inside_gone(list, &gone) {
                self.cut_list(list, &gone, &mut cuts);
            }
        }
        cuts.sort_unstable_by_key(|cut| cut.start);
        let mut kept = Vec::with_capacity(body.len());
        let mut from = 0;
        for cut in cuts {
            kept.extend_from_slice(body.get(from..cut.start).unwrap_or_default());
            from = cut.end;
        }
        kept.extend_from_slice(body.get(from..).unwrap_or_default());
        kept
    }

    /// The nearest list element that a node is, or is inside of.
    fn element_of(&self, node: usize) -> usize {
        self.tree.and_above(node).find(|node| self.tree.list_of(*node) != NONE).unwrap_or(NONE)
    }

    /// Which nodes go: the removed items, and envelopes that held only such and what describes them.
    fn gone(&self, removed: &[usize]) -> Vec<bool> {
        let nodes = &self.tree.nodes;
        let mut gone = vec![false; nodes.len()];
        for item in removed.iter().filter_map(|index| self.list.get(*index)) {
            if let Some(gone) = gone.get_mut(self.element_of(item.node)) {
                *gone = true;
            }
        }
        if nodes.iter().any(|node| node.envelope) {
            let mut left = vec![0_usize; nodes.len()];
            let mut went = vec![0_usize; nodes.len()];
            for item in &self.list {
                let element = self.element_of(item.node);
                let goes = !item.stray && gone.get(element).copied().unwrap_or(false);
                let around =
                    if item.stray { item.node } else { nodes.get(element).map_or(NONE, |node| node.parent) };
                let counts = if goes { &mut went } else { &mut left };
                for node in self.tree.and_above(around) {
                    counts[node] += 1;
                }
            }
            for (id, node) in nodes.iter().enumerate() {
                gone[id] |= node.envelope && left[id] == 0 && went[id] > 0 && self.tree.list_of(id) != NONE;
            }
        }
        gone
    }

    fn inside_gone(&self, node: usize, gone: &[bool]) -> bool {
        self.tree.and_above(node).any(|node| gone[node])
    }

    /// The bytes to drop so that the list loses its gone elements, one comma with each.
    fn cut_list(&self, list: usize, gone: &[bool], cuts: &mut Vec<Range<usize>>) {
        let mut kept_before = false;
        let mut end_before = None;
        let mut elements = self.tree.elements(list).peekable();
        while let Some(element) = elements.next() {
            let span = self.tree.span(element);
            if !gone[element] {
                kept_before = true;
            } else if self.format == Format::Xml {
                cuts.push(span.clone());
            } else if let (true, Some(end)) = (kept_before, end_before) {
                cuts.push(end..span.end);
            } else {
                let end = elements.peek().map_or(span.end, |next| self.tree.span(*next).start);
                cuts.push(span.start..end);
            }
            end_before = Some(span.end);
        }
    }
}
