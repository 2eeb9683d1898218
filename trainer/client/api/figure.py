"""A run's curves as a Plotly figure that looks like Cohort's own charts."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from trainer.client.api.charts import (
    DARK,
    LIGHT,
    Chart,
    Line,
    chart_of,
    charts_of,
    metrics_of,
)
from trainer.client.api.records import Metrics

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from trainer.client.api.run import Run

MAX_BUCKETS = 250  # each leaves its first, lowest, highest and last point


def smooth(values: Sequence[float], weight: float) -> list[float]:
    """An exponential moving average; early values are not pulled towards 0.

    >>> smooth([1.0, 3.0], 0.5)
    [1.0, 2.3333333333333335]
    """
    if weight <= 0 or all(value == values[0] for value in values):
        return list(values)
    found, last, mass = [], 0.0, 0.0
    for value in values:
        last = last * weight + value * (1 - weight)
        mass = mass * weight + (1 - weight)
        found.append(last / mass)
    return found


def places_shown(values: Sequence[float], num_buckets: int = MAX_BUCKETS) -> list[int]:
    """Which points a line of so many buckets needs, so that spikes stay.

    >>> places_shown([0, 9, 1, 2, 3, 4], num_buckets=1)
    [0, 1, 5]
    """
    if len(values) <= 4 * num_buckets:
        return list(range(len(values)))
    return _of_buckets(values, num_buckets)


def _of_buckets(values: Sequence[float], num_buckets: int) -> list[int]:
    found: set[int] = set()
    for bucket in range(num_buckets):
        start = bucket * len(values) // num_buckets
        end = (bucket + 1) * len(values) // num_buckets
        within = range(start, end)
        lowest = min(within, key=values.__getitem__)
        highest = max(within, key=values.__getitem__)
        found |= {start, lowest, highest, end - 1}
    return sorted(found)


RAW_OPACITY, BAND_ALPHA, LAYER_ALPHA = 0.25, 0.16, 0.75
Trace = dict[str, Any]
Points = tuple[list[int], list[float]]


def traces_of(
    chart: Chart, metrics: Metrics, smoothing: float, colors: dict[str, str]
) -> Iterator[Trace]:
    if chart.spread:
        yield from _band(chart, metrics, smoothing, colors)
    for line in chart.lines:
        steps, raw = combine(metrics, line.terms, line.constant)
        weight = 0.0 if line.is_still else smoothing
        color = _color(line.color, colors)
        if line.is_layer:
            yield _layer(line, steps, smooth(raw, weight), color)
            continue
        if weight > 0:
            faint = {"color": color, "width": 1}
            yield _trace(line.name, steps, raw, faint) | {
                "opacity": RAW_OPACITY,
                "hoverinfo": "skip",
                "showlegend": False,
            }
        dots = {"mode": "lines+markers", "marker": {"size": 5}} if line.is_still else {}
        yield _trace(
            line.name, steps, smooth(raw, weight), {"color": color, "width": 2}
        ) | {
            "hovertemplate": "%{y:.4~g}",
            "showlegend": len(chart.lines) > 1,
            **dots,
        }


def _band(
    chart: Chart, metrics: Metrics, smoothing: float, colors: dict[str, str]
) -> Iterator[Trace]:
    line = chart.lines[0]
    color = _faded(_color(line.color, colors), BAND_ALPHA)
    for side in (-1.0, 1.0):
        terms = (*line.terms, (chart.spread, side))
        steps, values = combine(metrics, terms, line.constant)
        name = f"{line.name} {'+' if side > 0 else '-'} {chart.spread}"
        fill = {"fill": "tonexty", "fillcolor": color} if side > 0 else {}
        yield _trace(name, steps, smooth(values, smoothing), {"width": 0}) | {
            "hoverinfo": "skip",
            "showlegend": False,
            **fill,
        }


def _layer(line: Line, steps: list[int], values: list[float], color: str) -> Trace:
    stride = -(-len(steps) // 1_000) or 1  # layers stand on each other, step by step
    return {
        "type": "scatter",
        "mode": "lines",
        "name": line.name,
        "x": steps[::stride],
        "y": values[::stride],
        "stackgroup": "one",
        "line": {"width": 0.5, "color": color},
        "fillcolor": _faded(color, LAYER_ALPHA),
        "hovertemplate": "%{y:.1%}",
    }


def _trace(
    name: str, steps: list[int], values: list[float], line: dict[str, Any]
) -> Trace:
    shown = places_shown(values)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": as_text(name),
        "x": [steps[i] for i in shown],
        "y": [values[i] for i in shown],
        "line": line,
    }


def combine(
    metrics: Metrics, terms: Sequence[tuple[str, float]], constant: float = 0.0
) -> Points:
    """The sum at the steps where all of them have a value."""
    steps, values = [], []
    for point in metrics:
        parts = [point.values.get(name) for name, _ in terms]
        found = [part for part in parts if part is not None]
        if len(found) == len(terms):
            factors = [factor for _, factor in terms]
            total = sum(a * b for a, b in zip(found, factors, strict=True))
            steps.append(point.step)
            values.append(constant + total)
    return steps, values


def _color(name: str, colors: dict[str, str]) -> str:
    return colors["series"].split()[int(name) - 1] if name.isdecimal() else colors[name]


def _faded(color: str, alpha: float) -> str:
    """
    >>> _faded("#0b62c4", 0.16)
    'rgba(11,98,196,0.16)'
    """
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha:g})"


def as_text(name: str) -> str:
    """As it is: Plotly reads some HTML in texts, and a name is anybody's."""
    return name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


ROW_PIXELS = 280
THEMES = {"light": LIGHT, "dark": DARK}


def figure(run: Run, names: Sequence[str], *, smoothing: float, theme: str) -> Figure:
    plotly = _plotly()
    if not 0 <= smoothing < 1:
        raise ValueError(
            f"smoothing must be at least 0 and below 1; got {smoothing!r}."
        )
    if theme not in THEMES:
        raise ValueError(f"theme must be light or dark; got {theme!r}.")
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
        raise ValueError(f"Run {run.id} has no metrics to draw yet.")
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
