//! The scripts: what takes more than one command to be atomic. Each touches one key, so that it runs on any
//! cluster node. `processing w` marks that a copy on another node waits; see `hot/value.rs`.

use std::sync::LazyLock;

/// A script and the hash that Redis knows it by.
pub(super) struct Script {
    text: &'static str,
    hash: LazyLock<String>,
}

impl Script {
    pub(super) fn text(&self) -> &'static str {
        self.text
    }

    pub(super) fn hash(&self) -> &str {
        &self.hash
    }
}

/// `SET … NX GET PX` for servers before 7.0.
pub(super) static CLAIM: Script =
    Script { text: CLAIM_TEXT, hash: LazyLock::new(|| fred::util::sha1_hash(CLAIM_TEXT)) };
const CLAIM_TEXT: &str = "-- claim
local old = redis.call('GET', KEYS[1])
if old then return old end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return false";

/// `SET … GET PX` for servers before 6.2.
pub(super) static DONE: Script =
    Script { text: DONE_TEXT, hash: LazyLock::new(|| fred::util::sha1_hash(DONE_TEXT)) };
const DONE_TEXT: &str = "-- done
local old = redis.call('GET', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return old";

/// Takes a mark away from under its own fence, and tells who watches it.
pub(super) static RELEASE: Script =
    Script { text: RELEASE_TEXT, hash: LazyLock::new(|| fred::util::sha1_hash(RELEASE_TEXT)) };
const RELEASE_TEXT: &str = "-- release
local old = redis.call('GET', KEYS[1])
if not old or string.sub(old, 1, 11) ~= 'processing ' or string.sub(old, 14) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
if string.sub(old, 12, 12) == 'w' then redis.call('PUBLISH', ARGV[2], ARGV[3]) end
return 1";

/// Sets a mark's watched byte, which keeps its time to live, and returns the value as it was.
pub(super) static WATCH: Script =
    Script { text: WATCH_TEXT, hash: LazyLock::new(|| fred::util::sha1_hash(WATCH_TEXT)) };
const WATCH_TEXT: &str = "-- watch
local old = redis.call('GET', KEYS[1])
if old and string.sub(old, 1, 11) == 'processing ' then redis.call('SETRANGE', KEYS[1], 11, 'w') end
return old";
