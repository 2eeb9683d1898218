"""Sums of the gap between sampler and trainer: all that the mismatch lab reads.

With μ the sampler's probability of a token and π the trainer's before the batch's first
update, d = ln π - ln μ. Trainers of others have this module with the client, so it
needs numpy alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Numbers = NDArray[np.float64]
Counts = NDArray[np.int64]

# Of each completion, and of each bin of tokens: n, Σd, Σ|d|, …, and k3 = e^d - 1 - d.
SUMS = ("num_tokens", "sum", "absolute", "min", "max", "k3")
BIN_SUMS = ("num_tokens", "sum", "absolute", "squares", "k3", "largest")
# A token with t of the policy's tokens before it is in floor(log2(t + 1)), the last
# bin is open.
NUM_POSITIONS = 12
# A bin begins at its edge: bin i has edges[i - 1] <= value < edges[i], the outer are
# open.
PROBABILITY_EDGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)  # of μ
_GAPS = (1e-4, 1e-3, 0.01, 0.03, 0.1, *map(math.log, (1.2, 1.5, 2, 3, 5)), 20.0)
GAP_EDGES = (*(-gap for gap in reversed(_GAPS)), 0.0, *_GAPS)  # of d
_DIFFERENCES = (1e-4, 1e-3, 0.01, 0.03, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
DIFFERENCE_EDGES = (*(-d for d in reversed(_DIFFERENCES)), *_DIFFERENCES)  # of π - μ
SIGNS = (-1, 0, 1)  # of the advantage, the rows of the counts of π - μ
_LARGEST = 20.0  # exp() of more says nothing


@dataclass(frozen=True, kw_only=True)
class GapMeasure:
    """The sums of some completions; those of a whole step are joined from its parts."""

    sums: Numbers  # [B, 6], as SUMS; NaN: the extremes of no token
    positions: Numbers  # [12, 6], as BIN_SUMS
    probabilities: Numbers  # [11, 6], likewise
    gaps: Counts  # [24]
    differences: Counts  # [3, 21]; of tokens without an advantage none counts

    @classmethod
    def joined(cls, parts: Sequence[GapMeasure]) -> GapMeasure:
        """Return the sums of all parts as one, their completions in this order."""
        return cls(
            sums=np.concatenate([part.sums for part in parts]),
            positions=_added([part.positions for part in parts]),
            probabilities=_added([part.probabilities for part in parts]),
            gaps=np.sum([part.gaps for part in parts], axis=0),
            differences=np.sum([part.differences for part in parts], axis=0),
        )

    def tree(self) -> dict[str, Any]:
        """Return the fields of the event MismatchMeasured, to 4 significant digits."""
        return {
            "sums": _named(self.sums, SUMS),
            "positions": _named(self.positions, BIN_SUMS),
            "probabilities": _named(self.probabilities, BIN_SUMS),
            "gaps": self.gaps.tolist(),
            "differences": self.differences.tolist(),
        }


def measure_gaps(
    logprobs: ArrayLike,
    sampling_logprobs: ArrayLike,
    mask: ArrayLike,
    advantages: ArrayLike | None = None,
) -> GapMeasure:
    """Return the sums of some completions.

    Args:
        logprobs: ln π of each token [B, T].
        sampling_logprobs: ln μ; a token where either is no finite number is left out.
        mask: 1 on the policy's tokens that the loss covers; others may hold anything.
        advantages: [B] or [B, T]; None, or NaN: not known.
    """
    own, sampling = np.asarray(logprobs, float), np.asarray(sampling_logprobs, float)
    covered = np.asarray(mask) > 0
    if own.ndim != 2 or own.shape != sampling.shape or own.shape != covered.shape:
        raise ValueError(
            "Log-probs, sampling log-probs and mask must be [B, T]; got "
            f"{list(own.shape)}, {list(sampling.shape)} and {list(covered.shape)}."
        )
    rows, places = np.nonzero(covered & np.isfinite(own) & np.isfinite(sampling))
    before = np.cumsum(covered, axis=1)[rows, places]  # with the token itself: t + 1
    pi, mu = own[rows, places], sampling[rows, places]
    gap = pi - mu
    pi, mu = np.exp(pi), np.exp(mu)
    bounded = np.clip(gap, -_LARGEST, _LARGEST)
    k3, absolute = np.expm1(bounded) - bounded, np.abs(gap)

    def totals(bins: Counts, size: int, *columns: Numbers) -> Numbers:
        counted = [np.bincount(bins, values, size) for values in columns]
        return np.stack([np.bincount(bins, minlength=size), *counted], axis=1)

    def binned(bins: Counts, size: int) -> Numbers:
        largest = np.zeros(size)
        np.maximum.at(largest, bins, absolute)
        sums = totals(bins, size, gap, absolute, gap * gap, k3)
        return np.column_stack([sums, largest])

    num_rows = len(own)
    lows, highs = np.full((2, num_rows), math.nan)
    np.fmin.at(lows, rows, gap)
    np.fmax.at(highs, rows, gap)
    of_rows = totals(rows, num_rows, gap, absolute, k3)
    # frexp gives the exponent of x = m·2^e, m in [0.5, 1)
    octaves = np.minimum(np.frexp(before)[1].astype(np.int64) - 1, NUM_POSITIONS - 1)
    probabilities = np.searchsorted(PROBABILITY_EDGES, mu, side="right")
    return GapMeasure(
        sums=np.column_stack([of_rows[:, :3], lows, highs, of_rows[:, 3]]),
        positions=binned(octaves, NUM_POSITIONS),
        probabilities=binned(probabilities, len(PROBABILITY_EDGES) + 1),
        gaps=_counts(gap, GAP_EDGES),
        differences=_by_sign(pi - mu, advantages, rows, places),
    )


def _by_sign(
    differences: Numbers, advantages: ArrayLike | None, rows: Counts, places: Counts
) -> Counts:
    if advantages is None:
        return np.zeros((len(SIGNS), len(DIFFERENCE_EDGES) + 1), np.int64)
    values = np.asarray(advantages, float)
    signs = np.sign(values[rows] if values.ndim == 1 else values[rows, places])
    return np.stack(
        [_counts(differences[signs == sign], DIFFERENCE_EDGES) for sign in SIGNS]
    )


def _counts(values: Numbers, edges: Sequence[float]) -> Counts:
    bins = np.searchsorted(edges, values, side="right")
    return np.bincount(bins, minlength=len(edges) + 1)


def _added(parts: Sequence[Numbers]) -> Numbers:
    """Add the sums of bins; their last column is the largest of a bin."""
    stacked = np.stack(parts)
    added: Numbers = stacked.sum(axis=0)
    added[:, -1] = stacked[..., -1].max(axis=0)
    return added


def _named(sums: Numbers, names: Sequence[str]) -> dict[str, Any]:
    columns = {
        name: round_numbers(values) for name, values in zip(names, sums.T, strict=True)
    }
    return columns | {"num_tokens": sums[:, 0].astype(int).tolist()}


def round_numbers(values: ArrayLike) -> list[float | None]:
    """Round to 4 significant digits, as the log has them; None: it is no number."""
    numbers = np.asarray(values, float).tolist()
    return [float(f"{v:.4g}") if math.isfinite(v) else None for v in numbers]
