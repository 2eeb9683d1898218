"""Advantages, against worked examples, an independent slow version and properties."""

import itertools
import math
import statistics
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.losses import policy_loss
from trainer.algorithm.advantages import (
    Floats,
    group_advantages,
    preference_advantages,
    process_advantages,
    rule_advantages,
)
from trainer.config import AdvantageConfig, LossConfig

NAN = math.nan


def doubles(*rows: list[float]) -> Floats:
    return np.array(rows, dtype=np.float64)


def advantages(*groups: list[float], **options: Any) -> list[list[float]]:
    rewards = np.array(groups, dtype=np.float64)
    return group_advantages(rewards, AdvantageConfig(**options)).tolist()


@pytest.mark.parametrize(
    ("options", "high", "low"),
    [
        ({"scale": "none"}, 0.75, -0.25),
        ({"ddof": 0, "eps": 0.0}, 1.73205081, -0.57735027),
        ({"ddof": 1, "eps": 1e-4}, 1.49970006, -0.49990002),
        ({"ddof": 1, "eps": 1e-6}, 1.49999700, -0.49999900),
        ({"baseline": "leave_one_out", "scale": "none"}, 1.0, -0.33333333),
    ],
)
def test_advantages_of_one_right_completion_in_four(options, high, low):
    assert advantages([1, 0, 0, 0], **options)[0] == pytest.approx(
        [high, low, low, low], abs=5e-9
    )


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({"scale": "none"}, 0.5),
        ({"ddof": 0, "eps": 0.0}, 1.0),
        ({"ddof": 1, "eps": 1e-4}, 0.86587543),
        ({"ddof": 1, "eps": 1e-6}, 0.86602390),
        ({"baseline": "leave_one_out", "scale": "none"}, 0.66666667),
    ],
)
def test_two_right_of_four(options, size):
    assert advantages([1, 1, 0, 0], **options)[0] == pytest.approx(
        [size, size, -size, -size], abs=5e-9
    )


@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
@pytest.mark.parametrize("scale", ["group_std", "batch_std", "mean", "none"])
@pytest.mark.parametrize("ddof", [0, 1])
def test_equal_rewards_give_exactly_zero(baseline, scale, ddof):
    found = advantages(
        [0.1] * 7, [0.0] * 7, baseline=baseline, scale=scale, ddof=ddof, eps=1e-9
    )

    assert found == [[0.0] * 7, [0.0] * 7]


def test_zero_eps_and_equal_rewards_give_zero_not_nan():
    assert advantages([0.3, 0.3], eps=0.0) == [[0.0, 0.0]]


def test_rewards_too_close_for_a_spread_give_a_finite_advantage():
    (found,) = advantages([0.0, 1.5e-285], ddof=0, eps=0.0)

    assert found == pytest.approx([0.0, 0.0], abs=1e-280)


def test_unscored_completions_are_left_out_of_mean_and_spread():
    with_gaps = advantages([1, NAN, 0, 0, NAN])[0]

    without = advantages([1, 0, 0])[0]
    assert with_gaps[1] == with_gaps[4] == 0.0
    assert [with_gaps[0], *with_gaps[2:4]] == without


def test_a_group_without_scores_is_zero():
    assert advantages([NAN, NAN], [1, 0])[0] == [0.0, 0.0]


def test_a_single_scored_completion_has_no_advantage():
    assert advantages([2.5, NAN]) == [[0.0, 0.0]]


def test_a_single_scored_completion_may_keep_its_reward():
    assert advantages([2.5, NAN], singleton="raw") == [[2.5, 0.0]]


def test_batch_std_divides_all_groups_by_one_number():
    found = advantages([1, 0], [3, 1], scale="batch_std", ddof=0, eps=0.0)

    spread = statistics.pstdev([1, 0, 3, 1])
    assert found[0] == pytest.approx([0.5 / spread, -0.5 / spread])
    assert found[1] == pytest.approx([1 / spread, -1 / spread])


def test_mean_scale_divides_by_the_groups_mean():
    assert advantages([1, 0, 0, 0], scale="mean", eps=0.0)[0] == pytest.approx(
        [3, -1, -1, -1]
    )


def test_mean_scale_refuses_negative_rewards():
    with pytest.raises(ValueError, match="got -1"):
        advantages([1, -1], scale="mean")


