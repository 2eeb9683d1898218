"""What a rescoring's charts draw. Colours are CSS variables, as everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from dashboard.rescoring.records import Numbers, Records
from dashboard.runs.charts.chart import clip_all, figure_tree

MAX_POINTS = 1_000
SMALLEST, LARGEST = 5.0, 22.0  # a point's diameter, px


@dataclass(frozen=True, slots=True)
class Scatter:
    """Completions of one old and one new reward are one point."""

    figure: dict[str, Any]
    num_points: int  # that there are
    num_drawn: int
    num_completions: int  # with both rewards
    num_shown: int  # in the points drawn


def draw_scatter(completions: Records) -> Scatter:
    """The most frequent points, the larger the more completions they hold."""
    both = completions[~(np.isnan(completions["old"]) | np.isnan(completions["new"]))]
    pairs = clip_all(np.stack([both["old"], both["new"]], axis=1))
    points, first, counts = np.unique(
        pairs, axis=0, return_index=True, return_counts=True
    )
    drawn = np.sort(np.argsort(-counts, kind="stable")[:MAX_POINTS])
    figure = figure_tree(
        [_diagonal(pairs), _points()],
        xaxis={"title": {"text": "old reward"}},
        yaxis={"title": {"text": "new reward"}},
        hovermode="closest",
        showlegend=False,
    )
    of = both[first[drawn]]
    figure["data"][1] |= {
        "x": points[drawn, 0].tolist(),
        "y": points[drawn, 1].tolist(),
        "text": [_words(count) for count in counts[drawn].tolist()],
        # An example of each, to be opened by a click.
        "customdata": np.stack(
            [of["step"], of["prompt"], of["position"]], axis=1
        ).tolist(),
    }
    figure["data"][1]["marker"]["size"] = _diameters(counts[drawn])
    return Scatter(
        figure=figure,
        num_points=len(points),
        num_drawn=len(drawn),
        num_completions=len(both),
        num_shown=int(counts[drawn].sum()),
    )


def _words(count: int) -> str:
    return f"{count:,} completion{'s' if count != 1 else ''}"


def _diameters(counts: Any) -> list[float]:
    """Areas grow with the number, from a least one on."""
    if not len(counts):
        return []
    share = np.sqrt(counts / counts.max())
    found: list[float] = np.round(SMALLEST + (LARGEST - SMALLEST) * share, 1).tolist()
    return found


def _diagonal(pairs: Numbers) -> go.Scatter:
    low, high = (pairs.min(), pairs.max()) if len(pairs) else (0.0, 1.0)
    return go.Scatter(
        x=[float(low), float(high)],
        y=[float(low), float(high)],
        mode="lines",
        line={"color": "var(--cohort-quiet)", "width": 1, "dash": "dot"},
        hoverinfo="skip",
    )


def _points() -> go.Scatter:
    return go.Scatter(
        mode="markers",
        marker={
            "color": "var(--cohort-series-1)",
            "opacity": 0.6,
            "line": {"width": 0},
        },
        hovertemplate="old %{x:.4~g}, new %{y:.4~g}<br>%{text}<extra></extra>",
    )


@dataclass(frozen=True, slots=True)
class Curve:
    figure: dict[str, Any]
    num_steps: int
    num_drawn: int


def draw_means(completions: Records) -> Curve:
    """The mean reward of each step, old and new; of many steps so many, evenly."""
    steps, where = np.unique(completions["step"], return_inverse=True)
    drawn = np.unique(np.linspace(0, len(steps) - 1, MAX_POINTS).astype(int))
    lines = []
    for name, colour in (("old", 2), ("new", 1)):
        means = _means(clip_all(completions[name]), where, len(steps))
        lines.append((name, colour, means[drawn]))
    mode = "lines+markers" if len(steps) < 30 else "lines"
    figure = figure_tree(
        [
            go.Scatter(
                name=name,
                mode=mode,
                line={"color": f"var(--cohort-series-{colour})", "width": 2},
                marker={"size": 5},
                hovertemplate="%{y:.4~g}",
            )
            for name, colour, _ in lines
        ],
        xaxis={"title": {"text": "step"}},
        yaxis={"title": {"text": "mean reward"}},
        hovermode="x unified",
        showlegend=True,
    )
    for trace, (_, _, means) in zip(figure["data"], lines, strict=True):
        trace["x"] = steps[drawn].tolist()
        trace["y"] = [None if np.isnan(m) else float(f"{m:.6g}") for m in means]
    return Curve(figure, len(steps), len(drawn))


def _means(values: Numbers, where: Any, count: int) -> Numbers:
    known = ~np.isnan(values)
    sums = np.bincount(where[known], weights=values[known], minlength=count)
    counts = np.bincount(where[known], minlength=count)
    means: Numbers = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    return means
