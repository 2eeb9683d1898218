"""Files of other tools that become a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import models

from dashboard.accounts.models import Team
from dashboard.jobs.models import JobTarget
from dashboard.runs.models import Run


class RunImport(JobTarget):
    """Files that are uploaded, read, reviewed and made into a run."""

    READ, MAKE = "run_import.read", "run_import.make"  # kinds of its jobs

    team = models.ForeignKey(Team, models.CASCADE, related_name="+")
    findings = models.JSONField[dict[str, Any]](default=dict, blank=True)
    choices = models.JSONField[dict[str, Any]](default=dict, blank=True)
    run = models.ForeignKey(
        Run, models.SET_NULL, null=True, blank=True, related_name="+"
    )

    def __str__(self) -> str:
        return f"Import {self.pk}"

    @property
    def phase(self) -> str:
        return "make" if self.job and self.job.kind == self.MAKE else "read"

    @property
    def state(self) -> str:
        return self.job.state if self.job else "open"  # files arrive

    @property
    def folder(self) -> Path:
        return Path(settings.COHORT_DATA) / "run-imports" / str(self.pk)


class ImportFile(models.Model):
    """A file of an import; its size on disk is what was received."""

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
