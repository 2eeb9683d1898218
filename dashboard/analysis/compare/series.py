"""A metric of runs as lines: downsampled, smoothed, which way is better, its window."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dashboard.analysis.compare.points import Points, read_means
from dashboard.analysis.statistics import Array
from dashboard.runs.charts.series import is_bound
from dashboard.runs.models import REWARD, Evaluation, Run
from trainer.metric_names import MAIN_SET, better_of, group_names

MAX_POINTS = 1_000
POINTS_PER_BUCKET = 3
Better = Literal["higher", "lower", "neither"]
RULE = re.compile(r"reward/(?P<rule>[^/]+)/mean")
SHARE = 0.1  # of the common steps, by default


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    steps: list[int]
    x: list[float]
    values: list[float]
    smoothed: list[float]


def make_series(points: Points, *, smoothing: float, most: int = MAX_POINTS) -> Series:
    """Keep at most 1,000 of the points, with their spikes, and smooth these."""
    drawn = points.take(thin(points.values, points.values, most))
    values = drawn.values.tolist()
    return Series(
        steps=drawn.steps.tolist(),
        x=[float(f"{at:.9g}") for at in drawn.at.tolist()],
        values=values,
        smoothed=smooth(values, smoothing),
    )


def thin(low: Array, high: Array, most: int = MAX_POINTS) -> NDArray[np.int64]:
    """Positions to draw, at most so many.

    Of each window of equal length the index of its lowest `low`, of its highest `high`,
    and its last; NaN is neither.
    """
    num = len(low)
    if num <= most:
        return np.arange(num)
    width = -(-num // (most // POINTS_PER_BUCKET))
    whole = num // width * width
    positions = []
    for part in (slice(0, whole), slice(whole, num)):
        begins = np.arange(part.start, part.stop, width)
        if len(begins):
            lowest = np.where(np.isnan(low[part]), np.inf, low[part])
            highest = np.where(np.isnan(high[part]), -np.inf, high[part])
            positions += [
                begins + lowest.reshape(len(begins), -1).argmin(axis=1),
                begins + highest.reshape(len(begins), -1).argmax(axis=1),
                np.minimum(begins + width, part.stop) - 1,
            ]
    return np.unique(np.concatenate(positions))


def smooth(values: Sequence[float], weight: float) -> list[float]:
    """Exponential moving average, freed of its start at 0, as TensorBoard draws it.

    >>> smooth([1.0, 1.0, 4.0], 0.5)
    [1.0, 1.0, 2.7142857142857144]
    """
    smoothed, last, norm = [], 0.0, 0.0
    for value in values:
        last = weight * last + (1 - weight) * value
        norm = weight * norm + (1 - weight)
        smoothed.append(last / norm)
    return smoothed


def smooth_all(values: Array, weight: float) -> Array:
    """`smooth` for many points at once: sums of 1, 2, 4 … points, each from two shorter
    ones.

    Stops when weight^width is below the precision of a float.
    """
    sums, norm, width = values * 1.0, np.ones(len(values)), 1
    while width < len(values) and weight**width > 1e-17:
        share = weight**width
        sums[width:] += share * sums[:-width].copy()
        norm[width:] += share * norm[:-width].copy()
        width *= 2
    return sums / norm


def declare(metric: str, config: dict[str, Any]) -> Better:
    """Tell which way is better; for a rule's score by the sign of its weight in this
    run's recipe.
    """
    if rule := RULE.fullmatch(metric):
        name = rule["rule"]
        weights = [
            own.get("weight", 1.0)
            for own in config.get("reward", {}).get("recipe", {}).get("rules", [])
            if own.get("name") == name
        ]
        return "lower" if weights and weights[0] < 0 else "higher"
    return better_of(metric) or "neither"


# The available metrics, in groups.


def list_metrics(
    runs: Sequence[Run], *, shown: str = REWARD
) -> list[tuple[str, list[str]]]:
    """Names by group, of all the runs together, and the one shown. One query."""
    names = {name for run in runs for name in run.metric_names}
    # Of each run and held-out set.
    latest = (
        Evaluation.objects.filter(run__in=runs, superseded_by__isnull=True)
        .order_by("run_id", "name", "-step")
        .distinct("run_id", "name")
    )
    evaluated = {name for evaluation in latest for name in evaluation.metrics}
    names |= {name for name in evaluated if not is_bound(name)}
    names.add(shown)  # no run may have measured it yet
    return group_names(names)


MAX_PINS = 6
# The charts of a comparison, and what stands in where none of its runs has one.
PINNED = (
    REWARD,
    f"eval/{MAIN_SET}/mean",
    "group/frac_zero_std",
    "distill/kl",
    "kl/mean",
    "entropy",
    "completion/mean_length",
)
STAND_INS = (
    "reward/std",
    "completion/frac_truncated",
    "grad_norm",
    "loss",
    "tokens_per_second",
)


def choose_pins(chosen: Sequence[str], known: Iterable[str]) -> list[str]:
    """Return the chosen metrics, else the usual ones that are known; at most six."""
    names = [
        name[:120] for text in chosen if (name := text.replace("\x00", "").strip())
    ]
    if names:
        return list(dict.fromkeys(names))[:MAX_PINS]
    there = set(known)
    sets = sorted(n for n in there if n.startswith("eval/") and n.endswith("/mean"))
    usual = [name for name in (*PINNED, *sets[:1], *STAND_INS) if name in there]
    return list(dict.fromkeys(usual))[:MAX_PINS] or [REWARD]


# The window: the last steps that all runs have made.


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Steps first … last, of the `num_common` that every run has made."""

    first: int
    last: int
    num_common: int
    shortest: Run | None  # the run that ends before others

    @property
    def num(self) -> int:
        return self.last - self.first + 1


def find_window(
    runs: Sequence[Run], points: dict[int, Points], wanted: int | None
) -> Window | None:
    """Find the last `wanted` of the common steps, or a tenth of them.

    Runs without a value do not count. None: no run has one, or no step is common.
    """
    there = [run for run in runs if len(points[run.pk])]
    if not there:
        return None
    ends = {run.pk: int(points[run.pk].steps[-1]) for run in there}
    begin = max(int(points[run.pk].steps[0]) for run in there)
    shortest = min(there, key=lambda run: ends[run.pk])
    last = ends[shortest.pk]
    if last < begin:
        return None
    num = last - begin + 1
    width = min(wanted or math.ceil(SHARE * num), num)
    return Window(
        first=last - width + 1,
        last=last,
        num_common=num,
        shortest=shortest if last < max(ends.values()) else None,
    )


def window_means(
    runs: Sequence[Run], metric: str, points: dict[int, Points], window: Window | None
) -> dict[int, float]:
    """Read each run's mean over the window; NaN where it has no value in it."""
    nothing = dict.fromkeys((run.pk for run in runs), math.nan)
    if window is None:
        return nothing
    return nothing | read_means(runs, metric, points, window.first, window.last)
