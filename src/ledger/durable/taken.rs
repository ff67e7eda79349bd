//! A batch that fills: whole requests, and no event twice. Pure.

use super::write::Write;
use crate::ledger::claim::DigestSet;

/// Most rows in one batch; one request with more of them goes alone.
pub(super) const BATCH_ROWS_MAX: usize = 256;
/// Most bytes of keys, receipts and payloads in one batch; likewise.
const BATCH_BYTES_MAX: usize = 4 << 20;

pub(super) struct Taken<'a> {
    pub(super) writes: Vec<Write>,
    /// Events of batches under way, and of this one.
    busy: &'a mut DigestSet,
    /// Events of writes that were given back: what comes after them on one of these waits too.
    behind: DigestSet,
    /// How many were given back for their events, and not for want of room.
    pub(super) blocked: usize,
    rows: usize,
    bytes: usize,
}

impl<'a> Taken<'a> {
    pub(super) fn new(busy: &'a mut DigestSet) -> Self {
        Self { writes: Vec::new(), busy, behind: DigestSet::default(), blocked: 0, rows: 0, bytes: 0 }
    }

    pub(super) fn has_room(&self) -> bool {
        self.rows < BATCH_ROWS_MAX && self.bytes < BATCH_BYTES_MAX
    }

    /// Takes the write in, or gives it back where it has to wait.
    pub(super) fn put(&mut self, write: Write) -> Option<Write> {
        let (rows, bytes) = (self.rows + write.rows(), self.bytes + write.bytes());
        let fits = self.writes.is_empty() || (rows <= BATCH_ROWS_MAX && bytes <= BATCH_BYTES_MAX);
        let free =
            write.digests().all(|digest| !self.busy.contains(&digest) && !self.behind.contains(&digest));
        if !(fits && free) {
            self.blocked += usize::from(!free);
            self.behind.extend(write.digests());
            return Some(write);
        }
        self.busy.extend(write.digests());
        (self.rows, self.bytes) = (rows, bytes);
        self.writes.push(write);
        None
    }
}
