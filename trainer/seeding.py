"""Randomness as a pure function of the seed, so that a run does not depend on history.

Nothing in a run draws from a generator that carries state from step to step: data
order, held-out rows and every sampled token follow from (seed, what, where). A resumed
run, or one whose batches are cut differently, therefore draws the same numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch

# The multipliers of SplitMix64: 0x9E37…, 0xBF58… and 0x94D0… as signed numbers.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


def derive(seed: int, *parts: str | int) -> int:
    """Return a 64-bit seed for one purpose, unrelated to the seed of any other.

    >>> derive(0, "sample", 1, 17, 0) == derive(0, "sample", 1, 17, 0)
    True
    """
    text = "/".join(str(part) for part in (seed, *parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def permutation(seed: int, length: int) -> list[int]:
    """Return the numbers 0 … length-1 in an order fixed by the seed."""
    order = np.random.Generator(np.random.PCG64(seed)).permutation(length)
    return [int(index) for index in order]


def uniforms(
    seeds: Sequence[int],
    *,
    first: int,
    count: int,
    device: torch.device | None = None,
) -> torch.Tensor:
    """Float32 in [0, 1), shape [len(seeds), count]; column j is draw `first + j`.

    Each is a hash of (seed, draw) (SplitMix64; Steele, Lea, Flood 2014), so a row's
    draws do not depend on which other rows are sampled beside it. They are made on the
    device, the same numbers on each: integers wrap around alike everywhere. 24 bits:
    the most that float32 holds below 1.
    """
    # torch has few operations for uint64, so the bits lie in int64
    bits = torch.from_numpy(np.array(seeds, dtype=np.uint64).view(np.int64))
    draws = torch.arange(first + 1, first + count + 1, device=device)
    mixed = bits.to(device)[:, None] + draws[None, :] * _GOLDEN
    mixed = (mixed ^ _shifted(mixed, 30)) * _FIRST
    mixed = (mixed ^ _shifted(mixed, 27)) * _SECOND
    mixed = mixed ^ _shifted(mixed, 31)
    return _shifted(mixed, 40).float() / 2**24


def _shifted(bits: torch.Tensor, places: int) -> torch.Tensor:
    """Return 64 bits moved to the right, zeros coming in, as for unsigned numbers."""
    return (bits >> places) & ((1 << (64 - places)) - 1)


def seed_torch(seed: int) -> None:
    """Fix torch's own generators, which only a model's unusual layers would use."""
    torch.manual_seed(derive(seed, "torch") % 2**63)
