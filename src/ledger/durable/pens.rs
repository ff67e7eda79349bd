//! The connections that batches are written on: one at the least, and more while batches are worth it.

use std::time::{Duration, Instant};

use super::store::Keeper;
use crate::clock::monotonic;

/// A connection idle for so long is closed while another is in use: it would be found dead when it is needed.
pub(super) const SPARE_IDLE_MAX: Duration = Duration::from_secs(15);
/// How long to do without another connection after the database refused one.
pub(super) const GROW_AGAIN: Duration = Duration::from_secs(10);

/// Those that have no batch now, and how many there are in all.
#[derive(Debug)]
pub(super) struct Pens {
    /// Never connected: others are made after it.
    model: Keeper,
    /// With when they were put back; the latest is taken first. While nothing is under way there is one at the least.
    idle: Vec<(Keeper, Instant)>,
    count: usize,
    growing: bool,
    grow_after: Instant,
}

impl Pens {
    pub(super) fn new(first: Keeper) -> Self {
        Self {
            model: first.another(),
            idle: vec![(first, monotonic())],
            count: 1,
            growing: false,
            grow_after: monotonic(),
        }
    }

    /// Whether one is connected and has no batch.
    pub(super) fn ready(&self) -> bool {
        self.idle.last().is_some_and(|(pen, _)| pen.connected())
    }

    pub(super) fn take(&mut self) -> Option<Keeper> {
        self.idle.pop().map(|(pen, _)| pen)
    }

    /// A lost one leaves no trust in the others: the next batch finds out first whether the database is there.
    pub(super) fn put_back(&mut self, pen: Keeper) {
        let (now, before) = (monotonic(), self.idle.len());
        let good = pen.connected();
        self.idle.retain(|(other, since)| good && other.connected() && now - *since < SPARE_IDLE_MAX);
        self.count -= before - self.idle.len();
        self.idle.push((pen, now));
    }

    /// The only one, while nothing is under way.
    pub(super) fn lead(&mut self) -> &mut Keeper {
        &mut self.idle.last_mut().expect("one pen is idle while no batch is under way").0
    }

    /// Closes all but one.
    pub(super) fn shrink(&mut self) {
        let spare = self.idle.len().saturating_sub(1);
        self.idle.drain(..spare);
        self.count -= spare;
    }

    pub(super) fn timeout(&self) -> Duration {
        self.model.timeout()
    }

    pub(super) fn can_grow(&self) -> bool {
        !self.growing && self.count < self.model.batches_max() && monotonic() >= self.grow_after
    }

    /// Connects another one; `grown` takes it.
    pub(super) fn grow(&mut self) -> impl Future<Output = Keeper> + use<> {
        self.growing = true;
        self.count += 1;
        let mut pen = self.model.another();
        async move {
            pen.connect_spare().await;
            pen
        }
    }

    pub(super) fn grown(&mut self, pen: Keeper) {
        self.growing = false;
        if pen.connected() {
            self.put_back(pen);
        } else {
            self.count -= 1;
            self.grow_after = monotonic() + GROW_AGAIN;
        }
    }
}
