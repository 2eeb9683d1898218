from __future__ import annotations

from typing import Any, ClassVar

from django.db import models

from dashboard.runs.models import HELD, Run


class Worker(models.Model):
    """A training worker, as it last said of itself."""

    name = models.CharField(max_length=120, unique=True)  # as in Run.worker
    host = models.CharField(max_length=120)
    pid = models.PositiveIntegerField()
    num_slots = models.PositiveSmallIntegerField(default=1)
    # {"cpu": …, "num_cores": …, "memory_bytes": …, "gpus": [{"name", "memory_bytes"}],
    # "sandbox": dashboard.rewards.sandboxes.Sandbox, once it is known}
    hardware = models.JSONField[dict[str, Any]](default=dict)
    notice = models.TextField(blank=True)  # why it leaves a queued run alone
    started_at = models.DateTimeField()
    last_seen = models.DateTimeField()
    stopped_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes: ClassVar[list[models.Index]] = [models.Index(fields=["-last_seen"])]

    def __str__(self) -> str:
        return self.name

    def held_runs(self) -> models.QuerySet[Run]:
        """The runs it holds at the moment, any team's; one query."""
        return Run.objects.filter(worker=self.name, state__in=HELD)
