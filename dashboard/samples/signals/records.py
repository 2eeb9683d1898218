"""What a step's rollup holds, as packed records.

Little-endian, without padding, so that the records of many steps are joined by
PostgreSQL as they are and read by numpy in one piece.
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
PHASES = ("generate", "score", "logprobs", "update", "sync")

GROUP = np.dtype(
    [
        ("step", "<u4"),
        ("prompt", "<u4"),
        ("mean", "<f4"),  # NaN: no completion could be scored
        ("std", "<f4"),
        ("num_completions", "<u2"),
        ("signal", "u1"),  # its place in SIGNALS
        ("is_trained", "?"),
    ]
)
# How many completions of a group could be told right or wrong, and how many were right.
PASSES = np.dtype([("num_scored", "<u2"), ("num_right", "<u2")])
# Of all groups of a step with at least k completions that could be told right or wrong:
# the sum of their maj@k. k = 0 alone: no rule of the step reads answers.
MAJORITY = np.dtype([("k", "<u2"), ("num_groups", "<u2"), ("sum", "<f4")])
MAX_K = 64
BIN = np.dtype([("rung", "<i2"), ("count", "<u4")])
QUANTILES = (0, 5, 25, 50, 75, 95, 100)  # percent
QUANTILE = np.dtype("<f4")
# The step first, then each rule in the order of `rule_names`.
RULE_HEAD = ("num_scored", "reward_sum", "weight", "num_groups")
RULE_PART = ("part_sum", "share_sum", "num_varied")
RULE = np.dtype("<f8")
# Seconds of each phase and of the whole step; then, of generate, score, logprobs and
# update, those spent on dead groups, NaN where the step's groups are not known.
ANATOMY = (*PHASES, "step", *(f"dead_{phase}" for phase in PHASES[:4]))
SECONDS = np.dtype("<f4")


def unpack(packed: bytes, kind: Any) -> NDArray[Any]:
    return np.frombuffer(packed, kind)
