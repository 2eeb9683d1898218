"""Django's admin works under our content security policy."""

import pytest
from playwright.sync_api import expect

from dashboard.accounts.models import User
from dashboard.operations.models import Quota
from tests.dashboard.completions.factories import make_run

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_an_operator_sets_a_quota(team, open_browser):
    make_run(team)
    page = open_browser(User.objects.create_user("olga", is_staff=True)).new_page()
    refused: list[str] = []
    page.on("console", lambda message: refused.append(message.text))
    page.goto("/admin/")
    runs = page.locator("#runs-run")
    runs.get_by_role("link", name="Runs").click()
    expect(page.get_by_role("link", name="calm-otter-1")).to_be_visible()
    page.goto("/admin/upkeep/quota/add/")

    page.get_by_label("Team").select_option("Alpha")
    page.get_by_label("Max runs").fill("3")
    page.get_by_role("button", name="Save", exact=True).click()

    expect(page.get_by_text("was added successfully")).to_be_visible()
    assert Quota.objects.get(team=team).max_runs == 3
    assert refused == []
