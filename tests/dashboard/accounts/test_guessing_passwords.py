"""Limits of password guesses, and sessions that end."""

from collections.abc import Iterator

import pytest
import redis
from django.conf import settings
from django.test import Client

from dashboard.accounts import throttling
from dashboard.accounts.models import User
from dashboard.accounts.services import create_sign_in_link
from dashboard.web.budgets import DEVICE_COOKIE
from tests.page_client import PageClient

PASSWORD = "a long enough secret"
REDIS_URL = settings.REDIS_URL


@pytest.fixture(autouse=True)
def nothing_was_tried(monkeypatch) -> Iterator[None]:
    """And few tries are many, since to look at a password takes long on purpose."""
    monkeypatch.setattr(throttling, "MAX_OF_DEVICE", 2)
    monkeypatch.setattr(throttling, "MAX_OF_PAIR", 2)
    monkeypatch.setattr(throttling, "MAX_OF_USERNAME", 4)
    monkeypatch.setattr(throttling, "MAX_OF_ADDRESS", 5)
    forget()
    yield
    forget()


def forget() -> None:
    with redis.Redis.from_url(REDIS_URL) as client:
        for key in client.scan_iter("cohort:sign-in:*"):
            client.delete(key)


@pytest.fixture
def with_password(alice) -> User:
    alice.set_password(PASSWORD)
    alice.save()
    return alice


def sign_in(
    username: str,
    password: str,
    address: str = "192.0.2.1",
    client: Client | None = None,
) -> int:
    client = client or PageClient()
    form = {"username": username, "password": password}
    status: int = client.post("/sign-in/", form, REMOTE_ADDR=address).status_code
    return status


def guess_from_everywhere(username: str = "alice") -> None:
    """Until a username is refused from any address."""
    found = [
        sign_in(username, "wrong", f"192.0.2.{n}")
        for n in range(throttling.MAX_OF_USERNAME)
    ]
    assert set(found) == {422}


@pytest.fixture
def known(with_password) -> Client:
    """A browser that alice has signed in from, and out of."""
    client = PageClient()
    assert sign_in("alice", PASSWORD, client=client) == 302
    client.post("/sign-out/")
    return client


def test_after_several_wrong_passwords_even_the_right_one_waits(with_password):
    guess_from_everywhere()

    assert sign_in("ALICE", PASSWORD, "198.51.100.7") == 429


def test_guesses_from_one_address_do_not_lock_out_others(with_password):
    found = [sign_in("alice", "wrong") for _ in range(throttling.MAX_OF_PAIR + 2)]

    assert found == [422, 422, 429, 429]
    assert sign_in("alice", PASSWORD, "198.51.100.7") == 302


def test_guesses_do_not_lock_out_a_known_browser(with_password, known):
    guess_from_everywhere()
    for n in range(throttling.MAX_OF_ADDRESS):
        sign_in(f"name {n}", "wrong", "203.0.113.9")

    assert sign_in("alice", PASSWORD, "203.0.113.9") == 429
    assert sign_in("alice", PASSWORD, "203.0.113.9", known) == 302


def test_a_link_makes_a_browser_known_too(with_password):
    client = PageClient()
    client.post(f"/sign-in/{create_sign_in_link(with_password)}/")
    client.post("/sign-out/")
    guess_from_everywhere()

    assert sign_in("alice", PASSWORD, client=client) == 302


def test_a_known_browser_guesses_no_more_than_another(with_password, known):
    found = [sign_in("alice", "wrong", client=known) for _ in range(3)]

    assert found == [422, 422, 429]
    assert sign_in("alice", PASSWORD, client=known) == 429


@pytest.mark.parametrize("name", ["bob", "ALICE"])
def test_a_browser_is_known_only_for_its_user(known, name):
    """ALICE may be another person, who may register any number of browsers."""
    User.objects.create_user(name, password=PASSWORD)
    client = PageClient()
    assert sign_in(name, PASSWORD, client=client) == 302
    client.post("/sign-out/")
    guess_from_everywhere()

    assert sign_in("alice", PASSWORD, client=client) == 429


