"""A file of reward functions, typed and split in a real browser."""

import pytest
from playwright.sync_api import expect

from dashboard.rewards.models import RecipeVersion
from tests.browser.accessibility import findings_in_each_view

pytestmark = pytest.mark.browser

SOURCE = """def accuracy_reward(completions, answer, **kwargs):
    return [float(a in c) for c, a in zip(completions, answer)]

def _helper(text):
    return text

async def brevity(completion, answer, state) -> float:
    return 1.0 if len(completion) < 9 else 0.0
"""


def test_functions_are_recognised_while_typing_and_become_rules(team, alice, page):
    page.goto("/alpha/rewards/new?template=number")
    page.get_by_label("Name", exact=True).first.fill("Mine")
    for num_left in (1, 0):
        page.get_by_role("button", name="Remove ").first.click()
        expect(page.locator(".rule")).to_have_count(num_left)
    page.get_by_role("button", name="Add rule").click()
    page.get_by_label("Search rules").fill("your own python")
    expect(page.locator(".gallery-rule:visible")).to_have_count(1)
    page.get_by_role("button", name="Add Python function").click()
    source = page.locator("#rules-0-params-source")
    recognised = page.locator("#rules-0-params-source_recognised")
    expect(recognised).to_contain_text("Cohort reward function reward")

    page.get_by_role("button", name="TRL", exact=True).click()
    expect(recognised).to_contain_text("TRL reward function accuracy_reward")
    source.fill("")
    source.press_sequentially("def f(parser, completion): return 1")
    expect(recognised).to_contain_text("parser")
    expect(source).to_be_focused()
    expect(source).to_have_attribute("aria-invalid", "true")

    source.fill(SOURCE.partition("def _helper")[0])
    expect(page.locator("#rules-0-name")).to_have_value("accuracy_reward")

    source.fill(SOURCE)
    expect(recognised).to_contain_text("verifiers reward function brevity")
    assert findings_in_each_view(page) == []
    page.get_by_role("button", name="Make a rule of each function").click()
    expect(page.locator("#rules-1-params-function")).to_have_value("brevity")
    expect(page.locator("#recipe-formula")).to_have_value(
        "1·accuracy_reward + 1·brevity"
    )
    expect(page.locator("#rules-0-params-source")).to_have_value(SOURCE)
    expect(page.get_by_role("button", name="Make a rule of each")).to_have_count(0)

    page.get_by_role("button", name="Save", exact=True).last.click()
    expect(page.get_by_text("Saved as version 1.")).to_be_visible()
    rules = RecipeVersion.objects.get().spec["rules"]
    assert [rule["params"]["function"] for rule in rules] == [
        "accuracy_reward",
        "brevity",
    ]
