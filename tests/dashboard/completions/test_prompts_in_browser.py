"""From a run's unsolved prompts, and from a view of rows, to datasets of their own."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from dashboard.datasets.models import DatasetVersion
from dashboard.datasets.row import Row
from tests.browser.accessibility import findings_in_each_view
from tests.dashboard.completions.factories import make_group, make_run, store_dataset

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ROWS = [
    Row(prompt=f"What is {i} + {i}?", answer=str(2 * i), columns={"level": i % 3})
    for i in range(60)
]


@pytest.fixture
def version(team) -> DatasetVersion:
    return store_dataset(
        team, ROWS, mapping={"prompt": "q", "answer": "a", "columns": ["level"]}
    )


def test_a_view_becomes_a_dataset(version, page):
    page.goto(f"/alpha/datasets/{version.dataset_id}/")
    page.locator("summary", has_text="Filter").click()
    page.get_by_label("Column", exact=True).select_option("level")
    page.get_by_label("equals").fill("1")
    page.get_by_role("button", name="Show").click()
    page.get_by_role("link", name="Save as dataset").click()
    expect(page.get_by_text("20 of 60 rows")).to_be_visible()
    found = findings_in_each_view(page)
    page.get_by_label("Name").fill("Level one")
    page.get_by_role("button", name="Save rows").dblclick()

    expect(page.get_by_text("Saved 20 rows as version 1.")).to_be_visible()
    found += findings_in_each_view(page)
    page.get_by_label("More actions").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download JSONL").click()
    assert download.value.suggested_filename == "Level-one-v1.jsonl"
    assert len(Path(download.value.path()).read_text().splitlines()) == 20
    page.get_by_role("link", name="Versions").click()
    page.get_by_role("link", name="level = 1").click()
    expect(page.get_by_text("20 of 20 matching rows shown")).to_be_visible()

    assert found == []


def test_a_runs_unsolved_prompts_become_a_dataset(team, version, page):
    run = make_run(team, dataset_version=version, last_step=3)
    for step in (1, 2, 3):
        for prompt in range(30):
            right = 4 if prompt % 3 == 2 else prompt % 3
            rewards = (1.2,) * right + (0.2,) * (4 - right)
            make_group(run, step=step, prompt_index=prompt, rewards=rewards)

    page.goto("/alpha/datasets/")
    page.locator("summary", has_text="Add dataset").click()
    page.get_by_role("link", name="From a run").click()
    found = findings_in_each_view(page)
    page.get_by_role("link", name="calm-otter-1").click()
    expect(page.locator("#prompts-title")).to_contain_text("30 of 60")
    bars = page.locator("[data-low]")
    bars.first.click()
    expect(page.locator("#prompts-title")).to_contain_text("10 of 30")
    found += findings_in_each_view(page)
    # From the pass rates of 10% to those under 100%.
    page.mouse.move(*middle(bars.nth(2)))
    page.mouse.down()
    page.mouse.move(*middle(bars.nth(10)), steps=4)
    page.mouse.up()
    page.wait_for_url(re.compile(r"low=10&high=99.99"))
    expect(page.locator("#prompts-title")).to_contain_text("10 to under 100%")
    save = page.get_by_role("button", name="Save these 10 prompts")
    save.click()
    found += findings_in_each_view(page)
    page.get_by_role("button", name="Create dataset").click()

    expect(page.get_by_text("Saved 10 rows as version 1.")).to_be_visible()
    found += findings_in_each_view(page)
    page.get_by_role("link", name="Versions").click()
    page.get_by_role("link", name="in calm-otter-1").click()
    expect(page.locator("#prompts-title")).to_contain_text("10 to under 100%")

    assert found == []


def middle(of: Locator) -> tuple[float, float]:
    box = of.bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
