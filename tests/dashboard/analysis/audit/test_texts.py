"""Pieces of completions, how they repeat, and what of them the reward follows."""

import math

import numpy as np
import pytest
from scipy import stats

from dashboard.analysis.audit.completions import Feature, Study, repetition
from dashboard.analysis.audit.texts import SampledGroup, Text, Vocabulary, split


def pieces(*texts: str) -> list[Text]:
    vocabulary = Vocabulary()
    return [vocabulary.read(text) for text in texts]


def test_texts_are_split_into_words_numbers_marks_and_chinese_characters():
    assert split("So  IT is\n4.") == ["so", "it", "is", "4", "."]
    assert split("12+3=15") == ["12", "+", "3", "=", "15"]
    assert split("答案是 4 Ünder") == ["答", "案", "是", "4", "ünder"]


def test_repetition_counts_repeated_phrases():
    # a b c d, b c d a, c d a b, d a b c, a b c d: 4 distinct of 5
    texts = pieces("a b c d a b c d", "a b c d e")

    assert repetition(texts) == pytest.approx((0.2 + 0.0) / 2)


def test_text_without_spaces_repeats_as_text_with_spaces_does():
    assert repetition(pieces("1+2=3," * 9)) == repetition(pieces("1 + 2 = 3 , " * 9))
    assert repetition(pieces("1+2=3," * 9)) > 0.8


def test_short_texts_have_no_phrases():
    assert math.isnan(repetition(pieces("a b c", "")))


def studied(*, paid: str, num_steps: int = 40) -> Study:
    """Texts with more and more of a mark; rewards are its count, or chance."""
    chance = np.random.default_rng(0)
    study = Study()
    for step in range(1, num_steps + 1):
        groups = []
        for prompt in range(3):
            counts = [step // 4 + int(chance.integers(0, 6)) for _ in range(4)]
            texts = [f"{prompt} is {'= ' * count}{step}" for count in counts]
            given = {"marks": counts, "chance": chance.integers(0, 2, 4).tolist()}
            groups.append(SampledGroup(texts, [float(r) for r in given[paid]]))
        study.add(step, groups)
    return study


def find(study: Study, name: str) -> Feature:
    return next(each for each in study.features() if each.name == name)


def test_a_mark_that_the_reward_counts_and_that_runs_away_is_found():
    feature = find(studied(paid="marks"), "=")

    assert feature.correlation == pytest.approx(1)
    assert feature.change.difference == pytest.approx(7.5, abs=0.5)
    assert feature.is_gamed


def test_a_mark_that_runs_away_without_pay_is_not():
    study = studied(paid="chance")

    feature = find(study, "=")

    assert feature.change.difference > 2 * feature.spread
    assert feature.low < 0.3
    assert not any(each.is_gamed for each in study.features())


def test_the_reward_is_compared_with_a_feature_within_groups():
    # Between the groups the longer one has less reward, within each one more.
    study = Study()
    for step in range(1, 25):
        short = SampledGroup(["a", "a b", "a b c"], [1.0, 2.0, 3.0])
        long = SampledGroup(["a " * 10, "a " * 12, "a " * 50], [-9.0, -8.0, None])
        tied = SampledGroup(["a", "a b c d e f"], [0.1, 0.1])
        study.add(step, [short, long, tied])
    ours, theirs = [-1.0, 0, 1, -0.5, 0.5], [-1.0, 0, 1, -1, 1]

    found = find(study, "length")

    assert found.correlation == pytest.approx(stats.pearsonr(ours, theirs)[0])
    z = np.arctanh(found.correlation) - 1.959964 / math.sqrt(24 * (5 - 2) - 2)
    assert found.low == pytest.approx(np.tanh(z))


def test_equal_and_huge_rewards_follow_as_they_should():
    # The mean of three 0.1 differs from 0.1 in the last digit, which is no variation.
    assert np.mean([0.1] * 3) != 0.1
    tied, huge = Study(), Study()
    for step in range(1, 25):
        texts = ["a", "a b", "a b c d"]
        tied.add(step, [SampledGroup(texts, [0.1] * 3)])
        huge.add(step, [SampledGroup(texts, [1e300, 2e300, 4e300])])

    assert find(tied, "length").correlation == 0
    assert find(huge, "length").correlation == pytest.approx(1)
