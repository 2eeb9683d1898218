"""Everything that reads rescorings. Another team's are not found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404

from dashboard.accounts.models import Team
from dashboard.rescoring.models import Rescoring
from dashboard.runs.models import Run

RELATED = (
    "run__dataset_version",
    "recipe_version__recipe",
    "created_by",
    "team",
    "job",
)
MAX_FAILURES = 20


@dataclass(frozen=True, slots=True)
class Failure:
    step: int
    prompt: int
    position: int
    rule: str
    error: str


def get_rescoring(team: Team, rescoring_id: int) -> Rescoring:
    found = team.rescorings.select_related(*RELATED)
    return get_object_or_404(found, pk=rescoring_id)


def list_rescorings(team: Team, run: Run | None) -> QuerySet[Rescoring]:
    found = team.rescorings.select_related(*RELATED).order_by("-pk")
    return found if run is None else found.filter(run=run)


def list_failures(rescoring: Rescoring) -> list[Failure]:
    """The first of those that are kept; one query."""
    found: list[Failure] = []
    parts = rescoring.scored.filter(num_failures__gt=0).order_by("step")
    kept = parts.values_list("step", "failures").iterator(chunk_size=MAX_FAILURES)
    for step, failures in kept:
        found += list(_read(step, failures))
        if len(found) >= MAX_FAILURES:
            break
    return found[:MAX_FAILURES]


def _read(step: int, failures: list[dict[str, Any]]) -> Iterator[Failure]:
    for each in failures:
        yield Failure(step=step, **each)
