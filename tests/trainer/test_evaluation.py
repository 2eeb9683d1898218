"""pass@k, maj@k, and how far their means may be trusted."""

import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from trainer.data import Prompt, Row
from trainer.evaluation import (
    _student_quantile,
    evaluation_metrics,
    majority_places,
    mean_interval,
    pass_at_k,
    reported_ks,
)
from trainer.rewards.rules.rightness import RIGHT, votes_of
from trainer.rewards.scoring import Correctness, Score, correctness_of
from trainer.rewards.spec import Recipe, answer_reader
from trainer.types import Group, Rollout


def test_pass_at_k_is_the_share_of_draws_with_a_right_one():
    outcomes = [True, True, False, False, False]
    ks = range(1, 6)

    (found,) = pass_at_k(5, [2], ks)

    for k, chance in zip(ks, found, strict=True):
        draws = list(itertools.combinations(outcomes, k))
        share = sum(any(draw) for draw in draws) / len(draws)
        assert chance == pytest.approx(share)


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_pass_at_k_equals_exact_fractions(drawn):
    n, c = drawn
    ks = range(1, n + 1)

    (found,) = pass_at_k(n, [c], ks)

    exact = [1 - Fraction(math.comb(n - c, k), math.comb(n, k)) for k in ks]
    assert found.tolist() == pytest.approx([float(each) for each in exact], abs=1e-12)


def test_pass_at_k_of_many_samples_does_not_overflow():
    assert pass_at_k(1024, [1, 0, 1024], [512]).tolist() == [
        [pytest.approx(0.5)],
        [0.0],
        [1.0],
    ]


def test_every_k_is_reported_while_there_are_few():
    assert reported_ks(1) == [1]
    assert reported_ks(6) == [1, 2, 3, 4, 5, 6]
    assert reported_ks(16) == list(range(1, 17))
    assert reported_ks(17) == [1, 2, 4, 8, 16, 17]
    assert reported_ks(64) == [1, 2, 4, 8, 16, 32, 64]


def test_the_first_of_equally_frequent_answers_wins():
    assert majority_places(["b", None, "a", "a", "b"]) == [0, 0, 0, 2, 0]
    assert majority_places([None, None]) == [None, None]


@given(st.lists(st.sampled_from(["a", "b", "c", None]), max_size=12))
def test_a_majority_equals_a_slow_version(answers):
    def slow(first: list[str | None]) -> int | None:
        given_answers = [answer for answer in first if answer is not None]
        if not given_answers:
            return None
        return first.index(Counter(given_answers).most_common(1)[0][0])

    expected = [slow(answers[:k]) for k in range(1, len(answers) + 1)]
    assert majority_places(answers) == expected


DEFINED: Any = {"bounds": (0.0, 1.0), "correctness": Correctness(least_reward=1.0)}


def group(*texts: str, right: str) -> Group:
    row = Row(index=0, prompt="?", answer=right, columns={})
    scores = [float(text == right) for text in texts]
    return Group(
        prompt=Prompt(row=row, text="?", token_ids=(3,)),
        completions=tuple(
            Rollout.of_one_turn(
                text=t, token_ids=(3, 1), logprobs=(0, 0), end_reason="stop"
            )
            for t in texts
        ),
        scores=tuple(Score(s, {"answer": s}, {}) for s in scores),
    )


def recipe(kind: str, **params: object) -> Recipe:
    return Recipe.model_validate(
        {"rules": [{"name": "answer", "kind": kind, "params": params}]}
    )


def test_metrics_of_held_out_groups():
    groups = [
        group("4", "5", "4", "4", right="4"),
        group("7", "8", "8", "9", right="7"),
    ]
    reader = answer_reader(recipe("numeric_answer"))

    metrics = evaluation_metrics(groups, **DEFINED, read_answer=reader)

    assert metrics["mean"] == pytest.approx(4 / 8)
    assert metrics["pass@1"] == pytest.approx(4 / 8)
    assert metrics["pass@4"] == 1.0
    assert [metrics[f"maj@{k}"] for k in (1, 2, 3, 4)] == [1.0, 1.0, 0.5, 0.5]
    assert metrics["frac_truncated"] == 0.0
    assert metrics["mean_length"] == 2.0


