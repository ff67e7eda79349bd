//! A write that would be the only one is committed on the thread that asks, over a connection of that thread's own: while
//! little comes, handing it to the writer and its answer back would each cost what waking a thread costs. As soon as two
//! come at once the writer has them, and batches. Decides nothing.

use std::slice;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::mpsc;
use tokio::time::{timeout, timeout_at};
use tokio_util::task::TaskTracker;

use super::batch::Outcome;
use super::flight::commit;
use super::pens::{GROW_AGAIN, SPARE_IDLE_MAX};
use super::store::{Failure, Keeper};
use super::write::Write;
use crate::clock::monotonic;

/// Most threads of a gateway that have such a connection: a database has few to give.
const THREADS_MAX: usize = 4;

/// Whether a write would be the only one; shared by the writer and all threads.
#[derive(Debug, Default)]
pub(super) struct Quiet {
    /// The writer has nothing under way, and nothing waits for it.
    writer_rests: AtomicBool,
    /// A thread has the turn.
    taken: AtomicBool,
    threads: AtomicUsize,
}

impl Quiet {
    pub(super) fn writer_rests(&self, rests: bool) {
        self.writer_rests.store(rests, Ordering::Relaxed);
    }

    fn is(&self) -> bool {
        self.writer_rests.load(Ordering::Relaxed) && !self.taken.load(Ordering::Relaxed)
    }
}

/// One thread's connection.
#[derive(Clone, Debug)]
pub(super) struct Alone {
    quiet: Arc<Quiet>,
    pen: Arc<Pen>,
    /// Asks the task that keeps the connection for one.
    wanted: mpsc::Sender<()>,
}

/// The connection and when it was used last; away while it has a write, and lost with a caller that doesn't wait for it.
#[derive(Debug, Default)]
struct Pen(Mutex<Option<(Keeper, Instant)>>);

impl Pen {
    fn get(&self) -> MutexGuard<'_, Option<(Keeper, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put_back(&self, keeper: Keeper) {
        if keeper.connected() {
            *self.get() = Some((keeper, monotonic()));
        }
    }

    /// Closes the connection if nobody used it lately; whether it is closed.
    fn close_if_idle(&self) -> bool {
        let mut pen = self.get();
        let idle = pen.as_ref().is_some_and(|(_, used)| used.elapsed() >= SPARE_IDLE_MAX);
        if idle {
            *pen = None;
        }
        idle
    }
}

impl Alone {
    /// A connection like the model's for the calling thread's runtime, made once it is wanted; `None` where enough threads
    /// have one, or the database has one writer at a time. Its task ends with the last clone; `tracker` waits for it.
    pub(super) fn open(quiet: &Arc<Quiet>, model: Keeper, tracker: &TaskTracker) -> Option<Self> {
        if model.batches_max() == 1 || quiet.threads.fetch_add(1, Ordering::Relaxed) >= THREADS_MAX {
            return None;
        }
        let (wanted, asked) = mpsc::channel(1);
        let alone = Self { quiet: Arc::clone(quiet), pen: Arc::default(), wanted };
        tracker.spawn(keep(Arc::clone(&alone.pen), model, asked));
        Some(alone)
    }

    /// The turn to write alone, if nobody else writes and the connection is there.
    pub(super) fn turn(&self) -> Option<Turn<'_>> {
        if !self.quiet.is() {
            return None;
        }
        let mut pen = self.pen.get();
        if pen.as_ref().is_none_or(|(_, used)| used.elapsed() >= SPARE_IDLE_MAX) {
            // Asked once is enough.
            self.wanted.try_send(()).unwrap_or_default();
            return None;
        }
        if self.quiet.taken.swap(true, Ordering::Relaxed) {
            return None;
        }
        let keeper = pen.take().map(|(keeper, _)| keeper);
        Some(Turn { alone: self, keeper })
    }
}

/// The right to write alone, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    alone: &'a Alone,
    keeper: Option<Keeper>,
}

impl Turn<'_> {
    pub(super) async fn commit(mut self, write: &Write) -> Result<Outcome, Failure> {
        let mut keeper = self.keeper.take().expect("a turn begins with a connection");
        let committed = commit(&mut keeper, slice::from_ref(write), false).await;
        self.alone.pen.put_back(keeper);
        committed
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(keeper) = self.keeper.take() {
            self.alone.pen.put_back(keeper);
        }
        self.alone.quiet.taken.store(false, Ordering::Relaxed);
    }
}

/// Makes the connection when it is wanted, and closes it when it isn't any more.
async fn keep(pen: Arc<Pen>, model: Keeper, mut asked: mpsc::Receiver<()>) {
    let mut wanted = asked.recv().await;
    while wanted.is_some() {
        let mut keeper = model.another();
        keeper.connect_spare().await;
        if keeper.connected() {
            pen.put_back(keeper);
        } else {
            let again = (monotonic() + GROW_AGAIN).into();
            while let Ok(Some(())) = timeout_at(again, asked.recv()).await {}
        }
        wanted = loop {
            match timeout(SPARE_IDLE_MAX, asked.recv()).await {
                Ok(wanted) => break wanted,
                Err(_unasked) if pen.close_if_idle() => break asked.recv().await,
                Err(_unasked) => {}
            }
        };
    }
}
