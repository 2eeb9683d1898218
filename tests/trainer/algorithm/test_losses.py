"""The loss: hand-computed cases, a version token by token, and properties."""

import math
from typing import Any

import pytest
import torch

from tests.trainer.losses import AGGREGATIONS, policy_loss
from trainer.algorithm.loss import BatchTotals, objective
from trainer.config import LossConfig, OptimConfig


def one_token(ratio: float, advantage: float, **options: Any) -> tuple[float, float]:
    """Loss of a single token and its gradient with respect to the log-prob."""
    logprob = torch.tensor([[math.log(ratio) - 1]], dtype=torch.float64)
    logprob.requires_grad_()

    loss, _ = policy_loss(
        logprob,
        torch.tensor([[-1.0]], dtype=torch.float64),
        torch.tensor([advantage]),
        torch.ones(1, 1),
        LossConfig(**options),
    )
    loss.backward()
    assert logprob.grad is not None
    return loss.item(), logprob.grad.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.1, 1.0, -1.1, -1.1),  # inside the bounds: -r A
        (1.5, 1.0, -1.2, 0.0),  # above, improving: clipped
        (1.5, -1.0, 1.5, 1.5),  # above, getting worse: not clipped
        (0.5, 1.0, -0.5, -0.5),
        (0.5, -1.0, 0.8, 0.0),
    ],
)
def test_the_clipped_surrogate(ratio, advantage, loss, gradient):
    assert one_token(ratio, advantage) == pytest.approx((loss, gradient), abs=1e-6)


def test_the_upper_bound_may_be_higher_than_the_lower():
    loss, _ = one_token(1.5, 1.0, clip_high=0.28)

    assert loss == pytest.approx(-1.28)


def test_dual_clip_bounds_the_loss_of_a_bad_token():
    assert one_token(9.0, -2.0, dual_clip=3.0) == pytest.approx((6.0, 0.0))
    assert one_token(9.0, 2.0, dual_clip=3.0)[0] == pytest.approx(-2.4)


def test_reinforce_is_minus_advantage_times_logprob():
    loss, gradient = one_token(1.5, 2.0, surrogate="reinforce")

    assert loss == pytest.approx(-2 * (math.log(1.5) - 1))
    assert gradient == pytest.approx(-2.0)


def test_cispo_keeps_the_gradient_of_a_clipped_token():
    loss, gradient = one_token(1.5, 2.0, surrogate="cispo")

    assert loss == pytest.approx(-1.2 * 2 * (math.log(1.5) - 1))
    assert gradient == pytest.approx(-1.2 * 2)


def test_gspo_clips_by_the_ratio_of_the_sequence():
    logprobs = torch.tensor([[0.3, 0.1, 9.0]], dtype=torch.float64)
    mask = torch.tensor([[1, 1, 0]])

    loss, metrics = policy_loss(
        logprobs,
        torch.zeros(1, 3, dtype=torch.float64),
        torch.tensor([1.0]),
        mask,
        LossConfig(surrogate="gspo", clip_high=10.0),
    )

    assert loss.item() == pytest.approx(-math.exp(0.2))
    assert metrics["ratio/max"] == pytest.approx(math.exp(0.2))


# Three tokens of advantage +1 and one of -1; ratios on both sides of the bounds.
LOGPROBS = torch.log(torch.tensor([[0.7, 1.1, 1.6], [0.6, 5.0, 5.0]])).double()
MASK = torch.tensor([[1, 1, 1], [1, 0, 0]])
ADVANTAGES = torch.tensor([1.0, -1.0])
# -0.7, -1.1, -1.2 and, clipped from below, +0.8


def test_aggregation_can_turn_the_sign_of_the_loss():
    # ratios e^0.1, e^-0.2 and 1.2 (clipped) of the good sequence, e^0.2 of the bad one
    log_ratios = torch.tensor([[0.1, -0.2, 0.3], [0.2, 0.0, 0.0]]).double()

    found = [
        policy_loss(
            log_ratios,
            torch.zeros(2, 3).double(),
            ADVANTAGES,
            MASK,
            LossConfig(aggregation=aggregation),
        )[0].item()
        for aggregation in ("sequence_mean_token_mean", "token_mean")
    ]

    assert found == pytest.approx([0.0901, -0.4756], abs=5e-5)


def test_the_gradient_coefficient_of_a_token():
    # A + beta·(reference/policy - 1), arXiv:2402.03300, appendix A.1.6
    logprob = torch.tensor([[-1.2]], dtype=torch.float64, requires_grad=True)

    loss, _ = policy_loss(
        logprob,
        logprob.detach(),
        torch.tensor([0.8], dtype=torch.float64),
        torch.ones(1, 1),
        LossConfig(kl_coef=0.04),
        torch.tensor([[-1.0]], dtype=torch.float64),
    )
    loss.backward()

    assert logprob.grad is not None
    assert -logprob.grad.item() == pytest.approx(0.80885611, abs=5e-9)


