"""A run: its settings, its worker, its progress."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q, Sum
from django.db.models.fields.json import KT
from django.utils.functional import cached_property

from dashboard.accounts.models import Named, Team
from dashboard.datasets.models import DatasetVersion
from dashboard.rewards.models import RecipeVersion

if TYPE_CHECKING:
    from dashboard.accounts.models import User


class RunState(models.TextChoices):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    STOPPING = "stopping"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    LOST = "lost"


class Priority(models.IntegerChoices):
    LOW = -1, "low"
    NORMAL = 0, "normal"
    HIGH = 1, "high"


REWARD = "reward/mean"  # the headline metric of a run
ENDED = (RunState.FINISHED, RunState.STOPPED, RunState.FAILED)
HELD = (RunState.STARTING, RunState.RUNNING, RunState.PAUSING, RunState.STOPPING)


class Sweep(Named):
    """Runs launched together from one form, with several values of some settings."""

    team = models.ForeignKey(Team, models.CASCADE)
    name = models.CharField(max_length=80)
    launched_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True
    )
    launched_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        db_table = "runs_rungroup"


def _by() -> models.ForeignKey[User | None, User | None]:
    return models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
    )


class RunQuerySet(models.QuerySet["Run"]):
    def kept(self) -> Self:
        """Runs that are not in the trash."""
        return self.filter(trashed_at=None)


class ShownRuns(models.Manager["Run"]):
    def get_queryset(self) -> models.QuerySet[Run]:
        """Exclude runs whose rows are being deleted."""
        return super().get_queryset().filter(deleted_at=None)


class Run(Named):
    """A GRPO run. The row is the truth; the broker only carries notifications."""

    team = models.ForeignKey(Team, models.CASCADE, related_name="runs")
    name = models.CharField(max_length=80)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True
    )
    notes = models.TextField(blank=True)
    state = models.CharField(max_length=10, choices=RunState, default=RunState.QUEUED)

    # Settings at launch; control.py and changes.py may change some.
    config = models.JSONField[dict[str, Any]]()  # trainer.config.RunConfig
    model_label = models.CharField(max_length=200)
    # Null: not launched here. An import with completions has their prompts.
    dataset_version = models.ForeignKey(
        DatasetVersion, models.PROTECT, null=True, blank=True, related_name="runs"
    )
    recipe_version = models.ForeignKey(
        RecipeVersion, models.PROTECT, null=True, blank=True, related_name="runs"
    )
    # Of an imported run: {"tools": […], "files": …}, see exchange; of an external
    # trainer's: {"kind": "outside", "key", "tools": […], …}; {}: trained here.
    source = models.JSONField[dict[str, Any]](
        default=dict, blank=True, db_default={}, db_column="origin"
    )
    cloned_from = models.ForeignKey(
        "self", models.SET_NULL, null=True, blank=True, related_name="clones"
    )
    # The checkpoint that a fork starts from.
    forked_from = models.ForeignKey(
        "self", models.SET_NULL, null=True, blank=True, related_name="forks"
    )
    fork_step = models.PositiveIntegerField(null=True, blank=True)
    fork_checkpoint = models.CharField(max_length=120, blank=True, db_default="")
    fork_sha256 = models.CharField(max_length=64, blank=True, db_default="")
    # Offsets of its axes (charts/series.py); null: not a fork, or not counted.
    fork_totals = models.JSONField[dict[str, float] | None](null=True, blank=True)
    sweep = models.ForeignKey(
        Sweep,
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="runs",
        db_column="group_id",
    )
    num_steps = models.PositiveIntegerField()

    # Its worker. `attempt` is the fencing token: it rises with every claim.
    attempt = models.PositiveIntegerField(default=0, db_column="epoch")
    lease_until = models.DateTimeField(null=True, blank=True)
    worker = models.CharField(max_length=120, blank=True)
    # The trainer's last sign of progress: a pulse, or an external trainer's event.
    active_at = models.DateTimeField(null=True, blank=True)
    # Attempts lost in a row, without a step in between.
    num_losses = models.PositiveSmallIntegerField(default=0, db_column="attempt")
    not_before = models.DateTimeField(null=True, blank=True)  # back-off
    fail_reason = models.TextField(blank=True)
    pause_reason = models.TextField(blank=True, db_default="")  # why it is paused
    stop_reason = models.TextField(blank=True, db_default="")  # why it was cancelled

    # The order of the team's queued runs: queue/order.py.
    priority = models.SmallIntegerField(
        choices=Priority, default=Priority.NORMAL, db_default=Priority.NORMAL
    )
    on_hold = models.BooleanField(default=False, db_default=False)

    # Progress.
    seq = models.BigIntegerField(default=0)  # last stream number used
    # Seconds from event to row, of the oldest event of the last batch.
    ingest_lag = models.FloatField(null=True, blank=True)
    alerts_seq = models.BigIntegerField(db_default=0, default=0)  # when alerts changed
    last_step = models.PositiveIntegerField(default=0)
    # Names of `Step.values`, in order; only ever appended to.
    metric_names = ArrayField(models.CharField(max_length=120), default=list)
    summary = models.JSONField[dict[str, Any]](default=dict)  # {"last": {}, "best": {}}
    # The metric whose best checkpoint is kept; "": a held-out score, else the reward.
    best_by = models.CharField(max_length=120, blank=True, db_default="")

    # Changed by users: bulk_actions.py, attributes.py.
    tags = ArrayField(models.CharField(max_length=40), default=list, db_default=[])
    locked_at = models.DateTimeField(null=True, blank=True)
    locked_by = _by()
    archived_at = models.DateTimeField(null=True, blank=True)
    archived_by = _by()
    trashed_at = models.DateTimeField(null=True, blank=True)
    trashed_by = _by()
    # Hidden from then on, while its rows are deleted.
    deleted_at = models.DateTimeField(null=True, blank=True)

    # By the team's retention, except for annotated groups.
    completions_deleted_at = models.DateTimeField(null=True, blank=True)

    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    objects = ShownRuns.from_queryset(RunQuerySet)()
    everywhere = RunQuerySet.as_manager()

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(
                condition=Q(finished_at__isnull=True)
                | Q(finished_at__gte=F("created_at")),
                name="run_finished_after_created",
            ),
            models.CheckConstraint(
                condition=~Q(state__in=[s.value for s in HELD])
                | Q(lease_until__isnull=False),
                name="run_held_has_lease",
            ),
            models.CheckConstraint(
                condition=~Q(source={}) & Q(state="finished")
                | ~Q(source={}) & Q(state="running", attempt=1)
                | Q(source__has_key="kind")
                & Q(state__in=["running", "lost", "finished", "stopped", "failed"])
                | Q(
                    source={},
                    dataset_version__isnull=False,
                    recipe_version__isnull=False,
                ),
                name="run_is_launched_or_imported",
            ),
            models.UniqueConstraint(
                F("team"),
                KT("source__key"),
                condition=Q(source__has_key="key"),
                name="run_outside_opened_once",
            ),
            models.CheckConstraint(
                condition=Q(fork_step__gte=1, fork_sha256__gt="")
                & Q(fork_checkpoint__gt="")
                | Q(fork_step=None, fork_sha256="", fork_checkpoint="")
                & Q(forked_from=None),
                name="run_fork_names_its_checkpoint",
            ),
            models.CheckConstraint(
                condition=Q(fork_step=None) | Q(fork_step__lt=F("num_steps")),
                name="run_fork_has_steps_to_go",
            ),
            models.CheckConstraint(
                condition=Q(archived_at=None, trashed_at=None)
                | Q(state__in=[s.value for s in ENDED]),
                name="run_put_away_has_ended",
            ),
            models.CheckConstraint(
                condition=Q(trashed_at=None) | Q(locked_at=None),
                name="run_locked_is_not_trashed",
            ),
        ]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["team", "-id"]),
            # For the dispatcher and the reaper.
            models.Index(
                fields=["state", "lease_until"],
                condition=~Q(state__in=[s.value for s in ENDED]),
                name="run_alive",
            ),
        ]

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @property
    def is_imported(self) -> bool:
        """Not trained here: has no settings and cannot continue."""
        return bool(self.source)

    @property
    def is_external(self) -> bool:
        """Reported by an external trainer; such a run is also imported."""
        return "kind" in self.source

    @property
    def source_text(self) -> str:
        """The source of a run that was not trained here: "was imported from TRL"."""
        how = (
            "is trained outside Cohort by" if self.is_external else "was imported from"
        )
        return f"{how} {self.imported_from}"

    @property
    def imported_from(self) -> str:
        """The tools that reported it: "TRL and TensorBoard"."""
        *others, last = self.source["tools"]
        return f"{', '.join(others)} and {last}" if others else str(last)

    @cached_property
    def took(self) -> timedelta | None:
        """The time of an ended run's attempts, without pauses.

        One query, or none where the run was read with it (`trained_seconds`).
        """
        if not self.has_ended or not self.started_at:
            return None
        if hasattr(self, "trained"):
            return timedelta(seconds=self.trained) if self.trained else None
        trained: timedelta | None = self.attempts.aggregate(
            took=Sum(F("ended_at") - F("claimed_at"))
        )["took"]
        return trained

    @cached_property
    def newest_checkpoint(self) -> Any:
        """The checkpoint that the run would continue from, or None; one query."""
        return (
            self.checkpoints.filter(superseded_by=None, deleted_at=None)
            .order_by("-step")
            .first()
        )

    def name_values(self, values: Sequence[float | None]) -> dict[str, float | None]:
        """Name the values of a step; metrics that came later have none."""
        return dict(zip(self.metric_names, values, strict=False))

    def find_column(self, metric: str) -> str | None:
        """Find the lookup of a metric in `Step.values`; None: it was not measured."""
        names = self.metric_names
        return f"values__{names.index(metric)}" if metric in names else None

    def reward(self, which: Literal["last", "best"]) -> float | None:
        value: float | None = self.summary.get(which, {}).get(REWARD)
        # Of 1e16 jsonb gives an integer back.
        return None if value is None else float(value)


class WithAttempt(models.Model):
    """A row of a step, as one of the run's attempts reported it."""

    step = models.PositiveIntegerField()
    attempt = models.PositiveIntegerField(db_column="epoch")
    # The attempt whose resume went back before this step; null: current history.
    superseded_by = models.PositiveIntegerField(null=True, blank=True)

    class Meta:
        abstract = True
