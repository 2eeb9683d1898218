"""Imports as jobs: started once, run by one worker, atomic."""

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.db import connection
from django.db.models.functions import Now
from django.test import Client

from dashboard.datasets.imports import purge_uploads, start_job
from dashboard.datasets.mapping import Mapping
from dashboard.datasets.models import (
    Dataset,
    DatasetRow,
    DatasetVersion,
    ImportJob,
    Upload,
)
from dashboard.jobs.kinds import Claim, Context
from dashboard.jobs.models import Job, JobState
from dashboard.jobs.queue import claim_next, reap
from tests.dashboard.datasets.test_upload import MAPPING, RECORDS, jsonl, upload
from tests.dashboard.jobs.working import do, take

COLUMNS = Mapping(prompt="question", answer="solution", columns=("level",))
BAD = {"question": "", "solution": "1"}


@pytest.fixture(autouse=True)
def left_to_a_worker(monkeypatch) -> None:
    """A worker imports files of any size: here, `take_up`."""
    monkeypatch.setattr("dashboard.datasets.imports.AT_ONCE_BYTES", -1)


IMPORTS = ("dataset.import",)


def take_up(worker: str = "default@here") -> Claim:
    return take(*IMPORTS, worker=worker)


def press_import(client: Client, url: str, **changes: Any) -> ImportJob:
    answer = client.post(url, {**MAPPING, **changes})
    assert answer.status_code == 302, answer.content.decode()
    job = ImportJob.objects.latest("pk")
    assert answer["Location"] == page_of(job)
    return job


def page_of(job: ImportJob) -> str:
    return f"/alpha/datasets/imports/{job.pk}"


def poll(client: Client, job: ImportJob) -> Any:
    return client.get(page_of(job), headers={"hx-request": "true"})


def go_silent(job: ImportJob) -> None:
    Job.objects.filter(importjob=job).update(lease_until=Now() - timedelta(seconds=1))


@pytest.fixture
def job(alice_client) -> ImportJob:
    return press_import(alice_client, upload(alice_client))


def test_the_page_redirects_to_the_new_version(alice_client, job):
    assert "Waiting for a worker" in poll(alice_client, job).content.decode()

    do(take_up())

    version = DatasetVersion.objects.get()
    answer = poll(alice_client, job)
    assert answer["HX-Redirect"] == f"/alpha/datasets/{version.dataset_id}/"
    for address in (answer["HX-Redirect"], page_of(job)):
        assert "Imported 2 rows" in alice_client.get(address).text


def test_the_page_of_the_dataset_shows_the_import_of_a_new_version(
    alice_client, bob_client, job
):
    do(take_up())
    dataset = Dataset.objects.get()
    url = upload(alice_client, jsonl(RECORDS[:1]), query=f"?dataset={dataset.pk}")
    second = press_import(alice_client, url)
    page = f"/alpha/datasets/{dataset.pk}/"

    assert f'hx-get="{page_of(second)}"' in alice_client.get(page).text
    watched = bob_client.get(page)
    assert watched.context["importing"] == second
    assert "hx-get" not in watched.text, "it would lead them on when it ends"

    do(take_up())

    assert alice_client.get(page).context["importing"] is None


def test_rows_with_errors_can_be_skipped_or_fixed(alice_client):
    url = upload(alice_client, jsonl([*RECORDS, BAD]))
    job = press_import(alice_client, url, name="Mine", columns=[])

    do(take_up())

    assert poll(alice_client, job)["HX-Redirect"] == url
    page = alice_client.get(url)
    assert 'name="retry"' in page.text
    assert 'name="leave_out" value="1"' in page.text
    assert page.context["refusals"].groups[0].first[0].line == 3
    assert page.context["form"]["name"].value() == "Mine"
    assert page.context["form"]["columns"].value() == []
    assert Dataset.objects.count() == 0

    press_import(alice_client, url, leave_out="1", name="Mine", columns=[])
    do(take_up())

    assert DatasetVersion.objects.get().num_left_out == 1


def test_a_second_click_finds_the_import_under_way(alice_client, job):
    url = f"/alpha/datasets/uploads/{job.upload_id}"

    assert press_import(alice_client, url) == job
    assert alice_client.get(url)["Location"] == page_of(job)
    claim = take_up()
    assert press_import(alice_client, url) == job
    do(claim)

    assert press_import(alice_client, url) == job, "also where it has just ended"
    assert DatasetVersion.objects.count() == 1


def test_two_processes_start_one_job(alice_client, alice, job):
    again, is_new = start_job(
        upload=Upload.objects.get(), mapping=COLUMNS, name="Again", user=alice
    )

    assert (again, is_new) == (job, False)


def test_a_queued_import_shows_its_position(alice_client, job):
    second = press_import(alice_client, upload(alice_client), name="Second")
    take_up()

    assert "Position 1" in _after_a_while(alice_client, second)


def _after_a_while(client: Client, job: ImportJob) -> str:
    Job.objects.filter(importjob=job).update(created_at=Now() - timedelta(seconds=9))
    return str(client.get(page_of(job)).content.decode())


def test_the_page_shows_that_no_worker_runs(alice_client, job):
    assert "No worker" in _after_a_while(alice_client, job)


