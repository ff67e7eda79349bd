//! One batch on its way to the database and back, on a connection of its own. Knows nothing of who waits.

use std::time::Instant;

use tokio::time::sleep;

use super::SettleAsk;
use super::batch::{Batch, Outcome};
use super::error::Trouble;
use super::store::{Failure, Keeper, PROBE_EVERY};
use super::write::{Asks, Write};

/// A batch under way.
pub(super) struct Flight {
    pub(super) pen: Keeper,
    pub(super) writes: Vec<Write>,
    pub(super) strays: Vec<SettleAsk>,
    pub(super) departed: Instant,
}

/// What came of it, and the connection again.
pub(super) struct Landed {
    pub(super) pen: Keeper,
    /// The batch; or, where one of its writes is what the database cannot store, each write by itself.
    pub(super) parts: Vec<(Vec<Write>, Result<Outcome, Trouble>)>,
    pub(super) strays: Vec<SettleAsk>,
    /// The strays have to be tried again.
    pub(super) strayed: bool,
    pub(super) departed: Instant,
}

impl Flight {
    pub(super) async fn fly(self) -> Landed {
        let Self { mut pen, writes, strays, departed } = self;
        let committed = commit(&mut pen, &writes, &strays).await;
        let (parts, strayed) = match committed {
            Ok(outcome) => (vec![(writes, Ok(outcome))], false),
            Err(Failure::Apart(_)) if writes.len() > 1 => {
                let mut parts = Vec::with_capacity(writes.len());
                let mut lost = false;
                for write in writes {
                    let alone = vec![write];
                    // A database that fell silent half-way would cost each of the rest a timeout.
                    let committed = if lost {
                        Err(Trouble::Down(PROBE_EVERY))
                    } else {
                        let committed = commit(&mut pen, &alone, &[]).await;
                        lost = matches!(committed, Err(Failure::Trouble(_)));
                        committed.map_err(Failure::trouble)
                    };
                    parts.push((alone, committed));
                }
                (parts, true)
            }
            // Refused alone, for what they are, strays would go round for ever.
            Err(failure @ Failure::Apart(_)) => {
                let strayed = !writes.is_empty();
                (vec![(writes, Err(failure.trouble()))], strayed)
            }
            Err(Failure::Trouble(trouble)) => {
                if writes.is_empty() {
                    // Nobody waits for strays: a database that refuses them isn't to be asked again at once.
                    sleep(PROBE_EVERY).await;
                }
                (vec![(writes, Err(trouble))], true)
            }
        };
        Landed { pen, parts, strays, strayed, departed }
    }
}

async fn commit(pen: &mut Keeper, writes: &[Write], strays: &[SettleAsk]) -> Result<Outcome, Failure> {
    let mut batch = Batch::default();
    for write in writes {
        match &write.asks {
            Asks::Claims(asks, _) => batch.claims.extend(asks),
            Asks::Settles(asks, _) => batch.settles.extend(asks),
        }
    }
    batch.settles.extend(strays);
    batch.sort();
    pen.commit(&batch).await
}
