"""Somebody looks at what names them, takes it along, and goes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, expect

from dashboard.accounts.models import User
from tests.browser.accessibility import findings_in_each_view

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
]


def test_the_file_is_had_before_the_account_is_gone(
    alice: User,
    bob: User,
    open_browser: Callable[[User | None], BrowserContext],
    tmp_path: Path,
) -> None:
    page = open_browser(bob).new_page()
    page.goto("/account/data/")
    assert findings_in_each_view(page) == []

    with page.expect_download() as download:
        page.get_by_role("link", name="Download as JSON").click()
    download.value.save_as(tmp_path / "my-data.json")
    page.get_by_label("Your username, bob").fill("bob")
    page.get_by_role("button", name="Delete account").click()

    expect(page.get_by_text("Your account is deleted.")).to_be_visible()
    body = json.loads((tmp_path / "my-data.json").read_text())
    assert body["person"]["username"] == "bob"
    assert not User.objects.filter(username="bob").exists()
