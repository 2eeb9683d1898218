"""Runs in the trash: out of sight, restored, or deleted for good with their files."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.utils import timezone

from dashboard.accounts.models import AuditEntry, Team, User
from dashboard.completions.models import Comment, Group, GroupCompletions, Mention
from dashboard.datasets.models import Dataset
from dashboard.jobs.tasks import clean
from dashboard.runs.models import Run, RunStar
from dashboard.runs.queries import run_directory
from dashboard.runs.trash import delete_hidden_rows, delete_rows, delete_run
from tests.dashboard.completions.factories import make_group, make_run, make_steps


@pytest.fixture
def run(team, settings, tmp_path) -> Run:
    """With what hangs on a run, and files."""
    settings.COHORT_DATA = tmp_path
    run = make_run(team, "calm-otter")
    make_steps(run, {"reward/mean": [0.1, 0.2]})
    make_group(run, step=1, prompt_index=0)
    path = run_directory(run.pk).checkpoints / "step-000001-attempt-1"
    path.mkdir(parents=True)
    (path / "weights").write_bytes(b"1")
    return run


@pytest.fixture
def trashed(run, alice) -> Run:
    run.trashed_at, run.trashed_by = timezone.now(), alice
    run.save()
    return run


def test_a_trashed_run_can_be_restored(alice_client, trashed):
    page = alice_client.get(f"/alpha/runs/{trashed.pk}/")

    assert trashed.trashed_at is not None
    assert page.context["deleted_at"] == trashed.trashed_at + timedelta(days=30)
    assert "Alice" in page.text
    assert 'value="restore"' in page.text

    alice_client.post(f"/alpha/runs/{trashed.pk}/act", {"action": "restore"})

    trashed.refresh_from_db()
    assert trashed.trashed_at is None
    assert "data-headline" in alice_client.get(f"/alpha/runs/{trashed.pk}/").text


def test_other_pages_of_a_trashed_run_are_404(alice_client, trashed):
    for page in (
        "metrics/",
        "config/",
        "groups/",
        "groups/1/0/",
        "logs/",
        "stream.json",
        "change/",
    ):
        answer = alice_client.get(f"/alpha/runs/{trashed.pk}/{page}")

        assert answer.status_code == 404, page
        assert f"calm-otter (#{trashed.pk})" in answer.text, page


def test_lists_and_comparisons_exclude_trashed_runs(alice_client, team, trashed):
    other = make_run(team, "kept-wren", dataset_version=trashed.dataset_version)
    make_group(other, step=1, prompt_index=0)

    compared = alice_client.get(f"/alpha/compare?runs={other.pk},{trashed.pk}")
    offered = alice_client.get(f"/alpha/compare?runs={other.pk}").text
    cloned = alice_client.get(f"/alpha/runs/new?clone={trashed.pk}")

    assert compared.status_code == 404
    assert f"Run {trashed.pk} " in compared.text
    for text in (offered, alice_client.get("/alpha/runs/").text):
        assert "calm-otter" not in text
    assert "calm-otter" in alice_client.get("/alpha/runs/?q=trashed").text
    assert cloned.status_code == 404


def test_a_deleted_run_takes_its_rows_with_it(alice_client, trashed, alice):
    RunStar.objects.create(run=trashed, user=alice)
    path = run_directory(trashed.pk).path
    data = {"action": "delete"}

    page = alice_client.post(f"/alpha/runs/{trashed.pk}/act", data, follow=True)

    (message,) = page.context["messages"]
    assert (message.level_tag, "calm-otter" in message.message) == ("success", True)
    assert not Run.objects.filter(pk=trashed.pk).exists()
    assert not GroupCompletions.objects.exists()
    assert AuditEntry.objects.get(verb="run.deleted").detail == {"name": "calm-otter"}
    assert path.exists()  # until the transaction ends, which this test's does not


@pytest.fixture
def deleted(trashed, alice, monkeypatch) -> Run:
    """A run with more of some rows than go at once."""
    for prompt in range(1, 5):
        group = make_group(trashed, step=1, prompt_index=prompt)
        comment = Comment.objects.create(group=group, user=alice, text="@alice")
        Mention.objects.create(comment=comment, user=alice)
    monkeypatch.setattr("dashboard.runs.trash.FEW_ROWS", 3)
    monkeypatch.setattr("dashboard.runs.trash.PARENTS_AT_A_TIME", 2)
    delete_run(trashed, alice)
    return trashed


def test_a_large_run_is_hidden_while_its_rows_are_deleted(alice_client, deleted):
    at = f"/alpha/runs/{deleted.pk}/"

    assert GroupCompletions.objects.count() == 5
    assert not RunStar.objects.exists()
    assert not deleted.steps.exists()  # few, so they went at once
    assert alice_client.get(at).status_code == 404
    assert alice_client.post(f"{at}act", {"action": "restore"}).status_code == 404
    assert "calm-otter" not in alice_client.get("/alpha/runs/?q=trashed").text


@pytest.mark.parametrize("state", ["stopped", "failed"])
def test_a_large_unfinished_run_is_deleted(alice_client, trashed, monkeypatch, state):
    Run.objects.filter(pk=trashed.pk).update(state=state)
    monkeypatch.setattr("dashboard.runs.trash.FEW_ROWS", 0)

    alice_client.post(f"/alpha/runs/{trashed.pk}/act", {"action": "delete"})
    assert not Run.objects.exists()
    delete_rows()

    assert not Run.everywhere.exists()


def test_a_deleted_large_run_has_no_references(team, run, alice, monkeypatch):
    run.trashed_at, run.source = timezone.now(), {"key": "k", "kind": "outside"}
    run.save()
    version = run.dataset_version
    clone = make_run(team, "clone", dataset_version=version, cloned_from=run)
    monkeypatch.setattr("dashboard.runs.trash.FEW_ROWS", 0)

    delete_run(run, alice)

    clone.refresh_from_db()
    assert clone.cloned_from is None
    make_run(team, "again", dataset_version=version, source={"key": "k"})


def test_rows_of_a_large_run_are_deleted_in_batches(deleted):
    numbers = []
    while Run.everywhere.filter(pk=deleted.pk).exists():
        numbers.append(GroupCompletions.objects.count())
        delete_hidden_rows(until=0)

    assert numbers == [5, 3, 1, 0]
    assert not Group.objects.exists()
    assert not Mention.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_rows_deleted_by_another_worker_are_skipped(deleted):
    with psycopg.connect(**connection.get_connection_params()) as other:
        other.execute("SELECT FROM runs_run WHERE id = %s FOR UPDATE", [deleted.pk])
        delete_rows()
        assert GroupCompletions.objects.count() == 5

    delete_rows()

    assert not Run.everywhere.filter(pk=deleted.pk).exists()


@pytest.mark.django_db(transaction=True)
def test_files_of_a_deleted_run_are_removed(trashed):
    path = run_directory(trashed.pk).path

    delete_run(trashed, None)

    assert not path.exists()


def test_a_run_that_is_not_in_the_trash_is_not_deleted(alice_client, run):
    page = alice_client.post(
        f"/alpha/runs/{run.pk}/act", {"action": "delete"}, follow=True
    )

    (message,) = page.context["messages"]
    assert (message.level_tag, "calm-otter" in message.message) == ("error", True)
    assert Run.objects.filter(pk=run.pk).exists()


def test_a_viewer_is_not_offered_to_delete(bob_client, trashed):
    assert "delete-run" not in bob_client.get(f"/alpha/runs/{trashed.pk}/").text


def test_old_trash_is_deleted(team, trashed, run):
    recent = make_run(team, "recent", dataset_version=run.dataset_version)
    old = timezone.now() - timedelta(days=31)
    Run.objects.filter(pk=trashed.pk).update(trashed_at=old)
    Run.objects.filter(pk=recent.pk).update(trashed_at=old + timedelta(days=2))

    clean()

    assert list(Run.objects.values_list("name", flat=True)) == ["recent"]
    assert Dataset.objects.exists()


def test_one_failing_deletion_does_not_stop_the_others(
    team, trashed, monkeypatch, caplog
):
    make_run(team, "behind-it", dataset_version=trashed.dataset_version)
    Run.objects.update(trashed_at=timezone.now() - timedelta(days=31))
    refuse_to_delete(trashed, monkeypatch)

    clean()

    assert list(Run.objects.all()) == [trashed]
    assert f"run {trashed.pk} " in caplog.text
    assert "DataError" in caplog.text


def refuse_to_delete(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database does, within the transaction."""

    def record(
        _team: Team, _user: User | None, _verb: str, found: Run, **_: Any
    ) -> None:
        if found == run:
            connection.cursor().execute("SELECT 1 / 0")

    monkeypatch.setattr("dashboard.runs.trash.record", record)
