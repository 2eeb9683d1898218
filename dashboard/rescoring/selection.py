"""Which of a run's stored steps are scored anew, and how much that is."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Count

from dashboard.runs.models import Run
from dashboard.samples.models import Completion


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
    """One query."""
    completions = Completion.objects.filter(
        group__run=run, group__superseded_by__isnull=True
    )
    if first_step is not None:
        completions = completions.filter(group__step__gte=first_step)
    if last_step is not None:
        completions = completions.filter(group__step__lte=last_step)
    by_step = completions.order_by().values_list("group__step")
    sizes = dict(by_step.annotate(count=Count("pk")))
    found = sorted(sizes)
    steps = found[:: max(1, every)]
    return Selection(
        first_step=first_step if first_step is not None else next(iter(found), 0),
        last_step=last_step if last_step is not None else next(reversed(found), 0),
        every=every,
        steps=steps,
        num_steps_found=len(found),
        num_completions=sum(sizes[step] for step in steps),
        num_found=sum(sizes.values()),
    )
