"""The system tab of a run while it trains."""

import pytest
from playwright.sync_api import expect

from tests.browser.accessibility import findings, findings_in_each_view
from tests.browser.tabs import DelayedResponses, hide, show
from tests.browser.waiting import wait_until
from tests.dashboard.runs.stories import Story, queue_run
from tests.dashboard.supervision.machines import make_samples, measure_ranks

pytestmark = [pytest.mark.browser, pytest.mark.slow]
CHART = "document.querySelector('[data-system-chart=\"{}\"]')"
CPU, MEMORY = CHART.format("cpu"), CHART.format("memory")
RANGES = f"[{CPU}, {MEMORY}].map((one) => one._fullLayout?.xaxis.range.join())"
CHARTS = [
    *("GPU use", "GPU memory", "CPU", "Memory"),
    *("Disk traffic", "Free disk space", "Network"),
]


def test_charts_grow_and_catch_up_after_a_hidden_tab(page, team):
    story = Story(queue_run(team))
    story.start()
    make_samples(story.run, 3, gpus=2)
    page.goto(f"/alpha/runs/{story.run.id}/metrics/#machine")
    wait_until(page, f"{CPU}.data?.[0].y.join() === '0,1,2'")
    for title in CHARTS:
        expect(
            page.get_by_role("heading", name=title, exact=False).first
        ).to_be_visible()
    gpus = page.locator("figure", has=page.get_by_role("heading", name="GPU memory"))
    expect(gpus.locator("[data-system-last]")).to_have_text("GPU 0 2 B, GPU 1 2 B")

    make_samples(story.run, 1, begin=3, gpus=2)
    wait_until(page, f"{CPU}.data[0].y.join() === '0,1,2,3'")

    measure_ranks(story.run, [1.0, 1.0, 1.5])
    expect(page.locator("[data-rank]")).to_have_count(3, timeout=15_000)
    expect(page.locator("[data-rank='2']")).to_have_class("is-slow")

    held = DelayedResponses(page, "**/system.json*")
    make_samples(story.run, 1, begin=4, gpus=2)
    held.wait_for_one()
    hide(page)
    held.release()
    page.wait_for_timeout(300)
    assert page.evaluate(f"{CPU}.data[0].y.length") == 4
    show(page)
    wait_until(page, f"{CPU}.data[0].y.join() === '0,1,2,3,4'")


def test_the_page_is_accessible_on_any_screen(page, team):
    story = Story(queue_run(team))
    story.start()
    make_samples(story.run, 30, gpus=1)
    measure_ranks(story.run, [1.0, 1.0, 1.5])
    page.goto(f"/alpha/runs/{story.run.id}/metrics/#machine")
    wait_until(page, f"{CPU}.data?.[0].y.length === 30")

    assert not findings_in_each_view(page)


def test_the_charts_are_zoomed_and_read_together(page, team):
    problems: list[str] = []
    page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    story = Story(queue_run(team))
    story.start()
    make_samples(story.run, 100)
    page.goto(f"/alpha/runs/{story.run.pk}/metrics/?machine=step#machine")
    wait_until(page, f"{MEMORY}.data?.[0].x.length === 100")
    plot = page.locator('[data-system-chart="cpu"] .nsewdrag')
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box is not None
    x, y = box["x"], box["y"] + box["height"] / 2

    page.mouse.move(x + box["width"] / 2, y)
    title = ".hoverlayer .legendtitletext"
    own = page.locator(f'[data-system-chart="cpu"] {title}')
    expect(own).not_to_be_empty()
    other = page.locator(f'[data-system-chart="memory"] {title}')
    expect(other).to_have_text(own.text_content() or "")

    page.mouse.down()
    page.mouse.move(x + box["width"] * 3 / 4, y, steps=5)
    page.mouse.up()
    wait_until(page, "location.search.includes('first=')")
    wait_until(page, f"new Set({RANGES}).size === 1 && {MEMORY}.data[0].x[0] > 0")
    zoomed = page.evaluate(RANGES)
    assert findings(page) == []
    page.reload()
    wait_until(page, f"{RANGES}[0] === '{zoomed[0]}' && {RANGES}[1] === '{zoomed[0]}'")

    # A double click shows everything, even if the page started with a part.
    page.mouse.dblclick(x + box["width"] / 2, y)
    wait_until(page, "!location.search.includes('first=')")
    wait_until(page, f"{CPU}.data[0].x.length === 100")
    assert problems == []
