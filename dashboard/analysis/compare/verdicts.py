"""Summary values of runs, and verdicts on whether two sets differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from django.db.models import FloatField, Max
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast

from dashboard.analysis.compare.seeds import IQM
from dashboard.analysis.compare.series import Better, latest_evaluations
from dashboard.analysis.statistics import (
    MOST_SEEDS,
    Array,
    Estimate,
    iqm_difference,
    iqm_interval,
    mean_interval,
    moments,
    seeds_needed,
    subtract,
    welch_difference,
)
from dashboard.runs.charts.chart import clip
from dashboard.runs.models import Evaluation, Run
from trainer.metric_names import title_of

Kind = Literal["none", "one", "open", "same", "better", "worse", "differs"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A number of a run or of a set of them."""

    value: float | None
    delta: float | None  # to the baseline; None: it is the baseline, or one lacks it
    better: Better = "higher"
    is_of_one: bool = False  # it or the baseline's is of one run, so nothing is better

    @property
    def direction(self) -> str:
        if not self.delta or self.better == "neither" or self.is_of_one:
            return "same"
        is_more = self.delta > 0
        return "better" if is_more == (self.better == "higher") else "worse"


def make_figures(
    values: Sequence[float | None], nums: Sequence[int], better: Better
) -> list[Figure]:
    """Of each set, which has so many runs; the first is the baseline."""
    base = values[0]
    return [
        Figure(
            value=value,
            delta=None
            if index == 0 or value is None or base is None
            else float(subtract(np.array(value), np.array(base))),
            better=better,
            is_of_one=min(nums[0], nums[index]) < 2,
        )
        for index, value in enumerate(values)
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    title: str
    figures: list[Figure]  # one per set of runs


def compare_summaries(
    runs: Sequence[Run], sets: Sequence[Sequence[int]]
) -> list[Column]:
    """Last and best reward, then each held-out set's. 1 query, and 1 per held-out set.

    A figure for each set of runs, which are named by their indices: the mean of theirs.
    """
    columns = [
        ("Reward, last", [run.reward("last") for run in runs]),
        ("Reward, best", [run.reward("best") for run in runs]),
    ]
    latest = list(latest_evaluations(runs))
    for name in sorted({evaluation.name for evaluation in latest}):
        columns += _held_out(runs, name, latest)
    nums = [len(one) for one in sets]
    return [
        Column(
            title=title,
            figures=make_figures([_mean(values, s) for s in sets], nums, "higher"),
        )
        for title, values in columns
    ]


def _mean(values: Sequence[float | None], indices: Sequence[int]) -> float | None:
    found = [clip(v) for index in indices if (v := values[index]) is not None]
    return sum(found) / len(found) if found else None


def _held_out(
    runs: Sequence[Run], name: str, latest: Sequence[Evaluation]
) -> list[tuple[str, list[float | None]]]:
    metric = f"eval/{name}/mean"
    last = {e.run_id: e.metrics.get(metric) for e in latest if e.name == name}
    best = _best(runs, name, metric)
    return [
        (f"{title_of(metric)}, last", [last.get(run.pk) for run in runs]),
        (f"{title_of(metric)}, best", [best.get(run.pk) for run in runs]),
    ]


def _best(runs: Sequence[Run], name: str, metric: str) -> dict[int, float | None]:
    value = Cast(KeyTextTransform(metric, "metrics"), FloatField())
    rows = Evaluation.objects.filter(run__in=runs, superseded_by=None, name=name)
    return dict(rows.order_by().values_list("run_id").annotate(best=Max(value)))


# Verdicts on two sets of seeds.


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    kind: Kind
    text: str
    # other - base and its interval; None: not measured.
    difference: float | None = None
    interval: tuple[float, float] | None = None
    is_paired: bool = False


def judge(
    base: Array, other: Array, *, statistic: str, better: Better, is_paired: bool
) -> Verdict:
    """Both are [S, 1], a value of the window for each run; pairs are of one row."""
    if is_paired:
        base, other = _pairs(base, other)
    nums = _count(base), _count(other)
    if 0 in nums:
        return Verdict(kind="none", text="no values in the window")
    found = _difference(base, other, statistic=statistic, is_paired=is_paired)
    kind, text = _kind_and_text(found, base, other, nums, better, is_paired=is_paired)
    return Verdict(
        kind=kind,
        text=text,
        difference=float(found.value[0]),
        interval=found.interval,
        is_paired=is_paired,
    )


def _pairs(base: Array, other: Array) -> tuple[Array, Array]:
    there = np.isfinite(base - other)
    return np.where(there, base, np.nan), np.where(there, other, np.nan)


def _count(values: Array) -> int:
    return int(np.isfinite(values).sum())


def _difference(
    base: Array, other: Array, *, statistic: str, is_paired: bool
) -> Estimate:
    if is_paired:
        return (iqm_interval if statistic == IQM else mean_interval)(
            subtract(other, base)
        )
    return (iqm_difference if statistic == IQM else welch_difference)(base, other)


def _kind_and_text(
    found: Estimate,
    base: Array,
    other: Array,
    nums: tuple[int, int],
    better: Better,
    *,
    is_paired: bool,
) -> tuple[Kind, str]:
    value, low, high = found.value[0], found.low[0], found.high[0]
    if min(nums) == 1:
        whose = "each" if nums == (1, 1) else "on one side"
        return "one", f"one run {whose}: no test"
    if low == high == 0:
        return "same", "equal in every seed"
    if low <= 0 <= high:
        more = _more(value, base, other, nums, is_paired=is_paired)
        return "open", f"not distinguishable yet: {more}"
    word = "higher" if value > 0 else "lower"
    if better == "neither":
        return "differs", f"distinguishable: {word}"
    kind: Kind = "better" if word == better else "worse"
    return kind, f"distinguishable: {kind}"


def _more(
    difference: float,
    base: Array,
    other: Array,
    nums: tuple[int, int],
    *,
    is_paired: bool,
) -> str:
    if is_paired:
        variances = (float(moments(subtract(other, base))[2][0]), 0.0)
    else:
        variances = (float(moments(base)[2][0]), float(moments(other)[2][0]))
    needed = seeds_needed(float(difference), variances, is_paired=is_paired)
    if needed is None:
        return f"more than {MOST_SEEDS:,} more seeds each"
    if nums[0] == nums[1]:
        more = max(1, needed - nums[0])
        return f"about {more} more seed{'s' if more > 1 else ''} each"
    return f"about {max(needed, max(nums) + 1)} seeds needed each"
