"""People of a team: invited, given a role, removed; each page for everybody."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from dashboard.accounts.models import User
from tests.browser.accessibility import findings_in_each_view

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
]


def test_somebody_is_invited_signs_up_becomes_an_admin_and_is_removed(
    page: Page, bob: User, open_browser: Callable[[User | None], BrowserContext]
) -> None:
    trouble: list[str] = []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("console", lambda m: m.type == "error" and trouble.append(m.text))
    page.goto("/alpha/settings")
    trouble += findings_in_each_view(page)
    page.get_by_role("button", name="Make a link").click()
    link = page.get_by_label("Pass this link on").input_value()
    trouble += findings_in_each_view(page)

    dora = open_browser(None).new_page()
    dora.goto(link)
    trouble += findings_in_each_view(dora)
    dora.get_by_label("Username").fill("dora")
    dora.get_by_label("Password", exact=True).fill("correct horse battery")
    dora.get_by_label("Password confirmation").fill("correct horse battery")
    dora.get_by_role("button", name="Sign up and join").click()
    expect(dora.get_by_text("You are in Alpha now, as member.")).to_be_visible()
    again = dora.goto(link)
    assert again
    assert again.status == 410
    trouble += findings_in_each_view(dora)

    page.goto("/alpha/settings")
    page.get_by_label("Role of dora", exact=True).select_option("admin")
    page.get_by_label("Set the role of dora").click()
    expect(page.get_by_text("dora is admin now.")).to_be_visible()
    page.get_by_text("More: remove or deactivate dora").click()
    trouble += findings_in_each_view(page)
    page.get_by_role("button", name="Remove from the team").click()
    expect(page.get_by_text("dora is no longer in the team.")).to_be_visible()
    for address in ("/account/", "/teams/new"):
        page.goto(address)
        trouble += findings_in_each_view(page)
    assert not {one.split(": ", 1)[-1] for one in trouble if "410" not in one}
