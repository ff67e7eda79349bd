//! Every statement for Postgres but the schema's. The first line names it, as `pg_stat_activity` will show.
//! Written for Postgres 12 and later; every row is found by its `id` alone.

/// Claims and settlements of one batch, decided by one statement. Parameters are columns: $1–$9 the claims,
/// $10–$13 the settlements.
///
/// A claim whose lease lapsed while its settlement could not be recorded may be parked meanwhile, under its own fence:
/// what became of it is known. `met` only spares rows that cannot be claimed a lock and a write; whether a claim stands is
/// decided by `won`, atomically: the conflict clause sees the committed row, whoever wrote it.
macro_rules! batch {
    ($dropped:literal, $stored:literal) => {
        concat!(
            "-- umavez: batch
with clock as materialized (
    select (extract(epoch from statement_timestamp()) * 1000)::bigint as now
), ended as (
    update umavez_event e
    set state = s.state, receipt = s.receipt, payload = case when s.state = 3 then e.payload end
    from unnest($10::uuid[], $11::bigint[], $12::smallint[], $13::bytea[]) as s (id, fence, state, receipt)
    where e.id = s.id and e.fence = s.fence and (e.state = 0 or (e.state = 3 and s.state <> 3))
    returning e.id, e.state
",
            $dropped,
            "), met as materialized (
    select a.*, e.state, e.hold as e_hold, e.fence as e_fence, e.attempts, e.first_claimed, e.lease_until,
           e.expires, e.fingerprint as e_fingerprint, e.receipt,
           e.id is null or e.state = 2 or (e.state = 1 and e.expires <= clock.now)
               or (e.state = 0 and e.lease_until <= clock.now) as open
    from clock, unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[],
                       $7::boolean[], $8::bigint[], $9::uuid[])
                as a (id, key, route, fence, lease, ttl, hold, fingerprint, payload)
    left join umavez_event e on e.id = a.id
), won as (
    insert into umavez_event as e (id, first_claimed, lease_until, expires, fence, fingerprint, payload,
                                   attempts, state, hold, route, key)
    select id, now, now + lease, now + ttl, fence, fingerprint, payload, 1, 0, hold, route, key
    from met, clock where open order by id
    on conflict (id) do update set
        first_claimed = case when (e.state = 0 and e.hold) or e.expires > excluded.first_claimed
                             then e.first_claimed else excluded.first_claimed end,
        expires = case when (e.state = 0 and e.hold) or e.expires > excluded.first_claimed
                       then e.expires else excluded.expires end,
        attempts = case when e.state = 0 and e.hold then e.attempts
                        when e.expires > excluded.first_claimed then e.attempts + 1 else 1 end,
        conflicting = case when (e.state = 0 and e.hold) or e.expires > excluded.first_claimed
                           then e.conflicting end,
        lease_until = case when e.state = 0 and e.hold then e.lease_until else excluded.lease_until end,
        fence = case when e.state = 0 and e.hold then e.fence else excluded.fence end,
        fingerprint = case when e.state = 0 and e.hold then e.fingerprint else excluded.fingerprint end,
        payload = case when e.state = 0 and e.hold then e.payload else excluded.payload end,
        hold = case when e.state = 0 and e.hold then e.hold else excluded.hold end,
        state = case when e.state = 0 and e.hold then 3 else 0 end,
        receipt = null
    where e.state = 2 or (e.state = 1 and e.expires <= excluded.first_claimed)
       or (e.state = 0 and e.lease_until <= excluded.first_claimed)
    returning e.id, e.state, e.fence, e.attempts, e.first_claimed, e.lease_until, e.expires, e.fingerprint,
              e.payload
",
            $stored,
            "
)
select 1::smallint, now, id, state, fence, attempts, first_claimed, lease_until, expires, fingerprint,
       null::bytea
from won, clock
union all
select 2::smallint, now, id, state, e_fence, attempts, first_claimed, lease_until, expires, e_fingerprint,
       receipt
from met, clock where not open
union all
select 3::smallint, now, id, state, 0, 0, 0, 0, 0, 0, null from ended, clock"
        )
    };
}

/// For batches in which nothing has a payload: the tables of payloads cost time only by being named.
pub(super) const BATCH: &str = batch!("", "");

/// $14–$15 payloads to store, $16 payloads to drop.
pub(super) const BATCH_WITH_PAYLOADS: &str = batch!(
    "), dropped as (
    delete from umavez_payload p
    where p.id = any ($16::uuid[]) and not exists (
        select from umavez_event e
        where e.id = any (p.events) and e.payload = p.id
          and not exists (select from ended where ended.id = e.id and ended.state <> 3))
",
    "), stored as (
    insert into umavez_payload (id, created, events, request)
    select p.id, clock.now, array(select won.id from won where won.payload = p.id), p.request
    from clock, unnest($14::uuid[], $15::bytea[]) as p (id, request)
    where exists (select from won where won.payload = p.id and won.state = 0)
    on conflict (id) do update set events = umavez_payload.events || excluded.events"
);

