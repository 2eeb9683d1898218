"""An account at an OpenID provider, connected and used from start to end."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from dashboard.accounts.models import AuditEntry
from tests.browser.accessibility import findings_in_each_view
from tests.browser.oidc_provider import CLIENT, SECRET, Provider, serve_provider
from tests.fixtures_app import (
    _wait_until_idle,
    set_password,
)

pytestmark = [pytest.mark.browser, pytest.mark.slow]
PASSWORD = "correct horse battery"


@pytest.fixture
def provider() -> Iterator[Provider]:
    with serve_provider() as provider:
        yield provider


@pytest.fixture
def live_app(app_environment, web_processes, provider) -> Iterator[str]:
    """A web process configured with the provider."""
    values = {"URL": provider.url, "ID": CLIENT, "SECRET": SECRET, "NAME": "Work"}
    named = {f"COHORT_OIDC_{name}": value for name, value in values.items()}
    yield web_processes.serve(app_environment | named)
    _wait_until_idle()


def sign_in_at_provider(page: Page, button: str, *, name: str) -> None:
    page.get_by_role("button", name=button).click()
    page.wait_for_url(re.compile(r"/authorize\?"))
    page.get_by_label("Name").fill(name)
    page.get_by_role("button", name="Sign in at Work").click()


def test_a_provider_is_connected_signs_in_and_is_disconnected(
    alice, provider, open_browser
):
    set_password(alice, PASSWORD)
    page = open_browser(None).new_page()
    trouble: list[str] = []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.goto("/sign-in/")

    sign_in_at_provider(page, "Sign in with Work", name="alice")
    expect(page.get_by_role("heading", name="not connected")).to_be_visible()

    page.goto("/sign-in/")
    page.get_by_label("Username").fill("alice")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()
    page.wait_for_url("**/alpha/runs/")
    page.goto("/account/")
    page.get_by_role("button", name="Connect Work").click()
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Confirm").click()
    page.wait_for_url(re.compile(r"/authorize\?"))
    page.get_by_label("Name").fill("alice")
    page.get_by_role("button", name="Sign in at Work").click()
    expect(page.get_by_text("Work: alice")).to_be_visible()

    page.context.clear_cookies()
    page.goto("/alpha/settings")
    sign_in_at_provider(page, "Sign in with Work", name="bob")
    expect(page.get_by_role("heading", name="not connected")).to_be_visible()
    trouble += findings_in_each_view(page)
    page.goto("/sign-in/")
    sign_in_at_provider(page, "Sign in with Work", name="alice")
    page.wait_for_url("**/alpha/runs/")
    page.goto("/account/")
    page.get_by_role("button", name="Disconnect Work, alice").click()
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Confirm").click()
    expect(page.get_by_role("button", name="Connect Work")).to_be_visible()

    verbs = AuditEntry.objects.order_by("pk").values_list("verb", flat=True)
    assert list(verbs) == ["person.provider_added", "person.provider_removed"]
    assert provider.refused == []
    assert not trouble
