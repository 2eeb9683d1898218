"""Actions on one or more runs, with the runs that were refused and why.

One transaction locks, checks and changes the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from django.db import transaction
from django.db.models import Exists, F, Func, OuterRef, QuerySet, Subquery, Value
from django.db.models.functions import Now

from dashboard.accounts.models import Team, User
from dashboard.accounts.services import record_each
from dashboard.runs.attributes import MAX_TAGS, check_tag, lock_reason
from dashboard.runs.control import request_stop
from dashboard.runs.models import ENDED, Run, RunStar

IS_STARRED, NEEDED_BY = "is_starred", "needed_by"  # annotations for the checks
CHECKED = ("id", "name", "state", "tags", "locked_at", "archived_at", "trashed_at")


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    done: str  # "tagged", as in "2 runs were tagged"
    refuse: Callable[[Run, User, str], str]  # the reason; "" if allowed
    apply: Callable[[list[Run], User, str], object]
    verb: str = ""  # in the audit log; "": a personal action, not logged


@dataclass(kw_only=True, slots=True)
class Outcome:
    done: list[Run] = field(default_factory=list)
    refused: list[tuple[Run, str]] = field(default_factory=list)


@transaction.atomic
def act(
    name: str, runs: QuerySet[Run], *, team: Team, user: User, argument: str = ""
) -> Outcome:
    """UserError if the argument is invalid; then no run changed."""
    action = ACTIONS[name]
    if name in ("tag", "untag"):
        argument = check_tag(argument)
    ids = runs.filter(team=team).order_by().values("pk")
    ordered = (
        Run.objects.select_for_update(of=("self",))
        .filter(pk__in=ids)
        .select_related("locked_by")
        .order_by("pk")
    )
    outcome = Outcome()
    waiting = Run.objects.filter(forked_from=OuterRef("pk"), attempt=0)
    waiting = waiting.exclude(state__in=ENDED).order_by("pk")
    for run in ordered.only(*CHECKED, "locked_by").annotate(
        **{
            IS_STARRED: Exists(RunStar.objects.filter(run=OuterRef("pk"), user=user)),
            # A fork that has not started reads its parent's checkpoint.
            NEEDED_BY: Subquery(waiting.values("name")[:1]),
        }
    ):
        if reason := action.refuse(run, user, argument):
            outcome.refused.append((run, reason))
        else:
            outcome.done.append(run)
    if outcome.done:
        action.apply(outcome.done, user, argument)
        if action.verb:
            detail = {"tag": argument} if argument else {}
            record_each(team, user, action.verb, outcome.done, **detail)
    return outcome


def _all_of(runs: Sequence[Run]) -> QuerySet[Run]:
    return Run.objects.filter(pk__in=[run.pk for run in runs])


def _refuse_tag(run: Run, _user: User, tag: str) -> str:
    if tag in run.tags:
        return "already has the tag"
    if len(run.tags) >= MAX_TAGS:
        return f"already has {MAX_TAGS} tags, the maximum"
    return lock_reason(run)


def _mark(name: str, *, is_set: bool) -> Callable[[list[Run], User, str], None]:
    """Record when it was done, and by whom; or that it is undone."""

    def apply(runs: list[Run], user: User, _: str) -> None:
        fields: dict[str, Any] = {f"{name}_at": Now(), f"{name}_by": user}
        _all_of(runs).update(**(fields if is_set else dict.fromkeys(fields)))

    return apply


def _refuse_archive(run: Run, _user: User, _: str) -> str:
    if run.archived_at:
        return "is already archived"
    return lock_reason(run) or _reason_active(run)


def _refuse_trash(run: Run, _user: User, _: str) -> str:
    if run.trashed_at:
        return "is already in the trash"
    if reason := lock_reason(run) or _reason_active(run):
        return reason
    fork = getattr(run, NEEDED_BY)
    return f"is the parent of {fork}, which has not started" if fork else ""


def _reason_active(run: Run) -> str:
    return "" if run.state in ENDED else f"is {run.state}; stop it first"


def _stop(runs: list[Run], user: User, _: str) -> None:
    for run in runs:
        request_stop(run=run, user=user)


ACTIONS: Mapping[str, Action] = MappingProxyType(
    {
        "tag": Action(
            done="tagged",
            refuse=_refuse_tag,
            # Appended to the current row, so that concurrent tags are kept.
            apply=lambda runs, _user, tag: _all_of(runs).update(
                tags=Func(F("tags"), Value(tag), function="array_append")
            ),
            verb="run.tagged",
        ),
        "untag": Action(
            done="untagged",
            refuse=lambda run, _user, tag: (
                lock_reason(run) if tag in run.tags else "does not have the tag"
            ),
            apply=lambda runs, _user, tag: _all_of(runs).update(
                tags=Func(F("tags"), Value(tag), function="array_remove")
            ),
            verb="run.untagged",
        ),
        "star": Action(
            done="starred",
            refuse=lambda run, _user, _: (
                "is already starred" if getattr(run, IS_STARRED) else ""
            ),
            apply=lambda runs, user, _: RunStar.objects.bulk_create(
                [RunStar(run=run, user=user) for run in runs], ignore_conflicts=True
            ),
        ),
        "unstar": Action(
            done="unstarred",
            refuse=lambda run, _user, _: (
                "" if getattr(run, IS_STARRED) else "is not starred"
            ),
            apply=lambda runs, user, _: RunStar.objects.filter(
                run__in=runs, user=user
            ).delete(),
        ),
        "lock": Action(
            done="locked",
            refuse=lambda run, _user, _: (
                "is in the trash" if run.trashed_at else lock_reason(run)
            ),
            apply=_mark("locked", is_set=True),
            verb="run.locked",
        ),
        "unlock": Action(
            done="unlocked",
            refuse=lambda run, _user, _: "" if run.locked_at else "is not locked",
            apply=_mark("locked", is_set=False),
            verb="run.unlocked",
        ),
        "archive": Action(
            done="archived",
            refuse=_refuse_archive,
            apply=_mark("archived", is_set=True),
            verb="run.archived",
        ),
        "unarchive": Action(
            done="unarchived",
            refuse=lambda run, _user, _: (
                lock_reason(run) if run.archived_at else "is not archived"
            ),
            apply=_mark("archived", is_set=False),
            verb="run.unarchived",
        ),
        "trash": Action(
            done="moved to the trash",
            refuse=_refuse_trash,
            apply=_mark("trashed", is_set=True),
            verb="run.trashed",
        ),
        "restore": Action(
            done="restored",
            refuse=lambda run, _user, _: (
                "" if run.trashed_at else "is not in the trash"
            ),
            apply=_mark("trashed", is_set=False),
            verb="run.restored",
        ),
        "stop": Action(
            done="asked to stop",
            refuse=lambda run, _user, _: (
                f"is {run.state}" if run.state in (*ENDED, "stopping") else ""
            ),
            apply=_stop,
        ),
    }
)
