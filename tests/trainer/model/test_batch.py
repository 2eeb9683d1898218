"""Which tokens of a batch count, and how it is cut and given its advantages."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.samples import make_batch
from trainer.config import LossConfig
from trainer.data import Prompt, Row
from trainer.events import EndReason
from trainer.model.packing import (
    Batch,
    MicroBatch,
    TrainingSample,
    batch_of,
    set_advantages,
)
from trainer.rewards.scoring import Score
from trainer.types import Group, Rollout, Turn

CPU = torch.device("cpu")


def completion(num_tokens: int, end_reason: EndReason) -> Rollout:
    return Rollout.of_one_turn(
        text="",
        token_ids=tuple(range(20, 20 + num_tokens)),
        logprobs=tuple(-0.1 * (t + 1) for t in range(num_tokens)),
        end_reason=end_reason,
    )


def group(index: int, prompt_ids: tuple[int, ...], *members: Rollout) -> Group:
    row = Row(index=index, prompt="", answer=None, columns={})
    return Group(
        prompt=Prompt(row=row, text="", token_ids=prompt_ids),
        completions=members,
        scores=(),
    )


GROUPS = (
    group(0, (5, 6, 7), completion(3, "stop"), completion(4, "length")),
    group(1, (8, 9), completion(1, "stop"), completion(0, "length")),
)


def whole(**loss: Any) -> tuple[Batch, MicroBatch]:
    """The two groups as one micro-batch, its rows in the batch's order."""
    batch = batch_of(GROUPS, LossConfig(**loss))
    (micro,) = batch.micro_batches(max_tokens=1_000, device=CPU)
    order = sorted(range(4), key=lambda row: micro.members[row])
    for name in ("mask", "completion_mask", "sampling_logprobs", "input_ids"):
        setattr(micro, name, getattr(micro, name)[order])
    return batch, micro


@pytest.mark.parametrize(
    ("loss", "mask", "num_tokens"),
    [
        ({}, [[1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0]], 8),
        (
            {"mask_truncated": True},
            [[1, 1, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]],
            4,
        ),
        (  # a truncated completion has no end token
            {"mask_end_token": True},
            [[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]],
            6,
        ),
        (
            {"mask_truncated": True, "mask_end_token": True},
            [[1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]],
            2,
        ),
        (  # nothing predicts a prompt's first token
            {"include_prompt": True},
            [[1] * 5 + [0], [1] * 6, [1, 1] + [0] * 4, [1] + [0] * 5],
            14,
        ),
        (
            {"include_prompt": True, "mask_truncated": True, "mask_end_token": True},
            [[1] * 4 + [0, 0], [0] * 6, [1] + [0] * 5, [0] * 6],
            5,
        ),
    ],
)
def test_the_mask_follows_the_loss_settings(loss, mask, num_tokens):
    batch, micro = whole(**loss)

    assert micro.mask.tolist() == mask
    assert batch.totals.num_tokens == num_tokens
    assert batch.totals.num_sequences == 4


