from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from dashboard.accounts.models import Team
from dashboard.runs.models import Sweep, TeamPreset
from tests.dashboard.runs.launching import make_dataset, make_recipe

pytestmark = pytest.mark.browser


def test_a_form_is_changed_reset_saved_and_launched_as_a_sweep(
    page: Page, team: Team
) -> None:
    make_dataset(team)
    make_recipe(team)
    page.goto("/alpha/runs/new?model=org/model")
    size = page.get_by_label("Group size")
    back = page.get_by_role("button", name="Group size: Reset to 8")
    counts = page.locator("[data-part]").first.locator("[data-num-changed]")

    expect(back).to_be_hidden()
    size.fill("4")
    expect(counts).to_have_text("1 changed")
    back.click()
    expect(size).to_have_value("8")
    expect(size).to_be_focused()
    expect(counts).to_be_hidden()

    # The whole form as TOML: a wrong value is refused, a right one is applied.
    page.get_by_role("button", name="TOML", exact=True).click()
    area = page.get_by_label("TOML", exact=True)
    expect(area).to_have_value(re.compile("group_size = 8"))
    text = area.input_value()
    area.fill(text.replace("group_size = 8", 'group_size = "big"'))
    expect(page.get_by_role("button", name="Launch")).to_be_disabled()
    page.get_by_role("button", name="Apply to the form").click()
    expect(page.locator("[data-toml-problems]")).to_contain_text(
        re.compile(r"\d+, rollout.group_size = “big”")
    )
    area.fill(text.replace("group_size = 8", "group_size = 6"))
    page.get_by_role("button", name="Apply to the form").click()
    expect(size).to_have_value("6")

    # Kept as a preset, it is where the form begins.
    page.locator("#keep-preset summary").click()
    page.get_by_label("Preset name").fill("six")
    page.get_by_role("button", name="Save preset").click()
    expect(page).to_have_url(re.compile(f"team%3A{TeamPreset.objects.get().pk}"))
    expect(size).to_have_value("6")

    # Several values are several runs.
    page.get_by_text("Sweep", exact=True).click()
    page.get_by_label("Setting 1", exact=True).last.select_option("seed")
    page.get_by_label("Values", exact=True).first.fill("0..2")
    plan = page.get_by_role("region", name="Runs to launch")
    expect(plan.get_by_role("row")).to_have_count(4)
    page.get_by_role("button", name="Launch 3 runs").click()

    expect(page).to_have_url(re.compile(f"sweep={Sweep.objects.get().pk}"))
    expect(page.get_by_role("link", name="Compare runs")).to_be_visible()
