"""Confidence intervals of evaluations: <metric>/low and /high beside <metric>."""

from __future__ import annotations

ENDS = ("low", "high")
Interval = tuple[float, float]


def is_bound(metric: str) -> bool:
    """Whether it is an end of another metric's interval, and is shown with that."""
    return metric.startswith("eval/") and metric.rpartition("/")[2] in ENDS
