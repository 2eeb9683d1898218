"""With a second factor, a password alone does not sign in."""

import re

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import TOTP, format_hotp_value, hotp_value
from allauth.mfa.totp.internal.auth import yield_hotp_counters_from_time as counters
from django.test import Client

from dashboard.accounts.adapters import FactorAdapter
from dashboard.accounts.models import AuditEntry, User
from tests.page_client import PageClient

pytestmark = pytest.mark.django_db
PASSWORD = "correct horse battery"
SECRET = "JBSWY3DPEHPK3PXP"


@pytest.fixture
def guarded(alice) -> User:
    """Alice, with a password and an authenticator app."""
    alice.set_password(PASSWORD)
    alice.save()
    TOTP.activate(alice, SECRET)
    return alice


def code() -> str:
    return str(format_hotp_value(hotp_value(SECRET, next(counters()))))


def enter(client: Client, **more: str) -> str:
    """Where the right password leads."""
    form = {"username": "alice", "password": PASSWORD, **more}
    return client.post("/sign-in/", form).headers["Location"]


def test_the_password_leads_to_the_code_and_the_code_in(guarded):
    client = PageClient()

    assert enter(client, next="/alpha/settings") == "/account/factors/authenticate/"
    assert client.get("/alpha/settings").status_code == 302
    wrong = client.post("/account/factors/authenticate/", {"code": "000000"})
    assert "Incorrect code" in wrong.text
    right = client.post("/account/factors/authenticate/", {"code": code()})
    assert right.headers["Location"] == "/alpha/settings"
    assert client.get("/alpha/settings").status_code == 200


def test_a_code_is_good_once(guarded):
    first, second = PageClient(), PageClient()
    once = code()
    enter(first)
    first.post("/account/factors/authenticate/", {"code": once})
    enter(second)

    again = second.post("/account/factors/authenticate/", {"code": once})

    assert "Incorrect code" in again.text


def test_codes_are_not_guessed_without_end(guarded):
    client = PageClient()
    enter(client)
    for _ in range(10):
        last = client.post("/account/factors/authenticate/", {"code": "000000"})

    assert "Too many" in last.text
    assert client.get("/alpha/settings").status_code == 302


def test_cancelling_allows_signing_in_again(guarded):
    client = PageClient()
    enter(client)

    assert client.post("/sign-out/").headers["Location"] == "/sign-in/"
    gone = client.get("/account/factors/authenticate/")
    assert gone.headers["Location"] == "/sign-in/"


def test_without_a_second_factor_the_password_is_enough(alice):
    alice.set_password(PASSWORD)
    alice.save()

    assert enter(PageClient()) == "/"


def test_setting_up_an_app_requires_the_password_again(
    alice, django_capture_on_commit_callbacks
):
    alice.set_password(PASSWORD)
    alice.save()
    client = PageClient()
    enter(client)

    requested = client.get("/account/factors/totp/activate/")
    assert requested.headers["Location"].startswith("/account/reauthenticate/")
    client.post(requested.headers["Location"], {"password": PASSWORD})
    page = client.get("/account/factors/totp/activate/").text
    found = re.search(r'wrap-anywhere mb-1">(\w+)<', page)
    assert found
    value = format_hotp_value(hotp_value(found[1], next(counters())))
    with django_capture_on_commit_callbacks(execute=True):
        client.post("/account/factors/totp/activate/", {"code": value})

    account = client.get("/account/").text
    assert "Authenticator app" in account
    kept = Authenticator.objects.get(user=alice, type="totp").data["secret"]
    assert found[1] not in kept
    verbs = AuditEntry.objects.values_list("verb", "detail__kind")
    assert ("person.factor_added", "totp") in verbs


def test_a_recovery_code_lets_in_once(guarded):
    from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes

    codes = RecoveryCodes.activate(guarded).get_unused_codes()
    for once, is_in in ((codes[0], True), (codes[0], False), (codes[1], True)):
        client = PageClient()
        enter(client)
        client.post("/account/factors/authenticate/", {"code": once})

        assert (client.get("/alpha/settings").status_code == 200) == is_in


def test_a_seed_of_another_key_fits_no_code(settings):
    adapter = FactorAdapter()
    kept = adapter.encrypt(SECRET)
    assert adapter.decrypt(kept) == SECRET

    settings.SECRET_KEY = "another"

    assert len(adapter.decrypt(kept)) == 32
    assert adapter.decrypt(kept) != adapter.decrypt(kept)
