"""A signed-in browser left unattended does not allow guessing the password or deleting
the account; a known password does not bypass the second factor."""

import time

import pytest
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from django.test import Client

from dashboard.accounts.models import User
from tests.dashboard.accounts.test_second_factors import code, enter
from tests.dashboard.accounts.test_second_factors import guarded as guarded
from tests.page_client import PageClient

PASSWORD = "correct horse battery"
NEW = {"new_password1": "another long secret", "new_password2": "another long secret"}


@pytest.fixture
def browser(alice) -> Client:
    """Signed in some time ago."""
    alice.set_password(PASSWORD)
    alice.save()
    client = PageClient()
    client.force_login(alice)
    return client


def guess(browser: Client, password: str) -> int:
    form = {"form": "password", "old_password": password, **NEW}
    return int(browser.post("/account/", form).status_code)


def test_guesses_of_the_old_password_are_throttled(browser, alice):
    wrong = [guess(browser, f"guess {n}") for n in range(10)]
    page = browser.post(
        "/account/", {"form": "password", "old_password": PASSWORD, **NEW}
    )

    assert set(wrong) == {422}
    assert page.status_code == 429
    assert int(page.headers["Retry-After"]) > 0
    assert "15 minutes" in page.text
    alice.refresh_from_db()
    assert alice.check_password(PASSWORD)
    assert browser.post("/account/", {"form": "profile"}).status_code == 302


def test_the_right_password_resets_the_failed_attempts(browser):
    for _ in range(3):
        assert [guess(browser, "wrong") for _ in range(5)] == [422] * 5
        form = {"form": "password", "old_password": PASSWORD, "new_password1": "x"}
        assert browser.post("/account/", form).status_code == 422


def test_guesses_at_reauthentication_are_throttled(browser, monkeypatch):
    now = time.time()
    found = []

    for minutes in (*[0] * 10, 14, 16):
        monkeypatch.setattr(time, "time", lambda at=minutes: now + 60 * at)
        page = browser.post("/account/reauthenticate/", {"password": "a guess"})
        found.append(page.status_code)

    assert found == [200] * 10 + [429, 200]


def test_deleting_an_account_requires_the_password(browser, bob):
    bob.set_password(PASSWORD)
    bob.save()
    browser.force_login(bob)

    response = browser.post("/account/data/", {"username": "bob"})

    assert response.headers["Location"].startswith("/account/reauthenticate/")
    assert User.objects.filter(username="bob").exists()
    form = {"password": PASSWORD, "next": "/account/data/"}
    browser.post(response.headers["Location"], form)
    assert not User.objects.filter(username="bob").exists()


def test_guesses_of_second_factor_codes_are_throttled(guarded):
    recovery = RecoveryCodes.activate(guarded).get_unused_codes()[0]
    client = PageClient()
    enter(client)
    at = "/account/factors/authenticate/"

    for n in range(6):
        client.post(at, {"code": f"{n:08}"})
    for right in (recovery, code()):
        client.post(at, {"code": right})
        other = PageClient()
        enter(other)
        other.post(at, {"code": right})
        assert other.get("/alpha/settings").status_code == 302

    assert client.get("/alpha/settings").status_code == 302
