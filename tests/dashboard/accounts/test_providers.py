"""Signing in by an account elsewhere, against a provider on this machine."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from allauth.account.internal.flows.login import AUTHENTICATION_METHODS_SESSION_KEY
from allauth.mfa.totp.internal.auth import TOTP
from allauth.socialaccount.models import SocialAccount, SocialToken
from django.test import Client

from dashboard.accounts.models import AuditEntry, User
from dashboard.project.environment import (
    SignInProvider,
    provider_settings,
    read_environment,
)
from tests.page_client import PageClient

pytestmark = pytest.mark.django_db
PASSWORD = "correct horse battery"


class Provider(BaseHTTPRequestHandler):
    """`who` is signed in at the provider."""

    who = "alice-at-work"

    def do_GET(self) -> None:
        here = f"http://{self.headers['Host']}"
        if self.path.endswith("/openid-configuration"):
            parts = ("authorization", "token", "userinfo")
            answer = {f"{part}_endpoint": f"{here}/{part}" for part in parts}
            self._say({**answer, "issuer": here, "jwks_uri": f"{here}/keys"})
        else:
            assert self.headers["Authorization"] == "Bearer opens"
            self._say(self._claims())

    def _claims(self) -> dict[str, Any]:
        return {"sub": self.who, "preferred_username": self.who}

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        assert form["code"] == ["given"]
        assert form["client_secret"] == ["quiet"]
        assert form["code_verifier"]
        self._say({"access_token": "opens", "token_type": "Bearer"})

    def _say(self, answer: dict[str, Any]) -> None:
        text = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_args: object) -> None:
        pass


@pytest.fixture
def server(settings) -> Iterator[HTTPServer]:
    with HTTPServer(("127.0.0.1", 0), Provider) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        work = SignInProvider(
            key="oidc", name="Work", client_id="cohort", secret="quiet", url=url
        )
        settings.SIGN_IN_PROVIDERS = {"oidc": "Work"}
        settings.SOCIALACCOUNT_PROVIDERS = provider_settings([work])
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def alice_in(alice) -> Client:
    """Her browser, where she has just given her password."""
    alice.set_password(PASSWORD)
    alice.save()
    client = PageClient()
    client.post("/sign-in/", {"username": "alice", "password": PASSWORD})
    client.post("/account/reauthenticate/", {"password": PASSWORD})
    assert client.session[AUTHENTICATION_METHODS_SESSION_KEY]
    return client


def go_there_and_back(client: Client) -> str:
    """The page that it ends at."""
    page = client.post("/account/providers/oidc/go")
    requested = parse_qs(urlsplit(page.context["address"]).query)
    assert requested["redirect_uri"] == [
        "http://testserver/account/providers/oidc/back"
    ]
    assert requested["code_challenge_method"] == ["S256"]
    answer = {"code": "given", "state": requested["state"][0]}
    return client.get("/account/providers/oidc/back", answer, follow=True).text


@pytest.mark.usefixtures("server")
def test_an_account_elsewhere_is_connected_and_lets_in(alice, alice_in) -> None:
    assert "alice-at-work" in go_there_and_back(alice_in)

    client = PageClient()
    assert "Work" in client.get("/sign-in/").text
    go_there_and_back(client)

    assert "You sign in as <strong>alice</strong>" in client.get("/account/").text
    assert not SocialToken.objects.exists()
    assert AuditEntry.objects.latest("pk").verb == "person.provider_added"


@pytest.mark.usefixtures("server", "alice")
def test_a_provider_creates_no_account() -> None:
    client = PageClient()
    num_users = User.objects.count()

    page = go_there_and_back(client)

    assert "not connected" in page
    assert User.objects.count() == num_users
    assert client.get("/account/").status_code == 302


@pytest.mark.usefixtures("server")
def test_the_second_factor_is_still_required(alice, alice_in) -> None:
    go_there_and_back(alice_in)
    TOTP.activate(alice, "JBSWY3DPEHPK3PXP")
    client = PageClient()

    assert "Second factor" in go_there_and_back(client)
    assert client.get("/account/").status_code == 302


@pytest.mark.usefixtures("server")
def test_connecting_requires_the_password(alice) -> None:
    alice.set_password(PASSWORD)
    alice.save()
    client = PageClient()
    client.post("/sign-in/", {"username": "alice", "password": PASSWORD})

    requested = client.post("/account/providers/oidc/go")

    assert requested.headers["Location"].startswith("/account/reauthenticate/")


@pytest.mark.usefixtures("server")
def test_only_the_owner_can_disconnect(alice_in, bob_client) -> None:
    go_there_and_back(alice_in)
    address = f"/account/providers/{SocialAccount.objects.get().pk}/remove"

    bob_client.post(address)
    assert SocialAccount.objects.exists()
    alice_in.post(address)

    assert not SocialAccount.objects.exists()
    assert "not connected" in go_there_and_back(PageClient())


@pytest.mark.usefixtures("server")
def test_an_unsolicited_response_does_not_sign_in() -> None:
    forged = {"code": "given", "state": "made-up"}

    page = PageClient().get("/account/providers/oidc/back", forged)

    assert page.status_code == 401


def test_a_provider_out_of_reach_is_named(server):
    server.server_close()

    page = PageClient().post("/account/providers/oidc/go")

    assert page.status_code == 502
    assert "connection failed" in page.text


def test_unconfigured_providers_are_not_found():
    for key in ("oidc", "github", "google", "other"):
        assert PageClient().post(f"/account/providers/{key}/go").status_code == 404


def test_an_incomplete_configuration_names_the_missing_variable(monkeypatch):
    monkeypatch.setenv("COHORT_GITHUB_ID", "cohort")

    with pytest.raises(ValueError, match="GITHUB_SECRET"):
        read_environment()


def test_github_is_set_up_by_two_values(monkeypatch):
    monkeypatch.setenv("COHORT_GITHUB_ID", "cohort")
    monkeypatch.setenv("COHORT_GITHUB_SECRET", "quiet")

    (github,) = read_environment().sign_in_providers

    assert (github.key, github.name) == ("github", "GitHub")
    assert "quiet" not in repr(github)
    assert provider_settings([github])["github"]["APPS"][0]["secret"] == "quiet"
