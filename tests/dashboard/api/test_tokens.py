"""A token lets its person's program in, as far as scope and role allow."""

from datetime import timedelta

import pytest
from django.utils import timezone

from dashboard.accounts.models import AuditEntry, Membership, Role
from dashboard.api.auth import create_token, revoke_token
from dashboard.api.models import ApiToken
from dashboard.project.errors import UserError
from tests.dashboard.api.asking import Program, make_token, token_of


def test_me_returns_the_tokens_owner(alice):
    found = Program(make_token(alice, "write")).get("/me")

    assert found.status_code == 200
    body = found.json()
    assert body["person"] == {"username": "alice", "name": "Alice"}
    assert body["team"] == {"slug": "alpha", "name": "Alpha"}
    assert body["scopes"] == ["read", "write"]


def test_only_the_hash_of_a_token_is_kept(alice):
    text = make_token(alice)

    kept = str(list(ApiToken.objects.values())) + str(list(AuditEntry.objects.values()))
    assert text.startswith("cohort_")
    assert text not in kept
    assert text[:-4] not in kept


def test_without_a_valid_token_the_response_shows_how_to_get_one(alice):
    for header in [
        "",
        "Bearer",
        "Bearer cohort_made-up",
        "Basic YTpi",
        "Bearer \x00",
        "x",
    ]:
        program = Program()
        program.headers = {"Authorization": header}

        found = program.get("/me")

        assert found.status_code == 401, header
        assert found["Content-Type"] == "application/problem+json", header
        assert found["WWW-Authenticate"].startswith("Bearer"), header
        assert "API tokens" in found.json()["detail"], header


def test_a_cookie_does_not_authenticate(alice):
    program = Program()
    program.client.force_login(alice)

    assert program.get("/me").status_code == 401


def test_an_expired_token_is_rejected(alice):
    text = make_token(alice, expires_at=timezone.now() + timedelta(hours=1))
    assert Program(text).get("/me").status_code == 200

    ApiToken.objects.update(expires_at=timezone.now())

    assert Program(text).get("/me").status_code == 401


def test_a_revoked_token_is_rejected(alice):
    text = make_token(alice)

    assert revoke_token(token=token_of(text), user=alice)

    assert Program(text).get("/me").status_code == 401
    assert not revoke_token(token=token_of(text), user=alice)
    verbs = AuditEntry.objects.order_by("pk").values_list("verb", flat=True)
    assert list(verbs) == ["token.created", "token.revoked"]


def test_a_token_ends_with_its_persons_place_in_the_team(alice):
    text = make_token(alice)

    Membership.objects.filter(user=alice).delete()

    assert Program(text).get("/me").status_code == 401


def test_a_viewer_makes_no_token_that_writes(bob):
    with pytest.raises(UserError) as raised:
        make_token(bob, "write")
    assert raised.value.code == "tokens.scope_not_allowed"

    assert not ApiToken.objects.exists()


def test_a_token_loses_scopes_with_its_owners_role(alice):
    program = Program(make_token(alice, "admin"))
    assert program.get("/tokens").status_code == 200

    Membership.objects.update(role=Role.MEMBER)

    refused = program.get("/tokens")
    assert refused.status_code == 403
    assert "is member" in refused.json()["detail"]
    assert program.get("/me").json()["scopes"] == ["ingest", "read", "write"]


def test_the_refusal_of_a_scope_names_both(alice):
    refused = Program(make_token(alice, "read", name="nightly")).get("/tokens")

    assert refused.status_code == 403
    assert "scope admin" in refused.json()["detail"]
    assert "nightly" in refused.json()["detail"]


def test_the_last_use_is_noted_once_a_minute(alice):
    text = make_token(alice)
    program = Program(text)

    program.get("/me")
    first = token_of(text).last_used_at
    program.get("/me")

    assert first is not None
    assert token_of(text).last_used_at == first
    ApiToken.objects.update(last_used_at=first - timedelta(minutes=2))
    program.get("/me")
    assert token_of(text).last_used_at != first - timedelta(minutes=2)


def test_tokens_of_a_person_are_limited(alice, monkeypatch):
    monkeypatch.setattr("dashboard.api.auth.MAX_TOKENS", 1)
    make_token(alice)

    with pytest.raises(UserError) as raised:
        make_token(alice)
    assert raised.value.code == "tokens.too_many"


def test_admins_list_and_revoke_everybodys(alice, bob):
    text = make_token(bob)
    program = Program(make_token(alice, "admin"))

    listed = program.get("/tokens").json()
    revoked = program.delete(f"/tokens/{token_of(text).pk}")

    assert [each["person"]["username"] for each in listed["items"]] == ["alice", "bob"]
    assert listed["total"] == 2
    assert revoked.json() == {"done": True, "detail": ""}
    assert Program(text).get("/me").status_code == 401


def test_another_teams_token_is_not_found(alice, charlie):
    theirs = token_of(make_token(charlie))

    found = Program(make_token(alice, "admin")).delete(f"/tokens/{theirs.pk}")

    assert found.status_code == 404
    theirs.refresh_from_db()
    assert theirs.revoked_at is None


def test_a_token_needs_a_scope(alice):
    from django.db import IntegrityError

    membership = Membership.objects.get(user=alice)
    with pytest.raises(IntegrityError):
        create_token(membership=membership, name="x", scopes=[], expires_at=None)
