"""Download of personal data, and deletion of an account."""

import json

import pytest

from dashboard.accounts.models import User

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_a_user_downloads_their_data_and_deletes_the_account(
    alice, bob, open_browser, tmp_path
):
    page = open_browser(bob).new_page()
    page.goto("/account/data/")

    with page.expect_download() as download:
        page.get_by_role("link", name="Download as JSON").click()
    download.value.save_as(tmp_path / "my-data.json")
    page.get_by_label("Your username, bob").fill("bob")
    page.get_by_role("button", name="Delete account").click()

    page.wait_for_url("**/sign-in/**")
    body = json.loads((tmp_path / "my-data.json").read_text())
    assert body["person"]["username"] == "bob"
    assert not User.objects.filter(username="bob").exists()
