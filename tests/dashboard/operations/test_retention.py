"""What is deleted is what was shown, and nothing that is locked, used or younger."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from dashboard.accounts.models import AuditEntry
from dashboard.datasets.models import Dataset
from dashboard.operations.models import Retention
from dashboard.operations.retention import preview_trash, retain
from dashboard.runs.models import Run
from dashboard.runs.queries import run_directory
from tests.dashboard.completions.factories import make_run
from tests.dashboard.runs.table.test_trash_of_runs import refuse_to_delete


@pytest.fixture(autouse=True)
def data(tmp_path, settings) -> Path:
    settings.COHORT_DATA = tmp_path
    return tmp_path


def days_ago(days: float) -> dict[str, Any]:
    return {"trashed_at": timezone.now() - timedelta(days=days)}


@pytest.fixture
def trash(team) -> Run:
    """A run and a dataset trashed eight days ago, others six days ago or not at all."""
    old = make_run(team, "old", **days_ago(8))
    run_directory(old.pk).path.mkdir(parents=True)
    run_directory(old.pk).config.write_bytes(b"x" * 2_000)
    make_run(team, "young", **days_ago(6))
    make_run(team, "kept")
    make_run(team, "locked", locked_at=timezone.now() - timedelta(days=90))
    Dataset.objects.create(team=team, name="Old", **days_ago(8))
    Dataset.objects.create(team=team, name="Young", **days_ago(6))
    Dataset.objects.filter(versions__runs=old).update(**days_ago(8))
    return old


def test_the_preview_counts_what_would_be_deleted(trash, team):
    shown = preview_trash(team, 7)

    assert [run.name for run in shown.runs] == ["old"]
    assert shown.run_bytes == 2_000
    assert [dataset.name for dataset in shown.datasets] == ["Old"]
    assert (shown.num_runs_in_trash, shown.num_locked) == (2, 1)
    assert Run.objects.count() == 4


def test_only_the_previewed_rows_are_deleted(
    trash, team, charlie, django_capture_on_commit_callbacks
):
    other = make_run(charlie.teams.get(), "of-others", **days_ago(20))
    Retention.objects.create(team=team, trash_days=7)

    with django_capture_on_commit_callbacks(execute=True):
        retain()

    names = set(Run.objects.values_list("name", flat=True))
    assert names == {"young", "kept", "locked", other.name}
    assert not run_directory(trash.pk).path.exists()
    assert not Dataset.objects.filter(name="Old").exists()
    assert Dataset.objects.filter(name="Young").exists()


def test_a_run_that_cannot_be_deleted_does_not_stop_others(trash, team, monkeypatch):
    make_run(team, "behind-it", **days_ago(7.5))
    Retention.objects.create(team=team, trash_days=7)
    refuse_to_delete(trash, monkeypatch)

    retain()

    names = set(Run.objects.values_list("name", flat=True))
    assert names == {"old", "young", "kept", "locked"}
    assert not Dataset.objects.filter(name="Old").exists()


def test_a_team_without_settings_has_the_defaults(trash):
    retain()

    assert Run.objects.count() == 4


def test_an_admin_previews_then_keeps_the_number(trash, alice_client):
    page = alice_client.get("/alpha/settings/storage", {"days": "7"})
    for shown in ("1 of 2 runs", "1.95 KiB", "1 dataset", "Save"):
        assert shown in page.text
    assert not Retention.objects.exists()

    saved = alice_client.post("/alpha/settings/storage", {"days": "7"}, follow=True)

    assert "for 7 days" in saved.text
    assert Retention.objects.get().trash_days == 7
    entry = AuditEntry.objects.get(verb="team.retention_changed")
    assert entry.detail == {"before": 30, "after": 7}


def test_an_odd_number_of_days_is_refused(trash, alice_client):
    for days in ("0", "31", "x", ""):
        page = alice_client.post("/alpha/settings/storage", {"days": days})

        assert page.status_code == 422, days
        assert "field-error" in page.text, days
    assert not Retention.objects.exists()


def test_a_viewer_looks_and_changes_nothing(trash, bob_client):
    page = bob_client.get("/alpha/settings/storage", {"days": "7"})

    assert page.status_code == 200
    assert "Save" not in page.text
    assert bob_client.post("/alpha/settings/storage", {"days": "7"}).status_code == 403
