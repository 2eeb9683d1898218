"""Gates, clips and schedules composed in a real browser: fields, formula and JSON."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, Route, expect

from dashboard.accounts.models import Team, User
from dashboard.datasets.row import Row
from dashboard.datasets.services import create_dataset_version
from dashboard.rewards.models import RecipeVersion
from tests.browser.accessibility import findings_in_each_view
from tests.browser.waiting import wait_for

pytestmark = pytest.mark.browser

FORMULA = (
    "product(1·numeric_answer if format_tags ≥ 1, "
    "(0.2 to 0 at step 50)·format_tags clipped to [0, 0.5]), clipped to [0, 1]"
)


def compose(page: Page) -> None:
    """Fill in the fields that FORMULA writes; the gate is there."""
    page.get_by_text("Weighting").nth(1).click()
    for name, value in {
        "rules-1-schedule": "to 0 at step 50",
        "rules-1-clip_low": "0",
        "rules-1-clip_high": "0.5",
        "clip_low": "0",
        "clip_high": "1",
    }.items():
        page.locator(f"#{name}").fill(value)
    page.locator("#combine").select_option("product")


def test_fields_formula_and_json_stay_in_step(team: Team, alice: User, page: Page):
    page.goto("/alpha/rewards/new")
    page.get_by_label("Name", exact=True).first.fill("Sums")
    formula = page.locator("#recipe-formula")
    expect(formula).to_have_text("1·numeric_answer + 0.2·format_tags")

    page.get_by_text("Weighting").first.click()
    page.locator("#rules-0-gate_rule").fill("format_tags")
    page.locator("#rules-0-gate_rule").blur()
    expect(formula).to_have_text(
        "1·numeric_answer if format_tags ≥ 1 + 0.2·format_tags"
    )
    expect(page.locator("#recipe-json")).to_have_value(re.compile('"only_if"'))

    compose(page)
    expect(formula).to_have_text(FORMULA)
    expect(page.locator("#recipe-json")).to_have_value(re.compile('"schedule"'))

    page.get_by_role("button", name="Save", exact=True).last.click()
    expect(page.get_by_text("Saved as version 1.")).to_be_visible()
    assert RecipeVersion.objects.get().spec["combine"] == "product"
    expect(page.get_by_text(FORMULA)).to_be_visible()


def test_errors_of_a_refused_save_disappear_when_fixed(
    team: Team, alice: User, page: Page
):
    page.goto("/alpha/rewards/new")
    name = page.get_by_label("Name", exact=True).first
    weight = page.locator("#rules-0-weight")
    weight.fill("")
    page.get_by_role("button", name="Save", exact=True).last.click()
    expect(weight).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#refused")).not_to_be_empty()
    expect(name).to_have_attribute("aria-invalid", "true")

    weight.fill("1")
    weight.blur()
    expect(weight).not_to_have_attribute("aria-invalid", "true")
    expect(page.locator("#refused")).not_to_be_empty()
    name.fill("Sums")
    name.blur()

    expect(page.locator("#refused")).to_be_empty()
    expect(name).not_to_have_attribute("aria-invalid", "true")
    expect(weight).not_to_have_attribute("aria-invalid", "true")


def test_a_stretched_field_and_a_replaced_request_are_no_errors(
    team: Team, alice: User, page: Page
):
    rows = [Row(prompt="2+2?", answer="4", columns={})]
    create_dataset_version(
        team=team, name="Sums", rows=rows, mapping={}, source={}, user=None
    )
    page.goto("/alpha/rewards/new")
    problems: list[str] = []
    page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    asked: list[Route] = []
    page.route("**/rewards/try", lambda route: asked.append(route))  # unanswered
    page.locator("#recipe-json").evaluate("area => area.style.height = '150px'")

    for number in (1, 2):
        page.locator("#rules-0-weight").fill(str(1 + number))
        page.locator("#rules-0-weight").blur()
        wait_for(page, lambda number=number: len(asked) == number)

    expect(page.locator("#recipe-formula")).to_have_text(re.compile("^3·"))
    assert problems == []


@pytest.mark.slow
def test_a_composed_recipe_is_accessible(team: Team, alice: User, page: Page):
    page.goto("/alpha/rewards/new")
    page.get_by_label("Name", exact=True).first.fill("Sums")
    page.get_by_text("Weighting").first.click()
    page.locator("#rules-0-gate_rule").fill("format_tags")
    compose(page)
    expect(page.locator("#recipe-formula")).to_have_text(FORMULA)
    found = findings_in_each_view(page)

    page.get_by_role("button", name="Save", exact=True).last.click()
    expect(page.get_by_text(FORMULA)).to_be_visible()

    assert found + findings_in_each_view(page) == []
