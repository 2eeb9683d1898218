"""Exports contain no credentials and no signing keys."""

from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import TOTP
from django.conf import settings

from dashboard.accounts.members import invite
from dashboard.accounts.models import Invitation, Membership, SignInLink, User
from dashboard.accounts.services import create_sign_in_link
from dashboard.alerts.messages import signing_secret
from dashboard.alerts.services import add_channel
from dashboard.api.models import ApiToken
from tests.dashboard.api.asking import Program, make_token

SEED = "JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP"
HOOK = "https://hooks.example.org/services/T0/B0/quiet-part"


@pytest.fixture
def secrets(alice, team, alice_client) -> dict[str, str]:
    alice.set_password("correct horse battery")
    alice.save()
    alice_client.force_login(alice)
    TOTP.activate(alice, SEED)
    codes = RecoveryCodes.activate(alice)
    place = Membership.objects.get(user=alice)
    channel = add_channel(
        team=team, user=alice, kind="webhook", address=HOOK, events=["alert.fired"]
    )
    found = {
        "password": alice.password,
        "session": alice_client.session.session_key or "",
        "seed": SEED,
        "recovery code": codes.get_unused_codes()[0],
        "recovery seed": codes.instance.data["seed"],
        "kept seed": Authenticator.objects.get(type="totp").data["secret"],
        "invitation": invite(by=place, role="viewer", email="d@example.org")[1],
        "link": create_sign_in_link(alice),
        "token": make_token(alice, "admin", name="nightly"),
        "hook": HOOK.rpartition("/")[2],
        "signing secret": signing_secret(channel),
        "nonce": str(channel.nonce),
        "server's key": settings.SECRET_KEY,
    }
    for model in (Invitation, SignInLink, ApiToken):
        found[f"hash of {model.__name__}"] = model._default_manager.get().token_sha256
    assert all(len(secret) > 7 for secret in found.values())
    return found


def read(answer: Any) -> str:
    assert answer.status_code == 200, answer
    return b"".join(answer).decode("utf-8-sig")


def test_exports_contain_no_credentials(secrets, alice, alice_client):
    program = Program(secrets["token"])
    User.objects.filter(pk=alice.pk).update(is_staff=True)
    taken = {
        "my data": alice_client.get("/account/data/download"),
        "log.jsonl": alice_client.get("/alpha/audit-log/jsonl"),
        "log.csv": alice_client.get("/alpha/audit-log/csv"),
        "log": alice_client.get("/alpha/audit-log/"),
        "tokens": program.get("/tokens"),
        "me": program.get("/me"),
        "account": alice_client.get("/account/"),
        "settings": alice_client.get("/alpha/settings"),
        "tokens' page": alice_client.get("/alpha/tokens/"),
        "channels": alice_client.get("/alpha/settings/notifications/"),
        "admin": alice_client.get(f"/admin/accounts/user/{alice.pk}/change/"),
        "admin's log": alice_client.get("/admin/accounts/auditentry/"),
    }

    for what, answer in taken.items():
        text = read(answer)
        assert "alice" in text.lower() or what == "channels", what
        found = [name for name, secret in secrets.items() if secret in text]
        assert not found, (what, found)
