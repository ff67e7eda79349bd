#!/usr/bin/env python3
"""Turns run.sh's measurements into the table and the list of goals. Medians of rounds, with the range behind them.

report.py RESULTS.jsonl    the whole report
report.py --line           one measurement from stdin, as one line for people who watch
"""

import json
import os
import platform
import statistics
import sys
from collections import defaultdict

LOADS = {
    "first": "0 % copies, 1 KiB, 64 connections",
    "half": "50 % copies, 1 KiB, 64 connections",
    "most": "95 % copies, 1 KiB, 64 connections",
    "wide": "0 % copies, 1 KiB, 256 connections",
    "nested": "0 % copies, nested 4 KiB, 64 connections",
    "paced": "0 % copies, 500 requests/s",
    "paced-copies": "95 % copies, 500 requests/s",
    "slow1": "0 % copies, 256 connections, each flush 1 ms slower",
    "slow3": "0 % copies, 256 connections, each flush 3 ms slower",
    "one-slow0": "one new event at a time",
    "batch-slow0": "1,000 new items in one request at a time",
    "one-slow1": "one new event at a time, each flush 1 ms slower",
    "batch-slow1": "1,000 new items in one request at a time, each flush 1 ms slower",
    "one-slow3": "one new event at a time, each flush 3 ms slower",
    "batch-slow3": "1,000 new items in one request at a time, each flush 3 ms slower",
    "rows-none": "0 % copies, 64 connections, empty event table",
    "rows-full": "0 % copies, 64 connections, event table filled before",
}
PEERS = {
    "pass": "umavez, passing through",
    "nginx": "nginx `proxy_pass`",
    "lua": "nginx + Lua + Redis, not durable",
    "naive": "hyper + fred + sqlx, straightforward",
    "embedded": "umavez, embedded",
    "stores": "umavez, Redis + Postgres",
}
NO_DEDUP = {"pass", "nginx"}


def wrong(run):
    """Answers that were not what the sender was promised."""
    tally = run["tally"]
    bad = tally["not_2xx"] + tally["errors"] + tally["firsts_swallowed"]
    return bad if run["peer"] in NO_DEDUP else bad + tally["copies_passed"]


def cpu_us(run):
    return run["cpu_s"] * 1e6 / max(run["tally"]["total"], 1)


def line(run):
    name = f"{run['load']:<13} {run['peer']:<9}"
    if not run["tally"]:
        return f"{name} failed"
    tally = run["tally"]
    return (
        f"{name} {tally['per_second']:>8,.0f}/s  p50 {tally['p50_us']:>6}  p99 {tally['p99_us']:>7}  "
        f"cpu {cpu_us(run):>6.1f} us  {run['peak_kib'] / 1024:>6.1f} MiB  wrong {wrong(run)}"
    )


class Results:
    def __init__(self, lines):
        self.runs = defaultdict(dict)
        self.commits = defaultdict(dict)
        for entry in map(json.loads, lines):
            if "commit_us" in entry:
                self.commits[entry["load"]][entry["round"]] = entry["commit_us"]
            elif entry["tally"]:
                self.runs[entry["load"], entry["peer"]][entry["round"]] = entry

    def value(self, load, peer, take):
        """One figure by round."""
        return {number: take(run) for number, run in self.runs[load, peer].items()}


def over_rounds(combine, *series):
    """`combine` within each round, then the median over rounds with its range."""
    shared = set.intersection(*(set(figures) for figures in series)) if series else set()
    values = [combine(*(figures[number] for figures in series)) for number in shared]
    return (statistics.median(values), min(values), max(values)) if values else None


def per_second(run):
    return run["tally"]["per_second"]


def p50(run):
    return run["tally"]["p50_us"]


