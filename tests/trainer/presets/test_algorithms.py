"""Each preset is its system's algorithm to the last digit.

Beside each stands that system's advantage and loss as it publishes them, written in
numpy without a look at the engine, for one batch that meets the odd cases: completions
of different length, groups of different spread, ratios and gaps to the reference far
out of all bounds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.losses import policy_loss
from trainer.algorithm.advantages import group_advantages, process_advantages
from trainer.config import RunConfig
from trainer.presets.preset import load_preset, preset_names

Array = np.ndarray[Any, np.dtype[np.float64]]
P, G, T = 3, 4, 6


@dataclass(frozen=True)
class Numbers:
    """Three groups of four completions of up to six tokens; [P·G, T] and [P, G]."""

    logp: Array
    old: Array
    ref: Array
    sampling: Array
    mask: Array
    rewards: Array

    @property
    def lengths(self) -> Array:
        return self.mask.sum(axis=1)


def numbers(rewards: list[list[float]]) -> Numbers:
    chance = np.random.default_rng(7)
    lengths = chance.integers(1, T + 1, size=P * G)
    mask = (np.arange(T) < lengths[:, None]).astype(float)
    logp = -chance.exponential(1.0, size=(P * G, T))
    old = logp + chance.normal(0, 0.3, size=logp.shape)
    ref = logp + chance.normal(0, 0.5, size=logp.shape)
    # Ratios of e^2 and e^-2 for both signs of the advantage, and a gap of 5 nats,
    # whose k3 is 142.
    old[:, 0] = logp[:, 0] + np.where(np.arange(P * G) % 2, 2.0, -2.0)
    ref[3, 0] = logp[3, 0] + 5.0
    # The rollout engine disagrees with the trainer: by e^2 and e^-1 on last tokens.
    sampling = old + chance.normal(0, 0.3, size=logp.shape)
    last, rows = lengths - 1, np.arange(P * G)
    sampling[rows, last] = old[rows, last] + np.where(rows % 3, 1.0, -2.0)
    return Numbers(logp, old, ref, sampling, mask, np.array(rewards))


SPREAD = [[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.25, 0.0], [-2.0, 2.25, 0.0, 0.25]]
WITH_A_DEAD_GROUP = [SPREAD[0], [0.1, 0.1, 0.1, 0.1], SPREAD[2]]


def z_scores(rewards: Array, *, ddof: int, eps: float) -> Array:
    spread = rewards.std(axis=1, ddof=ddof, keepdims=True)
    return (rewards - rewards.mean(axis=1, keepdims=True)) / (spread + eps)


def k3(n: Numbers) -> Array:
    return np.exp(n.ref - n.logp) - (n.ref - n.logp) - 1


def clipped(n: Numbers, a: Array, low: float, high: float) -> Array:
    """PPO's objective of each token, to be maximised."""
    ratio = np.exp(n.logp - n.old)
    return np.minimum(ratio * a, np.clip(ratio, 1 - low, 1 + high) * a)


def mean_of_completion_means(n: Numbers, per_token: Array) -> float:
    return float(((per_token * n.mask).sum(axis=1) / n.lengths).mean())


def mean_of_tokens(n: Numbers, per_token: Array) -> float:
    return float((per_token * n.mask).sum() / n.mask.sum())


def rlox(n: Numbers) -> tuple[Array, float]:
    spread = n.rewards.std(axis=1, keepdims=True)
    centred = n.rewards - n.rewards.mean(axis=1, keepdims=True)
    a = np.where(spread < 1e-8, 0.0, centred / np.where(spread < 1e-8, 1.0, spread))
    completion_logp = (n.logp * n.mask).sum(axis=1)
    kl = ((n.logp - n.ref) * n.mask).sum() / n.mask.sum()
    return a, float(-(a.ravel() * completion_logp).mean() + 0.1 * kl)


def rlox_code(n: Numbers) -> tuple[Array, float]:
    a, _ = rlox(n)
    completion_logp = (n.logp * n.mask).sum(axis=1)
    kl = ((n.logp - n.ref) * n.mask).sum(axis=1).mean()
    return a, float(-(a.ravel() * completion_logp).mean() + 0.1 * kl)


