"""Flags of a completion as bits of a byte, and filters by them.

right: its reward is the highest that the recipe can give at its step, as in pass@k.
right_low: every rule that compares with the row's answer gives its full score, and yet
the reward is below the mean of its group. high_short: of its step, the reward is in the
highest tenth and the length in the shortest tenth, and both beyond the median. near:
nearly the same words as another completion of its group (search/near_duplicates.py).
"""

from __future__ import annotations

from typing import NamedTuple

CUT, UNSCORED, RIGHT, RIGHT_LOW, HIGH_SHORT, NEAR, END_UNKNOWN = (
    1 << bit for bit in range(7)
)


class FlagFilter(NamedTuple):
    """The bits that a filter compares, and their values."""

    label: str
    mask: int
    value: int


# In the order of forms and facets.
ENDS = {
    "stop": FlagFilter("stopped", CUT | END_UNKNOWN, 0),
    "length": FlagFilter("truncated", CUT, CUT),
    "unknown": FlagFilter("unknown", END_UNKNOWN, END_UNKNOWN),
}
OUTCOMES = {
    "right": FlagFilter("correct", RIGHT, RIGHT),
    "not_right": FlagFilter("incorrect", RIGHT | UNSCORED, 0),
    "unscored": FlagFilter("no score", UNSCORED, UNSCORED),
}
SURPRISES = {
    "right_low": FlagFilter("correct answer, low reward", RIGHT_LOW, RIGHT_LOW),
    "high_short": FlagFilter("high reward, short", HIGH_SHORT, HIGH_SHORT),
    "near": FlagFilter("near-duplicate in its group", NEAR, NEAR),
}
