"""Surrogates beside PPO's clipping: DPPO, SAPO, GMPO and VESPO."""

import math

import numpy as np
import pytest
import torch

from tests.trainer.losses import policy_loss
from trainer.algorithm.loss import BatchTotals, objective
from trainer.config import LossConfig

MEANS = {"aggregation": "sequence_mean_token_mean"}
KINDS = {
    "dppo_tv": {
        "surrogate": "dppo_tv",
        "old_logprobs": "sampling",
        "importance_cap": 1e4,
    },
    "dppo_kl": {
        "surrogate": "dppo_kl",
        "old_logprobs": "sampling",
        "importance_cap": 1e4,
        "clip_low": 0.05,
        "clip_high": 0.05,
    },
    "sapo": {"surrogate": "sapo"},
    "gmpo": {"surrogate": "gmpo", "clip_low": 0.4, "clip_high": 0.4, **MEANS},
    "vespo": {"surrogate": "vespo"},
    "vespo with a correction": {
        "surrogate": "vespo",
        "importance_correction": "sequence_truncate",
    },
    "penalty": {"surrogate": "clip", "sampler_penalty": 0.1},
}


def doubles(values):
    return torch.tensor([values], dtype=torch.float64)


def loss_and_slope(now, old, advantage, sampled=None, **settings):
    """Of one sequence."""
    now = doubles(now).requires_grad_()
    loss, metrics = policy_loss(
        now,
        doubles(old),
        torch.tensor([advantage], dtype=torch.float64),
        torch.ones_like(now),
        LossConfig(**settings),
        sampling_logprobs=doubles(old if sampled is None else sampled),
    )
    (slope,) = torch.autograd.grad(loss, now)
    return loss.item(), slope[0].tolist(), metrics


@pytest.mark.parametrize(
    ("kind", "advantage", "sampled", "now", "is_masked"),
    [
        ("dppo_kl", 1.0, 0.5, 0.6, False),  # 0.020411 nats
        ("dppo_kl", 1.0, 0.5, 0.75, True),  # 0.143841
        ("dppo_kl", -1.0, 0.1, 0.4, False),  # 0.226289, but it moves back
        ("dppo_tv", 1.0, 0.5, 0.69, False),
        ("dppo_tv", 1.0, 0.5, 0.71, True),
        ("dppo_tv", -1.0, 0.5, 0.71, False),
        ("dppo_tv", -1.0, 0.5, 0.29, True),
    ],
)
def test_dppo_masks_a_token_that_leaves_the_region(
    kind, advantage, sampled, now, is_masked
):
    loss, (slope,), metrics = loss_and_slope(
        [math.log(now)], [math.log(sampled)], advantage, **KINDS[kind]
    )

    expected = 0.0 if is_masked else -advantage * now / sampled
    assert loss == pytest.approx(expected)
    assert slope == pytest.approx(expected)
    assert metrics["clip/frac"] == float(is_masked)


@pytest.mark.parametrize(
    ("advantage", "ratio", "loss", "slope"),
    [(1.0, 1.5, -2.489837, -1.410022), (-1.0, 0.5, 1.415938, 0.467070)],
)
def test_sapo_gates_softly(advantage, ratio, loss, slope):
    found = loss_and_slope([math.log(ratio)], [0.0], advantage, surrogate="sapo")

    assert found[0] == pytest.approx(loss, abs=1e-6)
    assert found[1] == [pytest.approx(slope, abs=1e-6)]


def test_gmpo_takes_the_geometric_mean_of_bounded_ratios():
    loss, slopes, metrics = loss_and_slope(
        [0.5, -0.1], [0.0, 0.0], 1.0, **KINDS["gmpo"]
    )

    assert loss == pytest.approx(-1.161834, abs=1e-6)
    assert slopes == [0.0, pytest.approx(-0.580917, abs=1e-6)]
    assert metrics["clip/frac_high"] == 0.5


