"""A person's data can be had, and taken out of the server."""

import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from dashboard.accounts.models import AuditEntry, Membership, Role, User
from dashboard.accounts.services import record
from dashboard.completions.models import Comment
from dashboard.operations.personal_data import erase, export_of
from dashboard.runs.models import Run, RunStar, SavedView
from tests.dashboard.completions.factories import make_group, make_run

PASSWORD = "a long enough secret"


@pytest.fixture
def bobs(team, alice, bob) -> Run:
    """A run of Bob's with his words on it; Alice owns the team."""
    run = make_run(team, owner=bob)
    group = make_group(run)
    Comment.objects.create(group=group, position=0, user=bob, text="Bob's words")
    RunStar.objects.create(run=run, user=bob)
    SavedView.objects.create(team=team, owner=bob, name="Bob's view", query="q=1")
    record(team, bob, "run.renamed", run, name="first")
    bob.set_password(PASSWORD)
    bob.email = "bob@example.org"
    bob.save()
    return run


def test_the_file_has_all_that_names_the_person_and_no_secret(bobs, bob_client, bob):
    answer = bob_client.get("/account/data/download")

    assert answer.headers["Content-Disposition"].startswith("attachment")
    assert "no-store" in answer.headers["Cache-Control"]
    body = json.loads(answer.content)
    assert body["person"]["email"] == "bob@example.org"
    assert body["rows"]["samples.Comment.user"][0]["text"] == "Bob's words"
    assert body["rows"]["runs.Run.owner"] == [{"id": bobs.pk, "what": bobs.name}]
    assert body["rows"]["runs.SavedView.owner"][0]["query"] == "q=1"
    assert body["rows"]["accounts.AuditEntry.actor"][0]["verb"] == "run.renamed"
    assert bob.password not in answer.text
    assert "alice" not in answer.text.lower()


def test_every_reference_to_a_person_is_in_the_file(bobs, bob):
    RunStar.objects.all().delete()
    before = export_of(bob)["rows"].keys()
    Run.objects.update(locked_by=bob)

    [added] = export_of(bob)["rows"].keys() - before
    assert added == "runs.Run.locked_by"


def test_a_confirmed_account_is_erased_and_the_team_keeps_its_data(
    bobs, bob_client, team
):
    requested = bob_client.post("/account/data/", {"username": "bob"})
    given = {"password": PASSWORD, "next": "/account/data/"}
    answer = bob_client.post(requested.headers["Location"], given)

    assert answer.headers["Location"] == "/sign-in/"
    assert bob_client.get("/account/data/").status_code == 302
    assert not User.objects.filter(username="bob").exists()
    assert not RunStar.objects.exists()
    bobs.refresh_from_db()
    assert bobs.owner is None
    assert Comment.objects.get().user is None
    entries = AuditEntry.objects.filter(team=team).order_by("pk")
    verbs = list(entries.values_list("verb", "actor"))
    assert verbs == [("run.renamed", None), ("team.member_erased", None)]


def test_a_wrong_username_deletes_nothing(bobs, bob_client):
    for typed in ("", "alice", "Bob"):
        page = bob_client.post("/account/data/", {"username": typed})

        assert page.status_code == 422, typed
    assert User.objects.filter(username="bob").exists()


def test_the_last_owner_of_a_team_stays(alice_client, alice):
    page = alice_client.post("/account/data/", {"username": "alice"})

    assert page.status_code == 422
    assert "owner of Alpha" in page.text
    team = alice.teams.get()
    other = User.objects.create_user("dora")
    Membership.objects.create(team=team, user=other, role=Role.OWNER)

    erase(alice)

    assert not User.objects.filter(username="alice").exists()


def test_an_operator_does_both_by_commands(bobs, tmp_path):
    file, message = tmp_path / "bob.json", StringIO()

    call_command("export_person", "bob", str(file), stdout=message)
    call_command("erase_person", "bob", stdout=message)

    assert json.loads(file.read_text())["person"]["username"] == "bob"
    assert file.stat().st_mode & 0o777 == 0o600
    assert "1 audit entries" in message.getvalue()
    assert User.objects.filter(username="bob").exists()
    with pytest.raises(CommandError, match="Alpha"):
        call_command("erase_person", "alice", "--yes")
    with pytest.raises(CommandError, match="'zoe' not found"):
        call_command("export_person", "zoe", str(file))
    call_command("erase_person", "bob", "--yes", stdout=message)
    assert not User.objects.filter(username="bob").exists()
