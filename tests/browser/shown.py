"""The visible data of a run's page, to compare it with a new page."""

import time
from typing import Any

from playwright.sync_api import Page, ViewportSize

# Higher than any page of a run, so that every chart is visible and drawn.
TALL: ViewportSize = {"width": 1440, "height": 9000}
CHARTS = '[...document.querySelectorAll("[data-chart], [data-signal-chart]")]'
TEXTS = [
    "[data-run-step]",
    "[data-run-state]",
    "[data-run-alerts]",
    "[data-warnings]",
    "[data-headline]",
    "[data-samples]",
    "[data-values]",
]
PARTS = ["name", "x", "y", "z", "customdata", "visible"]
# By chart, line and part, which names the differences.
SHOWN = f"""Object.fromEntries([
  ...{CHARTS}.filter((chart) => chart.data).flatMap((chart) => {{
    const id = chart.dataset.chart ?? `signals ${{chart.dataset.signalChart}}`;
    const {{ shapes, xaxis }} = chart.layout;
    return [
      ...chart.data.flatMap((line, i) =>
        {PARTS}.map((part) => [`${{id}} ${{i}} ${{part}}`, line[part] ?? null])),
      [`${{id}} marks`, (shapes ?? []).map(({{ x0 }}) => x0)],
      [`${{id}} range`, xaxis.autorange ? null : xaxis.range],
    ];
  }}),
  ...{TEXTS}.map((part) => [part, document.querySelector(part)?.innerText ?? null]),
])"""


def what_is_shown(page: Page) -> dict[str, Any]:
    """Points and marks of every chart, and texts of the page."""
    shown: dict[str, Any] = page.evaluate(SHOWN)
    return shown


def assert_a_fresh_page_shows_the_same(page: Page) -> None:
    """Waits, since signal charts update less often when responses are slow."""
    fresh = page.context.new_page()
    fresh.set_viewport_size(page.viewport_size or TALL)
    fresh.goto(page.url)
    deadline = time.monotonic() + 120
    while other := _differences(what_is_shown(page), what_is_shown(fresh)):
        assert time.monotonic() < deadline, f"The page and a fresh one: {other}"
        page.wait_for_timeout(500)
    fresh.close()


def _differences(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    names = one.keys() | other.keys()
    pairs = {name: (one.get(name), other.get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
