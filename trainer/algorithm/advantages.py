"""Advantages: rewards relative to the other completions of a group.

Without torch, so that the dashboard can use the same code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from trainer.config import AdvantageConfig

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

# verl adds it to the variance of all tokens' advantages (torch_functional.py).
_VARIANCE_EPS = 1e-8


def reward_matrix(groups: Sequence[Sequence[float | None]]) -> Floats:
    """Return rewards of P groups, float64 [P, G], G the largest group; NaN = no score.

    >>> reward_matrix([[1.0, None], [0.5]])
    array([[1. , nan],
           [0.5, nan]])
    """
    size = max(map(len, groups), default=0)
    rows = [
        [math.nan if value is None else value for value in group]
        + [math.nan] * (size - len(group))
        for group in groups
    ]
    return np.array(rows, dtype=np.float64).reshape(len(groups), size)


def group_advantages(
    rewards: Floats, config: AdvantageConfig, *, lengths: Floats | None = None
) -> Floats:
    """Advantage of each reward within its group.

    A = (r - baseline) / (scale + eps), with baseline = mean of the group, mean of the
    group's other completions, their mean weighted by length, Σ l·r / Σ l
    (arXiv:2505.23585), or 0; scale = standard deviation of the group or of the
    whole batch, the group's mean (arXiv:2602.02710), or no division. For pass@k it is
    what a completion adds to the best of k, over the same scale.

    A group whose scores are all equal has advantage exactly 0 (unless baseline is
    "none" and nothing, or the batch, scales it): this is found by max - min, since a
    rounded mean would leave a small difference that a small eps then blows up.

    Args:
        rewards: float64 [P, G]; NaN = no score (advantage 0, left out of mean and
            standard deviation).
        lengths: float64 [P, G], tokens of each completion, for baseline
            "length_weighted"; without a score they may be NaN.

    Returns:
        float64 [P, G].

    Raises:
        ValueError: rewards are infinite, or negative with scale "mean"; or credit is
            "process" or "preference", or baseline "length_weighted" has no lengths,
            which need more than rewards.

    >>> group_advantages(np.array([[1.0, 0.0]]), AdvantageConfig(ddof=0)).round(4)
    array([[ 0.9998, -0.9998]])
    """
    rewards = rewards.astype(np.float64)
    if np.isinf(rewards).any():
        raise ValueError("A reward is infinite. Bound the rule that returned it.")
    scored = ~np.isnan(rewards)
    values = np.where(scored, rewards, 0.0)

    match config.credit:
        case "ones":
            return scored.astype(np.float64)
        case "indicator":
            is_credited = scored & (values >= config.indicator_threshold)
            return is_credited.astype(np.float64)
        case "process":
            raise ValueError(
                'credit = "process" needs step rewards; call process_advantages for '
                "one group."
            )
        case "preference":
            raise ValueError(
                'credit = "preference" needs log-probs; call preference_advantages.'
            )
        case "pass_at_k":
            added = _added_to_pass_at_k(values, scored, k=config.pass_k)
            return added / _divisor(values, scored, config)
        case "pass_at_k_analytic":
            is_right = scored & (values >= config.indicator_threshold)
            return _normalized_pass_at_k(is_right, scored, k=config.pass_k)
        case "outcome":
            return _outcome(values, scored, config, lengths)


def _outcome(
    values: Floats, scored: Bools, config: AdvantageConfig, lengths: Floats | None
) -> Floats:
    advantages = _minus_baseline(values, scored, config, lengths)
    advantages = advantages / _divisor(values, scored, config)

    divided_by_own_spread = config.scale == "group_std"
    if config.baseline != "none" or divided_by_own_spread:
        advantages = np.where(_is_constant(values, scored), 0.0, advantages)
    single = 0.0 if config.singleton == "zero" else values
    count = scored.sum(axis=1, keepdims=True)
    advantages = np.where(count == 1, single, advantages)
    return np.where(scored, advantages, 0.0)


def _mean(values: Floats, scored: Bools) -> Floats:
    count = scored.sum(axis=1, keepdims=True)
    mean: Floats = values.sum(axis=1, keepdims=True) / count.clip(min=1)
    return mean


def _minus_baseline(
    values: Floats, scored: Bools, config: AdvantageConfig, lengths: Floats | None
) -> Floats:
    match config.baseline:
        case "mean":
            return values - _mean(values, scored)
        case "leave_one_out":
            # r - mean of the others = (r - mean of all) · n / (n - 1)
            count = scored.sum(axis=1, keepdims=True)
            minus_mean = values - _mean(values, scored)
            minus_others: Floats = minus_mean * count / (count - 1).clip(min=1)
            return minus_others
        case "length_weighted":
            return values - _length_weighted_mean(values, scored, lengths)
        case "none":
            return values


def _length_weighted_mean(
    values: Floats, scored: Bools, lengths: Floats | None
) -> Floats:
    if lengths is None:
        raise ValueError(
            'baseline = "length_weighted" needs the length of each completion.'
        )
    weights = np.where(scored, lengths, 0.0)
    total = weights.sum(axis=1, keepdims=True)
    mean: Floats = (weights * values).sum(axis=1, keepdims=True) / total.clip(min=1)
    return mean


def _added_to_pass_at_k(values: Floats, scored: Bools, *, k: int) -> Floats:
    """Return what a completion adds to the best of k, [P, G].

    It is the mean of max(I) - max(I without i) over the subsets I of k completions
    with i among them (arXiv:2505.15201; arXiv:2503.19595 for k = n). The k - 1 others
    are all among the m lowest with chance C(m, k-1) / C(n-1, k-1), so with n scores in
    ascending order the i-th adds Σ_{m<i} (r_(m+1) - r_(m)) · C(m, k-1) / C(n-1, k-1).
    No term is negative, so equal scores add the same, and the lowest exactly 0.
    Fewer than k scores have no subset: 0.
    """
    added = np.zeros_like(values)
    for row, is_scored in enumerate(scored):
        places = np.flatnonzero(is_scored)
        if len(places) >= k:
            order = places[values[row, places].argsort()]
            gaps = np.diff(values[row, order])
            added[row, order[1:]] = (gaps * _chances_below(len(order), k)).cumsum()
    return added


@cache
def _chances_below(n: int, k: int) -> Floats:
    """C(m, k-1) / C(n-1, k-1) for m = 1 to n - 1; the numbers may exceed a float's."""
    subsets = math.comb(n - 1, k - 1)
    return np.array([math.comb(m, k - 1) / subsets for m in range(1, n)])


