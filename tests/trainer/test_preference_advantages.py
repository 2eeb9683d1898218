"""DPO's gradient as advantages of each group's best and worst completion."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from trainer.algorithm.advantages import Floats, preference_advantages
from trainer.algorithm.loss import policy_loss
from trainer.config import LossConfig

NAN = math.nan


def doubles(*rows: list[float]) -> Floats:
    return np.array(rows, dtype=np.float64)


def test_a_pairs_pull_is_dpos_coefficient() -> None:
    # log-ratios -0.2 of the winner and 0.3 of the loser
    found, loss = preference_advantages(
        doubles([-1.2, -0.7]), doubles([-1.0, -1.0]), doubles([1.0, 0.0]), 0.1
    )

    assert found[0].tolist() == pytest.approx([0.05124974, -0.05124974], abs=1e-8)
    assert loss == pytest.approx(-math.log(1 - 0.51249740), abs=1e-7)


def test_the_first_of_the_best_meets_the_last_of_the_worst() -> None:
    rewards = doubles(
        [1, 2, 2, 0, 0, 1],
        [NAN, 5, NAN, 1, NAN, 3],
        [4, 4, 4, 4, 4, 4],
        [NAN, 3, NAN, NAN, NAN, NAN],
        [NAN] * 6,
    )
    zeros = np.zeros_like(rewards)

    found, loss = preference_advantages(zeros, zeros, rewards, 2.0)

    # at equal log-ratios σ is a half
    assert found.tolist() == [
        [0, 1, 0, 0, -1, 0],
        [0, 1, 0, -1, 0, 0],
        [0] * 6,
        [0] * 6,
        [0] * 6,
    ]
    assert loss == pytest.approx(math.log(2))


def test_without_pairs_there_is_no_loss() -> None:
    zeros = np.zeros((2, 3))

    found, loss = preference_advantages(zeros, zeros, zeros, 0.1)

    assert found.dtype == np.float64
    assert loss == 0.0
    assert not found.any()


def test_a_hopeless_pair_has_a_finite_loss() -> None:
    found, loss = preference_advantages(
        doubles([-9000.0, 0.0]), doubles([0.0, 0.0]), doubles([1.0, 0.0]), 1.0
    )

    assert found.tolist() == [[1.0, -1.0]]
    assert loss == pytest.approx(9000)


def test_reinforce_with_a_pairs_advantages_has_dpos_gradient() -> None:
    """Against autograd through -log σ(m) itself, over tokens of unequal number."""
    torch.manual_seed(3)
    num_groups, group_size, num_tokens, beta = 3, 4, 5, 0.3
    logprobs = -torch.rand(num_groups * group_size, num_tokens).double()
    logprobs.requires_grad_()
    reference = -torch.rand(num_groups * group_size, num_tokens).double()
    lengths = torch.arange(num_groups * group_size) % num_tokens + 1
    mask = (torch.arange(num_tokens) < lengths[:, None]).double()
    rewards = doubles([0, 1, 2, NAN], [3, 3, 3, 3], [1, 0, NAN, 0.5])
    pairs = [((0, 2), (0, 0)), ((2, 0), (2, 1))]

    ratios = ((logprobs - reference) * mask).sum(dim=1).view(num_groups, group_size)
    margins = torch.stack(
        [beta * (ratios[best] - ratios[worst]) for best, worst in pairs]
    )
    direct = -margins.sigmoid().log().mean()
    (expected,) = torch.autograd.grad(direct, logprobs)

    found, loss = preference_advantages(
        (logprobs * mask).sum(dim=1).view(num_groups, group_size).detach().numpy(),
        (reference * mask).sum(dim=1).view(num_groups, group_size).numpy(),
        rewards,
        beta,
    )
    surrogate, _ = policy_loss(
        logprobs,
        logprobs.detach(),
        torch.from_numpy(found).flatten(),
        mask,
        LossConfig(
            surrogate="reinforce", aggregation="sequence_mean_token_sum", kl_coef=0.0
        ),
    )
    (gradient,) = torch.autograd.grad(surrogate, logprobs)

    assert loss == pytest.approx(direct.item())
    # divided by all sequences, where DPO divides by pairs
    per_pair = gradient * (num_groups * group_size) / len(pairs)
    assert torch.allclose(per_pair, expected, rtol=1e-10, atol=1e-14)
