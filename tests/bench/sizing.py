#!/usr/bin/env python3
"""Measures what one event takes in Redis, Postgres and SQLite, and prints the tables of docs/operations.md.

    tests/bench/sizing.py                    20,000 events for each length of answer, about two minutes
    EVENTS=2000 tests/bench/sizing.py        a look
    UMAVEZ=target/debug/umavez …             another program (default: target/release/umavez, which has to be built)

Real deliveries go through a real gateway to real stores, all on loopback and in one temporary folder; only processes
started here are stopped. Needs, on Debian: redis-server postgresql python3.
"""

import asyncio
import glob
import os
import resource
import secrets
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid

EVENTS = int(os.environ.get("EVENTS", "20000"))
PENDING = min(EVENTS, 2000)
CONNECTIONS = 64
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
UMAVEZ = os.environ.get("UMAVEZ", os.path.join(ROOT, "target/release/umavez"))
RECEIPTS = (0, 200, 2048)
RATES = (1, 100, 1000)
HOT_S, DURABLE_S = 72 * 3600, 8 * 86400

started = []


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(command, log, **more):
    process = subprocess.Popen(command, stdout=open(log, "wb"), stderr=subprocess.STDOUT, **more)
    started.append(process)
    return process


def stop(process):
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def until(what, happened):
    for _ in range(600):
        if happened():
            return
        time.sleep(0.05)
    sys.exit(f"sizing: {what} did not happen within 30 s")


def ask(command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


class Redis:
    def __init__(self, folder):
        self.port = free_port()
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
        start(command, os.path.join(folder, "redis.log"))
        until("redis's answer", lambda: subprocess.run(self.cli("ping"), capture_output=True).stdout == b"PONG\n")

    def cli(self, *words):
        return ["redis-cli", "-p", str(self.port), *words]

    def keys(self):
        return int(ask(self.cli("dbsize")))

    def memory(self):
        """What the data takes: less the server's own, and less the buffers of its clients."""
        stats = ask(self.cli("memory", "stats")).split("\n")
        # Two tables are part of what a key costs: the one of all keys, and the one of those that expire.
        counted = ("dataset.bytes", "overhead.hashtable.main", "overhead.hashtable.expires")
        return sum(int(value) for name, value in zip(stats, stats[1:]) if name in counted)

    def flush(self):
        ask(self.cli("flushall", "sync"))


class Postgres:
    def __init__(self, folder):
        home = os.path.join(folder, "pg")
        os.mkdir(home)
        found = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: int(path.split("/")[4]))
        programs = found[-1] if found else os.path.dirname(shutil.which("postgres") or sys.exit("sizing: no postgres"))
        as_user = []
        if os.getuid() == 0:  # it refuses to run as root
            os.chmod(folder, 0o711)
            shutil.chown(home, "postgres")
            as_user = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups", "--"]
        data = os.path.join(home, "data")
        ask(as_user + [f"{programs}/initdb", "-D", data, "-U", "umavez", "-A", "trust", "--no-sync"])
        self.port = free_port()
        options = ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "max_wal_size=4GB"]
        start(as_user + [f"{programs}/postgres", "-D", data, "-p", str(self.port), *options], os.path.join(folder, "pg.log"))
        until("postgres's answer", lambda: subprocess.run(self.psql("select 1"), capture_output=True).returncode == 0)
        self.version = self.sql("show server_version").split()[0]

    def psql(self, sql):
        return ["psql", "-h", "127.0.0.1", "-p", str(self.port), "-U", "umavez", "-d", "postgres", "-qAtX", "-c", sql]

    def sql(self, sql):
        return ask(self.psql(sql))

    def sizes(self):
        """Bytes of the table (with what is stored out of line), of its indexes, and its rows."""
        self.sql("vacuum umavez_event")
        sizes = self.sql("select pg_table_size('umavez_event'), pg_indexes_size('umavez_event'), count(*) from umavez_event")
        return [int(size) for size in sizes.split("|")]


class App:
    """Answers each request with so many bytes, once its gate is open."""

    def __init__(self):
        self.body = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.received = 0

    async def serve(self):
        server = await asyncio.start_server(self.connection, "127.0.0.1", 0, backlog=4096)
        return server.sockets[0].getsockname()[1]

    async def connection(self, reader, writer):
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(length_of(head))
                self.received += 1
                await self.gate.wait()
                answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % self.body
                # Databases compress what repeats; this doesn't.
                writer.write(answer + secrets.token_urlsafe(self.body)[: self.body].encode())
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass  # the gateway hung up, or this program ends
        finally:
            writer.close()


def length_of(head):
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.split(b":")[1])
    return 0


