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

    @property
    def is_newest(self) -> bool:
        return self.step == self.last


def find_place(run: Run, wanted: int | None) -> StepPlace | None:
    """The wanted step, or the nearest with groups; None: the newest. Two queries."""
    ends = _read_ends(run, wanted)
    if ends["last"] is None:
        return None
    step = _nearest(wanted, ends["below"], ends["above"], newest=ends["last"])
    around = _read_around(run, step)
    return StepPlace(step=step, first=ends["first"], last=ends["last"], **around)


def _nearest(
    wanted: int | None, below: int | None, above: int | None, *, newest: int
) -> int:
    if wanted is None:
        return newest
    found = [step for step in (below, above) if step is not None]
    return min(found, key=lambda step: abs(step - wanted), default=newest)


def _read_ends(run: Run, wanted: int | None) -> dict[str, int | None]:
    """Each is one look at an end of the index, whatever the length of the run."""
    groups = Group.objects.current().filter(run=OuterRef("pk"))
    at = groups if wanted is None else groups.filter(step__lte=wanted)
    beyond = groups if wanted is None else groups.filter(step__gte=wanted)
    return Run.objects.filter(pk=run.pk).values(
        first=_first(groups.order_by("step")),
        last=_first(groups.order_by("-step")),
        below=_first(at.order_by("-step")),
        above=_first(beyond.order_by("step")),
    )[0]


def _read_around(run: Run, step: int) -> dict[str, int | None]:
    groups = Group.objects.current().filter(run=OuterRef("pk"))
    return Run.objects.filter(pk=run.pk).values(
        previous=_first(groups.filter(step__lt=step).order_by("-step")),
        next=_first(groups.filter(step__gt=step).order_by("step")),
    )[0]


def _first(groups: QuerySet[Group]) -> Subquery:
    return Subquery(groups.values("step")[:1])
