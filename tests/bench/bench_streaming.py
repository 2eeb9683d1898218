"""Hours of streaming in minutes: `pytest -m load tests/bench/bench_streaming.py -s`.

A run of one step every 5 s makes 5,760 steps in 8 hours. They are ingested here as fast
as that goes, in batches as a busy minute brings them, while Chromium shows the page;
its memory is read after a collection. COHORT_STREAM_STEPS says how many.
"""

import os
import time

import pytest
from playwright.sync_api import CDPSession, Page, expect

from dashboard.supervision.ingest import ingest
from tests.bench.machine import heading, say, table
from tests.dashboard.runs.stories import Story, queue_run
from trainer.events import StepFinished

pytestmark = pytest.mark.load
NUM_STEPS = int(os.environ.get("COHORT_STREAM_STEPS", "5760"))
NUM_READINGS = 6
BATCH = 10  # at most 5 frames a second go to one page
POINTS = """Math.max(0, ...[...document.querySelectorAll('.js-plotly-plot')].flatMap(
    (plot) => plot.data.map((trace) => trace.x.length)))"""


def take_batch(story: Story, count: int) -> None:
    events = []
    for _ in range(count):
        story.step += 1
        story.line += 1
        events.append(
            StepFinished(
                line=story.line,
                attempt=story.claim.attempt,
                time=time.time(),
                step=story.step,
                metrics=story._metrics(),
            )
        )
    ingest(story.claim, events)


def read_memory(session: CDPSession) -> tuple[float, int]:
    """MB of JavaScript's heap, and the page's nodes, after a collection."""
    for _ in range(2):
        session.send("HeapProfiler.collectGarbage")
    found = session.send("Performance.getMetrics")["metrics"]
    named = {metric["name"]: metric["value"] for metric in found}
    return named["JSHeapUsedSize"] / 1e6, int(named["Nodes"])


def look_around(page: Page) -> None:
    """As someone does who watches: over the charts, and down and up the page."""
    page.mouse.move(300, 500)
    for turn in range(6):
        page.mouse.move(300 + 20 * turn, 500)
    page.mouse.wheel(0, 900)
    page.wait_for_timeout(150)
    page.mouse.wheel(0, -900)


def test_a_page_that_stays_open_does_not_grow(team, alice, open_browser):
    story = Story(queue_run(team, num_steps=NUM_STEPS))
    story.start()
    take_batch(story, 1_000)  # a page's share of points is full from the start
    page = open_browser(alice).new_page()
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    page.goto(f"/{team.slug}/runs/{story.run.id}/")
    expect(page.locator("[data-run-link]")).to_have_attribute(
        "data-link", "live", timeout=15_000
    )
    begin, rows, heaps = time.monotonic(), [], []
    for reading in range(NUM_READINGS):
        until = 1_000 + (NUM_STEPS - 1_000) * reading // (NUM_READINGS - 1)
        while story.step < until:
            take_batch(story, min(BATCH, until - story.step))
            page.wait_for_timeout(10)  # the browser's events are read meanwhile
            if story.step % 500 < BATCH:
                look_around(page)
        expect(page.locator("[data-run-step]")).to_have_text(f"{until:,}")
        page.wait_for_timeout(600)
        heap, nodes = read_memory(session)
        heaps.append(heap)
        points = page.evaluate(POINTS)
        assert points <= 1_000
        at = f"{time.monotonic() - begin:.0f} s"
        rows.append([f"{until:,}", at, f"{heap:.1f} MB", f"{nodes:,}", f"{points}"])
    columns = ("step", "after", "JavaScript's heap", "nodes", "most points of a line")
    say("\n" + heading("pytest", packages=("django", "playwright")))
    say(table(columns, rows))
    # From when the page first holds all that it may.
    assert heaps[-1] < heaps[1] + 10
