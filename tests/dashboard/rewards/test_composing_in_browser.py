"""Gates, clips and schedules composed in a real browser: fields, formula and JSON."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Page, Route, expect

from dashboard.datasets.row import Row
from dashboard.rewards.models import RecipeVersion
from tests.browser.accessibility import findings_in_each_view
from tests.browser.waiting import wait_for
from tests.dashboard.completions.factories import store_dataset

pytestmark = pytest.mark.browser

FORMULA = (
    "product(1·numeric_answer if format_tags ≥ 1, "
    "(0.2 to 0 at step 50)·format_tags clipped to [0, 0.5]), clipped to [0, 1]"
)


def open_weighting(page: Page, number: int) -> None:
    rule = page.locator(".rule").nth(number)
    rule.locator("summary").first.click()
    rule.get_by_text("Weighting").click()


def compose(page: Page) -> None:
    """Fill in the fields that FORMULA writes; the gate is there."""
    open_weighting(page, 1)
    page.get_by_text("Combination and limits").click()
    for name, value in {
        "rules-1-schedule": "to 0 at step 50",
        "rules-1-clip_low": "0",
        "rules-1-clip_high": "0.5",
        "clip_low": "0",
        "clip_high": "1",
    }.items():
        page.locator(f"#{name}").fill(value)
    page.locator("#combine").select_option("product")


def test_fields_formula_and_json_stay_in_step(team, alice, page):
    page.goto("/alpha/rewards/new?template=number")
    page.get_by_label("Name", exact=True).first.fill("Sums")
    formula = page.locator("#recipe-formula")
    expect(formula).to_have_value("1·numeric_answer + 0.2·format_tags")
    page.locator(".rule-grip").nth(1).drag_to(page.locator(".rule-row").first)
    expect(formula).to_have_value("0.2·format_tags + 1·numeric_answer")
    page.locator(".rule summary").first.click()
    page.get_by_role("button", name="Move format_tags down").click()
    expect(formula).to_have_value("1·numeric_answer + 0.2·format_tags")
    page.locator(".rule-settings[open] > summary").click()

    open_weighting(page, 0)
    page.locator("#rules-0-gate_rule").fill("format_tags")
    page.locator("#rules-0-gate_rule").blur()
    expect(formula).to_have_value(
        "1·numeric_answer if format_tags ≥ 1 + 0.2·format_tags"
    )
    expect(page.locator("#recipe-json")).to_have_value(re.compile('"only_if"'))

    compose(page)
    expect(formula).to_have_value(FORMULA)
    expect(page.locator("#recipe-json")).to_have_value(re.compile('"schedule"'))

    formula.fill(FORMULA.replace("0.2 to 0", "0.3 to 0.1").replace("·", "*"))
    formula.press("Enter")
    changed = FORMULA.replace("0.2 to 0", "0.3 to 0.1")
    expect(formula).to_have_value(changed)
    expect(page.locator("#rules-1-schedule")).to_have_value("to 0.1 at step 50")

    page.get_by_role("button", name="Save", exact=True).last.click()
    expect(page.get_by_text("Saved as version 1.")).to_be_visible()
    assert RecipeVersion.objects.get().spec["combine"] == "product"
    expect(page.locator(".recipe-line")).to_have_text(changed)


@pytest.mark.slow
def test_errors_of_a_refused_save_disappear_when_fixed(team, alice, page):
    page.goto("/alpha/rewards/new?template=number")
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


@pytest.mark.slow
def test_a_replaced_request_logs_no_error(team, alice, page):
    rows = [Row(prompt="2+2?", answer="4", columns={})]
    store_dataset(team, rows)
    page.goto("/alpha/rewards/new?template=number")
    problems: list[str] = []
    page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    asked: list[Route] = []
    page.route("**/rewards/scores", lambda route: asked.append(route))  # unanswered
    wait_for(page, lambda: page.locator("#scored-status").inner_text() != "")
    for number in (1, 2):
        page.locator("#rules-0-weight").fill(str(1 + number))
        page.locator("#rules-0-weight").blur()
        wait_for(page, lambda number=number: len(asked) == number)

    expect(page.locator("#recipe-formula")).to_have_value(re.compile("^3·"))
    assert problems == []


@pytest.mark.slow
def test_an_edit_clears_findings_and_drops_scores_on_their_way(team, alice, page):
    rows = [Row(prompt="2+2?", answer="about four", columns={})]
    store_dataset(team, rows)
    problems: list[str] = []
    page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    page.clock.install()
    page.goto("/alpha/rewards/new?template=number")
    checked = page.locator("#row-findings")
    expect(checked).not_to_contain_text("Checking", timeout=20_000)
    asked: list[Route] = []
    page.route("**/rewards/scores", lambda route: asked.append(route))  # held back
    page.clock.pause_at(datetime.now(UTC) + timedelta(minutes=2))

    page.locator("#rules-1-weight").fill("0.5")
    page.locator("#rules-1-weight").blur()
    expect(checked).to_contain_text("Checking")
    page.clock.run_for(500)
    wait_for(page, lambda: len(asked) == 1)
    page.get_by_role("button", name="Remove format_tags").click()
    expect(page.locator(".rule")).to_have_count(1)
    page.clock.run_for(
        50
    )  # until the page has the rule no more, and asks for no scores
    with page.expect_response("**/rewards/scores"):
        asked[0].continue_()  # scores of two rules; the page has one

    page.clock.run_for(500)
    wait_for(page, lambda: len(asked) > 1)
    assert problems == []


@pytest.mark.slow
def test_a_check_without_an_answer_can_be_repeated(team, alice, page):
    rows = [Row(prompt="2+2?", answer="4", columns={})]
    store_dataset(team, rows)
    page.route("**/rewards/rows", lambda route: route.fulfill(status=503))
    page.goto("/alpha/rewards/new?template=number")
    checked = page.locator("#row-findings")
    again = checked.get_by_role("button", name="Check again")
    expect(again).to_be_visible(timeout=20_000)
    page.unroute("**/rewards/rows")

    with page.expect_response("**/rewards/rows") as answer:
        again.click()

    assert answer.value.ok
    expect(again).to_have_count(0)


@pytest.mark.slow
def test_a_composed_recipe_is_accessible(team, alice, page):
    page.goto("/alpha/rewards/new?template=number")
    page.get_by_label("Name", exact=True).first.fill("Sums")
    open_weighting(page, 0)
    page.locator("#rules-0-gate_rule").fill("format_tags")
    compose(page)
    expect(page.locator("#recipe-formula")).to_have_value(FORMULA)
    found = findings_in_each_view(page)

    page.get_by_role("button", name="Save", exact=True).last.click()
    expect(page.locator(".recipe-line")).to_have_text(FORMULA)

    assert found + findings_in_each_view(page) == []


def test_a_function_is_indented_and_numbered(team, alice, page):
    page.goto("/alpha/rewards/new")
    page.get_by_role("button", name="Add rule").first.click()
    page.locator("[value='add:python_function']").first.click()
    source = page.locator("[data-is-program]")
    source.fill("def reward(completion):\n")

    source.press("End")
    source.press("Tab")
    page.keyboard.type("return 1.0")

    expect(source).to_have_value("def reward(completion):\n    return 1.0")
    expect(page.locator(".code-lines")).to_have_text("1\n2")
    side = page.locator(".editor-side").bounding_box()
    assert side is not None
    assert side["width"] >= 560
    source.press("Escape")
    source.press("Tab")
    expect(source).not_to_be_focused()
    limits = page.locator(".rule-limits > summary")
    for value in ("Minimum", "Maximum", "Time limit", "Memory limit"):
        expect(limits).to_contain_text(value)
    assert findings_in_each_view(page) == []
