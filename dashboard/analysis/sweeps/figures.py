"""The figures of a sweep, defined here, coloured and brushed in the browser."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import isfinite
from typing import Any

import numpy as np
import plotly.graph_objects as go

from dashboard.analysis.compare.differences import title_of_setting
from dashboard.analysis.compare.figures import escape_label
from dashboard.analysis.sweeps.axes import Axis
from dashboard.analysis.sweeps.importance import Share
from dashboard.runs.charts.chart import figure_tree
from dashboard.runs.models import Run

SERIES = "var(--cohort-series-1)"
QUIET = "var(--cohort-quiet)"
LONGEST_LABEL = 28


def parallel(
    runs: Sequence[Run], axes: Sequence[Axis], kept: Sequence[bool]
) -> dict[str, Any]:
    """Draw a line a run, from axis to axis; the browser colours it by `meta.height`.

    Those that are not kept are drawn first and faint.
    """
    heights = np.stack([axis.heights for axis in axes], axis=1)
    order = sorted(range(len(runs)), key=lambda i: (kept[i], heights[i, -1]))
    lines = [
        go.Scatter(
            name=escape_label(runs[i].name),
            x=list(range(len(axes))),
            y=[_number(height) for height in heights[i]],
            mode="lines+markers",
            line={"width": 2},
            marker={"size": 5},
            hovertemplate=_hover_text(runs[i], axes, i),
            meta={
                "run": runs[i].pk,
                "height": _number(heights[i, -1]),
                "isKept": kept[i],
            },
        )
        for i in order
    ]
    tree = figure_tree(
        lines,
        xaxis={
            "title": {"text": ""},
            "range": [-0.3, len(axes) - 1 + 0.45],
            "tickvals": list(range(len(axes))),
            "ticktext": [_label(title_of_setting(axis.key)) for axis in axes],
            "side": "top",
            "showgrid": False,
            "showline": False,
            "zeroline": False,
            "fixedrange": True,
        },
        yaxis={
            "title": {"text": ""},
            "range": [-0.06, 1.06],
            "visible": False,
            "fixedrange": True,
        },
        hovermode="closest",
        showlegend=False,
        dragmode="select",
        shapes=[_axis_line(index) for index in range(len(axes))],
        annotations=[
            _tick(index, height, text)
            for index, axis in enumerate(axes)
            for height, text in axis.ticks
        ],
    )
    tree["layout"]["meta"] = {
        "axes": [
            {
                "key": axis.key,
                "low": axis.ends[0],
                "high": axis.ends[1],
                "isLog": axis.is_log,
            }
            for axis in axes
        ]
    }
    return tree


def _hover_text(run: Run, axes: Sequence[Axis], i: int) -> str:
    values = [
        (
            f"{escape_label(title_of_setting(axis.key))}: "
            f"{escape_label(axis.write(float(axis.positions[i])))}"
        )
        for axis in axes
        if np.isfinite(axis.positions[i])
    ]
    return (
        "<br>".join([f"<b>{escape_label(run.name)}</b>", *values]) + "<extra></extra>"
    )


def _axis_line(index: int) -> dict[str, Any]:
    line = {"color": "var(--cohort-quiet)", "width": 1}
    ends = {"x0": index, "x1": index, "y0": 0, "y1": 1}
    return {"type": "line", "layer": "below", "line": line, **ends}


def _tick(index: int, height: float, text: str) -> dict[str, Any]:
    return {
        "x": index,
        "y": height,
        "text": _label(text),
        "xanchor": "left",
        "xshift": 6,
        "showarrow": False,
        "font": {"size": 11, "color": QUIET},
        "bgcolor": "var(--cohort-surface)",
        "borderpad": 1,
    }


def scatter(
    runs: Sequence[Run], axis: Axis, outcomes: Sequence[float], *, title: str
) -> dict[str, Any]:
    """Draw a point per run, and the mean of runs with the same value."""
    x = [axis.write(float(p)) if axis.texts else float(p) for p in axis.positions]
    points = go.Scatter(
        name="run",
        x=x,
        y=[y if isfinite(y) else None for y in outcomes],
        text=[escape_label(run.name) for run in runs],
        customdata=[run.pk for run in runs],
        mode="markers",
        marker={"size": 8, "color": SERIES, "opacity": 0.75},
        hovertemplate="<b>%{text}</b><br>%{x}: %{y:.3~g}<extra></extra>",
    )
    means = _means(x, axis.positions.tolist(), outcomes)
    return figure_tree(
        [points, *([means] if means else [])],
        xaxis={
            "title": {"text": escape_label(title_of_setting(axis.key))},
            **_scale(axis),
        },
        yaxis={"title": {"text": escape_label(title)}},
        hovermode="closest",
        showlegend=means is not None,
    )


def _scale(axis: Axis) -> dict[str, Any]:
    if axis.texts is not None:
        return {"type": "category", "categoryarray": axis.texts}
    shown = {"tickvals": axis.shown, "ticktext": [axis.write(p) for p in axis.shown]}
    return {"type": "log" if axis.is_log else "linear", **shown}


def _means(
    x: Sequence[Any], positions: Sequence[float], outcomes: Sequence[float]
) -> go.Scatter | None:
    ranked = sorted(
        [row for row in zip(positions, x, outcomes, strict=True) if isfinite(row[2])],
        key=lambda row: row[0],
    )
    groups = [list(rows) for _, rows in groupby(ranked, key=lambda row: row[0])]
    if all(len(rows) == 1 for rows in groups):
        return None
    return go.Scatter(
        name="mean of the runs with this value",
        x=[rows[0][1] for rows in groups],
        y=[float(np.mean([y for _, _, y in rows])) for rows in groups],
        customdata=[[None, len(rows)] for rows in groups],
        mode="lines+markers",
        line={"color": QUIET, "width": 1.5, "dash": "dot"},
        marker={"symbol": "line-ew-open", "size": 18, "color": "var(--cohort-text)"},
        hovertemplate="mean of %{customdata[1]} runs: %{y:.3~g}<extra></extra>",
    )


def bars(keys: Sequence[str], shares: Sequence[Share]) -> dict[str, Any]:
    """Draw each setting's share with its interval, in order, the rest last."""
    names = [*(_label(title_of_setting(key)) for key in keys), "Residual"]
    drawn = [100 * max(share.value, 0) for share in shares]
    return figure_tree(
        [
            go.Bar(
                x=[100 * max(share.value, 0) for share in shares],
                y=names,
                orientation="h",
                marker={"color": [SERIES] * len(keys) + ["var(--cohort-tied)"]},
                error_x={
                    "type": "data",
                    "symmetric": False,
                    "array": [
                        max(100 * s.high - x, 0)
                        for s, x in zip(shares, drawn, strict=True)
                    ],
                    "arrayminus": [
                        max(x - 100 * s.low, 0)
                        for s, x in zip(shares, drawn, strict=True)
                    ],
                    "color": "var(--cohort-text)",
                    "thickness": 1.5,
                    "width": 4,
                },
                customdata=[[100 * share.low, 100 * share.high] for share in shares],
                hovertemplate="%{y}: %{x:.3~g}%, 95% interval "
                "%{customdata[0]:.3~g} to %{customdata[1]:.3~g}%<extra></extra>",
            )
        ],
        xaxis={"title": {"text": "% of the variance between runs"}, "range": [0, 100]},
        yaxis={"title": {"text": ""}, "autorange": "reversed", "type": "category"},
        hovermode="closest",
        showlegend=False,
    )


def _number(value: float) -> float | None:
    return float(f"{value:.6g}") if np.isfinite(value) else None


def _label(text: str) -> str:
    return escape_label(
        text if len(text) <= LONGEST_LABEL else f"…{text[1 - LONGEST_LABEL :]}"
    )
