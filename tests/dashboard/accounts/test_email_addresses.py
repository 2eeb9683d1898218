"""Verifying addresses and resetting passwords by e-mail;

without a mail server the pages say so.
"""

import re

import pytest
from allauth.account.models import EmailAddress
from django.core import mail
from django.core.mail import EmailMessage

from dashboard.accounts.members import invite
from dashboard.accounts.models import AuditEntry, User
from tests.page_client import PageClient

PASSWORD = "correct horse battery"


@pytest.fixture
def with_mail(settings) -> None:
    settings.MAIL_IS_SET_UP = True


def link_in(message: EmailMessage) -> str:
    found = re.search(r"http://testserver(/\S+)", str(message.body))
    assert found
    return found[1]


@pytest.mark.usefixtures("with_mail")
def test_new_users_must_verify_their_address(alice) -> None:
    token = invite(by=alice.memberships.get(), role="viewer")[1]
    form = {"username": "dora", "email": "dora@example.org"}
    passwords = {"password1": PASSWORD, "password2": PASSWORD}
    client = PageClient()

    client.post(f"/invitation/{token}/", form | passwords)

    assert "not verified" in client.get("/account/").text
    (sent,) = mail.outbox
    assert sent.to == ["dora@example.org"]
    client.post(link_in(sent))
    assert EmailAddress.objects.get().verified
    assert "not verified" not in client.get("/account/").text


@pytest.mark.usefixtures("with_mail")
def test_a_reset_link_works_once(alice, alice_client) -> None:
    User.objects.filter(pk=alice.pk).update(email="alice@example.org")
    client = PageClient()

    client.post("/account/password/reset/", {"email": "alice@example.org"})
    address = link_in(mail.outbox[0])
    page = client.get(address, follow=True)
    form = {"password1": PASSWORD, "password2": PASSWORD}
    client.post(page.redirect_chain[-1][0], form)

    alice.refresh_from_db()
    assert alice.check_password(PASSWORD)
    assert alice_client.get("/account/").status_code == 302  # an older session
    assert AuditEntry.objects.latest("pk").verb == "person.password_reset"
    assert "was used" in PageClient().get(address, follow=True).text


@pytest.mark.usefixtures("with_mail")
def test_a_reset_does_not_reveal_accounts(alice) -> None:
    User.objects.filter(pk=alice.pk).update(email="alice@example.org")

    answers = {
        PageClient()
        .post("/account/password/reset/", {"email": email})
        .headers["Location"]
        for email in ("alice@example.org", "nobody@example.org")
    }

    assert answers == {"/account/password/reset/done/"}
    assert [message.to for message in mail.outbox] == [["alice@example.org"]]


def test_without_a_mail_server_nothing_is_sent_and_the_pages_say_so(
    alice, alice_client
):
    User.objects.filter(pk=alice.pk).update(email="alice@example.org")

    reset = PageClient().get("/account/password/reset/").text
    PageClient().post("/account/password/reset/", {"email": "alice@example.org"})

    assert mail.outbox == []
    assert "No mail server" in reset
    assert "No mail server" in alice_client.get("/account/").text
    assert "Forgotten" not in PageClient().get("/sign-in/").text


@pytest.mark.usefixtures("with_mail")
def test_an_address_is_added_and_counts_once_it_is_verified(
    alice, alice_client
) -> None:
    alice.set_unusable_password()
    alice.save()
    alice_client.force_login(alice)

    form = {"action_add": "", "email": "new@example.org"}
    alice_client.post("/account/email/", form)
    alice_client.post(link_in(mail.outbox[0]))

    alice.refresh_from_db()
    assert EmailAddress.objects.get(user=alice, primary=True).verified
    assert alice.email == "new@example.org"
