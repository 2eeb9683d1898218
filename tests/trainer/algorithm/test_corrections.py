"""Weights of tokens that another policy sampled, and the shares that they leave."""

import math

import numpy as np
import pytest
import torch

from tests.trainer.losses import policy_loss
from trainer.algorithm.corrections import (
    effective_share,
    leaves_region,
    sequence_weights,
    token_weights,
)
from trainer.algorithm.loss import BatchTotals, objective
from trainer.config import LossConfig

ICEPOP = {
    "importance_correction": "token_mask",
    "importance_floor": 0.5,
    "importance_cap": 5.0,
}
ALL = [
    ICEPOP,
    {"importance_correction": "token_truncate", "importance_floor": 0.7},
    {"importance_correction": "sequence_truncate", "importance_floor": 0.7},
    {"importance_correction": "sequence_mask", "importance_cap": 1.5},
    {"geometric_mask": 0.2},
    {"off_policy_mask": 0.1},
    {"geometric_mask": 0.3, "off_policy_mask": 0.05, **ICEPOP},
]


def weights_of(gap, advantages=1.0, gap_now=None, **settings):
    gap = torch.tensor([gap], dtype=torch.float64)
    now = gap if gap_now is None else torch.tensor([gap_now], dtype=torch.float64)
    return token_weights(
        LossConfig(**settings),
        gap=gap,
        gap_now=now,
        advantages=torch.full_like(gap, advantages),
        mask=torch.ones_like(gap),
    )


def test_no_setting_gives_no_weight():
    assert weights_of([0.5, -0.5]) is None


def test_icepop_drops_tokens_beyond_either_bound():
    weights = weights_of([math.log(4), math.log(6), -math.log(3)], **ICEPOP)

    assert weights.tolist() == [[pytest.approx(4.0), 0.0, 0.0]]


def test_truncation_holds_weights_within_both_bounds():
    gap = [math.log(4), math.log(6), -math.log(3)]

    weights = weights_of(
        gap, importance_correction="token_truncate", importance_floor=0.5
    )

    assert weights.tolist() == [[3.0, 3.0, 0.5]]


def test_a_floor_of_sequences_bounds_the_product():
    settings = {"importance_correction": "sequence_mask", "importance_floor": 0.5}

    assert weights_of([-0.5, -0.3], **settings).tolist() == [[0.0, 0.0]]
    assert weights_of([-0.5, 0.3], **settings)[0, 1].item() == pytest.approx(
        math.exp(-0.2)
    )


@pytest.mark.parametrize(
    ("gap", "is_kept"),
    [([0.03, -0.01, 0.05], False), ([0.03, -0.01, 0.05, -0.07], True)],
)
def test_the_geometric_mask_drops_completions_by_their_mean(gap, is_kept):
    weights = weights_of(gap, geometric_mask=0.02)

    assert weights.tolist() == [[float(is_kept)] * len(gap)]


@pytest.mark.parametrize(
    ("advantage", "is_kept"), [(-1.0, False), (0.0, True), (1.0, True)]
)
def test_the_off_policy_mask_drops_bad_completions_that_have_become_unlikely(
    advantage, is_kept
):
    # before the batch nothing differed: the present policy is what counts
    weights = weights_of(
        [0.0, 0.0], advantage, gap_now=[-0.2, -0.6], off_policy_mask=0.3
    )

    assert weights.tolist() == [[float(is_kept)] * 2]


def test_the_effective_share_is_of_equal_weights():
    assert effective_share(torch.tensor([4.0, 1.0, 0.25])) == pytest.approx(0.538462)
    assert effective_share(np.array([2.0, 2.0])) == pytest.approx(1.0)
    assert effective_share(np.zeros(3)) == 0.0


def random_batch(seed):
    generator = np.random.default_rng(seed)
    rows, length = generator.integers(1, 5), generator.integers(1, 9)
    gap, now = generator.normal(scale=0.3, size=(2, rows, length))
    mask = (generator.random((rows, length)) < 0.8).astype(np.float64)
    advantages = np.repeat(generator.normal(size=(rows, 1)), length, axis=1)
    return {
        "gap": gap * mask,
        "gap_now": now * mask,
        "advantages": advantages,
        "mask": mask,
    }


def slow_weights(config, gap, gap_now, advantages, mask):
    """Token by token, in plain Python."""
    weights = np.ones_like(gap)
    for row, column in np.ndindex(gap.shape):
        own = [t for t in range(gap.shape[1]) if mask[row, t]]
        count = max(len(own), 1)
        if config.importance_correction is not None:
            level, action = config.importance_correction.split("_")
            whole = sum(gap[row, t] for t in range(gap.shape[1]))
            weight = math.exp(whole if level == "sequence" else gap[row, column])
            floor, cap = config.importance_floor or 0, config.importance_cap
            if action == "truncate":
                weight = max(floor, min(cap, weight))
            elif not floor <= weight <= cap:
                weight = 0.0
            weights[row, column] = weight
        if config.geometric_mask is not None:
            mean = sum(gap[row, t] for t in own) / count
            weights[row, column] *= abs(mean) <= config.geometric_mask
        if config.off_policy_mask is not None and advantages[row, column] < 0:
            fall = sum(-gap_now[row, t] for t in own) / count
            weights[row, column] *= fall <= config.off_policy_mask
    return weights


