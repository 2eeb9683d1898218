"""A chart as pages get it, and what of a run and a metric decides how it looks.

It is a Plotly figure whose traces say what they show.

A trace's `meta.terms` is a sum of metrics, [[metric, factor], …] plus `meta.constant`,
or the sum `meta.otherwise` within `meta.limits` where a run lacks one of them;
`meta.each` instead names a family of metrics (a regular expression), one trace each,
with `meta.band` inside its interval where one is known (<metric>/low and /high).
Colours are CSS variables, so a chart follows the theme.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray

from trainer.config import RunConfig
from trainer.metric_names import MAIN_SET, title_of
from trainer.rewards.spec import recipe_bounds


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    id: str
    name: str  # of the metric, or of the family: kl/mean, group/frac_…
    title: str
    about: str  # one line under the title
    figure: dict[str, Any]


def chart(
    name: str,
    about: str,
    traces: Sequence[Any] = (),
    *,
    title: str = "",
    y: str,
    y_axis: dict[str, Any] | None = None,
) -> Chart:
    data = list(traces) or [line(name, color=1)]
    title = title or title_of(name)
    named = [trace for trace in data if trace.showlegend is not False]
    tree = figure_tree(
        data,
        title={"text": title},
        xaxis={"title": {"text": "step"}},
        yaxis={"title": {"text": y}, "exponentformat": "e", **(y_axis or {})},
        hovermode="x unified",
        showlegend=len(named) > 1 or named[0].name is None,
    )
    return Chart(
        id=chart_id(name),
        name=name,
        title=title,
        about=about,
        figure=tree,
    )


def figure_tree(traces: Sequence[Any], **layout: Any) -> dict[str, Any]:
    """Write JSON without Plotly's template: the page has its own colours."""
    figure = go.Figure(data=traces)
    figure.update_layout(template=go.layout.Template(), **layout)
    tree: dict[str, Any] = figure.to_plotly_json()
    del tree["layout"]["template"]
    return tree


def chart_id(name: str) -> str:
    """Part of an address: #chart-kl-mean."""
    return re.sub(r"[^A-Za-z0-9_]+", "-", name).strip("-_")


def hover(unit: str) -> str:
    return "%{y:.3~g}" + unit


def line(
    metric: str, *, name: str | None = None, color: int, smooth: bool = True
) -> go.Scatter:
    return go.Scatter(
        name=name or title_of(metric),
        mode="lines",
        line={"color": f"var(--cohort-series-{(color - 1) % 10 + 1})", "width": 2},
        hovertemplate=hover(""),
        meta={"terms": [[metric, 1]], "full": metric, "smooth": smooth},
    )


def reward_edge(side: Literal[-1, 1], limits: tuple[float, float] | None) -> go.Scatter:
    """Draw an edge of the band of the reward; the upper one fills down to the lower.

    The 10th or 90th percentile of the step's completions; the mean ± the deviation of
    runs that lack it, within the rewards that are possible or were seen.
    """
    metric = "reward/p90" if side > 0 else "reward/p10"
    return go.Scatter(
        name=metric,
        mode="lines",
        line={"width": 0},
        fill="tonexty" if side > 0 else None,
        fillcolor="var(--cohort-series-1)",
        hoverinfo="skip",
        showlegend=False,
        meta={
            "terms": [[metric, 1]],
            "otherwise": [["reward/mean", 1], ["reward/std", side]],
            "limits": limits,
            "smooth": True,
            "alpha": 0.16,
        },
    )


def share(
    name: str, color: str, terms: list[list[Any]], *, constant: float = 0
) -> go.Scatter:
    share = layer(name, color, terms, unit="", constant=constant)
    share.hovertemplate = "%{y:.1%}"
    return share


