//! What runs beside the requests: the task that connects, probes and closes a breaker, and the one that hears
//! what other nodes tell of events.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use fred::clients::{Client, WithOptions};
use fred::error::ErrorKind;
use fred::interfaces::{ClientInterface, ClientLike, EventInterface, PubsubInterface};
use fred::types::config::Options;
use fred::types::{ConnectHandle, CustomCommand, Message, Value};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;

use super::super::Told;
use super::super::breaker::{Breaker, count};
use super::Cause;
use super::cause::is_syntax_error;
use super::lane::Lane;
use super::node::Node;
use super::way::{Slot, Way};
use crate::ledger::claim::Digest;

/// How long a new handle waits for its connection before it starts out resting.
pub(super) const FIRST_WAIT: Duration = Duration::from_secs(1);
/// How long connecting may take, discovery of a cluster or of a sentinel's master included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a probe may take: longer than a request's patience, well below the five seconds within which
/// service must be back.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);
/// How long what a probe wrote stays where it can't be taken away, milliseconds.
const PROBE_TTL: &[u8] = b"10000";
/// Where Redis tells a client that tracks keys which of them changed; every one that does, of a flush.
const INVALIDATED: &str = "__redis__:invalidate";
/// Begins what is published of an event that a person changed.
const CHANGED: char = '+';
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

/// A client of fred's and its routing task, which ends with it.
///
/// A dead connection gets a new client: fred keeps counting the commands of a routing task that was replaced,
/// and then waits for ever with flushing until they are written.
struct Routed {
    client: Client,
    routing: ConnectHandle,
}

impl Drop for Routed {
    fn drop(&mut self) {
        self.routing.abort();
    }
}

async fn connect(node: &Node) -> Result<Routed, Cause> {
    let client = node.target.client();
    let mut routed = Routed { routing: client.connect(), client };
    let connected = async {
        tokio::select! {
            connected = routed.client.wait_for_connect() => connected,
            ended = &mut routed.routing => {
                Err(ended.ok().and_then(Result::err).unwrap_or_else(Cause::new_canceled))
            }
        }
    };
    tokio::time::timeout(CONNECT_TIMEOUT, connected)
        .await
        .unwrap_or_else(|_| Err(Cause::new(ErrorKind::Timeout, "connecting took too long")))?;
    node.target.remember(&routed.client);
    Ok(routed)
}

/// A handle's connection.
struct Link {
    routed: Routed,
    way: Way,
    /// Probes in a row that failed although it says that it is connected: cut off without a word, or led to a
    /// server that was demoted.
    silent: u32,
}

impl Link {
    async fn make(node: &Node) -> Result<Self, Cause> {
        let routed = connect(node).await?;
        let client = routed.client.clone();
        let lane = if node.target.is_cluster() {
            None
        } else {
            let apart = &node.target.apart;
            let keys = ["#one", "#two"].map(|name| format!("{}:{name}", node.prefix));
            Lane::teach(&client, PROBE_TIMEOUT, apart, keys.each_ref().map(String::as_str)).await;
            Some(Lane::over(client.clone(), apart, (&node.tracker, &node.closing)))
        };
        Ok(Self { routed, way: Way { client, lane }, silent: 0 })
    }
}

/// Writes, as a claim does: a server that is loading, full, read-only or locked says so.
async fn probe(node: &Node, slot: &Slot, link: &mut Option<Link>, name: &str) -> Result<(), Cause> {
    if link.as_ref().is_none_or(|link| link.routed.routing.is_finished() || link.silent >= SILENT_MAX) {
        if let Some(old) = link.take() {
            node.target.remember(&old.routed.client);
            node.renewed.notify_waiters();
        }
        let fresh = Link::make(node).await?;
        slot.put(fresh.way.clone());
        *link = Some(fresh);
    }
    let Some(link) = link else { return Ok(()) };
    let connected = link.routed.client.is_connected();
    let words: [&[u8]; 7] = [b"SET", name.as_bytes(), b"probe", b"PX", PROBE_TTL, b"GET", b"NX"];
    let slot = node.target.is_cluster().then(|| node.target.slot(name.as_bytes()));
    match link.way.ask(PROBE_TIMEOUT, slot, &words).await {
        Ok(_) => {
            link.silent = 0;
            // Nobody shall come upon it in its last moments, when it seems to be without an end.
            link.way.ask(PROBE_TIMEOUT, slot, &[b"DEL", name.as_bytes()]).await.map(drop)
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

/// What is published of an event. Its sign reads as part of the number to versions that know of ends only.
pub(super) fn message(told: Told) -> String {
    match told {
        Told::Ended(digest) => digest.to_string(),
        Told::Changed(digest) => format!("{CHANGED}{digest}"),
    }
}

fn told(message: &str) -> Option<Told> {
    let digest = u128::from_str_radix(message, 16).ok().map(Digest);
    if message.starts_with(CHANGED) { digest.map(Told::Changed) } else { digest.map(Told::Ended) }
}

/// Hears what nodes tell of events, and passes it on, connecting as often as it takes.
pub(super) async fn listen(node: Arc<Node>, tell: mpsc::Sender<Told>) {
    let mut delay = DELAY_MIN;
    let hear = async {
        loop {
            let heard = hear(&node, &tell).await;
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
async fn hear(node: &Node, tell: &mpsc::Sender<Told>) -> Result<(), Cause> {
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
                Ok(message) => pass_on(node, tell, &message),
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
    let options = Options { timeout: Some(PROBE_TIMEOUT), max_attempts: Some(1), ..Options::default() };
    let client = client.with_options(&options);
    // Before the subscription, after which nothing else can be asked on this connection.
    let followed =
        if node.target.is_cluster() { Ok(false) } else { follow_flushes(&client).await.map(|()| true) };
    client.subscribe(node.channel.as_str()).await?;
    let told = match followed {
        Ok(true) => client.subscribe(INVALIDATED).await,
        Ok(false) => Ok(()),
        Err(cause) => Err(cause),
    };
    if let Err(cause) = told {
        tracing::debug!(error = %cause, "redis does not tell of a flush");
    }
    Ok(())
}

/// Has this connection told when all keys are dropped at once; until then a node answers from what it remembers, and Redis
/// stays empty. It is told to whoever tracks keys, of which this one reads none.
async fn follow_flushes(client: &WithOptions<Client>) -> Result<(), Cause> {
    let own: i64 = client.client_id().await?;
    let words = ["TRACKING", "ON", "REDIRECT", &own.to_string(), "OPTIN"].map(Value::from).to_vec();
    client.custom::<Value, _>(CustomCommand::new_static("CLIENT", None, false), words).await.map(drop)
}

fn pass_on(node: &Node, tell: &mpsc::Sender<Told>, message: &Message) {
    if message.channel == INVALIDATED {
        // No key is tracked: all of them are meant. What this node knows, the next copies shall bring back to Redis.
        tracing::info!("redis was flushed");
        return node.hearing.missed();
    }
    let told = message.value.as_str().and_then(|message| told(&message));
    if told.is_none_or(|told| tell.try_send(told).is_err()) {
        missed(node);
    }
}

fn missed(node: &Node) {
    count(&node.counters.pushes_dropped);
    node.hearing.missed();
}
