"""Downloads from a link by a worker: followed, stopped, resumed, imported."""

import errno
import gzip
import itertools
import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from dashboard.accounts.models import Team
from dashboard.datasets import jobs as dataset_jobs
from dashboard.datasets.fetching import download, fetches
from dashboard.datasets.imports import purge_uploads, request_stop
from dashboard.datasets.models import Dataset, DatasetVersion, ImportJob, Upload
from dashboard.datasets.row import Row
from dashboard.datasets.trash import delete_dataset, trash_dataset
from dashboard.jobs import runner
from dashboard.jobs.kinds import Claim, Context, JobReleased
from dashboard.jobs.models import Job, JobState
from dashboard.jobs.queue import claim_next, reap
from dashboard.jobs.runner import run
from tests.dashboard.completions.factories import store_dataset
from tests.dashboard.datasets.fetching.site import (
    Page,
    Site,
    drip,
    file,
    page,
    status,
    web_site,
)
from tests.dashboard.datasets.test_import_jobs import IMPORTS, go_silent, page_of
from tests.dashboard.datasets.test_upload import FILES, MAPPING, RECORDS, jsonl
from tests.dashboard.jobs.working import change_kind, do, do_all, take, target_of

PAGE = "/alpha/datasets/upload"
FETCHES = ("dataset.fetch",)
ROWS = FILES["sums.jsonl"]


def take_up(worker: str = "default@here") -> Claim:
    return take(*FETCHES, worker=worker)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch) -> None:
    monkeypatch.setattr(download, "FIRST_PAUSE_SECONDS", 0.01)


@pytest.fixture
def quick_pulse(monkeypatch) -> None:
    monkeypatch.setattr(runner, "HEARTBEAT_SECONDS", 0.05)


@pytest.fixture
def site(settings) -> Iterator[Site]:
    with web_site() as site:
        settings.DATASET_HOSTS = site.host
        yield site


def give(client: Client, link: str, query: str = "", **more: str) -> ImportJob:
    answer = client.post(f"{PAGE}{query}", {"link": link, **more})
    assert answer.status_code == 302, answer.content.decode()
    job = ImportJob.objects.latest("pk")
    assert answer["Location"] == page_of(job)
    return job


def fetch(client: Client, link: str, **more: str) -> ImportJob:
    """Give a link, and have a worker fetch it."""
    job = give(client, link, **more)
    do(take_up())
    job.refresh_from_db()
    return job


def text_of(client: Client, job: ImportJob) -> str:
    return client.get(page_of(job)).content.decode()


# After the download, all formats are handled like uploads.
SOME = {("sums.jsonl", ""), ("sums.csv", ".gz")}


@pytest.mark.parametrize(
    ("name", "packing"),
    [
        pytest.param(*each, marks=[] if each in SOME else pytest.mark.slow)
        for each in itertools.product(FILES, ("", ".gz"))
    ],
)
def test_a_link_becomes_a_version_that_names_it(name, packing, alice_client, site):
    body = gzip.compress(FILES[name]) if packing else FILES[name]
    site.pages[f"/data/{name}{packing}"] = file(body)
    address = site.url(f"/data/{name}{packing}")

    job = fetch(alice_client, f"{address}?X-Signature=hush")

    assert job.state == JobState.DONE, job.error
    assert (job.job.done, job.job.total) == (len(body), len(body))
    columns = f"/alpha/datasets/uploads/{job.upload_id}"
    polled = alice_client.get(page_of(job), headers={"hx-request": "true"})
    assert polled["HX-Redirect"] == columns
    assert "hush" not in json.dumps(Upload.objects.get().source)
    assert f"from {address}?…, fetched" in alice_client.get(columns).content.decode()
    assert alice_client.get(columns).context["form"]["name"].value() == (
        "sums" if not packing else name
    )

    assert alice_client.post(columns, MAPPING).status_code == 302

    version = DatasetVersion.objects.get()
    assert version.num_rows == 2
    source = version.source
    assert source["kind"] == "link"
    assert source["url"] == f"{address}?…"
    assert source["filename"] == f"{name}{packing}"
    assert len(source["sha256"]) == 64
    today = timezone.now().date().isoformat()
    assert version.source_text == f"{address}?…, fetched {today}"
    detail = alice_client.get(f"/alpha/datasets/{version.dataset_id}/versions")
    assert version.source_text in detail.content.decode()
    assert Upload.objects.count() == 0