def test_no_baseline_and_no_scale_is_the_reward():
    assert advantages([2, 2, NAN], baseline="none", scale="none") == [[2, 2, 0]]


def test_indicator_credit_is_one_for_right_answers():
    assert advantages([1, 0.9, NAN, 2], credit="indicator") == [[1, 0, 0, 1]]


def test_ones_credit_is_one_for_every_scored_completion():
    assert advantages([1, -3, NAN], credit="ones") == [[1, 1, 0]]


def test_infinite_rewards_are_refused():
    with pytest.raises(ValueError, match="infinite"):
        advantages([1, math.inf])


def slow(group: list[float], baseline: str, scale: str, ddof: int) -> list[float]:
    """Group advantages in plain Python, one completion at a time."""
    scored = [reward for reward in group if not math.isnan(reward)]
    if len(scored) < 2 or max(scored) == min(scored):
        return [0.0] * len(group)
    divisor = 1.0
    if scale == "group_std":
        spread = statistics.stdev if ddof else statistics.pstdev
        divisor = spread(scored) + 1e-4
    found = []
    for index, reward in enumerate(group):
        if math.isnan(reward):
            found.append(0.0)
            continue
        others = [r for at, r in enumerate(group) if at != index and not math.isnan(r)]
        compared = others if baseline == "leave_one_out" else scored
        found.append((reward - statistics.fmean(compared)) / divisor)
    return found


rewards_of_a_group = st.lists(
    st.one_of(st.floats(-5, 5).map(lambda x: round(x, 3)), st.just(NAN)),
    min_size=1,
    max_size=9,
)


@given(rewards_of_a_group)
def test_it_equals_a_slow_version(group):
    for baseline, scale, ddof in itertools.product(
        ("mean", "leave_one_out"), ("group_std", "none"), (0, 1)
    ):
        found = advantages(group, baseline=baseline, scale=scale, ddof=ddof)[0]
        assert found == pytest.approx(slow(group, baseline, scale, ddof), abs=1e-9)


@given(
    st.lists(rewards_of_a_group, min_size=1, max_size=5),
    st.sampled_from(["mean", "leave_one_out", "none"]),
    st.sampled_from([0, 1]),
)
def test_batch_wide_scale_equals_a_slow_version(groups, baseline, ddof):
    rows = padded(groups)
    flat = [r for row in rows for r in row if not math.isnan(r)]
    spread = statistics.stdev if ddof else statistics.pstdev
    divisor = (spread(flat) if len(set(flat)) > 1 else 0.0) + 1e-4

    found = advantages(*rows, baseline=baseline, scale="batch_std", ddof=ddof)

    for group, row in zip(rows, found, strict=True):
        plain = slow(group, baseline, "none", ddof)
        num_scored = sum(not math.isnan(reward) for reward in group)
        if baseline == "none" and num_scored > 1:  # equal rewards keep their size
            plain = [0.0 if math.isnan(reward) else reward for reward in group]
        assert row == pytest.approx([value / divisor for value in plain], abs=1e-9)


@given(st.lists(st.integers(0, 9), min_size=2, max_size=8))
def test_mean_scale_equals_exact_fractions(group):
    exact = [Fraction(0)] * len(group)
    if len(set(group)) > 1:
        mean = Fraction(sum(group), len(group))
        exact = [(reward - mean) / mean for reward in group]

    found = advantages([float(r) for r in group], scale="mean", eps=0.0)[0]

    assert found == pytest.approx([float(value) for value in exact], abs=1e-12)


@given(st.lists(st.integers(-9, 9), min_size=2, max_size=8), st.sampled_from([0, 1]))
def test_squares_of_normalised_rewards_are_exact(group, ddof):
    mean = Fraction(sum(group), len(group))
    squares = [(reward - mean) ** 2 for reward in group]
    total = sum(squares)

    found = advantages([float(r) for r in group], ddof=ddof, eps=0.0)[0]

    exact = [s * (len(group) - ddof) / total if total else 0 for s in squares]
    assert [a * a for a in found] == pytest.approx([float(s) for s in exact], abs=1e-9)
    assert all(a * float(r - mean) >= 0 for a, r in zip(found, group, strict=True))


