"""Jobs are enqueued, claimed in turn, cancelled, and reaped when their worker is lost.

Every change of a job's state is one guarded UPDATE. Times are the database's own, so
workers' clocks do not matter.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import (
    Case,
    DateTimeField,
    F,
    Func,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Value,
    When,
)
from django.db.models.functions import Coalesce, Now
from django.db.models.lookups import GreaterThan, LessThan

from dashboard.accounts.models import Team, User
from dashboard.accounts.services import record
from dashboard.jobs.kinds import Claim, all_kinds, kind_of, lane_of, names_of
from dashboard.jobs.models import OPEN, Job, JobState, JobTarget
from dashboard.jobs.schedule import DAY_SECONDS, wake_workers
from dashboard.project.errors import UserError

MAX_WAITING = 8  # of a team in a lane, when it opens a page
RETRY_SECONDS = 10  # after the first outage of the database; three times it after each
SERVED_WINDOW = timedelta(days=1)  # for how long it counts that a team was served
LATE = timedelta(seconds=4)
RETRY_FAILED_AFTER = timedelta(minutes=2)
GRACE = timedelta(seconds=20)  # for heartbeats, after the database's start


class DatabaseStart(Func):
    function = "pg_postmaster_start_time"
    output_field = DateTimeField()


def enqueue(
    kind: str,
    target_id: int,
    *,
    team_id: int,
    user: User | None = None,
    notify: bool = True,
    **fields: Any,
) -> Job:
    """Return the open job of this target: a new one, or the existing one.

    `notify`: whether workers are woken once it is committed.
    """
    fields |= {"kind": kind, "target_id": target_id, "team_id": team_id}
    try:
        with transaction.atomic():
            job = Job.objects.create(created_by=user, **fields)
    except IntegrityError:
        if there := newest_job(kind, target_id, is_open=True):
            return there
        job = Job.objects.create(created_by=user, **fields)  # it has just ended
    if notify:
        transaction.on_commit(lambda: notify_workers(kind_of(kind).queue))
    return job


def enqueue_few(kind: str, target_id: int, *, team_id: int) -> Job | None:
    """Enqueue, as `enqueue`; None if enough of the team's jobs in the lane wait
    already.
    """
    if job := newest_job(kind, target_id, is_open=True):
        return job
    waiting = Job.objects.filter(
        team_id=team_id,
        kind__in=names_of(lane_of(kind_of(kind))),
        state=JobState.QUEUED,
    )
    if waiting.count() >= MAX_WAITING:
        return None
    return enqueue(kind, target_id, team_id=team_id)


def newest_job(kind: str, target_id: int, *, is_open: bool = False) -> Job | None:
    jobs = Job.objects.filter(kind=kind, target_id=target_id)
    if is_open:
        jobs = jobs.filter(state__in=OPEN)
    return jobs.order_by("-pk").first()


def should_enqueue(job: Job | None) -> bool:
    """Return whether a page that lacks a result enqueues it: what failed may be
    fixed.
    """
    if job is None or job.state in (JobState.DONE, JobState.CANCELLED):
        return True
    return Job.objects.filter(
        pk=job.pk, state=JobState.FAILED, finished_at__lt=Now() - RETRY_FAILED_AFTER
    ).exists()


def notify_workers(queue: str) -> None:
    """Best effort: the reaper does it again every 5 s while a job waits."""
    wake_workers("jobs.work", queue=queue, expires=DAY_SECONDS, args=[queue])


def claim_job(job_id: int, worker: str) -> Claim | None:
    """Claim one queued job; None if another worker was faster."""
    with transaction.atomic():
        queued = Job.objects.filter(pk=job_id, state=JobState.QUEUED)
        kind = queued.values_list("kind", flat=True).first()
        if kind is None or not queued.update(
            state=JobState.RUNNING,
            attempt=F("attempt") + 1,
            worker=worker,
            lease_until=Now() + kind_of(kind).lease,
            not_before=None,
            served_at=Now(),
            started_at=Coalesce("started_at", Now()),
        ):
            return None
        # Our UPDATE holds the row's lock, so this is the attempt that it set.
        attempt = Job.objects.values_list("attempt", flat=True).get(pk=job_id)
    return Claim(job_id=job_id, attempt=attempt)


def claim_next(names: Collection[str], worker: str) -> Claim | None:
    """Claim the oldest job of the team that was served longest ago."""
    for job_id in _in_order(names).values_list("pk", flat=True)[:100]:
        if claim := claim_job(job_id, worker):
            return claim
    return None


def claim_beside(queue: str, worker: str) -> Claim | None:
    """Claim a job that no free worker has taken and that may run beside a run."""
    checks = {
        kind.name: kind.fits_beside for kind in all_kinds() if kind.queue == queue
    }
    late = due_jobs().filter(created_at__lt=Now() - LATE, kind__in=checks)
    for job in late.order_by("pk")[:MAX_WAITING]:
        fits = checks[job.kind]
        if fits and fits(job.target_id) and (claim := claim_job(job.pk, worker)):
            return claim
    return None


def due_jobs() -> QuerySet[Job]:
    return Job.objects.filter(
        Q(not_before=None) | Q(not_before__lte=Now()), state=JobState.QUEUED
    )


def _in_order(names: Collection[str]) -> QuerySet[Job]:
    served = (
        Job.objects.filter(
            team=OuterRef("team"), kind__in=names, served_at__gte=Now() - SERVED_WINDOW
        )
        .order_by("-served_at")
        .values("served_at")[:1]
    )
    waiting = due_jobs().filter(kind__in=names)
    return waiting.annotate(team_served_at=Subquery(served)).order_by(
        F("team_served_at").asc(nulls_first=True),
        F("served_at").asc(nulls_first=True),  # one that gave way comes last
        "pk",
    )


def cancel(job: Job | None) -> bool:
    """Cancel it now if no worker has it, else notify the worker; False if ended."""
    if job is None:
        return False
    waits = Q(state=JobState.QUEUED)
    # One UPDATE: the job may be released or claimed at any moment.
    return bool(
        Job.objects.filter(pk=job.pk, state__in=OPEN, cancel_requested=False).update(
            cancel_requested=True,
            state=Case(When(waits, then=Value(JobState.CANCELLED)), default=F("state")),
            finished_at=Case(When(waits, then=Now()), default=F("finished_at")),
        )
    )


def request_stop(target: JobTarget, user: User | None, verb: str) -> bool:
    """Cancel a row's job, with an audit entry; False if it has ended or is stopping."""
    job = target.job
    if job is None or not cancel(job):
        return False
    record(job.team, user, verb, target)
    return True


