"""Seeing a claimed import through, whatever comes of it."""

from __future__ import annotations

import errno
from collections.abc import Callable

from django.conf import settings
from django.db import OperationalError, transaction
from django.db.models import F
from django.db.models.functions import Now

from dashboard.datasets.fetching.download import Report as ReportFetched
from dashboard.datasets.fetching.fetches import fetch_upload
from dashboard.datasets.imports.jobs import (
    MAX_ATTEMPTS,
    Claim,
    State,
    claim_job,
    put_back,
    ring_importers,
)
from dashboard.datasets.imports.mapping import Mapping
from dashboard.datasets.imports.pulse import Halted, Pulse
from dashboard.datasets.imports.uploads import import_upload, remove_files
from dashboard.datasets.models import DatasetVersion, ImportJob, Upload
from dashboard.datasets.parsing.refusals import ImportRefused
from dashboard.datasets.queries import find_upload
from dashboard.datasets.room import check_room_to_import
from dashboard.datasets.selections import make_selection
from dashboard.datasets.services import Report


def begin_work(job: ImportJob, *, at_once: bool) -> None:
    """Do what is small while the page is made; ring the workers for the rest."""
    if not at_once:
        transaction.on_commit(ring_importers)
    elif claim := claim_job(job.pk, worker="web"):  # None: a worker found it first
        work(claim)
    job.refresh_from_db()


def work_with_pulse(claim: Claim, *, is_shutting_down: Callable[[], bool]) -> None:
    """As a worker does it: heard of every second, and stopped when asked to."""
    with Pulse(claim, is_shutting_down=is_shutting_down) as pulse:
        work(
            claim,
            on_read=pulse.note_read,
            on_stored=pulse.note_stored,
            on_fetched=pulse.note_fetched,
        )


def work(
    claim: Claim,
    *,
    on_read: Report | None = None,
    on_stored: Report | None = None,
    on_fetched: ReportFetched = lambda *_: None,
) -> None:
    """Import or fetch, and write down what came of it."""
    try:
        job = claim.held().first()
        if job is None:
            raise Halted
        if job.is_fetch:
            _fetch(claim, job, on_fetched)
        else:
            _import(claim, job, on_read, on_stored)
    except ImportRefused as refused:
        claim.end(State.REFUSED, refusals=refused.refusals.as_json())
    except Halted:
        _halt(claim)
    except FileNotFoundError:
        claim.end(State.FAILED, problem=_gone(claim))
    except ValueError as error:
        claim.end(State.FAILED, problem=str(error))
    except OperationalError as error:
        _try_again(claim, error)
    except OSError as error:
        claim.end(State.FAILED, problem=_disk_fault(error))
    except Exception:
        problem = (
            "It ended by a fault of Cohort's own, which the log of the default worker "
            "tells of. Nothing was stored."
        )
        claim.end(State.FAILED, problem=problem)
        raise


def _fetch(claim: Claim, job: ImportJob, on_fetched: ReportFetched) -> None:
    upload = find_upload(job)
    if upload is None:
        raise FileNotFoundError(job.filename)
    try:
        fetch_upload(upload, on_fetched)
    finally:
        # Deleted with its dataset meanwhile; files that came since are nobody's.
        if not Upload.objects.filter(pk=upload.pk).exists():
            remove_files(upload)
    num_bytes = upload.num_bytes
    claim.end(State.DONE, problem="", num_read=num_bytes, num_to_read=num_bytes)


def _import(
    claim: Claim, job: ImportJob, on_read: Report | None, on_stored: Report | None
) -> None:

    def seal(version: DatasetVersion) -> None:
        """The version and the news of it are there at once, or neither."""
        claimed = claim.held().filter(stop_requested=False)
        is_mine = claimed.update(
            state=State.DONE,
            ended_at=Now(),
            version=version,
            made_version=True,
            num_read=F("num_to_read"),
            num_rows_stored=version.num_rows,
            num_rows=version.num_rows,
        )
        if not is_mine:
            raise Halted

    make = make_selection if job.upload_id is None else _import_file
    version = make(job, on_read=on_read, on_stored=on_stored, on_made=seal)
    claim.end(State.DONE, version=version)  # where these rows were there already


def _import_file(
    job: ImportJob,
    *,
    on_read: Report | None,
    on_stored: Report | None,
    on_made: Callable[[DatasetVersion], None],
) -> DatasetVersion:
    upload = find_upload(job)
    if upload is None:
        raise FileNotFoundError(job.filename)
    check_room_to_import(upload.num_bytes)
    return import_upload(
        upload=upload,
        mapping=Mapping.from_json(job.mapping),
        name=job.name,
        user=job.created_by,
        leave_out=job.leave_out,
        on_read=on_read,
        on_stored=on_stored,
        on_made=on_made,
    )


def _halt(claim: Claim) -> None:
    # Ours still, and nobody asked for its end: this worker is shutting down, or a
    # download gives way to others.
    if not put_back(claim, is_attempt=False):
        claim.end(State.CANCELLED)


def _gone(claim: Claim) -> str:
    job = ImportJob.objects.get(pk=claim.job_id)
    return (
        f"The file {job.filename} is not under {settings.COHORT_DATA} where the worker "
        "runs. Upload it again; where workers run on other machines, let them share "
        "that folder."
    )


def _try_again(claim: Claim, error: OperationalError) -> None:
    """After an outage, or a lock that was waited for too long."""
    if claim.attempt < MAX_ATTEMPTS and put_back(claim, is_attempt=True):
        return
    said = str(error).strip().split("\n")[0]
    claim.end(
        State.FAILED,
        problem=f"The database could not take the rows: {said}. Nothing was stored.",
    )


def _disk_fault(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return (
            f"The disk that holds {settings.COHORT_DATA} is full. Free some space "
            "there, then try again."
        )
    return (
        f"{error.strerror or error} under {settings.COHORT_DATA}. Nothing was stored."
    )
