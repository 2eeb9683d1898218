"""The settings in which swept runs differ, as columns of a fit and axes of charts.

`?keep=rollout.temperature:0.6..1` keeps the runs of that range; dragging over an axis
writes it. Values of a text axis have the positions 0, 1, 2 …
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from dashboard.analysis.compare.differences import Setting, compare_settings
from dashboard.analysis.sweeps.importance import MIN_FREE, Numbers, degrees
from dashboard.project.schema_forms import write_number
from dashboard.runs.models import Run

# What differs between all runs by itself: chance, and where its part is compared.
NOT_SWEPT = {"seed"}
LOG_FROM = 10.0  # a numeric setting whose largest value is as many times its smallest
ABSENT = "absent"
OUTCOME = "outcome"  # the last axis; settings have a dot in their names, or are known
MAX_TICKS = 8
NUM_EVEN = 5  # of a number with more values
NUMBER = r"-?\d{1,30}(?:\.\d{1,30})?(?:e[+-]?\d{1,3})?"
RANGE = re.compile(rf"(.{{1,200}}):({NUMBER})\.\.({NUMBER})", re.DOTALL)
# A drag ends between two pixels; values at its ends must not be lost by rounding.
SLACK = 1e-6  # of the axis


@dataclass(frozen=True, kw_only=True, slots=True)
class SweptSetting:
    """A setting with several values among the runs."""

    key: str
    aliases: list[str]  # settings that have other values in just the same runs
    texts: list[str]  # by run
    numbers: list[float] | None  # by run; None: not all of them are numbers

    @property
    def names(self) -> list[str]:
        return [self.key, *self.aliases]

    @property
    def values(self) -> list[str]:
        """The different ones: numbers by size, others by alphabet, v9 before v10."""
        if self.numbers is None:
            return sorted(
                set(self.texts),
                key=lambda text: re.sub("[0-9]+", lambda n: n[0].zfill(20), text),
            )
        by_text = dict(zip(self.texts, self.numbers, strict=True))
        return sorted(by_text, key=lambda text: by_text[text])

    @property
    def is_log(self) -> bool:
        low, high = min(self.numbers or [0.0]), max(self.numbers or [0.0])
        return low > 0 and high >= LOG_FROM * low

    def columns(self, *, is_straight: bool = False) -> Numbers:
        """Encode it for the fit, [runs, d]: a column for each value but the first.

        A number with more than three values has two columns, itself and its square (of
        its logarithm if it spans a decade), so that an optimum in the middle counts;
        `is_straight`: only the first of them.
        """
        if self.numbers is None or (len(self.values) <= 3 and not is_straight):
            others = self.values[1:]
            return np.array([[text == v for v in others] for text in self.texts], float)
        heights = Axis.of(self).heights
        line = heights - heights.mean()
        return line[:, None] if is_straight else np.stack([line, line**2], axis=1)


def swept_settings(runs: Sequence[Run]) -> list[SweptSetting]:
    """List the settings that differ, but for the seed; twins are one."""
    settings_by_values: dict[tuple[int, ...], list[Setting]] = {}
    for setting in compare_settings(runs):
        if setting.differs and setting.key not in NOT_SWEPT:
            first = [setting.values.index(value) for value in setting.values]
            settings_by_values.setdefault(tuple(first), []).append(setting)
    return [_swept(twins) for twins in settings_by_values.values()]


def _swept(twins: Sequence[Setting]) -> SweptSetting:
    # Of equal settings, a number is preferred to a name.
    ranked = sorted(twins, key=lambda setting: _numbers(setting) is None)
    chosen = ranked[0]
    return SweptSetting(
        key=chosen.key,
        aliases=[setting.key for setting in ranked[1:]],
        texts=[ABSENT if text is None else text for text in chosen.values],
        numbers=_numbers(chosen),
    )


def _numbers(setting: Setting) -> list[float] | None:
    try:
        numbers = [float(text) for text in setting.values if text is not None]
    except ValueError:
        return None
    whole = len(numbers) == len(setting.values) and all(map(math.isfinite, numbers))
    return numbers if whole else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Design:
    """The columns of the fit, or why there is no fit."""

    columns: list[Numbers]
    is_straight: bool = False  # only linear terms, because there are few runs
    problem: str = ""


def design(settings: Sequence[SweptSetting], num_runs: int) -> Design:
    if not settings:
        return Design(columns=[], problem="No setting is chosen.")
    needed = 0
    for is_straight in (False, True):
        columns = [setting.columns(is_straight=is_straight) for setting in settings]
        needed = degrees(columns) + 1 + MIN_FREE
        if num_runs >= needed:
            return Design(columns=columns, is_straight=is_straight)
    return Design(
        columns=[],
        problem=f"The importance of {len(settings)} settings with this many values "
        f"requires at least {needed} runs; {num_runs} have a value. Launch more "
        "runs, or leave out settings.",
    )


def confounded(settings: Sequence[SweptSetting]) -> list[tuple[str, str]]:
    """Pairs of settings of which one determines the other."""
    columns = [setting.columns() for setting in settings]
    single = [degrees([column]) for column in columns]
    return [
        (settings[i].key, settings[j].key)
        for i in range(len(settings))
        for j in range(i + 1, len(settings))
        if degrees([columns[i], columns[j]]) == max(single[i], single[j])
    ]


# Axes of parallel coordinates, and ranges of them.


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """`positions[i]` is the value of run i on the axis, in its unit; NaN: none."""

    key: str
    positions: Numbers
    texts: list[str] | None = None  # by position, if they are not numbers
    is_log: bool = False

    @classmethod
    def of(cls, setting: SweptSetting) -> Self:
        if setting.numbers is not None:
            positions = np.array(setting.numbers, dtype=np.float64)
            return cls(key=setting.key, positions=positions, is_log=setting.is_log)
        at = {text: position for position, text in enumerate(setting.values)}
        positions = np.array([at[text] for text in setting.texts], dtype=np.float64)
        return cls(key=setting.key, positions=positions, texts=setting.values)

    @property
    def ends(self) -> tuple[float, float]:
        return float(np.nanmin(self.positions)), float(np.nanmax(self.positions))

    @property
    def heights(self) -> Numbers:
        """By run between 0 and 1."""
        return self.height_of(self.positions)

    def height_of(self, positions: Numbers) -> Numbers:
        low, high = self._scale(np.array(self.ends))
        scaled = self._scale(positions)
        if high == low:
            return np.where(np.isnan(scaled), np.nan, 0.5)
        found: Numbers = (scaled - low) / (high - low)
        return found

    def _scale(self, positions: Numbers) -> Numbers:
        return np.log10(positions) if self.is_log else positions

    @property
    def shown(self) -> list[float]:
        """The positions that have a tick: each value, or of many some."""
        different = np.unique(self.positions[np.isfinite(self.positions)])
        if self.texts is not None or len(different) <= MAX_TICKS:
            return [float(p) for p in different[:: -(-len(different) // MAX_TICKS)]]
        low, high = self._scale(np.array(self.ends))
        even = np.linspace(low, high, num=NUM_EVEN)
        return [float(f"{p:.3g}") for p in (10**even if self.is_log else even)]

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Heights and labels."""
        return [
            (float(height), self.write(position))
            for height, position in zip(
                self.height_of(np.array(self.shown)), self.shown, strict=True
            )
        ]

    def write(self, position: float) -> str:
        if self.texts is None:
            return write_number(float(f"{position:.6g}"))
        return self.texts[min(max(round(position), 0), len(self.texts) - 1)]


