"""The team by the API: its people, queue, workers and tokens."""

import json
from typing import Any

import pytest
from django.core import mail

from dashboard.accounts.members import accept, find_invitation
from dashboard.accounts.models import (
    AuditEntry,
    Invitation,
    Membership,
    Role,
    User,
)
from dashboard.api.models import Replay
from dashboard.supervision.lease import claim_run
from tests.dashboard.api.asking import Program, make_token, token_of
from tests.dashboard.completions.factories import RULES, make_recipe, make_run
from tests.dashboard.supervision.machines import make_worker


@pytest.fixture
def program(alice) -> Program:
    return Program(make_token(alice, "admin"))


@pytest.fixture
def member(team) -> Membership:
    user = User.objects.create_user("dora")
    return Membership.objects.create(team=team, user=user, role=Role.MEMBER)


def verbs() -> list[str]:
    made = AuditEntry.objects.exclude(verb="token.created").order_by("pk")
    return list(made.values_list("verb", flat=True))


def test_members_are_listed_given_roles_and_removed(program, member):
    address = f"/members/{member.pk}"

    listed = program.get("/members").json()["items"]
    changed = program.patch(address, {"role": "admin"}).json()
    gone = program.delete(address).json()

    assert [each["person"]["username"] for each in listed] == ["alice", "dora"]
    assert changed["role"] == "admin"
    assert gone["done"] is True
    assert program.delete(address).status_code == 404
    assert verbs() == ["member.role_changed", "member.removed"]


def test_an_admin_cannot_add_owners_or_deactivate(team, member, alice):
    Membership.objects.filter(pk=member.pk).update(role=Role.ADMIN)
    program = Program(make_token(member.user, "admin"))
    owner = Membership.objects.get(team=team, user=alice)

    demoted = program.patch(f"/members/{owner.pk}", {"role": "viewer"})
    removed = program.delete(f"/members/{owner.pk}")
    off = program.patch(f"/members/{owner.pk}", {"is_active": False})

    statuses = [each.status_code for each in (demoted, removed, off)]
    assert statuses == [409, 409, 403]
    assert "Only owners" in off.json()["detail"]


def test_a_deactivated_person_has_no_access(program, member):
    theirs = Program(make_token(member.user, "write"))
    address = f"/members/{member.pk}"

    assert program.patch(address, {"is_active": False}).json()["is_active"] is False
    assert theirs.get("/me").status_code == 401

    assert program.patch(address, {"is_active": True}).json()["is_active"] is True
    assert theirs.get("/me").status_code == 200


def test_an_invitation_shows_its_address_once_and_works(program, team):
    key = {"Idempotency-Key": "i1"}
    requested = {"role": "member", "email": "eve@example.org"}

    answers: list[Any] = [
        program.ask("POST", "/invitations", requested, **key) for _ in range(2)
    ]

    first, second = (each.json() for each in answers)
    assert [each.status_code for each in answers] == [201, 201], answers[0].text
    token = first["address"].rstrip("/").rpartition("/")[2]
    assert second == first | {"address": None}
    assert token not in json.dumps(list(Replay.objects.values_list("body", flat=True)))
    assert find_invitation(token)
    assert first["is_sent"] is bool(mail.outbox)
    assert accept(token, User.objects.create_user("eve"))
    assert program.get("/invitations").json()["items"] == []


def test_an_invitation_is_revoked(program):
    made = program.post("/invitations", {"role": "viewer"}).json()
    address = f"/invitations/{made['id']}"

    values = [program.delete(address).json()["done"] for _ in range(2)]

    assert values == [True, False]
    assert Invitation.objects.get().revoked_at
    wrong = program.post("/invitations", {"role": "viewer", "email": "nobody"})
    assert wrong.json()["errors"][0]["field"] == "body.email"


def test_the_queue_is_read_and_its_order_changed(program, team):
    waiting = {"state": "queued", "finished_at": None, "started_at": None}
    first, second = make_run(team, "a", **waiting), make_run(team, "b", **waiting)

    moved = program.patch(f"/queue/{second.pk}", {"priority": "high"}).json()
    again = program.patch(f"/queue/{second.pk}", {"priority": "high"}).json()
    held = program.patch(f"/queue/{second.pk}", {"is_on_hold": True}).json()
    line = program.get("/queue").json()
    freed = program.patch(f"/queue/{second.pk}", {"is_on_hold": False}).json()
    raised = program.patch(f"/queue/{first.pk}", {"priority": "high"}).json()
    after = program.get("/queue").json()["items"]

    done = [each["done"] for each in (moved, again, held, freed, raised)]
    assert done == [True, False, True, True, True]
    assert [each["name"] for each in line["items"]] == ["b", "a"]
    assert line["items"][0]["is_on_hold"] is True
    assert line["items"][0]["sentence"].startswith("On hold")
    assert [(each["name"], each["priority"]) for each in after] == [
        ("a", "high"),
        ("b", "high"),
    ]


def test_a_token_revokes_itself(program, bob):
    text = make_token(bob, name="bob's")
    theirs = Program(text)

    gone = theirs.delete("/me/token").json()

    assert gone["done"] is True
    assert theirs.get("/me").status_code == 401
    listed = program.get("/tokens").json()["items"]
    (seen,) = (one for one in listed if one["id"] == token_of(text).pk)
    assert (seen["person"]["username"], seen["state"]) == ("bob", "revoked")


def test_workers_list_the_teams_runs(program, team):
    worker = make_worker()
    run = make_run(team, state="queued", started_at=None, finished_at=None)
    claim_run(run.pk, worker.name)

    (one,) = program.get("/workers").json()["items"]
    address = f"/workers/{worker.pk}"
    drained = [program.patch(address, {"is_drained": True}).json() for _ in range(2)]

    assert (one["status"], one["run_ids"], one["num_foreign_runs"]) == (
        "busy",
        [run.pk],
        0,
    )
    assert [each["done"] for each in drained] == [True, False]
    assert program.get("/workers").json()["items"][0]["is_drained"] is True


def test_a_recipe_version_is_read(program, team):
    version = make_recipe(team, rules=RULES)
    found = program.get(f"/recipe-versions/{version.pk}").json()
    kinds = {each["kind"]: each for each in program.get("/rule-kinds").json()["items"]}
    first = version.spec["rules"][0]["name"]

    assert found["recipe_id"] == version.recipe_id
    assert first in found["formula"]
    assert kinds[version.spec["rules"][0]["kind"]]["params"]["type"] == "object"
