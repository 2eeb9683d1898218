"""Hours of streaming in minutes: `pytest -m load -s tests/load/bench_soak.py`.

8 hours of a step every 5 s are 5,760 steps, sent here as fast as COHORT_LOAD_EVENTS a
second, each step four groups of eight completions and its end. Pages come and go all
the time, and some stay. Measured is the resident memory of the web process and of the
supervisor, which ingests, the own memory of workers, PostgreSQL and Redis, and of all
that `up` started processes, connections of PostgreSQL and open files.
bench_streaming.py measures the browser's.
COHORT_LOAD_STEPS says how many.
"""

from __future__ import annotations

import os
import time

import pytest

from tests.bench.machine import heading, say, table
from tests.load.stack import resident_mb, running_stack
from tests.load.steady_trainer import Pace

pytestmark = pytest.mark.load
NUM_STEPS = int(os.environ.get("COHORT_LOAD_STEPS", "5760"))
EVENTS = float(os.environ.get("COHORT_LOAD_EVENTS", "100"))
NUM_GROUPS = 4
NUM_READINGS = 8
NUM_STAYING, NUM_PASSING = 10, 10
CONNECTION_MB = 16
OTHERS = ("workers", "Redis", "PostgreSQL")


def test_the_server_does_not_grow() -> None:
    pace = Pace(num_steps=NUM_STEPS, events_per_second=EVENTS, num_groups=NUM_GROUPS)
    rows: list[list[str]] = []
    webs, supervisors, prints = [], [], []
    with running_stack() as stack:
        show = stack.show(stack.prepare(pace), pace)
        crowd = stack.crowd(show.scene)
        crowd.ask("come", group="staying", count=NUM_STAYING)
        show.go()
        begin, visits, supervisor = time.monotonic(), 0, 0.0
        for reading in range(1, NUM_READINGS + 1):
            # The last one before the run ends: its end loads what it needs, once.
            until = begin + pace.seconds * reading / (NUM_READINGS + 1)
            while time.monotonic() < until:
                crowd.ask("come", group="passing", count=NUM_PASSING)
                time.sleep(1)
                crowd.ask("leave", group="passing")
                visits += NUM_PASSING
            web = resident_mb(stack.web_pid)
            if show.process.poll() is None:
                supervisor = resident_mb(show.process.pid)
            webs.append(web)
            supervisors.append(supervisor)
            prints.append(stack.footprint())
            rows.append(
                [
                    f"{time.monotonic() - begin:.0f} s",
                    f"{visits:,}",
                    f"{web:.1f} MB",
                    f"{supervisor:.1f} MB",
                    *(f"{prints[-1].megabytes[part]:.1f} MB" for part in OTHERS),
                    f"{prints[-1].connection_mb:.1f} MB",
                    f"{prints[-1].num_processes}",
                    f"{prints[-1].num_connections}",
                    f"{prints[-1].num_files}",
                ]
            )
        show.wait_for_end()
        truth = stack.truth(show.scene)
        ended = crowd.ask("finish", group="staying", truth=truth)
    title = f"{NUM_STEPS:,} steps of {NUM_GROUPS} groups"
    say("\n" + heading("pytest", packages=("django", "uvicorn")))
    say(f"Load average {os.getloadavg()[0]:.1f} after.\n")
    memory = ("web process", "supervisor", *OTHERS, "largest connection")
    counted = ("processes", "connections", "open files")
    say(table((title, "visits so far", *memory, *counted), rows))
    assert ended["faults"] == []
    half = prints[NUM_READINGS // 2]
    assert prints[-1].num_connections <= half.num_connections + 2  # two are just open
    assert prints[-1].num_others <= half.num_others
    assert prints[-1].num_files <= half.num_files + 10
    # After each thread and connection has been used once.
    others = [
        [each.megabytes[part] for each in prints] for part in ("workers", "Redis")
    ]
    for megabytes in (webs, supervisors, *others):
        assert megabytes[-1] < 1.05 * megabytes[1]
    # A connection grows with its first expensive page, each connection of a pool in
    # turn, so PostgreSQL as a whole grows for longer.
    assert max(each.connection_mb for each in prints) < CONNECTION_MB
