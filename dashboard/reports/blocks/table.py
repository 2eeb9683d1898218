"""Runs by some of their figures, a row each."""

from __future__ import annotations

from typing import Any

from dashboard.accounts.models import Team
from dashboard.reports.blocks.runs import describe_runs, find_runs, newest_of
from dashboard.runs.charts.series import read_evaluated
from dashboard.runs.models import Run


def read_table(team: Team, options: dict[str, Any]) -> dict[str, Any]:
    """The newest value of each metric; a query per run that is asked for `eval/…`."""
    runs, gone = find_runs(team, options["runs"])
    metrics = options["metrics"]
    return {
        "metrics": metrics,
        "runs": [
            {**described, "seconds": _seconds(run), "values": _newest(run, metrics)}
            for run, described in zip(runs, describe_runs(runs), strict=True)
        ],
        **newest_of(runs),
        "gone": gone,
    }


def _newest(run: Run, metrics: list[str]) -> list[float | None]:
    last = run.summary.get("last", {})
    evaluated = read_evaluated(run, metrics)
    return [
        evaluated[name].values[-1] if name in evaluated else last.get(name)
        for name in metrics
    ]


def _seconds(run: Run) -> float | None:
    if run.started_at is None or run.finished_at is None:
        return None
    return (run.finished_at - run.started_at).total_seconds()
