"""Points of a line: smoothed as Cohort's pages do, and no more than a screen shows."""

from __future__ import annotations

from collections.abc import Sequence

MAX_BUCKETS = 250  # each leaves its first, lowest, highest and last point


def smooth(values: Sequence[float], weight: float) -> list[float]:
    """An exponential moving average; early values are not pulled towards 0.

    >>> smooth([1.0, 3.0], 0.5)
    [1.0, 2.3333333333333335]
    """
    if weight <= 0 or all(value == values[0] for value in values):
        return list(values)
    found, last, mass = [], 0.0, 0.0
    for value in values:
        last = last * weight + value * (1 - weight)
        mass = mass * weight + (1 - weight)
        found.append(last / mass)
    return found


def places_shown(values: Sequence[float], num_buckets: int = MAX_BUCKETS) -> list[int]:
    """Which points a line of so many buckets needs, so that spikes stay.

    >>> places_shown([0, 9, 1, 2, 3, 4], num_buckets=1)
    [0, 1, 5]
    """
    if len(values) <= 4 * num_buckets:
        return list(range(len(values)))
    return _of_buckets(values, num_buckets)


def _of_buckets(values: Sequence[float], num_buckets: int) -> list[int]:
    found: set[int] = set()
    for bucket in range(num_buckets):
        start = bucket * len(values) // num_buckets
        end = (bucket + 1) * len(values) // num_buckets
        within = range(start, end)
        lowest = min(within, key=values.__getitem__)
        highest = max(within, key=values.__getitem__)
        found |= {start, lowest, highest, end - 1}
    return sorted(found)
