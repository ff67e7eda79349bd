//! One batch on its way to the database and back, on a connection of its own; where the database does not take it,
//! smaller and smaller ones, so that a write that it can't take fails by itself. Knows nothing of who waits.

use std::collections::VecDeque;
use std::time::Instant;

use super::batch::{Batch, Outcome};
use super::error::Trouble;
use super::store::{Failure, Keeper, PROBE_EVERY};
use super::write::{Asks, Write};
use crate::clock::monotonic;

/// A batch under way.
pub(super) struct Flight {
    pub(super) pen: Keeper,
    pub(super) writes: Vec<Write>,
    pub(super) departed: Instant,
}

/// What came of it, and the connection again.
pub(super) struct Landed {
    pub(super) pen: Keeper,
    /// The batch; or, where the database did not take it, what it was split into.
    pub(super) parts: Vec<Part>,
    pub(super) departed: Instant,
}

/// Writes that were committed together, or failed together.
pub(super) type Part = (Vec<Write>, Result<Outcome, Failure>);

impl Flight {
    pub(super) async fn fly(self) -> Landed {
        let Self { mut pen, writes, departed } = self;
        let parts = match commit(&mut pen, &writes, false).await {
            Err(Failure::Apart(_)) if writes.len() > 1 => apart(&mut pen, writes).await,
            committed => vec![(writes, committed)],
        };
        if parts.iter().all(|(_, committed)| committed.is_err()) {
            // It refuses everything. A new connection may meet a server that does not: addresses move at a failover.
            pen.disconnect();
        }
        Landed { pen, parts, departed }
    }
}

/// Commits these writes, whose batch failed, in halves of halves: whatever the database takes is taken, and what it does
/// not take stands alone at the end. What has been committed before is recognised by its fences. All of it has the time
/// of one transaction, and the last try one more; what was not tried by then fails.
pub(super) async fn apart(pen: &mut Keeper, writes: Vec<Write>) -> Vec<Part> {
    let (began, patience) = (monotonic(), pen.timeout());
    let mut lost = false;
    let mut parts = Vec::new();
    let mut waiting = VecDeque::from(halves(writes));
    while let Some(writes) = waiting.pop_front() {
        // A database that fell silent half-way would cost each of the rest a timeout.
        let committed = if lost {
            Err(Failure::Trouble(Trouble::Down(PROBE_EVERY)))
        } else if began.elapsed() >= patience {
            Err(Failure::Trouble(Trouble::Slow(patience)))
        } else {
            commit(pen, &writes, true).await
        };
        match committed {
            Err(Failure::Apart(_)) if writes.len() > 1 => waiting.extend(halves(writes)),
            committed => {
                lost = lost || matches!(committed, Err(Failure::Trouble(_)));
                parts.push((writes, committed));
            }
        }
    }
    parts
}

/// Those with payloads apart from those without: they need other tables, and rights to them. Else by number.
fn halves(writes: Vec<Write>) -> [Vec<Write>; 2] {
    let (plain, loaded): (Vec<_>, Vec<_>) = writes.into_iter().partition(|write| !write.has_payload());
    let mut one = match (plain.is_empty(), loaded.is_empty()) {
        (false, false) => return [plain, loaded],
        (true, _) => loaded,
        (_, true) => plain,
    };
    let other = one.split_off(one.len() / 2);
    [one, other]
}

/// Commits these writes in one batch. `hasty` as for [`Batch`].
pub(super) async fn commit(pen: &mut Keeper, writes: &[Write], hasty: bool) -> Result<Outcome, Failure> {
    let mut batch = Batch { hasty, ..Batch::default() };
    for write in writes {
        match &write.asks {
            Asks::Claims(asks, _) => batch.claims.extend(asks),
            Asks::Settles(asks, _) => batch.settles.extend(asks),
        }
    }
    batch.sort();
    pen.commit(&batch).await
}
