"""From scored groups to the advantages of completions and tokens."""

import math
import statistics
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.scored import make_group, run_config
from trainer.algorithm.advantages import group_advantages
from trainer.algorithm.credit import credit_groups
from trainer.config import AdvantageConfig
from trainer.gathering import penalise_overlong
from trainer.rewards.scoring import overlong_fraction
from trainer.types import Group

PLAIN = {"scale": "none"}
STEPS: dict[str, Any] = {
    "step_recipe": {"rules": [{"name": "step", "kind": "length"}]},
}


def credited(*groups: Group, **advantage: Any) -> list[list[float]]:
    config = run_config(advantage=advantage)
    return credit_groups(groups, config).advantages.tolist()


def process_config(**advantage: Any) -> Any:
    settings = {"credit": "process", "ddof": 0, "eps": 0.0} | advantage
    return run_config(advantage=settings, reward=STEPS)


@pytest.mark.parametrize("combine", ["sum_then_normalize", "normalize_then_sum"])
def test_a_single_rule_gives_the_same_advantages_either_way(combine):
    groups = [make_group(1.0, 0.0, None, 0.5), make_group(0.2, 0.2, 0.2, 0.2)]

    found = credited(*groups, combine=combine)

    rewards = np.array([[1.0, 0.0, math.nan, 0.5], [0.2] * 4])
    expected = group_advantages(rewards, AdvantageConfig())
    assert found == [pytest.approx(row) for row in expected.tolist()]


def test_penalties_come_off_the_reward():
    config = run_config(advantage={"baseline": "none", "scale": "none"})
    penalties = np.array([[0.25, 0.5]])

    found = credit_groups([make_group(1.0, 1.5)], config, penalties=penalties)

    assert found.advantages.tolist() == [[0.75, 1.0]]
    assert found.tokens is None


def test_rules_keep_their_weights_when_normalised_first():
    rules: list[dict[str, float | None]] = [
        {"a": 100.0, "b": 0.0},
        {"a": 0.0, "b": 1.0},
    ]
    config = run_config(
        "a",
        "b",
        weights=[1.0, 3.0],
        advantage={"combine": "normalize_then_sum", "ddof": 0, "eps": 0.0},
    )

    found = credit_groups([make_group(100.0, 3.0, rules=rules)], config)

    assert found.advantages.tolist() == [[-2.0, 2.0]]


def test_given_completions_are_trained_on_whether_scored_or_not():
    config = run_config(
        rollout={"source": "dataset", "group_size": 1}, advantage={"credit": "ones"}
    )

    found = credit_groups([make_group(0.0), make_group(None)], config)

    assert found.advantages.tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize("combine", ["sum_then_normalize", "normalize_then_sum"])
def test_indicators_judge_the_whole_reward(combine):
    rules: list[dict[str, float | None]] = [{"a": 1.0, "b": 0.0}, {"a": 1.0, "b": 1.0}]
    config = run_config(
        "a",
        "b",
        advantage={
            "credit": "indicator",
            "indicator_threshold": 2.0,
            "combine": combine,
        },
    )

    found = credit_groups([make_group(1.0, 2.0, rules=rules)], config)

    assert found.advantages.tolist() == [[0.0, 1.0]]


def test_preferences_are_refused_without_logprobs():
    config = run_config(
        advantage={"credit": "preference"}, loss={"surrogate": "reinforce"}
    )

    with pytest.raises(ValueError, match="preference_advantages"):
        credit_groups([make_group(0.0, 1.0)], config)


def test_whitening_makes_mean_0_and_deviation_1_over_the_batch():
    groups = [make_group(1.0, 0.0, None), make_group(3.0, 1.0, 2.0)]

    (first, second) = credited(*groups, **PLAIN, whiten=True, ddof=0, eps=0.0)

    # centred: ±0.5 and 1, -1, 0; their deviation is √(2.5 / 5)
    spread = math.sqrt(0.5)
    assert first == pytest.approx([0.5 / spread, -0.5 / spread, 0.0])
    assert second == pytest.approx([1 / spread, -1 / spread, 0.0])
    assert first[2] == 0.0


def test_whitening_lends_no_signal_to_a_group_without():
    found = credited(make_group(0.1, 0.3, 0.2), make_group(0.1, 0.1, 0.1), whiten=True)

    assert found[1] == [0.0, 0.0, 0.0]
    assert found[0][0] < 0 < found[0][1]


def test_whitening_equal_advantages_gives_zeros():
    assert credited(make_group(1.0, 1.0), whiten=True) == [[0.0, 0.0]]


def test_whitened_indicators_are_compared_over_the_batch():
    groups = [make_group(1.0, 1.0), make_group(0.0, 0.0)]

    found = credited(*groups, credit="indicator", whiten=True, ddof=0, eps=0.0)

    assert found == [[1.0, 1.0], [-1.0, -1.0]]