def test_the_completion_mask_does_not_depend_on_what_is_covered():
    _, plain = whole()
    _, masked = whole(mask_truncated=True, mask_end_token=True)
    _, wide = whole(include_prompt=True)

    assert torch.equal(plain.completion_mask, masked.completion_mask)
    assert plain.completion_mask.sum(dim=1).tolist() == [3, 4, 1, 0]
    assert wide.completion_mask.tolist() == [
        [0, 0, 1, 1, 1, 0],
        [0, 0, 1, 1, 1, 1],
        [0, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
    ]


def test_prompt_tokens_have_no_sampling_logprob():
    _, micro = whole(include_prompt=True)

    first = micro.sampling_logprobs[0]
    assert first[:2].isnan().all()
    assert first[2:].tolist() == pytest.approx([-0.1, -0.2, -0.3, 0.0])


def test_prompt_tokens_get_the_logprobs_of_the_model(policy):
    batch = make_batch(7)
    wide = Batch(batch.samples, loss=LossConfig(include_prompt=True))

    for micro in wide.micro_batches(max_tokens=60, device=CPU):
        found, _ = policy.logprobs(micro, temperature=1.0)

        for row, member in enumerate(micro.members):
            sample = batch.samples[member]
            ids = torch.tensor([[*sample.prompt_ids, *sample.completion_ids]])
            every = policy.model(input_ids=ids).logits[0].log_softmax(-1)
            expected = every[:-1].gather(1, ids[0, 1:, None]).squeeze(1)
            assert torch.allclose(found[row, : len(expected)], expected, atol=1e-5)
            assert not found[row, len(expected) :].any()


def test_old_logprobs_may_be_those_of_sampling():
    for source in ("policy", "sampling"):
        batch = batch_of(GROUPS, LossConfig(old_logprobs=source))
        (micro,) = batch.micro_batches(max_tokens=1_000, device=CPU)

        if source == "policy":
            assert micro.old_logprobs is None
        else:
            assert micro.old_logprobs is not None
            assert torch.equal(micro.old_logprobs, micro.sampling_logprobs)


@pytest.mark.parametrize(
    ("count", "sizes"),
    [
        (1, [12]),
        (2, [5, 7]),
        (3, [2, 4, 6]),
        (5, [2, 3, 1, 4, 2]),
        (9, [2, 3, 1, 4, 2]),
    ],
)
def test_minibatches_are_cut_between_groups(count, sizes):
    samples = make_batch(12).samples
    batch = Batch(samples, group_sizes=(2, 3, 1, 4, 2))

    parts = batch.minibatches(count)

    assert [len(part.samples) for part in parts] == sizes
    assert [sample for part in parts for sample in part.samples] == list(samples)
    assert sum(part.totals.num_tokens for part in parts) == batch.totals.num_tokens
    assert [part.totals.num_sequences for part in parts] == sizes


def test_minibatches_keep_what_counts_and_can_be_cut_again():
    batch = batch_of(GROUPS, LossConfig(mask_truncated=True, mask_end_token=True))

    first, second = batch.minibatches(2)

    assert first.totals.num_tokens == 2
    assert second.totals.num_tokens == 0
    assert second.minibatches(1) == [second]


def test_advantages_find_their_completion_in_a_minibatch():
    batch = batch_of(GROUPS)
    advantages = np.array([[0.1, 0.2], [0.3, 0.4]])

    for part in batch.minibatches(2):
        micro_batches = part.micro_batches(max_tokens=8, device=CPU)
        set_advantages(micro_batches, advantages)

        for micro in micro_batches:
            expected = torch.from_numpy(advantages.ravel()[micro.members]).float()
            assert torch.equal(micro.advantages, expected)
            for row, member in enumerate(micro.members):
                sample = batch.samples[member]
                ids = [*sample.prompt_ids, *sample.completion_ids]
                assert micro.input_ids[row, : len(ids)].tolist() == ids


@pytest.mark.parametrize("include_prompt", [False, True])
def test_token_advantages_find_their_token(*, include_prompt):
    batch = batch_of(GROUPS, LossConfig(include_prompt=include_prompt))
    tokens = [
        np.array([1.0, 2.0, 3.0]),
        np.array([4.0, 5.0, 6.0, 7.0]),
        np.array([8.0]),
        np.zeros(0),
    ]

    found = {}
    for part in batch.minibatches(2):
        micro_batches = part.micro_batches(max_tokens=14, device=CPU)
        set_advantages(micro_batches, tokens)
        for micro in micro_batches:
            assert micro.advantages.shape == micro.mask.shape
            assert not micro.advantages[micro.completion_mask == 0].any()
            for row, member in enumerate(micro.members):
                inside = micro.completion_mask[row] > 0
                found[member] = micro.advantages[row][inside].tolist()

    assert found == {member: each.tolist() for member, each in enumerate(tokens)}


def test_a_completion_alone_is_a_batch():
    sample = TrainingSample(
        prompt_ids=(5,), completion_ids=(7,), sampling_logprobs=(-0.1,)
    )

    assert Batch((sample,)).minibatches(3) == [Batch((sample,), group_sizes=(1,))]


def test_tokens_of_an_environment_are_read_and_not_trained_on():
    turns = (
        Turn(text="a", token_ids=(7, 8), logprobs=(-0.1, -0.2)),
        Turn(author="environment", text="b", token_ids=(5, 5, 6), logprobs=None),
        Turn(text="c", token_ids=(9, 1), logprobs=(-0.3, -0.4)),
    )
    rollout = Rollout(turns=turns, end_reason="stop")
    row = Row(index=0, prompt="", answer=None, columns={})
    group = Group(
        prompt=Prompt(text="", token_ids=(3, 4), row=row),
        completions=(rollout,),
        scores=(Score(1.0, {}, {}),),
    )

    batch = batch_of([group], LossConfig(mask_end_token=True))
    micro = batch.pack([0], device=CPU)

    assert rollout.text == "abc"
    assert rollout.num_policy_tokens == 4
    assert rollout.mean_logprob == pytest.approx(-0.25)
    assert batch.totals.num_tokens == 3
    assert micro.input_ids.tolist() == [[3, 4, 7, 8, 5, 5, 6, 9, 1]]
    assert micro.mask.tolist() == [[1, 1, 0, 0, 0, 1, 0]]
    assert micro.completion_mask.tolist() == [[1, 1, 0, 0, 0, 1, 1]]
    assert micro.sampling_logprobs.isnan().tolist() == [
        [False, False, True, True, True, False, False]
    ]
    assert micro.covered.tolist() == [0, 1, 5]


def test_gradients_of_several_turns_are_those_of_their_own_tokens(policy):
    """The policy's tokens get the log-probs that one turn with all of them would."""
    turns = (
        Turn(text="", token_ids=(7, 8), logprobs=(-0.1, -0.2)),
        Turn(author="environment", text="", token_ids=(5, 6), logprobs=None),
        Turn(text="", token_ids=(9,), logprobs=(-0.3,)),
    )
    row = Row(index=0, prompt="", answer=None, columns={})
    prompt = Prompt(text="", token_ids=(3, 4), row=row)
    several = Rollout(turns=turns, end_reason="length")
    one = Rollout.of_one_turn(
        text="", token_ids=(7, 8, 5, 6, 9), logprobs=(-0.1,) * 5, end_reason="length"
    )
    found = []
    for rollout in (several, one):
        group = Group(
            prompt=prompt, completions=(rollout,), scores=(Score(1.0, {}, {}),)
        )
        micro = batch_of([group]).pack([0], device=CPU)
        found.append(policy.logprobs(micro, temperature=1.0)[0])

    assert torch.equal(*found)
