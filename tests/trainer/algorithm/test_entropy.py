"""Entropy control: top-entropy tokens, Clip-Cov, KL-Cov and the adaptive weight."""

import math

import numpy as np
import pytest
import torch

from tests.trainer.losses import policy_loss
from trainer.algorithm.entropy import (
    AdaptiveEntropy,
    choose_by_covariance,
    high_entropy,
)
from trainer.algorithm.loss import BatchTotals, objective
from trainer.config import LossConfig

KINDS = {
    "kept": {},
    "clip": {"covariance": "clip"},
    "kl": {"covariance": "kl", "covariance_coef": 0.5, "dual_clip": 2.0},
    "kept and clip": {"covariance": "clip"},
    "kept and kl": {"covariance": "kl", "covariance_coef": 0.5},
    "kept and weighed": {"importance_correction": "token_truncate"},
}


def doubles(values):
    return torch.tensor([values], dtype=torch.float64)


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    now, old, sampled = -1.2 + 0.3 * torch.randn(
        3, 4, 5, generator=generator, dtype=torch.float64
    )
    mask, kept, chosen = (
        torch.rand(3, 4, 5, generator=generator)
        < torch.tensor([0.8, 0.5, 0.3])[:, None, None]
    ).double()
    mask[:, 0] = 1
    advantages = torch.randn(4, generator=generator, dtype=torch.float64)
    return now, old, sampled, mask, advantages, kept, chosen


def marks(kind, kept, chosen):
    return {
        "kept": kept if "kept" in kind else None,
        "chosen": chosen if LossConfig(**KINDS[kind]).covariance else None,
    }


def test_tokens_of_the_highest_entropy_are_kept():
    # the 0.8 quantile of 0, 0.1 … 1.0 is its ninth number, 0.8
    entropies = np.arange(11) / 10

    kept = high_entropy(entropies[::-1], 0.2)

    assert kept.tolist() == [True] * 3 + [False] * 8
    assert high_entropy(entropies, 1.0).all()
    # between 2 and 3 nats, at 2.6
    assert high_entropy(np.array([1.0, 3.0, 2.0]), 0.2).tolist() == [False, True, False]


# Means are 1 and -2, so the covariances are 0, 2, -2, 4 and 6.
ADVANTAGES = np.array([1.0, 3.0, -1.0, 3.0, -1.0])
LOGPROBS = np.array([-3.0, -1.0, -1.0, 0.0, -5.0])


def test_kl_cov_takes_the_largest_covariances():
    def chosen(share):
        config = LossConfig(covariance="kl", covariance_share=share)
        return choose_by_covariance(ADVANTAGES, LOGPROBS, config, seed=0).tolist()

    assert chosen(2e-4) == [False, False, False, False, True]
    assert chosen(0.59) == [False, False, False, True, True]
    assert chosen(0.6) == [False, True, False, True, True]
    # the rest lower no entropy
    assert chosen(1.0) == [False, True, False, True, True]


def test_clip_cov_draws_from_covariances_within_bounds():
    def chosen(seed, share=0.2, **bounds):
        config = LossConfig(covariance="clip", covariance_share=share, **bounds)
        found = choose_by_covariance(ADVANTAGES, LOGPROBS, config, seed=seed)
        return np.flatnonzero(found).tolist()

    draws = [chosen(seed) for seed in range(20)]

    assert {place for draw in draws for place in draw} == {1, 3}  # c = 2 and 4
    assert all(len(draw) == 1 for draw in draws)
    assert chosen(7) == chosen(7)
    assert chosen(0, share=1.0) == [1, 3]
    assert chosen(0, covariance_low=2.0) == [3]
    assert chosen(0, covariance_low=7.0, covariance_high=9.0) == []


@pytest.mark.parametrize("covariance", ["clip", "kl"])
def test_a_token_without_a_sampling_log_prob_is_not_chosen(covariance):
    config = LossConfig(covariance=covariance, covariance_share=1.0)

    unknown = choose_by_covariance(
        np.append(ADVANTAGES, 1.0), np.append(LOGPROBS, math.nan), config, seed=0
    )

    known = choose_by_covariance(ADVANTAGES, LOGPROBS, config, seed=0)
    assert unknown.tolist() == [*known.tolist(), False]


