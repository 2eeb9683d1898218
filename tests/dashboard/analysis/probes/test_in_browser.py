"""From a messy file to a saved reward through the editor, in a real browser."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from dashboard.analysis.probes.models import ProbeGroup
from dashboard.rewards.models import RecipeVersion
from tests.dashboard.analysis.probes.factories import (
    completion,
    make_probe,
    make_version,
)
from trainer.config import RunConfig

pytestmark = [pytest.mark.browser, pytest.mark.slow]

# A byte order mark, semicolons, empty lines, a stray space, answers in words.
MESSY = (
    "\ufeffQuestion;Answer;Note\r\n"
    "What is 1 + 1?;2;\r\n"
    "\r\n"
    "What is 2 + 2?; 4 ;easy\r\n"
    '"What is 3 + 3; or 6?";6;\r\n'
    "What is a dozen?;about twelve;not a number\r\n"
)


@pytest.fixture
def data_folder(settings) -> Path:
    """The web process's own: it is kept from test to test."""
    return Path(settings.COHORT_DATA)


def test_from_a_messy_file_to_a_recipe(page, team, tmp_path):
    file = tmp_path / "sums.csv"
    file.write_text(MESSY, encoding="utf-8", newline="")
    page.goto("/alpha/datasets/upload")
    page.locator("input[type=file]").set_input_files(file)
    page.wait_for_url("**/uploads/*")
    page.get_by_role("button", name="Import").first.click()
    expect(page.get_by_text("Imported 4 rows as version 1.")).to_be_visible()

    page.goto("/alpha/rewards/new?template=number")

    # What the rows show, before anything was pasted.
    finding = page.locator("#row-findings [data-finding=reference]")
    expect(finding).to_contain_text("1 of 4 rows", timeout=30_000)
    page.get_by_label("Completions of row 0").fill("2\n---\nthree")
    scores = page.locator("#scores-0")
    expect(scores.locator("tr")).to_have_count(2)
    expect(scores.locator("tr").first.locator("strong")).to_have_text("1")
    # A change of a rule scores again, and leaves what was typed.
    page.get_by_label("Weight of").first.fill("3")
    expect(scores.locator("tr").first.locator("strong")).to_have_text("3")
    expect(page.get_by_label("Completions of row 0")).to_have_value("2\n---\nthree")
    page.get_by_label("Completions of row 1").fill("x\n---\ny")
    expect(page.locator("[data-finding=constant]")).to_contain_text("format_tags")
    page.get_by_text("Advantages, new samples").click()
    page.get_by_label("Scale by").select_option("none")
    expect(page).to_have_url(re.compile("scale=none"))
    expect(scores.locator("tr").first.locator("td").nth(3)).to_have_text("1.5")

    page.get_by_label("Name", exact=True).first.fill("Sums")
    page.get_by_role("button", name="Save").last.click()

    expect(page.get_by_text("Saved as version 1.")).to_be_visible()
    spec = RecipeVersion.objects.get().spec
    assert spec["rules"][0]["weight"] == 3.0


NUM_LINES_OF_TAGS = """[...document.querySelectorAll(".tried-text")]
.flatMap(({ childNodes }) => [...childNodes])
.filter((text) => /^<.*>$/.test(text.textContent))
.map((tag) => {
  const range = document.createRange();
  range.selectNode(tag);
  return new Set([...range.getClientRects()].map((line) => line.top)).size;
})"""


def test_scores_of_three_rules_fit_and_no_tag_is_broken(page, team):
    kinds = ["numeric_answer", "format_tags", "reasoning_answer"]
    recipe = {"rules": [{"name": kind, "kind": kind} for kind in kinds]}
    config = RunConfig.model_validate(
        {"model": {"path": "m"}, "data": {"rows": "r"}, "reward": {"recipe": recipe}}
    )
    probe = make_probe(team, make_version(team), config=config)
    text = f"<think>{'12+10=22!' * 4}</think><answer>{'1+' * 30}</answer>"
    ProbeGroup.objects.create(
        probe=probe, position=1, completions=[completion(text, 0.0)] * 2
    )
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"/alpha/rewards/new?probe={probe.pk}")

    expect(page.locator("#scores-1 strong")).to_have_count(2)
    scroll = page.locator("#sample-scores .table-scroll")
    assert scroll.evaluate("box => box.scrollWidth - box.clientWidth") == 0
    assert page.evaluate(NUM_LINES_OF_TAGS) == [1] * 6

    page.set_viewport_size({"width": 390, "height": 900})
    page.get_by_role("button", name="Samples").click()
    scroll.evaluate("box => box.scrollTo(1000, 0)")
    first = scroll.locator("tbody th").first
    assert scroll.evaluate("box => box.scrollLeft") > 0
    assert first.bounding_box()["x"] == scroll.bounding_box()["x"]  # type: ignore[index]  # both are there