def _normalized_pass_at_k(is_right: Bools, scored: Bools, *, k: int) -> Floats:
    """Return a completion's mean of (R - m) / σ over its subsets of k, [P, G].

    R is 1 where one of the k is right. With c right of n it fails in the share
    f = C(n-c, k) / C(n, k), so its mean is m = 1 - f and σ = √(m·f). Right ones get
    f / σ, wrong ones (f - C(n-c-1, k-1) / C(n-1, k-1)) / σ (arXiv:2508.10751). 0 where
    all subsets are alike.
    """
    advantages = np.zeros(scored.shape)
    for row, (n, c) in enumerate(
        zip(scored.sum(axis=1).tolist(), is_right.sum(axis=1).tolist(), strict=True)
    ):
        if 0 < c <= n - k:
            fails = math.comb(n - c, k) / math.comb(n, k)
            fails_with_wrong = math.comb(n - c - 1, k - 1) / math.comb(n - 1, k - 1)
            added = np.where(is_right[row], fails, fails - fails_with_wrong)
            advantages[row] = added / math.sqrt(fails * (1 - fails))
    return np.where(scored, advantages, 0.0)


def _divisor(values: Floats, scored: Bools, config: AdvantageConfig) -> Floats | float:
    match config.scale:
        case "group_std":
            spread = group_std(values, scored, ddof=config.ddof) + config.eps
            # their squares are too small for a float64: so little is nothing to learn
            return np.where(spread > 0, spread, 1.0)
        case "batch_std":
            flat, mask = values.reshape(1, -1), scored.reshape(1, -1)
            spread = group_std(flat, mask, ddof=config.ddof) + config.eps
            # no spread at all: nothing to divide by, and nothing to learn
            return np.where(spread > 0, spread, 1.0)
        case "mean":
            if (values < 0).any():
                raise ValueError(
                    'scale = "mean" divides by the group\'s mean, so it needs rewards '
                    f"of at least 0; got {values.min():g}."
                )
            divisor = _mean(values, scored) + config.eps
            return np.where(divisor > 0, divisor, 1.0)
        case "none":
            return 1.0


