//! The way a handle's commands go: through fred, one by one, or together where one server has all the keys.

use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use fred::clients::Client;
use fred::error::ErrorKind;
use fred::interfaces::ClientLike;
use fred::types::config::Options;
use fred::types::{ClusterHash, CustomCommand, Value};

use super::Cause;
use super::lane::Lane;

/// How many timeouts of fred's a command may take: one that met the end of its routing task may never be answered,
/// nor time out by itself.
const GUARD_TIMEOUTS: u32 = 2;

/// What Redis said to one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Nil,
    Value(Bytes),
    Number(i64),
    /// Done, and nothing more to say.
    Word,
}

#[derive(Clone, Debug)]
pub(super) struct Way {
    pub(super) client: Client,
    /// Where asks gather; none in a cluster, where each key may lie on another node.
    pub(super) lane: Option<Lane>,
}

impl Way {
    /// Asks one thing, of the node that has this slot; no answer comes much later than `patience` from now.
    pub(super) async fn ask(
        &self,
        patience: Duration,
        slot: Option<u16>,
        words: &[&[u8]],
    ) -> Result<Reply, Cause> {
        let Some((name, words)) = words.split_first() else { return Ok(Reply::Nil) };
        let words = words.iter().map(|word| Value::Bytes(Bytes::copy_from_slice(word))).collect();
        // Boxed: fred's futures are 7 KiB each, which the request's would carry and move.
        Box::pin(through(&self.client, patience, slot, name, words)).await.map(reply)
    }
}

/// One command through fred, whatever it costs.
pub(super) async fn through(
    client: &Client,
    patience: Duration,
    slot: Option<u16>,
    name: &[u8],
    words: Vec<Value>,
) -> Result<Value, Cause> {
    // It fails at once while it is not connected, and gives up at the deadline: fred then neither sends nor keeps the
    // command, and drops a late answer.
    let options =
        Options { timeout: Some(patience), max_attempts: Some(1), fail_fast: true, ..Options::default() };
    let name = String::from_utf8_lossy(name).into_owned();
    let command = CustomCommand::new(name, slot.map_or(ClusterHash::Random, ClusterHash::Custom), false);
    let client = client.with_options(&options);
    let answer = tokio::time::timeout(GUARD_TIMEOUTS * patience, client.custom::<Value, _>(command, words));
    answer.await.unwrap_or_else(|_| Err(Cause::new(ErrorKind::Canceled, "fred did not answer")))
}

pub(super) fn reply(value: Value) -> Reply {
    match value {
        Value::Null => Reply::Nil,
        Value::Bytes(bytes) => Reply::Value(bytes),
        Value::String(text) => Reply::Value(text.into_inner()),
        Value::Integer(number) => Reply::Number(number),
        Value::Boolean(_) | Value::Double(_) | Value::Queued | Value::Map(_) | Value::Array(_) => Reply::Word,
    }
}

/// The way of a handle's present connection, once there was one; the keeper replaces it.
#[derive(Debug, Default)]
pub(super) struct Slot(RwLock<Option<Way>>);

impl Slot {
    pub(super) fn put(&self, way: Way) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(way);
    }

    pub(super) fn way(&self) -> Option<Way> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
