"""What is done to one run or to many: to which it was done, and why not to others."""

import re
from collections.abc import Sequence

import pytest
from django.db import IntegrityError, connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from dashboard.accounts.models import AuditEntry, Membership, Role
from dashboard.runs.models import Run, RunStar
from tests.dashboard.completions.factories import make_checkpoint
from tests.dashboard.runs.table.rows import make_runs


@pytest.fixture
def runs(team, alice) -> dict[str, Run]:
    return make_runs(team, alice)


def do(
    client: Client, action: str, runs: Sequence[Run] = (), **fields: str
) -> tuple[int, str]:
    """The number of changed runs, and the message or error code."""
    data = {"action": action, "runs": [run.pk for run in runs], **fields}
    body = client.post(
        "/alpha/runs/act", data, headers={"accept": "application/json"}
    ).json()
    return body.get("done", 0), body.get("message") or body["code"]


def tags(run: Run) -> list[str]:
    run.refresh_from_db()
    return run.tags


def test_selected_runs_are_tagged_and_untagged(alice_client, runs):
    amber, brave, calm, _ = runs.values()

    num, _ = do(alice_client, "tag", [amber, calm], tag="  new   seed ")

    assert num == 2
    assert tags(amber) == ["baseline", "long run", "new seed"]
    assert tags(calm) == ["new seed"]
    num, message = do(alice_client, "tag", [calm, brave], tag="baseline")
    assert num == 1
    assert f"brave (#{brave.pk})" in message
    assert do(alice_client, "untag", [amber], tag="new seed")[0] == 1
    assert tags(amber) == ["baseline", "long run"]
    entries = AuditEntry.objects.filter(verb="run.tagged", detail={"tag": "new seed"})
    assert sorted(entries.values_list("object_id", flat=True)) == [amber.pk, calm.pk]


def test_an_invalid_tag_is_refused(alice_client, runs):
    for tag, code in (
        ("", "tag_missing"),
        ("a,b", "bad_tag"),
        ("a" * 41, "tag_too_long"),
    ):
        refused = do(alice_client, "tag", [runs["calm"]], tag=tag)

        assert refused == (0, f"runs.{code}"), tag
    assert tags(runs["calm"]) == []


def test_a_star_belongs_to_one_user(alice_client, bob_client, runs, bob):
    do(alice_client, "star", [runs["amber"], runs["brave"]])
    do(bob_client, "star", [runs["brave"]])  # a viewer's too
    do(alice_client, "unstar", [runs["brave"]])

    stars = RunStar.objects.values_list("user__username", "run__name")
    assert set(stars) == {("alice", "amber"), ("bob", "brave")}
    assert do(alice_client, "star", [runs["amber"]])[0] == 0


def test_the_page_shows_the_message_of_the_json_response(alice_client, runs):
    levels = []
    for names, level in ((("calm",), "success"), (("calm", "deft"), "warning")):
        data = {"action": "star", "runs": [runs[name].pk for name in names]}
        answer = alice_client.post("/alpha/runs/act", data, follow=True)
        (message,) = answer.context["messages"]
        levels.append((message.level_tag, level))
        assert str(message) in answer.text

    assert [found for found, _ in levels] == [level for _, level in levels]
    # A row's own button.
    assert do(alice_client, "", star=str(runs["brave"].pk))[0] == 1


def test_a_locked_run_does_not_change(alice_client, runs, alice):
    amber = runs["amber"]
    assert do(alice_client, "lock", [amber])[0] == 1

    for action, tag in (
        ("lock", ""),
        ("tag", "x"),
        ("untag", "baseline"),
        ("archive", ""),
        ("trash", ""),
    ):
        num, message = do(alice_client, action, [amber], tag=tag)
        assert (num, "Alice" in message) == (0, True), action
    page = f"/alpha/runs/{amber.pk}/"
    answer = alice_client.post(page + "change/", {"num_steps": "500"}, follow=True)
    (refusal,) = answer.context["messages"]
    assert (refusal.level_tag, "Alice" in refusal.message) == ("error", True)
    described = {"name": "other", "notes": "", "tags": ""}
    answer = alice_client.post(page + "describe", described)
    assert (answer.status_code, "Alice" in answer.context["refusal"]) == (422, True)
    amber.refresh_from_db()
    assert (amber.name, amber.num_steps, amber.archived_at) == ("amber", 100, None)

    assert do(alice_client, "unlock", [amber])[0] == 1
    assert do(alice_client, "archive", [amber])[0] == 1


