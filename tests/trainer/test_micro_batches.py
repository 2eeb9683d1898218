"""How a batch is cut changes memory and speed, not the result."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.trainer.samples import cut, make_batch
from trainer.batch import split_by_length
from trainer.config import LossConfig
from trainer.losses import objective
from trainer.policy import Policy


def gradient(policy: Policy, max_tokens: int, config: LossConfig) -> torch.Tensor:
    batch = make_batch(13)
    policy.model.zero_grad()
    for micro in cut(batch, policy, max_tokens=max_tokens):
        logprobs, entropy = policy.logprobs(micro, temperature=0.8)
        loss, _ = objective(
            logprobs,
            logprobs.detach() - 0.1,
            micro.advantages,
            micro.mask,
            config,
            logprobs.detach() + 0.2,
            entropy=entropy,
            totals=batch.totals,
        )
        loss.backward()
    return torch.cat(
        [p.grad.flatten() for p in policy.model.parameters() if p.grad is not None]
    )


@pytest.mark.parametrize(
    "aggregation",
    ["token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum"],
)
def test_the_gradient_does_not_depend_on_the_split(
    policy: Policy, aggregation: Any
) -> None:
    config = LossConfig(aggregation=aggregation, kl_coef=0.1, entropy_coef=0.01)

    whole = gradient(policy, 10_000, config)

    assert whole.abs().max() > 1e-3
    for max_tokens in (16, 40, 100):
        split = gradient(policy, max_tokens, config)
        assert torch.allclose(split, whole, rtol=1e-4, atol=1e-6)


def test_logprobs_equal_those_of_each_sequence_alone(policy: Policy) -> None:
    batch = make_batch(9)
    for micro in cut(batch, policy, max_tokens=60):
        found, _ = policy.logprobs(micro, temperature=1.0)

        for row, member in enumerate(micro.members):
            sample = batch.samples[member]
            ids = torch.tensor([[*sample.prompt_ids, *sample.completion_ids]])
            every = policy.model(input_ids=ids).logits[0].log_softmax(-1)
            first = len(sample.prompt_ids)
            expected = torch.stack(
                [
                    every[first + t - 1, token]
                    for t, token in enumerate(sample.completion_ids)
                ]
            )
            assert torch.allclose(found[row, : len(expected)], expected, atol=1e-5)
            assert not found[row, len(expected) :].any()


def test_parts_stay_within_the_token_budget() -> None:
    lengths = [3, 50, 7, 7, 12, 30, 1, 2]

    parts = split_by_length(lengths, max_tokens=40)

    assert sorted(place for part in parts for place in part) == list(range(8))
    for part in parts:
        padded = len(part) * max(lengths[place] for place in part)
        assert padded <= 40 or len(part) == 1


def test_advantages_follow_their_completion(policy: Policy) -> None:
    batch = make_batch(6)

    for micro in cut(batch, policy, max_tokens=40):
        expected = torch.linspace(-1, 1, 6)[micro.members]
        assert torch.allclose(micro.advantages, expected)
