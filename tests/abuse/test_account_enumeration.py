"""Neither a response nor its duration reveals whether an account exists."""

import threading
from smtplib import SMTPServerDisconnected
from typing import Any

import pytest
from django.contrib.auth.hashers import MD5PasswordHasher
from django.core.mail.backends.base import BaseEmailBackend

from dashboard.accounts import adapters
from dashboard.accounts.models import User
from tests.page_client import PageClient

HERE = "tests.abuse.test_account_enumeration"
answered = threading.Event()
sending = threading.Event()
order: list[str] = []


class Slow(BaseEmailBackend):
    """A mail server that answers when the browser has been answered."""

    def send_messages(self, messages: Any) -> int:
        sending.set()
        order.append("sent late" if answered.wait(5) else "kept the browser waiting")
        return len(messages)


class Away(BaseEmailBackend):
    def send_messages(self, messages: Any) -> int:
        sending.set()
        raise SMTPServerDisconnected("Connection unexpectedly closed")


class Counted(MD5PasswordHasher):
    num_hashed = 0

    def encode(self, password: str, salt: str, iterations: int | None = None) -> str:
        Counted.num_hashed += 1
        return str(super().encode(password, salt))


@pytest.fixture(autouse=True)
def _mail_is_set_up(settings) -> None:
    settings.MAIL_IS_SET_UP = True
    answered.clear()
    sending.clear()
    order.clear()


def request_password_reset(email: str) -> tuple[int, str, str]:
    page = PageClient().post("/account/password/reset/", {"email": email})
    return page.status_code, page.headers["Location"], page.text


@pytest.mark.parametrize("server", ["Slow", "Away"])
def test_a_password_reset_has_the_same_response_for_any_address(
    alice, settings, server
):
    User.objects.filter(pk=alice.pk).update(email="alice@example.org")
    settings.EMAIL_BACKEND = f"{HERE}.{server}"

    known = request_password_reset("alice@example.org")
    answered.set()
    unknown = request_password_reset("nobody@example.org")

    assert known == unknown
    assert known[0] == 302
    assert sending.wait(5), "nothing was sent"
    adapters._senders.submit(lambda: None).result(5)
    assert order == (["sent late"] if server == "Slow" else [])


def test_sign_up_works_without_the_mail_server(alice, settings):
    from dashboard.accounts.members import invite

    settings.EMAIL_BACKEND = f"{HERE}.Away"
    token = invite(by=alice.memberships.get(), role="viewer")[1]
    words = {"password1": "correct horse battery", "password2": "correct horse battery"}
    form = {"username": "dora", "email": "dora@example.org", **words}

    answer = PageClient().post(f"/invitation/{token}/", form)

    assert (answer.status_code, answer.headers["Location"]) == (302, "/alpha/runs/")


def test_every_name_has_the_same_response_and_number_of_hashes(
    alice, bob, charlie, settings
):
    """alice has a password, bob none, charlie is deactivated, "no one" is unknown."""
    settings.PASSWORD_HASHERS = [f"{HERE}.Counted"]
    for user in (alice, charlie):
        user.set_password("the right one")
        user.save()
    User.objects.filter(pk=charlie.pk).update(is_active=False)
    found = {}

    for name in ("alice", "bob", "charlie", "nobody"):
        for password in ("wrong", "the right one" if name == "charlie" else "also"):
            before = Counted.num_hashed
            form = {"username": name, "password": password}
            page = PageClient().post(
                "/sign-in/", form, REMOTE_ADDR=f"10.0.0.{len(found)}"
            )
            is_refused = "correct username" in page.text
            found[name, password] = (
                page.status_code,
                is_refused,
                Counted.num_hashed - before,
            )

    assert len(set(found.values())) == 1, found
    assert next(iter(found.values()))[:2] == (422, True)