/// Claims of events that nobody has claimed before: $1–$5, each with the number of its terms, and $6–$9, the terms. One
/// column is unnested and leads to the others: each that is unnested costs as much as several rows.
macro_rules! claiming_new {
    () => {
        "insert into umavez_event as e (id, first_claimed, lease_until, expires, fence, fingerprint, attempts,
                               state, hold, route, key)
select ($1::uuid[])[i], now, now + ($7::bigint[])[term], now + ($8::bigint[])[term], ($3::bigint[])[i],
       ($4::bigint[])[i], 1, 0, ($9::boolean[])[term], ($6::text[])[term], key
from (
    select key, i::integer, ($5::integer[])[i] as term,
           (select (date_part('epoch', statement_timestamp()) * 1000)::bigint) as now
    from unnest($2::text[]) with ordinality as k (key, i) offset 0
) a
on conflict (id) do nothing"
    };
}

/// Settlements; the batch above says what they are about.
macro_rules! settling {
    ($id:literal, $fence:literal, $state:literal, $receipt:literal) => {
        concat!(
            "update umavez_event e
set state = s.state, receipt = s.receipt, payload = case when s.state = 3 then e.payload end
from (
    select (",
            $id,
            "::uuid[])[i] as id, (",
            $fence,
            "::bigint[])[i] as fence, (",
            $state,
            "::smallint[])[i] as state, receipt
    from unnest(",
            $receipt,
            "::bytea[]) with ordinality as r (receipt, i) offset 0
) s
where e.id = s.id and e.fence = s.fence and (e.state = 0 or (e.state = 3 and s.state <> 3))
returning e.id"
        )
    };
}

/// The usual batches: no claim's event was seen before, and there are no payloads. Copies are left out, and asked for again
/// by the batch above, which costs several times as much; likewise what an expired, released or lapsed row has to give
/// way to. How many rows were written tells whether that is needed.
pub(super) const NEW: &str = concat!("-- umavez: claims of new events\n", claiming_new!());

/// Gives the ids of the claims that were ended.
pub(super) const SETTLE: &str = concat!("-- umavez: settlements\n", settling!("$1", "$2", "$3", "$4"));

/// Claims $1–$9 and settlements $10–$13. Gives ids only where some are missing.
pub(super) const NEW_AND_SETTLE: &str = concat!(
    "-- umavez: claims of new events, and settlements\nwith ended as (\n",
    settling!("$10", "$11", "$12", "$13"),
    "\n), won as (\n",
    claiming_new!(),
    "\nreturning e.id
)
select case when (select count(*) from won) < cardinality($1::uuid[]) then array(select id from won) end,
       case when (select count(*) from ended) < cardinality($10::uuid[]) then array(select id from ended) end"
);

pub(super) const PEEK: &str = "-- umavez: peek
select 2::smallint, (extract(epoch from statement_timestamp()) * 1000)::bigint, id, state, fence, attempts,
       first_claimed, lease_until, expires, fingerprint, receipt
from umavez_event where id = any ($1::uuid[])";

/// Nothing else is of use without this table.
pub(super) const PING: &str = "-- umavez: ping
select from umavez_event limit 0";

/// Which of the other tables are missing.
pub(super) const MISSING: &str = "-- umavez: missing tables
select name from (values ('umavez_action'), ('umavez_payload')) as t (name)
where to_regclass(name) is null order by name";

/// Which of the settings that make a commit outlive a crash are off.
pub(super) const UNSAFE_SETTINGS: &str = "-- umavez: unsafe settings
select name from (values ('fsync'), ('full_page_writes'), ('synchronous_commit')) as s (name)
where current_setting(name) = 'off' order by name";

/// Ordered, so that the planner goes by the primary key whatever it thinks of the range.
pub(super) const LOOK: &str = "-- umavez: look
select 2::smallint, 0::bigint, id, state, fence, attempts, first_claimed, lease_until, expires, fingerprint,
       receipt, key, route, conflicting, payload
from umavez_event where id between $1 and $2 order by id limit 2";

/// Only claims with a payload can be held: the payloads, few as they are, lead to the held events.
pub(super) const HELD: &str = "-- umavez: held
select 2::smallint, 0::bigint, e.id, e.state, e.fence, e.attempts, e.first_claimed, e.lease_until, e.expires,
       e.fingerprint, e.receipt, e.key, e.route, e.conflicting, e.payload
from umavez_payload p, unnest(p.events) as o (id), umavez_event e
where e.id = o.id and e.payload = p.id and e.state = 3
order by e.first_claimed limit $1";

pub(super) const ACTIONS: &str = "-- umavez: actions
select at, action, key, actor, before, after from umavez_action order by number desc limit $1";

pub(super) const PAYLOAD: &str = "-- umavez: payload
select request from umavez_payload where id = $1";

pub(super) const LOCK: &str = "-- umavez: change, find
select state, key, payload, fence from umavez_event where id = $1 for update";

/// The fence goes, so that whoever held the claim can no longer settle it. What a person calls done is remembered for a
/// whole window from then on, as if it were first claimed now: it may have been held for longer than that.
pub(super) const CHANGE: &str = "-- umavez: change, set
update umavez_event
set state = $2, receipt = $3, payload = null, fence = 0,
    first_claimed = case when $2 = 1 then greatest(first_claimed, now) else first_claimed end,
    expires = case when $2 = 1 then greatest(expires, now + expires - first_claimed) else expires end
from (select (extract(epoch from statement_timestamp()) * 1000)::bigint as now) clock
where id = $1";

/// The payload stays, and what lapses is held again. A window begins anew here too.
pub(super) const REPLAY: &str = "-- umavez: change, replay
update umavez_event
set state = 0, hold = true, fence = $2, attempts = attempts + 1, lease_until = now + $3,
    first_claimed = greatest(first_claimed, now), expires = greatest(expires, now + expires - first_claimed)
from (select (extract(epoch from statement_timestamp()) * 1000)::bigint as now) clock
where id = $1";

pub(super) const FORGET: &str = "-- umavez: change, forget
delete from umavez_event where id = $1";

pub(super) const DROP_PAYLOAD: &str = "-- umavez: change, drop the payload
delete from umavez_payload p where p.id = $1 and not exists (
    select from umavez_event e where e.id = any (p.events) and e.payload = p.id)";

pub(super) const RECORD: &str = "-- umavez: change, record
insert into umavez_action (at, action, event, key, actor, before, after)
values ((extract(epoch from statement_timestamp()) * 1000)::bigint, $1, $2, $3, $4, $5, $6)";

pub(super) const CONFLICTS: &str = "-- umavez: conflicts
update umavez_event e set conflicting = c.fingerprint
from unnest($1::uuid[], $2::bigint[]) as c (id, fingerprint)
where e.id = c.id and e.fingerprint <> c.fingerprint";

/// A row that is there is only ever brought forward to done, and never a held one. What a person has decided since the
/// event was claimed stands, also that it be forgotten; of people's changes the latest thousand are looked through.
pub(super) const CATCH_UP: &str = "-- umavez: catch up
with changed as materialized (
    select event, max(at) as at
    from (select event, at, before, after from umavez_action order by number desc limit 1000) latest
    where before is distinct from after group by event
)
insert into umavez_event as e (id, first_claimed, lease_until, expires, fence, fingerprint, attempts, state,
                               hold, route, key, receipt)
select a.id, now - a.age, now + a.lease, now - a.age + a.ttl, a.fence, a.fingerprint, 1,
       case when a.receipt is null then 0 else 1 end, a.hold, a.route, a.key, a.receipt
from (select (extract(epoch from statement_timestamp()) * 1000)::bigint as now) clock,
     unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::boolean[],
            $8::bigint[], $9::bigint[], $10::bytea[])
         as a (id, key, route, fence, lease, ttl, hold, fingerprint, age, receipt)
