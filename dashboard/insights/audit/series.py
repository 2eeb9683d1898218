from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dashboard.insights.points import Points
from dashboard.insights.statistics import Array

MOST_STRETCHES = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """A number at each of some steps, which rise."""

    steps: NDArray[np.int64]
    values: Array

    @classmethod
    def of(cls, points: Points) -> Self:
        return cls(steps=points.steps, values=points.values)

    @classmethod
    def known(cls, steps: NDArray[np.int64], values: Array) -> Self:
        """Without those that are no number."""
        there = np.isfinite(values)
        return cls(steps=steps[there], values=values[there])

    def __len__(self) -> int:
        return len(self.steps)


def rate_of(series: Series) -> Series:
    """How much it rises in 100 steps, from one of up to 60 stretches to the next.

    Stretches are of equally many points; of each the means of values and steps are
    compared with those of the stretch before, and the rate stands at its first step.
    """
    width = max(1, -(-len(series) // MOST_STRETCHES))
    end = len(series) - len(series) % width
    # A shorter stretch at the end is left out.
    steps = series.steps[:end].reshape(-1, width)
    values = series.values[:end].reshape(-1, width)
    # Differences of numbers that are nearly too large for a float are left out.
    with np.errstate(over="ignore", invalid="ignore"):
        rates = 100 * np.diff(values.mean(axis=1)) / np.diff(steps.mean(axis=1))
    return Series.known(steps=steps[1:, 0], values=rates)
