"""From the table of prompts to one prompt's learning curve, its groups, and back."""

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from dashboard.runs.models import Run
from tests.browser.accessibility import findings_in_each_view
from tests.dashboard.completions.factories import make_group, make_run, store_dataset
from tests.dashboard.completions.prompts import MAPPING, ROWS, visit

pytestmark = [pytest.mark.browser, pytest.mark.slow]
CURVES = [
    (0, 0, 0, 0, 0, 0),  # never solved
    (0, 1, 2, 3, 4, 4),  # solved
    (3, 2, 1, 0, 0, 0),  # forgotten
    (2, 0, 1, 0, 3, 1),  # oscillating
]


@pytest.fixture
def run(team) -> Run:
    version = store_dataset(team, ROWS, mapping=MAPPING)
    run = make_run(team, dataset_version=version, last_step=60)
    for place in range(6):
        for prompt, counts in enumerate(CURVES):
            visit(run, 10 * place + 10, prompt, counts[place])
        make_group(run, 10 * place + 10, prompt_index=4, rewards=(None, None))
    return run


@pytest.fixture
def console_errors(page) -> dict[str, Any]:
    """What the console got, where it must get nothing."""
    found: dict[str, Any] = {}
    page.on("console", lambda m: found.setdefault(m.text, m.type))
    page.on("pageerror", lambda error: found.setdefault(str(error), "error"))
    return found


def test_the_table_leads_to_a_group_and_back(page, run, console_errors):
    page.goto(f"/alpha/runs/{run.pk}/prompts/")
    found = findings_in_each_view(page)
    page.get_by_text("Columns and classes").click()
    found += findings_in_each_view(page)
    page.locator(".tile[data-kind=forgotten]").click()
    expect(page.locator("#prompts-title")).to_contain_text("1 of 5")
    page.get_by_role("link", name="Prompt 2: What is 2?", exact=True).click()

    page.wait_for_url("**/prompts/2/")
    expect(page.locator("[data-figure].js-plotly-plot")).to_have_count(2)
    page.locator(".curve-table summary").click()
    found += findings_in_each_view(page)
    page.get_by_role("link", name="Step 60, completion 1").click()
    page.wait_for_url(re.compile(r"/groups/60/2/#completion-0$"))
    page.get_by_label("More about this group").click()
    page.get_by_role("link", name="Learning curve").click()
    page.wait_for_url("**/prompts/2/")

    assert found == []
    assert console_errors == {}


def test_a_click_on_a_point_opens_its_group(page, run):
    page.goto(f"/alpha/runs/{run.pk}/prompts/1/")
    point = page.locator("[data-figure=pass] .scatterlayer .point").nth(2)

    # Plotly listens on its own layer above the points.
    box = point.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.click(x, y)

    page.wait_for_url(f"**/alpha/runs/{run.pk}/groups/30/1/")


def test_the_charts_follow_the_theme(page, run):
    page.goto(f"/alpha/runs/{run.pk}/prompts/1/")
    band = page.locator("[data-figure=reward] .scatterlayer .js-fill").first
    light = band.evaluate("e => getComputedStyle(e).fill")

    page.evaluate("document.documentElement.dataset.bsTheme = 'dark'")
    page.evaluate("document.dispatchEvent(new Event('themechange'))")

    expect(band).not_to_have_css("fill", light)
