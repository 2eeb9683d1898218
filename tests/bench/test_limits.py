"""The least time of a step: by hand, by counting one token after another."""

from __future__ import annotations

import pytest

from tests.bench.limits import (
    Rates,
    bytes_per_position,
    forward_flops,
    generation_seconds,
    scoring_seconds,
    update_seconds,
)
from tests.bench.work import Lengths
from trainer.dimensions import Dimensions

# A layer's linear maps have 64 + 32 + 32 + 64 + 3 · 128 = 576 weights, both layers
# 1,152, the output embedding 800. A token's keys and values are 2 · 2 · 4 = 16 numbers.
SIZES = Dimensions(
    layers=2,
    hidden=8,
    heads=2,
    kv_heads=1,
    head_size=4,
    inner=16,
    vocabulary=100,
    positions=0,
    is_gated=True,
    is_tied=True,
)
ONE = Lengths(prompts=(3,), groups=((2, 1),))
MANY = Lengths(prompts=(3, 5), groups=((4, 1, 2), (3, 3, 7)))


def slow_forward_flops(sizes: Dimensions, lengths: Lengths) -> int:
    """Product by product: every token through every map, and to all before it."""
    flops = 0
    for prompt, group in zip(lengths.prompts, lengths.groups, strict=True):
        contexts = [place + 1 for place in range(prompt)]
        for n in group:
            contexts += [prompt + place + 1 for place in range(n - 1)]
            flops += n * 2 * sizes.vocabulary * sizes.hidden
        for context in contexts:
            for _ in range(sizes.layers):
                maps = sizes.linear_layers.values()
                flops += sum(2 * inputs * outputs for inputs, outputs in maps)
                one_way = sizes.heads * context * 2 * sizes.head_size
                flops += 2 * one_way  # queries with keys, weights with values
    return flops


def test_a_forward_pass_by_hand() -> None:
    # Tokens: 3 of the prompt, 1 of the first completion. Predicted: 3. Pairs: the
    # prompt's 1 + 2 + 3, and 4 of the completion's token.
    by_hand = 2 * 1_152 * 4 + 2 * 800 * 3 + 4 * (2 * 8) * 10

    assert forward_flops(SIZES, ONE) == by_hand == 14_656


def test_a_forward_pass_counted_slowly() -> None:
    assert forward_flops(SIZES, MANY) == slow_forward_flops(SIZES, MANY)


def test_an_update_is_three_forward_passes_and_a_reference_one() -> None:
    rates = Rates(matrix=1_000.0, read=1.0)

    assert update_seconds(SIZES, ONE, rates) == pytest.approx(3 * 14.656)
    assert scoring_seconds(SIZES, ONE, rates) == pytest.approx(14.656)


def test_sampling_that_reading_bounds_by_hand() -> None:
    # Position 0 reads the 1,952 weights; position 1 as well, and 4 tokens' 16 numbers.
    rates = Rates(matrix=1e12, read=1_000.0)

    seconds = generation_seconds(SIZES, ONE, rates, bytes_each=2)

    assert seconds == pytest.approx(2 * (1_952 + 1_952 + 4 * 16) / 1_000)
    assert bytes_per_position(SIZES, ONE, bytes_each=2) == pytest.approx(2 * 1_984)


def test_sampling_that_multiplying_bounds_predicts_each_token_once() -> None:
    # The group shares the prompt's only prediction, so the head is used once less.
    rates = Rates(matrix=1_000.0, read=1e12)

    seconds = generation_seconds(SIZES, ONE, rates, bytes_each=2)

    assert seconds == pytest.approx((14_656 - 2 * 800) / 1_000)


def test_a_group_reads_its_prompt_once() -> None:
    rates = Rates(matrix=1e12, read=1.0)
    alone = Lengths(prompts=(3,), groups=((2,),))
    two = Lengths(prompts=(3,), groups=((2, 2),))

    more = generation_seconds(SIZES, two, rates, bytes_each=1) - generation_seconds(
        SIZES, alone, rates, bytes_each=1
    )

    assert more == pytest.approx(16)  # the second completion's own token


def test_completions_that_have_ended_cost_nothing() -> None:
    rates = Rates(matrix=1e3, read=1e3)
    ended = Lengths(prompts=(3, 5), groups=((9,), (1,)))
    alone = Lengths(prompts=(3,), groups=((9,),))

    prefill = [
        generation_seconds(
            SIZES,
            Lengths(prompts=each.prompts, groups=((1,),) * len(each.prompts)),
            rates,
            bytes_each=4,
        )
        for each in (ended, alone)
    ]
    whole = [
        generation_seconds(SIZES, each, rates, bytes_each=4) for each in (ended, alone)
    ]

    assert whole[0] - prefill[0] == pytest.approx(whole[1] - prefill[1])


def test_no_step_is_faster_on_a_slower_machine() -> None:
    fast, slow = Rates(matrix=2e3, read=2e3), Rates(matrix=1e3, read=1e3)

    for least in (update_seconds, scoring_seconds):
        assert least(SIZES, MANY, slow) == 2 * least(SIZES, MANY, fast)
    assert generation_seconds(
        SIZES, MANY, slow, bytes_each=4
    ) == 2 * generation_seconds(SIZES, MANY, fast, bytes_each=4)
