"""Split, leaks and trash in a browser."""

import pytest
from playwright.sync_api import expect

from dashboard.datasets.models import Dataset
from dashboard.datasets.row import Row
from tests.browser.accessibility import findings_in_each_view
from tests.dashboard.completions.factories import store_dataset

pytestmark = [pytest.mark.browser, pytest.mark.slow]

STORY = "A train leaves the town at nine and another one at noon, so when do they meet"
ROWS = [
    *(
        Row(prompt=f"What is {i} + {i}?", answer=str(2 * i), columns={"level": i % 3})
        for i in range(60)
    ),
    *(
        Row(prompt=f"{STORY} if both go at the same speed? {i}", columns={"level": i})
        for i in range(2)
    ),
    Row(prompt="What is 3 + 3?", answer="six", columns={"level": 1}),
    Row(prompt="WHAT is 6 + 6?", columns={"level": 1}),
]


def test_a_dataset_is_split_checked_trashed_and_restored(team, page):
    version = store_dataset(
        team, ROWS, mapping={"prompt": "q", "answer": "a", "columns": ["level"]}
    )
    page.goto(f"/alpha/datasets/{version.dataset_id}/")
    page.get_by_role("link", name="Versions", exact=True).click()
    page.get_by_role("link", name="Split", exact=True).click()
    expect(page.get_by_label("Share (%)")).to_be_visible()
    expect(page.get_by_label("Value")).to_be_hidden()
    page.get_by_label("Held out", exact=True).select_option("column")
    expect(page.get_by_label("Seed")).to_be_hidden()
    page.get_by_label("Value").fill("1")
    found = findings_in_each_view(page)
    page.get_by_role("button", name="Split", exact=True).click()
    expect(page.locator("#splits tbody tr")).to_have_count(1)
    found += findings_in_each_view(page)

    page.get_by_role("link", name="Check Sums eval").click()
    expect(page.get_by_text("same prompt: 1")).to_be_visible()
    for kind in ("same words: 1", "near duplicate: 1"):
        page.get_by_role("link", name=kind).click()
        expect(page.locator("#leaks tbody tr")).to_have_count(1)
        found += findings_in_each_view(page)

    page.goto(f"/alpha/datasets/{Dataset.objects.get(name='Sums eval').pk}/")
    found += findings_in_each_view(page)
    page.locator("[aria-label='More actions']").click()
    page.get_by_role("button", name="Move to trash").click()
    expect(page.get_by_text("Moved Sums eval")).to_be_visible()
    found += findings_in_each_view(page)
    page.get_by_role("link", name="Trash (1)").click()
    found += findings_in_each_view(page)
    page.get_by_role("link", name="Sums eval").click()
    found += findings_in_each_view(page)
    page.get_by_role("button", name="Delete permanently").click()
    expect(page.get_by_role("dialog")).to_contain_text("Sums eval")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Restore").click()
    expect(page.get_by_text("Restored Sums eval")).to_be_visible()

    assert found == []
