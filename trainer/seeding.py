"""Randomness as a pure function of the seed, so that a run does not depend on history.

Nothing in a run draws from a generator that carries state from step to step: data
order, held-out rows and every sampled token follow from (seed, what, where). A resumed
run, or one whose batches are cut differently, therefore draws the same numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def derive(seed: int, *parts: str | int) -> int:
    """A 64-bit seed for one purpose, unrelated to the seed of any other.

    >>> derive(0, "sample", 1, 17, 0) == derive(0, "sample", 1, 17, 0)
    True
    """
    text = "/".join(str(part) for part in (seed, *parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def permutation(seed: int, length: int) -> list[int]:
    """The numbers 0 … length-1 in an order fixed by the seed."""
    order = np.random.Generator(np.random.PCG64(seed)).permutation(length)
    return [int(place) for place in order]


def uniforms(
    seeds: Sequence[int], *, first: int, count: int
) -> npt.NDArray[np.float32]:
    """Numbers in [0, 1), shape [len(seeds), count]; column j is draw `first + j`.

    Each is a hash of (seed, draw) (SplitMix64; Steele, Lea, Flood 2014), so a row's
    draws do not depend on which other rows are sampled beside it. 24 bits: the most
    that float32 holds below 1.
    """
    draws = np.arange(first + 1, first + count + 1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        mixed = np.array(seeds, dtype=np.uint64)[:, None] + draws[None, :] * _GOLDEN
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    drawn: npt.NDArray[np.float32] = (mixed >> np.uint64(40)).astype(np.float32)
    return drawn * np.float32(2.0**-24)


def seed_torch(seed: int) -> None:
    """Fix torch's own generators, which only a model's unusual layers would use."""
    torch.manual_seed(derive(seed, "torch") % 2**63)
