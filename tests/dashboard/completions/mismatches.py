"""A step's gap between sampler and trainer, as its trainer reports it."""

from __future__ import annotations

from typing import Any

import numpy as np

from cohort.mismatch import measure_gaps


def mismatch(
    gaps: list[list[float]],
    *,
    advantages: list[float] | None = None,
    probability: float = 0.5,
    **fields: Any,
) -> dict[str, Any]:
    """Return the fields of an event, from d of the tokens of each completion."""
    width = max(map(len, gaps))
    padded = np.array([[*own, *[0.0] * (width - len(own))] for own in gaps])
    mask = np.array([[at < len(own) for at in range(width)] for own in gaps])
    sampling = np.full(mask.shape, np.log(probability))
    measured = measure_gaps(sampling + padded, sampling, mask, advantages)
    return {**measured.tree(), "advantages": advantages or [], **fields}