def layer(
    name: str, color: str, terms: list[list[Any]], *, unit: str, constant: float = 0
) -> go.Scatter:
    return go.Scatter(
        name=name,
        mode="lines",
        stackgroup="one",
        line={"width": 0.5, "color": f"var(--cohort-{color})"},
        fillcolor=f"var(--cohort-{color})",
        hovertemplate=hover(unit),
        meta={"terms": terms, "constant": constant, "smooth": True, "alpha": 0.75},
    )


# The largest number that is drawn and computed with; exports hold it as it was sent. A
# finite number may be 1.8e308: the difference of two such numbers is none, nor is the
# square of one above 1e154. This one fits float32, which rollups are of, and a variance
# of it may be squared again. static/js/charts/series.js clips alike.
LARGEST = 1e37
NEARLY = LARGEST * (1 - 1e-6)  # as float32 has it


def clip(value: float) -> float:
    """NaN for an infinity too, which is no number."""
    return max(-LARGEST, min(LARGEST, value)) if math.isfinite(value) else math.nan


def clip_all(values: ArrayLike) -> NDArray[np.float64]:
    """Clip values as `clip` does."""
    numbers = np.asarray(values, np.float64)
    return np.where(np.isfinite(numbers), np.clip(numbers, -LARGEST, LARGEST), np.nan)


def has_clipped(values: ArrayLike) -> bool:
    return bool((np.abs(np.asarray(values, np.float64)) >= NEARLY).any())


NOTE = (
    "Values beyond ±1e37 are clipped here. Exports keep the values as they were sent."
)


def is_score(last_part: str) -> bool:
    """Tell whether it ends the name of a mean of scores or a share of right answers."""
    return last_part == "mean" or last_part.startswith(("pass@", "maj@"))


@dataclass(frozen=True, kw_only=True, slots=True)
class ChartFeatures:
    """The settings of a run that decide which charts it has."""

    rules: tuple[str, ...]
    scheduled: tuple[str, ...]  # of the rules those whose weight moves
    eval_sets: tuple[str, ...]
    has_reference: bool
    samples_kl: bool  # where there is none
    has_dual_clip: bool
    has_penalty: bool  # for length
    limits: tuple[float, float] | None  # of rewards; None: unknown
    distils: bool = False  # the reference is a teacher
    has_percentiles: bool = True  # of the step's rewards; else their deviation


def features_of(config: RunConfig) -> ChartFeatures:
    """Read features of all phases: a chart is there if one of them fills it."""
    configs = [phase.config for phase in config.phase_configs]
    rules = [rule for config in configs for rule in config.reward.recipe.rules]
    moving = [rule.name for rule in rules if rule.schedule]
    evaluated = [config for config in configs if config.evaluation.every_steps > 0]
    own = [MAIN_SET for config in evaluated if config.data.num_eval_rows > 0]
    further = [name for config in evaluated for name in config.evaluation.sets]
    return ChartFeatures(
        rules=tuple(dict.fromkeys(rule.name for rule in rules)),
        scheduled=tuple(dict.fromkeys(moving)),
        eval_sets=tuple(dict.fromkeys([*own, *further])),
        has_reference=any(config.has_reference for config in configs),
        samples_kl=any(config.samples_kl for config in configs),
        distils=any(config.distils for config in configs),
        has_dual_clip=any(config.loss.dual_clip is not None for config in configs),
        has_penalty=any(config.reward.overlong_buffer_tokens > 0 for config in configs),
        limits=_limits(configs),
    )


def _limits(configs: Sequence[RunConfig]) -> tuple[float, float] | None:
    if any(config.loss.kl_in == "reward" for config in configs):
        return None  # what is subtracted has no bound
    lows, highs = zip(*map(_limits_of, configs), strict=True)
    low, high = min(lows), max(highs)
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None


def _limits_of(config: RunConfig) -> tuple[float, float]:
    reward = config.reward
    low, high = recipe_bounds(reward.recipe)
    penalty = reward.overlong_penalty if reward.overlong_buffer_tokens > 0 else 0
    return low - penalty, high
