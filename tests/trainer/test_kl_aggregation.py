"""The KL may be averaged otherwise than the token losses."""

from __future__ import annotations

import pytest
import torch

from trainer.algorithm.loss import BatchTotals, objective, policy_loss
from trainer.config import LossConfig, OptimConfig

MASK = torch.tensor([[1.0, 1, 1], [1, 0, 0]])
# k1 is 1, 2, 3 and 4.
REFERENCE = torch.tensor([[-1.0, -2, -3], [-4, 9, 9]])


def loss_of(**options: object) -> float:
    logprobs = torch.zeros(2, 3)
    config = LossConfig.model_validate(
        {"surrogate": "reinforce", "kl_estimator": "k1", "kl_coef": 0.5, **options}
    )
    advantages = torch.tensor([1.0, 1.0])
    loss, _ = policy_loss(logprobs, logprobs, advantages, MASK, config, REFERENCE)
    return loss.item()


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token_mean", (1 + 2 + 3 + 4) / 4),
        ("sequence_mean_token_mean", (2 + 4) / 2),
        ("sequence_mean_token_sum", (6 + 4) / 2),
    ],
)
def test_the_kl_follows_its_own_aggregation(aggregation: str, expected: float) -> None:
    found = loss_of(
        aggregation="constant", constant_length=7, kl_aggregation=aggregation
    )

    assert found == pytest.approx(0.5 * expected)


@pytest.mark.parametrize(
    "aggregation",
    ["token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum"],
)
def test_without_one_it_follows_the_losses(aggregation: str) -> None:
    assert loss_of(aggregation=aggregation) == loss_of(
        aggregation=aggregation, kl_aggregation=aggregation
    )


def test_parts_of_a_batch_add_up() -> None:
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


def test_no_gradient_clipping_can_be_said_in_toml() -> None:
    assert OptimConfig.model_validate({"max_grad_norm": "none"}).max_grad_norm is None
    with pytest.raises(ValueError, match="valid number"):
        OptimConfig.model_validate({"max_grad_norm": "never"})
