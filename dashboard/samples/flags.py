"""What is known of a completion by its numbers, as bits of a byte, and filters by it.

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
    """Which bits of a completion are looked at, and which of them are set."""

    label: str
    mask: int
    value: int


# In the order in which forms and facets offer them.
ENDS = {
    "stop": FlagFilter("ended by itself", CUT | END_UNKNOWN, 0),
    "length": FlagFilter("cut at the length limit", CUT, CUT),
    "unknown": FlagFilter("not known", END_UNKNOWN, END_UNKNOWN),
}
OUTCOMES = {
    "right": FlagFilter("right", RIGHT, RIGHT),
    "not_right": FlagFilter("not right", RIGHT | UNSCORED, 0),
    "unscored": FlagFilter("no score", UNSCORED, UNSCORED),
}
SURPRISES = {
    "right_low": FlagFilter("right answer, low reward", RIGHT_LOW, RIGHT_LOW),
    "high_short": FlagFilter("high reward, short", HIGH_SHORT, HIGH_SHORT),
    "near": FlagFilter("near-duplicate in its group", NEAR, NEAR),
}