def nano_aha_moment(n: Numbers) -> tuple[Array, float]:
    a = z_scores(n.rewards, ddof=0, eps=1e-4)
    losses = -n.logp * a.reshape(-1, 1) + 0.001 * k3(n)
    return a, float((losses * n.mask).sum() / n.mask.sum())


def grpo_zero(n: Numbers) -> tuple[Array, float]:
    a = z_scores(n.rewards, ddof=0, eps=1e-4)
    objective = n.logp * a.reshape(-1, 1)
    return a, float(-(objective * n.mask).sum() / n.mask.sum())


def simple_grpo(n: Numbers) -> tuple[Array, float]:
    a = z_scores(n.rewards, ddof=1, eps=1e-4)
    losses = -(clipped(n, a.reshape(-1, 1), 0.2, 0.2) - 0.04 * k3(n))
    return a, mean_of_completion_means(n, losses)


def lm_book(n: Numbers) -> tuple[Array, float]:
    a = z_scores(n.rewards, ddof=1, eps=1e-4)
    losses = -(clipped(n, a.reshape(-1, 1), 0.1, 0.1) - 0.04 * k3(n))
    return a, mean_of_completion_means(n, losses)


def verl(n: Numbers) -> tuple[Array, float]:
    a = z_scores(n.rewards, ddof=1, eps=1e-6)
    weight = a.reshape(-1, 1)
    ratio = np.exp(np.clip(n.logp - n.old, -20, 20))
    losses = np.maximum(-weight * ratio, -weight * np.clip(ratio, 0.8, 1.2))
    losses = np.where(weight < 0, np.minimum(losses, -weight * 3.0), losses)
    kl = np.clip(k3(n), -10, 10)
    return a, mean_of_tokens(n, losses) + 0.001 * mean_of_tokens(n, kl)


def deepseekmath_outcome(n: Numbers) -> tuple[Array, float]:
    spread = n.rewards.std(axis=1, ddof=1, keepdims=True)
    centred = n.rewards - n.rewards.mean(axis=1, keepdims=True)
    a = np.divide(centred, spread, out=np.zeros_like(centred), where=spread > 1e-12)
    return a, deepseekmath_loss(n, a.reshape(-1, 1))


def deepseekmath_loss(n: Numbers, a: Array) -> float:
    return -mean_of_completion_means(n, clipped(n, a, 0.2, 0.2) - 0.04 * k3(n))


def trl(n: Numbers) -> tuple[Array, float]:
    a = z_scores(n.rewards, ddof=1, eps=1e-4)
    return a, -mean_of_tokens(n, clipped(n, a.reshape(-1, 1), 0.2, 0.2))


def open_r1(n: Numbers) -> tuple[Array, float]:
    a = z_scores(n.rewards, ddof=1, eps=1e-4)
    losses = -clipped(n, a.reshape(-1, 1), 0.2, 0.2) + 0.04 * k3(n)
    return a, mean_of_tokens(n, losses)


def dapo(n: Numbers) -> tuple[Array, float]:
    a = z_scores(n.rewards, ddof=1, eps=1e-6)
    return a, -mean_of_tokens(n, clipped(n, a.reshape(-1, 1), 0.2, 0.28))


def dr_grpo(n: Numbers) -> tuple[Array, float]:
    a = n.rewards - n.rewards.mean(axis=1, keepdims=True)
    objective = clipped(n, a.reshape(-1, 1), 0.2, 0.2) * n.mask
    return a, float(-(objective.sum(axis=1) / 3000).mean())


def online_rft(n: Numbers) -> tuple[Array, float]:
    a = (n.rewards >= 1).astype(float)
    return a, -mean_of_completion_means(n, n.logp * a.reshape(-1, 1))


def sequence_ratio(n: Numbers) -> Array:
    """The geometric mean of a completion's ratios, [P·G]."""
    return np.exp(((n.logp - n.old) * n.mask).sum(axis=1) / n.lengths)