def test_a_lock_protects_checkpoints(alice_client, runs, alice):
    amber = runs["amber"]
    Run.objects.filter(pk=amber.pk).update(locked_at=timezone.now(), locked_by=alice)
    make_checkpoint(amber, pinned_at=timezone.now())
    for action in ("delete", "unpin"):
        address = f"/alpha/runs/{amber.pk}/checkpoints/step-000001-attempt-1/{action}"

        (message,) = alice_client.post(address, follow=True).context["messages"]

        assert (message.level_tag, "Alice" in message.message) == ("error", True), (
            action
        )
    kept = amber.checkpoints.get()
    assert kept.pinned_at is not None
    assert kept.deleted_at is None


def test_active_runs_cannot_be_archived_or_trashed(alice_client, runs):
    brave, calm = runs["brave"], runs["calm"]

    num, message = do(alice_client, "trash", list(runs.values()))

    assert num == 2
    assert f"brave (#{brave.pk}) is running;" in message
    assert f"calm (#{calm.pk}) is queued;" in message
    assert do(alice_client, "archive", [brave, calm])[0] == 0
    with pytest.raises(IntegrityError), transaction.atomic():
        Run.objects.filter(pk=brave.pk).update(trashed_at=timezone.now())


def test_archived_runs_leave_the_list_until_unarchived(alice_client, runs):
    do(alice_client, "archive", [runs["amber"]])
    page = alice_client.get("/alpha/runs/").text
    assert f"/alpha/runs/{runs['amber'].pk}/" not in page
    assert 'Archived (<span class="number">1</span>)' in page

    num, _ = do(alice_client, "unarchive", [runs["amber"]])

    assert num == 1
    assert f"/alpha/runs/{runs['amber'].pk}/" in alice_client.get("/alpha/runs/").text


def test_extending_an_archived_run_unarchives_it(alice_client, runs):
    amber = runs["amber"]
    do(alice_client, "archive", [amber])
    make_checkpoint(amber, 100)

    alice_client.post(f"/alpha/runs/{amber.pk}/change/", {"num_steps": "200"})

    amber.refresh_from_db()
    assert (amber.state, amber.archived_at) == ("queued", None)


def test_runs_are_stopped_together(alice_client, runs):
    num, message = do(alice_client, "stop", list(runs.values()))

    assert num == 2
    assert f"amber (#{runs['amber'].pk})" in message
    states = Run.objects.order_by("pk").values_list("state", flat=True)
    assert list(states) == ["finished", "stopping", "stopped", "failed"]


def test_all_acts_on_matching_runs_only(alice_client, runs):
    address = "q=tag%3Abaseline&cols=state"

    num, _ = do(alice_client, "tag", all="2", address=address, tag="seen")

    assert num == 2
    seen = Run.objects.filter(tags__contains=["seen"]).values_list("name", flat=True)
    assert sorted(seen) == ["amber", "brave"]


def test_the_message_names_five_refused_runs_and_counts_the_rest(
    alice_client, team, runs
):
    first = runs["calm"]
    for number in range(6):
        first.pk, first.name = None, f"calm-{number}"
        first.save()

    num, message = do(alice_client, "archive", all="9", address="q=calm")

    assert num == 0
    assert message.count("(#") == 5
    assert "2 more" in message


def test_the_parent_of_a_queued_fork_cannot_be_trashed(alice_client, runs):
    Run.objects.filter(name="calm").update(
        forked_from=runs["amber"], fork_step=1, fork_checkpoint="a", fork_sha256="b"
    )

    num, message = do(alice_client, "trash", [runs["amber"]])

    assert (num, " calm," in message) == (0, True)


