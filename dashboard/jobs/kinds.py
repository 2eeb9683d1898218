"""The kinds of jobs, and the context of their handlers.

Each app registers its kinds in its `jobs` module. These modules are loaded when a kind
is first needed, so commands without jobs do not import them.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from django.db.models import Count, QuerySet
from django.db.models.functions import Now
from django.utils import timezone
from django.utils.module_loading import autodiscover_modules

from dashboard.jobs.models import OPEN, Job, JobState, JobTarget
from dashboard.project.database import clean_text

_kinds: dict[str, Kind] = {}
_purges: list[Callable[[], object]] = []
Target = TypeVar("Target", bound=JobTarget)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """The work of jobs of this name, and the workers that do it.

    Attributes:
        run: does the work; it is given back, cancelled and ended by `runner`.
        noun: the job in a sentence, as "import".
        queue: Celery's queue, whose workers do it.
        lane: jobs of one lane take turns, and a worker does one of them at a time, so
            that its other slots stay free; "" for the kind alone.
        is_exclusive: whether that holds; False where a slot is meant for such work.
        max_losses: after so many lost workers in a row the job fails.
        turn_seconds: after these a job gives way to another team's of its lane;
            with `yields_to_own_team` to any that waits.
        lease: without a heartbeat for so long, the worker is taken for lost.
        fits_beside: whether the job of this target may run on the CPU while runs hold
            the worker; None where no job of the kind may.
    """

    name: str
    run: Callable[[Context], None]
    noun: str
    queue: str = "default"
    lane: str = ""
    is_exclusive: bool = True
    max_losses: int = 3
    turn_seconds: float | None = None
    yields_to_own_team: bool = False
    lease: timedelta = timedelta(seconds=20)
    fits_beside: Callable[[int], bool] | None = None


@cache
def _discover() -> None:
    autodiscover_modules("jobs")


def register(kind: Kind) -> None:
    _kinds[kind.name] = kind


def register_purge(purge: Callable[[], object]) -> None:
    """Have it called each hour: it deletes what is too old.

    Registered by a module that workers load: `jobs` of an app, or one of its tasks.
    """
    _purges.append(purge)


def delete_old(rows: QuerySet[Target], *, keep: timedelta, most: int) -> int:
    """Delete targets whose jobs ended so long ago, and all but a team's newest. Returns
    how many.

    Queued and running jobs stay.
    """
    ended = rows.exclude(job__state__in=OPEN)
    num_old = _delete(ended.filter(job__finished_at__lt=timezone.now() - keep))
    counted = ended.order_by().values("team").annotate(count=Count("pk"))
    for team_id in counted.filter(count__gt=most).values_list("team", flat=True):
        too_many = list(
            ended.filter(team=team_id)
            .order_by("-pk")
            .values_list("pk", flat=True)[most:]
        )
        num_old += _delete(rows.filter(pk__in=too_many))
    return num_old


def _delete(rows: QuerySet[Target]) -> int:
    return rows.delete()[1].get(rows.model._meta.label, 0)


def delete_folders(parent: Path, needed: QuerySet[Any]) -> None:
    """Delete this machine's numbered folders of rows that are not among the needed.

    Each worker does so for itself: they need not share a disk.
    """
    if not parent.is_dir():
        return
    folders = {int(p.name): p for p in parent.iterdir() if p.name.isdecimal()}
    kept = needed.filter(pk__in=folders).values_list("pk", flat=True)
    for pk in folders.keys() - set(kept):
        shutil.rmtree(folders[pk], ignore_errors=True)


def all_purges() -> Collection[Callable[[], object]]:
    _discover()
    return tuple(_purges)


def kind_of(name: str) -> Kind:
    """KeyError for a kind that this version of Cohort does not know."""
    _discover()
    return _kinds[name]


def all_kinds() -> Collection[Kind]:
    _discover()
    return _kinds.values()


def lanes_of(queue: str) -> list[str]:
    """List lanes in the order in which they were registered."""
    return list(
        dict.fromkeys(lane_of(kind) for kind in all_kinds() if kind.queue == queue)
    )


def names_of(lane: str) -> list[str]:
    return [kind.name for kind in all_kinds() if lane_of(kind) == lane]


def lane_of(kind: Kind) -> str:
    return kind.lane or kind.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right to work on a job, until another worker claims it."""

    job_id: int
    attempt: int

    def held(self) -> QuerySet[Job]:
        """Return the job's row for a guarded UPDATE; none once the job is lost."""
        return Job.objects.filter(
            pk=self.job_id, attempt=self.attempt, state=JobState.RUNNING
        )

    def end(self, state: JobState, **changes: Any) -> bool:
        """False where another worker has the job by now."""
        return bool(
            self.held().update(
                state=state, finished_at=Now(), lease_until=None, **changes
            )
        )

    def release(self, **changes: Any) -> bool:
        """Queue it again; False if another worker has it or it is being cancelled."""
        return bool(
            self.held()
            .filter(cancel_requested=False)
            .update(state=JobState.QUEUED, worker="", lease_until=None, **changes)
        )