def _is_constant(values: Floats, scored: Bools) -> Bools:
    """Return whether each group's scores are all the same; [P, 1]."""
    highest = np.where(scored, values, -np.inf).max(
        axis=1, keepdims=True, initial=-np.inf
    )
    lowest = np.where(scored, values, np.inf).min(axis=1, keepdims=True, initial=np.inf)
    is_constant: Bools = highest <= lowest
    return is_constant


def group_std(values: Floats, scored: Bools, *, ddof: int) -> Floats:
    """Standard deviation of the scored values of each row, [P, 1].

    √(Σ(r - mean)² / (n - ddof)); exactly 0 where they are all equal, or are too few.
    """
    count = scored.sum(axis=1, keepdims=True)
    mean = values.sum(axis=1, keepdims=True, where=scored) / count.clip(min=1)
    squares = np.square(values - mean).sum(axis=1, keepdims=True, where=scored)
    variance = squares / (count - ddof).clip(min=1)
    return np.where(_is_constant(values, scored), 0.0, np.sqrt(variance))


def rule_advantages(
    rule_rewards: Floats,
    weights: Sequence[float],
    config: AdvantageConfig,
    *,
    lengths: Floats | None = None,
) -> Floats:
    """Σ w·A(r) over several rules, each normalised separately.

    So rules with a small standard deviation keep their influence (arXiv:2601.05242,
    without its last normalisation over the batch, which is `whiten`).

    Args:
        rule_rewards: float64 [P, G, R]; NaN where a rule gave no score.
        weights: R numbers.
        lengths: as in `group_advantages`.

    Returns:
        float64 [P, G].
    """
    total = np.zeros(rule_rewards.shape[:2])
    for index, weight in enumerate(weights):
        rewards = rule_rewards[:, :, index]
        total += weight * group_advantages(rewards, config, lengths=lengths)
    return total


def process_advantages(
    step_rewards: Sequence[Sequence[float]],
    step_ends: Sequence[Sequence[int]],
    num_tokens: Sequence[int],
    config: AdvantageConfig,
    *,
    group_size: int | None = None,
) -> list[Floats]:
    """Return token advantages from the rewards of reasoning steps.

    The step rewards of a group's completions are pooled and compared with one another;
    a token's advantage is the sum over the steps that end after it (arXiv:2402.03300,
    section 4.1.3). Tokens behind the last step get 0.

    Args:
        step_rewards: per completion, one reward per step; NaN = no score.
        step_ends: per completion, the exclusive token offset where each step ends.
        num_tokens: tokens of each completion.
        group_size: completions of each group, which stand one after another; None:
            all are one group.

    Returns:
        One float64 array [num_tokens] per completion.
    """
    size = group_size or max(len(step_rewards), 1)
    pooled = [
        [reward for rewards in step_rewards[first : first + size] for reward in rewards]
        for first in range(0, len(step_rewards), size)
    ]
    if not any(pooled):
        return [np.zeros(length) for length in num_tokens]
    outcome = config.model_copy(update={"credit": "outcome"})
    compared = group_advantages(reward_matrix(pooled), outcome)
    values = (
        value
        for row, rewards in zip(compared.tolist(), pooled, strict=True)
        for value in row[: len(rewards)]
    )
    return [
        _spread_steps([next(values) for _ in ends], ends, num_tokens=length)
        for ends, length in zip(step_ends, num_tokens, strict=True)
    ]


def _spread_steps(
    values: Sequence[float], ends: Sequence[int], *, num_tokens: int
) -> Floats:
    """Return each token's sum of the values of the steps that end after it,
    [num_tokens].
    """
    tokens = np.zeros(num_tokens)
    for value, end in zip(values, ends, strict=True):
        tokens[:end] += value
    return tokens


