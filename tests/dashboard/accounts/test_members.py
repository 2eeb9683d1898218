"""Who is in a team, and as what: changed by whom the table of rights allows."""

import pytest
from django.contrib.sessions.models import Session
from django.core.management import call_command

from dashboard.accounts.access import RIGHTS
from dashboard.accounts.members import (
    change_role,
    deactivate,
    leave,
    reactivate,
    remove_member,
    transfer_ownership,
)
from dashboard.accounts.models import AuditEntry, Membership, Role, Team, User
from dashboard.project.errors import UserError

pytestmark = pytest.mark.django_db


def place(user: User) -> Membership:
    return Membership.objects.select_related("team", "user").get(user=user)


def join(team: Team, name: str, role: Role) -> Membership:
    user = User.objects.create_user(name)
    return Membership.objects.create(team=team, user=user, role=role)


def entries() -> list[tuple[str, str]]:
    found = AuditEntry.objects.order_by("pk")
    return [(entry.verb, entry.detail["username"]) for entry in found]


def test_an_owner_gives_every_role(alice, bob):
    for role in ("member", "admin", "owner", "viewer"):
        change_role(by=place(alice), of=place(bob), role=role)

        assert place(bob).role == role
    assert entries() == [("member.role_changed", "bob")] * 4
    detail = AuditEntry.objects.latest("pk").detail
    assert (detail["before"], detail["after"]) == ("owner", "viewer")


def test_an_unchanged_role_has_no_entry(alice, bob):
    change_role(by=place(alice), of=place(bob), role="viewer")

    assert entries() == []


@pytest.mark.parametrize(
    ("of", "role"), [("bob", "owner"), ("alice", "member"), ("alice", "admin")]
)
def test_an_admin_can_neither_add_nor_remove_owners(of, role, team, alice, bob):
    admin = join(team, "ann", Role.ADMIN)
    join(team, "otto", Role.OWNER)

    with pytest.raises(UserError) as raised:
        change_role(by=admin, of=place(User.objects.get(username=of)), role=role)
    assert raised.value.code == "members.role_too_low"


def test_an_admin_can_remove_all_but_owners(team, alice, bob):
    admin = join(team, "ann", Role.ADMIN)

    remove_member(by=admin, member=place(bob))
    with pytest.raises(UserError) as raised:
        remove_member(by=admin, member=place(alice))
    assert raised.value.code == "members.role_too_low"

    assert set(team.members.values_list("username", flat=True)) == {"alice", "ann"}
    assert entries() == [("member.removed", "bob")]


def test_the_last_owner_cannot_leave_or_change_role(team, alice):
    owner = place(alice)
    join(team, "ann", Role.ADMIN)

    for act in (
        lambda: leave(owner),
        lambda: change_role(by=owner, of=owner, role="admin"),
        lambda: remove_member(by=owner, member=owner),
    ):
        with pytest.raises(UserError) as raised:
            act()
        assert raised.value.code == "members.last_owner"

    assert place(alice).role == "owner"


def test_a_deactivated_owner_does_not_count(team, alice):
    gone = join(team, "otto", Role.OWNER)
    User.objects.filter(pk=gone.user_id).update(is_active=False)

    with pytest.raises(UserError) as raised:
        leave(place(alice))
    assert raised.value.code == "members.last_owner"


def test_an_owner_leaves_if_another_remains(team, alice):
    join(team, "otto", Role.OWNER)

    leave(place(alice))

    assert not alice.memberships.exists()
    assert entries() == [("member.left", "alice")]


def test_the_ownership_is_transferred(alice, bob):
    transfer_ownership(by=place(alice), to=place(bob))

    assert (place(alice).role, place(bob).role) == ("admin", "owner")
    assert entries() == [("team.transferred", "bob")]
    with pytest.raises(UserError) as raised:
        transfer_ownership(by=place(alice), to=place(bob))
    assert raised.value.code == "members.not_owner"


def test_a_removed_member_cannot_be_changed(alice, bob):
    gone = place(bob)
    gone_pk = gone.pk
    Membership.objects.filter(pk=gone_pk).delete()

    with pytest.raises(UserError) as raised:
        change_role(by=place(alice), of=gone, role="admin")
    assert raised.value.code == "members.left_team"


def test_deactivation_ends_only_that_persons_sessions(
    alice, bob, alice_client, bob_client
):
    deactivate(by=place(alice), member=place(bob))

    bob.refresh_from_db()
    assert not bob.is_active
    assert Session.objects.count() == 1
    assert bob_client.get("/alpha/settings").status_code == 302
    assert alice_client.get("/alpha/settings").status_code == 200

    reactivate(by=place(alice), member=place(bob))

    bob.refresh_from_db()
    assert bob.is_active
    assert bob_client.get("/alpha/settings").status_code == 302  # signs in again
    assert entries() == [
        ("person.deactivated", "bob"),
        ("person.reactivated", "bob"),
    ]


def test_deactivation_requires_owning_all_teams(alice, bob):
    elsewhere = Team.objects.create(slug="beta", name="Beta")
    Membership.objects.create(team=elsewhere, user=bob, role=Role.VIEWER)

    with pytest.raises(UserError) as raised:
        deactivate(by=place(alice), member=bob.memberships.get(team__slug="alpha"))
    assert raised.value.code == "members.in_other_teams"

    bob.refresh_from_db()
    assert bob.is_active


def test_deactivating_yourself_is_rejected(alice):
    with pytest.raises(UserError) as raised:
        deactivate(by=place(alice), member=place(alice))
    assert raised.value.code == "members.own_account"


def test_the_command_deactivates_any_user(bob, bob_client, capsys):
    call_command("deactivate", "bob")

    assert capsys.readouterr().out == "bob is deactivated.\n"
    assert bob_client.get("/alpha/settings").status_code == 302
    assert AuditEntry.objects.get().actor is None

    call_command("deactivate", "bob", "--undo")

    bob.refresh_from_db()
    assert bob.is_active


def test_each_right_belongs_to_a_role_and_all_above():
    for right in RIGHTS:
        held = [is_held for _, is_held in right.held]

        assert held == sorted(held)
        assert held[-1]
