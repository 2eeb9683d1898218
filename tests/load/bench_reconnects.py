"""All pages lose the network: `pytest -m load -s tests/load/bench_reconnects.py`.

While the run goes on, each socket is cut without a farewell at a moment of its own
within 5 s, and its page connects again as static/js/live/stream.js does: after 0.25 to
0.5 s, and after longer pauses when it is refused. It is current once it holds whatever
anybody had seen when its new socket was open. COHORT_LOAD_VIEWERS says how many.
"""

from __future__ import annotations

import os
import time

import pytest

from tests.bench.machine import heading, say, table
from tests.load.stack import Meter, running_stack
from tests.load.steady_trainer import Pace

pytestmark = pytest.mark.load
NUM_VIEWERS = int(os.environ.get("COHORT_LOAD_VIEWERS", "200"))
OVER_SECONDS = 5.0
ROUNDS = 3
EVENTS = 50.0
PACE = Pace(num_steps=int(EVENTS * 60), events_per_second=EVENTS)


def test_all_pages_connect_again() -> None:
    rows = []
    with running_stack() as stack:
        show = stack.show(stack.prepare(PACE), PACE)
        crowd = stack.crowd(show.scene)
        crowd.ask("come", group="steady", count=2)
        crowd.ask("come", group="viewers", count=NUM_VIEWERS, over=5)
        show.go()
        for number in range(1, ROUNDS + 1):
            time.sleep(3)
            meter = Meter({"web": stack.pids()["web"]})
            found = crowd.ask("reconnect", group="viewers", over=OVER_SECONDS)
            share = meter.shares()["web"]
            delays = found["delays"]
            rows.append(
                [
                    f"round {number}",
                    f"{delays[len(delays) // 2]:.2f} s",
                    f"{delays[-1]:.2f} s",
                    f"{found['seconds']:.2f} s",
                    f"{share * found['seconds']:.2f} s",
                ]
            )
        show.wait_for_the_end()
        truth = stack.truth(show.scene)
        ended = [
            crowd.ask("finish", group=group, truth=truth)
            for group in ("steady", "viewers")
        ]
    title = (
        f"{NUM_VIEWERS} reconnects in {OVER_SECONDS:g} s, {EVENTS:g} events a second"
    )
    header = ("until current, p50", "the slowest", "until all are", "web's processor")
    say("\n" + heading("pytest", packages=("django", "uvicorn")))
    say(f"Load average {os.getloadavg()[0]:.1f} after.\n")
    say(table((title, *header), rows))
    say(f"Refused on the way: {ended[1]['refusals']}.")
    assert [one["faults"] for one in ended] == [[], []]