def of_sequences(n: Numbers, a: Array, low: float, high: float) -> Array:
    ratio, weight = sequence_ratio(n), a.ravel()
    return np.maximum(-weight * ratio, -weight * np.clip(ratio, 1 - low, 1 + high))


def gspo(n: Numbers) -> tuple[Array, float]:
    a = z_scores(n.rewards, ddof=1, eps=1e-6)
    return a, float(of_sequences(n, a, 3e-4, 4e-4).mean())


def luspo(n: Numbers) -> tuple[Array, float]:
    a = z_scores(n.rewards, ddof=1, eps=1e-4)
    return a, float((of_sequences(n, a, 2e-3, 2.5e-3) * n.lengths).mean())


def cispo(n: Numbers) -> tuple[Array, float]:
    a = z_scores(n.rewards, ddof=1, eps=1e-6)
    weight = np.clip(np.exp(n.logp - n.old), 1 - 10, 1 + 0.2)
    losses = -weight * a.reshape(-1, 1) * n.logp
    kl = np.clip(k3(n), -10, 10)
    return a, mean_of_tokens(n, losses) + 0.001 * mean_of_tokens(n, kl)


def opo(n: Numbers) -> tuple[Array, float]:
    lengths = n.lengths.reshape(P, G)
    baseline = (lengths * n.rewards).sum(axis=1) / lengths.sum(axis=1)
    a = n.rewards - baseline[:, None]
    a[np.ptp(n.rewards, axis=1) == 0] = 0.0  # which a rounded baseline is not
    return a, -mean_of_tokens(n, clipped(n, a.reshape(-1, 1), 0.2, 0.2))


def icepop(n: Numbers) -> tuple[Array, float]:
    a = z_scores(n.rewards, ddof=1, eps=1e-6)
    k = np.exp(n.old - n.sampling)
    kept = np.where((k >= 0.5) & (k <= 5.0), k, 0.0)
    objective = kept * clipped(n, a.reshape(-1, 1), 0.2, 0.2)
    return a, -mean_of_completion_means(n, objective)


def deepseek_v32(n: Numbers) -> tuple[Array, float]:
    a = n.rewards - n.rewards.mean(axis=1, keepdims=True)
    divergence = ((n.sampling - n.logp) * n.mask).sum(axis=1) / n.lengths
    kept = np.where((a.ravel() < 0) & (divergence > 0.5), 0.0, 1.0).reshape(-1, 1)
    kl = np.exp(n.logp - n.old) * k3(n)
    objective = clipped(n, a.reshape(-1, 1), 10.0, 10.0) * kept - 0.001 * kl
    return a, -mean_of_completion_means(n, objective)


def sapo(n: Numbers) -> tuple[Array, float]:
    a = z_scores(n.rewards, ddof=1, eps=1e-6)
    weight = a.reshape(-1, 1)
    tau = np.where(weight > 0, 1.0, 1.05)
    gate = 4 / tau / (1 + np.exp(-tau * (np.exp(n.logp - n.old) - 1)))
    return a, -mean_of_completion_means(n, gate * weight)


def dppo_objective(n: Numbers, a: Array, bound: float) -> Array:
    moved = np.exp(n.logp) - np.exp(n.sampling)
    leaves = np.where(a > 0, moved > bound, moved < -bound)
    return np.where(leaves, 0.0, np.exp(n.logp - n.sampling) * a)


def dppo(n: Numbers) -> tuple[Array, float]:
    a = n.rewards - n.rewards.mean(axis=1, keepdims=True)
    objective = dppo_objective(n, a.reshape(-1, 1), 0.15) * n.mask
    return a, float(-(objective.sum(axis=1) / 8192).mean())


def dppo_of_prime_rl(n: Numbers) -> tuple[Array, float]:
    a, _ = dppo(n)
    losses = -dppo_objective(n, a.reshape(-1, 1), 0.2)
    return a, mean_of_tokens(n, losses + 1e-3 * (n.logp - n.sampling) ** 2)


