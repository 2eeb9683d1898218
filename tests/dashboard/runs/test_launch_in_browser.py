from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from dashboard.accounts.models import Team
from dashboard.runs.models import Run
from tests.dashboard.runs.launching import COUNTDOWN, make_dataset, make_recipe

pytestmark = pytest.mark.browser


def test_numbers_follow_while_settings_are_typed(page: Page, team: Team) -> None:
    make_dataset(team)
    make_recipe(team)
    page.goto("/alpha/runs/new")
    summary = page.locator("#launch-summary")

    page.get_by_label("Folder or hub id").fill("org/model")
    page.get_by_label("Group size").fill("4")

    expect(summary).to_contain_text("16 prompts × 4")
    page.get_by_label("Group size").fill("0")
    expect(summary).to_contain_text("Group size must be at least 1")


def test_a_warning_is_confirmed_before_the_launch(page: Page, team: Team) -> None:
    make_dataset(team)
    make_recipe(team, "countdown", COUNTDOWN)
    page.goto("/alpha/runs/new")
    page.get_by_label("Folder or hub id").fill("org/model")
    expect(page.get_by_text("cannot score these rows")).to_be_visible()

    page.get_by_role("button", name="Launch").click()
    expect(page.get_by_text("Tick this to launch")).to_be_visible()
    assert not Run.objects.exists()
    page.get_by_label("Launch anyway").check()
    page.get_by_role("button", name="Launch").click()

    expect(page).to_have_url(re.compile(r"/alpha/runs/\d+/$"))


def test_what_is_wrong_has_the_focus_after_sending(page: Page, team: Team) -> None:
    make_dataset(team)
    make_recipe(team)
    page.goto("/alpha/runs/new")
    page.get_by_label("Folder or hub id").fill("org/model")
    page.get_by_label("Learning rate", exact=True).fill("fast")

    page.get_by_role("button", name="Launch").click()

    expect(page.get_by_text("Nothing was launched yet")).to_be_visible()
    expect(page.locator("[data-problems]")).to_be_focused()
    expect(page.get_by_label("Learning rate", exact=True)).to_have_value("fast")