def test_the_page_of_a_finished_download_has_a_continue_button(alice_client, site):
    site.pages["/rows.jsonl"] = file(ROWS)
    job = fetch(alice_client, site.url("/rows.jsonl?X-Signature=hush"))

    text = text_of(alice_client, job)

    assert f'href="/alpha/datasets/uploads/{job.upload_id}">Continue' in text
    assert "hush" not in text


def test_bad_rows_of_a_link_may_be_left_out(alice_client, site):
    site.pages["/rows.jsonl"] = file(jsonl([*RECORDS, {"question": ""}]))
    job = fetch(alice_client, site.url("/rows.jsonl"))
    columns = f"/alpha/datasets/uploads/{job.upload_id}"

    assert alice_client.post(columns, MAPPING).status_code == 422
    alice_client.post(columns, {**MAPPING, "leave_out": "1"})

    assert DatasetVersion.objects.get().num_left_out == 1


def test_a_link_makes_a_new_version_of_a_dataset(alice_client, site):
    site.pages["/rows.jsonl"] = file(ROWS)
    job = fetch(alice_client, site.url("/rows.jsonl"))
    alice_client.post(f"/alpha/datasets/uploads/{job.upload_id}", MAPPING)
    first = DatasetVersion.objects.get()
    site.pages["/rows.jsonl"] = file(jsonl(RECORDS[:1]))

    job = give(alice_client, site.url("/rows.jsonl"), f"?dataset={first.dataset_id}")
    do(take_up())
    alice_client.post(f"/alpha/datasets/uploads/{job.upload_id}", MAPPING)

    assert [v.num_rows for v in first.dataset.versions.order_by("number")] == [2, 1]


def test_an_invalid_link_is_an_error_of_the_form(alice_client):
    for link, code in {
        "http://127.0.0.1/rows.jsonl": "datasets.host_not_allowed",
        "http://[::ffff:a9fe:a9fe]/": "datasets.host_not_allowed",
        "https://a:b@example.com/": "invalid",
        "file:///etc/passwd": "invalid",
        "no link": "datasets.invalid_link",
        "": "required",
    }.items():
        answer = alice_client.post(PAGE, {"link": link})

        assert answer.status_code == 422
        assert answer.context["link"].has_error("link", code), link
    assert Upload.objects.count() == 0


def test_a_second_click_finds_the_download_under_way(alice_client, site):
    first = give(alice_client, site.url("/rows.jsonl"))

    again = give(alice_client, site.url("/rows.jsonl"))

    assert again == first


def test_an_error_does_not_quote_the_response(alice_client, site):
    for served, fragment in (
        (page(b"<!DOCTYPE html><p>secret"), "XML document"),
        (page(b"\xef\xbb\xbf \n<html>secret"), "XML document"),
        (page(b"secret=of-the-house", Content_Type="text/html"), "web page"),
        (status(401), "status 401"),
        (status(404), "status 404"),
        (page(b""), "empty"),
        (page(b"[secret]\nnothing but prose\n"), "first 2 rows"),
        (page(b"PK\x03\x04secret"), "zip archive"),
    ):
        site.pages["/rows.jsonl"] = served

        job = fetch(alice_client, site.url("/rows.jsonl?sig=hush"))

        assert job.state == JobState.FAILED
        assert fragment in job.error
        text = text_of(alice_client, job)
        assert "secret" not in text
        assert "hush" not in text
        assert 'name="again"' in text
        assert Upload.objects.latest("pk").files == []


