-- Times are milliseconds since the Unix epoch, by this database's clock.
-- state: 0 processing, 1 done, 2 released, 3 held.
create table umavez_event (
    id            uuid     not null primary key,
    first_claimed bigint   not null,
    lease_until   bigint   not null,
    expires       bigint   not null,
    fence         bigint   not null,
    fingerprint   bigint   not null,
    conflicting   bigint,
    payload       uuid,
    attempts      integer  not null,
    state         smallint not null,
    hold          boolean  not null,
    route         text     not null,
    key           text     not null,
    receipt       bytea
) with (
    -- Room on every page for the settled version of its rows: no index entry is written at settlement.
    fillfactor = 45,
    -- Every row is written twice and deleted once: clean up by the thousand, not by the fifth of a table.
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.05
);

-- For the sweeper alone. No column in it changes at settlement.
create index umavez_event_expires on umavez_event (expires);

-- Requests of routes that hold; `events` are the events that came in it.
create table umavez_payload (
    id      uuid   not null primary key,
    created bigint not null,
    events  uuid[] not null,
    request bytea  not null
);

create table umavez_action (
    number bigint generated always as identity primary key,
    at     bigint   not null,
    action text     not null,
    event  uuid     not null,
    key    text     not null,
    actor  text     not null,
    before smallint,
    after  smallint
);
