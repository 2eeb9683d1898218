"""The engine's advantages without torch.

`trainer.advantages` has the originals; a test draws rewards and holds the two against
each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from trainer.config import AdvantageConfig

Rewards = Sequence[float | None]  # None: no score


def group_advantages(
    groups: Sequence[Rewards], config: AdvantageConfig
) -> list[list[float]]:
    """A = (r - baseline) / (scale + eps) within each group; 0 without a score.

    With credit = "ones" and "indicator" what the engine gives instead.

    Raises:
        ValueError: a negative reward with scale "mean", which divides by a mean.
    """
    if config.credit in ("ones", "indicator"):
        return [[_credited(value, config) for value in group] for group in groups]
    batch = [value for group in groups for value in group if value is not None]
    if config.scale == "mean" and min(batch, default=0.0) < 0:
        raise ValueError(
            "Dividing by the group's mean needs rewards of 0 or more; got "
            f"{min(batch):g}. Choose another scale, or a recipe without penalties."
        )
    return [_of_group(group, batch, config) for group in groups]


def rule_advantages(
    rules: Sequence[Sequence[Rewards]],
    weights: Sequence[float],
    config: AdvantageConfig,
) -> list[list[float]]:
    """Σ w·A(r) over rules, each compared by itself; a list of groups for each rule."""
    compared = [group_advantages(groups, config) for groups in rules]
    return [
        [
            sum(weight * value for weight, value in zip(weights, values, strict=True))
            for values in zip(*members, strict=True)
        ]
        for members in zip(*compared, strict=True)
    ]


def whiten(
    advantages: Sequence[Sequence[float]],
    groups: Sequence[Rewards],
    config: AdvantageConfig,
) -> list[list[float]]:
    """(A - mean) / (std + eps) over the batch's scored completions; 0 for the others.

    `groups`: their rewards, which say who has a score.
    """
    flat = [
        value
        for own, rewards in zip(advantages, groups, strict=True)
        for value, reward in zip(own, rewards, strict=True)
        if reward is not None
    ]
    mean = math.fsum(flat) / max(1, len(flat))
    # As in the engine, what rounding leaves of a mean is none.
    if abs(mean) <= 1e-12 * max(map(abs, flat), default=0.0):
        mean = 0.0
    is_constant = len(set(flat)) < 2
    spread = _std(flat, config.ddof) + config.eps or 1.0
    return [
        [
            0.0 if reward is None or is_constant else (value - mean) / spread
            for value, reward in zip(own, rewards, strict=True)
        ]
        for own, rewards in zip(advantages, groups, strict=True)
    ]


def _credited(value: float | None, config: AdvantageConfig) -> float:
    if value is None:
        return 0.0
    return float(config.credit == "ones" or value >= config.indicator_threshold)


def _of_group(
    group: Rewards, batch: Sequence[float], config: AdvantageConfig
) -> list[float]:
    scored = [value for value in group if value is not None]
    is_constant = len(set(scored)) < 2
    compares = config.baseline != "none" or config.scale == "group_std"

    def advantage(value: float | None) -> float:
        if value is None:
            return 0.0
        if len(scored) == 1:
            return 0.0 if config.singleton == "zero" else value
        if is_constant and compares:
            return 0.0
        return _minus_baseline(value, scored, config) / _divisor(scored, batch, config)

    return [advantage(value) for value in group]


def _minus_baseline(
    value: float, scored: Sequence[float], config: AdvantageConfig
) -> float:
    mean = math.fsum(scored) / len(scored)
    match config.baseline:
        case "mean":
            return value - mean
        case "leave_one_out":
            return (value - mean) * len(scored) / max(1, len(scored) - 1)
        case "none":
            return value


def _divisor(
    scored: Sequence[float], batch: Sequence[float], config: AdvantageConfig
) -> float:
    match config.scale:
        case "group_std":
            return _std(scored, config.ddof) + config.eps or 1.0
        case "batch_std":
            return _std(batch, config.ddof) + config.eps or 1.0
        case "mean":
            return math.fsum(scored) / len(scored) + config.eps or 1.0
        case "none":
            return 1.0


def _std(values: Sequence[float], ddof: int) -> float:
    if len(set(values)) < 2:
        return 0.0
    mean = math.fsum(values) / len(values)
    squares = math.fsum((value - mean) ** 2 for value in values)
    return math.sqrt(squares / max(1, len(values) - ddof))
