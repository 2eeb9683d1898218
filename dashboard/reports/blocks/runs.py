"""The runs that a block names, as much of them as a report shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dashboard.accounts.models import Team
from dashboard.insights.marks import mark_runs
from dashboard.runs.models import Run


def find_runs(team: Team, ids: Sequence[int]) -> tuple[list[Run], list[str]]:
    """The team's, in this order, and a sentence on each that is gone. Three queries."""
    found = (
        Run.objects.kept()
        .filter(team=team)
        .select_related("dataset_version__dataset", "recipe_version__recipe")
        .prefetch_related("evaluation_sets__dataset_version__dataset")
        .in_bulk(ids)
    )
    gone = [f"Run {pk} is gone: the team has none." for pk in ids if pk not in found]
    return [found[pk] for pk in ids if pk in found], gone


def describe_runs(runs: Sequence[Run]) -> list[dict[str, Any]]:
    marks = mark_runs(run.pk for run in runs)
    return [
        {
            "id": run.pk,
            "name": run.name,
            "colour": marks[run.pk].colour,
            "dash": marks[run.pk].dash,
            "state": run.state,
            "step": run.last_step,
            "num_steps": run.num_steps,
        }
        for run in runs
    ]


def newest_of(runs: Sequence[Run]) -> dict[str, Any]:
    """How new what a block shows is."""
    return {
        "newest_step": max((run.last_step for run in runs), default=None),
        "is_going_on": any(not run.has_ended for run in runs),
    }
