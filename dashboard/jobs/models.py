"""Work that outlasts a request: one row per job of any kind.

The row is the truth. A worker claims it with one UPDATE and writes only while the row
names its claim; Redis only says that there is work.
"""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from django.db import models
from django.db.models import Q

from dashboard.accounts.models import Team, WithCreator


class JobState(models.TextChoices):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


OPEN = (JobState.QUEUED, JobState.RUNNING)


class Job(WithCreator):
    kind = models.CharField(max_length=40)  # a name in dashboard.jobs.kinds
    target_id = models.BigIntegerField()  # the row that the kind's handler works on
    team = models.ForeignKey(Team, models.CASCADE, related_name="jobs")
    state = models.CharField(max_length=10, choices=JobState, default=JobState.QUEUED)
    cancel_requested = models.BooleanField(default=False)
    # Of the newest claim; with the job's id it is the token that fences older ones off.
    attempt = models.PositiveIntegerField(default=0)
    # Attempts that ended with a lost worker or database, since the last progress kept.
    num_losses = models.PositiveSmallIntegerField(default=0)
    worker = models.CharField(max_length=200, blank=True)
    lease_until = models.DateTimeField(null=True, blank=True)
    not_before = models.DateTimeField(null=True, blank=True)

    done = models.BigIntegerField(default=0)
    total = models.BigIntegerField(default=0)  # 0: unknown
    unit = models.CharField(max_length=20, blank=True)  # of both, as "rows"
    message = models.TextField(blank=True)  # what it is at, or what delays it
    error = models.TextField(blank=True)

    served_at = models.DateTimeField(null=True, blank=True)  # the newest claim's
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["kind", "target_id"],
                condition=Q(state__in=("queued", "running")),
                name="job_open_once",
            ),
            models.CheckConstraint(
                condition=~Q(state="running") | Q(lease_until__isnull=False),
                name="job_running_has_lease",
            ),
            models.CheckConstraint(
                condition=Q(state__in=("queued", "running"), finished_at__isnull=True)
                | Q(
                    state__in=("done", "failed", "cancelled"),
                    finished_at__isnull=False,
                ),
                name="job_ended_has_time",
            ),
        ]
        indexes: ClassVar[list[models.Index]] = [
            # The reaper and the claims read only these.
            models.Index(
                fields=["kind", "state", "lease_until"],
                condition=Q(state__in=("queued", "running")),
                name="job_open",
            ),
            models.Index(fields=["kind", "target_id", "-id"], name="job_of_target"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.target_id}"

    @property
    def is_open(self) -> bool:
        return self.state in OPEN

    @property
    def is_stopping(self) -> bool:
        return self.state == JobState.RUNNING and self.cancel_requested


class JobTarget(WithCreator):
    """A row that a job works on; what the row means is its app's."""

    job = models.OneToOneField(
        Job, models.SET_NULL, null=True, blank=True, related_name="%(class)s"
    )

    class Meta:
        abstract = True

    @property
    def state(self) -> str:
        return self.job.state if self.job else ""

    @property
    def is_open(self) -> bool:
        return self.job is not None and self.job.is_open

    @property
    def is_stopping(self) -> bool:
        return self.job is not None and self.job.is_stopping

    @property
    def error(self) -> str:
        return self.job.error if self.job else ""

    @property
    def finished_at(self) -> datetime | None:
        return self.job.finished_at if self.job else None

    @property
    def num_done(self) -> int:
        """Its progress, such as the number of prompts sampled."""
        return self.job.done if self.job else 0