def table(results):
    print("| load | contestant | requests/s (range) | CPU µs/request | p50 µs | p99 µs | p99.9 µs | peak MiB | wrong |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for load, what in LOADS.items():
        for peer, name in PEERS.items():
            runs = list(results.runs[load, peer].values())
            if not runs:
                continue
            rate = [per_second(run) for run in runs]
            cells = [
                what,
                name,
                f"{statistics.median(rate):,.0f} ({min(rate):,.0f}–{max(rate):,.0f})",
                f"{statistics.median(map(cpu_us, runs)):.1f}",
                *(f"{statistics.median(run['tally'][q] for run in runs):,.0f}" for q in ("p50_us", "p99_us", "p999_us")),
                f"{max(run['peak_kib'] for run in runs) / 1024:.1f}",
                f"{sum(map(wrong, runs))}",
            ]
            print("| " + " | ".join(cells) + " |")
            what = ""
    for load, figures in results.commits.items():
        print(f"\nOne commit of this database, measured beside `{load}`: p50 {statistics.median(figures.values()):,.0f} µs.")


def goals(results):
    """What each figure should be: text, the figure, the bound, and whether the bound is the least or the most."""

    def ratio(load, peer, other, other_load=None):
        return over_rounds(
            lambda a, b: a / max(b, 1), results.value(load, peer, per_second), results.value(other_load or load, other, per_second)
        )

    cpu_pass = results.value("first", "pass", cpu_us)
    cpu_first = results.value("first", "stores", cpu_us)
    share = results.value("most", "stores", lambda run: run["tally"]["replayed"] / max(run["tally"]["total"], 1))
    cpu_most = results.value("most", "stores", cpu_us)

    def copy(passing, first, most, copies):
        # What the mix spent on its firsts is taken out; the rest is what its copies cost.
        return (most - (1 - copies) * first) / max(copies, 0.01) / max(passing, 0.01)

    paced, passing = results.value("paced", "stores", p50), results.value("paced", "pass", p50)
    yield "0 % copies, durable, against nginx + Lua + Redis", ratio("first", "stores", "lua"), 1.1, "least"
    yield "0 % copies, durable, against the straightforward version", ratio("first", "stores", "naive"), 3.5, "least"
    yield "the same at 256 connections, flushes 1 ms slower", ratio("slow1", "stores", "naive"), 3.0, "least"
    yield "the same at 256 connections, flushes 3 ms slower", ratio("slow3", "stores", "naive"), 3.0, "least"
    yield "95 % copies, against nginx + Lua + Redis", ratio("most", "stores", "lua"), 2.0, "least"
    yield "95 % copies, against nginx passing everything on", ratio("most", "stores", "nginx", "first"), 1.2, "least"
    yield "passing through, against nginx", ratio("first", "pass", "nginx"), 0.9, "least"
    yield "CPU of a first, against its own passing through", over_rounds(lambda a, b: a / max(b, 0.01), cpu_first, cpu_pass), 1.5, "most"
    yield "CPU of a copy, against its own passing through", over_rounds(copy, cpu_pass, cpu_first, cpu_most, share), 0.7, "most"
    yield (
        "500/s: what a first adds to the p50, of two commits and 0.3 ms",
        over_rounds(lambda a, b, c: (a - b) / (2 * c + 300), paced, passing, results.commits["paced"]),
        1.0,
        "most",
    )
    yield (
        "500/s: p50 of copies, against passing through",
        over_rounds(lambda a, b: a / max(b, 1), results.value("paced-copies", "stores", p50), passing),
        1.0,
        "most",
    )
    for slower, text in ((0, ""), (1, ", flushes 1 ms slower"), (3, ", flushes 3 ms slower")):
        alone, whole = results.value(f"one-slow{slower}", "stores", p50), results.value(f"batch-slow{slower}", "stores", p50)
        yield f"p50 of 1,000 new items in one request, against one{text}", over_rounds(lambda a, b: a / max(b, 1), whole, alone), 5.0, "most"
    for peer in ("stores", "embedded"):
        peak = over_rounds(lambda kib: kib / 1024, results.value("wide", peer, lambda run: run["peak_kib"]))
        yield f"peak memory at 256 connections, MiB ({PEERS[peer]})", peak, 32, "most"
    yield "0 % copies on a filled event table, against an empty one", ratio("rows-full", "stores", "stores", "rows-none"), 0.9, "least"


def report(path):
    with open(path, encoding="utf-8") as lines:
        results = Results(lines)
    rounds = {number for runs in results.runs.values() for number in runs}
    print(f"{len(rounds)} interleaved round(s), {os.cpu_count()} cores shared by load, contestant, stores and app; {platform.system()} {platform.release().split('-')[0]}, {platform.machine()}\n")
    table(results)
    print("\n| goal | measured (range) | bound | |\n| --- | ---: | ---: | --- |")
    for text, measured, bound, side in goals(results):
        sign = "≥" if side == "least" else "≤"
        if measured is None:
            print(f"| {text} | – | {sign} {bound} | not measured |")
            continue
        middle, low, high = measured
        met = middle >= bound if side == "least" else middle <= bound
        print(f"| {text} | {middle:.2f} ({low:.2f}–{high:.2f}) | {sign} {bound} | {'met' if met else '**missed**'} |")


if __name__ == "__main__":
    if sys.argv[1:] == ["--line"]:
        print(line(json.load(sys.stdin)))
    elif len(sys.argv) == 2:
        report(sys.argv[1])
    else:
        sys.exit(__doc__)