def test_a_gzip_bomb_is_refused(alice_client, site, monkeypatch):
    line = json.dumps({"question": "2+2?", "solution": "4", "more": "x" * 50}) + "\n"
    bomb = gzip.compress(line.encode() * 40_000)
    monkeypatch.setattr(
        "dashboard.datasets.parsing.streams.UNPACKED_FLOOR_BYTES", 100_000
    )
    site.pages["/rows.jsonl.gz"] = file(bomb)
    job = fetch(alice_client, site.url("/rows.jsonl.gz"))
    assert job.state == JobState.DONE, "its beginning is good"

    answer = alice_client.post(
        f"/alpha/datasets/uploads/{job.upload_id}", {**MAPPING, "columns": []}
    )
    do_all("dataset.import")
    answer = alice_client.get(f"/alpha/datasets/uploads/{job.upload_id}")

    assert answer.context["refusals"].ends_file
    assert DatasetVersion.objects.count() == 0


def test_a_file_of_zeros_is_refused(alice_client, site):
    site.pages["/rows.jsonl.gz"] = file(gzip.compress(b"\x00" * 30_000_000))

    job = fetch(alice_client, site.url("/rows.jsonl.gz"))

    assert job.state == JobState.FAILED


def test_the_page_shows_bytes_and_messages(alice_client, site):
    site.pages["/rows.jsonl"] = file(ROWS)
    job = give(alice_client, site.url("/rows.jsonl"))
    take_up()
    running = Job.objects.filter(importjob=job)

    running.update(done=3 * 2**20, message="It broke off.")
    text = text_of(alice_client, job)
    assert "3 MiB" in text
    assert "It broke off." in text

    running.update(total=9 * 2**20)
    assert "3 MiB of 9 MiB" in text_of(alice_client, job)


@pytest.mark.usefixtures("quick_pulse")
@pytest.mark.django_db(transaction=True)
def test_a_stopped_download_resumes(alice_client, site):
    body = ROWS * 500
    slow = drip(site, body, seconds=0.02, ETag='"one"')
    site.pages["/rows.jsonl"] = slow
    job = give(alice_client, site.url("/rows.jsonl"))
    claim = take_up()

    def run_job() -> None:
        run(Context(claim))
        connection.close()

    worker = threading.Thread(target=run_job)
    worker.start()
    while job.job.done == 0:
        assert worker.is_alive()
        job.refresh_from_db()

    alice_client.post(page_of(job), {"stop": "1"})
    worker.join(timeout=10)

    job.refresh_from_db()
    assert job.state == JobState.CANCELLED
    here = Upload.objects.get().num_received
    assert 0 < here < len(body)
    listed = alice_client.get("/alpha/datasets/").context["waiting"]
    assert [it.is_linked for it in listed] == [True]

    site.pages["/rows.jsonl"] = file(body)
    answer = alice_client.post(page_of(job), {"again": "1"})
    do(take_up())

    again = ImportJob.objects.latest("pk")
    assert answer["Location"] == page_of(again)
    assert again.state == JobState.DONE, again.error
    assert site.ranges()[-1] == f"bytes={here}-"


def test_a_lost_worker_keeps_the_downloaded_bytes(alice_client, site, monkeypatch):
    body = ROWS * 500
    site.pages["/rows.jsonl"] = file(body)
    job = give(alice_client, site.url("/rows.jsonl"))

    def killed(context: Context) -> None:
        if context.noted["done"] > 10_000:
            raise KeyboardInterrupt

    monkeypatch.setattr(download, "CHUNK_BYTES", 4_096)
    with pytest.raises(KeyboardInterrupt):
        do(take_up(), on_progress=killed)
    go_silent(job)
    reap()
    do(take_up())

    job.refresh_from_db()
    assert (job.state, job.job.attempt) == (JobState.DONE, 2)
    start = int(site.ranges()[-1].removeprefix("bytes=").rstrip("-"))
    assert start > 10_000


def test_a_worker_that_shuts_down_requeues_the_download(alice_client, site):
    site.pages["/rows.jsonl"] = file(ROWS)
    job = give(alice_client, site.url("/rows.jsonl"))

    def shut_down(*_: Any) -> None:
        raise JobReleased

    do(take_up(), on_progress=shut_down)

    job.refresh_from_db()
    assert (job.state, job.job.num_losses) == (JobState.QUEUED, 0)


def sips(site: Site, *, etag: str | None) -> Page:
    """Endless rows, resumable with an ETag."""
    data = {"ETag": etag} if etag else {}
    return drip(site, ROWS * 1_000, seconds=0.01, **data)


