"""Tokens and operations, for everybody."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from dashboard.accounts.models import Team
from tests.browser.accessibility import findings_in_each_view

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
]


def test_the_pages_of_the_api_keep_nobody_out(page: Page, team: Team) -> None:
    page.goto(f"/{team.slug}/tokens/")
    page.get_by_label("Name").fill("nightly sweep")
    page.get_by_label("write").check()
    page.get_by_role("button", name="Make the token").click()
    page.locator("[data-secret]").wait_for()
    found = findings_in_each_view(page)

    page.get_by_role("link", name="Operations").click()
    for name in ("launch", "start_import", "run"):
        page.locator(f"#{name} > summary").click()
    found += findings_in_each_view(page)

    assert found == []
