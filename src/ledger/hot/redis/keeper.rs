//! What runs beside the requests: the task that connects, probes and closes a breaker, and the one that hears
//! what other nodes settled.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use fred::clients::{Client, WithOptions};
use fred::error::ErrorKind;
use fred::interfaces::{ClientLike, EventInterface, KeysInterface, PubsubInterface};
use fred::types::{ConnectHandle, Expiration, Message, SetOptions, Value as Reply};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;

use super::super::breaker::{Breaker, count};
use super::{Cause, Node, is_syntax_error};
use crate::ledger::claim::Digest;

/// How long a new handle waits for its connection before it starts out resting.
pub(super) const FIRST_WAIT: Duration = Duration::from_secs(1);
/// How long connecting may take, discovery of a cluster or of a sentinel's master included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a probe may take: longer than a request's patience, well below the five seconds within which
/// service must be back.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);
const DELAY_MIN: Duration = Duration::from_millis(20);
const DELAY_MAX: Duration = Duration::from_millis(500);
/// So many failed probes of a connection that claims to be one make a new connection.
const SILENT_MAX: u32 = 3;

/// Connects, and whenever the breaker is open probes until it can be closed.
pub(super) async fn keep(node: Arc<Node>, slot: Arc<Slot>, breaker: Arc<Breaker>) {
    let mut link = None;
    tokio::select! {
        () = node.closing.cancelled() => {}
        () = probe_while_open(&node, &slot, &breaker, &mut link) => {}
    }
    // What is still asked rests.
    breaker.open();
}

async fn probe_while_open(node: &Node, slot: &Slot, breaker: &Breaker, link: &mut Option<Link>) {
    loop {
        breaker.wait_until(true).await;
        // Of a cluster the others may answer well.
        let name = node.target.name_in(breaker.suspect(), &format!("{}:#probe", node.prefix));
        let mut delay = DELAY_MIN;
        while breaker.is_open() {
            match probe(node, slot, link, &name).await {
                Ok(()) => {
                    breaker.close();
                    tracing::info!("redis answers");
                }
                Err(cause) => {
                    tracing::debug!(error = %cause, "redis does not answer a probe");
                    *node.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(cause);
                    tokio::time::sleep(delay).await;
                    delay = (delay * 2).min(DELAY_MAX);
                }
            }
        }
    }
}

/// The client of a handle's present connection, once there was one; the keeper replaces it.
///
/// It fails at once while it is not connected, and gives up at the deadline: fred then neither sends nor keeps
/// the command, and drops a late answer.
#[derive(Debug, Default)]
pub(super) struct Slot(RwLock<Option<WithOptions<Client>>>);

impl Slot {
    fn put(&self, client: WithOptions<Client>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(client);
    }

    pub(super) fn client(&self) -> Option<WithOptions<Client>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A connection's client and its routing task, which ends with it.
///
/// A dead connection gets a new client: fred keeps counting the commands of a routing task that was replaced,
/// and then waits for ever with flushing until they are written.
struct Link {
    client: Client,
    routing: ConnectHandle,
    /// Probes in a row that failed although it says that it is connected: cut off without a word, or led to a
    /// server that was demoted.
    silent: u32,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.routing.abort();
    }
}

async fn connect(node: &Node) -> Result<Link, Cause> {
    let client = node.target.client();
    let mut link = Link { routing: client.connect(), client, silent: 0 };
    let connected = async {
        tokio::select! {
            connected = link.client.wait_for_connect() => connected,
            ended = &mut link.routing => {
                Err(ended.ok().and_then(Result::err).unwrap_or_else(Cause::new_canceled))
            }
        }
    };
    tokio::time::timeout(CONNECT_TIMEOUT, connected)
        .await
        .unwrap_or_else(|_| Err(Cause::new(ErrorKind::Timeout, "connecting took too long")))?;
    node.target.remember(&link.client);
    Ok(link)
}

/// Writes, as a claim does: a server that is loading, full, read-only or locked says so.
async fn probe(node: &Node, slot: &Slot, link: &mut Option<Link>, name: &str) -> Result<(), Cause> {
    if link.as_ref().is_none_or(|link| link.routing.is_finished() || link.silent >= SILENT_MAX) {
        if let Some(old) = link.take() {
            node.target.remember(&old.client);
            node.renewed.notify_waiters();
        }
        let fresh = connect(node).await?;
        slot.put(fresh.client.with_options(&node.target.options(node.timeout)));
        *link = Some(fresh);
    }
    let Some(link) = link else { return Ok(()) };
    let connected = link.client.is_connected();
    let expiry = Some(Expiration::PX(1000));
    let client = link.client.with_options(&node.target.options(PROBE_TIMEOUT));
    match client.set::<Reply, _, _>(name, "probe", expiry, Some(SetOptions::NX), true).await {
        Ok(_) => {
            link.silent = 0;
            Ok(())
        }
        Err(cause) if is_syntax_error(&cause) => {
            link.silent = 0;
            node.fall_back_to_scripts();
            Ok(())
        }
        Err(cause) => {
            link.silent += u32::from(connected);
            Err(cause)
        }
    }
}

/// Hears what nodes settled that some node watches, and passes the digests on, connecting as often as it takes.
pub(super) async fn listen(node: Arc<Node>, settled: mpsc::Sender<Digest>) {
    let mut delay = DELAY_MIN;
    let hear = async {
        loop {
            let heard = hear(&node, &settled).await;
            node.hearing.ends();
            match heard {
                Ok(()) => delay = DELAY_MIN,
                Err(cause) => tracing::debug!(error = %cause, "redis tells nothing of other nodes"),
            }
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(DELAY_MAX);
        }
    };
    tokio::select! {
        () = node.closing.cancelled() => {}
        () = hear => {}
    }
}

/// Hears until the connection is given up; an error where it never came to hearing.
async fn hear(node: &Node, settled: &mpsc::Sender<Digest>) -> Result<(), Cause> {
    let mut link = connect(node).await?;
    let mut messages = link.client.message_rx();
    let mut reconnects = link.client.reconnect_rx();
    let mut errors = link.client.error_rx();
    subscribe(node, &link.client).await?;
    node.hearing.begins();
    loop {
        tokio::select! {
            _ = &mut link.routing => return Ok(()),
            () = node.renewed.notified() => return Ok(()),
            // Until it has connected anew by itself, nothing would be heard, and nobody told so.
            _ = errors.recv() => return Ok(()),
            message = messages.recv() => match message {
                Ok(message) => pass_on(node, settled, &message),
                Err(RecvError::Lagged(_)) => missed(node),
                Err(RecvError::Closed) => return Ok(()),
            },
            _ = reconnects.recv() => {
                node.hearing.ends();
                if subscribe(node, &link.client).await.is_err() {
                    return Ok(());
                }
                node.hearing.begins();
            }
        }
    }
}

async fn subscribe(node: &Node, client: &Client) -> Result<(), Cause> {
    // A reconnection is told before the client says that it is connected: this one waits for it.
    let options = fred::types::config::Options { fail_fast: false, ..node.target.options(PROBE_TIMEOUT) };
    client.with_options(&options).subscribe(node.channel.as_str()).await
}

fn pass_on(node: &Node, settled: &mpsc::Sender<Digest>, message: &Message) {
    let digest = message.value.as_str().and_then(|hex| u128::from_str_radix(&hex, 16).ok());
    if digest.is_none_or(|digest| settled.try_send(Digest(digest)).is_err()) {
        missed(node);
    }
}

fn missed(node: &Node) {
    count(&node.counters.pushes_dropped);
    node.hearing.missed();
}