def check_open(
    team: Team, rows: QuerySet[Any], *, most: int, nouns: str, code: str
) -> None:
    """UserError if a team has so many rows with open jobs that no other may begin."""
    # Otherwise two concurrent starts could both pass the limit.
    Team.objects.select_for_update(no_key=True).get(pk=team.pk)
    num_open = rows.filter(team=team, job__state__in=OPEN).count()
    if num_open >= most:
        raise UserError(
            code,
            f"{team} already has {num_open} open {nouns}. Stop one, or wait until one "
            "ends.",
        )


def reap(jobs: QuerySet[Job] | None = None) -> None:
    """Requeue or end jobs whose worker sends no heartbeat.

    `jobs` must not join, or the UPDATE below is not guarded.
    """
    jobs = Job.objects.all() if jobs is None else jobs
    # A lease that ran out while the database was away has time to be renewed.
    begun_since = GreaterThan(F("served_at"), DatabaseStart())
    is_up = LessThan(DatabaseStart(), Now() - GRACE)
    lost = jobs.filter(
        Q(begun_since) | Q(is_up), state=JobState.RUNNING, lease_until__lt=Now()
    )
    if not lost.exists():
        return
    lost.filter(cancel_requested=True).update(
        state=JobState.CANCELLED, finished_at=Now(), lease_until=None
    )
    for kind in all_kinds():
        lost.filter(kind=kind.name, num_losses__gte=kind.max_losses - 1).update(
            state=JobState.FAILED,
            finished_at=Now(),
            lease_until=None,
            error=f"The worker died {kind.max_losses} times during this {kind.noun}, "
            f"possibly out of memory. Read the log of the {kind.queue} worker, "
            "then try again.",
        )
    lost.update(
        state=JobState.QUEUED,
        num_losses=F("num_losses") + 1,
        worker="",
        lease_until=None,
    )


def reap_of(target: JobTarget) -> None:
    """Reap one row, for its page: the worker that ended may be the one that reaps."""
    if target.job:
        reap(Job.objects.filter(pk=target.job.pk))


def waiting_queues() -> set[str]:
    """Return the queues in which a job is due."""
    names = set(due_jobs().values_list("kind", flat=True).distinct())
    return {kind.queue for kind in all_kinds() if kind.name in names}


def waiting_reason(job: Job) -> str:
    """Return why a job is still queued; empty until that takes noticeably long."""
    queued = Job.objects.filter(pk=job.pk, state=JobState.QUEUED)
    if not queued.filter(created_at__lt=Now() - LATE).exists():
        return ""
    kind = kind_of(job.kind)
    if queued.filter(not_before__gt=Now()).exists():
        return (
            f"The database failed to store the {kind.noun}. Cohort retries within "
            "a minute."
        )
    if (
        Job.objects.filter(kind__in=names_of(lane_of(kind)))
        .filter(state=JobState.RUNNING, lease_until__gte=Now())
        .exists()
    ):
        return (
            f"Position {queue_position(job):,} in your team's queue. Each worker "
            f"runs one {kind.noun} at a time, and teams take turns."
        )
    return (
        f"No worker has started this {kind.noun}. Check that a {kind.queue} worker "
        f"is running (`make run` starts one; log: {kind.queue}-worker.log). You "
        "can close this page."
    )


def queue_position(job: Job) -> int:
    """Return the position of a queued job among its team's in the lane, from 1."""
    places = list(
        _in_order(names_of(lane_of(kind_of(job.kind))))
        .filter(team=job.team_id)
        .values_list("pk", flat=True)
    )
    return places.index(job.pk) + 1 if job.pk in places else len(places) + 1


def purge() -> None:
    """Delete ended jobs that no row refers to."""
    ended = Job.objects.filter(finished_at__lt=Now() - SERVED_WINDOW)
    for relation in Job._meta.related_objects:
        ended = ended.filter(**{f"{relation.name}__isnull": True})
    ended.delete()