where not exists (select from changed where changed.event = a.id and changed.at >= now - a.age)
order by a.id
on conflict (id) do update set state = 1, receipt = excluded.receipt, fingerprint = excluded.fingerprint,
    fence = excluded.fence
where excluded.state = 1 and e.state in (0, 2)";

/// Payloads lead to the claims that can be parked.
pub(super) const PARK: &str = "-- umavez: sweep, park
update umavez_event set state = 3 where id = any (array(
    select e.id
    from umavez_payload p, unnest(p.events) as o (id), umavez_event e
    where e.id = o.id and e.payload = p.id and e.state = 0 and e.hold
      and e.lease_until <= (extract(epoch from statement_timestamp()) * 1000)::bigint
    order by e.id limit $1 for update of e skip locked))
and state = 0";

pub(super) const SWEEP: &str = "-- umavez: sweep, delete
delete from umavez_event where id = any (array(
    select id from umavez_event, (select (extract(epoch from statement_timestamp()) * 1000)::bigint as now) clock
    where expires <= now and (state in (1, 2) or (state = 0 and lease_until <= now and not hold))
    order by expires limit $1 for update of umavez_event skip locked))";

pub(super) const LAG: &str = "-- umavez: sweep, lag
select coalesce((
    select now - expires from umavez_event
    where expires <= now and (state in (1, 2) or (state = 0 and lease_until <= now and not hold))
    order by expires limit 1), 0)
from (select (extract(epoch from statement_timestamp()) * 1000)::bigint as now) clock";

/// Payloads that no event refers to any more; a minute old, so that none is taken from a claim under way.
pub(super) const ORPHANS: &str = "-- umavez: sweep, orphans
delete from umavez_payload where id = any (array(
    select p.id from umavez_payload p
    where p.created < (extract(epoch from statement_timestamp()) * 1000)::bigint - 60000
      and not exists (select from umavez_event e where e.id = any (p.events) and e.payload = p.id)
    limit $1 for update skip locked))";
