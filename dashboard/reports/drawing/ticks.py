"""Round numbers along an axis."""

from __future__ import annotations

import math


def linear_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, from low to high.

    >>> linear_ticks(0.0, 1.0)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    step = _round_step((high - low) / most)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    digits = max(0, 1 - math.floor(math.log10(step)))
    return [round(i * step, digits) + 0.0 for i in range(first, last + 1)]


def _round_step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    rounded = next(f for f in (1, 2, 5, 10) if f * power >= least * (1 - 1e-9))
    return float(rounded * power)


def log_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Powers of ten; between fewer than two of them, 2 and 5 times them too."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = max(1, -(-(last - first) // most))
    powers = [10.0**i for i in range(first, last + 1, every)]
    inside = [p for p in powers if low * (1 - 1e-9) <= p <= high * (1 + 1e-9)]
    if len(inside) >= 2:
        return inside
    finer = [f * 10.0**i for i in range(first, last + 1) for f in (1, 2, 5)]
    return [p for p in finer if low * (1 - 1e-9) <= p <= high * (1 + 1e-9)]