class Gateway:
    def __init__(self, folder, name, app_port, stores):
        self.port, admin = free_port(), free_port()
        config = os.path.join(folder, f"{name}.toml")
        with open(config, "w") as file:
            file.write(
                f'[listen]\npublic = "127.0.0.1:{self.port}"\nadmin = "127.0.0.1:{admin}"\n{stores}\n'
                f'[upstream]\nurl = "http://127.0.0.1:{app_port}"\n'
                '[[route]]\nname = "hotmart"\npath = "/webhooks/hotmart"\nprovider = "hotmart"\n'
            )
        log = os.path.join(folder, f"{name}.log")
        self.process = start([UMAVEZ, "run", "--config", config], log, env={**os.environ, "UMAVEZ_LOG": "info"})
        until("the gateway's start", lambda: b"listening" in open(log, "rb").read())

    async def send(self, ids):
        """Sends events; each answer must be a first one's."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        for event in ids:
            body = b'{"id":"%s","event":"PURCHASE_APPROVED"}' % event.encode()
            head = b"POST /webhooks/hotmart HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            writer.write(head % len(body) + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(length_of(answer))
            if b"umavez: first" not in answer.lower():
                sys.exit(f"sizing: an event was not answered as a first: {answer!r}")
        writer.close()

    async def send_all(self, count, connections):
        ids = [str(uuid.uuid4()) for _ in range(count)]
        await asyncio.gather(*(self.send(ids[n::connections]) for n in range(connections)))


def human(size):
    for unit, limit in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= limit:
            return f"{size / limit:.3g} {unit}"
    return f"{size:.0f} B"


def rows(*lines):
    for line in lines:
        print("| " + " | ".join(str(cell) for cell in line) + " |")


async def measured(folder):
    app = App()
    app_port = await app.serve()
    redis, postgres = Redis(folder), Postgres(folder)
    stores = (
        f'[hot]\nurl = "redis://127.0.0.1:{redis.port}"\ntimeout = "2s"\n'
        f'[durable]\nurl = "postgres://umavez@127.0.0.1:{postgres.port}/postgres"'
    )
    gateway = Gateway(folder, "shared", app_port, stores)
    found = {}

    await gateway.send_all(200, 8)  # tables, scripts, connections
    redis.flush()
    before, app.received = redis.memory(), 0
    app.gate.clear()
    sending = asyncio.gather(*(gateway.send([str(uuid.uuid4())]) for _ in range(PENDING)))
    while app.received < PENDING:
        await asyncio.sleep(0.05)
    found["processing"] = (redis.memory() - before) / redis.keys()
    app.gate.set()
    await sending

    for length in RECEIPTS:
        app.body = length
        redis.flush()
        postgres.sql("truncate umavez_event")
        before, wal = redis.memory(), postgres.sql("select pg_current_wal_lsn()")
        await gateway.send_all(EVENTS, CONNECTIONS)
        wal = int(postgres.sql(f"select pg_current_wal_lsn() - '{wal}'"))
        hot = (redis.memory() - before) / redis.keys()
        table, indexes, count = postgres.sizes()
        found[length] = (hot, table / count, indexes / count, wal / count)
    stop(gateway.process)

    for length in RECEIPTS:
        app.body = length
        path = os.path.join(folder, f"alone{length}.db")
        alone = Gateway(folder, f"alone{length}", app_port, f'[durable]\nurl = "sqlite:{path}"')
        await alone.send_all(EVENTS, CONNECTIONS)
        stop(alone.process)
        with sqlite3.connect(path) as database:
            count = database.execute("select count(*) from umavez_event").fetchone()[0]
        found[length] += (os.path.getsize(path) / count,)
    return found, postgres.version, ask(["redis-server", "--version"]).split("v=")[1].split()[0]


def report(found, postgres, redis):
    print(f"Redis {redis}, Postgres {postgres}; {EVENTS} events for each length; key `hotmart:` and a UUID (44 bytes).\n")
    rows(("an event", "Redis", "Postgres, table", "its indexes", "WAL written", "SQLite"), ("---", *["---:"] * 5))
    rows(("processing", f"{found['processing']:.0f} B", "as below", "as below", "", ""))
    for length in RECEIPTS:
        rows((f"done, answer of {length} bytes", *(f"{size:.0f} B" for size in found[length])))
    print()
    rows(("new events", "Redis, 72 h", "Postgres, 8 d", "rows", "SQLite, 8 d"), ("---", *["---:"] * 4))
    for rate in RATES:
        hot, durable, alone = [], [], []
        for length in RECEIPTS:
            size = found[length]
            hot.append(human(size[0] * rate * HOT_S))
            durable.append(human((size[1] + size[2]) * rate * DURABLE_S))
            alone.append(human(size[4] * rate * DURABLE_S))
        rows((f"{rate}/s", " · ".join(hot), " · ".join(durable), f"{rate * DURABLE_S / 1e6:.3g} million", " · ".join(alone)))


def main():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
    if not os.access(UMAVEZ, os.X_OK):
        sys.exit(f"sizing: {UMAVEZ} is not there: cargo build --release")
    folder = tempfile.mkdtemp(prefix="umavez-sizing.")
    try:
        report(*asyncio.run(measured(folder)))
    finally:
        for process in reversed(started):
            stop(process)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