def test_an_action_without_selection_is_refused(alice_client, runs):
    assert do(alice_client, "lock") == (0, "runs.none_selected")
    (message,) = alice_client.post(
        "/alpha/runs/act", {"action": "lock"}, follow=True
    ).context["messages"]
    assert message.level_tag == "error"


def test_runs_of_another_team_do_not_change(charlie_client, runs):
    data = {"action": "tag", "tag": "mine", "runs": [runs["amber"].pk]}

    charlie_client.post("/other/runs/act", data)
    charlie_client.post("/other/runs/act", {"action": "tag", "tag": "mine", "all": "1"})

    assert not Run.objects.filter(tags__contains=["mine"]).exists()


def test_a_viewer_compares_and_exports(bob_client, runs):
    ids = [runs["amber"].pk, runs["brave"].pk]

    compared = bob_client.post("/alpha/runs/act", {"action": "compare", "runs": ids})
    exported = bob_client.post("/alpha/runs/act", {"action": "export", "all": "4"})
    refused = bob_client.post("/alpha/runs/act", {"action": "lock", "runs": ids})

    assert compared["Location"].endswith(f"?runs={ids[0]},{ids[1]}")
    newest_first = [run.pk for run in reversed(runs.values())]
    assert exported.text.split() == [str(pk) for pk in newest_first]
    assert exported["Content-Disposition"].endswith('"alpha-runs.txt"')
    assert refused.status_code == 403


def test_many_runs_cost_no_more_queries_than_few(alice_client, team, runs):
    copies = [Run(**_fields(runs["amber"]), name=f"copy-{n}") for n in range(60)]
    Run.objects.bulk_create(copies)
    alice_client.get("/alpha/")

    def count(**fields: str) -> int:
        with CaptureQueriesContext(connection) as queries:
            alice_client.post("/alpha/runs/act", {"action": "trash", **fields})
        return len(queries)

    few = count(runs=str(runs["amber"].pk))
    many = count(all="60", address="q=copy")

    assert Run.objects.filter(trashed_at__isnull=False).count() == 61
    assert many == few


def _fields(run: Run) -> dict[str, object]:
    left_out = ("id", "name", "forked_from")
    return {
        field.attname: getattr(run, field.attname)
        for field in run._meta.concrete_fields
        if field.name not in left_out
    }


def test_name_notes_and_tags_change_on_the_runs_page(alice_client, runs, team):
    amber = runs["amber"]
    before = amber.tags
    Membership.objects.filter(user__username="alice").update(role=Role.MEMBER)
    described = {"name": " best  so far ", "notes": "Line\r\ntwo", "tags": "a, b,a"}

    answer = alice_client.post(
        f"/alpha/runs/{amber.pk}/describe", described, follow=True
    )

    (message,) = answer.context["messages"]
    assert "name, notes, tags" in message.message
    amber.refresh_from_db()
    assert (amber.name, amber.notes, amber.tags) == (
        "best so far",
        "Line\ntwo",
        ["a", "b"],
    )
    entry = AuditEntry.objects.get(verb="run.described")
    assert entry.detail["before"] == {"name": "amber", "notes": "", "tags": before}
    assert entry.detail["after"]["notes"] == "Line\ntwo"


def test_invalid_names_notes_and_tags_are_refused(alice_client, runs):
    for field, text, numbers in (
        ("name", " ", ["1", "80", "0"]),
        ("tags", "x" * 41, ["40", "41"]),
        ("tags", ",".join(map(str, range(21))), ["20", "21"]),
        ("notes", "x" * 20_001, ["20,000", "20,001"]),
    ):
        described = {"name": "n", "notes": "", "tags": "", field: text}

        answer = alice_client.post(
            f"/alpha/runs/{runs['amber'].pk}/describe", described
        )

        assert answer.status_code == 422
        found = re.findall(r"[\d,]*\d", answer.context["refusal"])
        assert found[: len(numbers)] == numbers
        assert (field, text) in [
            (f["name"], f["typed"]) for f in answer.context["fields"]
        ]
    runs["amber"].refresh_from_db()
    assert runs["amber"].name == "amber"
