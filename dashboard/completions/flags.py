"""Flags of a completion as bits of a byte, and filters by them.

right: it is correct (trainer/rewards/scoring.py), as in pass@k. right_low: it is by
the rules that compare with the row's answer, and yet the reward is below the mean of
its group. high_short: of its step, the reward is in the
highest tenth and the length in the shortest tenth, and both beyond the median. near:
most of its words are those of another completion of its group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple

CUT, UNSCORED, RIGHT, RIGHT_LOW, HIGH_SHORT, NEAR, END_UNKNOWN, END_EPISODE = (
    1 << bit for bit in range(8)
)
# With END_EPISODE the other two tell apart the four ends that only episodes have.
END = CUT | END_UNKNOWN | END_EPISODE


class FlagFilter(NamedTuple):
    """The bits that a filter compares, and their values."""

    label: str
    mask: int
    value: int

    def matches(self, kinds: Any) -> Any:
        """Tell which completions have the value, by their flags."""
        return (kinds & self.mask) == self.value


# In the order of forms and facets.
ENDS = {
    "stop": FlagFilter("stopped", END, 0),
    "length": FlagFilter("truncated", END, CUT),
    "turns": FlagFilter("out of turns", END, END_EPISODE | CUT),
    "done": FlagFilter("ended by environment", END, END_EPISODE),
    "failed": FlagFilter("environment failed", END, END_EPISODE | END_UNKNOWN),
    "timeout": FlagFilter("timed out", END, END),
    "unknown": FlagFilter("unknown", END, END_UNKNOWN),
}
EPISODE_ENDS = {
    name: end.label for name, end in ENDS.items() if end.value & END_EPISODE
}
OUTCOMES = {
    "right": FlagFilter("correct", RIGHT, RIGHT),
    "not_right": FlagFilter("not correct", RIGHT | UNSCORED, 0),
    "unscored": FlagFilter("no score", UNSCORED, UNSCORED),
}
SURPRISES = {
    "right_low": FlagFilter("correct answer, low reward", RIGHT_LOW, RIGHT_LOW),
    "high_short": FlagFilter("high reward, short", HIGH_SHORT, HIGH_SHORT),
    "near": FlagFilter("near-duplicate in its group", NEAR, NEAR),
}

NUM_WORDS = 5  # of a shingle
FROM_JACCARD = 0.8


def find_near_duplicates(texts: Sequence[str]) -> list[bool]:
    """Tell whether each text of a group is nearly equal to another.

    Two are if the Jaccard similarity of their shingles (five words in a row) is at
    least 0.8: |A ∩ B| / |A ∪ B|. Case and white space do not count.

    >>> find_near_duplicates(["So it is 4.", "so  it is 4.", "No."])
    [True, True, False]
    """
    by_words: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, text in enumerate(texts):
        by_words[tuple(text.lower().split())].append(index)
    is_duplicate = [False] * len(texts)
    alike = [indices for indices in by_words.values() if len(indices) > 1]
    shingled = [(_shingles(words), indices) for words, indices in by_words.items()]
    for (some, indices), (others, other_indices) in combinations(shingled, 2):
        if _is_near(some, others):
            alike += [indices, other_indices]
    for indices in alike:
        for index in indices:
            is_duplicate[index] = True
    return is_duplicate


def _shingles(words: tuple[str, ...]) -> set[int]:
    if len(words) < NUM_WORDS:
        return {hash(words)}
    return set(map(hash, zip(*(words[i:] for i in range(NUM_WORDS)), strict=False)))


def _is_near(some: set[int], others: set[int]) -> bool:
    fewer, more = sorted((len(some), len(others)))
    if fewer < FROM_JACCARD * more:
        return False
    num_common = len(some & others)
    return num_common >= FROM_JACCARD * (fewer + more - num_common)
