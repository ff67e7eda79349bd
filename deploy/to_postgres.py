#!/usr/bin/env python3
"""Writes what a gateway's SQLite file knows as SQL for the Postgres that takes its place.

    umavez check --config umavez.toml                        # the new one: makes the tables
    systemctl stop umavez
    python3 deploy/to_postgres.py /var/lib/umavez/umavez.db | psql -X -1 -v ON_ERROR_STOP=1 "$URL"

Events, the requests of held ones, and what people changed. What Postgres knows of an event already stands. Reads the
file only, and says on stderr how much there was.
"""

import collections
import pathlib
import sqlite3
import sys
import uuid

EVENT = """id first_claimed lease_until expires fence fingerprint conflicting payload attempts state hold route key
    receipt""".split()
UUIDS = {"id", "payload", "event"}


def text(value):
    """A value as COPY reads it."""
    if value is None:
        return r"\N"
    if isinstance(value, bytes):
        return r"\\x" + value.hex()
    for char, escaped in (("\\", r"\\"), ("\n", r"\n"), ("\r", r"\r"), ("\t", r"\t")):
        value = str(value).replace(char, escaped)
    return value


def copy(table, columns, rows):
    """A table's rows, by way of a table of their own: those that are there already stay as they are."""
    names = ", ".join(columns)
    print(f"create temporary table moved as select {names} from {table} limit 0;")
    print(f"copy moved ({names}) from stdin;")
    count = 0
    for row in rows:
        fields = (str(uuid.UUID(bytes=value)) if name in UUIDS and value else value for name, value in zip(columns, row))
        print("\t".join(text(field) for field in fields))
        count += 1
    print("\\.")
    print(f"insert into {table} ({names}) select {names} from moved on conflict do nothing;")
    print("drop table moved;")
    print(f"{table}: {count}", file=sys.stderr)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    path = pathlib.Path(sys.argv[1]).resolve()
    # Not `immutable`: what stands in the write-ahead log counts.
    db = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    db.execute("begin")
    copy("umavez_event", EVENT, db.execute(f"select {', '.join(EVENT)} from umavez_event"))
    events = collections.defaultdict(list)
    for payload, event in db.execute("select payload, event from umavez_payload_event"):
        events[payload].append(str(uuid.UUID(bytes=event)))
    payloads = db.execute("select id, created, request from umavez_payload")
    copy(
        "umavez_payload",
        ["id", "created", "events", "request"],
        ((key, created, "{" + ",".join(events[key]) + "}", request) for key, created, request in payloads),
    )
    action = ["at", "action", "event", "key", "actor", "before", "after"]
    copy("umavez_action", action, db.execute(f"select {', '.join(action)} from umavez_action order by number"))


if __name__ == "__main__":
    main()
