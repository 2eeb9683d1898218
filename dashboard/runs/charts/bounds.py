from __future__ import annotations

from typing import Any

from django.db.models import Max, Min, QuerySet


def find_bounds(
    steps: QuerySet[Any], first: int | None, last: int | None
) -> tuple[int, int] | None:
    """The first and last `step` among those from `first` to `last`; one query."""
    if first is not None:
        steps = steps.filter(step__gte=first)
    if last is not None:
        steps = steps.filter(step__lte=last)
    bounds = steps.aggregate(first=Min("step"), last=Max("step"))
    return None if bounds["first"] is None else (bounds["first"], bounds["last"])
