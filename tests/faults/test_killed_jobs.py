"""kill -9 of a worker during an import or a rescoring: everything is done once."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from django.db.models.functions import Now

from tests.faults.workers import wait_for

# Models are imported when a fixture runs: this file is read before Django is set up.
if TYPE_CHECKING:
    from dashboard.datasets.models import ImportJob

pytestmark = pytest.mark.faults
NUM_ROWS = 500_000
NUM_RESCORED_STEPS = 600


@pytest.fixture
def job(transactional_db, team, alice) -> ImportJob:
    """Of a file that takes a few seconds."""
    from dashboard.datasets.imports import start_job
    from dashboard.datasets.mapping import Mapping
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
    "unit", [pytest.param("bytes", marks=pytest.mark.soak), "rows"]
)
def test_a_killed_import_starts_over(job, start_worker, unit):
    from dashboard.datasets.models import DatasetRow, DatasetVersion
    from dashboard.jobs.models import Job, JobState
    from dashboard.jobs.queue import notify_workers, reap

    def is_running() -> bool:
        return Job.objects.filter(importjob=job, unit=unit, done__gt=0).exists()

    def is_done() -> bool:
        job.refresh_from_db()
        assert job.state != JobState.FAILED, job.error
        return job.state == JobState.DONE

    first = start_worker("one", queue="default")
    notify_workers("default")
    wait_for(is_running, what=unit)
    first.kill_all()
    assert DatasetRow.objects.count() == 0
    assert DatasetVersion.objects.count() == 0

    # As after 20 s without a heartbeat, which the page and beat check.
    Job.objects.update(lease_until=Now() - timedelta(seconds=1))
    reap()
    start_worker("two", queue="default")
    notify_workers("default")

    wait_for(is_done, what="the import")
    assert DatasetVersion.objects.get().num_rows == NUM_ROWS
    assert DatasetRow.objects.count() == NUM_ROWS
    assert job.job
    assert job.job.attempt == 2


def test_a_terminated_worker_releases_its_import_to_another(job, start_worker):
    from dashboard.jobs.models import Job, JobState
    from dashboard.jobs.queue import notify_workers

    def is_running() -> bool:
        return Job.objects.filter(importjob=job, done__gt=0).exists()

    worker = start_worker("one", queue="default")
    notify_workers("default")
    wait_for(is_running, what="the first bytes")

    worker.terminate(timeout_seconds=10)

    left = Job.objects.get(importjob=job)
    assert (left.state, left.num_losses) == (JobState.QUEUED, 0)


def test_a_killed_rescoring_resumes(transactional_db, team, start_worker):
    from dashboard.analysis.rescoring.models import RescoredStep
    from dashboard.analysis.rescoring.results import read_columns
    from dashboard.jobs.models import Job, JobState
    from dashboard.jobs.queue import notify_workers, reap
    from tests.dashboard.analysis.rescoring.factories import (
        RIGHT,
        make_scored_run,
        start,
    )

    rescoring = start(
        make_scored_run(team, num_steps=NUM_RESCORED_STEPS, num_prompts=1)
    )

    def is_running() -> bool:
        return RescoredStep.objects.count() > 3

    def is_done() -> bool:
        rescoring.refresh_from_db()
        assert rescoring.state != JobState.FAILED, rescoring.error
        return rescoring.state == JobState.DONE

    first = start_worker("one", queue="default")
    notify_workers("default")
    wait_for(is_running, what="the first steps")
    first.kill_all()
    kept = list(RescoredStep.objects.order_by("step").values_list("pk", flat=True))
    assert len(kept) < NUM_RESCORED_STEPS, "it was done before it was killed"

    # As after 20 s without a heartbeat, which beat checks.
    Job.objects.update(lease_until=Now() - timedelta(seconds=1))
    reap()
    start_worker("two", queue="default")
    notify_workers("default")

    wait_for(is_done, what="the rescoring")
    found = read_columns(rescoring).completions
    places = {(each["step"], each["prompt"], each["position"]) for each in found}
    assert len(places) == len(found) == rescoring.num_done == 4 * NUM_RESCORED_STEPS
    assert found["new"].tolist() == found["old"].tolist()
    stored = RescoredStep.objects.order_by("step").values_list("pk", flat=True)
    assert list(stored)[: len(kept)] == kept
    assert RIGHT["name"] == rescoring.result["rules"][0]["name"]


def test_a_stop_interrupts_a_worker_that_scores(transactional_db, team, start_worker):
    from dashboard.jobs.models import Job, JobState
    from dashboard.jobs.queue import notify_workers, request_stop
    from tests.dashboard.analysis.rescoring.factories import make_scored_run, start

    sleeping = {
        "name": "code",
        "kind": "python_function",
        "params": {
            "source": "import time\n\ndef reward(completion, answer):\n"
            "    time.sleep(20)\n    return 1.0\n",
            "timeout_seconds": 25,
        },
    }
    rescoring = start(make_scored_run(team, num_steps=2), [sleeping])

    def is_in(state: str) -> Callable[[], bool]:
        return lambda: Job.objects.filter(rescoring=rescoring, state=state).exists()

    start_worker("one", queue="default")
    notify_workers("default")
    wait_for(is_in(JobState.RUNNING), what="a worker")
    request_stop(rescoring, None, "rescoring.stop_requested")

    # Sooner than the first step's eight completions of 20 s each would be.
    wait_for(is_in(JobState.CANCELLED), what="its end", seconds=60)
