"""A long run in Chromium, timed: `pytest -m load tests/bench/bench_charts.py -s`.

Bytes are those on the wire, packed; times begin when the page is asked for.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, Playwright

from dashboard.accounts.models import User
from tests.bench.bench_curves import NUM_STEPS, make_long_run
from tests.bench.machine import heading, say, table
from tests.bench.undisturbed import undisturbed

pytestmark = pytest.mark.load
TURNS = 5
SETTLE_SECONDS = 3.0
FIRST = "performance.getEntriesByName('first-chart')[0]?.startTime ?? null"
DRAWN = """[...document.querySelectorAll('.js-plotly-plot')].filter(
    (plot) => plot.getBoundingClientRect().top < innerHeight).length"""
POINTS = """Math.max(...[...document.querySelectorAll('.js-plotly-plot')].flatMap(
    (plot) => plot.data.map((trace) => trace.x.length)))"""
STEPS = """document.querySelector('[data-chart="reward-mean"]').data.at(-1)
    .customdata.length"""


class Wire:
    """What came over the network since it was last asked."""

    def __init__(self, page: Page) -> None:
        self.num_bytes = self.num_frame_bytes = 0
        session = page.context.new_cdp_session(page)
        session.send("Network.enable")
        session.on("Network.dataReceived", self._count)
        session.on("Network.webSocketFrameReceived", self._count_frame)

    def _count(self, event: dict[str, Any]) -> None:
        self.num_bytes += event["encodedDataLength"]

    def _count_frame(self, event: dict[str, Any]) -> None:
        self.num_frame_bytes += len(event["response"]["payloadData"])


def wait_until(page: Page, expression: str, is_enough: Callable[[Any], bool]) -> Any:
    for _ in range(400):
        if is_enough(value := page.evaluate(expression)):
            return value
        page.wait_for_timeout(25)
    raise AssertionError(f"{expression} is {value!r} after 10 s")


def first_charts(
    playwright: Playwright, user: User, app: str, path: str
) -> tuple[float, float]:
    """When a first chart was on screen: in a fresh profile, and on a second visit."""
    with undisturbed(playwright) as chromium:
        chromium.sign_in(user, app)
        for _ in range(2):
            chromium.open(app + path)
            time.sleep(SETTLE_SECONDS)
        first, again = chromium.read(app + path, f"[{FIRST}, {DRAWN}]")
    for at, num_drawn in (first, again):
        assert at is not None, f"no chart within {SETTLE_SECONDS:g} s"
        assert num_drawn >= 3, num_drawn
    return first[0], again[0]


def test_the_first_chart_and_a_zoom(team, alice, live_app, playwright, open_browser):
    run = make_long_run(team)
    path = f"/{team.slug}/runs/{run.id}/"
    first_charts(playwright, alice, live_app, path)  # the web process's own first page
    turns = [first_charts(playwright, alice, live_app, path) for _ in range(TURNS)]
    first, again = (list(times) for times in zip(*turns, strict=True))
    zooms, points, frames, closer = [], [], [], []
    for _ in range(TURNS):
        page = open_browser(alice).new_page()
        wire = Wire(page)
        page.goto(path)
        wait_until(page, DRAWN, lambda count: count >= 3)
        points.append(page.evaluate(POINTS))
        frames.append(wire.num_frame_bytes)
        before, wire.num_bytes = page.evaluate(STEPS), 0
        begin = page.evaluate("performance.now()")
        page.locator(".chart-gear").click()
        page.get_by_label("First step shown").fill("50000")
        page.get_by_label("Last step shown").fill("50400")
        page.keyboard.press("Enter")
        wait_until(page, STEPS, lambda count: count > 400)
        zooms.append(page.evaluate("performance.now()") - begin)
        closer.append(wire.num_bytes)
        assert before <= 1_000
        page.context.close()
    rows = [
        ["first chart on screen", f"{statistics.median(first):.0f} ms"],
        ["the slowest of them", f"{max(first):.0f} ms"],
        ["on a second visit", f"{statistics.median(again):.0f} ms"],
        ["the slowest of them", f"{max(again):.0f} ms"],
        ["most points of a line", f"{max(points)}"],
        ["frames of the socket, unpacked", f"{max(frames) / 1e3:.0f} kB"],
        ["typed a range of 400 steps: each of them drawn", f"{max(zooms):.0f} ms"],
        ["sent for it", f"{max(closer) / 1e3:.0f} kB"],
    ]
    say("\n" + heading("pytest", packages=("django", "playwright")))
    say(table((f"{NUM_STEPS:,} steps × 60 metrics, {TURNS} fresh profiles", ""), rows))
    assert max(points) <= 1_000
