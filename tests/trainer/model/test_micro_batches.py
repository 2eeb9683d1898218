"""How a batch is cut changes memory and speed, not the result."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, combinations, product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.losses import AGGREGATIONS
from tests.trainer.samples import cut, make_batch
from trainer.algorithm.loss import BatchTotals, objective
from trainer.config import LossConfig
from trainer.model.microbatches import _unweighed
from trainer.model.packing import (
    Batch,
    MicroBatch,
    TrainingSample,
    set_advantages,
    split_by_length,
    split_by_prompt,
)
from trainer.model.policy import Policy

SURROGATES: dict[str, dict[str, Any]] = {
    "clip": {"surrogate": "clip", "dual_clip": 1.5},
    "reinforce": {"surrogate": "reinforce"},
    "gspo": {"surrogate": "gspo"},
    "cispo": {"surrogate": "cispo"},
}
MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "truncated": {"mask_truncated": True},
    "truncated and end": {"mask_truncated": True, "mask_end_token": True},
    "prompt": {"include_prompt": True},
}


def drift(micro: MicroBatch) -> torch.Tensor:
    """[B, T], as far as an earlier policy may be; a token's own, whatever the cut."""
    rows = torch.tensor(micro.members)[:, None]
    return 0.4 * torch.sin(3.0 * rows + 1.7 * torch.arange(micro.mask.shape[1]))


def step_gradient(
    policy: Policy, parts: Sequence[Batch], config: LossConfig, *, max_tokens: int
) -> torch.Tensor:
    """Gradient of a step whose batch, divided by its own totals, comes in parts."""
    num_samples = sum(len(part.samples) for part in parts)
    totals = BatchTotals(
        num_tokens=sum(part.totals.num_tokens for part in parts),
        num_sequences=num_samples,
    )
    advantages = np.linspace(-1, 1, num_samples)[None]
    policy.model.zero_grad()
    for part in parts:
        micro_batches = part.micro_batches(max_tokens=max_tokens, device=policy.device)
        set_advantages(micro_batches, advantages)
        for micro in micro_batches:
            logprobs, entropy = policy.logprobs(micro, temperature=0.8)
            old = logprobs.detach() + drift(micro)
            loss, _ = objective(
                logprobs,
                old,
                micro.advantages,
                micro.mask,
                config,
                logprobs.detach() - 2 * drift(micro),
                sampling_logprobs=old - drift(micro),
                entropy=entropy,
                totals=totals,
            )
            loss.backward()
    return torch.cat(
        [p.grad.flatten() for p in policy.model.parameters() if p.grad is not None]
    )


def step_batch(config: LossConfig) -> Batch:
    """13 completions in groups of 4, 2, 4 and 3; every third one was cut."""
    samples = [
        sample if index % 3 else replace(sample, end_reason="length", end_tokens=())
        for index, sample in enumerate(make_batch(13).samples)
    ]
    return Batch(tuple(samples), loss=config, group_sizes=(4, 2, 4, 3))


SLOW = pytest.mark.slow
# Each mask with each aggregation, and each surrogate with each aggregation.
SPLITS = [
    pytest.param(surrogate, aggregation, masks, marks=() if is_quick else SLOW)
    for surrogate, aggregation, masks in product(SURROGATES, AGGREGATIONS, MASKS)
    for is_quick in [surrogate == "clip" or masks == next(iter(MASKS))]
]


@pytest.mark.parametrize(("surrogate", "aggregation", "masks"), SPLITS)
def test_the_gradient_does_not_depend_on_the_split(
    policy, surrogate, aggregation, masks
):
    policy.model.double()
    config = LossConfig(
        aggregation=aggregation,
        constant_length=9,
        kl_coef=0.1,
        entropy_coef=0.01,
        importance_correction="sequence_truncate",
        **SURROGATES[surrogate],
        **MASKS[masks],
    )
    batch = step_batch(config)

    whole = step_gradient(policy, [batch], config, max_tokens=10_000)

    assert whole.abs().max() > 1e-3
    for max_tokens in (16, 60):
        split = step_gradient(policy, [batch], config, max_tokens=max_tokens)
        assert torch.allclose(split, whole, rtol=1e-9, atol=1e-12)
    # ranks that each hold some groups, their gradients added
    ranks = batch.minibatches(3)
    assert len(ranks) == 3
    shared = step_gradient(policy, ranks, config, max_tokens=40)
    assert torch.allclose(shared, whole, rtol=1e-9, atol=1e-12)


