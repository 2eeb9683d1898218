"""A rescoring's charts and files. Colours are CSS variables, as everywhere."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from dashboard.analysis.rescoring.credit import (
    COMPLETION,
    GROUP,
    SCORE,
    SIGNALS,
    Numbers,
    Records,
)
from dashboard.analysis.rescoring.models import RescoredStep, Rescoring
from dashboard.completions.signals.records import unpack
from dashboard.datasets.row_exports import csv_lines
from dashboard.runs.charts.chart import clip_all, figure_tree

MAX_POINTS = 1_000
SMALLEST, LARGEST = 5.0, 22.0  # a point's diameter, px
COLUMNS = (
    *("run_id", "step", "prompt_index", "position"),
    *("old_reward", "new_reward", "old_rank", "new_rank"),
    *("old_advantage", "new_advantage", "old_signal", "new_signal"),
)
RENAMED = {"prompt_index": "prompt", "old_reward": "old", "new_reward": "new"}


@dataclass(frozen=True, slots=True)
class Scatter:
    """Completions of one old and one new reward are one point."""

    figure: dict[str, Any]
    num_points: int  # that there are
    num_drawn: int
    num_completions: int  # with both rewards
    num_shown: int  # in the points drawn


def draw_scatter(completions: Records) -> Scatter:
    """Draw the most frequent points, the larger the more completions they hold."""
    both = completions[~(np.isnan(completions["old"]) | np.isnan(completions["new"]))]
    pairs = clip_all(np.stack([both["old"], both["new"]], axis=1))
    points, first, counts = np.unique(
        pairs, axis=0, return_index=True, return_counts=True
    )
    drawn = np.sort(np.argsort(-counts, kind="stable")[:MAX_POINTS])
    low, high = (pairs.min(), pairs.max()) if len(pairs) else (0.0, 1.0)
    figure = figure_tree(
        [
            go.Scatter(
                x=[float(low), float(high)],
                y=[float(low), float(high)],
                mode="lines",
                line={"color": "var(--cohort-quiet)", "width": 1, "dash": "dot"},
                hoverinfo="skip",
            ),
            go.Scatter(
                mode="markers",
                marker={
                    "color": "var(--cohort-series-1)",
                    "opacity": 0.6,
                    "line": {"width": 0},
                },
                hovertemplate="old %{x:.3~g}, new %{y:.3~g}<br>%{text}<extra></extra>",
            ),
        ],
        xaxis={"title": {"text": "old reward"}},
        yaxis={"title": {"text": "new reward"}},
        hovermode="closest",
        showlegend=False,
    )
    of = both[first[drawn]]
    figure["data"][1] |= {
        "x": points[drawn, 0].tolist(),
        "y": points[drawn, 1].tolist(),
        "text": [
            f"{count:,} completion{'s' if count != 1 else ''}"
            for count in counts[drawn].tolist()
        ],
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


def _diameters(counts: Any) -> list[float]:
    """Areas grow with the number, from a least one on."""
    if not len(counts):
        return []
    share = np.sqrt(counts / counts.max())
    diameters: list[float] = np.round(
        SMALLEST + (LARGEST - SMALLEST) * share, 1
    ).tolist()
    return diameters


@dataclass(frozen=True, slots=True)
class Curve:
    figure: dict[str, Any]
    num_steps: int
    num_drawn: int


def draw_means(completions: Records) -> Curve:
    """Draw the mean reward of each step, old and new; of many steps some, evenly."""
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
                hovertemplate="%{y:.3~g}",
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
    is_known = ~np.isnan(values)
    sums = np.bincount(where[is_known], weights=values[is_known], minlength=count)
    counts = np.bincount(where[is_known], minlength=count)
    means: Numbers = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    return means


# Files, a line for each completion.


def write_jsonl(rescoring: Rescoring) -> Iterator[str]:
    for row, rules in _rows(rescoring):
        line = json.dumps({**row, "rules": rules}, ensure_ascii=False, allow_nan=False)
        yield line + "\n"


def write_csv(rescoring: Rescoring) -> Iterator[str]:
    parts = rescoring.scored.order_by("step").values_list("rule_names", flat=True)
    names = list(dict.fromkeys(name for part in parts for name in part))
    scores = [(name, when) for name in names for when in ("old", "new")]
    rows = (
        [
            *(row[name] for name in COLUMNS),
            *(
                rules.get(name, {}).get(when)
                for name in names
                for when in ("old", "new")
            ),
        ]
        for row, rules in _rows(rescoring)
    )
    return csv_lines([*COLUMNS, *(f"{when} {name}" for name, when in scores)], rows)


WRITERS = {"jsonl": write_jsonl, "csv": write_csv}


def _rows(rescoring: Rescoring) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for step in rescoring.scored.order_by("step").iterator(chunk_size=20):
        yield from _rows_of(rescoring, step)


def _rows_of(
    rescoring: Rescoring, step: RescoredStep
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    groups = unpack(bytes(step.groups), GROUP)
    completions = unpack(bytes(step.completions), COMPLETION)
    shape = (-1, len(step.rule_names))
    old = unpack(bytes(step.old_scores), SCORE).reshape(shape)
    new = unpack(bytes(step.scores), SCORE).reshape(shape)
    signals = np.repeat(np.arange(len(groups)), groups["num_completions"])
    for index, completion in enumerate(completions):
        group = groups[signals[index]]
        row: dict[str, Any] = {"run_id": rescoring.run_id}
        for name in COLUMNS[1:10]:
            row[name] = _value(completion[RENAMED.get(name, name)])
        for name in ("old_rank", "new_rank"):
            row[name] = row[name] or None
        row["old_signal"] = SIGNALS[group["old_signal"]]
        row["new_signal"] = SIGNALS[group["new_signal"]]
        yield (
            row,
            {
                name: {"old": _value(old[index, at]), "new": _value(new[index, at])}
                for at, name in enumerate(step.rule_names)
            },
        )


def _value(value: Any) -> Any:
    number = value.item()
    is_none = isinstance(number, float) and not math.isfinite(number)
    return None if is_none else number
