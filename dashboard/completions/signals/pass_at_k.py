"""pass@k and maj@k during training, from the training groups."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from math import comb
from typing import Any

import numpy as np

from dashboard.completions.models import StepRollup
from dashboard.completions.signals.records import (
    MAJORITY,
    MAX_K,
    PASSES,
    Numbers,
    Records,
    find_span,
    read_stretches,
    shorten,
    unpack,
)
from dashboard.runs.charts.series import read_evaluated
from dashboard.runs.models import Run

# maj@1 is pass@1.
HELD_OUT = re.compile(r"pass@\d{1,4}|maj@(?!1$)\d{1,4}")

Classes = tuple[tuple[int, int], ...]  # of an answer: its completions, the right ones


def read_passes(
    run: Run, *, first: int | None = None, last: int | None = None
) -> dict[str, Any]:
    """Four queries. `shares[k - 1]` is pass@k by column, null where no group has k.

    `majorities` are maj@k in the same format, empty if no rule reads answers;
    `held_out` those of evaluations, by set. Columns have steps with known outcomes;
    `num_older` steps have rollups without this data.
    """
    span = find_span(run, first=first, last=last)
    stretches = read_stretches(run, span, ["passes", "majorities"]) if span else []
    groups = [
        (s.index, _scored(unpack(s.columns[0], PASSES)), unpack(s.columns[1], MAJORITY))
        for s in stretches
    ]
    groups_scored = [
        (index, records, votes) for index, records, votes in groups if len(records)
    ]
    max_k = min(
        max(
            (int(records["num_scored"].max()) for _, records, _ in groups_scored),
            default=0,
        ),
        MAX_K,
    )
    tables = [pass_shares(records, max_k=max_k) for _, records, _ in groups_scored]
    votes = [vote_shares(votes, max_k=max_k) for _, _, votes in groups_scored]
    has_votes = any(np.isfinite(shares).any() for shares in votes)
    older = StepRollup.objects.filter(run=run, superseded_by=None, majorities=b"")
    return {
        "num_older": older.exclude(groups=b"").count(),
        "columns": [
            {**span.column(index), "num_groups": len(records)}
            for index, records, _ in groups_scored
            if span
        ],
        "shares": _by_k(tables, max_k),
        "majorities": _by_k(votes, max_k) if has_votes else [],
        "held_out": read_held_out(run, first=first, last=last),
    }


def _by_k(tables: list[Numbers], max_k: int) -> list[list[float | None]]:
    return [[shorten(table[k]) for table in tables] for k in range(max_k)]


def read_held_out(
    run: Run, *, first: int | None, last: int | None
) -> dict[str, dict[str, list[list[float]]]]:
    """Read pass@k or maj@k by set and score, with steps and values."""
    curves: dict[str, dict[str, list[list[float]]]] = {}
    for metric, series in read_evaluated([run], within=(first, last))[run.pk].items():
        kind, _, rest = metric.partition("/")
        name, _, score = rest.rpartition("/")
        if kind == "eval" and name and HELD_OUT.fullmatch(score):
            values = [float(f"{value:.4g}") for value in series.values]
            curves.setdefault(name, {})[score] = [series.steps.tolist(), values]
    return curves


def _scored(groups: Records) -> Records:
    scored: Records = groups[groups["num_scored"] > 0]
    return scored


def pass_shares(groups: Records, *, max_k: int) -> Numbers:
    """pass@1 … pass@max_k, [max_k]: of n completions with c right the unbiased estimate

        1 - C(n - c, k) / C(n, k) = 1 - Π_{i<k} (n - c - i) / (n - i)

    (arXiv:2107.03374), as the mean over the groups with n ≥ k; NaN where there is none.
    """
    (n, c), counts = np.unique(
        np.stack([groups["num_scored"], groups["num_right"]]).astype(np.float64),
        axis=1,
        return_counts=True,
    )
    none_right = np.ones_like(n)
    shares = np.full(max_k, np.nan)
    for k in range(1, max_k + 1):
        has_k = n >= k
        if not has_k.any():
            break
        draws = np.where(has_k, n - k + 1, 1)
        none_right = none_right * np.maximum(n - c - k + 1, 0) / draws
        weights = counts[has_k]
        shares[k - 1] = 1 - (none_right[has_k] * weights).sum() / weights.sum()
    return shares


def vote_shares(votes: Records, *, max_k: int) -> Numbers:
    """maj@1 … maj@max_k, [max_k], as the mean over the groups with n ≥ k; NaN where
    there is none.
    """
    shares = np.full(max_k, np.nan)
    at_k = votes["k"].astype(np.int64)
    is_inside = (at_k >= 1) & (at_k <= max_k)
    at = at_k[is_inside] - 1
    nums = np.bincount(at, votes["num_groups"][is_inside], minlength=max_k)
    sums = np.bincount(at, votes["sum"][is_inside].astype(np.float64), minlength=max_k)
    np.divide(sums, nums, out=shares, where=nums > 0)
    return shares


def majority_shares(votes: Sequence[str | None], is_right: Sequence[bool]) -> Numbers:
    """maj@1 … maj@n of n completions, [n]: the chance that a majority of k is right.

    k of the group's n are drawn without order. The most frequent answer wins, with
    ties broken at random. Completions without an answer have no vote; without votes
    the majority is wrong. maj@1 is pass@1.
    """
    counts = Counter(vote for vote in votes if vote is not None)
    right = Counter(
        vote
        for vote, is_correct in zip(votes, is_right, strict=True)
        if is_correct and vote
    )
    classes = tuple(sorted((count, right[vote]) for vote, count in counts.items()))
    return _expected(classes, len(votes) - counts.total())


@lru_cache(maxsize=4_096)
def _expected(classes: Classes, num_silent: int) -> Numbers:
    """Σ_a right_a / n_a · P(answer a wins), by k."""
    chances = np.zeros(num_silent + sum(count for count, _ in classes))
    for index, (count, right) in enumerate(classes):
        if right:
            others = [n for at, (n, _) in enumerate(classes) if at != index]
            chances += right / count * _chance_to_win(count, others, num_silent)
    return chances


def _chance_to_win(count: int, others: Sequence[int], num_silent: int) -> Numbers:
    """Compute by k = 1 … n, exactly: of C(n, k) draws those in which this answer wins.

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
    chances: Numbers = (ways / totals)[1:]
    return chances


def _times(drawn: Numbers, other: int, j: int, ties: Numbers) -> Numbers:
    """Multiply by up to j votes for one more answer, without higher powers of x."""
    product = drawn.copy()  # no vote for it
    for i in range(1, min(other, j) + 1):
        if i < drawn.shape[1]:
            factor = comb(other, i) * (ties[:, None] if i == j else 1.0)
            product[:, i:] += factor * drawn[:, :-i]
    return product
