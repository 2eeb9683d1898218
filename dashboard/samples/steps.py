from __future__ import annotations

from dataclasses import dataclass

from django.db.models import OuterRef, QuerySet, Subquery

from dashboard.runs.models import Run
from dashboard.samples.models import Group


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPlace:
    """A step that has groups, among the others of its run that do."""

    step: int
    first: int
    last: int
    previous: int | None
    next: int | None


def find_place(run: Run, wanted: int | None) -> StepPlace | None:
    """The wanted step, or the nearest with groups; None: the newest. Two queries."""
    groups = Group.objects.current().filter(run=OuterRef("pk"))
    first, last, below, above = _look(
        run,
        groups.order_by("step"),
        groups.order_by("-step"),
        groups.filter(step__lte=wanted or 0).order_by("-step"),
        groups.filter(step__gte=wanted or 0).order_by("step"),
    )
    if first is None or last is None:
        return None
    step = last if wanted is None else _nearest(wanted, below, above)
    previous, after = _look(
        run,
        groups.filter(step__lt=step).order_by("-step"),
        groups.filter(step__gt=step).order_by("step"),
    )
    return StepPlace(step=step, first=first, last=last, previous=previous, next=after)


def _nearest(wanted: int, *around: int | None) -> int:
    found = [step for step in around if step is not None]
    return min(found, key=lambda step: abs(step - wanted))


def _look(run: Run, *groups: QuerySet[Group]) -> tuple[int | None, ...]:
    """The first step of each; one look at an end of the index, however long the run."""
    steps = {f"at{i}": Subquery(g.values("step")[:1]) for i, g in enumerate(groups)}
    rows = Run.objects.filter(pk=run.pk).annotate(**steps).values_list(*steps)
    return tuple(rows[0])