@given(
    st.lists(
        st.lists(st.integers(-5, 5), min_size=3, max_size=3), min_size=1, max_size=5
    )
)
def test_whitening_equals_a_slow_version(rewards):
    found = credited(
        *(make_group(*row) for row in rewards), **PLAIN, whiten=True, ddof=1, eps=1e-4
    )

    centred = [float(r - sum(row) / 3) for row in rewards for r in row]
    spread = statistics.stdev(centred) + 1e-4
    mean = statistics.fmean(centred)
    flat = [advantage for row in found for advantage in row]
    assert flat == pytest.approx([(a - mean) / spread for a in centred], abs=1e-9)


def test_whitening_by_tokens_counts_an_advantage_once_a_token():
    groups = [
        make_group(1.0, 0.0, None, lengths=(1, 3, 9)),
        make_group(4.0, 0.0, 2.0, lengths=(2, 1, 1)),
    ]

    found = credited(*groups, **PLAIN, whiten="tokens", ddof=0, eps=1.0)

    centred = [(0.5, 1), (-0.5, 3), (2.0, 2), (-2.0, 1), (0.0, 1)]
    tokens = [value for value, length in centred for _ in range(length)]
    spread = math.sqrt(statistics.variance(tokens) + 1e-8)
    mean = statistics.fmean(tokens)
    expected = [(value - mean) / spread for value, _ in centred]
    assert found[0] == pytest.approx([*expected[:2], 0.0])
    assert found[1] == pytest.approx(expected[2:])


def test_whitening_by_tokens_of_equal_lengths_is_that_of_completions():
    groups = [make_group(1.0, 0.0, 0.2), make_group(3.0, 1.0, 2.5)]

    by_tokens = credited(*groups, whiten="tokens")

    by_completions = credited(*groups, whiten="completions", ddof=0, eps=0.0)
    # of 12 tokens, not of 6 completions
    for row, other in zip(by_tokens, by_completions, strict=True):
        expected = [value * math.sqrt(11 / 12) for value in other]
        assert row == pytest.approx(expected, rel=1e-3)


def test_whitening_equal_advantages_by_tokens_gives_zeros():
    assert credited(make_group(1.0, 1.0), whiten="tokens") == [[0.0, 0.0]]


def test_baseline_weighs_the_policys_tokens():
    group = make_group(1.0, 0.0, lengths=(3, 1))

    assert credited(group, **PLAIN, baseline="length_weighted") == [[0.25, -0.75]]


def test_rules_normalised_one_by_one_have_a_length_weighted_baseline():
    rules: list[dict[str, float | None]] = [{"a": 1.0, "b": 0.0}, {"a": 0.0, "b": 4.0}]
    group = make_group(1.0, 4.0, lengths=(3, 1), rules=rules)
    advantage = {"combine": "normalize_then_sum", "baseline": "length_weighted"}
    config = run_config("a", "b", advantage=PLAIN | advantage)

    found = credit_groups([group], config).advantages.tolist()

    assert found == [[0.25 - 1.0, -0.75 + 3.0]]


@pytest.mark.parametrize(
    "advantage",
    [
        PLAIN | {"baseline": "length_weighted"},
        PLAIN | {"credit": "pass_at_k", "pass_k": 2},
        {"credit": "pass_at_k_analytic", "pass_k": 2},
    ],
    ids=["opo", "pass_at_k", "pass_at_k_analytic"],
)
def test_groups_are_credited_each_on_its_own(advantage):
    groups = [
        make_group(1.0, 0.0, None, 0.0, lengths=(3, 1, 2, 4)),
        make_group(0.0, 3.0, 0.5, 1.0, lengths=(2, 2, 1, 4)),
    ]

    together = credited(*groups, **advantage)

    assert together == [credited(group, **advantage)[0] for group in groups]
    assert any(together[0])


@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0])
def test_the_weight_multiplies_advantages_of_completions_and_tokens(weight):
    group = make_group(
        1.0, 0.0, lengths=(2, 3), steps=[[(1, 0.0), (2, 1.0)], [(3, 1.0)]]
    )
    loss = {"kl_coef": 0.1}
    for advantage in ({}, {"credit": "process"}, {"whiten": "tokens"}):
        plain, weighed = (
            credit_groups(
                [group], run_config(advantage=advantage | w, loss=loss, reward=STEPS)
            )
            for w in ({}, {"weight": weight})
        )

        assert weighed.advantages.tolist() == (weight * plain.advantages).tolist()
        assert (weighed.tokens is None) == (plain.tokens is None)
        for tokens, others in zip(
            weighed.tokens or (), plain.tokens or (), strict=True
        ):
            assert tokens.tolist() == (weight * others).tolist()


# --- process supervision


