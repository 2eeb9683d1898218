"""kill -9 of a worker in the middle of an import: in the end all of its rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from django.db.models.functions import Now

from tests.faults.workers import Worker, wait_for

# Models are imported when a fixture runs: this file is read before Django is set up.
if TYPE_CHECKING:
    from dashboard.accounts.models import Team, User
    from dashboard.datasets.models import ImportJob

pytestmark = pytest.mark.faults
NUM_ROWS = 500_000


@pytest.fixture
def job(transactional_db: None, team: Team, alice: User) -> ImportJob:
    """Of a file that takes a few seconds."""
    from dashboard.datasets.imports.jobs import start_job
    from dashboard.datasets.imports.mapping import Mapping
    from dashboard.datasets.models import Upload

    upload = Upload(team=team, filename="a.jsonl", stored_name="a", format="jsonl")
    upload.path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps({"question": "What is 6 times 7? " * 10, "answer": "42"})
    upload.path.write_text(f"{line}\n" * NUM_ROWS)
    upload.num_bytes = upload.path.stat().st_size
    upload.save()
    mapping = Mapping(prompt="question", answer="answer")
    job, _ = start_job(upload=upload, mapping=mapping, name="Sums", user=alice)
    return job


@pytest.mark.parametrize(
    "progress", [pytest.param("num_read", marks=pytest.mark.soak), "num_rows_stored"]
)
def test_a_killed_import_is_begun_anew(
    job: ImportJob, start_worker: Callable[..., Worker], progress: str
) -> None:
    from dashboard.datasets.imports.jobs import State, reap, ring_importers
    from dashboard.datasets.models import DatasetRow, DatasetVersion, ImportJob

    def is_under_way() -> bool:
        job.refresh_from_db()
        return getattr(job, progress) > 0

    def is_done() -> bool:
        job.refresh_from_db()
        assert job.state != State.FAILED, job.problem
        return job.state == State.DONE

    first = start_worker("one", queue="default")
    ring_importers()
    wait_for(is_under_way, what=progress)
    first.kill_all()
    assert DatasetRow.objects.count() == 0
    assert DatasetVersion.objects.count() == 0

    # As after 20 s of silence, which the page and beat look for.
    ImportJob.objects.update(heartbeat=Now() - timedelta(minutes=1))
    reap()
    start_worker("two", queue="default")
    ring_importers()

    wait_for(is_done, what="the import")
    assert DatasetVersion.objects.get().num_rows == NUM_ROWS
    assert DatasetRow.objects.count() == NUM_ROWS
    assert job.attempt == 2


def test_a_worker_that_shuts_down_leaves_the_import_to_another(
    job: ImportJob, start_worker: Callable[..., Worker]
) -> None:
    from dashboard.datasets.imports.jobs import State, ring_importers

    def is_under_way() -> bool:
        job.refresh_from_db()
        return job.num_read > 0

    worker = start_worker("one", queue="default")
    ring_importers()
    wait_for(is_under_way, what="the first bytes")

    worker.terminate(patience_seconds=10)

    job.refresh_from_db()
    assert (job.state, job.attempt) == (State.QUEUED, 0)