@pytest.mark.parametrize("settings", ALL)
def test_arrays_and_tensors_get_the_weights_of_a_slow_loop(settings):
    config = LossConfig(**settings)
    for seed in range(150):
        batch = random_batch(seed)
        tensors = {name: torch.from_numpy(each) for name, each in batch.items()}

        arrays = token_weights(config, **batch)
        weights = token_weights(config, **tensors)

        assert np.abs(arrays - weights.numpy()).max() < 1e-12
        assert np.abs(arrays - slow_weights(config, **batch)).max() < 1e-12
        both = (
            sequence_weights(arrays, batch["mask"]),
            sequence_weights(weights, tensors["mask"]).numpy(),
        )
        assert np.allclose(*both, equal_nan=True, rtol=0, atol=1e-12)


@pytest.mark.parametrize("surrogate", ["dppo_tv", "dppo_kl"])
def test_arrays_and_tensors_leave_the_same_region(surrogate):
    config = LossConfig(
        surrogate=surrogate,
        old_logprobs="sampling",
        clip_low=0.02,
        clip_high=0.05,
    )
    generator = np.random.default_rng(0)
    now, old = -generator.exponential(size=(2, 4, 200))
    arrays = {
        "logprobs": now,
        "old_logprobs": old,
        "advantages": generator.normal(size=(4, 200)),
    }
    tensors = {name: torch.from_numpy(each) for name, each in arrays.items()}

    low, high = leaves_region(config, **arrays)

    assert 0 < low.sum() < low.size / 2
    assert 0 < high.sum() < low.sum()
    for ours, theirs in zip((low, high), leaves_region(config, **tensors), strict=True):
        assert (ours == theirs.numpy()).all()


def inputs_of_loss(seed=0):
    generator = torch.Generator().manual_seed(seed)
    now, old, sampled = (
        -2
        + torch.randn(3, 4, 6, generator=generator, dtype=torch.float64)
        * torch.tensor([0.3, 0.2, 0.2])[:, None, None]
    )
    mask = (torch.rand(4, 6, generator=generator) < 0.8).double()
    advantages = torch.randn(4, generator=generator, dtype=torch.float64)
    return now, old, sampled, mask, advantages


@pytest.mark.parametrize("settings", ALL)
def test_a_weight_multiplies_the_gradient_of_each_token(settings):
    now, old, sampled, mask, advantages = inputs_of_loss()
    config = LossConfig(surrogate="reinforce", **settings)
    now.requires_grad_()

    loss, _ = policy_loss(now, old, advantages, mask, config, sampling_logprobs=sampled)
    (gradient,) = torch.autograd.grad(loss, now)

    weights = slow_weights(
        config,
        *((each - sampled).detach().numpy() * mask.numpy() for each in (old, now)),
        advantages[:, None].expand(4, 6).numpy(),
        mask.numpy(),
    )
    expected = -advantages[:, None] * torch.from_numpy(weights) * mask / mask.sum()
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("settings", ALL)
def test_a_split_batch_has_the_same_loss_and_shares(settings):
    now, old, sampled, mask, advantages = inputs_of_loss(1)
    config = LossConfig(**settings)
    totals = BatchTotals(num_tokens=int(mask.sum()), num_sequences=4)

    def part(rows):
        return objective(
            now[rows],
            old[rows],
            advantages[rows],
            mask[rows],
            config,
            sampling_logprobs=sampled[rows],
            totals=totals,
        )

    whole, statistics = part(slice(None))
    parts = [part(slice(0, 1)), part(slice(1, 4))]

    assert sum(loss for loss, _ in parts).item() == pytest.approx(whole.item())
    joined = type(statistics).joined([each for _, each in parts]).metrics()
    assert joined == pytest.approx(statistics.metrics())


@pytest.mark.parametrize("settings", ALL)
@pytest.mark.parametrize("padding", [math.nan, -math.inf])
def test_masked_padding_changes_no_weight(settings, padding):
    now, old, sampled, mask, advantages = inputs_of_loss(2)
    mask[:, -1], mask[:, 0] = 0, 1
    config = LossConfig(**settings)

    def loss_with(last):
        filled = [each.clone() for each in (now, old, sampled)]
        for each in filled:
            each[:, -1] = last
        return policy_loss(
            *filled[:2], advantages, mask, config, sampling_logprobs=filled[2]
        )

    (loss, metrics), (expected, usual) = loss_with(padding), loss_with(-1.0)

    assert loss.item() == expected.item()
    assert metrics == usual


def test_bounds_that_nothing_reaches_give_no_correction():
    now, old, sampled, mask, advantages = inputs_of_loss(3)
    wide = LossConfig(geometric_mask=20.0, off_policy_mask=20.0)

    loss, metrics = policy_loss(
        now, old, advantages, mask, wide, sampling_logprobs=sampled
    )
    plain, _ = policy_loss(
        now, old, advantages, mask, LossConfig(), sampling_logprobs=sampled
    )

    assert loss.item() == plain.item()
    assert metrics["importance/ess"] == metrics["importance/ess_sequence"] == 1.0
    assert metrics["importance/frac_sequences_masked"] == 0.0


def test_shares_count_completions_that_are_masked_wholly():
    gap = torch.tensor([[0.5, 0.5], [0.01, 0.0], [0.0, 9.0]], dtype=torch.float64)
    mask = torch.tensor([[1, 1], [1, 1], [1, 0]])
    old = torch.zeros(3, 2, dtype=torch.float64)

    _, metrics = policy_loss(
        old,
        old,
        torch.ones(3),
        mask,
        LossConfig(geometric_mask=0.1),
        sampling_logprobs=-gap,
    )

    assert metrics["importance/frac_sequences_masked"] == pytest.approx(1 / 3)
    assert metrics["importance/ess_sequence"] == pytest.approx(2 / 3)
    assert metrics["importance/frac_masked"] == pytest.approx(2 / 5)
    assert metrics["importance/ess"] == pytest.approx(3 / 5)