def test_stopping_a_queued_import_is_immediate(alice_client, job):
    alice_client.post(page_of(job), {"stop": "1"})

    assert claim_next(IMPORTS, "default@a") is None
    page = alice_client.get(page_of(job))
    assert page.context["job"].state == JobState.CANCELLED
    columns = f"/alpha/datasets/uploads/{job.upload_id}"
    assert f'href="{columns}"' in page.text
    assert alice_client.get(columns).status_code == 200


@pytest.mark.django_db(transaction=True)
def test_stopping_while_storing_undoes_the_import(alice_client, job):
    claim = take_up()

    def press_stop() -> None:
        alice_client.post(page_of(job), {"stop": "1"})
        connection.close()

    def stop(context: Context) -> None:
        if context.noted["unit"] == "rows" and context.noted["done"]:
            assert DatasetRow.objects.count() == 2, "they are stored, but not for good"
            thread = threading.Thread(target=press_stop)
            thread.start()
            thread.join()

    do(claim, on_progress=stop)

    job.refresh_from_db()
    assert job.state == JobState.CANCELLED
    assert Dataset.objects.count() == 0
    assert DatasetRow.objects.count() == 0
    assert Upload.objects.get().path.exists()


def test_stopping_an_ended_import_shows_a_message(alice_client, job):
    do(take_up())

    page = alice_client.post(page_of(job), {"stop": "1"}, follow=True)

    assert "already ended" in page.text
    assert DatasetVersion.objects.count() == 1


def test_a_job_of_a_lost_worker_is_queued_again(alice_client, job):
    take_up()
    go_silent(job)

    page = alice_client.get(page_of(job))

    assert page.context["job"].state == JobState.QUEUED
    do(take_up("another"))
    assert DatasetVersion.objects.count() == 1


def test_a_worker_that_lost_its_lease_stores_nothing(job):
    slow = take_up("slow")
    go_silent(job)
    reap()
    quick = take_up("quick")

    do(slow)

    assert DatasetVersion.objects.count() == 0
    job.refresh_from_db()
    assert job.job
    assert (job.state, job.job.worker) == (JobState.RUNNING, "quick")
    do(quick)
    assert DatasetVersion.objects.count() == 1


def test_an_import_fails_after_three_lost_workers(alice_client, job):
    for _ in range(3):
        take_up()
        go_silent(job)
        reap()

    page = alice_client.get(page_of(job))
    assert page.context["job"].state == JobState.FAILED
    assert "3 times" in page.text
    assert 'name="again"' in page.text

    alice_client.post(page_of(job), {"again": "1"})
    do(take_up())
    assert DatasetVersion.objects.count() == 1


def test_a_stopped_job_is_not_requeued(alice_client, job):
    take_up()
    alice_client.post(page_of(job), {"stop": "1"})
    go_silent(job)

    reap()

    job.refresh_from_db()
    assert job.state == JobState.CANCELLED


def test_a_name_taken_during_the_import_fails_it(alice_client, alice, team, job):
    Dataset.objects.create(team=team, name="Sums", created_by=alice)

    do(take_up())

    page = alice_client.get(page_of(job))
    assert page.context["job"].state == JobState.FAILED
    assert f'href="/alpha/datasets/uploads/{job.upload_id}"' in page.text
    columns = alice_client.get(f"/alpha/datasets/uploads/{job.upload_id}")
    assert columns.context["form"]["name"].value() == "Sums", "as it was chosen"
    assert "name" in columns.context["form"].errors


def test_an_import_fails_if_the_worker_cannot_find_the_file(job):
    Upload.objects.get().path.unlink()

    do(take_up())

    job.refresh_from_db()
    assert job.state == JobState.FAILED
    assert str(settings.COHORT_DATA) in job.error


def test_a_full_disk_fails_the_import_early(job, monkeypatch):
    monkeypatch.setattr("dashboard.datasets.limits.RESERVED_BYTES", 2**60)

    do(take_up())

    job.refresh_from_db()
    assert job.state == JobState.FAILED
    assert "1,048,576 TiB" in job.error


def test_an_import_of_existing_rows_makes_no_version(alice_client, job):
    do(take_up())
    dataset = Dataset.objects.get()
    url = upload(alice_client, query=f"?dataset={dataset.pk}")
    again = press_import(alice_client, url)

    do(take_up())

    page = alice_client.get(page_of(again))
    assert (page.context["job"].state, page.context["job"].made_version) == (
        JobState.DONE,
        False,
    )
    assert dataset.versions.count() == 1


def test_a_waiting_import_keeps_its_file(job):
    old = Now() - timedelta(days=8)
    Upload.objects.update(created_at=old)
    purge_uploads()
    assert Upload.objects.count() == 1

    do(take_up())
    Job.objects.update(finished_at=old)
    purge_uploads()

    assert ImportJob.objects.count() == 0


def test_an_upload_imported_by_a_killed_worker_is_purged(job):
    claim = take_up()
    claim.end(JobState.DONE)
    path = Upload.objects.get().path

    purge_uploads()

    assert not path.exists()
    assert Upload.objects.count() == 0
