//! Every statement for SQLite but the schema's. Many rows travel as one JSON array, so that the text of a
//! statement is constant; bytes in it are hex. `?2` is the transaction's time where a statement takes one.

pub(super) const NOW: &str = "-- umavez: now
select cast(unixepoch('subsec') * 1000 as integer)";

/// Nothing else is of use without this table.
pub(super) const PING: &str = "-- umavez: ping
select 1 from umavez_event limit 0";

/// Which of the other tables are missing.
pub(super) const MISSING: &str = "-- umavez: missing tables
select value from json_each('[\"umavez_action\", \"umavez_payload\", \"umavez_payload_event\"]')
where value not in (select name from sqlite_master where type = 'table')";

/// Element: [id, fence, state, receipt].
pub(super) const SETTLE: &str = "-- umavez: settle
update umavez_event
set state = s.state, receipt = s.receipt,
    payload = case when s.state = 3 then umavez_event.payload end
from (select unhex(value ->> 0) as id, value ->> 1 as fence, value ->> 2 as state, unhex(value ->> 3) as receipt
      from json_each(?1)) as s
where umavez_event.id = s.id and umavez_event.fence = s.fence
  and (umavez_event.state = 0 or (umavez_event.state = 3 and s.state <> 3))
returning id";

/// Element: [id, key, route, fence, lease, ttl, hold, fingerprint, payload].
pub(super) const CLAIM: &str = "-- umavez: claim
insert into umavez_event as e (id, first_claimed, lease_until, expires, fence, fingerprint, payload, attempts,
                               state, hold, route, key)
select unhex(value ->> 0), ?2, ?2 + (value ->> 4), ?2 + (value ->> 5), value ->> 3, value ->> 7,
       unhex(value ->> 8), 1, 0, value ->> 6, value ->> 2, value ->> 1
from json_each(?1) where true
on conflict (id) do update set
    first_claimed = case when (e.state = 0 and e.hold) or e.expires > ?2
                         then e.first_claimed else excluded.first_claimed end,
    expires = case when (e.state = 0 and e.hold) or e.expires > ?2 then e.expires else excluded.expires end,
    attempts = case when e.state = 0 and e.hold then e.attempts
                    when e.expires > ?2 then e.attempts + 1 else 1 end,
    conflicting = case when (e.state = 0 and e.hold) or e.expires > ?2 then e.conflicting end,
    lease_until = case when e.state = 0 and e.hold then e.lease_until else excluded.lease_until end,
    fence = case when e.state = 0 and e.hold then e.fence else excluded.fence end,
    fingerprint = case when e.state = 0 and e.hold then e.fingerprint else excluded.fingerprint end,
    payload = case when e.state = 0 and e.hold then e.payload else excluded.payload end,
    hold = case when e.state = 0 and e.hold then e.hold else excluded.hold end,
    state = case when e.state = 0 and e.hold then 3 else 0 end,
    receipt = null
where e.state = 2 or (e.state = 1 and e.expires <= ?2) or (e.state = 0 and e.lease_until <= ?2)
returning id, state, fence, attempts, first_claimed, lease_until, expires, fingerprint, receipt";

/// Element: an id.
pub(super) const PEEK: &str = "-- umavez: peek
select e.id, state, fence, attempts, first_claimed, lease_until, expires, fingerprint, receipt
from json_each(?1) as asked cross join umavez_event as e where e.id = unhex(asked.value)";

pub(super) const STORE_PAYLOAD: &str = "-- umavez: store a payload
insert or ignore into umavez_payload (id, created, request) values (?1, ?2, ?3)";

pub(super) const STORE_PAYLOAD_EVENT: &str = "-- umavez: store a payload's event
insert or ignore into umavez_payload_event (payload, event) values (?1, ?2)";

pub(super) const DROP_PAYLOAD: &str = "-- umavez: drop a payload
delete from umavez_payload where id = ?1 and not exists (
    select 1 from umavez_payload_event as o cross join umavez_event as e
    where o.payload = ?1 and e.id = o.event and e.payload = ?1)";

pub(super) const DROP_PAYLOAD_EVENTS: &str = "-- umavez: drop a payload's events
delete from umavez_payload_event
where payload = ?1 and not exists (select 1 from umavez_payload where id = ?1)";

pub(super) const LOOK: &str = "-- umavez: look
select id, state, fence, attempts, first_claimed, lease_until, expires, fingerprint, receipt, key, route,
       conflicting, payload
from umavez_event where id between ?1 and ?2 order by id limit 2";

/// Only claims with a payload can be held: the payloads, few as they are, lead to the held events.
pub(super) const HELD: &str = "-- umavez: held
select e.id, e.state, e.fence, e.attempts, e.first_claimed, e.lease_until, e.expires, e.fingerprint, e.receipt,
       e.key, e.route, e.conflicting, e.payload
from umavez_payload_event as o cross join umavez_event as e
where e.id = o.event and e.payload = o.payload and e.state = 3
order by e.first_claimed limit ?1";

