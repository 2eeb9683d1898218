"""Retention: how long a team's trash and its runs' completions are kept.

Texts are nearly all of a run's rows. Its curves, charts and groups are small and stay,
as do completions of annotated groups and of locked runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import partial

from celery import shared_task
from django import forms
from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet, Sum
from django.utils import timezone

from dashboard.accounts.models import Team, User
from dashboard.accounts.services import record
from dashboard.analysis.questions.models import Question
from dashboard.analysis.rescoring.models import Rescoring
from dashboard.completions.models import Comment, CompletionBlock, Group, Tag, Thumb
from dashboard.completions.search.indexing import delete_completions_of
from dashboard.datasets.models import Dataset
from dashboard.datasets.trash import delete_dataset
from dashboard.jobs.models import OPEN
from dashboard.operations.models import KEPT_DAYS, MOST_COMPLETION_DAYS, Retention
from dashboard.operations.quotas import folder_bytes, measure
from dashboard.runs.models import ENDED, Run
from dashboard.runs.queries import run_directory
from dashboard.runs.trash import purge_run
from dashboard.web.edits import find_changes


@dataclass(frozen=True, kw_only=True, slots=True)
class RetentionPeriods:
    """Named as the form's fields."""

    days: int  # in the trash
    completion_days: int | None  # None: for good

    @property
    def words(self) -> str:
        return f"The trash is kept for {_in_days(self.days)}, {self.completion_words}."

    @property
    def completion_words(self) -> str:
        if self.completion_days is None:
            return "completions permanently"
        return f"completions for {_in_days(self.completion_days)} after a run's end"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrashPreview:
    """The things that have been in the trash for so many days."""

    days: int
    runs: list[Run]
    run_bytes: int
    datasets: list[Dataset]
    num_runs_in_trash: int
    num_locked: int  # runs that no retention reaches


@dataclass(frozen=True, kw_only=True, slots=True)
class CompletionsPreview:
    """Completions of runs that ended before so many days; None: they are kept for
    good.
    """

    days: int | None
    runs: list[Run]
    num_completions: int
    num_bytes: int  # of their texts
    num_kept_groups: int  # annotated


class RetentionForm(forms.Form):
    days = forms.IntegerField(
        min_value=1,
        max_value=KEPT_DAYS,
        label="Days in the trash",
        help_text=f"1 to {KEPT_DAYS}. Then Cohort deletes runs and datasets "
        "permanently.",
    )
    completion_days = forms.IntegerField(
        min_value=1,
        max_value=MOST_COMPLETION_DAYS,
        required=False,
        label="Days to keep completions",
        help_text=f"1 to {MOST_COMPLETION_DAYS:,} after a run's end. Empty: keep "
        "permanently.",
    )


def retention_of(team: Team) -> RetentionPeriods:
    row = Retention.objects.filter(team=team).first() or Retention(team=team)
    return RetentionPeriods(days=row.trash_days, completion_days=row.completion_days)


@transaction.atomic
def change_retention(
    team: Team, user: User, periods: Mapping[str, int | None], base: str = ""
) -> RetentionPeriods:
    """Save values that the form allows. EditConflict: others were saved since
    `base`.
    """
    Team.objects.select_for_update(no_key=True).get(pk=team.pk)
    before = retention_of(team)
    after = replace(before, **find_changes(asdict(before), periods, base))
    if after == before:
        return after
    changed = {"trash_days": after.days, "completion_days": after.completion_days}
    Retention.objects.update_or_create(team=team, defaults=changed)
    verb = "team.retention_changed"
    if after.days != before.days:
        record(team, user, verb, team, before=before.days, after=after.days)
    if after.completion_days != before.completion_days:
        record(
            team,
            user,
            verb,
            team,
            kind="completions",
            before=before.completion_days,
            after=after.completion_days,
        )
    return after


def _in_days(days: int) -> str:
    return f"{days:,} day{'' if days == 1 else 's'}"


# The trash.


def preview_trash(team: Team, days: int) -> TrashPreview:
    runs, datasets = _old_trash(team, days)
    return TrashPreview(
        days=days,
        runs=runs,
        run_bytes=sum(folder_bytes(run_directory(run.pk).path) for run in runs),
        datasets=datasets,
        num_runs_in_trash=team.runs.filter(trashed_at__isnull=False).count(),
        num_locked=team.runs.filter(locked_at__isnull=False).count(),
    )