COMPARED = [
    (baseline, scale)
    for baseline in ("mean", "leave_one_out")
    for scale in ("group_std", "batch_std", "none")
]


def padded(groups: list[list[float]]) -> list[list[float]]:
    width = max(map(len, groups))
    return [group + [NAN] * (width - len(group)) for group in groups]


def flattened(rows: list[list[float]]) -> list[float]:
    return [value for row in rows for value in row]


@pytest.mark.parametrize(("baseline", "scale"), COMPARED)
@given(st.lists(rewards_of_a_group, min_size=1, max_size=3), st.integers(-8, 8))
def test_shifting_all_rewards_changes_nothing(baseline, scale, groups, shift):
    rows = padded(groups)
    moved = [[reward + shift for reward in row] for row in rows]
    options = {"baseline": baseline, "scale": scale}

    found = flattened(advantages(*moved, **options))

    assert found == pytest.approx(flattened(advantages(*rows, **options)), abs=1e-6)


@pytest.mark.parametrize("scale", ["group_std", "batch_std"])
@given(st.lists(rewards_of_a_group, min_size=1, max_size=3), st.integers(1, 50))
def test_stretching_all_rewards_changes_nothing_without_eps(scale, groups, factor):
    rows = padded(groups)
    stretched = [[reward * factor for reward in row] for row in rows]

    found = flattened(advantages(*stretched, scale=scale, eps=0.0))

    expected = flattened(advantages(*rows, scale=scale, eps=0.0))
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("baseline", "scale"), [*COMPARED, ("none", "batch_std")])
@given(st.lists(rewards_of_a_group, min_size=1, max_size=3), st.data())
def test_a_missing_score_leaves_the_others_as_if_it_were_not_there(
    baseline, scale, groups, data
):
    rows = padded(groups)
    width = len(rows[0])
    index = data.draw(st.integers(0, width))
    with_gaps = [[*row[:index], NAN, *row[index:]] for row in rows]
    options = {"baseline": baseline, "scale": scale}

    found = advantages(*with_gaps, **options)

    assert [row.pop(index) for row in found] == [0.0] * len(rows)
    expected = flattened(advantages(*rows, **options))
    assert flattened(found) == pytest.approx(expected, abs=1e-12)


@given(rewards_of_a_group)
def test_advantages_of_a_group_add_up_to_zero(group):
    assert sum(advantages(group)[0]) == pytest.approx(0.0, abs=1e-6)


def by_length(
    rewards: list[float], lengths: list[float], **options: Any
) -> list[float]:
    config = AdvantageConfig(baseline="length_weighted", scale="none", **options)
    found: list[float] = group_advantages(
        doubles(rewards), config, lengths=doubles(lengths)
    ).tolist()[0]
    return found


def test_long_completions_weigh_more_in_the_baseline():
    assert by_length([1, 0], [30, 10]) == [0.25, -0.75]


@given(
    st.lists(st.tuples(st.integers(-9, 9), st.integers(1, 40)), min_size=2, max_size=8)
)
def test_length_weighted_baseline_is_the_mean_reward_of_a_token(group):
    tokens = [Fraction(reward) for reward, length in group for _ in range(length)]
    baseline = sum(tokens) / len(tokens)

    found = by_length([float(r) for r, _ in group], [float(n) for _, n in group])

    expected = [float(reward - baseline) for reward, _ in group]
    if len({reward for reward, _ in group}) == 1:
        assert found == [0.0] * len(group)
    assert found == pytest.approx(expected, abs=1e-12)


def test_length_weighted_baseline_of_equal_lengths_is_the_mean():
    rewards = [1.0, 0.25, NAN, 0.0]

    (expected,) = advantages(rewards, scale="none")
    assert by_length(rewards, [7, 7, 99, 7]) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("length", [0.0, 999.0, NAN])
def test_length_of_an_unscored_completion_does_not_count(length):
    assert by_length([1, NAN, 0], [30, length, 10]) == [0.25, 0.0, -0.75]


def test_a_single_completion_has_length_weighted_baseline_0_with_raw():
    assert by_length([0.5, NAN], [3, 3], singleton="raw") == [0.5, 0.0]
    assert by_length([0.5, NAN], [3, 3]) == [0.0, 0.0]


def test_length_weighted_baseline_without_lengths_is_refused():
    with pytest.raises(ValueError, match="length_weighted"):
        advantages([1, 0], baseline="length_weighted")


