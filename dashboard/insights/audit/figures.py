"""A finding's chart: the signal over the steps, and what is compared of it."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from dashboard.insights.audit.changes import Change, Window
from dashboard.insights.audit.findings import Finding
from dashboard.insights.audit.signals import Line
from dashboard.insights.figures import plain, y_axis
from dashboard.insights.series import thin
from dashboard.runs.charts.chart import figure_tree

FEW = 60  # points, which are drawn as such


def draw(finding: Finding) -> dict[str, Any] | None:
    signal = finding.signal
    lines = [line for line in signal.drawn if len(line.series)]
    if not lines:
        return None
    title = signal.line_unit or signal.unit
    figure = figure_tree(
        [_line(line, place) for place, line in enumerate(lines, 1)],
        xaxis={"title": {"text": "step"}},
        yaxis=y_axis(title, tickformat=".0%", rangemode="tozero")
        if signal.is_share
        else y_axis(title),
        hovermode="x unified",
        showlegend=len(lines) > 1,
        shapes=_shapes(finding.change) if finding.change else [],
    )
    # Points go in last: Plotly would check and copy each of them.
    for trace, line in zip(figure["data"], lines, strict=True):
        drawn = thin(line.series.values, line.series.values)
        trace["x"] = line.series.steps[drawn].tolist()
        trace["y"] = [float(f"{v:.6g}") for v in line.series.values[drawn].tolist()]
        trace["hovertemplate"] = "%{y:.3~p}" if signal.is_share else "%{y:.4~g}"
    return figure


def _line(line: Line, colour: int) -> go.Scatter:
    return go.Scatter(
        name=plain(line.name),
        mode="lines+markers" if len(line.series) <= FEW else "lines",
        line={"color": f"var(--cohort-series-{colour})", "width": 2},
        marker={"size": 4},
    )


def _shapes(change: Change) -> list[dict[str, Any]]:
    return [
        _band(change.before, "quiet"),
        _band(change.after, "series-3"),
        {
            "type": "line",
            "layer": "below",
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "x0": change.step,
            "x1": change.step,
            "line": {"color": "var(--cohort-text)", "width": 1, "dash": "dot"},
        },
    ]


def _band(window: Window, colour: str) -> dict[str, Any]:
    return {
        "type": "rect",
        "layer": "below",
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "x0": window.first,
        "x1": window.last,
        "opacity": 0.18,
        "line": {"width": 0},
        "fillcolor": f"var(--cohort-{colour})",
    }
