-- Fills the event table with :rows done events that expire over the next ten days, each named as a real one is: its
-- id is the first half of its key's SHA-256, so new ids fall anywhere into the index.
insert into umavez_event (id, first_claimed, lease_until, expires, fence, fingerprint, attempts, state, hold, route, key,
                          receipt)
select encode(substring(sha256(key::bytea) for 16), 'hex')::uuid, at, at + 70000, at + 864000000, n, n, 1, 1, false,
       'stripe', key, decode(repeat('00', 48), 'hex')
from (
    select n, 'stripe:evt_' || md5(n::text) as key,
           (extract(epoch from now()) * 1000)::bigint - (random() * 600000000)::bigint as at
    from generate_series(1, :rows) as n
) as events
order by at;