pub(super) const ACTIONS: &str = "-- umavez: actions
select at, action, key, actor, before, after from umavez_action order by number desc limit ?1";

pub(super) const PAYLOAD: &str = "-- umavez: payload
select request from umavez_payload where id = ?1";

pub(super) const FIND: &str = "-- umavez: change, find
select state, key, payload from umavez_event where id = ?1";

/// The fence goes, so that whoever held the claim can no longer settle it. What a person calls done is remembered for a
/// whole window from then on, as if it were first claimed now: it may have been held for longer than that.
pub(super) const CHANGE: &str = "-- umavez: change, set
update umavez_event
set state = ?2, receipt = ?3, payload = null, fence = 0,
    first_claimed = case when ?2 = 1 then max(first_claimed, ?4) else first_claimed end,
    expires = case when ?2 = 1 then max(expires, ?4 + expires - first_claimed) else expires end
where id = ?1";

/// The payload stays, and what lapses is held again. A window begins anew here too.
pub(super) const REPLAY: &str = "-- umavez: change, replay
update umavez_event
set state = 0, hold = 1, fence = ?3, attempts = attempts + 1, lease_until = ?2 + ?4,
    first_claimed = max(first_claimed, ?2), expires = max(expires, ?2 + expires - first_claimed)
where id = ?1";

pub(super) const FORGET: &str = "-- umavez: change, forget
delete from umavez_event where id = ?1";

pub(super) const RECORD: &str = "-- umavez: change, record
insert into umavez_action (at, action, event, key, actor, before, after) values (?1, ?2, ?3, ?4, ?5, ?6, ?7)";

/// Element: [id, fingerprint].
pub(super) const CONFLICTS: &str = "-- umavez: conflicts
update umavez_event set conflicting = c.fingerprint
from (select unhex(value ->> 0) as id, value ->> 1 as fingerprint from json_each(?1)) as c
where umavez_event.id = c.id and umavez_event.fingerprint <> c.fingerprint";

/// Element: [id, key, route, fence, lease, ttl, hold, fingerprint, age, receipt]. A row that is there is only
/// ever brought forward to done, and never a held one. What a person has decided since the event was claimed stands, also
/// that it be forgotten; of people's changes the latest thousand are looked through.
pub(super) const CATCH_UP: &str = "-- umavez: catch up
insert into umavez_event as e (id, first_claimed, lease_until, expires, fence, fingerprint, attempts, state,
                               hold, route, key, receipt)
select unhex(value ->> 0), ?2 - (value ->> 8), ?2 + (value ->> 4), ?2 - (value ->> 8) + (value ->> 5),
       value ->> 3, value ->> 7, 1, case when value ->> 9 is null then 0 else 1 end, value ->> 6, value ->> 2,
       value ->> 1, unhex(value ->> 9)
from json_each(?1)
where not exists (
    select 1 from (select event, at, before, after from umavez_action order by number desc limit 1000) as changed
    where changed.event = unhex(value ->> 0) and changed.at >= ?2 - (value ->> 8)
      and changed.before is not changed.after)
on conflict (id) do update set state = 1, receipt = excluded.receipt, fingerprint = excluded.fingerprint,
    fence = excluded.fence
where excluded.state = 1 and e.state in (0, 2)";

pub(super) const PARK: &str = "-- umavez: sweep, park
update umavez_event set state = 3 where id in (
    select e.id from umavez_payload_event as o cross join umavez_event as e
    where e.id = o.event and e.payload = o.payload and e.state = 0 and e.hold and e.lease_until <= ?2
    limit ?1)";

pub(super) const SWEEP: &str = "-- umavez: sweep, delete
delete from umavez_event where rowid in (
    select rowid from umavez_event
    where expires <= ?2 and (state in (1, 2) or (state = 0 and lease_until <= ?2 and not hold))
    order by expires limit ?1)";

pub(super) const LAG: &str = "-- umavez: sweep, lag
select ?2 - expires from umavez_event
where expires <= ?2 and (state in (1, 2) or (state = 0 and lease_until <= ?2 and not hold))
order by expires limit ?1";

/// Payloads that no event refers to any more.
pub(super) const ORPHANS: &str = "-- umavez: sweep, orphans
delete from umavez_payload where id in (
    select p.id from umavez_payload as p
    where p.created < ?2 - 60000 and not exists (
        select 1 from umavez_payload_event as o cross join umavez_event as e
        where o.payload = p.id and e.id = o.event and e.payload = p.id)
    limit ?1)";

pub(super) const ORPHANED_EVENTS: &str = "-- umavez: sweep, orphans' events
delete from umavez_payload_event where not exists (
    select 1 from umavez_payload where id = umavez_payload_event.payload)";

/// Gives free pages back once they are a third of the file; below that they are used again.
pub(super) const SLACK: &str = "select p.page_count, f.freelist_count
from pragma_page_count as p, pragma_freelist_count as f";
pub(super) const GIVE_BACK: &str = "pragma incremental_vacuum(2000)";
