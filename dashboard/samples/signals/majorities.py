"""maj@k of a training group: the chance that a majority of k of it is right.

k of a group's n completions are drawn without order. The answer that most of them give
wins, of equally frequent ones each with the same chance; completions without an answer
have no vote, and where nobody votes the majority is wrong. maj@1 is pass@1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from math import comb

import numpy as np

from dashboard.samples.signals.records import Numbers

Classes = tuple[tuple[int, int], ...]  # of an answer: its completions, the right ones


def majority_shares(votes: Sequence[str | None], is_right: Sequence[bool]) -> Numbers:
    """maj@1 … maj@n of n completions, [n]."""
    counts = Counter(vote for vote in votes if vote is not None)
    right = Counter(
        vote for vote, one in zip(votes, is_right, strict=True) if one and vote
    )
    classes = tuple(sorted((count, right[vote]) for vote, count in counts.items()))
    return _expected(classes, len(votes) - counts.total())


@lru_cache(maxsize=4_096)
def _expected(classes: Classes, num_silent: int) -> Numbers:
    """Σ_a right_a / n_a · P(answer a wins), by k."""
    num = num_silent + sum(count for count, _ in classes)
    found = np.zeros(num)
    for place, (count, right) in enumerate(classes):
        if right:
            others = [n for at, (n, _) in enumerate(classes) if at != place]
            found += right / count * _chance_to_win(count, others, num_silent)
    return found


def _chance_to_win(count: int, others: Sequence[int], num_silent: int) -> Numbers:
    """By k = 1 … n, exact: of C(n, k) draws those in which this answer wins.

    With j votes for it, Π_b (Σ_{i<j} C(n_b, i) x^i + s C(n_b, j) x^j) · (1 + x)^silent
    counts the draws of the others, s once for each answer that is as frequent. A tie of
    t + 1 counts for 1 / (t + 1) = ∫ s^t ds over 0 … 1, which Gauss' rule finds exactly.
    """
    num = count + sum(others) + num_silent
    nodes, weights = np.polynomial.legendre.leggauss(len(others) // 2 + 1)
    ties = (nodes + 1) / 2
    silent = np.array([comb(num_silent, i) for i in range(num_silent + 1)], float)
    ways = np.zeros(num + 1)
    for j in range(1, count + 1):
        drawn = np.zeros((len(ties), num - j + 1))
        drawn[:, : num_silent + 1] = silent[: num - j + 1]
        for other in others:
            drawn = _times(drawn, other, j, ties)
        ways[j:] += comb(count, j) * (weights / 2 @ drawn)
    totals = np.array([comb(num, k) for k in range(num + 1)], float)
    found: Numbers = (ways / totals)[1:]
    return found


def _times(drawn: Numbers, other: int, j: int, ties: Numbers) -> Numbers:
    """With up to j votes for one more answer; higher powers of x are not needed."""
    found = drawn.copy()  # no vote for it
    for i in range(1, min(other, j) + 1):
        if i < drawn.shape[1]:
            factor = comb(other, i) * (ties[:, None] if i == j else 1.0)
            found[:, i:] += factor * drawn[:, :-i]
    return found
