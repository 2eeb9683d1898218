"""The loss and its gradient, against plain numbers token by token."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from trainer.algorithm.loss import policy_loss
from trainer.config import LossConfig

AGGREGATIONS = (
    "token_mean",
    "sequence_mean_token_mean",
    "sequence_mean_token_sum",
    "constant",
)
Rows = list[list[float]]


def slow_loss(
    logprobs: Rows,
    old: Rows,
    reference: Rows,
    advantages: Rows,
    mask: Rows,
    config: LossConfig,
    *,
    weights_at: Rows,
) -> float:
    """GRPO's objective token by token, of plain numbers.

    `weights_at` are the log-probs at which CISPO takes its weights.
    """
    sums, lengths = [], []
    for row, inside in enumerate(mask):
        places = [t for t, counts in enumerate(inside) if counts]
        gaps = {t: logprobs[row][t] - old[row][t] for t in places}
        if config.surrogate == "gspo":
            mean = sum(gaps.values()) / max(len(places), 1)
            gaps = dict.fromkeys(places, mean)
        total = 0.0
        for t in places:
            gain = slow_gain(
                math.exp(gaps[t]),
                logprobs[row][t],
                advantages[row][t],
                math.exp(weights_at[row][t] - old[row][t]),
                config,
            )
            distance = reference[row][t] - logprobs[row][t]
            total += config.kl_coef * (math.exp(distance) - distance - 1) - gain
        sums.append(total)
        lengths.append(len(places))
    match config.aggregation:
        case "token_mean":
            return sum(sums) / sum(lengths)
        case "sequence_mean_token_mean":
            means = [s / n for s, n in zip(sums, lengths, strict=True) if n]
            return sum(means) / len(sums)
        case "sequence_mean_token_sum":
            return sum(sums) / len(sums)
        case "constant":
            assert config.constant_length is not None
            return sum(sums) / len(sums) / config.constant_length


def slow_gain(
    ratio: float, logprob: float, advantage: float, weight: float, config: LossConfig
) -> float:
    low, high = 1 - config.clip_low, 1 + config.clip_high
    if config.surrogate == "reinforce":
        return advantage * logprob
    if config.surrogate == "cispo":
        return min(max(weight, low), high) * advantage * logprob
    gain = min(ratio * advantage, min(max(ratio, low), high) * advantage)
    if config.dual_clip is not None and advantage < 0:
        gain = max(gain, config.dual_clip * advantage)
    return gain


MASKS = {
    "whole": [
        [1] * 7,
        [1] + [0] * 6,
        [1] * 4 + [0] * 3,
        [1] * 6 + [0],
        [1, 1] + [0] * 5,
    ],
    # a first token that does not count, a sequence that does not, and a hole
    "holes": [
        [0] + [1] * 6,
        [0] * 7,
        [1, 1, 0, 1, 0, 0, 0],
        [1] * 5 + [0, 0],
        [0, 1] + [0] * 5,
    ],
}


@pytest.mark.parametrize("masked", list(MASKS))
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize(
    "options",
    [
        {"surrogate": "clip"},
        {"surrogate": "clip", "clip_low": 0.1, "clip_high": 0.4, "dual_clip": 1.5},
        {"surrogate": "reinforce"},
        {"surrogate": "gspo", "clip_low": 0.05, "clip_high": 0.05},
        {"surrogate": "cispo"},
    ],
    ids=["clip", "dual", "reinforce", "gspo", "cispo"],
)
def test_it_equals_a_slow_version_and_its_small_differences(
    options: dict[str, Any], aggregation: Any, masked: str
) -> None:
    config = LossConfig(
        aggregation=aggregation, constant_length=9, kl_coef=0.3, **options
    )
    generator = torch.Generator().manual_seed(0)
    start, old, reference = (
        -torch.rand(5, 7, generator=generator, dtype=torch.float64) for _ in range(3)
    )
    advantages = torch.randn(5, 7, generator=generator, dtype=torch.float64)
    mask = torch.tensor(MASKS[masked])
    logprobs = start.clone().requires_grad_()

    loss, metrics = policy_loss(logprobs, old, advantages, mask, config, reference)
    loss.backward()

    def slow(values: torch.Tensor) -> float:
        return slow_loss(
            values.tolist(),
            old.tolist(),
            reference.tolist(),
            advantages.tolist(),
            mask.tolist(),
            config,
            weights_at=start.tolist(),
        )

    assert loss.item() == pytest.approx(slow(start), rel=1e-12)
    assert metrics["loss"] == loss.item()
    assert logprobs.grad is not None
    for row, t in [(0, 0), (0, 3), (1, 0), (2, 1), (2, 2), (3, 4), (4, 1), (4, 6)]:
        step = torch.zeros_like(start)
        step[row, t] = 1e-6
        slope = (slow(start + step) - slow(start - step)) / 2e-6
        assert logprobs.grad[row, t].item() == pytest.approx(slope, abs=1e-8)
