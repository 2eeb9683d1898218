"""What each answer tells the browser: trust Cohort alone, and show it in no frame."""

from __future__ import annotations

import re

import pytest
from django.http import HttpResponseBase
from django.test import Client

from dashboard.accounts.models import User
from tests.dashboard.test_every_route_is_guarded import OPEN, PERSONAL, VIEWERS_POST
from tests.dashboard.test_every_route_is_guarded import addresses as addresses

pytestmark = pytest.mark.django_db

# Without one that starts a library for seconds.
PAGES = sorted({*OPEN, *PERSONAL, *VIEWERS_POST} - {"dataset_generate"})
# Data in a script element is no script, so its kind is named.
INLINE = re.compile(
    r"<script(?![^>]*\b(?:src=|type=\"application/json\"))|<style|\sstyle=|<[a-z][^>]*"
    r"\son[a-z]+=|javascript:|(?:src|action)=\"(?:https?:)?//",
    re.IGNORECASE,
)
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
}
# A public report leads to other sites, which are told nothing at all.
REFERRERS = {"same-origin", "no-referrer"}


def assert_strict(name: str, answer: HttpResponseBase) -> None:
    policy = answer.headers["Content-Security-Policy"]
    rules = dict(rule.strip().partition(" ")[::2] for rule in policy.split(";"))
    assert "unsafe" not in policy, name
    assert "*" not in policy, name
    assert {key: answer.headers.get(key) for key in HEADERS} == HEADERS, name
    assert answer.headers["Referrer-Policy"] in REFERRERS, name
    if "sandbox" in rules:  # a file to keep, which can do nothing anywhere
        assert answer.headers["Content-Disposition"].startswith("attachment"), name
        return
    assert rules["default-src"] in ("'self'", "'none'"), name
    assert rules["object-src" if "object-src" in rules else "default-src"] == "'none'"
    assert (rules["base-uri"], rules["frame-ancestors"]) == ("'none'", "'none'"), name
    assert rules["form-action"] in ("'self'", "'none'"), name


@pytest.mark.parametrize("who", ["nobody", "the owner"])
def test_every_answer_carries_the_policy(
    who: str, addresses: dict[str, str], alice_client: Client
) -> None:
    client = alice_client if who == "the owner" else Client()
    num_pages = 0

    for name in PAGES:
        answer = client.get(addresses[name])
        assert_strict(name, answer)
        is_saved = "Content-Disposition" in answer.headers
        if answer.headers["Content-Type"].startswith("text/html") and not is_saved:
            found = INLINE.search(answer.content.decode())
            assert found is None, (name, found)
            num_pages += answer.status_code == 200

    assert num_pages > (40 if who == "the owner" else 1)


@pytest.mark.parametrize("address", ["/no/such/page/", "/alpha/runs/999999/"])
def test_what_is_not_there_is_answered_as_strictly(
    alice_client: Client, address: str
) -> None:
    answer = alice_client.get(address)

    assert answer.status_code == 404
    assert_strict(address, answer)


def test_cookies_are_out_of_reach_of_scripts_and_other_sites(alice: User) -> None:
    alice.set_password("a long enough secret")
    alice.save()
    client = Client()
    form = {"username": "alice", "password": "a long enough secret"}
    client.get("/sign-in/", secure=True)

    answer = client.post("/sign-in/", form, secure=True)

    assert answer.status_code == 302
    cookies = answer.cookies
    assert {"cohort_session", "cohort_device"} <= set(cookies)
    for name, cookie in cookies.items():
        assert cookie["samesite"] in ("Lax", "Strict"), name
        assert cookie["secure"], name
        assert not cookie["domain"], name
        assert cookie["httponly"] or name == "cohort_csrf"