@dataclass(frozen=True, kw_only=True, slots=True)
class AxisRange:
    """A stretch of an axis, both ends of it inside."""

    key: str
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.key}:{write_number(self.low)}..{write_number(self.high)}"


def read_ranges(
    words: Sequence[str], axes: Sequence[Axis]
) -> tuple[list[AxisRange], str]:
    """Read the last range of each axis, and a message on an invalid one."""
    keys = {axis.key for axis in axes}
    ranges_by_key: dict[str, AxisRange] = {}
    for word in words:
        match = RANGE.fullmatch(word)
        if match is None:
            return [], (
                f"Write an axis range as name:low..high; got {word[:80]!r}. "
                "All runs are shown."
            )
        key, low, high = match[1], float(match[2]), float(match[3])
        if key not in keys:
            return [], f"These runs do not differ in {key!r}. All runs are shown."
        ranges_by_key.pop(key, None)
        ranges_by_key[key] = AxisRange(key=key, low=min(low, high), high=max(low, high))
    return list(ranges_by_key.values()), ""


def in_ranges(
    axes: Sequence[Axis], kept: Sequence[AxisRange], num_runs: int
) -> list[bool]:
    """Tell for each run whether it is in the ranges."""
    inside = np.ones(num_runs, dtype=bool)
    by_key = {axis.key: axis for axis in axes}
    for axis_range in kept:
        axis = by_key[axis_range.key]
        heights = axis.heights
        with np.errstate(invalid="ignore", divide="ignore"):
            low, high = axis.height_of(np.array([axis_range.low, axis_range.high]))
        # A logarithm has no value at or below 0, so such an end lies below all values.
        low = -np.inf if np.isnan(low) else low
        inside &= (heights >= low - SLACK) & (heights <= high + SLACK)
    are_inside: list[bool] = inside.tolist()
    return are_inside
