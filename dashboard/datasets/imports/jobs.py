"""Imports as jobs. Every change of a job's state is one guarded UPDATE.

Times are the database's own, so workers' clocks do not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import IntegrityError, connection, transaction
from django.db.models import F, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Now

from dashboard.accounts.models import User
from dashboard.accounts.services import record
from dashboard.datasets.imports.mapping import Mapping
from dashboard.datasets.models import ImportJob, Upload
from dashboard.waking import DAY_SECONDS, wake

State = ImportJob.State
GONE_AFTER = timedelta(
    seconds=20
)  # without a heartbeat, of which there is one a second
MAX_ATTEMPTS = 3
TURN_SECONDS = 600.0  # of a download, while others wait
QUICK_BYTES_PER_SECOND = 10**6
CLAIM_LOCK = 0x496D706F  # any number of our own, the same in every process


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right to work on a job, until somebody else claims it."""

    job_id: int
    attempt: int

    def held(self) -> QuerySet[ImportJob]:
        """The job; none when it is no longer ours."""
        return ImportJob.objects.filter(
            pk=self.job_id, attempt=self.attempt, state=State.RUNNING
        )

    def end(self, state: ImportJob.State, **result: Any) -> bool:
        """False where somebody else has the job by now."""
        ended = self.held().update(state=state, ended_at=Now(), **result)
        return bool(ended)


def start_job(
    *,
    upload: Upload,
    mapping: Mapping,
    name: str,
    user: User | None,
    leave_out: int = 0,
) -> tuple[ImportJob, bool]:
    """The upload's job, and whether it is new: a second click starts nothing."""
    return _start(
        upload,
        user,
        filename=upload.filename,
        num_to_read=upload.num_bytes,
        name=name,
        mapping=mapping.as_json(),
        leave_out=leave_out,
    )


def start_fetch(
    *, upload: Upload, filename: str, user: User | None
) -> tuple[ImportJob, bool]:
    """The job that brings the file here, and whether it is new."""
    kind = ImportJob.Kind.FETCH
    return _start(upload, user, kind=kind, filename=filename[-200:], num_to_read=0)


def _start(upload: Upload, user: User | None, **fields: Any) -> tuple[ImportJob, bool]:
    try:
        with transaction.atomic():
            job = ImportJob.objects.create(
                team=upload.team, upload=upload, created_by=user, **fields
            )
    except IntegrityError:
        return ImportJob.objects.filter(upload=upload).latest("pk"), False
    return job, True


def claim_job(job_id: int, worker: str) -> Claim | None:
    """Take one queued job; None when another process got there first."""
    with transaction.atomic():
        queued = ImportJob.objects.filter(pk=job_id, state=State.QUEUED)
        if not queued.update(
            state=State.RUNNING,
            attempt=F("attempt") + 1,
            worker=worker,
            heartbeat=Now(),
            num_read=0,
            num_rows_stored=0,
            num_rows=0,
        ):
            return None
        # Our own UPDATE holds the row's lock, so this is the attempt it made.
        attempt = ImportJob.objects.values_list("attempt", flat=True).get(pk=job_id)
    return Claim(job_id=job_id, attempt=attempt)


@transaction.atomic
def claim_next(worker: str) -> Claim | None:
    """Take a queued job, unless this worker is at one of its kind already.

    Its other slots stay free for what must not wait for minutes, such as dispatching.
    Teams take turns: the job is the oldest of the team that waits longest for one.
    """
    with connection.cursor() as cursor:  # two slots may look at the same time
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [CLAIM_LOCK])
    busy = _alive().filter(worker=worker).values("kind")
    waiting = _in_turn(queued_jobs().exclude(kind__in=busy))
    for job_id in waiting.values_list("pk", flat=True)[:100]:
        if claim := claim_job(job_id, worker):
            return claim
    return None


def _in_turn(waiting: QuerySet[ImportJob]) -> QuerySet[ImportJob]:
    of_team = ImportJob.objects.filter(
        team=OuterRef("team"),
        kind=OuterRef("kind"),
        heartbeat__gte=Now() - timedelta(days=1),
    )
    served = of_team.order_by("-heartbeat").values("heartbeat")[:1]
    return waiting.annotate(served_at=Subquery(served)).order_by(
        F("served_at").asc(nulls_first=True), "queued_at", "pk"
    )