def whiten(
    advantages: Floats,
    scored: Bools,
    config: AdvantageConfig,
    *,
    lengths: Floats | None = None,
) -> Floats:
    """Normalise advantages over the whole batch.

    "completions": (A - mean) / (std + eps) over all scored values, whatever group they
    are of (arXiv:2601.05242, its last step). "tokens": (A - mean) / √(variance + 1e-8),
    in which a value counts once for each token, the variance divided by n - 1, as verl
    does for REINFORCE++ (arXiv:2501.03262). 0 for values that are not scored, and
    everywhere when all are equal.

    Args:
        advantages: float64, any shape.
        scored: bool, same shape.
        lengths: same shape, tokens that have each value, for "tokens"; None: one.
    """
    flat, mask = advantages.reshape(1, -1), scored.reshape(1, -1)
    flat = np.where(mask, flat, 0.0)
    weights = np.where(mask, 1.0, 0.0)
    if config.whiten == "tokens" and lengths is not None:
        weights = np.where(mask, lengths.reshape(1, -1), 0.0)
    count = weights.sum()
    mean = (weights * flat).sum() / count.clip(min=1)
    # Centred advantages leave a mean of rounding errors, which would lend groups
    # without a signal a tiny one.
    if abs(mean) <= 1e-12 * np.abs(flat).max(initial=0.0):
        mean = 0.0
    if config.whiten == "tokens":
        squares = (weights * np.square(flat - mean)).sum()
        spread = np.sqrt(squares / (count - 1).clip(min=1) + _VARIANCE_EPS)
    else:
        spread = group_std(flat, mask, ddof=config.ddof) + config.eps
    whitened = (flat - mean) / np.where(spread > 0, spread, 1.0)
    whitened = np.where(mask & ~_is_constant(flat, mask), whitened, 0.0)
    return whitened.reshape(advantages.shape)


def preference_advantages(
    logprob_sums: Floats, reference_sums: Floats, rewards: Floats, beta: float
) -> tuple[Floats, float]:
    """DPO's gradient as advantages of each group's best and worst completion.

    With the log-ratios ρ = log π(completion) - log π_ref(completion) of winner w and
    loser l, and the margin m = β·(ρ_w - ρ_l), DPO minimises -log σ(m)
    (arXiv:2305.18290). Its gradient is -β·σ(-m)·(∇log π(w) - ∇log π(l)), so the
    winner's advantage is β·σ(-m), the loser's its negative, and all others' 0.

    The surrogate "reinforce", its token losses summed over each sequence and divided by
    the number of pairs, has exactly the gradient of the mean of -log σ(m). Divided by
    the P·G sequences of the batch, as "sequence_mean_token_sum" does, it is that
    gradient times pairs / (P·G).

    Args:
        logprob_sums: [P, G], summed over each completion's tokens, nats.
        reference_sums: [P, G], those of the reference.
        rewards: [P, G]; NaN = no score. Of equals the first is the best and the last
            the worst; a group whose scores do not differ makes no pair.
        beta: strength of the pull towards the reference.

    Returns:
        (float64 advantages [P, G], mean of -log σ(m) over the pairs; 0 without any).
    """
    scored = ~np.isnan(rewards)
    values = np.where(scored, rewards, 0.0)
    best = np.where(scored, rewards, -np.inf).argmax(axis=1)[:, None]
    # argmin names the first of equals, so it looks from behind
    lowest_last = np.where(scored, rewards, np.inf)[:, ::-1]
    worst = rewards.shape[1] - 1 - lowest_last.argmin(axis=1)[:, None]
    is_pair = ~_is_constant(values, scored)

    ratios = logprob_sums - reference_sums
    best_ratios = np.take_along_axis(ratios, best, axis=1)
    margins = beta * (best_ratios - np.take_along_axis(ratios, worst, axis=1))
    losses = np.logaddexp(0.0, -margins)  # -log σ(m), finite for any margin
    weights = np.where(is_pair, beta * np.exp(-np.logaddexp(0.0, margins)), 0.0)
    advantages = np.zeros_like(ratios)
    np.put_along_axis(advantages, best, weights, axis=1)
    # the best and the worst are the same where there is no pair
    worst_weights = np.take_along_axis(advantages, worst, axis=1) - weights
    np.put_along_axis(advantages, worst, worst_weights, axis=1)
    return advantages, float(losses[is_pair].sum() / max(is_pair.sum(), 1))
