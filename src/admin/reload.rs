//! `POST /reload`: asks whoever runs the gateway to read its configuration again, and tells what came of it.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::json;
use tokio::sync::{mpsc, oneshot};

use super::{Admin, json as answer};
use crate::config::{Changes, ConfigErrors, Warning};

/// Wishes that may wait for their turn.
pub const WAITING_RELOADS_MAX: usize = 4;

/// A wish to read the configuration again, and where the answer goes.
#[derive(Debug)]
pub struct Reload {
    /// Who asks, for the log.
    pub by: String,
    pub answer: oneshot::Sender<Reloaded>,
}

/// What came of it.
#[derive(Clone, Debug)]
pub enum Reloaded {
    Done {
        changes: Changes,
        warnings: Vec<Warning>,
    },
    /// Nothing was changed.
    Refused(ConfigErrors),
    /// The gateway was started without a file.
    NoFile,
}

impl Admin {
    pub(super) async fn reload(&self, peer: SocketAddr) -> Response<Bytes> {
        let (reply, replied) = oneshot::channel();
        let wish = Reload { by: format!("POST /reload from {}", peer.ip()), answer: reply };
        match self.reloads.try_send(wish) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) => return busy("other reloads wait already"),
            Err(mpsc::error::TrySendError::Closed(_)) => return busy("the gateway is stopping"),
        }
        match replied.await {
            Ok(reloaded) => told(&reloaded),
            Err(_gone) => busy("the gateway is stopping"),
        }
    }
}

fn told(reloaded: &Reloaded) -> Response<Bytes> {
    match reloaded {
        Reloaded::Done { changes, warnings } => answer(
            StatusCode::OK,
            &json!({
                "reloaded": true,
                "routes": {"added": changes.added, "removed": changes.removed, "changed": changes.changed},
                "settings": changes.settings,
                "need_restart": changes.need_restart,
                "warnings": warnings.iter().map(ToString::to_string).collect::<Vec<_>>(),
            }),
        ),
        Reloaded::Refused(ConfigErrors(problems)) => {
            let problems = problems.iter().map(|problem| {
                json!({
                    "place": problem.place.to_string(),
                    "field": problem.field,
                    "what": problem.fault.what,
                    "mend": problem.fault.mend,
                })
            });
            let problems: Vec<_> = problems.collect();
            answer(StatusCode::UNPROCESSABLE_ENTITY, &json!({"reloaded": false, "problems": problems}))
        }
        Reloaded::NoFile => answer(
            StatusCode::CONFLICT,
            &json!({"reloaded": false, "error": "the gateway was started without a file: there is nothing to read again"}),
        ),
    }
}

fn busy(why: &str) -> Response<Bytes> {
    answer(StatusCode::SERVICE_UNAVAILABLE, &json!({"reloaded": false, "error": why}))
}
