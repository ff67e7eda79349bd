-- Times are milliseconds since the Unix epoch, by this process's machine.
-- state: 0 processing, 1 done, 2 released, 3 held.
create table umavez_event (
    id            blob    not null primary key,
    first_claimed integer not null,
    lease_until   integer not null,
    expires       integer not null,
    fence         integer not null,
    fingerprint   integer not null,
    conflicting   integer,
    payload       blob,
    attempts      integer not null,
    state         integer not null,
    hold          integer not null,
    route         text    not null,
    key           text    not null,
    receipt       blob
) strict;

create index umavez_event_expires on umavez_event (expires);

-- Requests of routes that hold. One row for each event that came in the request; the request itself once.
create table umavez_payload (
    id      blob    not null primary key,
    created integer not null,
    request blob    not null
) strict;

create table umavez_payload_event (
    payload blob not null,
    event   blob not null,
    primary key (payload, event)
) strict, without rowid;

create table umavez_action (
    number integer primary key,
    at     integer not null,
    action text    not null,
    event  blob    not null,
    key    text    not null,
    actor  text    not null,
    before integer,
    after  integer
) strict;
