"""Advantages: how much better a completion is than the others of its group."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from trainer.config import AdvantageConfig


def group_advantages(rewards: torch.Tensor, config: AdvantageConfig) -> torch.Tensor:
    """Compare each reward with its group.

    A = (r - baseline) / (scale + eps), with baseline = mean of the group, mean of the
    group's other completions, or 0; scale = standard deviation of the group or of the
    whole batch, the group's mean (arXiv:2602.02710), or no division.

    A group whose scores are all equal has advantage exactly 0 (unless baseline is
    "none" and nothing, or the batch, scales it): this is found by max - min, since a
    rounded mean would leave a small difference that a small eps then blows up.

    Args:
        rewards: float64 [P, G]; NaN = no score (advantage 0, left out of mean and
            standard deviation).

    Returns:
        float64 [P, G].

    Raises:
        ValueError: rewards are not [P, G], infinite, or negative with scale "mean";
            or credit is "process" or "preference", which need more than rewards.

    >>> group_advantages(torch.tensor([[1.0, 0.0]]).double(), AdvantageConfig(ddof=0))
    tensor([[ 0.9998, -0.9998]], dtype=torch.float64)
    """
    if rewards.ndim != 2:
        raise ValueError(
            f"Rewards must have the shape [prompts, completions]; got "
            f"{list(rewards.shape)}."
        )
    rewards = rewards.double()
    if rewards.isinf().any():
        raise ValueError("A reward is infinite. Bound the rule that gave it.")
    scored = ~rewards.isnan()
    values = torch.where(scored, rewards, 0.0)

    match config.credit:
        case "ones":
            return scored.double()
        case "indicator":
            return (scored & (values >= config.indicator_threshold)).double()
        case "process":
            raise ValueError(
                'credit = "process" needs the rewards of steps; '
                "use process_advantages for one group."
            )
        case "preference":
            raise ValueError(
                'credit = "preference" needs log-probs; use preference_advantages.'
            )
        case "outcome":
            return _outcome(values, scored, config)


def _outcome(
    values: torch.Tensor, scored: torch.Tensor, config: AdvantageConfig
) -> torch.Tensor:
    count = scored.sum(dim=1, keepdim=True)
    mean = values.sum(dim=1, keepdim=True) / count.clamp(min=1)
    advantages = _minus_baseline(values, mean, count, config)
    advantages = advantages / _divisor(values, scored, mean, config)

    divided_by_own_spread = config.scale == "group_std"
    if config.baseline != "none" or divided_by_own_spread:
        advantages = torch.where(_is_constant(values, scored), 0.0, advantages)
    single = 0.0 if config.singleton == "zero" else values
    advantages = torch.where(count == 1, single, advantages)
    return torch.where(scored, advantages, 0.0)


def _minus_baseline(
    values: torch.Tensor,
    mean: torch.Tensor,
    count: torch.Tensor,
    config: AdvantageConfig,
) -> torch.Tensor:
    match config.baseline:
        case "mean":
            return values - mean
        case "leave_one_out":
            # r - mean of the others = (r - mean of all) · n / (n - 1)
            return (values - mean) * count / (count - 1).clamp(min=1)
        case "none":
            return values


def _divisor(
    values: torch.Tensor,
    scored: torch.Tensor,
    mean: torch.Tensor,
    config: AdvantageConfig,
) -> torch.Tensor | float:
    match config.scale:
        case "group_std":
            spread = group_std(values, scored, ddof=config.ddof) + config.eps
            # their squares are too small for a float64: so little is nothing to learn
            return torch.where(spread > 0, spread, 1.0)
        case "batch_std":
            flat, mask = values.reshape(1, -1), scored.reshape(1, -1)
            spread = group_std(flat, mask, ddof=config.ddof) + config.eps
            # no spread at all: nothing to divide by, and nothing to learn
            return torch.where(spread > 0, spread, 1.0)
        case "mean":
            if (values < 0).any():
                raise ValueError(
                    'scale = "mean" needs rewards of 0 or more, since it divides by '
                    f"the group's mean; got {values.min().item():g}."
                )
            divisor = mean + config.eps
            return torch.where(divisor > 0, divisor, 1.0)
        case "none":
            return 1.0


def _is_constant(values: torch.Tensor, scored: torch.Tensor) -> torch.Tensor:
    """Whether each group's scores are all the same; [P, 1]."""
    highest = values.masked_fill(~scored, -torch.inf).amax(dim=1, keepdim=True)
    lowest = values.masked_fill(~scored, torch.inf).amin(dim=1, keepdim=True)
    return highest <= lowest


def group_std(values: torch.Tensor, scored: torch.Tensor, *, ddof: int) -> torch.Tensor:
    """Standard deviation of the scored values of each row, [P, 1].

    √(Σ(r - mean)² / (n - ddof)); exactly 0 where they are all equal, or are too few.
    """
    count = scored.sum(dim=1, keepdim=True)
    mean = torch.where(scored, values, 0.0).sum(dim=1, keepdim=True)
    mean = mean / count.clamp(min=1)
    squares = torch.where(scored, (values - mean).square(), 0.0)
    variance = squares.sum(dim=1, keepdim=True) / (count - ddof).clamp(min=1)
    return torch.where(_is_constant(values, scored), 0.0, variance.sqrt())