def pass_at_k(*groups: list[float], **options: Any) -> list[list[float]]:
    return advantages(*groups, **{"credit": "pass_at_k", "scale": "none"} | options)


def analytic(*groups: list[float], **options: Any) -> list[list[float]]:
    return advantages(*groups, credit="pass_at_k_analytic", **options)


def test_right_completions_add_to_the_best_of_three():
    assert pass_at_k([1, 0, 0, 1, 0], pass_k=3) == [[0.5, 0, 0, 0.5, 0]]


rewards_with_ties = st.lists(
    st.sampled_from([NAN, 0.0, 0.1, 0.5, 1.0, -2.0]), min_size=1, max_size=7
)


@given(st.lists(rewards_with_ties, min_size=1, max_size=3), st.integers(2, 7))
def test_pass_at_k_equals_the_mean_over_all_subsets(groups, k):
    found = pass_at_k(*padded(groups), pass_k=k)

    for group, row in zip(groups, found, strict=True):
        scored = [i for i, reward in enumerate(group) if not math.isnan(reward)]
        expected = [0.0] * len(row)
        for i in scored if len(scored) >= k else ():
            others = [group[j] for j in scored if j != i]
            expected[i] = statistics.fmean(
                max(group[i], *subset) - max(subset)
                for subset in itertools.combinations(others, k - 1)
            )
        assert row == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=8))
def test_pass_at_the_whole_group_is_the_lead_of_the_best(group):
    (found,) = pass_at_k(group, pass_k=len(group))

    second, best = sorted(group)[-2:]
    if best == second:
        assert found == [0.0] * len(group)
    lead = [best - second if reward == best else 0.0 for reward in group]
    assert found == pytest.approx(lead, abs=1e-12)


def test_reinforce_with_pass_at_k_has_the_gradient_of_the_best_of_k():
    """Over all samples of a policy of three answers: Σ A·∇log π / n is ∇E[max] / k."""
    rewards, n, k = [0.0, 0.3, 1.0], 4, 2
    logits = torch.tensor([0.2, -0.4, 0.1], dtype=torch.float64, requires_grad=True)
    logprobs = logits.log_softmax(dim=0)
    best = sum(
        logprobs[list(answers)].sum().exp() * max(rewards[i] for i in answers)
        for answers in itertools.product(range(3), repeat=k)
    )
    assert isinstance(best, torch.Tensor)
    (expected,) = torch.autograd.grad(best / k, logits, retain_graph=True)

    found = torch.zeros(3, dtype=torch.float64)
    for answers in itertools.product(range(3), repeat=n):
        (weights,) = pass_at_k([rewards[i] for i in answers], pass_k=k)
        surrogate = (torch.tensor(weights) * logprobs[list(answers)]).mean()
        (gradient,) = torch.autograd.grad(surrogate, logits, retain_graph=True)
        found += logprobs[list(answers)].sum().exp().detach() * gradient

    assert torch.allclose(found, expected, atol=1e-12)


def test_pass_at_k_is_divided_by_the_groups_deviation():
    (found,) = pass_at_k([1, 0, 0, 1], pass_k=2, scale="group_std", ddof=0, eps=0.0)

    assert found == pytest.approx([2 / 3 / 0.5, 0, 0, 2 / 3 / 0.5])


def test_pass_at_k_of_a_large_group_is_finite():
    group = [float(index) for index in range(1024)]

    (found,), (of_indicators,) = (
        pass_at_k(group, pass_k=512),
        analytic(group, pass_k=512, indicator_threshold=1023.0),
    )

    assert all(map(math.isfinite, found))
    assert found[-1] == pytest.approx(2.0, rel=1e-9)  # 1023 - (511·1024/512 - 1)
    assert of_indicators[-1] == pytest.approx(1.0)


def test_one_right_of_four_in_pass_at_2_training():
    assert analytic([0, 1, 0, 0], pass_k=2)[0] == pytest.approx(
        [-1 / 3, 1, -1 / 3, -1 / 3], abs=1e-12
    )


