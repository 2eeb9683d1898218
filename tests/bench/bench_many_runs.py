"""How far ingest is behind many runs at once.

    python -m tests.bench.bench_many_runs [--runs 64] [--every 10] [--seconds 60]

Each run finishes a step of 256 completions every so many seconds, all runs evenly
spread. Its log is followed as a supervisor does, from the file to the commit, into one
throw-away PostgreSQL of the default durability. The lag counts from the moment at which
the step is due, so a run that falls behind is not spared.
"""

import argparse
import logging
import multiprocessing
import os
import random
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.bench_ingest import claimed_run, group_log
from tests.bench.database import throwaway_database
from tests.bench.machine import heading, say, table

COMPLETIONS = 256  # of a step: 16 groups of 16
# A group, its completions, each line as an event; a step and its rollup.
ROWS = 16 + 16 + 17 + 1 + 1
POLL_SECONDS = 0.05  # of a supervisor
PROCESSES = 8  # a real run has one for itself, which would take 10 GB here
FIRST_SECONDS = 2.0  # until all have started


@dataclass(frozen=True, kw_only=True)
class Plan:
    begin: float
    end: float
    every: float
    num_runs: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=64)
    parser.add_argument("--every", type=float, default=10.0, help="seconds of a step")
    parser.add_argument("--seconds", type=float, default=60.0)
    asked = parser.parse_args()
    logging.disable(logging.WARNING)  # no one is there to be notified
    with throwaway_database():
        lags = measure(num_runs=asked.runs, every=asked.every, seconds=asked.seconds)
    show(lags, asked)


def measure(*, num_runs: int, every: float, seconds: float) -> list[float]:
    """The lag of each step that was stored, in seconds."""
    from django.db import connections

    import dashboard.supervision.ingest  # noqa: F401 - before the processes are forked

    claims = [claimed_run() for _ in range(num_runs)]
    connections.close_all()
    begin = time.monotonic() + FIRST_SECONDS
    plan = Plan(begin=begin, end=begin + seconds, every=every, num_runs=num_runs)
    context = multiprocessing.get_context("fork")
    found: Any = context.Queue()
    shares = [
        [(number, claims[number]) for number in range(first, num_runs, PROCESSES)]
        for first in range(min(PROCESSES, num_runs))
    ]
    workers = [context.Process(target=work, args=(s, plan, found)) for s in shares]
    for worker in workers:
        worker.start()
    lags = [lag for _ in workers for lag in found.get()]
    for worker in workers:
        worker.join()
    return lags


def work(share: list[tuple[int, Any]], plan: Plan, found: Any) -> None:
    lags: list[float] = []
    threads = [
        threading.Thread(target=follow, args=(number, claim, plan, lags))
        for number, claim in share
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found.put(lags)


def follow(number: int, claim: Any, plan: Plan, lags: list[float]) -> None:
    """One run: its trainer writes a step when it is due, its supervisor stores it."""
    from django.db import connection

    from dashboard.supervision.event_log import LogTailer, read_events
    from dashboard.supervision.ingest import ingest

    path = Path(os.environ["COHORT_DATA"]) / f"events-{number}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    tailer, line = LogTailer(path), 1
    connection.ensure_connection()
    due = plan.begin + plan.every * number / plan.num_runs
    while due < plan.end:
        texts = group_log(line)
        time.sleep(max(0.0, due - time.monotonic()))
        with path.open("ab") as file:
            file.write(b"\n".join(texts) + b"\n")
        time.sleep(random.uniform(0, POLL_SECONDS))
        lines = tailer.read()
        ingest(claim, read_events(lines, attempt=claim.attempt))
        tailer.advance(lines)
        lags.append(time.monotonic() - due)
        line += len(texts)
        due += plan.every
    connection.close()


def show(lags: list[float], asked: argparse.Namespace) -> None:
    ordered = sorted(lags)
    p50, p95 = (ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.95))
    # A run that is behind stores its last steps after the end.
    rate = len(ordered) / (asked.seconds + max(0.0, ordered[-1] - asked.every))
    say(heading("tests.bench.bench_many_runs", packages=("django", "psycopg")))
    names = ("runs", "steps/s", "completions/s", "rows/s", "lag p50", "p95", "max")
    row = [
        f"{asked.runs}",
        f"{rate:,.1f}",
        f"{rate * COMPLETIONS:,.0f}",
        f"{rate * ROWS:,.0f}",
        *(f"{1_000 * lag:,.0f} ms" for lag in (p50, p95, ordered[-1])),
    ]
    say(table(names, [row]))


if __name__ == "__main__":
    main()
