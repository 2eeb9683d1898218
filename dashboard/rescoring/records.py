"""What a rescored step holds, as packed records.

Little-endian and without padding, so that those of many steps are joined as they are
and read by numpy in one piece.
"""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from trainer.events import Signal

Numbers = NDArray[np.float64]
Records = NDArray[np.void]

SIGNALS: tuple[str, ...] = get_args(Signal)
MIXED = SIGNALS.index("mixed")

GROUP = np.dtype(
    [
        ("step", "<u4"),
        ("prompt", "<u4"),
        ("num_completions", "<u2"),
        ("old_signal", "u1"),  # its place in SIGNALS
        ("new_signal", "u1"),
        ("was_trained", "?"),
        ("is_trained", "?"),
        # Pairs of completions that have both rewards, and those whose order changed.
        ("num_pairs", "<u4"),
        ("num_reordered", "<u4"),
    ]
)
# NaN: no score. Ranks count from 1, the highest reward first; 0: no score.
COMPLETION = np.dtype(
    [
        ("step", "<u4"),
        ("prompt", "<u4"),
        ("position", "<u2"),
        ("group_size", "<u2"),
        ("old", "<f8"),
        ("new", "<f8"),
        ("old_advantage", "<f8"),
        ("new_advantage", "<f8"),
        ("old_rank", "<u2"),
        ("new_rank", "<u2"),
    ]
)
SCORE = np.dtype("<f8")


def unpack(packed: bytes, kind: Any) -> NDArray[Any]:
    return np.frombuffer(packed, kind)


def numbers(values: list[float | None]) -> Numbers:
    """An infinity, as an outside trainer may tell, is no score."""
    given = np.array([np.nan if v is None else v for v in values], np.float64)
    return np.where(np.isfinite(given), given, np.nan)


def ranks(values: Numbers) -> NDArray[np.int64]:
    """1 for the highest, as many as are higher plus one for the others; 0 for NaN.

    >>> ranks(np.array([0.5, 1.0, 0.5, np.nan])).tolist()
    [2, 1, 2, 0]
    """
    known = ~np.isnan(values)
    higher = (values[None, :] > values[:, None]).sum(axis=1)
    return np.where(known, higher + 1, 0)


def count_reordered(old: Numbers, new: Numbers) -> tuple[int, int]:
    """Pairs that have both values, and those that they put in another order.

    A tie that comes or goes is another order.
    """
    known = ~(np.isnan(old) | np.isnan(new))
    before, after = _order(old[known]), _order(new[known])
    count = int(known.sum())
    return count * (count - 1) // 2, int((before != after).sum()) // 2


def _order(values: Numbers) -> NDArray[np.int8]:
    """1, 0 or -1 of each pair; the difference of two may be no number."""
    above = (values[:, None] > values[None, :]).astype(np.int8)
    return above - above.T
