//! Bounds what of a streamed body is on its way out: whoever writes it takes pieces ahead of what the other end reads, and
//! of a reader that has stopped they would lie here, as many as a write queue holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::task::AtomicWaker;

/// Bytes of one body that were handed out and not yet written, after which no more is handed out: more than small pieces
/// take that are written together, less than one large piece.
const UNWRITTEN_BYTES_MAX: usize = 16 * 1024;

/// What of one body is handed out.
#[derive(Debug, Default)]
pub(super) struct Window {
    unwritten: AtomicUsize,
    waiting: AtomicWaker,
}

/// A piece that tells when nobody needs it any more.
struct Piece {
    bytes: Bytes,
    window: Arc<Window>,
}

impl Window {
    /// Ready once another piece may be handed out.
    pub(super) fn poll_room(&self, cx: &Context<'_>) -> Poll<()> {
        if self.has_room() {
            return Poll::Ready(());
        }
        self.waiting.register(cx.waker());
        // A piece may have gone in between.
        if self.has_room() { Poll::Ready(()) } else { Poll::Pending }
    }

    fn has_room(&self) -> bool {
        self.unwritten.load(Ordering::Acquire) < UNWRITTEN_BYTES_MAX
    }

    /// The same bytes, counted until they are dropped.
    pub(super) fn counted(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        self.unwritten.fetch_add(bytes.len(), Ordering::AcqRel);
        Bytes::from_owner(Piece { bytes, window: Arc::clone(self) })
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.window.unwritten.fetch_sub(self.bytes.len(), Ordering::AcqRel);
        self.window.waiting.wake();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::task::noop_waker_ref;

    use super::*;

    #[test]
    fn a_piece_gives_its_room_back_when_its_last_copy_is_dropped() {
        let window = Arc::<Window>::default();
        let cx = Context::from_waker(noop_waker_ref());
        let first = window.counted(Bytes::from(vec![1; UNWRITTEN_BYTES_MAX - 1]));
        assert!(window.poll_room(&cx).is_ready());
        let second = window.counted(Bytes::from_static(b"ab"));
        assert_eq!(second, "ab");
        assert!(window.poll_room(&cx).is_pending());
        let rest = second.slice(1..);
        drop(second);
        assert!(window.poll_room(&cx).is_pending());
        drop(rest);
        assert!(window.poll_room(&cx).is_ready());
        drop(first);
    }
}
