"""An external account signs in only the user who connected it."""

from urllib.parse import parse_qs, urlsplit

import pytest
from allauth.account.models import EmailAddress
from allauth.socialaccount.models import SocialAccount
from django.test import Client

from dashboard.accounts.models import User
from tests.dashboard.accounts.test_providers import Provider, go_there_and_back
from tests.dashboard.accounts.test_providers import alice_in as alice_in
from tests.dashboard.accounts.test_providers import server as server

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("server")]
BACK = "/account/providers/oidc/back"


@pytest.mark.parametrize("is_verified", [True, False])
def test_a_matching_address_or_name_does_not_sign_in(alice, monkeypatch, is_verified):
    User.objects.filter(pk=alice.pk).update(email="alice@example.org")
    EmailAddress.objects.create(
        user=alice, email="alice@example.org", verified=True, primary=True
    )
    claims = {
        "sub": "mallory", "preferred_username": "alice", "email": "alice@example.org",
        "email_verified": is_verified,
    }  # fmt: skip
    monkeypatch.setattr(Provider, "_claims", lambda self: claims)
    client = Client()

    page = go_there_and_back(client)

    assert "not connected" in page
    assert client.get("/account/").status_code == 302
    assert not SocialAccount.objects.exists()


def test_a_callback_is_valid_once_and_in_one_browser(alice_in):
    go_there_and_back(alice_in)
    mine, other = Client(), Client()
    page = mine.post("/account/providers/oidc/go")
    state = parse_qs(urlsplit(page.context["address"]).query)["state"][0]
    answer = {"code": "given", "state": state}

    assert other.get(BACK, answer).status_code == 401
    assert mine.get(BACK, answer, follow=True).status_code == 200
    assert mine.get("/account/").status_code == 200
    mine.post("/sign-out/")
    assert mine.get(BACK, answer).status_code == 401
    assert mine.get("/account/").status_code == 302


def test_an_account_cannot_be_connected_to_anothers_session(alice_in, bob_client):
    """By a link that another site opens."""
    assert bob_client.get("/account/providers/oidc/go").status_code == 405
    strict = Client(enforce_csrf_checks=True)
    assert strict.post("/account/providers/oidc/go").status_code == 403
    page = alice_in.post("/account/providers/oidc/go")
    state = parse_qs(urlsplit(page.context["address"]).query)["state"][0]

    forged = bob_client.get(BACK, {"code": "given", "state": state})

    assert forged.status_code == 401
    assert not SocialAccount.objects.exists()