# Each surrogate at work on LOGPROBS: values of the four tokens, by hand.
HAND = {
    "clip": (-0.7, -1.1, -1.2, 0.8),
    # -A log π
    "reinforce": (-math.log(0.7), -math.log(1.1), -math.log(1.6), math.log(0.6)),
    # -clip(r, 0.8, 1.2) A log π
    "cispo": (
        -0.8 * math.log(0.7),
        -1.1 * math.log(1.1),
        -1.2 * math.log(1.6),
        0.8 * math.log(0.6),
    ),
    # the sequences' ratios are (0.7 · 1.1 · 1.6)^(1/3) = 1.0720 and 0.6, clipped at 0.8
    "gspo": (*[-((0.7 * 1.1 * 1.6) ** (1 / 3))] * 3, 0.8),
}


@pytest.mark.parametrize("surrogate", list(HAND))
@pytest.mark.parametrize(
    ("aggregation", "weights"),
    [
        ("token_mean", (1 / 4, 1 / 4, 1 / 4, 1 / 4)),
        ("sequence_mean_token_mean", (1 / 6, 1 / 6, 1 / 6, 1 / 2)),
        ("sequence_mean_token_sum", (1 / 2, 1 / 2, 1 / 2, 1 / 2)),
        ("constant", (1 / 20, 1 / 20, 1 / 20, 1 / 20)),
    ],
)
def test_each_surrogate_in_each_aggregation(surrogate, aggregation, weights):
    config = LossConfig(
        surrogate=surrogate, aggregation=aggregation, constant_length=10
    )

    loss, _ = policy_loss(
        LOGPROBS, torch.zeros(2, 3).double(), ADVANTAGES, MASK, config
    )

    expected = sum(w * v for w, v in zip(weights, HAND[surrogate], strict=True))
    assert loss.item() == pytest.approx(expected, rel=1e-6)


def test_at_ratio_one_the_gradient_is_that_of_reinforce():
    advantages = torch.tensor([0.7, -1.3])
    gradients = []
    for surrogate in ("clip", "reinforce", "cispo", "gspo"):
        logprobs = -torch.rand(2, 3, generator=torch.Generator().manual_seed(1))
        logprobs.requires_grad_()
        loss, _ = policy_loss(
            logprobs,
            logprobs.detach(),
            advantages,
            MASK,
            LossConfig(surrogate=surrogate),
        )
        loss.backward()
        gradients.append(logprobs.grad)

    assert torch.allclose(gradients[0], gradients[1])
    assert torch.allclose(gradients[0], gradients[2])
    # a token gets its share of the sequence's ratio, and there are as many shares
    assert torch.allclose(gradients[0], gradients[3])


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_parts_of_a_batch_add_up_to_the_batch(aggregation):
    config = LossConfig(aggregation=aggregation, constant_length=5, kl_coef=0.1)
    generator = torch.Generator().manual_seed(2)
    logprobs, old, reference = (
        -torch.rand(4, 5, generator=generator, dtype=torch.float64) for _ in range(3)
    )
    advantages = torch.randn(4, generator=generator, dtype=torch.float64)
    mask = (torch.arange(5)[None] < torch.tensor([5, 1, 3, 4])[:, None]).long()
    totals = BatchTotals(num_tokens=13, num_sequences=4)

    whole, _ = policy_loss(logprobs, old, advantages, mask, config, reference)
    parts = [
        objective(
            logprobs[rows],
            old[rows],
            advantages[rows],
            mask[rows],
            config,
            reference[rows],
            totals=totals,
        )[0]
        for rows in (slice(0, 1), slice(1, 4))
    ]

    assert (parts[0] + parts[1]).item() == pytest.approx(whole.item())


def test_values_in_padding_do_not_matter():
    padded = LOGPROBS.clone()
    padded[1, 1:] = -math.inf
    padded.requires_grad_()

    loss, _ = policy_loss(
        padded,
        torch.zeros(2, 3).double(),
        ADVANTAGES,
        MASK,
        LossConfig(kl_coef=0.1),
        torch.full((2, 3), -1.0).double(),
    )
    loss.backward()

    assert loss.isfinite()
    assert padded.grad is not None
    assert padded.grad.isfinite().all()