def rule_advantages(
    rule_rewards: torch.Tensor, weights: Sequence[float], config: AdvantageConfig
) -> torch.Tensor:
    """Σ w·A(r) over several rules, each compared by itself.

    So a rule of small spread keeps its voice (arXiv:2601.05242, without its last
    normalisation over the batch, which is `whiten`).

    Args:
        rule_rewards: float64 [P, G, R]; NaN where a rule gave no score.
        weights: R numbers.

    Returns:
        float64 [P, G].
    """
    if rule_rewards.ndim != 3 or rule_rewards.shape[2] != len(weights):
        raise ValueError(
            f"Got rewards of shape {list(rule_rewards.shape)} and {len(weights)} "
            "weights; the shape must be [prompts, completions, rules]."
        )
    each = [
        weight * group_advantages(rule_rewards[:, :, place], config)
        for place, weight in enumerate(weights)
    ]
    return torch.stack(each).sum(dim=0)


def process_advantages(
    step_rewards: Sequence[Sequence[float]],
    step_ends: Sequence[Sequence[int]],
    num_tokens: Sequence[int],
    config: AdvantageConfig,
    *,
    group_size: int | None = None,
) -> list[torch.Tensor]:
    """Token advantages from the rewards of reasoning steps.

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
        One float64 tensor [num_tokens] per completion.

    Raises:
        ValueError: lists of different length, ends that do not rise, or one past the
            completion's last token.
    """
    _check_steps(step_rewards, step_ends, num_tokens)
    size = group_size or max(len(step_rewards), 1)
    pooled = [
        [reward for rewards in step_rewards[first : first + size] for reward in rewards]
        for first in range(0, len(step_rewards), size)
    ]
    width = max((len(rewards) for rewards in pooled), default=0)
    if width == 0:
        return [torch.zeros(length, dtype=torch.float64) for length in num_tokens]
    padded = [rewards + [math.nan] * (width - len(rewards)) for rewards in pooled]
    outcome = config.model_copy(update={"credit": "outcome"})
    compared = group_advantages(torch.tensor(padded, dtype=torch.float64), outcome)
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
) -> torch.Tensor:
    """Each token's sum of the values of the steps that end after it, [num_tokens]."""
    tokens = torch.zeros(num_tokens, dtype=torch.float64)
    for value, end in zip(values, ends, strict=True):
        tokens[:end] += value
    return tokens


def _check_steps(
    step_rewards: Sequence[Sequence[float]],
    step_ends: Sequence[Sequence[int]],
    num_tokens: Sequence[int],
) -> None:
    if not len(step_rewards) == len(step_ends) == len(num_tokens):
        raise ValueError(
            f"Got step rewards of {len(step_rewards)} completions, ends of "
            f"{len(step_ends)} and lengths of {len(num_tokens)}; they must agree."
        )
    for place, (rewards, ends, length) in enumerate(
        zip(step_rewards, step_ends, num_tokens, strict=True)
    ):
        rises = all(a < b for a, b in zip([0, *ends], [*ends, length + 1], strict=True))
        if len(rewards) != len(ends) or not rises:
            raise ValueError(
                f"Completion {place} has {len(rewards)} step rewards and ends {ends!r} "
                f"in {length} tokens. Give each step one reward and one end, rising, "
                f"at most {length}."
            )


def whiten(
    advantages: torch.Tensor, scored: torch.Tensor, config: AdvantageConfig
) -> torch.Tensor:
    """Normalise advantages over the whole batch (arXiv:2601.05242, its last step).

    (A - mean) / (std + eps) over all scored values, whatever group they are of; 0 for
    the others, and everywhere when all are equal.

    Args:
        advantages: float64, any shape.
        scored: bool, same shape.
    """
    flat, mask = advantages.reshape(1, -1), scored.reshape(1, -1)
    flat = torch.where(mask, flat, 0.0)
    mean = flat.sum() / mask.sum().clamp(min=1)
    # Centred advantages leave a mean of rounding errors, which would lend groups
    # without a signal a tiny one.
    mean = torch.where(mean.abs() <= 1e-12 * flat.abs().max(), 0.0, mean)
    spread = group_std(flat, mask, ddof=config.ddof) + config.eps
    whitened = (flat - mean) / torch.where(spread > 0, spread, 1.0)
    whitened = torch.where(mask & ~_is_constant(flat, mask), whitened, 0.0)
    return whitened.reshape(advantages.shape)


def preference_advantages(
    logprob_sums: torch.Tensor,
    reference_sums: torch.Tensor,
    rewards: torch.Tensor,
    beta: float,
) -> tuple[torch.Tensor, torch.Tensor]:
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
    rewards = rewards.double()
    scored = ~rewards.isnan()
    best = rewards.masked_fill(~scored, -torch.inf).argmax(dim=1, keepdim=True)
    # argmin names the first of equals, so it looks from behind
    lowest_last = rewards.masked_fill(~scored, torch.inf).flip(1)
    worst = rewards.shape[1] - 1 - lowest_last.argmin(dim=1, keepdim=True)
    is_pair = ~_is_constant(torch.where(scored, rewards, 0.0), scored)

    ratios = (logprob_sums.detach() - reference_sums.detach()).double()
    margins = beta * (ratios.gather(1, best) - ratios.gather(1, worst))
    weights = torch.where(is_pair, beta * torch.sigmoid(-margins), 0.0)
    advantages = torch.zeros_like(rewards).scatter(1, best, weights)
    advantages = advantages.scatter_add(1, worst, -weights)
    losses = -torch.nn.functional.logsigmoid(margins)[is_pair]
    return advantages, losses.sum() / max(len(losses), 1)
