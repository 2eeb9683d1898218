"""Sets of runs that differ in their seed or a setting, and their confidence bands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from dashboard.analysis.compare.differences import Setting, compare_settings
from dashboard.analysis.compare.points import Points
from dashboard.analysis.compare.series import MAX_POINTS, smooth_all, thin
from dashboard.analysis.statistics import (
    Array,
    Estimate,
    interquartile_mean,
    iqm_difference,
    iqm_interval,
    mean_interval,
    moments,
    subtract,
    welch_difference,
)
from dashboard.runs.models import Run

MAX_SETS = 10
MAX_SEEDS = 20  # of a set
MORE = 3  # seeds that are offered
MIN_BAND = 4  # runs: the interval of fewer is wider than the metric
SEED = "seed"
# What `by` says in the address, when it is not the name of a setting.
SEEDS = "seeds"
NONE = "none"
MAX_NAMED = 2  # settings that a set is called by
MAX_CHARS = 40
MEAN, IQM = "mean", "iqm"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSet:
    """Runs that form one set; the first run gives it its number and its colour."""

    label: str
    runs: list[Run]
    indices: list[int]  # of its runs among all that were arranged
    num_found: int  # more than `runs` where there are too many
    varied: list[str]  # settings but the seed in which its runs differ

    @property
    def pk(self) -> int:
        return self.runs[0].pk

    @property
    def run(self) -> Run:
        return self.runs[0]

    @property
    def is_single(self) -> bool:
        return len(self.runs) == 1

    @property
    def next_seeds(self) -> str:
        """The next three, as the launch form reads them."""
        first = max((seed for seed in self.seeds if isinstance(seed, int)), default=-1)
        return f"{first + 1}..{first + MORE}"

    @property
    def has_band(self) -> bool:
        return len(self.runs) >= MIN_BAND

    @property
    def seeds(self) -> list[int | None]:
        return [run.config.get(SEED) for run in self.runs]


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrangement:
    sets: list[RunSet]
    num_sets: int  # more than `sets` where there are too many
    by: str
    settings: list[Setting]  # of all the runs that were arranged, by index

    @property
    def runs(self) -> list[Run]:
        return [run for run_set in self.sets for run in run_set.runs]

    @property
    def choices(self) -> list[str]:
        """The settings that the runs can be grouped by."""
        return [s.key for s in self.settings if s.differs and s.key != SEED]

    @property
    def has_bands(self) -> bool:
        return any(not run_set.is_single for run_set in self.sets)

    @property
    def num_runs(self) -> int:
        return sum(len(run_set.runs) for run_set in self.sets)


def arrange(runs: Sequence[Run], by: str) -> Arrangement:
    """Sets, ordered by their first runs; the first set is the baseline.

    `by` is SEEDS, NONE, or a setting; a setting in which no runs differ makes one set.
    """
    if not runs:
        return Arrangement(sets=[], num_sets=0, by=by, settings=[])
    settings = compare_settings(runs)
    differing = [setting for setting in settings if setting.differs]
    keys = _keys(runs, differing, by)
    members: dict[object, list[int]] = {}
    for index, key in enumerate(keys):
        members.setdefault(key, []).append(index)
    naming = [s for s in differing if s.key != SEED] if by != NONE else []
    if by not in (SEEDS, NONE):
        naming = [setting for setting in differing if setting.key == by]
    return Arrangement(
        sets=[
            _make(runs, indices, naming, differing)
            for indices in list(members.values())[:MAX_SETS]
        ],
        num_sets=len(members),
        by=by,
        settings=settings,
    )


def _keys(runs: Sequence[Run], differing: list[Setting], by: str) -> list[object]:
    if by == NONE:
        return [run.pk for run in runs]
    if by == SEEDS:
        parts = [setting.values for setting in differing if setting.key != SEED]
        # Whether imported runs differ only in their seed is unknown.
        return [
            run.pk if run.is_imported else tuple(part[i] for part in parts)
            for i, run in enumerate(runs)
        ]
    named = [setting.values for setting in differing if setting.key == by]
    return list(named[0]) if named else [None] * len(runs)


def _make(
    runs: Sequence[Run],
    indices: list[int],
    naming: list[Setting],
    differing: list[Setting],
) -> RunSet:
    used = indices[:MAX_SEEDS]
    first = indices[0]
    varied = [
        setting.key
        for setting in differing
        if setting.key != SEED and len({setting.values[i] for i in used}) > 1
    ]
    common = [s for s in naming if len({s.values[i] for i in indices}) == 1]
    is_named = 0 < len(common) <= MAX_NAMED
    names = [runs[index].name for index in indices]
    return RunSet(
        label=", ".join(_named(common, first)) if is_named else _joined(names),
        runs=[runs[i] for i in used],
        indices=used,
        num_found=len(indices),
        varied=varied,
    )


def _joined(names: list[str]) -> str:
    """Return what the names begin with, where that is more than a letter.

    >>> _joined(["calm-otter-1", "calm-otter-2"])
    'calm-otter'
    """
    if len(names) == 1:
        return names[0]
    # Of sorted names the first and the last share what all of them do.
    first, last = min(names), max(names)
    shared = takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    start = "".join(character for character, _ in shared).rstrip("-_ .#0123456789")
    return start if len(start) > 1 else f"{names[0]} …"


def _named(settings: Sequence[Setting], index: int) -> Iterator[str]:
    """Name settings by their titles; by their keys, where two have the same title."""
    titles = Counter(setting.title for setting in settings)
    for setting in settings:
        value = setting.values[index]
        short = value if value is not None else "absent"
        if len(short) > MAX_CHARS:
            short = short[: MAX_CHARS - 1] + "…"
        name = setting.title if titles[setting.title] == 1 else setting.key
        yield f"{name} {short}"


def can_pair(base: RunSet, other: RunSet) -> bool:
    """Tell whether each seed is in both sets, once."""
    ours, theirs = ([str(seed) for seed in run_set.seeds] for run_set in (base, other))
    return sorted(ours) == sorted(theirs) and len(set(ours)) == len(ours) > 1


def by_seed(run_set: RunSet) -> list[Run]:
    return sorted(run_set.runs, key=lambda run: str(run.config.get("seed")))


# Confidence bands: at each position the runs' mean, its interval, how many.


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfidenceBand:
    """At the positions that are drawn; each counts every run that has a value there."""

    at: Array
    estimate: Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class Aligned:
    """Values of each set, [S, P], at positions that are the same for all of them."""

    at: Array
    sets: list[Array]


def align(sets: Sequence[Sequence[Points]], *, axis: str, smoothing: float) -> Aligned:
    """Over steps: each step that a run has. Otherwise as many evenly spaced positions
    as the run with the most points has; runs are interpolated linearly between their
    points and have no value outside them.

    Smoothing goes before: each run by itself, over all of its points.
    """
    every = [points for run_set in sets for points in run_set if len(points)]
    if not every:
        return Aligned(at=np.empty(0), sets=[np.empty((len(s), 0)) for s in sets])
    at = _union(every) if axis == "step" else _grid(every)
    value_at = _by_step if axis == "step" else _between
    return Aligned(
        at=at,
        sets=[
            np.array(
                [
                    value_at(
                        points,
                        smooth_all(points.values, smoothing)
                        if smoothing
                        else points.values,
                        at,
                    )
                    for points in run_set
                ]
            ).reshape(len(run_set), len(at))
            for run_set in sets
        ],
    )


def make_bands(
    aligned: Aligned, *, statistic: str, most: int = MAX_POINTS
) -> list[ConfidenceBand]:
    """Make a band for each set, at the at most 1,000 positions that are drawn of it."""
    centre_of, interval_of, _ = STATISTICS[statistic]
    return [
        _band(aligned.at, values, centre_of, interval_of, most)
        for values in aligned.sets
    ]


def make_difference(
    aligned: Aligned, base: int, other: int, *, statistic: str, is_paired: bool
) -> ConfidenceBand:
    """Subtract set `base` from set `other`, where both have values.

    Paired: run by run, in the order of the sets; the statistic is of the differences.
    """
    ours, theirs = aligned.sets[other], aligned.sets[base]
    centre_of, interval_of, difference_of = STATISTICS[statistic]
    if is_paired:
        return _band(aligned.at, subtract(ours, theirs), centre_of, interval_of)
    drawn = _drawn(aligned.at, subtract(centre_of(ours), centre_of(theirs)), 0.0)
    return ConfidenceBand(
        at=aligned.at[drawn], estimate=difference_of(theirs[:, drawn], ours[:, drawn])
    )


def _band(
    at: Array,
    values: Array,
    centre_of: Callable[[Array], Array],
    interval_of: Callable[[Array], Estimate],
    most: int = MAX_POINTS,
) -> ConfidenceBand:
    _, _, variance = moments(values)
    spread = np.sqrt(np.nan_to_num(variance))
    drawn = _drawn(at, centre_of(values), spread, most)
    return ConfidenceBand(at=at[drawn], estimate=interval_of(values[:, drawn]))


def _drawn(
    at: Array, centre: Array, spread: Array | float, most: int = MAX_POINTS
) -> NDArray[np.int64]:
    """Choose, of the positions with a value, those that keep the band's extremes."""
    there = np.flatnonzero(np.isfinite(centre))
    low, high = centre - spread, centre + spread
    return there[thin(low[there], high[there], most)]


