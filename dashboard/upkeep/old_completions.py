"""Completions of runs that ended long ago: what a team's retention deletes, or would.

Texts are nearly all of what a run takes. Its curves, charts and groups are small and
stay, as do completions of a group that somebody marked, and of a run that is locked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet, Sum
from django.utils import timezone

from dashboard.accounts.models import Team, User
from dashboard.accounts.services import record
from dashboard.analysis.rescoring.models import Rescoring
from dashboard.jobs.models import OPEN
from dashboard.runs.models import ENDED, Run
from dashboard.runs.queries import run_directory
from dashboard.samples.models import Comment, CompletionBlock, Group, Tag, Thumb
from dashboard.samples.retention import delete_completions_of
from dashboard.upkeep.models import MOST_COMPLETION_DAYS, Retention


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
    for number in directory.epoch_numbers():
        with suppress(FileNotFoundError):
            os.truncate(directory.epoch(number).events, 0)
