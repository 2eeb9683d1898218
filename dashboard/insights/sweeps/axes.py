"""The axes of parallel coordinates, and the stretches of them that a reader keeps.

`?keep=rollout.temperature:0.6..1` in an address: the runs of that stretch, as a drag
over the axis writes it. An axis of texts is measured by their places, 0 for the first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from dashboard.insights.sweeps.importance import Numbers
from dashboard.insights.sweeps.settings import Swept
from dashboard.runs.config.fields import write_number

OUTCOME = "outcome"  # the last axis; settings have a dot in their names, or are known
MAX_TICKS = 8
NUM_EVEN = 5  # of a number with more values
NUMBER = r"-?\d{1,30}(?:\.\d{1,30})?(?:e[+-]?\d{1,3})?"
KEPT = re.compile(rf"(.{{1,200}}):({NUMBER})\.\.({NUMBER})", re.DOTALL)
# A drag ends between two pixels: nothing that lies on its end is lost by rounding.
SLACK = 1e-6  # of the axis


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """`places[i]` is where run i lies on it, in its unit; NaN: nowhere."""

    key: str
    places: Numbers
    texts: list[str] | None = None  # by place, where they are no numbers
    is_log: bool = False

    @classmethod
    def of(cls, setting: Swept) -> Self:
        if setting.numbers is not None:
            places = np.array(setting.numbers, dtype=np.float64)
            return cls(key=setting.key, places=places, is_log=setting.is_log)
        at = {text: place for place, text in enumerate(setting.values)}
        places = np.array([at[text] for text in setting.texts], dtype=np.float64)
        return cls(key=setting.key, places=places, texts=setting.values)

    @property
    def ends(self) -> tuple[float, float]:
        return float(np.nanmin(self.places)), float(np.nanmax(self.places))

    @property
    def heights(self) -> Numbers:
        """By run between 0 and 1."""
        return self.height_of(self.places)

    def height_of(self, places: Numbers) -> Numbers:
        low, high = self._scale(np.array(self.ends))
        scaled = self._scale(places)
        if high == low:
            return np.where(np.isnan(scaled), np.nan, 0.5)
        found: Numbers = (scaled - low) / (high - low)
        return found

    def _scale(self, places: Numbers) -> Numbers:
        return np.log10(places) if self.is_log else places

    @property
    def shown(self) -> list[float]:
        """The places that are told: each value, or of many some."""
        different = np.unique(self.places[np.isfinite(self.places)])
        if self.texts is not None or len(different) <= MAX_TICKS:
            return [float(p) for p in different[:: -(-len(different) // MAX_TICKS)]]
        low, high = self._scale(np.array(self.ends))
        even = np.linspace(low, high, num=NUM_EVEN)
        return [float(f"{p:.3g}") for p in (10**even if self.is_log else even)]

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Heights, and what stands there."""
        heights = self.height_of(np.array(self.shown))
        return [
            (float(height), self.write(place))
            for height, place in zip(heights, self.shown, strict=True)
        ]

    def write(self, place: float) -> str:
        if self.texts is None:
            return write_number(float(f"{place:.6g}"))
        return self.texts[min(max(round(place), 0), len(self.texts) - 1)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """A stretch of an axis, both ends of it inside."""

    key: str
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.key}:{write_number(self.low)}..{write_number(self.high)}"


def read_kept(words: Sequence[str], axes: Sequence[Axis]) -> tuple[list[Kept], str]:
    """The last stretch of each axis, and what is wrong with the others."""
    keys = {axis.key for axis in axes}
    found: dict[str, Kept] = {}
    for word in words:
        match = KEPT.fullmatch(word)
        if match is None:
            return [], (
                f"A stretch of an axis is written name:low..high; got {word[:80]!r}. "
                "All runs are shown."
            )
        key, low, high = match[1], float(match[2]), float(match[3])
        if key not in keys:
            return [], f"These runs do not differ in {key!r}. All runs are shown."
        found.pop(key, None)
        found[key] = Kept(key=key, low=min(low, high), high=max(low, high))
    return list(found.values()), ""


def is_kept(axes: Sequence[Axis], kept: Sequence[Kept], num_runs: int) -> list[bool]:
    """By run."""
    inside = np.ones(num_runs, dtype=bool)
    by_key = {axis.key: axis for axis in axes}
    for one in kept:
        axis = by_key[one.key]
        heights = axis.heights
        with np.errstate(invalid="ignore", divide="ignore"):
            low, high = axis.height_of(np.array([one.low, one.high]))
        # A logarithm has no place for what is not above 0: it lies below all.
        low = -np.inf if np.isnan(low) else low
        inside &= (heights >= low - SLACK) & (heights <= high + SLACK)
    found: list[bool] = inside.tolist()
    return found
