"""Listing and ending sessions."""

import pytest
from allauth.usersessions.models import UserSession
from django.test import Client

from dashboard.accounts.services import create_sign_in_link
from dashboard.accounts.sessions import browser_of
from tests.page_client import PageClient

pytestmark = pytest.mark.django_db
PASSWORD = "correct horse battery"
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"


@pytest.fixture
def alices(alice) -> tuple[Client, Client]:
    """Two browsers of hers: by password, and by a link."""
    alice.set_password(PASSWORD)
    alice.save()
    by_password = PageClient(headers={"user-agent": FIREFOX})
    by_password.post("/sign-in/", {"username": "alice", "password": PASSWORD})
    by_link = PageClient(headers={"user-agent": "curl/8.5.0"})
    by_link.post(f"/sign-in/{create_sign_in_link(alice)}/")
    return by_password, by_link


def test_each_is_listed_with_its_browser(alices):
    page = alices[0].get("/account/").text

    assert "Firefox 140 on Linux <" in page
    assert "(this session)" in page
    assert "curl 8" in page
    assert "127.0.0.1" in page


def test_a_session_ends_another(alices):
    here, there = alices
    pk = UserSession.objects.get(user_agent="curl/8.5.0").pk

    here.post(f"/account/sessions/{pk}/end")

    assert there.get("/account/").status_code == 302
    assert here.get("/account/").status_code == 200
    assert UserSession.objects.count() == 1


def test_all_other_own_sessions_end(alices, alice, bob_client):
    here, there = alices
    unlisted = PageClient()
    unlisted.force_login(alice)  # as one from before there was a list

    page = here.post("/account/sessions/end", follow=True)

    assert "2 other sessions ended." in page.text
    assert [c.get("/account/").status_code for c in (there, unlisted)] == [302, 302]
    assert bob_client.get("/account/").status_code == 200


def test_sessions_of_others_cannot_be_ended(alices, bob_client):
    for pk in UserSession.objects.values_list("pk", flat=True):
        assert bob_client.post(f"/account/sessions/{pk}/end").status_code == 404

    assert alices[0].get("/account/").status_code == 200


def test_a_new_password_ends_the_others(alices):
    here, there = alices
    new = "quite another long one"
    form = {"old_password": PASSWORD, "new_password1": new, "new_password2": new}

    here.post("/account/", {"form": "password", **form})

    assert there.get("/account/").status_code == 302
    assert "(this session)" in here.get("/account/").text
    assert UserSession.objects.count() == 1


def test_a_browser_is_named_so_that_one_knows_it():
    for agent, message in [
        (FIREFOX, "Firefox 140 on Linux"),
        (
            "Mozilla/5.0 (Windows NT 10.0) AppleWebKit/537.36 (KHTML, like Gecko) "
            "Chrome/139.0.0.0 Safari/537.36 Edg/139.0.0.0",
            "Edge 139 on Windows",
        ),
        (
            "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) Version/18.0 "
            "Safari/604.1",
            "Safari 604 on iPhone",
        ),
        ("x" * 100, "x" * 60),
        ("", "unknown browser"),
    ]:
        assert browser_of(agent) == message, agent
