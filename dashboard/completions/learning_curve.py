"""One prompt's learning curve: figures defined here, coloured in the browser."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from dashboard.completions.prompt_visits import Visits
from dashboard.runs.charts.chart import figure_tree

MAX_POINTS = 500
FEW_POINTS = 60  # each is marked
MAX_TICKS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A visit, or several pooled: counts are summed, mean and std averaged.

    Groups without a score count too: they have no pass rate and no mean.
    """

    first: int  # step
    last: int
    num_visits: int
    num_scored: int
    num_right: int
    mean: float | None
    std: float | None

    @property
    def share(self) -> float | None:
        return self.num_right / self.num_scored if self.num_scored else None

    @property
    def percent(self) -> float | None:
        return None if self.share is None else 100 * self.share

    @property
    def words(self) -> str:
        if self.num_visits == 1:
            return f"step {self.last:,}"
        return f"{self.num_visits:,} groups, steps {self.first:,} to {self.last:,}"


def make_points(visits: Visits) -> list[Point]:
    """Pool the visits of one prompt, by step; at most MAX_POINTS."""
    if not len(visits):
        return []
    return [
        _make_point(part)
        for part in np.array_split(visits, min(len(visits), MAX_POINTS))
    ]


def _make_point(part: Visits) -> Point:
    scored = part[np.isfinite(part["mean"])]
    spread = part[np.isfinite(part["std"])]
    return Point(
        first=int(part["step"][0]),
        last=int(part["step"][-1]),
        num_visits=len(part),
        num_scored=int(part["num_scored"].sum()),
        num_right=int(part["num_right"].sum()),
        mean=float(scored["mean"].mean()) if len(scored) else None,
        std=float(spread["std"].mean()) if len(spread) else None,
    )


def draw_curves(points: Sequence[Point]) -> dict[str, dict[str, Any]]:
    """Draw pass (pass rate by step) and reward (mean reward and its spread)."""
    scored = [point for point in points if point.share is not None]
    line = go.Scatter(
        **_along(scored),
        y=[point.share for point in scored],
        line={"color": "var(--cohort-series-3)", "width": 2},
        hovertext=[
            f"{point.words}<br>correct: {point.num_right:,} of {point.num_scored:,} "
            f"({point.percent:.3g}%)"
            for point in scored
        ],
        hovertemplate="%{hovertext}<extra></extra>",
    )
    return {
        "pass": _figure(
            [line], y="pass rate", yaxis={"range": [-0.04, 1.04], "tickformat": ".0%"}
        ),
        "reward": _reward(points),
    }


def _reward(points: Sequence[Point]) -> dict[str, Any]:
    scored = [point for point in points if point.mean is not None]
    means = [point.mean or 0.0 for point in scored]
    stds = [point.std or 0.0 for point in scored]
    edges = [
        go.Scatter(
            x=[point.last for point in scored],
            y=[mean + side * std for mean, std in zip(means, stds, strict=True)],
            mode="lines",
            line={"width": 0},
            fill="tonexty" if side > 0 else None,
            fillcolor="var(--cohort-series-1)",
            hoverinfo="skip",
            meta={"alpha": 0.16},
        )
        for side in (-1, 1)
    ]
    line = go.Scatter(
        **_along(scored),
        y=means,
        line={"color": "var(--cohort-series-1)", "width": 2},
        hovertext=[
            f"{point.words}<br>mean {mean:.4g}, spread {std:.4g}"
            for point, mean, std in zip(scored, means, stds, strict=True)
        ],
        hovertemplate="%{hovertext}<extra></extra>",
    )
    return _figure([*edges, line], y="reward")


def _along(points: Sequence[Point]) -> dict[str, Any]:
    """Common parts of both lines; a click on a point opens its newest group."""
    steps = [point.last for point in points]
    is_marked = len(points) <= FEW_POINTS
    return {
        "x": steps,
        "customdata": steps,
        "mode": "lines+markers" if is_marked else "lines",
    }


def _figure(data: list[Any], *, y: str, **layout: Any) -> dict[str, Any]:
    axis = {"title": {"text": y}, **layout.pop("yaxis", {})}
    return figure_tree(
        data,
        xaxis={"title": {"text": "step"}, "tickformat": ",d", **_ticks(data[-1].x)},
        yaxis=axis,
        hovermode="closest",
        showlegend=False,
        **layout,
    )


def _ticks(steps: Sequence[int]) -> dict[str, Any]:
    """Steps are integers: avoid ticks such as 1.5, or 2 twice."""
    if not steps or steps[-1] - steps[0] >= MAX_TICKS:
        return {"nticks": MAX_TICKS}
    return {"dtick": 1, "range": [steps[0] - 0.5, steps[-1] + 0.5]}


def describe(points: Sequence[Point], *, of: str) -> str:
    """Describe the chart in words, for screen readers."""
    values = [(p.percent if of == "pass" else p.mean, p.last) for p in points]
    pairs = [(v, step) for v, step in values if v is not None and math.isfinite(v)]
    name, unit = ("Pass rate", "%") if of == "pass" else ("Mean reward", "")
    if not pairs:
        return f"{name}: no values."
    (low, low_at), (high, high_at) = min(pairs), max(pairs)
    first, last = pairs[0], pairs[-1]
    return (
        f"{name} by step: {first[0]:.3g}{unit} at step {first[1]:,}, "
        f"{last[0]:.3g}{unit} at step {last[1]:,}; lowest {low:.3g}{unit} at step "
        f"{low_at:,}, highest {high:.3g}{unit} at step {high_at:,}."
    )