@pytest.mark.parametrize(("advantage", "weight"), [(1.0, 0.199148), (-1.0, 1.082682)])
def test_the_weight_of_vespo_is_of_the_product_of_ratios(advantage, weight):
    now, old = [math.log(0.5), math.log(0.4)], [math.log(0.25), math.log(0.4)]

    _, slopes, _ = loss_and_slope(now, old, advantage, surrogate="vespo")

    assert slopes == [pytest.approx(-advantage * weight / 2, abs=1e-6)] * 2


def test_vespo_takes_the_correction_of_a_sequence_into_its_weight():
    # π/π_old = 1 and π_old/μ = 2: together as before
    now, sampled = [math.log(0.5), math.log(0.4)], [math.log(0.25), math.log(0.4)]

    _, slopes, metrics = loss_and_slope(
        now, now, 1.0, sampled, **KINDS["vespo with a correction"]
    )

    assert slopes == [pytest.approx(-0.199148 / 2, abs=1e-6)] * 2
    assert metrics["importance/mean"] == pytest.approx(2.0)


def test_bounds_of_a_sequence_hold_within_the_weight_of_vespo():
    # π_old/μ = 2 of the whole sequence
    now, sampled = [math.log(0.5), math.log(0.4)], [math.log(0.25), math.log(0.4)]
    settings = KINDS["vespo with a correction"] | {"importance_cap": 1.5}

    _, capped, metrics = loss_and_slope(now, now, 1.0, sampled, **settings)
    masked = settings | {"importance_correction": "sequence_mask"}
    _, dropped, _ = loss_and_slope(now, now, 1.0, sampled, **masked)

    weight = math.exp(3 + 2 * math.log(1.5) - 3 * 1.5)
    assert capped == [pytest.approx(-weight / 2)] * 2
    assert metrics["importance/mean"] == pytest.approx(1.5)
    assert max(abs(slope) for slope in dropped) < 1e-13


def test_a_rare_token_within_dppos_region_weighs_at_most_the_cap():
    # it moves by 0.01 in probability, and 98,716-fold
    loss, slopes, _ = loss_and_slope(
        [-4.6], [-16.1], 1.0, **KINDS["dppo_tv"] | {"importance_cap": 20.0}
    )

    assert loss == pytest.approx(-20.0)
    assert slopes == [pytest.approx(-20.0)]


def test_the_penalty_on_the_sampler_gap_covers_tokens_without_an_advantage():
    loss, slopes, _ = loss_and_slope(
        [-1.0, -2.0], [-1.0, -2.0], 0.0, [-1.5, -1.8], sampler_penalty=0.1
    )

    assert loss == pytest.approx(0.1 * (0.5**2 + 0.2**2) / 2)
    assert slopes == [pytest.approx(0.1 * 0.5), pytest.approx(0.1 * -0.2)]


