"""How large a number is drawn and reckoned with; exports hold it as it was sent.

A finite number may be 1.8e308: the difference of two such numbers is none, nor is the
square of one above 1e154. static/js/charts/series.js clips alike.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

# It fits float32, which rollups are of, and a variance of it may be squared again.
LARGEST = 1e37
NEARLY = LARGEST * (1 - 1e-6)  # as float32 has it


def clip(value: float) -> float:
    """NaN for an infinity too, which is no number."""
    return max(-LARGEST, min(LARGEST, value)) if math.isfinite(value) else math.nan


def clip_all(values: ArrayLike) -> NDArray[np.float64]:
    """As `clip`."""
    given = np.asarray(values, np.float64)
    return np.where(np.isfinite(given), np.clip(given, -LARGEST, LARGEST), np.nan)


def has_clipped(values: ArrayLike) -> bool:
    return bool((np.abs(np.asarray(values, np.float64)) >= NEARLY).any())


NOTE = (
    "Values beyond ±1e37 are clipped here. Exports keep the values as they were sent."
)
