"""Completions of runs that ended long ago: what a team's retention deletes, or would.

Texts are nearly all of what a run takes. Its curves, charts and groups are small and
stay, as do completions of a group that somebody marked, and of a run that is locked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
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
from dashboard.analysis.rescoring.models import Rescoring
from dashboard.datasets.models import Dataset
from dashboard.datasets.trash import delete_dataset
from dashboard.jobs.models import OPEN
from dashboard.operations.models import KEPT_DAYS, MOST_COMPLETION_DAYS, Retention
from dashboard.operations.quotas import folder_bytes, measure
from dashboard.project.edits import Edit
from dashboard.runs.models import ENDED, Run
from dashboard.runs.queries import run_directory
from dashboard.runs.trash import purge_run
from dashboard.samples.models import Comment, CompletionBlock, Group, Tag, Thumb
from dashboard.samples.retention import delete_completions_of


@dataclass(frozen=True, kw_only=True, slots=True)
class OldCompletions:
    """Of runs that ended before so many days; None: they are kept for good."""

    days: int | None
    runs: list[Run]
    num_completions: int
    num_bytes: int  # of their texts
    num_kept_groups: int  # that somebody marked


def completion_days_of(team: Team) -> int | None:
    found = Retention.objects.filter(team=team)
    return found.values_list("completion_days", flat=True).first()


def set_completion_days(team: Team, user: User, days: int | None) -> None:
    """ValueError where it is no number of days that is allowed."""
    if days is not None and not 1 <= days <= MOST_COMPLETION_DAYS:
        raise ValueError(
            f"Completions are kept for 1 to {MOST_COMPLETION_DAYS:,} days after their "
            f"run's end, or for good; got {days}."
        )
    before = completion_days_of(team)
    Retention.objects.update_or_create(team=team, defaults={"completion_days": days})
    detail = {"kind": "completions", "before": before, "after": days}
    record(team, user, "team.retention_changed", team, **detail)


def preview_completions(team: Team, days: int | None) -> OldCompletions:
    runs = [] if days is None else list(old_runs(team, days).order_by("finished_at"))
    blocks = CompletionBlock.objects.filter(run__in=runs)
    held = blocks.aggregate(num=Sum("num_completions"), size=Sum("num_chars"))
    return OldCompletions(
        days=days,
        runs=runs,
        num_completions=held["num"] or 0,
        num_bytes=held["size"] or 0,
        num_kept_groups=len(_marked(runs)),
    )


def apply_to_completions() -> None:
    """One run at a time: what dies between two of them goes on in the next hour."""
    for retention in Retention.objects.exclude(completion_days=None):
        assert retention.completion_days is not None
        for run in old_runs(retention.team, retention.completion_days):
            with suppress(Run.DoesNotExist):  # extended or locked in the meantime
                delete_completions(run, retention.completion_days)


def old_runs(team: Team, days: int) -> QuerySet[Run]:
    """Those that ended so long ago with completions that are still there."""
    scored = Rescoring.objects.filter(run=OuterRef("pk"), job__state__in=OPEN)
    ended = team.runs.filter(
        state__in=ENDED,
        finished_at__lt=timezone.now() - timedelta(days=days),
        locked_at=None,
    )
    not_yet = Q(completions_deleted_at=None)
    extended_since = Q(completions_deleted_at__lt=F("finished_at"))
    return ended.filter(
        not_yet | extended_since,
        ~Exists(scored),
        Exists(Group.objects.filter(run=OuterRef("pk"))),
    )


def delete_completions(run: Run, days: int) -> None:
    """Run.DoesNotExist where they are to stay after all."""
    with transaction.atomic():
        found = old_runs(run.team, days).select_for_update(of=("self",)).get(pk=run.pk)
        num_deleted = delete_completions_of(found, keep=_marked([found]))
        found.completions_deleted_at = timezone.now()
        found.save(update_fields=["completions_deleted_at"])
        detail = {"name": found.name, "days": days, "number": num_deleted}
        record(found.team, None, "run.completions_deleted", found, **detail)
        transaction.on_commit(partial(_empty_event_logs, found.pk))


def _marked(runs: list[Run]) -> set[int]:
    """Groups with a tag, thumb or comment."""
    return set(_marked_groups(runs))


def _marked_groups(runs: list[Run]) -> Iterator[int]:
    for kind in (Thumb, Tag, Comment):
        marks = kind.objects.filter(group__run__in=runs)
        yield from marks.values_list("group", flat=True).distinct()


def _empty_event_logs(run_id: int) -> None:
    """What is in them is stored. They stay: that one is there says its life trained."""
    directory = run_directory(run_id)
    for number in directory.attempt_numbers():
        with suppress(FileNotFoundError):
            os.truncate(directory.attempt(number).events, 0)


class RetentionForm(forms.Form):
    days = forms.IntegerField(
        min_value=1,
        max_value=KEPT_DAYS,
        label="Days in the trash",
        help_text=f"1 to {KEPT_DAYS}. Then runs and datasets are deleted for good.",
    )
    completion_days = forms.IntegerField(
        min_value=1,
        max_value=MOST_COMPLETION_DAYS,
        required=False,
        label="Days of completions",
        help_text=f"1 to {MOST_COMPLETION_DAYS:,} after a run's end. Empty: for good.",
    )


# What a team's retention deletes, and what it would: found in one way.

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


def apply_to_trash() -> None:
    """Delete what teams keep for less than everybody does."""
    for retention in Retention.objects.select_related("team"):
        runs, datasets = _old(retention.team, retention.trash_days)
        for run in runs:
            purge_run(run)
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


# How long a team's things are kept: the trash, and completions of runs that ended.


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """How long; named as the form's fields."""

    days: int  # in the trash
    completion_days: int | None  # None: for good

    @property
    def words(self) -> str:
        return f"The trash is kept for {_in_days(self.days)}, {self.completion_words}."

    @property
    def completion_words(self) -> str:
        if self.completion_days is None:
            return "completions for good"
        return f"completions for {_in_days(self.completion_days)} after a run's end"


def kept_by(team: Team) -> Kept:
    return Kept(days=days_of(team), completion_days=completion_days_of(team))


@transaction.atomic
def keep(team: Team, user: User, edit: Edit) -> Kept:
    """What is so already is not written down. ValueError where it is not allowed.

    EditConflict: somebody changed the same meanwhile.
    """
    Team.objects.select_for_update(no_key=True).get(pk=team.pk)
    before = kept_by(team)
    chosen = replace(before, **edit.merge(asdict(before)))
    if chosen.days != before.days:
        set_days(team, user, chosen.days)
    if chosen.completion_days != before.completion_days:
        set_completion_days(team, user, chosen.completion_days)
    return chosen


def _in_days(days: int) -> str:
    return f"{days:,} day{'' if days == 1 else 's'}"


@shared_task(name="operations.measure", ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def measure_all() -> None:
    for team in Team.objects.all():
        measure(team)


@shared_task(name="operations.retain", ignore_result=True)  # type: ignore[untyped-decorator]  # Celery has no types
def retain() -> None:
    apply_to_trash()
    apply_to_completions()