def slow_slope(config, now, old, sampled, advantages, mask):
    """-∂L/∂ln π of each token by its formula, token by token, in plain Python."""
    slopes = np.zeros_like(now)
    count = mask.sum()
    for row in range(len(now)):
        own = [t for t in range(now.shape[1]) if mask[row, t]]
        a = advantages[row]
        ratios = {t: math.exp(now[row, t] - old[row, t]) for t in own}
        for t in own:
            r, share = ratios[t], 1 / count
            match config.surrogate:
                case "dppo_tv" | "dppo_kl":
                    p, q = math.exp(now[row, t]), math.exp(old[row, t])
                    far = abs(p - q)
                    if config.surrogate == "dppo_kl":
                        rest = math.log((1 - q + 1e-8) / (1 - p + 1e-8))
                        far = q * math.log(q / p) + (1 - q) * rest
                    out = far > 0.05 if config.surrogate == "dppo_kl" else far > 0.2
                    slope = 0.0 if out and (p - q) * a > 0 else a * r
                case "sapo":
                    tau = 1.0 if a > 0 else 1.05
                    s = 1 / (1 + math.exp(-tau * (r - 1)))
                    slope = a * 4 * s * (1 - s) * r
                case "gmpo":
                    held = {
                        u: min(math.log(ratios[u]), 0.4)
                        if a > 0
                        else max(math.log(ratios[u]), -0.4)
                        for u in own
                    }
                    s = math.exp(sum(held.values()) / len(own))
                    is_held = held[t] != math.log(ratios[t])
                    slope = 0.0 if is_held else a * s / len(own)
                    share = 1 / len(now)
                case "vespo":
                    log_w = sum(math.log(ratios[u]) for u in own)
                    if config.importance_correction:
                        drawn = sum(old[row, u] - sampled[row, u] for u in own)
                        log_w += min(drawn, math.log(config.importance_cap))
                    k, decay = (2, 3) if a >= 0 else (3, 2)
                    slope = a * math.exp(decay + k * log_w - decay * math.exp(log_w))
                case _:
                    is_clipped = r > 1.2 if a > 0 else r < 0.8
                    slope = 0.0 if is_clipped else a * r
                    slope -= 2 * config.sampler_penalty * (now - sampled)[row, t]
            slopes[row, t] = slope * share
    return slopes


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    now, old, sampled = -1.2 + 0.3 * torch.randn(
        3, 4, 5, generator=generator, dtype=torch.float64
    )
    mask = (torch.rand(4, 5, generator=generator) < 0.8).double()
    mask[:, 0] = 1
    advantages = torch.randn(4, generator=generator, dtype=torch.float64)
    return (
        now.clamp(max=-0.05),
        old.clamp(max=-0.05),
        sampled.clamp(max=-0.05),
        mask,
        advantages,
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(5))
def test_the_gradient_is_that_of_a_slow_loop(kind, seed):
    config = LossConfig(**KINDS[kind])
    now, old, sampled, mask, advantages = batch(seed)
    old = sampled if config.is_dppo else old
    now.requires_grad_()

    loss, _ = policy_loss(now, old, advantages, mask, config, sampling_logprobs=sampled)
    (gradient,) = torch.autograd.grad(loss, now)

    expected = slow_slope(
        config,
        *(each.detach().numpy() for each in (now, old, sampled, advantages, mask)),
    )
    torch.testing.assert_close(-gradient, torch.from_numpy(expected))


@pytest.mark.parametrize("kind", KINDS)
def test_where_nothing_has_moved_the_gradient_is_that_of_reinforce(kind):
    now, _, _, mask, advantages = batch(0)
    now.requires_grad_()

    gradients = []
    for settings in (KINDS[kind], KINDS[kind] | {"surrogate": "reinforce"}):
        loss, _ = policy_loss(
            now,
            now.detach(),
            advantages,
            mask,
            LossConfig(**settings),
            sampling_logprobs=now.detach(),
        )
        gradients.append(torch.autograd.grad(loss, now)[0])

    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("kind", KINDS)
def test_a_split_batch_has_the_same_loss_by_any_surrogate(kind):
    config = LossConfig(**KINDS[kind])
    now, old, sampled, mask, advantages = batch(1)
    totals = BatchTotals(num_tokens=int(mask.sum()), num_sequences=4)

    def part(rows):
        loss, _ = objective(
            now[rows],
            old[rows],
            advantages[rows],
            mask[rows],
            config,
            sampling_logprobs=sampled[rows],
            totals=totals,
        )
        return loss.item()

    whole = part(slice(None))

    assert part(slice(0, 3)) + part(slice(3, 4)) == pytest.approx(whole)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("padding", [math.nan, -math.inf])
def test_padding_changes_no_surrogate(kind, padding):
    config = LossConfig(**KINDS[kind])
    now, old, sampled, mask, advantages = batch(2)
    mask[:, -1] = 0

    def loss_with(last):
        filled = [each.clone() for each in (now, old, sampled)]
        for each in filled:
            each[:, -1] = last
        filled[0].requires_grad_()
        loss, metrics = policy_loss(
            filled[0], filled[1], advantages, mask, config, sampling_logprobs=filled[2]
        )
        (gradient,) = torch.autograd.grad(loss, filled[0])
        return loss.item(), gradient[:, :-1], metrics

    loss, gradient, metrics = loss_with(padding)
    expected, usual, plain = loss_with(-1.0)

    assert loss == expected
    assert torch.equal(gradient, usual)
    assert metrics == plain
