"""How rules, and reward and length, agree about the completions of a group."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from dashboard.insights.audit.sampled import SampledGroup
from dashboard.insights.statistics import Array, subtract

MOST_RULES = 8


def numbers(values: Sequence[float | int | None]) -> Array:
    return np.array([np.nan if v is None else v for v in values], np.float64)


def disagreement(groups: Sequence[SampledGroup], rule: str, other: str) -> float:
    """Of the pairs within groups that both rules tell apart, the share they order
    oppositely: D / (C + D), which is (1 - γ)/2 of Goodman and Kruskal's γ.

    NaN: there are no such pairs.
    """
    same = opposite = 0
    for group in groups:
        if rule not in group.scores or other not in group.scores:
            continue
        ours, theirs = (numbers(group.scores[name]) for name in (rule, other))
        signs = np.sign(_differences(ours)) * np.sign(_differences(theirs))
        same += int((signs > 0).sum())
        opposite += int((signs < 0).sum())
    return opposite / (same + opposite) if same + opposite else np.nan


def _differences(values: Array) -> Array:
    """Of each two completions, once."""
    return np.subtract.outer(values, values)[np.triu_indices(len(values), 1)]


def reward_by_length(groups: Sequence[SampledGroup]) -> float:
    """Pearson's correlation of reward and length within groups, over all of them:

        Σ (R - mean R)(L - mean L) / √(Σ (R - mean R)² · Σ (L - mean L)²),

    means being of the completion's own group, over groups whose rewards differ. NaN:
    one of them does not vary.
    """
    rewards, lengths = [np.empty(0)], [np.empty(0)]
    for group in groups:
        ours, theirs = numbers(group.rewards), numbers(group.lengths)
        known = np.isfinite(ours) & np.isfinite(theirs)
        # Ties, of which there are more and more, say nothing about length.
        if known.any() and np.ptp(ours[known]) > 0:
            rewards.append(_centre(ours[known]))
            lengths.append(_centre(theirs[known]))
    ours, theirs = _scale(np.concatenate(rewards)), _scale(np.concatenate(lengths))
    bottom = float(np.sqrt((ours @ ours) * (theirs @ theirs)))
    return float(ours @ theirs) / bottom if bottom > 0 else np.nan


def _centre(values: Array) -> Array:
    """Less their mean, and 0 of equal ones, whatever it loses in its last digit."""
    return subtract(values, np.full(len(values), values.mean()))


def _scale(values: Array) -> Array:
    """By the largest of them: the square of a number above 1e154 is no float."""
    largest = np.abs(values).max(initial=0.0)
    return values / largest if largest > 0 else values


def pairs_of(names: Sequence[str]) -> list[tuple[str, str]]:
    """Each two of the first eight rules."""
    return list(combinations(names[:MOST_RULES], 2))
