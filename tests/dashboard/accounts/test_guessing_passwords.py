"""Nobody guesses passwords, and nobody keeps a session that was not theirs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from django.conf import settings
from django.test import Client

from dashboard.accounts import throttle
from dashboard.accounts.models import User
from dashboard.accounts.services import create_sign_in_link

PASSWORD = "a long enough secret"
REDIS_URL = settings.REDIS_URL


@pytest.fixture(autouse=True)
def nothing_was_tried(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """And few tries are many, since to look at a password takes long on purpose."""
    monkeypatch.setattr(throttle, "MAX_OF_USERNAME", 3)
    monkeypatch.setattr(throttle, "MAX_OF_ADDRESS", 5)
    forget()
    yield
    forget()


def forget() -> None:
    with redis.Redis.from_url(REDIS_URL) as client:
        for key in client.scan_iter("cohort:sign-in:*"):
            client.delete(key)


@pytest.fixture
def with_password(alice: User) -> User:
    alice.set_password(PASSWORD)
    alice.save()
    return alice


def sign_in(username: str, password: str, address: str = "192.0.2.1") -> int:
    form = {"username": username, "password": password}
    status: int = Client().post("/sign-in/", form, REMOTE_ADDR=address).status_code
    return status


def test_after_several_wrong_passwords_even_the_right_one_waits(with_password: User):
    found = [sign_in("alice", "wrong", f"192.0.2.{n}") for n in range(3)]

    assert set(found) == {422}
    assert sign_in("ALICE", PASSWORD) == 429


@pytest.mark.parametrize("spelling", [" alice", "alice\n", "\uff41lice", "A\uff2cice"])
def test_another_spelling_of_a_username_is_no_new_try(
    with_password: User, spelling: str
):
    """The form takes some for the same, so whoever varies them had no limit."""
    for n in range(3):
        sign_in("alice", "wrong", f"192.0.2.{n}")

    assert sign_in(spelling, PASSWORD) == 429


def test_addresses_of_one_network_count_as_one(with_password: User):
    """A household has 2^64 of IPv6, and may take another for each try."""
    for n in range(throttle.MAX_OF_ADDRESS):
        assert sign_in(f"name {n}", "wrong", f"2001:db8:0:7::{n:x}") == 422

    assert sign_in("alice", PASSWORD, "2001:db8:0:7:ffff::1") == 429
    assert sign_in("alice", PASSWORD, "2001:db8:0:8::1") == 302


def test_whoever_must_wait_is_told_how_long_and_what_to_do_instead(db: None):
    for _ in range(throttle.MAX_OF_USERNAME):
        sign_in("nobody", "wrong")

    form = {"username": "nobody", "password": "wrong"}
    page = Client().post("/sign-in/", form, REMOTE_ADDR="192.0.2.1")

    assert page.status_code == 429
    assert 800 < int(page.headers["Retry-After"]) <= 900
    assert "Wait 15 minutes, or sign in by a link" in page.text


def test_one_address_cannot_try_many_usernames(with_password: User):
    for n in range(throttle.MAX_OF_ADDRESS):
        assert sign_in(f"name {n}", "Summer2026!") == 422

    assert sign_in("alice", PASSWORD) == 429
    assert sign_in("alice", PASSWORD, "198.51.100.7") == 302


def test_the_right_password_clears_what_was_mistyped(with_password: User):
    for _ in range(2):
        for _ in range(throttle.MAX_OF_USERNAME - 1):
            assert sign_in("alice", "wrong") == 422

        assert sign_in("alice", PASSWORD) == 302


def test_without_redis_people_still_sign_in(
    with_password: User, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(settings, "REDIS_URL", "unix:///nowhere/redis.sock")

    assert sign_in("alice", PASSWORD) == 302


@pytest.mark.parametrize("by_link", [False, True])
def test_a_session_from_before_is_worth_nothing_after(
    with_password: User, by_link: bool
):
    """Somebody may have planted its key in this browser."""
    client = Client()
    session = client.session
    session["planted"] = True
    session.save()
    planted = str(session.session_key)
    client.cookies[settings.SESSION_COOKIE_NAME] = planted

    if by_link:
        client.post(f"/sign-in/{create_sign_in_link(with_password)}/")
    else:
        client.post("/sign-in/", {"username": "alice", "password": PASSWORD})

    assert client.get("/").status_code == 302
    assert "/runs/" in client.get("/").headers["Location"]
    assert client.cookies[settings.SESSION_COOKIE_NAME].value != planted
    attacker = Client()
    attacker.cookies[settings.SESSION_COOKIE_NAME] = planted
    assert attacker.get("/").headers["Location"].startswith("/sign-in/")


def test_a_signed_out_session_cannot_be_used_again(with_password: User):
    client = Client()
    client.post("/sign-in/", {"username": "alice", "password": PASSWORD})
    kept = client.cookies[settings.SESSION_COOKIE_NAME].value

    client.post("/sign-out/")

    again = Client()
    again.cookies[settings.SESSION_COOKIE_NAME] = kept
    assert again.get("/").headers["Location"].startswith("/sign-in/")
