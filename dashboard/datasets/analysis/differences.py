"""How two lists of rows differ, by the hashes of their rows and of their prompts."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dashboard.datasets.analysis.gathering import Hashes

Places = NDArray[np.int64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Positions. A row counts as often as it occurs, and its place does not matter."""

    removed: Places  # of the old rows
    added: Places  # of the new ones
    # [n, 2]: an old row and the new one of the same prompt, otherwise changed.
    changed: Places
    num_same: int
    num_moved: int  # of the same ones: the fewest whose moving explains the order


def compare(
    old_rows: Hashes, old_prompts: Hashes, new_rows: Hashes, new_prompts: Hashes
) -> Difference:
    old_same, new_same = _pair(old_rows, new_rows)
    removed = np.setdiff1d(np.arange(len(old_rows)), old_same, assume_unique=True)
    added = np.setdiff1d(np.arange(len(new_rows)), new_same, assume_unique=True)
    old, new = _pair(old_prompts[removed], new_prompts[added])
    changed = np.stack([removed[old], added[new]], axis=1)
    in_order = new_same[np.argsort(old_same)]
    return Difference(
        removed=np.delete(removed, old),
        added=np.delete(added, new),
        changed=changed[np.argsort(changed[:, 1])],
        num_same=len(old_same),
        num_moved=len(in_order) - _longest_rise(in_order.tolist()),
    )


def _pair(one: Hashes, other: Hashes) -> tuple[Places, Places]:
    """Places of equal values, the first of each with one another, and so on."""
    _, at_one, at_other = np.intersect1d(
        _numbered(one), _numbered(other), assume_unique=True, return_indices=True
    )
    return at_one, at_other


def _numbered(hashes: Hashes) -> Hashes:
    """Hashes of (value, how many equal ones came before): all different."""
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    is_first = np.ones(len(hashes), bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    places = np.arange(len(hashes))
    before = places - np.maximum.accumulate(np.where(is_first, places, 0))
    numbers = np.empty(len(hashes), np.uint64)
    numbers[order] = before
    return hashes + numbers * _GOLDEN


def _longest_rise(values: list[int]) -> int:
    """Length of the longest rising subsequence: what can stay where it is."""
    ends: list[int] = []
    for value in values:
        at = bisect_left(ends, value)
        if at == len(ends):
            ends.append(value)
        else:
            ends[at] = value
    return len(ends)
