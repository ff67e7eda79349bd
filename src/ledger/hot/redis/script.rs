//! The scripts: what takes more than one command to be atomic. Each but `TOGETHER` touches one key, so that it runs on
//! any cluster node. The byte after `processing ` says whether a copy on another node waits (`w`, `y`), and whether the
//! durable store knows nothing of the claim (`x`, `y`); see `hot/value.rs`.

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

/// Writes an end, and tells who watches its mark; not where the event was forgotten.
pub(super) static DONE: Script =
    Script { text: DONE_TEXT, hash: LazyLock::new(|| fred::util::sha1_hash(DONE_TEXT)) };
const DONE_TEXT: &str = "-- done
local old = redis.call('GET', KEYS[1])
if old == 'forgotten' then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
if old and string.sub(old, 1, 11) == 'processing ' then
  local how = string.sub(old, 12, 12)
  if how == 'w' or how == 'y' then redis.call('PUBLISH', ARGV[3], ARGV[4]) end
end
return 1";

/// Takes a mark away from under its own fence, and tells who watches it.
pub(super) static RELEASE: Script =
    Script { text: RELEASE_TEXT, hash: LazyLock::new(|| fred::util::sha1_hash(RELEASE_TEXT)) };
const RELEASE_TEXT: &str = "-- release
local old = redis.call('GET', KEYS[1])
if not old or string.sub(old, 1, 11) ~= 'processing ' or string.sub(old, 14) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
local how = string.sub(old, 12, 12)
if how == 'w' or how == 'y' then redis.call('PUBLISH', ARGV[2], ARGV[3]) end
return 1";

/// Makes a mark of this fence the only claim there is, the durable store being away. Returns what is there instead.
pub(super) static EXPOSE: Script =
    Script { text: EXPOSE_TEXT, hash: LazyLock::new(|| fred::util::sha1_hash(EXPOSE_TEXT)) };
const EXPOSE_TEXT: &str = "-- expose
local old = redis.call('GET', KEYS[1])
local how = 'x'
if old then
  if string.sub(old, 1, 11) ~= 'processing ' or string.sub(old, 14) ~= ARGV[1] then return old end
  local was = string.sub(old, 12, 12)
  if was == 'w' or was == 'y' then how = 'y' end
end
redis.call('SET', KEYS[1], 'processing ' .. how .. ' ' .. ARGV[1], 'PX', ARGV[2])
return false";

/// Puts the mark of a claim that the durable store has decided in place of another's. Returns what must not give way: a
/// claim that only the hot store knows, or how it ended.
pub(super) static TAKE: Script =
    Script { text: TAKE_TEXT, hash: LazyLock::new(|| fred::util::sha1_hash(TAKE_TEXT)) };
const TAKE_TEXT: &str = "-- take
local old = redis.call('GET', KEYS[1])
local how = '-'
if old then
  if string.sub(old, 1, 5) == 'done ' then return old end
  if string.sub(old, 1, 11) ~= 'processing ' then return false end
  local was = string.sub(old, 12, 12)
  if was == 'x' or was == 'y' then return old end
  how = was
end
redis.call('SET', KEYS[1], 'processing ' .. how .. ' ' .. ARGV[1], 'PX', ARGV[2])
return false";

/// Sets a mark's watched byte, which keeps its time to live, and returns the value as it was.
pub(super) static WATCH: Script =
    Script { text: WATCH_TEXT, hash: LazyLock::new(|| fred::util::sha1_hash(WATCH_TEXT)) };
const WATCH_TEXT: &str = "-- watch
local old = redis.call('GET', KEYS[1])
if old and string.sub(old, 1, 11) == 'processing ' then
  local how = string.sub(old, 12, 12)
  redis.call('SETRANGE', KEYS[1], 11, (how == 'x' or how == 'y') and 'y' or 'w')
end
return old";

/// Claims, then ends, then releases, of many keys: `ARGV` counts the first two, then has a value and a time to live for
/// each key. Says for a claim what was there, for the others whether somebody watches the mark that went. What one key
/// is refused fails no other. A `forgotten` that an end meets is put back, for `FORGOTTEN_TTL`. Only commands and options
/// that Redis 6.2 has.
pub(super) static TOGETHER: Script =
    Script { text: TOGETHER_TEXT, hash: LazyLock::new(|| fred::util::sha1_hash(TOGETHER_TEXT)) };
const TOGETHER_TEXT: &str = "-- together
local call, out = redis.pcall, {}
local claims = tonumber(ARGV[1])
local dones = claims + tonumber(ARGV[2])
for i = 1, #KEYS do
  local key, value, ttl = KEYS[i], ARGV[2 * i + 1], ARGV[2 * i + 2]
  local said
  if i <= claims then
    said = call('SET', key, value, 'PX', ttl, 'NX')
    if not said then said = call('GET', key) elseif said.ok then said = false end
  else
    local old
    if i <= dones then
      old = call('SET', key, value, 'PX', ttl, 'GET')
      if old == 'forgotten' then call('SET', key, old, 'PX', 30000) end
    else
      old = call('GET', key)
    end
    local marked = type(old) == 'string' and string.sub(old, 1, 11) == 'processing '
    said = old
    if i > dones then
      if marked and string.sub(old, 14) == value then said = call('DEL', key) else marked = false end
    end
    if type(said) ~= 'table' then
      local how = marked and string.sub(old, 12, 12)
      said = (how == 'w' or how == 'y') and 1 or 0
    end
  end
  if type(said) == 'table' then said = {said.err} end
  out[i] = said
end
return out";