def loss_and_slopes(advantage, **named):
    """Of two tokens that became e^0.5 and e^-0.5 times as likely."""
    config = LossConfig(**named.pop("settings", {}))
    now = doubles([-0.5, -1.5]).requires_grad_()
    loss, metrics = policy_loss(
        now,
        doubles([-1.0, -1.0]),
        torch.tensor([advantage], dtype=torch.float64),
        torch.ones_like(now),
        config,
        **{name: doubles(values) for name, values in named.items()},
    )
    (slopes,) = torch.autograd.grad(loss, now)
    return loss.item(), slopes[0].tolist(), metrics


def test_a_token_left_out_stays_in_the_divisor():
    loss, slopes, metrics = loss_and_slopes(1.0, kept=[0.0, 1.0])

    assert loss == pytest.approx(-math.exp(-0.5) / 2)
    assert slopes == [0.0, pytest.approx(-math.exp(-0.5) / 2)]
    assert metrics["entropy/frac_kept"] == 0.5


def test_clip_cov_leaves_out_the_chosen():
    settings = {"covariance": "clip"}

    loss, slopes, metrics = loss_and_slopes(1.0, chosen=[0.0, 1.0], settings=settings)

    assert loss == pytest.approx(-1.2 / 2)
    assert slopes == [0.0, 0.0]  # the first one is clipped
    assert metrics["entropy/frac_kept"] == 0.5
    assert metrics["clip/frac"] == 0.5


def test_kl_cov_penalises_the_change_of_the_chosen_and_clips_none():
    settings = {"covariance": "kl", "covariance_coef": 0.1}

    loss, slopes, metrics = loss_and_slopes(1.0, chosen=[0.0, 1.0], settings=settings)

    high, low = math.exp(0.5), math.exp(-0.5)
    assert loss == pytest.approx((-high - low + 0.1 * 0.5) / 2)
    assert slopes == [pytest.approx(-high / 2), pytest.approx((-low - 0.1) / 2)]
    assert metrics["clip/frac"] == 0
    assert "entropy/frac_kept" not in metrics


def slow_slopes(kind, now, old, sampled, mask, advantages, kept, chosen):
    """-∂L/∂ln π, token by token."""
    config, slopes = LossConfig(**KINDS[kind]), np.zeros(now.shape)
    for row, place in zip(*np.nonzero(mask), strict=True):
        a, r = advantages[row], math.exp(now[row, place] - old[row, place])
        if config.covariance == "kl":
            slope = a * r
            if chosen[row, place]:
                slope -= 0.5 if now[row, place] > old[row, place] else -0.5
        else:
            is_clipped = r > 1.2 if a > 0 else r < 0.8
            slope = 0.0 if is_clipped else a * r
            if config.covariance == "clip" and chosen[row, place]:
                slope = 0.0
        if config.importance_correction:
            slope *= min(3.0, math.exp(old[row, place] - sampled[row, place]))
        if "kept" in kind and not kept[row, place]:
            slope = 0.0
        slopes[row, place] = slope / mask.sum()
    return slopes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_is_that_of_a_slow_loop(kind, seed):
    now, old, sampled, mask, advantages, kept, chosen = batch(seed)
    now.requires_grad_()

    loss, _ = policy_loss(
        now,
        old,
        advantages,
        mask,
        LossConfig(**KINDS[kind]),
        sampling_logprobs=sampled,
        **marks(kind, kept, chosen),
    )
    (gradient,) = torch.autograd.grad(loss, now)

    expected = slow_slopes(
        kind,
        *(
            each.detach().numpy()
            for each in (now, old, sampled, mask, advantages, kept, chosen)
        ),
    )
    torch.testing.assert_close(-gradient, torch.from_numpy(expected))


@pytest.mark.parametrize("kind", KINDS)
def test_where_nothing_has_moved_what_is_left_has_the_gradient_of_reinforce(kind):
    now, _, _, mask, advantages, kept, chosen = batch(0)
    now.requires_grad_()

    gradients = []
    for settings in (KINDS[kind], {"surrogate": "reinforce"}):
        loss, _ = policy_loss(
            now,
            now.detach(),
            advantages,
            mask,
            LossConfig(**settings),
            sampling_logprobs=now.detach(),
            **(marks(kind, kept, chosen) if settings is KINDS[kind] else {}),
        )
        gradients.append(torch.autograd.grad(loss, now)[0])

    found, usual = gradients
    is_left = kept if "kept" in kind else torch.ones_like(mask)
    if KINDS[kind].get("covariance") == "clip":
        is_left = is_left * (1 - chosen)
    torch.testing.assert_close(found, usual * is_left)