def is_to_give_way(claim: Claim, num_seconds: float) -> bool:
    """Whether a download of so many seconds holds others up.

    One that could not be gone on with is spared while it gets on.
    """
    job = claim.held().filter(kind=ImportJob.Kind.FETCH).first()
    if job is None or num_seconds < TURN_SECONDS:
        return False
    begins_anew = Q(origin__kind="link", origin__seen__validator="")
    if (
        job.num_read > QUICK_BYTES_PER_SECOND * num_seconds
        and Upload.objects.filter(begins_anew, jobs=job).exists()
    ):
        return False
    return queued_jobs().filter(kind=job.kind).exists()


def queued_jobs() -> QuerySet[ImportJob]:
    """Oldest first."""
    return ImportJob.objects.filter(state=State.QUEUED).order_by("created_at", "pk")


def _alive() -> QuerySet[ImportJob]:
    return ImportJob.objects.filter(
        state=State.RUNNING, heartbeat__gte=Now() - GONE_AFTER
    )


def put_back(claim: Claim, *, is_attempt: bool) -> bool:
    """Into the queue again, from the beginning; False when it is not ours to put."""
    attempt = F("attempt") if is_attempt else F("attempt") - 1
    held = claim.held().filter(stop_requested=False)
    return bool(held.update(state=State.QUEUED, queued_at=Now(), attempt=attempt))


@transaction.atomic
def request_stop(job: ImportJob, user: User | None = None) -> bool:
    """Stop it now where nobody works on it; False when it has ended.

    Without a user it is part of another act, which is written down by itself.
    """
    same = ImportJob.objects.filter(pk=job.pk)
    is_asked = bool(
        same.filter(state=State.QUEUED).update(state=State.CANCELLED, ended_at=Now())
        or same.filter(state=State.RUNNING).update(stop_requested=True)
    )
    if is_asked and user is not None:
        record(job.team, user, "import.stop_requested", job, name=str(job))
    return is_asked


def reap(jobs: QuerySet[ImportJob] | None = None) -> None:
    """Put back, or end, jobs whose worker was not heard of. Nothing was stored."""
    jobs = ImportJob.objects.all() if jobs is None else jobs
    lost = jobs.filter(state=State.RUNNING, heartbeat__lt=Now() - GONE_AFTER)
    lost.filter(stop_requested=True).update(state=State.CANCELLED, ended_at=Now())
    lost.filter(attempt__gte=MAX_ATTEMPTS).update(
        state=State.FAILED,
        ended_at=Now(),
        problem=f"{MAX_ATTEMPTS} times its worker ended in the middle of it, perhaps "
        "for want of memory. Nothing was stored. Look into the log of the default "
        "worker, then try again.",
    )
    lost.update(state=State.QUEUED, queued_at=Now())


def tend() -> None:
    """Find jobs whose worker is gone, and ring for those that wait."""
    reap()
    if queued_jobs().exists():
        ring_importers()


def ring_importers() -> None:
    """Wake a default worker. Best effort: beat has it rung again every 5 s."""
    wake("datasets.work", queue="default", expires=DAY_SECONDS)


def waiting_text(job: ImportJob) -> str:
    """Why a queued job is not being worked on, once that takes noticeably long."""
    late = timedelta(seconds=4)
    if not ImportJob.objects.filter(pk=job.pk, queued_at__lt=Now() - late).exists():
        return ""
    what = "download" if job.is_fetch else "import"
    if _alive().filter(kind=job.kind).exists():
        turns = (
            f" A download gives way after {TURN_SECONDS / 60:g} minutes, what has "
            "arrived is kept, and teams take turns."
            if job.is_fetch
            else " Teams take turns."
        )
        return f"It waits for its turn: a worker does one {what} at a time.{turns}"
    return (
        f"No worker has taken it up yet. {what.capitalize()}s are done by the default "
        "worker, which `make run` starts and whose log is default-worker.log. The "
        f"{what} begins as soon as one runs; you may close this page."
    )
