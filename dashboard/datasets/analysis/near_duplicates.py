"""Texts that say nearly the same, by MinHash.

A text is the set of its three-word shingles. The smallest values of 64 hash functions
over that set are its signature; two signatures agree in as large a share of their
values as the sets have in common of all they hold (Broder 1997). Only texts that agree
in a whole band of four values are compared, so the work grows with the texts and not
with their pairs: of texts that share 80 %, 1 in 4,900 pairs is missed.
"""

from __future__ import annotations

import re
from binascii import crc32
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

SIMILARITY = 0.8
NUM_HASHES = 64
BAND = 4
MIN_WORDS = 5  # of fewer, one word is too large a share
MAX_WORDS = 20_000  # of a longer text, its beginning
_AT_ONCE = 4_096

_WORD = re.compile(r"\w+|[^\w\s]")
_draw = np.random.Generator(np.random.PCG64(0))
# Odd: multiplying by an odd number loses nothing of 64 bits.
_FACTORS = _draw.integers(2**63, size=NUM_HASHES, dtype=np.uint64) * 2 + 1
_SHIFTS = _draw.integers(2**63, size=NUM_HASHES, dtype=np.uint64)
_MIX = [np.uint64(value) for value in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)]
_HALF = np.uint64(32)

Signature = NDArray[np.uint32]


def signature(text: str) -> Signature | None:
    """[NUM_HASHES]; None for a text too short to tell."""
    words = _WORD.findall(text.casefold())[:MAX_WORDS]
    if len(words) < MIN_WORDS:
        return None
    codes = np.fromiter((crc32(w.encode()) for w in words), np.uint64, len(words))
    shingles = (codes[:-2] * _MIX[0] + codes[1:-1]) * _MIX[1] + codes[2:]
    shingles ^= shingles >> _HALF
    smallest = np.full(NUM_HASHES, 2**32 - 1, np.uint64)
    for start in range(0, len(shingles), _AT_ONCE):
        part = shingles[start : start + _AT_ONCE, None]
        np.minimum(
            smallest,
            ((part * _FACTORS + _SHIFTS) >> _HALF).min(axis=0),
            out=smallest,
        )
    return smallest.astype(np.uint32)


def similarity(one: Signature, others: NDArray[np.uint32]) -> NDArray[np.float64]:
    shares: NDArray[np.float64] = (others == one).mean(axis=-1)
    return shares


def find_groups(signatures: NDArray[np.uint32]) -> list[list[int]]:
    """Places of the texts that are near to one another, the largest group first."""
    leaders = list(range(len(signatures)))

    def leader(place: int) -> int:
        while leaders[place] != place:
            leaders[place] = leaders[leaders[place]]
            place = leaders[place]
        return place

    for first, near in _near_pairs(signatures):
        one, other = sorted((leader(first), leader(near)))
        leaders[other] = one
    groups = defaultdict(list)
    for place in range(len(leaders)):
        groups[leader(place)].append(place)
    found = [group for group in groups.values() if len(group) > 1]
    return sorted(found, key=lambda group: (-len(group), group[0]))


def _near_pairs(signatures: NDArray[np.uint32]) -> list[tuple[int, int]]:
    """Each text of a band's bucket with that bucket's first, where they are near."""
    pairs: set[tuple[int, int]] = set()
    for start in range(0, NUM_HASHES, BAND):
        for bucket in _buckets(signatures[:, start : start + BAND]):
            first, others = int(bucket[0]), bucket[1:]
            near = similarity(signatures[first], signatures[others]) >= SIMILARITY
            pairs |= {(first, place) for place in others[near].tolist()}
    return sorted(pairs)


def _buckets(band: NDArray[np.uint32]) -> list[NDArray[np.int64]]:
    """Places of equal rows, where there are several."""
    order = np.lexsort(band.T[::-1])
    differs = (band[order[1:]] != band[order[:-1]]).any(axis=1)
    parts = np.split(order, np.flatnonzero(differs) + 1)
    return [np.sort(part) for part in parts if len(part) > 1]
