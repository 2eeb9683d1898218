"""A chart's lines and ticks as positions in a box, which pages and files draw as SVG.

Values in, numbers out: a process without a database can draw it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dashboard.accounts.templatetags.numbers import si, sig3
from dashboard.analysis.compare.series import smooth
from dashboard.runs.charts.chart import clip
from trainer.metric_names import title_of

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 70, 14, 12, 46
DASHES = {
    "dash": (8, 5),
    "dot": (2, 3),
    "dashdot": (8, 3, 2, 3),
    "longdash": (12, 5),
}
Scale = Callable[[float], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    points: list[tuple[float, float]]
    colour: int
    dash: tuple[int, ...]
    is_faint: bool  # as measured, under the smoothed one
    is_bold: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawing:
    lines: list[Line]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    x_title: str
    y_title: str
    left: float = LEFT
    right: float = WIDTH - RIGHT
    top: float = TOP
    bottom: float = HEIGHT - BOTTOM


def linear_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, from low to high.

    >>> linear_ticks(0.0, 1.0)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    least = (high - low) / most
    power = 10.0 ** math.floor(math.log10(least))
    rounded = next(f for f in (1, 2, 5, 10) if f * power >= least * (1 - 1e-9))
    step = float(rounded * power)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    digits = max(0, 1 - math.floor(math.log10(step)))
    return [round(i * step, digits) + 0.0 for i in range(first, last + 1)]


def log_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Powers of ten; between fewer than two of them, 2 and 5 times them too."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = max(1, -(-(last - first) // most))
    powers = [10.0**i for i in range(first, last + 1, every)]
    inside = [p for p in powers if low * (1 - 1e-9) <= p <= high * (1 + 1e-9)]
    if len(inside) >= 2:
        return inside
    finer = [f * 10.0**i for i in range(first, last + 1) for f in (1, 2, 5)]
    return [p for p in finer if low * (1 - 1e-9) <= p <= high * (1 + 1e-9)]


def draw_chart(chart: dict[str, Any]) -> Drawing | None:
    """Return None where no run has a value that can be drawn."""
    weight, is_log = chart["smoothing"], chart["is_log"]
    curves = []
    for line in chart["lines"]:
        # Of a pin that is older than the bound, values may lie beyond it.
        values = list(map(clip, line["values"]))
        x = list(map(clip, x_of(line)))
        curves.append((line, x, values, smooth(values, weight)))
    drawn = [curve for curve in curves if any(v > 0 or not is_log for v in curve[2])]
    if not drawn:
        return None
    y_low, y_high = _bounds(
        [values for _, _, raw, mean in drawn for values in (raw, mean)], is_log
    )
    x_low, x_high = _bounds([x for _, x, _, _ in drawn], is_log=False)
    scale_x = _scale(x_low, x_high, LEFT, WIDTH - RIGHT)
    scale_y = _scale(y_low, y_high, HEIGHT - BOTTOM, TOP, is_log=is_log)
    lines = []
    for line, x, raw, mean in drawn:
        is_bold = line is chart["lines"][0] and len(chart["lines"]) > 1
        if weight > 0:
            lines.append(_line(line, _points(x, raw, scale_x, scale_y), faint=True))
        lines.append(_line(line, _points(x, mean, scale_x, scale_y), bold=is_bold))
    # Faint lines first, so that smoothed lines are on top.
    return Drawing(
        lines=sorted(lines, key=lambda line: not line.is_faint),
        x_ticks=[Tick(at=scale_x(v), label=si(v)) for v in linear_ticks(x_low, x_high)],
        y_ticks=[
            Tick(at=scale_y(v), label=sig3(v))
            for v in (log_ticks if is_log else linear_ticks)(y_low, y_high, 5)
        ],
        x_title=chart["axis"],
        y_title=title_of(chart["metric"], with_unit=True),
    )


def x_of(line: dict[str, Any]) -> list[float]:
    """Steps are not written twice."""
    positions: list[float] = line["x"] or line["steps"]
    return positions


def _bounds(series: Sequence[Sequence[float]], is_log: bool) -> tuple[float, float]:
    values = [v for values in series for v in values if v > 0 or not is_log]
    low, high = min(values), max(values)
    if high - low > 1e-12 * max(abs(low), abs(high)):
        return low, high
    if is_log:
        return low / 2, high * 2
    margin = abs(low) / 2 or 0.5
    return low - margin, high + margin


def _scale(
    low: float, high: float, start: float, end: float, *, is_log: bool = False
) -> Scale:
    change: Scale = math.log10 if is_log else float
    first, last = change(low), change(high)
    return lambda v: start + (end - start) * (change(v) - first) / (last - first)


def _points(
    x: Sequence[float], y: Sequence[float], scale_x: Scale, scale_y: Scale
) -> list[tuple[float, float]]:
    """Place points; a logarithmic axis has no place for those up to 0."""
    positions = []
    for at, value in zip(x, y, strict=True):
        try:
            positions.append((round(scale_x(at), 1), round(scale_y(value), 1)))
        except ValueError:
            continue
    return positions


def _line(
    line: dict[str, Any],
    points: list[tuple[float, float]],
    *,
    faint: bool = False,
    bold: bool = False,
) -> Line:
    return Line(
        points=points,
        colour=line["colour"],
        dash=() if faint else DASHES.get(line["dash"], ()),
        is_faint=faint,
        is_bold=bold,
    )