class JobInterrupted(Exception):
    """The job must stop without storing anything more."""


class JobCancelled(JobInterrupted):
    """Its cancellation was requested."""


class LeaseLost(JobInterrupted):
    """Another process ended the job, or has it now."""


class JobReleased(JobInterrupted):
    """It continues later: the worker shuts down, or other jobs have their turn."""


class Context:
    """A job as its handler sees it, and how it reports.

    Attributes:
        job: as it was claimed.
        is_beside: whether a run holds this worker, and its GPU.
        gives_way: whether the job may be released after its turn; a handler may set it
            to spare work that could not be gone on with.
        on_interrupt: called once, from the heartbeat's thread, when the job is
            cancelled or lost; for a handler that waits and can't report.
    """

    def __init__(
        self, claim: Claim, *, is_shutting_down: Callable[[], bool] = lambda: False
    ) -> None:
        self.claim = claim
        self.job = Job.objects.select_related("team", "created_by").get(pk=claim.job_id)
        self.kind = kind_of(self.job.kind)
        self.is_beside = False
        self.gives_way: Callable[[], bool] = lambda: True
        self.on_interrupt: Callable[[], None] = lambda: None
        self.interruption: type[JobInterrupted] | None = None
        self.is_shutting_down = is_shutting_down
        self.noted: dict[str, Any] = {}
        self.began = time.monotonic()

    def note(
        self,
        done: int | None = None,
        total: int | None = None,
        *,
        unit: str | None = None,
        message: str | None = None,
    ) -> None:
        """Note how far it is; written with the next heartbeat."""
        message = None if message is None else clean_text(message)
        progress = {"done": done, "total": total, "unit": unit, "message": message}
        self.noted |= {name: v for name, v in progress.items() if v is not None}

    def progress(
        self, done: int | None = None, total: int | None = None, **more: Any
    ) -> None:
        """Note progress, as `note`. Raises JobInterrupted if the job must stop."""
        self.note(done, total, **more)
        self.check()

    def check(self) -> None:
        """Raises JobInterrupted if the job must stop."""
        if self.interruption is not None:
            raise self.interruption
        if self.is_shutting_down():
            raise JobReleased

    def held(self) -> QuerySet[Job]:
        """Return the job's row for a guarded UPDATE; none once the job is lost."""
        return self.claim.held()

    def seal(self) -> None:
        """Mark it done within the transaction that stores its result, so both appear
        together.

        Raises JobInterrupted if the job was lost or cancelled.
        """
        mine = self.held().filter(cancel_requested=False)
        if not mine.update(
            state=JobState.DONE, finished_at=Now(), lease_until=None, **self.noted
        ):
            raise LeaseLost
