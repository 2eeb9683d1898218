"""Histograms on one ladder of edges, the same for every step of every run.

Nobody knows the range of a run's rewards or advantages beforehand, and histograms can
be added up only if their edges agree. So the edges are fixed: 40 a decade (ISO 3,
series R40, 6 % apart) from 0.01 to 1,000, for either sign. Rung 0 holds exactly 0,
rung 1 what is below 0.01, rung 2 from 0.01 on; the last rung has no upper end; rung −n
mirrors n.
"""

from __future__ import annotations

import math

import numpy as np

from dashboard.samples.signals.records import BIN, Numbers, Records

_R40 = """
1 1.06 1.12 1.18 1.25 1.32 1.4 1.5 1.6 1.7 1.8 1.9 2 2.12 2.24 2.36 2.5 2.65 2.8 3
3.15 3.35 3.55 3.75 4 4.25 4.5 4.75 5 5.3 5.6 6 6.3 6.7 7.1 7.5 8 8.5 9 9.5
"""
DECADES = range(-2, 3)
EDGES: Numbers = np.array(
    [float(f"{r}e{d}") for d in DECADES for r in _R40.split()] + [1_000.0]
)
LAST_RUNG = len(EDGES) + 1
# Sums of weights such as 0.1 end a hair below the edge that they mean.
SLACK = 1 + 1e-9


def count(values: Numbers) -> Records:
    """How many of the values are on each rung, by rising rung."""
    sizes = np.abs(values) * SLACK
    rungs = np.searchsorted(EDGES, sizes, side="right") + 1
    signed = np.where(values == 0, 0, np.sign(values) * rungs).astype(np.int64)
    found, counts = np.unique(signed, return_counts=True)
    bins = np.empty(len(found), BIN)
    bins["rung"], bins["count"] = found, counts
    return bins


def bounds(rung: int) -> tuple[float, float]:
    """The lowest and the highest value of a rung; rung 0 is 0 alone."""
    size = abs(rung)
    low = float(EDGES[size - 2]) if size > 1 else 0.0
    high = float(EDGES[size - 1]) if size <= len(EDGES) else math.inf
    if rung == 0:
        return 0.0, 0.0
    return (low, high) if rung > 0 else (-high, -low)