PUBLISHED: dict[str, Callable[[Numbers], tuple[Array, float]]] = {
    "rlox": rlox,
    "nano-aha-moment": nano_aha_moment,
    "grpo-zero": grpo_zero,
    "simple-grpo": simple_grpo,
    "lm-book": lm_book,
    "verl": verl,
    "deepseekmath-outcome": deepseekmath_outcome,
    "trl": trl,
    "open-r1": open_r1,
    "dapo": dapo,
    "dr-grpo": dr_grpo,
    "online-rft": online_rft,
    "gspo": gspo,
    "luspo": luspo,
    "cispo": cispo,
    "opo": opo,
    "icepop": icepop,
    "deepseek-v32": deepseek_v32,
    "sapo": sapo,
    "dppo": dppo,
}


def config_of(name: str, **changes: Any) -> RunConfig:
    return load_preset(name).config(model="m", rows="r", changes=changes)


def engine_loss(config: RunConfig, n: Numbers, advantages: Array) -> float:
    is_sampling = config.loss.old_logprobs == "sampling"
    loss, _ = policy_loss(
        torch.from_numpy(n.logp),
        torch.from_numpy(n.sampling if is_sampling else n.old),
        torch.from_numpy(advantages),
        torch.from_numpy(n.mask),
        config.loss_of_run,
        torch.from_numpy(n.ref) if config.loss.kl_coef else None,
        sampling_logprobs=torch.from_numpy(n.sampling),
    )
    return loss.item()


def check(config: RunConfig, n: Numbers, published: tuple[Array, float]) -> None:
    lengths = n.lengths.reshape(P, G)
    advantages = group_advantages(n.rewards, config.advantage, lengths=lengths)

    np.testing.assert_allclose(advantages, published[0], rtol=0, atol=1e-9)
    loss = engine_loss(config, n, advantages.flatten())
    assert loss == pytest.approx(published[1], rel=0, abs=1e-9)
    assert abs(loss) > 1e-5  # or any two would agree


def test_every_preset_is_checked():
    elsewhere = {"deepseekmath-process", "lora-without-regret", *TAUGHT}
    assert {*PUBLISHED, *elsewhere} >= set(preset_names())


TAUGHT = ["distillation", "opsd", "sdpo"]


@pytest.mark.parametrize("name", TAUGHT)
def test_teachers_have_the_gradient_of_the_gap_as_an_advantage(name):
    """tinker's loss: -Σ sg(r)·A·ln π with A = -(ln π - ln q), here as a token mean."""
    config = config_of(name)
    n = numbers(SPREAD)
    logp = torch.from_numpy(n.logp).requires_grad_()
    reference, mask = torch.from_numpy(n.ref), torch.from_numpy(n.mask)
    old = torch.from_numpy(n.old)

    loss, _ = policy_loss(
        logp,
        old,
        torch.zeros(len(n.logp), dtype=torch.float64),
        mask,
        config.loss_of_run,
        reference,
    )
    loss.backward()

    now = logp.detach()
    expected = mask * (now - old).exp() * (now - reference) / mask.sum()
    assert config.advantage.weight == 0
    torch.testing.assert_close(logp.grad, expected, rtol=0, atol=1e-12)


def test_lora_without_regret_is_trls_algorithm():
    ours, trls = config_of("lora-without-regret"), config_of("trl")

    assert ours.advantage == trls.advantage
    assert ours.loss == trls.loss
    assert ours.model.lora_rank == 1
    assert ours.optim.learning_rate == pytest.approx(10 * trls.optim.learning_rate)


def test_a_single_completion_of_opo_has_its_reward():
    config = config_of("opo").advantage

    found = group_advantages(np.array([[0.7]]), config, lengths=np.array([[9.0]]))

    assert found.item() == 0.7


@pytest.mark.parametrize("rewards", [SPREAD, WITH_A_DEAD_GROUP], ids=["all", "dead"])
@pytest.mark.parametrize("name", PUBLISHED)
def test_advantage_and_loss_are_the_published_ones(name, rewards):
    n = numbers(rewards)

    check(config_of(name), n, PUBLISHED[name](n))