def run_beside_another(first: ImportJob) -> None:
    """Run it until it ends or pauses."""
    claim = take_up()
    assert target_of(claim) == first.pk
    run(Context(claim))
    first.refresh_from_db()


@pytest.mark.usefixtures("quick_pulse")
@pytest.mark.django_db(transaction=True)
def test_a_slow_download_pauses_for_another_and_keeps_its_bytes(
    alice_client, site, monkeypatch
):
    change_kind(monkeypatch, "dataset.fetch", turn_seconds=0.4)
    site.pages["/slow.jsonl"] = sips(site, etag='"one"')
    slow = give(alice_client, site.url("/slow.jsonl"))
    quick = give(alice_client, site.url("/rows.jsonl"))

    run_beside_another(slow)

    assert (slow.state, slow.job.num_losses) == (JobState.QUEUED, 0)
    assert slow.upload
    assert slow.upload.num_received > 0
    assert target_of(take_up()) == quick.pk


@pytest.mark.usefixtures("quick_pulse")
@pytest.mark.django_db(transaction=True)
def test_a_download_continues_while_no_other_waits(alice_client, site, monkeypatch):
    change_kind(monkeypatch, "dataset.fetch", turn_seconds=0.1)
    body = jsonl(RECORDS)
    site.pages["/slow.jsonl"] = drip(site, body, seconds=0.6 / len(body))
    slow = give(alice_client, site.url("/slow.jsonl"))

    run_beside_another(slow)

    assert slow.state == JobState.DONE


@pytest.mark.usefixtures("quick_pulse")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_quick", [True, False])
def test_a_download_that_cannot_resume_pauses_only_if_slow(
    alice_client, site, monkeypatch, is_quick
):
    change_kind(monkeypatch, "dataset.fetch", turn_seconds=0.1)
    monkeypatch.setattr(
        dataset_jobs, "QUICK_BYTES_PER_SECOND", 1 if is_quick else 10**6
    )
    body = jsonl(RECORDS)
    site.pages["/slow.jsonl"] = drip(site, body, seconds=0.6 / len(body))
    slow = give(alice_client, site.url("/slow.jsonl"))
    give(alice_client, site.url("/rows.jsonl"))

    run_beside_another(slow)

    assert slow.state == (JobState.DONE if is_quick else JobState.QUEUED)


def test_teams_take_turns(alice_client, site):
    """Independent of the number of downloads of a team."""
    first, second, third = (
        give(alice_client, site.url(f"/{name}.jsonl")) for name in "abc"
    )
    team = Team.objects.create(slug="late", name="Late")
    upload = third.upload
    assert upload
    Upload.objects.filter(pk=upload.pk).update(team=team)
    Job.objects.filter(importjob=third).update(team=team)

    taken = [target_of(take_up(f"worker-{n}")) for n in range(3)]

    assert taken == [first.pk, third.pk, second.pk]


def test_a_download_does_not_block_imports(alice_client, site, monkeypatch):
    monkeypatch.setattr("dashboard.datasets.imports.AT_ONCE_BYTES", -1)
    site.pages["/rows.jsonl"] = file(ROWS)
    done = fetch(alice_client, site.url("/rows.jsonl"))
    give(alice_client, site.url("/a.jsonl"))
    second = give(alice_client, site.url("/b.jsonl"))
    take_up("default@here")
    alice_client.post(f"/alpha/datasets/uploads/{done.upload_id}", MAPPING)
    Job.objects.update(created_at=timezone.now() - timedelta(minutes=1))

    assert claim_next(IMPORTS, "default@here")
    assert "Position 1 in" in text_of(alice_client, second)


def test_a_downloaded_file_outlives_its_job(alice_client, site):
    site.pages["/rows.jsonl"] = file(ROWS)
    fetch(alice_client, site.url("/rows.jsonl"))

    purge_uploads()

    assert Upload.objects.get().path.read_bytes() == ROWS


def test_a_discarded_download_leaves_nothing(alice_client, site):
    site.pages["/rows.jsonl"] = file(ROWS * 9, breaks_at=(90,) * 40)
    job = fetch(alice_client, site.url("/rows.jsonl"))
    files = Upload.objects.get().files
    assert job.state == JobState.FAILED
    assert files

    alice_client.post(f"/alpha/datasets/uploads/{job.upload_id}", {"discard": "1"})

    assert Upload.objects.count() == 0
    assert not any(each.exists() for each in files)


