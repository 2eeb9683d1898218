"""What a team's retention deletes, and what it would: found in one way."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from django.utils import timezone

from dashboard.accounts.models import Team, User
from dashboard.accounts.services import record
from dashboard.datasets.models import Dataset
from dashboard.datasets.trash import delete_dataset
from dashboard.runs.models import Run
from dashboard.runs.queries import run_directory
from dashboard.runs.trash import forget_run
from dashboard.upkeep.measuring import folder_bytes
from dashboard.upkeep.models import KEPT_DAYS, Retention

USERS_OF_A_DATASET = ("runs", "evaluation_sets", "probes")  # which keep it


@dataclass(frozen=True, kw_only=True, slots=True)
class Preview:
    """What has been in the trash for so many days."""

    days: int
    runs: list[Run]
    run_bytes: int
    datasets: list[Dataset]
    num_runs_in_trash: int
    num_locked: int  # runs that no retention reaches


def days_of(team: Team) -> int:
    found = Retention.objects.filter(team=team).values_list("trash_days", flat=True)
    return found.first() or KEPT_DAYS


def preview(team: Team, days: int) -> Preview:
    runs, datasets = _old(team, days)
    return Preview(
        days=days,
        runs=runs,
        run_bytes=sum(folder_bytes(run_directory(run.pk).path) for run in runs),
        datasets=datasets,
        num_runs_in_trash=team.runs.filter(trashed_at__isnull=False).count(),
        num_locked=team.runs.filter(locked_at__isnull=False).count(),
    )


def set_days(team: Team, user: User, days: int) -> None:
    """ValueError where it is no number of days that is allowed."""
    if not 1 <= days <= KEPT_DAYS:
        raise ValueError(
            f"What is in the trash is kept for 1 to {KEPT_DAYS} days; got {days}."
        )
    before = days_of(team)
    Retention.objects.update_or_create(team=team, defaults={"trash_days": days})
    record(team, user, "team.retention_changed", team, before=before, after=days)


def apply() -> None:
    """Delete what teams keep for less than everybody does."""
    for retention in Retention.objects.select_related("team"):
        runs, datasets = _old(retention.team, retention.trash_days)
        for run in runs:
            forget_run(run)
        for dataset in datasets:
            with suppress(ValueError):  # used, or restored
                delete_dataset(dataset, None)


def _old(team: Team, days: int) -> tuple[list[Run], list[Dataset]]:
    before = timezone.now() - timedelta(days=days)
    # A locked run is never in the trash: the database holds that.
    runs = team.runs.filter(trashed_at__lt=before).order_by("trashed_at")
    datasets = team.datasets.filter(trashed_at__lt=before).order_by("trashed_at")
    for name in USERS_OF_A_DATASET:
        datasets = datasets.exclude(**{f"versions__{name}__isnull": False})
    return list(runs.only("id", "name", "trashed_at")), list(datasets)