def test_rlox_can_be_had_as_it_is_coded():
    n = numbers(SPREAD)
    config = config_of("rlox", loss={"kl_aggregation": "sequence_mean_token_sum"})

    check(config, n, rlox_code(n))
    assert abs(rlox(n)[1] - rlox_code(n)[1]) > 1e-3


def test_dppo_can_be_had_as_prime_rl_has_it():
    n = numbers(SPREAD)
    bounds = {"clip_low": 0.2, "clip_high": 0.2}
    rest = {"sampler_penalty": 1e-3, "aggregation": "token_mean"}

    check(config_of("dppo", loss=bounds | rest), n, dppo_of_prime_rl(n))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("verl", {"dual_clip": None}),
        ("verl", {"kl_clamp": None}),
        ("icepop", {"importance_floor": None}),
        ("icepop", {"importance_cap": 100.0}),
        ("deepseek-v32", {"off_policy_mask": None}),
        ("deepseek-v32", {"off_policy_mask": 1.0}),
        ("deepseek-v32", {"kl_ratio": False}),
        ("sapo", {"sapo_tau_negative": 1.0}),
        ("dppo", {"clip_low": 1.0}),
        ("dppo", {"clip_high": 1.0}),
    ],
)
def test_the_batch_meets_each_bound(name, change):
    n = numbers(SPREAD)
    config = config_of(name, loss=change)

    advantages = group_advantages(n.rewards, config.advantage).flatten()

    difference = abs(engine_loss(config, n, advantages) - PUBLISHED[name](n)[1])
    assert difference > (1e-6 if name == "dppo" else 1e-4)  # which divides by 8,192


def test_the_batch_separates_the_presets():
    """Else presets that differ in a bound would agree on it."""
    n = numbers(SPREAD)

    losses = {round(published(n)[1], 6) for published in PUBLISHED.values()}

    assert len(losses) == len(PUBLISHED)


def test_process_supervision_sums_later_steps():
    """Section 4.1.3: step rewards of a whole group are compared, then summed."""
    n = numbers(SPREAD)
    config = config_of("deepseekmath-process")
    chance = np.random.default_rng(3)
    published = np.zeros_like(n.logp)
    found = np.zeros((P * G, T))
    for group in range(P):
        rows = range(group * G, group * G + G)
        lengths = [int(n.lengths[row]) for row in rows]
        # the last step ends with the completion
        ends = [sorted({max(1, length // 2), length}) for length in lengths]
        rewards = [list(chance.integers(0, 3, size=len(each)) / 2.0) for each in ends]

        pooled = np.array([reward for each in rewards for reward in each])
        normalised = (pooled - pooled.mean()) / pooled.std(ddof=1)
        left = iter(normalised)
        for row, own_ends in zip(rows, ends, strict=True):
            for end, value in [(end, next(left)) for end in own_ends]:
                for t in range(T):
                    if end >= t + 1:  # steps count tokens from 1, as the paper does
                        published[row, t] += value
        tokens = process_advantages(rewards, ends, lengths, config.advantage)
        for row, own in zip(rows, tokens, strict=True):
            found[row, : len(own)] = own

    np.testing.assert_allclose(found, published, rtol=0, atol=1e-9)
    loss = engine_loss(config, n, found)
    assert loss == pytest.approx(deepseekmath_loss(n, published), rel=0, abs=1e-9)


def test_verl_credits_a_single_completion_with_its_reward():
    config = config_of("verl").advantage

    assert group_advantages(np.array([[0.7]]), config).item() == pytest.approx(0.7)


def test_known_z_scores():
    """[1, 0, 0, 0] under each convention, worked out by hand."""
    first = {
        "rlox": 1.7320508076,
        "trl": 1.49970006,
        "verl": 1.49999700,
        "dr-grpo": 0.75,
        "deepseekmath-outcome": 1.5,
        "online-rft": 1.0,
    }

    for name, expected in first.items():
        rewards = np.array([[1.0, 0.0, 0.0, 0.0]])
        found = group_advantages(rewards, config_of(name).advantage)[0, 0].item()
        assert found == pytest.approx(expected, abs=1e-8), name
