"""Former members cannot return with old invitations or tokens."""

from collections.abc import Callable

import pytest

from dashboard.accounts.members import (
    change_role,
    deactivate,
    invite,
    leave,
    open_invitations,
    reactivate,
    remove_member,
)
from dashboard.accounts.models import Membership, Role, User
from dashboard.api.models import ApiToken
from dashboard.operations.personal_data import erase
from tests.dashboard.api.asking import Program, make_token
from tests.dashboard.api.conftest import no_limits as no_limits
from tests.page_client import PageClient

SIGN_UP = {
    "username": "dora",
    "display_name": "",
    "email": "",
    "password1": "correct horse battery",
    "password2": "correct horse battery",
}
Act = Callable[[Membership, Membership], object]
WAYS: dict[str, Act] = {
    "removed": lambda by, admin: remove_member(by=by, member=admin),
    "gone": lambda by, admin: leave(admin),
    "no admin any more": lambda by, admin: change_role(by=by, of=admin, role="member"),
    "deactivated": lambda by, admin: deactivate(by=by, member=admin),
    "erased": lambda by, admin: erase(admin.user),
}


@pytest.fixture
def owner(alice) -> Membership:
    return alice.memberships.get()


@pytest.fixture
def admin(team) -> Membership:
    user = User.objects.create_user("mallory")
    return Membership.objects.create(team=team, user=user, role=Role.ADMIN)


@pytest.mark.parametrize("way", WAYS)
def test_invitations_of_a_former_admin_are_invalid(
    way, owner, admin, charlie_client, team
):
    address = f"/invitation/{invite(by=admin, role='admin')[1]}/"
    assert PageClient().get(address).status_code == 200

    WAYS[way](owner, admin)

    assert PageClient().get(address).status_code == 410
    assert PageClient().post(address, SIGN_UP).status_code == 410
    assert charlie_client.post(address).status_code == 410
    assert not User.objects.filter(username="dora").exists()
    assert not team.members.filter(username="charlie").exists()
    assert not open_invitations(team).exists()


def test_invitations_of_other_admins_stay_valid(owner, admin):
    address = f"/invitation/{invite(by=owner, role='viewer')[1]}/"

    remove_member(by=owner, member=admin)

    assert PageClient().post(address, SIGN_UP).status_code == 302


@pytest.mark.parametrize("way", ["removed", "gone"])
def test_tokens_are_revoked_with_the_membership_for_good(way, owner, admin, team):
    program = Program(make_token(admin.user, "write"))
    kept = Program(make_token(owner.user, "read"))
    assert program.get("/me").status_code == 200

    WAYS[way](owner, admin)
    Membership.objects.create(team=team, user=admin.user, role=Role.VIEWER)

    assert program.get("/me").status_code == 401
    assert ApiToken.objects.get(user=admin.user).state == "revoked"
    assert kept.get("/me").status_code == 200


def test_tokens_of_a_deactivated_person_are_shown_as_suspended(
    owner, admin, alice_client
):
    program = Program(make_token(admin.user, "write"))

    deactivate(by=owner, member=admin)

    assert program.get("/me").status_code == 401
    page = alice_client.get("/alpha/tokens/").text
    assert "suspended" in page
    assert "mallory is deactivated" in page
    listed = Program(make_token(owner.user, "admin")).get("/tokens").json()["items"]
    assert [one["state"] for one in listed] == ["active", "suspended"]
    reactivate(by=owner, member=admin)
    assert program.get("/me").status_code == 200
    assert "suspended" not in alice_client.get("/alpha/tokens/").text