def test_the_advantage_of_a_token_sums_later_steps():
    # the last step also has the outcome: pooled 1, 0, 0, 1 -> +1, -1, -1, +1
    group = make_group(
        -1.0,
        1.0,
        lengths=(3, 4),
        steps=[[(2, 1.0), (3, 1.0)], [(1, 0.0), (4, None)]],
    )

    credit = credit_groups([group], process_config())

    assert credit.tokens is not None
    first, second = [each.tolist() for each in credit.tokens]
    assert first == [0.0, 0.0, -1.0]
    assert second == [0.0, 1.0, 1.0, 1.0]
    assert credit.advantages.tolist() == [pytest.approx([-1 / 3, 3 / 4])]


@given(st.lists(st.floats(-3, 3).map(lambda x: round(x, 2)), min_size=2, max_size=6))
def test_process_credit_of_a_single_step_is_the_outcome(rewards):
    lengths = [index + 1 for index in range(len(rewards))]
    steps = [[(length, 0.0)] for length in lengths]
    group = make_group(*rewards, lengths=lengths, steps=steps)

    by_steps = credit_groups([group], process_config(ddof=1, eps=1e-4))

    by_outcome = credited(make_group(*rewards))
    assert by_steps.advantages.tolist()[0] == pytest.approx(by_outcome[0], abs=1e-12)
    assert by_steps.tokens is not None
    for tokens, whole in zip(by_steps.tokens, by_outcome[0], strict=True):
        assert tokens.tolist() == pytest.approx([whole] * len(tokens), abs=1e-12)


def test_groups_are_pooled_each_on_its_own():
    easy = make_group(10.0, 12.0, steps=[[(1, 1.0), (2, 0.0)], [(2, 0.0)]])
    hard = make_group(0.0, 1.0, steps=[[(2, 0.0)], [(2, 0.0)]])

    together = credit_groups([easy, hard], process_config())

    alone = [credit_groups([each], process_config()) for each in (easy, hard)]
    for row, each in zip(together.advantages, alone, strict=True):
        assert np.array_equal(row[None], each.advantages)
    assert together.tokens is not None
    assert [t.tolist() for t in together.tokens] == [
        tokens.tolist() for each in alone for tokens in each.tokens or []
    ]


def test_a_batch_wide_deviation_takes_all_groups_steps():
    groups = [
        make_group(0.0, 2.0, lengths=(1, 1), steps=[[(1, 0.0)], [(1, 0.0)]]),
        make_group(0.0, 6.0, lengths=(1, 1), steps=[[(1, 0.0)], [(1, 0.0)]]),
    ]

    found = credit_groups(groups, process_config(scale="batch_std"))

    spread = statistics.pstdev([0, 2, 0, 6])
    assert found.advantages.tolist() == [
        pytest.approx([-1 / spread, 1 / spread]),
        pytest.approx([-3 / spread, 3 / spread]),
    ]


def test_whitened_steps_have_mean_0_and_deviation_1_over_scored_tokens():
    group = make_group(
        1.0,
        0.0,
        None,
        lengths=(3, 2, 2),
        steps=[[(1, 0.5), (3, 0.0)], [(2, 0.2)], [(2, None)]],
    )

    credit = credit_groups([group], process_config(whiten=True))

    assert credit.tokens is not None
    tokens = [value for each in credit.tokens[:2] for value in each.tolist()]
    assert statistics.fmean(tokens) == pytest.approx(0, abs=1e-12)
    assert statistics.pstdev(tokens) == pytest.approx(1)
    assert credit.tokens[2].tolist() == [0.0, 0.0]


# --- overlong completions


@pytest.mark.parametrize(
    ("num_tokens", "fraction"), [(1, 0), (80, 0), (85, 0.25), (90, 0.5), (100, 1)]
)
def test_the_penalty_rises_through_the_buffer(num_tokens, fraction):
    found = overlong_fraction(num_tokens, max_new_tokens=100, buffer=20)

    assert found == fraction


def overlong_config(**changes: Any) -> Any:
    return run_config(
        reward={"overlong_buffer_tokens": 4, "overlong_penalty": 2.0},
        rollout={"max_new_tokens": 10},
        **changes,
    )


def test_the_parts_of_a_penalised_reward_add_up():
    group = make_group(1.0, 1.0, 1.0, None, lengths=(6, 7, 10, 10))

    (found,) = penalise_overlong([group], overlong_config())

    assert [score.total for score in found.scores] == [1.0, 0.5, -1.0, None]
    assert [score.rules.get("overlong") for score in found.scores] == [
        0.0,
        -0.5,
        -2.0,
        None,
    ]
    for score in found.scores[:3]:
        assert score.total == sum(part or 0.0 for part in score.rules.values())


def test_without_a_buffer_nothing_is_lowered():
    group = make_group(1.0, lengths=(300,))

    assert penalise_overlong([group], run_config()) == [group]


def test_a_penalty_normalised_like_a_rule_keeps_its_size_as_weight():
    config = overlong_config(
        advantage={"combine": "normalize_then_sum", "ddof": 0, "eps": 0.0}
    )
    groups = penalise_overlong([make_group(5.0, 5.0, lengths=(1, 7))], config)

    found = credit_groups(groups, config)

    assert found.advantages.tolist() == [[2.0, -2.0]]
