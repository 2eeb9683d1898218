"""The lines of a chart: as measured, smoothed, a band or a stack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trainer.client.api.charts import Chart, Line
from trainer.client.api.records import Metrics

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
