"""Runs in the trash: out of sight, restored, or deleted for good with their files."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django.fixtures import Settings

from dashboard.accounts.models import AuditEntry, Team, User
from dashboard.datasets.models import Dataset
from dashboard.runs.directory import run_directory
from dashboard.runs.models import Run, RunStar
from dashboard.runs.tasks import clean
from dashboard.runs.trash import delete_run
from dashboard.samples.models import Completion
from tests.dashboard.samples.factories import make_group, make_run, make_steps

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(team: Team, settings: Settings, tmp_path: Path) -> Run:
    """With what hangs on a run, and files."""
    settings.COHORT_DATA = tmp_path
    run = make_run(team, "calm-otter")
    make_steps(run, {"reward/mean": [0.1, 0.2]})
    make_group(run, step=1, prompt_index=0)
    path = run_directory(run.pk).checkpoints / "step-000001-epoch-1"
    path.mkdir(parents=True)
    (path / "weights").write_bytes(b"1")
    return run


@pytest.fixture
def trashed(run: Run, alice: User) -> Run:
    run.trashed_at, run.trashed_by = timezone.now(), alice
    run.save()
    return run


def test_a_trashed_run_is_shown_with_a_way_back(
    alice_client: Client, trashed: Run
) -> None:
    page = alice_client.get(f"/alpha/runs/{trashed.pk}/").text

    assert "This run is in the trash. Alice put it there" in page
    forgotten = trashed.trashed_at + timedelta(days=30) if trashed.trashed_at else None
    assert f"{forgotten:%Y}" in page

    alice_client.post(f"/alpha/runs/{trashed.pk}/act", {"action": "restore"})

    trashed.refresh_from_db()
    assert trashed.trashed_at is None
    assert "All values" in alice_client.get(f"/alpha/runs/{trashed.pk}/").text


@pytest.mark.parametrize(
    "page",
    [
        "metrics/",
        "config/",
        "groups/",
        "groups/1/0/",
        "logs/",
        "stream.json",
        "change/",
    ],
)
def test_its_other_pages_say_where_it_is(
    alice_client: Client, trashed: Run, page: str
) -> None:
    answer = alice_client.get(f"/alpha/runs/{trashed.pk}/{page}")

    assert answer.status_code == 404
    assert f"calm-otter (#{trashed.pk}) is in the trash." in answer.text


def test_lists_and_comparisons_leave_it_out(
    alice_client: Client, team: Team, trashed: Run
) -> None:
    other = make_run(team, "kept-wren", dataset_version=trashed.dataset_version)
    make_group(other, step=1, prompt_index=0)

    compared = alice_client.get(f"/alpha/compare?runs={other.pk},{trashed.pk}")
    offered = alice_client.get(f"/alpha/compare?runs={other.pk}").text
    cloned = alice_client.get(f"/alpha/runs/new?clone={trashed.pk}")

    assert compared.status_code == 404
    assert f"Run {trashed.pk} is in the trash." in compared.text
    for text in (offered, alice_client.get("/alpha/runs/").text):
        assert "calm-otter" not in text
    assert "calm-otter" in alice_client.get("/alpha/runs/?q=trashed").text
    assert cloned.status_code == 404


def test_it_is_deleted_with_all_that_hangs_on_it(
    alice_client: Client, trashed: Run, alice: User
) -> None:
    RunStar.objects.create(run=trashed, user=alice)
    path = run_directory(trashed.pk).path
    data = {"action": "delete"}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dashboard.runs.trash.ROWS_AT_A_TIME", 1)
        page = alice_client.post(f"/alpha/runs/{trashed.pk}/act", data, follow=True)

    assert "calm-otter is deleted for good." in page.text
    assert not Run.objects.filter(pk=trashed.pk).exists()
    assert not Completion.objects.exists()
    assert AuditEntry.objects.get(verb="run.deleted").detail == {"name": "calm-otter"}
    assert path.exists()  # until the transaction ends, which this test's does not


@pytest.mark.django_db(transaction=True)
def test_its_files_go_with_it(trashed: Run) -> None:
    path = run_directory(trashed.pk).path

    delete_run(trashed, None)

    assert not path.exists()


def test_a_run_that_is_not_in_the_trash_is_not_deleted(
    alice_client: Client, run: Run
) -> None:
    page = alice_client.post(
        f"/alpha/runs/{run.pk}/act", {"action": "delete"}, follow=True
    )

    assert "calm-otter is not in the trash, so it was not deleted." in page.text
    assert Run.objects.filter(pk=run.pk).exists()


def test_a_viewer_neither_restores_nor_deletes(
    bob_client: Client, trashed: Run
) -> None:
    for action in ("restore", "delete"):
        answer = bob_client.post(f"/alpha/runs/{trashed.pk}/act", {"action": action})
        assert answer.status_code == 403
    assert "Delete for good" not in bob_client.get(f"/alpha/runs/{trashed.pk}/").text


def test_old_trash_is_forgotten(team: Team, trashed: Run, run: Run) -> None:
    recent = make_run(team, "recent", dataset_version=run.dataset_version)
    old = timezone.now() - timedelta(days=31)
    Run.objects.filter(pk=trashed.pk).update(trashed_at=old)
    Run.objects.filter(pk=recent.pk).update(trashed_at=old + timedelta(days=2))

    clean()

    assert list(Run.objects.values_list("name", flat=True)) == ["recent"]
    assert Dataset.objects.exists()
