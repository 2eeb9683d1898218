"""Many viewers of one run: `pytest -m load -s tests/load/bench_viewers.py`.

The trainer writes a line, its supervisor stores it, the web process sends it. Each
line is a finished step of 29 metrics, so every event goes to every viewer. Measured is
the time from just before the trainer writes the line until a viewer's process has the
frame that brings it, of each line at each viewer; and, in one Chromium among them,
until the frame after plotly.js has drawn it into the chart of the mean reward.
COHORT_LOAD_VIEWERS, COHORT_LOAD_EVENTS a second and COHORT_LOAD_SECONDS say how many.
"""

from __future__ import annotations

import json
import os
import time

import pytest
from playwright.sync_api import Browser, Page

from tests.bench.machine import heading, say, table
from tests.browser.waiting import wait_until
from tests.load.stack import Meter, Show, Stack, running_stack
from tests.load.steady_trainer import Pace

pytestmark = pytest.mark.load
NUM_VIEWERS = int(os.environ.get("COHORT_LOAD_VIEWERS", "200"))
EVENTS = float(os.environ.get("COHORT_LOAD_EVENTS", "50"))
SECONDS = float(os.environ.get("COHORT_LOAD_SECONDS", "60"))
# When each step was on the screen first.
NOTE_DRAWN = """() => {
    const plot = document.querySelector('[data-chart="reward-mean"]');
    const drawn = window.drawn = [];
    plot.on("plotly_afterplot", () => {
        const last = plot.data.at(-1).x.at(-1);
        requestAnimationFrame(() => drawn.push([last, Date.now() / 1000]));
    });
}"""
HAS_POINT = (
    "document.querySelector('[data-chart=\"reward-mean\"]').data?.at(-1)?.x?.length > 0"
)


def open_page(browser: Browser, stack: Stack, show: Show) -> Page:
    context = browser.new_context(
        base_url=stack.address, viewport={"width": 1440, "height": 900}
    )
    name, value = show.scene.cookie.split("=", 1)
    context.add_cookies([{"url": stack.address, "name": name, "value": value}])
    page = context.new_page()
    page.goto(f"{show.scene.page}?x=step&smooth=0")
    return page


def delays_until_drawn(show: Show, drawn: list[tuple[float, float]]) -> list[float]:
    """Of each step, until something at least as new was on the screen."""
    lines = [json.loads(line) for line in show.events.read_bytes().splitlines()]
    told = [(e["step"], e["time"]) for e in lines if e["type"] == "step_finished"]
    delays, at = [], 0
    first = drawn[0][0]
    for step, told_at in told:
        while at < len(drawn) and drawn[at][0] < step:
            at += 1
        if at == len(drawn):
            raise AssertionError(f"step {step} was never drawn")
        if step > first:  # those before it were drawn before it was looked
            delays.append(drawn[at][1] - told_at)
    return sorted(delays)


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms"


def test_many_viewers_of_one_run(browser: Browser) -> None:
    pace = Pace(num_steps=int(EVENTS * SECONDS), events_per_second=EVENTS)
    with running_stack() as stack:
        show = stack.show(stack.prepare(pace), pace)
        crowd = stack.crowd(show.scene)
        came = crowd.ask("come", group="viewers", count=NUM_VIEWERS - 1, over=5)
        page = open_page(browser, stack, show)
        load_before = os.getloadavg()[0]
        begin = time.monotonic()
        show.go()
        wait_until(page, HAS_POINT)
        page.evaluate(NOTE_DRAWN)
        parts = {**stack.pids(), "viewers": [crowd.process.pid]}
        parts["supervisor"] = [show.process.pid]
        meter = Meter(parts)
        crowd.ask("measure", group="viewers")
        page.wait_for_timeout(1_000 * (SECONDS - (time.monotonic() - begin)) - 500)
        shares = meter.shares()
        while show.process.poll() is None:
            page.wait_for_timeout(250)
        found = crowd.ask("measure", group="viewers")
        ended = crowd.ask("finish", group="viewers", truth=stack.truth(show.scene))
        wait_until(page, f"window.drawn.at(-1)[0] >= {pace.num_steps}")
        drawn = delays_until_drawn(show, page.evaluate("window.drawn"))
        page.context.close()
    rows = [
        ["until a viewer has it, p50", milliseconds(found["p50"])],
        ["p95", milliseconds(found["p95"])],
        ["the slowest", milliseconds(found["max"])],
        ["until Chromium has drawn it, p50", milliseconds(drawn[len(drawn) // 2])],
        ["p95", milliseconds(drawn[int(0.95 * len(drawn))])],
        ["events at viewers", f"{found['count']:,}"],
        ["viewers that lack or differ in anything", f"{len(ended['faults'])}"],
        [
            "frames a second and viewer",
            f"{found['frames'] / SECONDS / NUM_VIEWERS:.1f}",
        ],
        ["characters a frame", f"{found['bytes'] / max(1, found['frames']):,.0f}"],
        ["until all had come, within 5 s", f"{came['seconds']:.1f} s"],
        *([f"of a core: {part}", f"{share:.0%}"] for part, share in shares.items()),
    ]
    say("\n" + heading("pytest", packages=("django", "uvicorn", "playwright")))
    say(f"Load average {load_before:.1f} before, {os.getloadavg()[0]:.1f} after.\n")
    title = f"{NUM_VIEWERS} viewers, {EVENTS:g} events a second, {SECONDS:g} s"
    say(table((title, ""), rows))
    assert ended["faults"] == []
    assert ended["viewers"] == NUM_VIEWERS - 1
