//! What runs beside the requests: the task that connects, probes and closes a breaker, and the one that hears
//! what other nodes settled.

use std::sync::Arc;
use std::time::Duration;

use fred::clients::Client;
use fred::interfaces::{ClientLike, EventInterface, KeysInterface, PubsubInterface};
use fred::types::{Expiration, Message, SetOptions, Value as Reply};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;

use super::super::breaker::{Breaker, count};
use super::{Cause, Node, connect, is_syntax_error};
use crate::ledger::claim::Digest;

/// How long a new handle waits for its connection before it starts out resting.
pub(super) const FIRST_WAIT: Duration = Duration::from_secs(1);
/// How long a probe may take: longer than a request's patience, well below the five seconds within which
/// service must be back.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);
const PROBE_DELAY_MIN: Duration = Duration::from_millis(20);
const PROBE_DELAY_MAX: Duration = Duration::from_millis(500);
/// So many failed probes of a connection that claims to be one make a new connection.
const PROBES_TO_RECONNECT: u32 = 3;
/// Between two tries to subscribe.
const SUBSCRIBE_DELAY: Duration = Duration::from_millis(500);

/// Connects, and whenever the breaker is open probes until it can be closed.
pub(super) async fn keep(node: Arc<Node>, client: Client, breaker: Arc<Breaker>) {
    let closing = node.closing.clone();
    let mut routing = client.connect();
    let work = async {
        loop {
            breaker.wait_until(true).await;
            let mut delay = PROBE_DELAY_MIN;
            let mut failed: u32 = 0;
            while breaker.is_open() {
                match probe(&node, &client).await {
                    Ok(()) => {
                        breaker.close();
                        tracing::info!("redis answers");
                    }
                    Err(cause) => {
                        tracing::debug!(error = %cause, "redis does not answer a probe");
                        failed = failed.saturating_add(1);
                        tokio::time::sleep(delay).await;
                        delay = (delay * 2).min(PROBE_DELAY_MAX);
                    }
                }
                // fred gives up on what it takes for a wrong configuration; and a connection may be dead
                // without saying so, or lead to a server that was demoted.
                let silent = client.is_connected() && failed >= PROBES_TO_RECONNECT;
                if breaker.is_open() && (silent || routing.is_finished()) {
                    failed = 0;
                    routing.abort();
                    routing = client.connect();
                }
            }
        }
    };
    tokio::select! {
        () = closing.cancelled() => {}
        () = work => {}
    }
    // Requests that still come find the breaker open.
    breaker.failed(true);
    routing.abort();
}

/// Writes, as a claim does: a server that is loading, full, read-only or locked says so.
async fn probe(node: &Node, client: &Client) -> Result<(), Cause> {
    let name = format!("{}:#probe", node.prefix);
    let expiry = Some(Expiration::PX(1000));
    let client = connect::patient(client, PROBE_TIMEOUT);
    match client.set::<Reply, _, _>(name, "probe", expiry, Some(SetOptions::NX), true).await {
        Ok(_) => Ok(()),
        Err(cause) if is_syntax_error(&cause) => {
            node.fall_back_to_scripts();
            Ok(())
        }
        Err(cause) => Err(cause),
    }
}

/// Hears what nodes settled that some node watches, and passes the digests on.
pub(super) async fn listen(node: Arc<Node>, settled: mpsc::Sender<Digest>) {
    let client = node.target.client();
    let mut messages = client.message_rx();
    let mut reconnects = client.reconnect_rx();
    let mut routing = client.connect();
    let mut subscribed = false;
    loop {
        tokio::select! {
            () = node.closing.cancelled() => break,
            message = messages.recv() => match message {
                Ok(message) => pass_on(&node, &settled, &message),
                Err(RecvError::Lagged(_)) => count(&node.counters.pushes_dropped),
                Err(RecvError::Closed) => break,
            },
            _ = reconnects.recv() => subscribed = subscribe(&node, &client).await,
            () = tokio::time::sleep(SUBSCRIBE_DELAY), if !subscribed => {
                if routing.is_finished() {
                    routing = client.connect();
                }
                subscribed = client.is_connected() && subscribe(&node, &client).await;
            }
        }
    }
    routing.abort();
}

async fn subscribe(node: &Node, client: &Client) -> bool {
    let client = connect::patient(client, PROBE_TIMEOUT);
    client.subscribe(node.channel.as_str()).await.is_ok()
}

fn pass_on(node: &Node, settled: &mpsc::Sender<Digest>, message: &Message) {
    let digest = message.value.as_str().and_then(|hex| u128::from_str_radix(&hex, 16).ok());
    if digest.is_none_or(|digest| settled.try_send(Digest(digest)).is_err()) {
        count(&node.counters.pushes_dropped);
    }
}