def test_a_majority_is_of_whole_answers():
    found = group("4</answer>", "5</answer>", "5</answer>", right="4</answer>")
    begun = replace(found, prompt=replace(found.prompt, begun="<answer>"))
    reader = answer_reader(recipe("exact_answer"))

    metrics = evaluation_metrics([begun], **DEFINED, read_answer=reader)

    assert [metrics[f"maj@{k}"] for k in (1, 2, 3)] == [1.0, 1.0, 0.0]


def test_numbers_written_differently_are_one_answer():
    read = answer_reader(recipe("numeric_answer"))
    assert read is not None

    assert read("so 0.5") == read("it is 1/2")
    assert read("none") is None


def test_texts_between_tags_can_be_compared():
    read = answer_reader(recipe("exact_answer"))
    assert read is not None

    assert read("<answer> 4 </answer>") == "4"


def test_numbers_behind_a_marker_are_one_answer_however_they_are_written():
    read = answer_reader(recipe("marker_answer"))
    assert read is not None

    assert read("so\n#### 0.5") == read("#### 1/2") is not None
    assert read("#### six") == "six"
    assert read("six") is None


def test_a_choice_is_one_answer_however_it_is_written():
    read = answer_reader(recipe("multiple_choice"))
    assert read is not None

    assert read("<answer>B</answer>") == read("<answer>(b)</answer>") == "B"
    assert read("<answer>A or B</answer>") is None


def test_formulas_that_only_look_different_are_one_answer():
    read = answer_reader(recipe("math_verify"))
    assert read is not None

    plain = read("<answer>(\\frac{1}{2}, 3)</answer>")
    assert plain == "(\\frac{1}{2},3)"
    looks = r"so <answer>$\left(\dfrac{1}{2},\, 3\right)$.</answer>"
    assert read(looks) == plain
    assert read(r"<answer>\boxed{(\frac{1}{2}, 3)}</answer>") == plain
    assert read("<answer>x</answer> and more") == "x"
    assert read("x") is None
    assert read("<answer> $ </answer>") is None


def test_right_completions_vote_as_one_however_they_write_it():
    votes = votes_of(["0.5", "1/2", "3"], [True, True, False], lambda text: text)

    assert votes == [RIGHT, RIGHT, "3"]


def test_rules_without_an_answer_have_no_majority():
    assert answer_reader(recipe("length")) is None


def test_pass_at_k_counts_correct_answers_below_the_highest_reward():
    groups = [scaled(group("4", "5", right="4"), lambda reward: reward - 0.5)]
    made = recipe("numeric_answer")

    metrics = evaluation_metrics(
        groups, bounds=(0.0, 1.0), correctness=correctness_of(made)
    )

    assert metrics["pass@1"] == 0.5
    assert metrics["mean"] == 0.0


def test_each_share_has_interval_ends():
    groups = [group("4", "5", right="4"), group("7", "7", right="7")]
    reader = answer_reader(recipe("numeric_answer"))

    metrics = evaluation_metrics(groups, **DEFINED, read_answer=reader)

    for name in ("mean", "pass@1", "pass@2", "maj@1", "maj@2"):
        low, mean, high = (metrics[f"{name}{end}"] for end in ("/low", "", "/high"))
        assert low is not None
        assert mean is not None
        assert high is not None
        assert 0 <= low <= mean <= high <= 1
        assert low < high
    assert "mean_length/low" not in metrics