def test_token_advantages_weigh_each_token():
    advantages = torch.tensor([[1.0, 0.0, 0.0], [-1.0, 7.0, 7.0]])

    loss, _ = policy_loss(
        torch.zeros(2, 3), torch.zeros(2, 3), advantages, MASK, LossConfig()
    )

    assert loss.item() == pytest.approx(0.0)


def test_clip_shares_count_tokens_that_lost_their_gradient():
    _, metrics = policy_loss(
        LOGPROBS, torch.zeros(2, 3).double(), ADVANTAGES, MASK, LossConfig()
    )

    assert metrics["clip/frac_high"] == 0.25
    assert metrics["clip/frac_low"] == 0.25
    assert metrics["clip/frac_dual"] == 0.0
    assert metrics["clip/frac"] == 0.5
    assert metrics["ratio/max"] == pytest.approx(1.6)


@pytest.mark.parametrize(
    ("surrogate", "share"), [("clip", 0.5), ("cispo", 0.0), ("reinforce", 0.0)]
)
def test_the_dual_clip_counts_bad_tokens_that_it_silences(surrogate, share):
    ratios = torch.log(torch.tensor([[4.0, 4.0], [4.0, 2.0]])).double().requires_grad_()

    loss, metrics = policy_loss(
        ratios,
        torch.zeros(2, 2).double(),
        torch.tensor([[-1.0, -2.0], [1.0, -1.0]]),
        torch.ones(2, 2),
        LossConfig(surrogate=surrogate, dual_clip=3.0, clip_high=10.0),
    )
    loss.backward()

    assert metrics["clip/frac_dual"] == share
    assert metrics["clip/frac"] == share
    assert ratios.grad is not None
    assert (ratios.grad == 0).double().mean().item() == share


Rows = list[list[float]]


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"\[2, 3\], \[2, 3\], \[2, 3\] and \[3\]"):
        policy_loss(LOGPROBS, LOGPROBS, torch.zeros(3), MASK, LossConfig())


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


@pytest.mark.parametrize(
    ("aggregation", "masked"),
    [*((each, "holes") for each in AGGREGATIONS), ("token_mean", "whole")],
)
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
    options, aggregation, masked
):
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


# k1 is 1, 2, 3 and 4.
REFERENCE = torch.tensor([[-1.0, -2, -3], [-4, 9, 9]])


def loss_with_kl(**options: object) -> float:
    logprobs = torch.zeros(2, 3)
    config = LossConfig.model_validate(
        {"surrogate": "reinforce", "kl_estimator": "k1", "kl_coef": 0.5, **options}
    )
    advantages = torch.tensor([1.0, 1.0])
    loss, _ = policy_loss(
        logprobs, logprobs, advantages, MASK.float(), config, REFERENCE
    )
    return loss.item()


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token_mean", (1 + 2 + 3 + 4) / 4),
        ("sequence_mean_token_mean", (2 + 4) / 2),
        ("sequence_mean_token_sum", (6 + 4) / 2),
    ],
)
def test_the_kl_follows_its_own_aggregation(aggregation, expected):
    found = loss_with_kl(
        aggregation="constant", constant_length=7, kl_aggregation=aggregation
    )

    assert found == pytest.approx(0.5 * expected)


@pytest.mark.parametrize(
    "aggregation",
    ["token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum"],
)
def test_without_one_it_follows_the_losses(aggregation):
    assert loss_with_kl(aggregation=aggregation) == loss_with_kl(
        aggregation=aggregation, kl_aggregation=aggregation
    )


def test_parts_of_a_batch_add_up_under_two_aggregations():
    torch.manual_seed(0)
    logprobs, old, reference = torch.randn(3, 4, 5).double().unbind(0)
    mask = (torch.arange(5) < torch.tensor([[5], [2], [1], [4]])).double()
    advantages = torch.randn(4).double()
    config = LossConfig(
        aggregation="sequence_mean_token_sum", kl_coef=0.3, kl_aggregation="token_mean"
    )
    totals = BatchTotals(num_tokens=12, num_sequences=4)

    def part(rows: slice) -> torch.Tensor:
        loss, _ = objective(
            logprobs[rows],
            old[rows],
            advantages[rows],
            mask[rows],
            config,
            reference[rows],
            totals=totals,
        )
        return loss

    whole = part(slice(0, 4))
    parts = part(slice(0, 1)) + part(slice(1, 4))
    assert whole.item() == pytest.approx(parts.item(), rel=1e-12)


def test_no_gradient_clipping_can_be_said_in_toml():
    assert OptimConfig.model_validate({"max_grad_norm": "none"}).max_grad_norm is None
    with pytest.raises(ValueError, match="valid number"):
        OptimConfig.model_validate({"max_grad_norm": "never"})
