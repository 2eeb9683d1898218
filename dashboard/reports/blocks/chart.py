"""A metric of one run or several, as the page Compare lays them over one another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dashboard.accounts.models import Team
from dashboard.insights.points import AXES, Points, read_points
from dashboard.insights.series import make_series
from dashboard.reports.blocks.runs import describe_runs, find_runs, newest_of
from dashboard.runs.models import Run


def read_chart(team: Team, options: dict[str, Any]) -> dict[str, Any]:
    runs, gone = find_runs(team, options["runs"])
    return {**draw_from(runs, options), **newest_of(runs), "gone": gone}


def draw_from(runs: Sequence[Run], options: dict[str, Any]) -> dict[str, Any]:
    """The points, as measured: what smooths and draws them comes later."""
    axis = options["x"]
    points = read_points(runs, options["metric"], axis=axis)
    return {
        "metric": options["metric"],
        "axis": AXES[axis],
        "is_by_step": axis == "step",
        "is_log": options["y"] == "log",
        "smoothing": options["smooth"],
        "lines": [
            {**described, **_points(points[run.pk], axis)}
            for run, described in zip(runs, describe_runs(runs), strict=True)
        ],
    }


def _points(points: Points, axis: str) -> dict[str, Any]:
    series = make_series(points, smoothing=0)
    x = [] if axis == "step" else series.x
    values = [float(f"{value:.7g}") for value in series.values]
    return {"steps": series.steps, "x": x, "values": values}
