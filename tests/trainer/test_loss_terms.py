"""What is added to the surrogate: importance weights, entropy bonus, KL."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trainer.config import LossConfig
from trainer.losses import policy_loss


def corrected(kind: str) -> tuple[float, dict[str, float]]:
    """Loss of tokens with importance weights 2, 4 and (second sequence) 0.5."""
    old = torch.zeros(2, 2).double()
    sampling = -torch.log(torch.tensor([[2.0, 4.0], [0.5, 9.0]])).double()
    loss, metrics = policy_loss(
        old,
        old,
        torch.tensor([1.0, 1.0]),
        torch.tensor([[1, 1], [1, 0]]),
        LossConfig(importance_correction=kind),  # type: ignore[arg-type]
        sampling_logprobs=sampling,
    )
    return -loss.item() * 3, metrics


@pytest.mark.parametrize(
    ("kind", "weights"),
    [
        ("token_truncate", 2 + 3 + 0.5),
        ("token_mask", 2 + 0 + 0.5),
        ("sequence_truncate", 3 + 3 + 0.5),
        ("sequence_mask", 0 + 0 + 0.5),
    ],
)
def test_importance_correction(kind: str, weights: float) -> None:
    total, _ = corrected(kind)

    assert total == pytest.approx(weights)


def test_masked_tokens_are_counted() -> None:
    _, metrics = corrected("sequence_mask")

    assert metrics["importance/frac_masked"] == pytest.approx(2 / 3)


def test_the_entropy_bonus_lowers_the_loss() -> None:
    loss, _ = policy_loss(
        torch.zeros(1, 2),
        torch.zeros(1, 2),
        torch.tensor([0.0]),
        torch.ones(1, 2),
        LossConfig(entropy_coef=0.5),
        entropy=torch.tensor([[1.0, 3.0]]),
    )

    assert loss.item() == pytest.approx(-1.0)


def test_kl_in_the_reward_is_left_out_of_the_loss() -> None:
    loss, metrics = policy_loss(
        torch.zeros(1, 2),
        torch.zeros(1, 2),
        torch.tensor([0.0]),
        torch.ones(1, 2),
        LossConfig(kl_coef=0.5, kl_in="reward"),
        torch.ones(1, 2),
    )

    assert loss.item() == 0.0
    assert metrics["kl/mean"] > 0


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"kl_coef": 0.1}, "reference"),
        ({"entropy_coef": 0.1}, "entropy"),
        ({"importance_correction": "token_mask"}, "log-probs of sampling"),
    ],
)
def test_what_a_setting_needs_must_be_given(
    options: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        policy_loss(
            torch.zeros(1, 2),
            torch.zeros(1, 2),
            torch.zeros(1),
            torch.ones(1, 2),
            LossConfig(**options),
        )
