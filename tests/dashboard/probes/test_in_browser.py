"""From a messy file to a saved recipe through the workbench, in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from dashboard.accounts.models import Team
from dashboard.probes.models import Probe, ProbeGroup
from dashboard.rewards.models import RecipeVersion
from tests.dashboard.probes.factories import (
    completion,
    make_probe,
    make_version,
    measured,
)

pytestmark = pytest.mark.browser

AXE = Path(__file__).parents[3] / "node_modules/axe-core/axe.min.js"
# A byte order mark, semicolons, empty lines, a stray space, answers in words.
MESSY = (
    "\ufeffQuestion;Answer;Note\r\n"
    "What is 1 + 1?;2;\r\n"
    "\r\n"
    "What is 2 + 2?; 4 ;easy\r\n"
    '"What is 3 + 3; or 6?";6;\r\n'
    "What is a dozen?;about twelve;not a number\r\n"
)


def test_from_a_messy_file_to_a_recipe(page: Page, team: Team, tmp_path: Path) -> None:
    file = tmp_path / "sums.csv"
    file.write_text(MESSY, encoding="utf-8", newline="")
    page.goto("/alpha/datasets/upload")
    page.locator("input[type=file]").set_input_files(file)
    page.get_by_role("button", name="Upload and look at the columns").click()
    page.wait_for_url("**/uploads/*")
    page.get_by_role("button", name="Import").first.click()
    expect(page.get_by_text("Imported 4 rows as version 1.")).to_be_visible()

    page.goto("/alpha/rewards/workbench")

    # What the rows show, before anything was pasted.
    findings = page.locator("#row-findings")
    expect(findings).to_contain_text("cannot judge 1 of all 4 rows", timeout=30_000)
    page.get_by_label("Completions of row 0").fill("2\n---\nthree")
    scores = page.locator("#scores-0")
    expect(scores.locator("tbody tr")).to_have_count(2)
    expect(scores.locator("tbody tr").first.locator("strong")).to_have_text("1")
    # A change of the recipe scores anew, and leaves what was typed.
    page.get_by_label("Weight").first.fill("3")
    expect(scores.locator("tbody tr").first.locator("strong")).to_have_text("3")
    expect(page.get_by_label("Completions of row 0")).to_have_value("2\n---\nthree")
    page.get_by_label("Completions of row 1").fill("x\n---\ny")
    expect(page.locator("[data-finding=constant]")).to_contain_text("format_tags")
    page.get_by_label("Divided by").select_option("none")
    expect(page).to_have_url(re.compile("scale=none"))
    expect(scores.locator("tbody tr").first.locator("td").nth(3)).to_have_text("1.5")

    page.get_by_label("Name", exact=True).first.fill("Sums")
    page.get_by_role("button", name="Save").last.click()

    expect(page.get_by_text("Saved as Sums v1.")).to_be_visible()
    spec = RecipeVersion.objects.get().spec
    assert spec["rules"][0]["weight"] == 3.0


def look(page: Page) -> list[str]:
    """What axe finds, and whether the page itself scrolls sideways."""
    found = []
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 900})
        for theme in ("light", "dark"):
            page.evaluate("t => document.documentElement.dataset.bsTheme = t", theme)
            page.wait_for_timeout(200)  # colours fade from one theme to the other
            page.evaluate(AXE.read_text())
            violations = page.evaluate(
                "axe.run().then(r => r.violations.map(v => [v.id, v.nodes[0].html]))"
            )
            over = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            where = f"{page.url} {width} {theme}"
            found += [f"{where}: {violation}" for violation in violations]
            found += [f"{where}: {over} px too wide"] if over > 0 else []
    return found


@pytest.mark.parametrize(
    "address",
    ["rewards/workbench", "rewards/workbench?probe={}", "probes/{}/", "probes/"],
)
def test_pages_are_accessible_and_do_not_scroll_sideways(
    page: Page, team: Team, address: str
) -> None:
    version = make_version(team)
    probe = make_probe(team, version)
    Probe.objects.update(state="finished", num_done=2, metrics=measured())
    ProbeGroup.objects.create(
        probe=probe,
        position=1,
        completions=[completion("2", 1.0), completion("x" * 400, 0.0)],
    )
    page.goto(f"/alpha/{address.format(probe.pk)}")

    assert look(page) == []