def test_masks_change_the_gradient(policy):
    found = []
    for options in MASKS.values():
        config = LossConfig(**options)
        batch = step_batch(config)
        found.append(step_gradient(policy, [batch], config, max_tokens=10_000))

    for one, other in combinations(found, 2):
        assert (one - other).norm() > 1e-2 * one.norm()


def test_a_masked_token_has_no_gradient(policy):
    config = LossConfig(
        mask_truncated=True, mask_end_token=True, kl_coef=0.1, entropy_coef=0.01
    )
    batch = step_batch(config)
    (micro,) = batch.micro_batches(max_tokens=10_000, device=policy.device)
    set_advantages([micro], np.ones((1, 13)))
    logprobs, entropy = policy.logprobs(micro, temperature=0.8)
    logprobs.retain_grad()

    loss, _ = objective(
        logprobs,
        logprobs.detach(),
        micro.advantages,
        micro.mask,
        config,
        logprobs.detach() - 1,
        entropy=entropy.detach(),
        totals=batch.totals,
    )
    loss.backward()

    assert logprobs.grad is not None
    assert torch.equal(logprobs.grad != 0, micro.mask > 0)
    assert 0 < micro.mask.sum() < micro.completion_mask.sum()


def test_logprobs_equal_those_of_each_sequence_alone(policy):
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


def test_parts_stay_within_the_token_budget():
    lengths = [3, 50, 7, 7, 12, 30, 1, 2]

    parts = split_by_length(lengths, max_tokens=40)

    assert sorted(index for part in parts for index in part) == list(range(8))
    for part in parts:
        padded = len(part) * max(lengths[index] for index in part)
        assert padded <= 40 or len(part) == 1


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "bb", "c" * 9]), st.integers(1, 12)),
        min_size=1,
        max_size=30,
    ),
    st.integers(1, 80),
)
def test_completions_of_a_prompt_stay_together_where_they_can(sequences, max_tokens):
    samples = [
        TrainingSample(
            prompt_ids=tuple(prompt.encode()),
            completion_ids=(1,) * count,
            sampling_logprobs=(0.0,) * count,
        )
        for prompt, count in sequences
    ]

    def size(places: Sequence[int]) -> float:
        chosen = [samples[index] for index in places]
        prompts = {sample.prompt_ids for sample in chosen}
        copies = sum(len(sample.prompt_ids) for sample in chosen) / 4
        return copies + sum(
            map(len, [*prompts, *(sample.completion_ids for sample in chosen)])
        )

    parts = split_by_prompt(samples, max_tokens=max_tokens)

    assert sorted(chain.from_iterable(parts)) == [*range(len(samples))]
    assert [*map(size, parts)] == sorted(map(size, parts), reverse=True)
    for places in parts:
        assert size(places) <= max_tokens or len(places) == 1
    for prompt in {sample.prompt_ids for sample in samples}:
        own = [k for k, sample in enumerate(samples) if sample.prompt_ids == prompt]
        if size(own) <= max_tokens:
            assert sum(any(k in part for k in own) for part in parts) == 1


def test_advantages_follow_their_completion(policy):
    batch = make_batch(6)

    for micro in cut(batch, policy, max_tokens=40):
        expected = torch.linspace(-1, 1, 6)[micro.members]
        assert torch.allclose(micro.advantages, expected)


@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS)
def test_covered_places_are_those_of_the_mask(masks):
    samples = make_batch(9).samples
    batch = Batch(
        tuple(
            sample if index % 3 else replace(sample, end_reason="length", end_tokens=())
            for index, sample in enumerate(samples)
        ),
        loss=LossConfig(**masks),
    )

    for micro in batch.micro_batches(max_tokens=60, device=torch.device("cpu")):
        expected = micro.mask.flatten().nonzero().squeeze(1)
        assert torch.equal(micro.covered, expected)
        assert len(_unweighed(micro).covered) == 0
        written = torch.zeros_like(micro.mask)
        for row, tokens in enumerate(micro.completions):
            written[row, tokens] = 1
        assert torch.equal(written, micro.completion_mask)