def test_an_unsigned_cookie_is_ignored(known):
    known.cookies[DEVICE_COOKIE] = f"{known.cookies[DEVICE_COOKIE].value}x"
    guess_from_everywhere()

    assert sign_in("alice", PASSWORD, client=known) == 429


def test_the_device_cookie_is_http_only(with_password):
    client = PageClient()
    sign_in("alice", PASSWORD, client=client)
    cookie = client.cookies[DEVICE_COOKIE]

    assert cookie["httponly"]
    assert (cookie["path"], cookie["samesite"]) == ("/", "Lax")


@pytest.mark.parametrize("spelling", [" alice", "alice\n", "\uff41lice", "A\uff2cice"])
def test_spellings_of_a_username_share_a_count(with_password, spelling):
    """Spellings that the form treats as equal must share a limit."""
    guess_from_everywhere()

    assert sign_in(spelling, PASSWORD, "198.51.100.7") == 429


def test_addresses_of_one_network_count_as_one(with_password):
    """A household has 2^64 of IPv6, and may take another for each try."""
    for n in range(throttling.MAX_OF_ADDRESS):
        assert sign_in(f"name {n}", "wrong", f"2001:db8:0:7::{n:x}") == 422

    assert sign_in("alice", PASSWORD, "2001:db8:0:7:ffff::1") == 429
    assert sign_in("alice", PASSWORD, "2001:db8:0:8::1") == 302


def test_a_blocked_sign_in_shows_the_wait_and_an_alternative(db):
    for _ in range(throttling.MAX_OF_PAIR):
        sign_in("nobody", "wrong")

    form = {"username": "nobody", "password": "wrong"}
    page = PageClient().post("/sign-in/", form, REMOTE_ADDR="192.0.2.1")

    assert page.status_code == 429
    assert 800 < int(page.headers["Retry-After"]) <= 900
    assert "15 minutes" in page.text


def test_one_address_cannot_try_many_usernames(with_password):
    for n in range(throttling.MAX_OF_ADDRESS):
        assert sign_in(f"name {n}", "Summer2026!") == 422

    assert sign_in("alice", PASSWORD) == 429
    assert sign_in("alice", PASSWORD, "198.51.100.7") == 302


def test_the_right_password_resets_the_count(with_password):
    for _ in range(2):
        for _ in range(throttling.MAX_OF_PAIR - 1):
            assert sign_in("alice", "wrong") == 422

        assert sign_in("alice", PASSWORD) == 302


def test_without_redis_people_still_sign_in(with_password, monkeypatch):
    nowhere = redis.Redis.from_url("unix:///nowhere/redis.sock")
    monkeypatch.setattr(throttling, "redis_client", lambda: nowhere)

    assert sign_in("alice", PASSWORD) == 302


def test_a_try_that_is_forgiven_after_its_window_begins_a_new_one():
    client = throttling.redis_client()
    client.decr("cohort:sign-in:a test")

    counted = throttling.count("cohort:sign-in:a test", within_seconds=60)

    assert counted == throttling.Counted(number=0, seconds_left=60)
    assert 0 < int(client.ttl("cohort:sign-in:a test")) <= 60  # type: ignore[arg-type]  # redis's types allow an awaitable


@pytest.mark.parametrize("by_link", [False, True])
def test_a_session_from_before_is_worth_nothing_after(with_password, by_link):
    """Someone may have planted its key in this browser."""
    client = PageClient()
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
    attacker = PageClient()
    attacker.cookies[settings.SESSION_COOKIE_NAME] = planted
    assert attacker.get("/").headers["Location"].startswith("/sign-in/")


def test_a_signed_out_session_cannot_be_used_again(with_password):
    client = PageClient()
    client.post("/sign-in/", {"username": "alice", "password": PASSWORD})
    kept = client.cookies[settings.SESSION_COOKIE_NAME].value

    client.post("/sign-out/")

    again = PageClient()
    again.cookies[settings.SESSION_COOKIE_NAME] = kept
    assert again.get("/").headers["Location"].startswith("/sign-in/")
