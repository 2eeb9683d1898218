"""A run's curves as a Plotly figure that looks like Cohort's own charts."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trainer.client.api.charts import (
    DARK,
    LIGHT,
    Chart,
    chart_of,
    charts_of,
    metrics_of,
)
from trainer.client.api.records import Metrics
from trainer.client.api.traces import Trace, as_text, traces_of

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from trainer.client.api.run import Run

ROW_PIXELS = 280
THEMES = {"light": LIGHT, "dark": DARK}


def figure(run: Run, names: Sequence[str], *, smoothing: float, theme: str) -> Figure:
    plotly = _plotly()
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing is at least 0 and below 1; got {smoothing!r}.")
    if theme not in THEMES:
        raise ValueError(f"theme is light or dark; got {theme!r}.")
    charts = _chosen(run, names)
    metrics = run.metrics(*metrics_of(charts))
    return plotly.Figure(tree_of(charts, metrics, run.name, smoothing, THEMES[theme]))


def _plotly() -> Any:
    try:
        return importlib.import_module("plotly.graph_objects")
    except ImportError:
        raise ImportError(
            "A figure takes plotly, which is not installed. Install it: pip install "
            "'plotly>=6' (or the client as 'cohort-client[figure]')."
        ) from None


def _chosen(run: Run, names: Sequence[str]) -> list[Chart]:
    known = run.metric_names()
    if unknown := [name for name in names if name not in known]:
        raise ValueError(
            f"Run {run.id} has no metric {unknown[0]!r}. It has: {', '.join(known)}."
        )
    charts = [chart_of(name) for name in names] if names else charts_of(known)
    if not charts:
        raise ValueError(f"Run {run.id} has measured nothing that is drawn yet.")
    return charts


def tree_of(
    charts: Sequence[Chart],
    metrics: Metrics,
    title: str,
    smoothing: float,
    colors: dict[str, str],
) -> dict[str, Any]:
    """Two charts in a row, each with axes and a legend of its own."""
    num_columns = min(2, len(charts))
    num_rows = -(-len(charts) // num_columns)
    data: list[Trace] = []
    layout: dict[str, Any] = _layout(title, num_rows, colors)
    for place, chart in enumerate(charts):
        number = "" if place == 0 else str(place + 1)
        traces = [*traces_of(chart, metrics, smoothing, colors)]
        own = {"xaxis": f"x{number}", "yaxis": f"y{number}"}
        data += [trace | own | {"legend": f"legend{number}"} for trace in traces]
        x, y = _domain(place, num_columns, num_rows)
        layout |= _axes(chart, number, x, y, colors)
        layout["annotations"].append(_heading(chart.title, x, y, colors))
    return {"data": data, "layout": layout}


def _domain(place: int, columns: int, rows: int) -> tuple[list[float], list[float]]:
    """Where a chart stands, in shares of the figure."""
    row, column = divmod(place, columns)
    gap = 0.09 if columns > 1 else 0.0
    width = (1 - gap * (columns - 1)) / columns
    left, top = column * (width + gap), 1 - row / rows
    return [left, left + width], [top - 0.8 / rows, top - 0.16 / rows]


def _layout(title: str, num_rows: int, colors: dict[str, str]) -> dict[str, Any]:
    return {
        "title": {"text": as_text(title), "x": 0.01},
        "height": 90 + ROW_PIXELS * num_rows,
        "margin": {"l": 64, "r": 16, "t": 56, "b": 8},
        "font": {
            "family": "system-ui, sans-serif",
            "size": 12,
            "color": colors["text"],
        },
        "paper_bgcolor": colors["surface"],
        "plot_bgcolor": colors["surface"],
        "hovermode": "x unified",
        "hoverlabel": {"bgcolor": colors["surface"]},
        "annotations": [],
    }


def _axes(
    chart: Chart, number: str, x: list[float], y: list[float], colors: dict[str, str]
) -> dict[str, Any]:
    lines = {"gridcolor": colors["grid"], "zerolinecolor": colors["grid"]}
    quiet = {"font": {"color": colors["quiet"]}}
    share = {"range": [0, 1], "tickformat": ".0%"} if chart.is_share else {}
    return {
        f"xaxis{number}": {
            **lines,
            "domain": x,
            "anchor": f"y{number}",
            "title": {"text": "step", **quiet, "standoff": 4},
        },
        f"yaxis{number}": {
            **lines,
            **share,
            "domain": y,
            "anchor": f"x{number}",
            "exponentformat": "e",
            "title": {"text": chart.y, **quiet},
        },
        f"legend{number}": {
            "orientation": "h",
            "x": x[0],
            "xanchor": "left",
            "y": y[1],
            "yanchor": "bottom",
            "bgcolor": "rgba(0,0,0,0)",
        },
    }


def _heading(
    title: str, x: list[float], y: list[float], colors: dict[str, str]
) -> dict[str, Any]:
    return {
        "text": f"<b>{as_text(title)}</b>",
        "x": x[0],
        "y": y[1],
        "xref": "paper",
        "yref": "paper",
        "xanchor": "left",
        "yanchor": "bottom",
        "yshift": 20,  # above the legend
        "showarrow": False,
        "font": {"color": colors["text"], "size": 13},
    }