@given(st.lists(rewards_with_ties, min_size=1, max_size=3), st.integers(2, 5))
def test_pass_at_k_training_equals_the_mean_over_all_subsets(groups, k):
    found = analytic(*padded(groups), pass_k=k, indicator_threshold=0.5)

    for group, row in zip(groups, found, strict=True):
        scored = [i for i, reward in enumerate(group) if not math.isnan(reward)]
        subsets = {
            subset: float(any(group[i] >= 0.5 for i in subset))
            for subset in itertools.combinations(scored, k)
        }
        expected = [0.0] * len(row)
        if len(set(subsets.values())) > 1:
            mean = statistics.fmean(subsets.values())
            spread = statistics.pstdev(subsets.values())
            for i in scored:
                own = [value for subset, value in subsets.items() if i in subset]
                expected[i] = (statistics.fmean(own) - mean) / spread
        assert row == pytest.approx(expected, abs=1e-12)
        assert sum(row) == pytest.approx(0, abs=1e-12)


def test_rules_normalised_first_keep_the_voice_of_a_small_spread():
    rules = np.array([[[100.0, 0.0], [0.0, 1.0]]])
    config = AdvantageConfig(combine="normalize_then_sum", ddof=0, eps=0.0)

    found = rule_advantages(rules, [1.0, 1.0], config)

    assert found.tolist() == [[0.0, 0.0]]


def test_a_steps_advantage_reaches_every_token_before_its_end():
    # pooled 1, 0, 0, 1: mean 0.5, population deviation 0.5 -> +1, -1, -1, +1
    found = process_advantages(
        [[1, 0], [0, 1]], [[2, 3], [1, 4]], [4, 4], AdvantageConfig(ddof=0, eps=0.0)
    )

    assert [tokens.tolist() for tokens in found] == [[0, 0, -1, 0], [0, 1, 1, 1]]


def test_the_steps_of_each_group_are_compared_among_themselves():
    rewards, ends = [[1, 0], [0], [5], [7]], [[1, 2], [2], [1], [1]]
    config = AdvantageConfig(ddof=0, eps=0.0)

    found = process_advantages(rewards, ends, [2, 2, 1, 1], config, group_size=2)

    alone = [
        *process_advantages(rewards[:2], ends[:2], [2, 2], config),
        *process_advantages(rewards[2:], ends[2:], [1, 1], config),
    ]
    assert [tokens.tolist() for tokens in found] == [t.tolist() for t in alone]


def test_a_step_without_a_score_counts_for_nothing():
    found = process_advantages(
        [[1, NAN], [0]], [[1, 2], [2]], [2, 2], AdvantageConfig(ddof=0, eps=0.0)
    )

    assert [tokens.tolist() for tokens in found] == [[1, 0], [-1, -1]]


def test_completions_without_steps_have_no_advantage():
    found = process_advantages([[], []], [[], []], [2, 1], AdvantageConfig())

    assert [tokens.tolist() for tokens in found] == [[0, 0], [0]]


def test_credit_that_needs_more_than_rewards_is_refused():
    with pytest.raises(ValueError, match="preference_advantages"):
        advantages([1, 0], credit="preference")
    with pytest.raises(ValueError, match="process_advantages"):
        advantages([1, 0], credit="process")


def test_a_pairs_pull_is_dpos_coefficient():
    # log-ratios -0.2 of the winner and 0.3 of the loser
    found, loss = preference_advantages(
        doubles([-1.2, -0.7]), doubles([-1.0, -1.0]), doubles([1.0, 0.0]), 0.1
    )

    assert found[0].tolist() == pytest.approx([0.05124974, -0.05124974], abs=1e-8)
    assert loss == pytest.approx(-math.log(1 - 0.51249740), abs=1e-7)


def test_the_first_of_the_best_meets_the_last_of_the_worst():
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


def test_without_pairs_the_loss_is_none():
    zeros = np.zeros((2, 3))

    found, loss = preference_advantages(zeros, zeros, zeros, 0.1)

    assert found.dtype == np.float64
    assert loss == 0.0
    assert not found.any()


def test_a_hopeless_pair_has_a_finite_loss():
    found, loss = preference_advantages(
        doubles([-9000.0, 0.0]), doubles([0.0, 0.0]), doubles([1.0, 0.0]), 1.0
    )

    assert found.tolist() == [[1.0, -1.0]]
    assert loss == pytest.approx(9000)


def test_reinforce_with_a_pairs_advantages_has_dpos_gradient():
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
