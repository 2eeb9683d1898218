"""Which of a run's stored steps are scored anew, and how much that is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from django.db.models import Model, QuerySet, Sum

from dashboard.runs.models import Run
from dashboard.samples.models import (
    NUM_COMPLETIONS,
    Group,
    GroupCompletions,
    StepRollup,
)
from dashboard.samples.signals.records import GROUP, unpack

M = TypeVar("M", bound=Model)


@dataclass(frozen=True, slots=True)
class Selection:
    """Every n-th of the steps whose groups are stored, the first one first."""

    first_step: int
    last_step: int
    every: int
    steps: list[int]
    num_steps_found: int
    num_completions: int
    num_found: int


def select_steps(
    run: Run, first_step: int | None, last_step: int | None, every: int
) -> Selection:
    """Two queries, and one for steps that are not rolled up."""
    groups = _within(Group.objects.current().filter(run=run), first_step, last_step)
    if run.completions_deleted_at is not None:
        groups = groups.filter(packed_completions__isnull=False)
    found = sorted(groups.order_by().values_list("step", flat=True).distinct())
    if run.completions_deleted_at is not None:
        sizes = {}  # rollups count those that are deleted too
    else:
        sizes = _rolled_up_sizes(run, first_step, last_step)
    if missing := [step for step in found if step not in sizes]:
        sizes |= _counted_sizes(run, missing)
    steps = found[:: max(1, every)]
    return Selection(
        first_step=first_step if first_step is not None else next(iter(found), 0),
        last_step=last_step if last_step is not None else next(reversed(found), 0),
        every=every,
        steps=steps,
        num_steps_found=len(found),
        num_completions=sum(sizes.get(step, 0) for step in steps),
        num_found=sum(sizes.get(step, 0) for step in found),
    )


def _within(
    found: QuerySet[M], first_step: int | None, last_step: int | None
) -> QuerySet[M]:
    if first_step is not None:
        found = found.filter(step__gte=first_step)
    return found if last_step is None else found.filter(step__lte=last_step)


def _rolled_up_sizes(
    run: Run, first_step: int | None, last_step: int | None
) -> dict[int, int]:
    """Completions by step, from some bytes of each group."""
    rollups = StepRollup.objects.filter(run=run, superseded_by__isnull=True)
    packed = _within(rollups, first_step, last_step).values_list("step", "groups")
    return {
        step: int(unpack(bytes(groups), GROUP)["num_completions"].sum())
        for step, groups in packed
    }


def _counted_sizes(run: Run, steps: Iterable[int]) -> dict[int, int]:
    stored = GroupCompletions.objects.filter(
        group__run=run, group__superseded_by__isnull=True, group__step__in=steps
    )
    by_step = stored.order_by().values_list("group__step")
    return dict(by_step.annotate(count=Sum(NUM_COMPLETIONS)))
