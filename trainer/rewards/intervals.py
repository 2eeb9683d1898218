"""Arithmetic of ranges: between which numbers a reward lies."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True)
class Interval:
    """The lowest and highest value of a term, which may be absent from the whole."""

    low: float
    high: float
    is_optional: bool = False

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """The smallest one that holds these."""
        known = list(values)
        return cls(min(known), max(known))

    def maybe_absent(self, is_optional: bool) -> Self:
        return replace(self, is_optional=is_optional)

    def with_neutral(self, neutral: float) -> tuple[float, float]:
        """Its ends, where absence is worth `neutral` to the whole."""
        if not self.is_optional:
            return self.low, self.high
        return min(self.low, neutral), max(self.high, neutral)


def joined(intervals: Sequence[Interval], combine: str) -> tuple[float, float]:
    """The range of the sum, the product or the minimum; (0, 0) of none."""
    if not intervals:
        return 0.0, 0.0
    if combine == "product":
        low, high = 1.0, 1.0
        for interval in intervals:
            corners = [a * b for a in (low, high) for b in interval.with_neutral(1.0)]
            low, high = min(corners), max(corners)
        return low, high
    if combine == "minimum":
        certain = [each.high for each in intervals if not each.is_optional]
        highest = min(certain) if certain else max(each.high for each in intervals)
        return min(each.low for each in intervals), highest
    ends = [each.with_neutral(0.0) for each in intervals]
    return _sum(low for low, _ in ends), _sum(high for _, high in ends)


def _sum(values: Iterable[float]) -> float:
    return math.fsum(values)
