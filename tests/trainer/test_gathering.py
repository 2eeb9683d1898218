"""Which groups a step trains on."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.scored import make_completion, make_group, make_prompt, run_config
from trainer.data import DataOrder, Prompt
from trainer.gathering import Gathered, differs, gather
from trainer.output.metrics import Stopwatch
from trainer.rollout.engine import OnGroup, ignore
from trainer.types import Rollout


class Lengths:
    """A source that writes completions of given lengths for each prompt.

    The rule "length" rewards 1 for up to 10 characters and 0 for 100.
    """

    tokenizer: Any = None
    idle_seconds = 0.0

    def __init__(self, lengths: dict[int, tuple[int, int]]) -> None:
        self._lengths = lengths
        self.asked: list[int] = []

    def complete(
        self, prompts: Sequence[Prompt], step: int, *, on_group: OnGroup = ignore
    ) -> list[tuple[Rollout, ...]]:
        self.asked += [prompt.index for prompt in prompts]
        return [
            tuple(make_completion(n, limit=200) for n in self._lengths[prompt.index])
            for prompt in prompts
        ]

    def sync_weights(self) -> None:
        """Nothing to do."""


MIXED, RIGHT, WRONG = (1, 100), (1, 2), (100, 101)


def gathered(
    mode: str, *rounds: dict[int, tuple[int, int]], **rollout: Any
) -> tuple[Gathered, list[int]]:
    """What a step gathers whose rounds sample these prompts."""
    config = run_config(
        reward={
            "recipe": {
                "rules": [{"name": "r", "kind": "length", "params": {"maximum": 10}}]
            }
        },
        rollout={"prompts_per_step": len(rounds[0]), "dynamic_sampling": mode}
        | rollout,
    )
    source = Lengths({index: each for turn in rounds for index, each in turn.items()})

    def prompts_of_round(turn: int) -> list[Prompt]:
        return [make_prompt(i) for i in rounds[turn]] if turn < len(rounds) else []

    found = gather(source, prompts_of_round, config, step=3, watch=Stopwatch())
    return found, source.asked


def indices(groups: Any) -> list[int]:
    return [group.prompt.index for group in groups]


FIRST = {0: RIGHT, 1: MIXED, 2: WRONG, 3: MIXED}


def test_off_keeps_every_group():
    found, _ = gathered("off", FIRST)

    assert indices(found.groups) == [0, 1, 2, 3]
    assert found.dropped == []
    assert found.num_rounds == 1
    assert found.num_sampled_tokens == 3 + 101 + 201 + 101
    asked = found.metrics["sampling/num_completions"]
    assert asked == sum(len(g.completions) for g in [*found.groups, *found.dropped])


def test_drop_leaves_out_what_does_not_differ():
    found, asked = gathered("drop", FIRST, {4: MIXED})

    assert indices(found.groups) == [1, 3]
    assert indices(found.dropped) == [0, 2]
    assert asked == [0, 1, 2, 3]
    assert found.num_sampled_tokens == 3 + 101 + 201 + 101


def test_refill_samples_the_missing_prompts():
    second = {4: WRONG, 5: MIXED, 6: MIXED, 7: MIXED}
    third = {8: MIXED, 9: MIXED, 10: MIXED, 11: MIXED}

    found, asked = gathered("refill", FIRST, second, third)

    assert asked == [0, 1, 2, 3, 4, 5, 8]
    assert indices(found.groups) == [1, 3, 5, 8]
    assert indices(found.dropped) == [0, 2, 4]
    assert found.num_rounds == 3
    assert found.metrics["sampling/num_dropped"] == 3
    assert found.metrics["sampling/without_signal"] == 0


def test_a_full_step_needs_no_refill():
    found, asked = gathered("refill", {0: MIXED, 1: MIXED}, {2: MIXED})

    assert asked == [0, 1]
    assert found.num_rounds == 1


def test_refills_are_bounded():
    rounds = [{turn: RIGHT} for turn in range(9)]

    _, asked = gathered("refill", *rounds, max_refills=2)

    assert asked == [0, 1, 2]


def test_refills_end_where_the_prompts_do():
    found, asked = gathered("refill", FIRST, {4: WRONG}, max_refills=50)

    assert asked == [0, 1, 2, 3, 4]
    assert indices(found.groups) == [1, 3]


@pytest.mark.parametrize("mode", ["drop", "refill"])
def test_without_any_signal_the_first_round_is_kept(mode):
    found, _ = gathered(mode, {0: RIGHT, 1: WRONG}, {2: RIGHT, 3: RIGHT})

    assert indices(found.groups) == [0, 1]
    assert indices(found.dropped) == ([2, 3] if mode == "refill" else [])
    assert not found.has_signal
    assert found.metrics["sampling/without_signal"] == 1


@given(
    st.lists(
        st.lists(st.sampled_from([MIXED, RIGHT, WRONG]), min_size=4, max_size=4),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from(["off", "drop", "refill"]),
)
def test_no_group_is_lost_or_counted_twice(rounds, mode):
    numbered = [
        {4 * turn + index: each for index, each in enumerate(row)}
        for turn, row in enumerate(rounds)
    ]

    found, asked = gathered(mode, *numbered)

    both = indices(found.groups) + indices(found.dropped)
    assert sorted(both) == sorted(asked)
    assert len(set(asked)) == len(asked)
    assert 1 <= len(found.groups) <= 4
    assert found.num_sampled_tokens == sum(
        c.num_tokens for g in found.groups + found.dropped for c in g.completions
    )


def test_a_group_differs_by_its_rewards_however_they_are_scaled():
    flat, tilted = make_group(1.0, 1.0, None), make_group(1.0, 1.0, 0.0)
    for scale in ("group_std", "batch_std", "none"):
        config = run_config(advantage={"scale": scale})
        assert not differs(flat, config)
        assert differs(tilted, config)


def test_rules_that_are_normalised_first_may_differ_under_equal_totals():
    rules: list[dict[str, float | None]] = [
        {"a": 1.0, "b": 0.0, "c": 0.0},
        {"a": 0.0, "b": 1.0, "c": 5.0},
    ]
    group = make_group(1.0, 1.0, rules=rules)
    names, weights = ("a", "b", "c"), [1.0, 1.0, 0.0]
    first = {"combine": "normalize_then_sum"}

    assert differs(group, run_config(*names, weights=weights, advantage=first))
    assert not differs(group, run_config(*names, weights=weights))
    only_c = [{"a": 1.0, "b": 1.0, "c": float(n)} for n in range(2)]
    equal = make_group(2.0, 2.0, rules=only_c)
    assert not differs(equal, run_config(*names, weights=weights, advantage=first))


@pytest.mark.parametrize(
    ("credit", "k", "wrong_answers"),
    [("pass_at_k", 2, 1), ("pass_at_k", 3, 2), ("pass_at_k_analytic", 3, 3)],
)
def test_a_group_differs_for_pass_at_k_by_enough_wrong_answers(
    credit, k, wrong_answers
):
    config = run_config(advantage={"credit": credit, "pass_k": k})
    for num_wrong in range(6):
        group = make_group(*[0.0] * num_wrong, *[1.0] * (5 - num_wrong))

        assert differs(group, config) == (wrong_answers <= num_wrong < 5)


def test_steps_may_differ_under_equal_totals():
    config = run_config(
        advantage={"credit": "process"},
        reward={"step_recipe": {"rules": [{"name": "s", "kind": "length"}]}},
    )
    tilted = make_group(1.0, 1.0, steps=[[(1, 0.5), (2, 0.0)], [(2, 0.0)]])
    # 1 for a step on the way, and 0 + 1 for each last one
    flat = make_group(1.0, 1.0, steps=[[(1, 1.0), (2, 0.0)], [(2, 0.0)]])

    assert differs(tilted, config)
    assert not differs(flat, config)


def test_rounds_of_a_step_have_no_row_in_common_and_reach_them_all():
    order = DataOrder(num_rows=11, prompts_per_step=3, seed=5)
    for step in (1, 4):
        rounds = [order.round_indices(step, turn) for turn in range(6)]

        assert rounds[0] == order.places(step)
        assert sorted(index for each in rounds for index in each) == list(range(11))
        assert [len(each) for each in rounds] == [3, 3, 3, 2, 0, 0]
    assert order.round_indices(1, 1) != order.round_indices(4, 1)
    assert order.round_indices(4, 1) == order.round_indices(4, 1)