def empty_trash() -> None:
    """Delete what has been in a team's trash for longer than the team keeps it."""
    for retention in Retention.objects.select_related("team"):
        runs, datasets = _old_trash(retention.team, retention.trash_days)
        for run in runs:
            purge_run(run)
        for dataset in datasets:
            with suppress(ValueError):  # used, or restored
                delete_dataset(dataset, None)


def _old_trash(team: Team, days: int) -> tuple[list[Run], list[Dataset]]:
    before = timezone.now() - timedelta(days=days)
    # A locked run is never in the trash: a database constraint.
    runs = team.runs.filter(trashed_at__lt=before).order_by("trashed_at")
    datasets = team.datasets.filter(trashed_at__lt=before).order_by("trashed_at")
    for name in ("runs", "evaluation_sets", "probes"):  # which keep it
        datasets = datasets.exclude(**{f"versions__{name}__isnull": False})
    return list(runs.only("id", "name", "trashed_at")), list(datasets)


# Completions of runs that ended long ago.


def preview_completions(team: Team, days: int | None) -> CompletionsPreview:
    runs = [] if days is None else list(old_runs(team, days).order_by("finished_at"))
    blocks = CompletionBlock.objects.filter(run__in=runs)
    totals = blocks.aggregate(num=Sum("num_completions"), size=Sum("num_chars"))
    return CompletionsPreview(
        days=days,
        runs=runs,
        num_completions=totals["num"] or 0,
        num_bytes=totals["size"] or 0,
        num_kept_groups=len(_annotated(runs)),
    )


def delete_old_completions() -> None:
    """Delete them one run at a time: if it dies between two, it continues in the next
    hour.
    """
    for retention in Retention.objects.exclude(completion_days=None):
        assert retention.completion_days is not None
        for run in old_runs(retention.team, retention.completion_days):
            with suppress(Run.DoesNotExist):  # extended or locked in the meantime
                delete_completions(run, retention.completion_days)


def old_runs(team: Team, days: int) -> QuerySet[Run]:
    """Find runs that ended so long ago with completions that still exist."""
    rescored, asked = (
        analysis.objects.filter(run=OuterRef("pk"), job__state__in=OPEN)
        for analysis in (Rescoring, Question)
    )
    ended = team.runs.filter(
        state__in=ENDED,
        finished_at__lt=timezone.now() - timedelta(days=days),
        locked_at=None,
    )
    not_yet = Q(completions_deleted_at=None)
    extended_since = Q(completions_deleted_at__lt=F("finished_at"))
    return ended.filter(
        not_yet | extended_since,
        ~Exists(rescored),
        ~Exists(asked),
        Exists(Group.objects.filter(run=OuterRef("pk"))),
    )


def delete_completions(run: Run, days: int) -> None:
    """Run.DoesNotExist where they are to stay after all."""
    with transaction.atomic():
        locked = old_runs(run.team, days).select_for_update(of=("self",)).get(pk=run.pk)
        num_deleted = delete_completions_of(locked, keep=_annotated([locked]))
        locked.completions_deleted_at = timezone.now()
        locked.save(update_fields=["completions_deleted_at"])
        detail = {"name": locked.name, "days": days, "number": num_deleted}
        record(locked.team, None, "run.completions_deleted", locked, **detail)
        transaction.on_commit(partial(_empty_event_logs, locked.pk))


def _annotated(runs: list[Run]) -> set[int]:
    """Groups with a tag, thumb or comment."""
    return {
        group
        for kind in (Thumb, Tag, Comment)
        for group in kind.objects.filter(group__run__in=runs)
        .values_list("group", flat=True)
        .distinct()
    }


def _empty_event_logs(run_id: int) -> None:
    """Empty the logs of runs whose events are stored.

    The files stay, because they show that an attempt trained.
    """
    directory = run_directory(run_id)
    for number in directory.attempt_numbers():
        with suppress(FileNotFoundError):
            os.truncate(directory.attempt(number).events, 0)


@shared_task(name="operations.measure", ignore_result=True)
def measure_all() -> None:
    for team in Team.objects.all():
        measure(team)


@shared_task(name="operations.retain", ignore_result=True)
def retain() -> None:
    empty_trash()
    delete_old_completions()
