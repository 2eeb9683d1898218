"""Pages that stop reading: `pytest -m load -s tests/load/bench_stalled.py`.

Ordinary viewers of a run alone for a while, then beside sockets that nobody reads and
whose small buffers are full soon. Measured are the delays of the ordinary ones in both
(from just before the trainer writes a line until a viewer has it), the web process's
resident memory in both, and how far behind the stalled ones are, how soon they have
caught up once they are read again, and whether anybody lacks anything at the end.
COHORT_LOAD_STALLED sockets for COHORT_LOAD_SECONDS.
"""

from __future__ import annotations

import os
import time

import pytest

from tests.bench.machine import heading, say, table
from tests.load.bench_viewers import milliseconds
from tests.load.stack import Crowd, Stack, resident_mb, running_stack
from tests.load.steady_trainer import Pace

pytestmark = pytest.mark.load
NUM_STALLED = int(os.environ.get("COHORT_LOAD_STALLED", "20"))
SECONDS = float(os.environ.get("COHORT_LOAD_SECONDS", "60"))
NUM_ORDINARY = 180
EVENTS = 50.0
SETTLING = 5.0
# Alone first, then beside them, then for them to catch up.
PACE = Pace(
    num_steps=int(EVENTS * (SETTLING + 1.5 * SECONDS + 15)), events_per_second=EVENTS
)


def watch(stack: Stack, crowd: Crowd, seconds: float) -> tuple[dict[str, float], float]:
    """The delays of the ordinary viewers, and the web process's most memory, in MB."""
    crowd.ask("measure", group="ordinary")
    memory, until = 0.0, time.monotonic() + seconds
    while time.monotonic() < until:
        memory = max(memory, resident_mb(stack.web_pid))
        time.sleep(1)
    return crowd.ask("measure", group="ordinary"), memory


def test_stalled_readers_cost_the_others_nothing() -> None:
    with running_stack() as stack:
        show = stack.show(stack.prepare(PACE), PACE)
        crowd = stack.crowd(show.scene)
        crowd.ask("come", group="ordinary", count=NUM_ORDINARY, over=2)
        crowd.ask("come", group="stalled", count=NUM_STALLED, is_small=True)
        show.go()
        time.sleep(SETTLING)
        alone, before = watch(stack, crowd, SECONDS / 2)
        crowd.ask("stall", group="stalled")
        beside, during = watch(stack, crowd, SECONDS)
        caught_up = crowd.ask("read_on", group="stalled")
        after = resident_mb(stack.web_pid)
        show.wait_for_the_end()
        truth = stack.truth(show.scene)
        ended = [
            crowd.ask("finish", group=group, truth=truth)
            for group in ("ordinary", "stalled")
        ]
    behind = caught_up["behind"]
    rows = [
        ["before they stall", *delays(alone), f"{before:.1f} MB"],
        [f"{SECONDS:g} s beside them", *delays(beside), f"{during:.1f} MB"],
        ["once they read again", "", "", f"{after:.1f} MB"],
    ]
    title = f"{NUM_ORDINARY} viewers, {NUM_STALLED} stalled, {EVENTS:g} events a second"
    say("\n" + heading("pytest", packages=("django", "uvicorn")))
    say(f"Load average {os.getloadavg()[0]:.1f} after.\n")
    say(table((title, "p50", "p95", "memory of the web process, at most"), rows))
    say(
        f"Behind by {min(behind)} to {max(behind)} events; caught up within "
        f"{caught_up['seconds']:.2f} s; {ended[1]['with_snapshot']} by a snapshot. "
        f"Memory grew by {during - before:.1f} MB. Lacking or differing: "
        f"{sum(len(one['faults']) for one in ended)}."
    )
    assert [one["faults"] for one in ended] == [[], []]
    assert min(behind) > 0


def delays(found: dict[str, float]) -> list[str]:
    return [milliseconds(found["p50"]), milliseconds(found["p95"])]
