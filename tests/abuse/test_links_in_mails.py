"""Links in mails use Cohort's URL, not a forged Host header."""

import re

import pytest
from django.core import mail
from django.test import Client

from dashboard.accounts import adapters
from dashboard.accounts.models import User
from dashboard.project.environment import read_environment

pytestmark = pytest.mark.django_db
EVIL = {"HTTP_HOST": "evil.example"}


@pytest.fixture(autouse=True)
def _wide_open(settings, monkeypatch) -> None:
    """As in some deployments behind a proxy."""
    settings.ALLOWED_HOSTS = ["*"]
    settings.MAIL_IS_SET_UP = True
    settings.LINKS_BEGIN = "https://cohort.example.org"
    monkeypatch.setattr(adapters, "send_in_background", adapters._send)


def links() -> set[str]:
    (sent,) = mail.outbox
    found = re.findall(r"https?://[^/\s]+", str(sent.body))
    return set(found)


def test_password_reset_mail(alice):
    User.objects.filter(pk=alice.pk).update(email="alice@example.org")

    Client().post("/account/password/reset/", {"email": "alice@example.org"}, **EVIL)

    assert links() == {"https://cohort.example.org"}


def test_address_verification_mail(alice_client):
    form = {"action_add": "", "email": "new@example.org"}

    alice_client.post("/account/email/", form, **EVIL)

    assert links() == {"https://cohort.example.org"}


def test_invitation_mail(alice_client):
    form = {"role": "viewer", "email": "dora@example.org"}

    alice_client.post("/alpha/settings/invite", form, **EVIL)

    assert links() == {"https://cohort.example.org"}


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.:8000", "[::1]:1"])
@pytest.mark.parametrize("before", ["", "localhost,127.0.0.1,"])
def test_links_do_not_use_loopback_names(alice, before, host, settings, monkeypatch):
    """A server accepts its loopback names even if they are not configured."""
    hosts = f"{before}cohort.example.org,cohort.lan"
    monkeypatch.setenv("COHORT_ALLOWED_HOSTS", hosts)
    environment = read_environment()
    settings.LINKS_BEGIN = ""
    settings.ALLOWED_HOSTS = list(environment.allowed_hosts)
    settings.ADDED_HOSTS = list(environment.added_hosts)
    User.objects.filter(pk=alice.pk).update(email="alice@example.org")
    form = {"email": "alice@example.org"}

    for asked in (host, "cohort.lan:8443"):
        Client().post("/account/password/reset/", form, headers={"host": asked})

    bodies = " ".join(str(letter.body) for letter in mail.outbox)
    begins = re.findall(r"https?://[^/\s]+", bodies)
    assert begins == ["http://cohort.example.org", "http://cohort.lan:8443"]


@pytest.mark.parametrize("hosts", ["*", "cohort.example.org,.example.net"])
def test_mail_with_any_host_allowed_requires_cohort_url(hosts, monkeypatch):
    monkeypatch.setenv("COHORT_ALLOWED_HOSTS", hosts)
    monkeypatch.setenv("COHORT_EMAIL_URL", "smtp://mail.example.org")
    monkeypatch.delenv("COHORT_URL", raising=False)

    with pytest.raises(ValueError, match="COHORT_URL"):
        read_environment()

    monkeypatch.setenv("COHORT_URL", "https://cohort.example.org/")
    assert read_environment().is_url_given


@pytest.mark.parametrize("address", ["/account/reauthenticate/", "/sign-in/"])
def test_no_form_redirects_to_another_site(alice, address):
    alice.set_password("correct horse battery")
    alice.save()
    form = {"username": "alice", "password": "correct horse battery"}

    for url in ("https://evil.example/x", "//evil.example", "/\\evil.example", "x:1"):
        for there, more in ((address, {"next": url}), (f"{address}?next={url}", {})):
            client = Client()
            if address != "/sign-in/":
                client.post("/sign-in/", form)
            answer = client.post(there, form | more)

            assert answer.status_code == 302, url
            assert answer.headers["Location"] in ("/", "/account/"), url