def test_deleting_a_dataset_cancels_its_downloads(
    alice_client, team, alice, site, django_capture_on_commit_callbacks
):
    dataset = store_dataset(team, [Row(prompt="1+1=")]).dataset
    for path in ("/one.jsonl", "/two.jsonl", "/three.jsonl"):
        site.pages[path] = file(ROWS)
        give(alice_client, site.url(path), query=f"?dataset={dataset.pk}")
    stopped, working, waiting = ImportJob.objects.order_by("pk")
    begun = Upload.objects.get(jobs=stopped)
    begun.path.parent.mkdir(parents=True, exist_ok=True)
    before = set(begun.path.parent.iterdir())
    part = begun.path.with_name(f"{begun.stored_name}.part0")
    part.write_bytes(ROWS[:10])
    request_stop(stopped)
    claim = take_up()
    trash_dataset(dataset, alice)

    def delete(context: Context) -> None:
        if context.noted.get("done") and Dataset.objects.exists():
            with django_capture_on_commit_callbacks(execute=True):
                delete_dataset(dataset, alice)

    do(claim, on_progress=delete)

    assert not Upload.objects.exists()
    assert set(part.parent.iterdir()) == before
    ended = dict(Job.objects.values_list("target_id", "state"))
    assert ended == {
        stopped.pk: JobState.CANCELLED,
        working.pk: JobState.FAILED,
        waiting.pk: JobState.CANCELLED,
    }


def test_the_quota_of_the_team_limits_a_download(alice_client, site, monkeypatch):
    monkeypatch.setattr(fetches, "MAX_TEAM_BYTES", 100)
    site.pages["/rows.jsonl"] = file(ROWS * 50)

    job = fetch(alice_client, site.url("/rows.jsonl"))

    assert job.state == JobState.FAILED
    assert "limit is 100" in job.error


def test_a_download_accepts_no_parts(alice_client, alice, site):
    """Only the worker writes its bytes and completes it."""
    job = give(alice_client, site.url("/rows.jsonl"))
    parts = f"/alpha/datasets/uploads/{job.upload_id}/parts?offset=0"

    sent = alice_client.post(parts, b"x", content_type="application/octet-stream")
    finished = alice_client.post(PAGE, {"upload": job.upload_id})

    assert (sent.status_code, finished.status_code) == (404, 404)
    assert not Upload.objects.get().is_whole


def test_an_unresolvable_host_is_shown_on_the_page(alice_client):
    job = fetch(alice_client, "https://no-such-host.invalid/rows.jsonl")

    assert job.state == JobState.FAILED
    assert "no-such-host.invalid" in job.error
    assert job.error in unescape(text_of(alice_client, job))


def test_a_full_disk_fails_the_download(alice_client, site, monkeypatch):
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(download.os, "write", full)
    site.pages["/rows.jsonl"] = file(ROWS)

    job = fetch(alice_client, site.url("/rows.jsonl"))

    assert "is full" in job.error


def test_a_compressed_response_is_read(alice_client, site):
    packed = page(gzip.compress(ROWS), Content_Encoding="gzip")
    site.pages["/rows.jsonl"] = packed

    job = fetch(alice_client, site.url("/rows.jsonl"))

    assert job.state == JobState.DONE, job.error
    assert Upload.objects.get().packing == "gzip"


def test_bytes_of_an_unknown_length_count_for_the_teams_share(
    alice_client, site, monkeypatch
):
    monkeypatch.setattr(fetches, "DISK_CHECK_BYTES", 1_000)
    monkeypatch.setattr(download, "CHUNK_BYTES", 1_000)
    site.pages["/rows.jsonl"] = page(ROWS * 100, Content_Length=None)
    seen: list[int] = []

    def record(*_: Any) -> None:
        seen.append(Upload.objects.get().num_bytes)

    give(alice_client, site.url("/rows.jsonl"))
    do(take_up(), on_progress=record)

    assert any(0 < num_bytes < len(ROWS) * 100 for num_bytes in seen)
