"""Files of other tools that become a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from django.conf import settings
from django.db import models
from django.db.models import Q

from dashboard.accounts.models import Team
from dashboard.runs.models import Run


class RunImport(models.Model):
    """Files are sent, read, shown as what was understood, and made a run of."""

    class Phase(models.TextChoices):
        READ = "read"
        MAKE = "make"

    class State(models.TextChoices):
        OPEN = "open"  # files arrive
        QUEUED = "queued"
        RUNNING = "running"
        DONE = "done"
        FAILED = "failed"
        CANCELLED = "cancelled"

    LIVE = (State.QUEUED, State.RUNNING)

    team = models.ForeignKey(Team, models.CASCADE, related_name="+")
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True
    )
    created_at = models.DateTimeField(auto_now_add=True)
    phase = models.CharField(max_length=10, choices=Phase, default=Phase.READ)
    state = models.CharField(max_length=10, choices=State, default=State.OPEN)
    stop_requested = models.BooleanField(default=False)
    # Who works on it: each claim is one attempt more, so an older one can be told.
    attempt = models.PositiveIntegerField(default=0)
    heartbeat = models.DateTimeField(null=True, blank=True)
    queued_at = models.DateTimeField(null=True, blank=True)
    num_read = models.BigIntegerField(default=0)  # bytes
    num_to_read = models.BigIntegerField(default=0)
    num_stored = models.PositiveIntegerField(default=0)  # steps
    num_steps = models.PositiveIntegerField(default=0)  # known once all is read
    findings = models.JSONField[dict[str, Any]](default=dict, blank=True)
    choices = models.JSONField[dict[str, Any]](default=dict, blank=True)
    problem = models.TextField(blank=True)
    run = models.ForeignKey(
        Run, models.SET_NULL, null=True, blank=True, related_name="+"
    )
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(
                condition=~Q(state="running") | Q(heartbeat__isnull=False),
                name="run_import_running_has_heartbeat",
            ),
            models.CheckConstraint(
                condition=~Q(state="queued") | Q(queued_at__isnull=False),
                name="run_import_queued_has_time",
            ),
        ]

    def __str__(self) -> str:
        return f"Import {self.pk}"

    @property
    def is_live(self) -> bool:
        return self.state in self.LIVE

    @property
    def folder(self) -> Path:
        return Path(settings.COHORT_DATA) / "run-imports" / str(self.pk)


class ImportFile(models.Model):
    """One file of an import; the file itself tells how much of it is here."""

    run_import = models.ForeignKey(RunImport, models.CASCADE, related_name="files")
    filename = models.CharField(max_length=300)  # as the browser or the zip named it
    stored_name = models.CharField(max_length=40, unique=True)
    num_bytes = models.BigIntegerField()
    fingerprint = models.CharField(max_length=64, blank=True)

    def __str__(self) -> str:
        return self.filename

    @property
    def path(self) -> Path:
        return self.run_import.folder / self.stored_name

    @property
    def num_received(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    @property
    def is_whole(self) -> bool:
        return self.num_received == self.num_bytes