@pytest.mark.parametrize("kind", KINDS)
def test_a_choice_of_all_or_of_none_changes_nothing(kind):
    now, old, sampled, mask, advantages, _, _ = batch(1)
    settings = KINDS[kind] | {"covariance": None}
    if "kl" in kind:  # which clips nothing, so that no bounds are reached either
        settings = {"clip_low": 1.0, "clip_high": 10.0}

    def loss(config, **named):
        return policy_loss(
            now, old, advantages, mask, config, sampling_logprobs=sampled, **named
        )[0].item()

    named = marks(kind, torch.ones_like(mask), torch.zeros_like(mask))

    assert loss(LossConfig(**KINDS[kind]), **named) == loss(LossConfig(**settings))


@pytest.mark.parametrize("kind", KINDS)
def test_a_split_batch_has_the_same_loss(kind):
    now, old, sampled, mask, advantages, *choices = batch(1)
    totals = BatchTotals(num_tokens=int(mask.sum()), num_sequences=4)

    def part(rows):
        loss, _ = objective(
            now[rows],
            old[rows],
            advantages[rows],
            mask[rows],
            LossConfig(**KINDS[kind]),
            sampling_logprobs=sampled[rows],
            **marks(kind, *(choice[rows] for choice in choices)),
            totals=totals,
        )
        return loss.item()

    whole = part(slice(None))

    assert part(slice(0, 3)) + part(slice(3, 4)) == pytest.approx(whole)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("padding", [math.nan, -math.inf])
def test_padding_changes_nothing(kind, padding):
    now, old, sampled, mask, advantages, *choices = batch(2)
    mask[:, -1] = 0

    def loss_with(last):
        filled = [each.clone() for each in (now, old, sampled)]
        for each in filled:
            each[:, -1] = last
        filled[0].requires_grad_()
        loss, metrics = policy_loss(
            filled[0],
            filled[1],
            advantages,
            mask,
            LossConfig(**KINDS[kind]),
            sampling_logprobs=filled[2],
            **marks(kind, *choices),
        )
        (gradient,) = torch.autograd.grad(loss, filled[0])
        return loss.item(), gradient[:, :-1], metrics

    loss, gradient, metrics = loss_with(padding)
    expected, usual, plain = loss_with(-1.0)

    assert loss == expected
    assert torch.equal(gradient, usual)
    assert metrics == plain


def test_the_entropy_weight_follows_its_target():
    controller, weights = AdaptiveEntropy(coef=0.004), []
    for entropy in (0.1, 0.3, 0.3, 0.1, 0.2, math.nan):
        controller.update(entropy, target=0.2)
        weights.append((round(controller.coef, 4), round(controller.weight, 4)))

    assert weights == [
        (0.009, 0.009),
        (0.004, 0.0),
        (0.0, 0.0),
        (0.005, 0.005),
        (0.005, 0.005),
        (0.005, 0.0),
    ]


def test_the_entropy_weight_stays_within_0_and_1():
    controller = AdaptiveEntropy(coef=0.998)

    controller.update(0.1, target=0.2)

    assert controller.weight == 1.0


def test_an_adaptive_entropy_weight_takes_the_place_of_the_configured_one():
    settings = {"entropy_coef": 0.5}
    entropy = doubles([1.0, 2.0])
    plain, *_ = loss_and_slopes(1.0)

    def bonus(coef):
        now = doubles([-0.5, -1.5])
        loss, _ = policy_loss(
            now,
            doubles([-1.0, -1.0]),
            torch.ones(1),
            torch.ones_like(now),
            LossConfig(**settings),
            entropy=entropy,
            entropy_coef=coef,
        )
        return plain - loss.item()

    assert bonus(None) == pytest.approx(0.5 * 1.5)
    assert bonus(0.1) == pytest.approx(0.1 * 1.5)
    assert bonus(0.0) == pytest.approx(0.0)
