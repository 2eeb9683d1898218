"""Runs beside one another: how they stand, and in which settings they differ."""

from __future__ import annotations

from typing import Any

from dashboard.accounts.models import Team
from dashboard.insights.differences import compare_settings
from dashboard.insights.standings import Figure, compare_standings
from dashboard.reports.blocks.chart import draw_from
from dashboard.reports.blocks.runs import describe_runs, find_runs, newest_of

MAX_CHARS = 300  # of a setting's value
MAX_SETTINGS = 60


def read_comparison(team: Team, options: dict[str, Any]) -> dict[str, Any]:
    runs, gone = find_runs(team, options["runs"])
    if not runs:
        return {"gone": gone}
    settings = compare_settings(runs)
    differing = [setting for setting in settings if setting.differs]
    return {
        "runs": describe_runs(runs),
        "columns": [
            {"title": column.title, "figures": [_figure(f) for f in column.figures]}
            for column in compare_standings(runs, [[i] for i in range(len(runs))])
        ],
        "settings": [
            {"key": setting.key, "values": [_cut(value) for value in setting.values]}
            for setting in differing[:MAX_SETTINGS]
        ],
        "num_settings": len(settings),
        "num_differing": len(differing),
        "chart": draw_from(runs, options) if options["metric"] else None,
        **newest_of(runs),
        "gone": gone,
    }


def _figure(figure: Figure) -> dict[str, Any]:
    return {
        "value": figure.value,
        "delta": figure.delta,
        "direction": figure.direction,
    }


def _cut(value: str | None) -> str | None:
    if value is None or len(value) <= MAX_CHARS:
        return value
    return f"{value[:MAX_CHARS]}… ({len(value):,} characters)"
