//! All paths of a set of rules as one tree of steps, so that one pass over a body finds every place they name.

use std::sync::Arc;

use super::path::Step;

/// Marks that there is no node.
pub(super) const NONE: usize = usize::MAX;

/// The root is node 0.
#[derive(Clone, Debug)]
pub(super) struct Trie {
    nodes: Vec<TrieNode>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct TrieNode {
    /// Names that are looked for in an object, and the node each leads to.
    pub(super) members: Vec<(Box<[u8]>, usize)>,
    /// The node that every element of an array leads to.
    pub(super) each: Option<usize>,
    /// Elements that are looked for by position; never beside `each`.
    pub(super) positions: Vec<(usize, usize)>,
    /// Whether an element here goes when all its items went and nothing but their description is left in it.
    pub(super) envelope: bool,
    /// The path that leads here, where that is one to items, and what stands beside them is judged.
    pub(super) way: Option<Arc<[Step]>>,
    /// On a way to items, an item, or what is known to describe those beside it.
    pub(super) known: bool,
}

/// One step of a path in terms of a [`Trie`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hop {
    /// The member with this place in the node's `members`.
    Member(usize),
    Each,
    At(usize),
}

impl Default for Trie {
    fn default() -> Self {
        Self { nodes: vec![TrieNode::default()] }
    }
}

impl Trie {
    pub(super) fn node(&self, id: usize) -> &TrieNode {
        &self.nodes[id]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.nodes.len() == 1
    }

    /// Adds a path; gives the node it leads to.
    pub(super) fn insert(&mut self, steps: &[Step]) -> Result<usize, String> {
        let mut at = 0;
        for step in steps {
            let new = self.nodes.len();
            let node = &mut self.nodes[at];
            at = match step {
                Step::Member(name) => {
                    match node.members.iter().find(|(known, _)| **known == *name.as_bytes()) {
                        Some((_, next)) => *next,
                        None => {
                            node.members.push((name.as_bytes().into(), new));
                            new
                        }
                    }
                }
                Step::Each if !node.positions.is_empty() => return Err(MIXED.into()),
                Step::Each => *node.each.get_or_insert(new),
                Step::At(_) if node.each.is_some() => return Err(MIXED.into()),
                Step::At(position) => match node.positions.iter().find(|(known, _)| known == position) {
                    Some((_, next)) => *next,
                    None => {
                        node.positions.push((*position, new));
                        new
                    }
                },
            };
            if at == new {
                self.nodes.push(TrieNode::default());
            }
        }
        Ok(at)
    }

    pub(super) fn mark_envelope(&mut self, steps: &[Step]) -> Result<(), String> {
        let at = self.insert(steps)?;
        self.nodes[at].envelope = true;
        Ok(())
    }

    /// What stands here describes the items beside it.
    pub(super) fn mark_known(&mut self, steps: &[Step]) -> Result<(), String> {
        let at = self.insert(steps)?;
        self.nodes[at].known = true;
        Ok(())
    }

    /// Whatever stands beside the items of this path is judged.
    pub(super) fn mark_way(&mut self, steps: &[Step]) -> Result<(), String> {
        for length in 0..steps.len() {
            let at = self.insert(&steps[..length])?;
            self.nodes[at].way.get_or_insert_with(|| steps[..length].into());
            self.nodes[at].known = true;
        }
        self.mark_known(steps)
    }

    /// The hops of a path that was inserted.
    pub(super) fn resolve(&self, steps: &[Step]) -> Vec<Hop> {
        let mut at = 0;
        let hop = |step: &Step| {
            let node = &self.nodes[at];
            let (hop, next) = match step {
                Step::Member(name) => {
                    let slot = node.members.iter().position(|(known, _)| **known == *name.as_bytes());
                    let slot = slot.expect("the path was inserted");
                    (Hop::Member(slot), node.members[slot].1)
                }
                Step::Each => (Hop::Each, node.each.expect("the path was inserted")),
                Step::At(position) => {
                    let found = node.positions.iter().find(|(known, _)| known == position);
                    (Hop::At(*position), found.expect("the path was inserted").1)
                }
            };
            at = next;
            hop
        };
        steps.iter().map(hop).collect()
    }
}

const MIXED: &str = "a fixed position and [*] cannot stand at the same place; use [*] in the item's path";
