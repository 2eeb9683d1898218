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

CHECKED = ("id", "name", "state", "tags", "locked_at", "archived_at", "trashed_at")


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    done: str  # "tagged", as in "2 runs were tagged"
    refuse: Callable[[Run, User, str], str]  # the reason; "" if allowed
    apply: Callable[[list[Run], User, str], None]
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
    locked = Run.objects.select_for_update(of=("self",)).filter(pk__in=ids)
    ordered = locked.select_related("locked_by").order_by("pk")
    outcome = Outcome()
    for run in ordered.only(*CHECKED, "locked_by").annotate(**_annotations(user)):
        if reason := action.refuse(run, user, argument):
            outcome.refused.append((run, reason))
        else:
            outcome.done.append(run)
    if outcome.done:
        action.apply(outcome.done, user, argument)
        _record(action, outcome.done, team, user, argument)
    return outcome


def _annotations(user: User) -> dict[str, Any]:
    """What the checks need from other tables."""
    waiting = Run.objects.filter(forked_from=OuterRef("pk"), attempt=0)
    waiting = waiting.exclude(state__in=ENDED).order_by("pk")
    return {
        "is_starred": Exists(RunStar.objects.filter(run=OuterRef("pk"), user=user)),
        # A fork that has not started reads its parent's checkpoint.
        "needed_by": Subquery(waiting.values("name")[:1]),
    }


def _record(
    action: Action, runs: Sequence[Run], team: Team, user: User, argument: str
) -> None:
    if action.verb:
        detail = {"tag": argument} if argument else {}
        record_each(team, user, action.verb, runs, **detail)


def _all_of(runs: Sequence[Run]) -> QuerySet[Run]:
    return Run.objects.filter(pk__in=[run.pk for run in runs])


def _tag(runs: list[Run], _user: User, tag: str) -> None:
    # Appended to the current row, so that concurrent tags are kept.
    appended = Func(F("tags"), Value(tag), function="array_append")
    _all_of(runs).update(tags=appended)


def _untag(runs: list[Run], _user: User, tag: str) -> None:
    _all_of(runs).update(tags=Func(F("tags"), Value(tag), function="array_remove"))


def _refuse_tag(run: Run, _user: User, tag: str) -> str:
    if tag in run.tags:
        return "already has the tag"
    if len(run.tags) >= MAX_TAGS:
        return f"already has {MAX_TAGS} tags, the maximum"
    return lock_reason(run)


def _refuse_untag(run: Run, _user: User, tag: str) -> str:
    return lock_reason(run) if tag in run.tags else "does not have the tag"


def _star(runs: list[Run], user: User, _: str) -> None:
    stars = [RunStar(run=run, user=user) for run in runs]
    RunStar.objects.bulk_create(stars, ignore_conflicts=True)


def _unstar(runs: list[Run], user: User, _: str) -> None:
    RunStar.objects.filter(run__in=runs, user=user).delete()


def _refuse_star(run: Run, _user: User, _: str) -> str:
    return "is already starred" if _annotation(run, "is_starred") else ""


def _refuse_unstar(run: Run, _user: User, _: str) -> str:
    return "" if _annotation(run, "is_starred") else "is not starred"


def _annotation(run: Run, name: str) -> Any:
    """An annotation of a run that is checked."""
    return getattr(run, name)


def _set(name: str) -> Callable[[list[Run], User, str], None]:
    """Record when it was done, and by whom."""

    def apply(runs: list[Run], user: User, _: str) -> None:
        fields: dict[str, Any] = {f"{name}_at": Now(), f"{name}_by": user}
        _all_of(runs).update(**fields)

    return apply


def _unset(name: str) -> Callable[[list[Run], User, str], None]:
    def apply(runs: list[Run], _user: User, _: str) -> None:
        _all_of(runs).update(**{f"{name}_at": None, f"{name}_by": None})

    return apply


def _refuse_lock(run: Run, _user: User, _: str) -> str:
    if run.trashed_at:
        return "is in the trash"
    return lock_reason(run)


def _refuse_unlock(run: Run, _user: User, _: str) -> str:
    return "" if run.locked_at else "is not locked"


def _refuse_archive(run: Run, _user: User, _: str) -> str:
    if run.archived_at:
        return "is already archived"
    return lock_reason(run) or _reason_active(run)


def _refuse_unarchive(run: Run, _user: User, _: str) -> str:
    return lock_reason(run) if run.archived_at else "is not archived"


def _refuse_trash(run: Run, _user: User, _: str) -> str:
    if run.trashed_at:
        return "is already in the trash"
    return lock_reason(run) or _reason_active(run) or _reason_needed(run)


def _reason_active(run: Run) -> str:
    return "" if run.state in ENDED else f"is {run.state}; stop it first"


def _reason_needed(run: Run) -> str:
    fork = _annotation(run, "needed_by")
    return f"is the parent of {fork}, which has not started" if fork else ""


def _refuse_restore(run: Run, _user: User, _: str) -> str:
    return "" if run.trashed_at else "is not in the trash"


def _stop(runs: list[Run], user: User, _: str) -> None:
    for run in runs:
        request_stop(run=run, user=user)


def _refuse_stop(run: Run, _user: User, _: str) -> str:
    stops = run.state not in (*ENDED, "stopping")
    return "" if stops else f"is {run.state}"


ACTIONS: Mapping[str, Action] = MappingProxyType(
    {
        "tag": Action(done="tagged", refuse=_refuse_tag, apply=_tag, verb="run.tagged"),
        "untag": Action(
            done="untagged", refuse=_refuse_untag, apply=_untag, verb="run.untagged"
        ),
        "star": Action(done="starred", refuse=_refuse_star, apply=_star),
        "unstar": Action(done="unstarred", refuse=_refuse_unstar, apply=_unstar),
        "lock": Action(
            done="locked", refuse=_refuse_lock, apply=_set("locked"), verb="run.locked"
        ),
        "unlock": Action(
            done="unlocked",
            refuse=_refuse_unlock,
            apply=_unset("locked"),
            verb="run.unlocked",
        ),
        "archive": Action(
            done="archived",
            refuse=_refuse_archive,
            apply=_set("archived"),
            verb="run.archived",
        ),
        "unarchive": Action(
            done="unarchived",
            refuse=_refuse_unarchive,
            apply=_unset("archived"),
            verb="run.unarchived",
        ),
        "trash": Action(
            done="moved to the trash",
            refuse=_refuse_trash,
            apply=_set("trashed"),
            verb="run.trashed",
        ),
        "restore": Action(
            done="restored",
            refuse=_refuse_restore,
            apply=_unset("trashed"),
            verb="run.restored",
        ),
        "stop": Action(done="asked to stop", refuse=_refuse_stop, apply=_stop),
    }
)