# Of each statistic its value, its interval, and the interval of a difference.
STATISTICS: dict[
    str,
    tuple[
        Callable[[Array], Array],
        Callable[[Array], Estimate],
        Callable[[Array, Array], Estimate],
    ],
] = {
    MEAN: (lambda values: moments(values)[1], mean_interval, welch_difference),
    IQM: (interquartile_mean, iqm_interval, iqm_difference),
}


def _union(every: Sequence[Points]) -> Array:
    first = every[0].steps
    if all(np.array_equal(points.steps, first) for points in every):
        return first.astype(np.float64)
    return np.unique(np.concatenate([points.steps for points in every])).astype(
        np.float64
    )


def _grid(every: Sequence[Points]) -> Array:
    return np.linspace(
        min(points.at[0] for points in every),
        max(points.at[-1] for points in every),
        max(map(len, every)),
    )


def _by_step(points: Points, values: Array, at: Array) -> Array:
    if len(points) == len(at):  # each of its steps is among them
        return values
    placed = np.full(len(at), np.nan)
    placed[np.searchsorted(at, points.steps)] = values
    return placed


def _between(points: Points, values: Array, at: Array) -> Array:
    if not len(points):
        return np.full(len(at), np.nan)
    return np.interp(at, points.at, values, left=np.nan, right=np.nan)