def test_rewards_on_another_scale_have_the_same_intervals():
    groups = [group("4", "5", right="4"), group("7", "7", right="7")]

    plain = evaluation_metrics(groups, **DEFINED)
    wide = evaluation_metrics(
        [scaled(each, lambda reward: 5 * reward - 2) for each in groups],
        bounds=(-2.0, 3.0),
        correctness=Correctness(least_reward=3.0),
    )

    for end in ("mean", "mean/low", "mean/high"):
        assert wide[end] == pytest.approx(5 * plain[end] - 2)


def test_each_of_several_rules_has_its_mean():
    one = group("4", "5", right="4")
    both = replace(
        one,
        scores=tuple(
            Score(s.total, s.rules | {"other": 0.5}, s.errors) for s in one.scores
        ),
    )
    (rule,) = one.scores[0].rules

    metrics = evaluation_metrics([both], **DEFINED)

    assert metrics[f"rule/{rule}"] == 0.5
    assert metrics["rule/other"] == 0.5
    assert not any(
        name.startswith("rule/") for name in evaluation_metrics([one], **DEFINED)
    )


def scaled(each: Group, change: Callable[[float], float]) -> Group:
    scores = tuple(
        Score(None if s.total is None else change(s.total), s.rules, s.errors)
        for s in each.scores
    )
    return replace(each, scores=scores)


def test_without_scores_the_mean_is_none():
    unscored = replace(group("4", right="4"), scores=(Score(None, {}, {}),))

    metrics = evaluation_metrics([unscored], **DEFINED)

    assert (metrics["mean"], metrics["mean/low"], metrics["mean/high"]) == (None,) * 3
    assert metrics["pass@1"] == 0.0


def test_a_proportion_of_independent_prompts_has_wilsons_interval():
    values = np.array([[1.0]] * 13 + [[0.0]] * 51)

    low, high = mean_interval(values, num_samples=1)

    # Wilson's own formula, at 63 observations and Student's quantile of as many
    t, p, n = scipy.stats.t.ppf(0.975, 63), 13 / 64, 63
    middle = (p + t * t / (2 * n)) / (1 + t * t / n)
    reach = t / (1 + t * t / n) * math.sqrt(p * (1 - p) / n + t * t / (4 * n * n))
    assert low == pytest.approx([middle - reach], abs=1e-6)
    assert high == pytest.approx([middle + reach], abs=1e-6)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.5])
@pytest.mark.parametrize("num_prompts", [1, 2, 64])
def test_equal_values_still_leave_doubt(value, num_prompts):
    low, high = mean_interval(np.full((num_prompts, 1), value), num_samples=4)

    assert 0 <= low[0] <= value <= high[0] <= 1
    assert high[0] - low[0] > 0.05


@pytest.mark.parametrize("degrees", [4, 8, 63])
def test_the_quantile_is_students(degrees):
    expected = scipy.stats.t.ppf(0.975, degrees)

    assert _student_quantile(degrees) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("num_prompts", [16, pytest.param(64, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        *((0.3, 3), (2, 2)),
        *(
            pytest.param(a, b, marks=pytest.mark.slow)
            for a, b in ((0.5, 0.5), (0.1, 5), (5, 0.3))
        ),
    ],
)
def test_intervals_hold_the_truth_in_95_of_100_cases(a, b, num_prompts):
    """Prompts whose chance of a right completion is drawn from Beta(a, b)."""
    rng = np.random.default_rng(7)
    num_samples, num_trials, ks = 8, 1000, [1, 4, 8]
    truth = 1 - ((1 - rng.beta(a, b, size=(10**6, 1))) ** ks).mean(axis=0)
    chances = rng.beta(a, b, size=(num_trials, num_prompts))
    counts = rng.binomial(num_samples, chances)

    held = np.zeros(len(ks))
    for row in counts:
        values = pass_at_k(num_samples, row.tolist(), ks)
        low, high = mean_interval(values, num_samples=num_samples)
        held += (low <= truth) & (truth <= high)

    shares = held / num_trials
    assert (shares >= 0.88).all(), shares
    assert 0.93 <= shares.mean() <= 0.995, shares
