"""Training workers, the reaper's last check, and samples of a run's machine."""

from __future__ import annotations

from typing import Any, ClassVar

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models

from dashboard.accounts.models import Named, Team
from dashboard.runs.models import HELD, Run


class Worker(Named):
    """A training worker, from its last report."""

    name = models.CharField(max_length=120, unique=True)  # as in Run.worker
    host = models.CharField(max_length=120)
    pid = models.PositiveIntegerField()
    num_slots = models.PositiveSmallIntegerField(default=1)
    # {"cpu": …, "num_cores": …, "memory_bytes": …, "gpus": [{"name", "memory_bytes"}],
    # "packages": those of trainer.config.reading that are installed,
    # "sandbox": dashboard.rewards.sandboxes.Sandbox, once it is known}
    hardware = models.JSONField[dict[str, Any]](default=dict)
    # dashboard.supervision.system_metrics; empty before the first sample
    use = models.JSONField[dict[str, Any]](default=dict, blank=True)
    notice = models.TextField(blank=True)  # why it skips a queued run
    # Drained: it finishes its runs and accepts no new ones, even after a restart.
    drained_at = models.DateTimeField(null=True, blank=True)
    drained_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True
    )
    started_at = models.DateTimeField()
    last_seen = models.DateTimeField()
    stopped_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes: ClassVar[list[models.Index]] = [models.Index(fields=["-last_seen"])]

    def held_runs(self) -> models.QuerySet[Run]:
        """List the runs that it holds now, of any team; one query."""
        return Run.objects.filter(worker=self.name, state__in=HELD)


class ReaperWatch(models.Model):
    """A single row: since when the reaper runs without a long gap, and its last run."""

    since = models.DateTimeField()
    looked_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"since {self.since}"


class SystemSample(models.Model):
    """A sample of a run's machine; at most 10,000 for a run."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="system_samples")
    attempt = models.PositiveIntegerField(db_column="epoch")
    time = models.DateTimeField()
    step = models.PositiveIntegerField()  # the last one that was stored then
    values = ArrayField(models.FloatField(null=True))  # METRICS, then GPUs

    class Meta:
        indexes: ClassVar[list[models.Index]] = [models.Index(fields=["run", "time"])]

    def __str__(self) -> str:
        return f"{self.run_id}:{self.attempt} at {self.time}"


class RunRanks(models.Model):
    """The use of each process of a run in its last step; one row a run.

    Not in the run's own row, which lists read and each batch of events writes.
    """

    run = models.OneToOneField(
        Run, models.CASCADE, related_name="ranks", primary_key=True
    )
    attempt = models.PositiveIntegerField(default=0)
    step = models.PositiveIntegerField(default=0)
    measured_at = models.DateTimeField()
    ranks = models.JSONField[list[Any]](default=list)  # trainer.events.RankMeasured
    # Seconds of own work of the last steps, oldest first: [[rank 0, rank 1, …], …]
    work = models.JSONField[list[Any]](default=list)

    def __str__(self) -> str:
        return f"{self.run_id}:{self.attempt} at step {self.step}"


class Cluster(models.Model):
    """A Ray cluster as a training worker last read it; one row an address."""

    address = models.CharField(max_length=200, unique=True)
    # As `python -m trainer cluster` prints it; empty before the first reading.
    facts = models.JSONField[dict[str, Any]](default=dict)
    read_at = models.DateTimeField(null=True, blank=True)
    worker = models.CharField(max_length=120, blank=True)
    claimed_at = models.DateTimeField(null=True, blank=True)  # by a worker, to read it

    def __str__(self) -> str:
        return self.address


class TeamCluster(models.Model):
    """The cluster that a team chose, of those that the operator allows."""

    team = models.OneToOneField(
        Team, models.CASCADE, related_name="cluster", primary_key=True
    )
    address = models.CharField(max_length=200)

    def __str__(self) -> str:
        return f"{self.team}: {self.address}"
