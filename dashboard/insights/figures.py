"""The overlaid curves, defined here and drawn in the browser.

Colours are CSS variables, as in the run's own figures, so a chart follows the theme.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

from dashboard.insights.marks import Mark
from dashboard.insights.points import AXES
from dashboard.insights.series import Series
from dashboard.runs.charts.chart import figure_tree
from dashboard.runs.models import Run


def overlay(
    runs: Sequence[Run],
    series: Sequence[Series],
    marks: dict[int, Mark],
    *,
    metric: str,
    axis: str,
    smoothing: float,
    log_y: bool,
) -> dict[str, Any]:
    """One line per run; under a smoothed line, the measured one, faint."""
    drawn = list(zip(runs, series, strict=True))
    faint = drawn if smoothing > 0 else []
    tree = figure_tree(
        [_raw(marks[run.pk]) for run, _ in faint]
        + [_line(run, s, marks[run.pk], bold=run is runs[0]) for run, s in drawn],
        xaxis={"title": {"text": AXES[axis]}},
        yaxis=y_axis(plain(metric), type="log" if log_y else "linear"),
        hovermode="x unified" if axis == "step" else "closest",
        showlegend=False,  # the table above is the legend, with links
        # Zoom outlives a change of smoothing, not one of what is measured.
        uirevision=f"{metric} {axis} {log_y}",
    )
    values = [s.values for _, s in faint] + [s.smoothed for _, s in drawn]
    _fill(tree["data"], [s for _, s in faint + drawn], values)
    return tree


def _fill(
    traces: list[dict[str, Any]], series: list[Series], values: list[list[float]]
) -> None:
    """Points go in last: Plotly would check and copy each of ten thousand."""
    for trace, one, y in zip(traces, series, values, strict=True):
        # Six digits are more than a screen shows, and half of what is sent.
        trace |= {"x": one.x, "y": [float(f"{v:.6g}") for v in y]}
        if "meta" in trace:
            trace["customdata"] = one.steps


def _line(run: Run, series: Series, mark: Mark, *, bold: bool) -> go.Scatter:
    few = len(series.x) < 30
    return go.Scatter(
        name=plain(run.name),
        mode="lines+markers" if few else "lines",
        line={"color": colour_of(mark), "width": 3 if bold else 2, "dash": mark.dash},
        marker={"size": 5, "color": colour_of(mark)},
        hovertemplate="%{y:.4~g}",
        meta={"run": run.pk},
    )


def _raw(mark: Mark) -> go.Scatter:
    return go.Scatter(
        mode="lines",
        line={"color": colour_of(mark), "width": 1},
        opacity=0.28,
        hoverinfo="skip",
        showlegend=False,
    )


def y_axis(title: str, **more: Any) -> dict[str, Any]:
    # Powers of ten as Plotly writes them by itself take inline styles.
    return {"title": {"text": title}, "exponentformat": "e", **more}


def plain(text: str) -> str:
    """Plotly reads labels as a kind of HTML, links and line breaks included."""
    return escape(text, quote=False)


def colour_of(mark: Mark) -> str:
    return f"var(--cohort-series-{mark.colour})"
