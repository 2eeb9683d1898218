"""Phrases within completions and between prompts; rules that disagree."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dashboard.analysis.audit.completions import (
    disagreement,
    pairs_of,
    reward_by_length,
)
from dashboard.analysis.audit.texts import (
    SampledGroup,
    Text,
    Vocabulary,
    repetition,
    risen_phrases,
    shared,
    split_words,
)


def group(prompt: int, texts: list[str], **given: Any) -> SampledGroup:
    none: list[None] = [None] * len(texts)
    fields = {"rewards": none, "lengths": none, "scores": {}, **given}
    return SampledGroup(prompt=prompt, texts=texts, **fields)


def read(*groups: SampledGroup) -> list[Text]:
    return Vocabulary().read(groups)


def test_words_are_split_at_white_space_except_in_chinese() -> None:
    assert split_words("So  IT is\n4.") == ["so", "it", "is", "4."]
    assert split_words("答案是 4 Ünder") == ["答", "案", "是", "4", "ünder"]


def test_repetition_counts_repeated_phrases() -> None:
    # a b c d, b c d a, c d a b, d a b c, a b c d: 4 distinct of 5
    texts = read(group(0, ["a b c d a b c d", "a b c d e"]))

    assert repetition(texts) == pytest.approx((0.2 + 0.0) / 2)


def test_short_texts_have_no_phrases() -> None:
    assert math.isnan(repetition(read(group(0, ["a b c", ""]))))
    assert math.isnan(shared(read(group(0, ["a b c", ""]), group(1, ["a b c"]))))


def test_phrases_are_shared_with_other_prompts_only() -> None:
    texts = read(
        group(0, ["let me think now", "let me think now hard"]),
        group(1, ["we let me think now", "all other words here"]),
    )

    # 1 of 1, 1 of 2; 1 of 2, 0 of 1
    assert shared(texts) == pytest.approx((1 + 0.5 + 0.5 + 0) / 4)


def test_one_prompt_has_no_shared_phrases() -> None:
    assert math.isnan(shared(read(group(0, ["let me think now"] * 3))))


def test_risen_phrases_are_listed_once() -> None:
    vocabulary = Vocabulary()
    before = vocabulary.read([group(0, [f"one two {n} four five" for n in range(10)])])
    after = vocabulary.read(
        [group(0, [f"Let me  think step by step {n}" for n in range(8)] + ["x"] * 2)]
    )

    (phrase,) = risen_phrases(before, after, vocabulary)

    assert phrase.words in {
        "let me think step",
        "me think step by",
        "think step by step",
    }
    assert (phrase.before, phrase.of_before) == (0, 10)
    assert (phrase.after, phrase.of_after) == (8, 10)


def test_a_phrase_that_was_as_common_before_has_not_risen() -> None:
    vocabulary = Vocabulary()
    texts = vocabulary.read([group(0, ["let me think now"] * 4)])

    assert risen_phrases(texts, texts, vocabulary) == []
    assert risen_phrases([], texts, vocabulary) == []


def slow_disagreement(groups: list[SampledGroup]) -> float:
    same = opposite = 0
    for each in groups:
        pairs = list(zip(each.scores["a"], each.scores["b"], strict=True))
        for (a, b), (c, d) in combinations(pairs, 2):
            if None in (a, b, c, d):
                continue
            sign = (a - c) * (b - d)  # type: ignore[operator]
            same, opposite = same + (sign > 0), opposite + (sign < 0)
    return opposite / (same + opposite)


def test_disagreement_is_the_share_of_pairs_in_opposite_order() -> None:
    random = np.random.default_rng(0)
    groups = [
        group(
            n,
            [""] * 6,
            scores={
                "a": random.integers(0, 3, 6).tolist(),
                "b": [None, *random.integers(0, 3, 5).tolist()],
            },
        )
        for n in range(5)
    ]

    assert disagreement(groups, "a", "b") == pytest.approx(slow_disagreement(groups))
    assert disagreement(groups, "a", "a") == 0
    assert math.isnan(disagreement(groups, "a", "unknown"))
    assert math.isnan(disagreement([group(0, [""], scores={"a": [1.0]})], "a", "a"))


def test_reward_and_length_are_compared_within_groups() -> None:
    # Between the groups the longer one has less reward, within each one more.
    groups = [
        group(0, [""] * 3, rewards=[1.0, 2.0, 3.0], lengths=[10, 20, 30]),
        group(1, [""] * 3, rewards=[-9.0, -8.0, None], lengths=[100, 110, 500]),
    ]
    ours = [-1.0, 0, 1, -0.5, 0.5]
    theirs = [-10.0, 0, 10, -5, 5]

    assert reward_by_length(groups) == pytest.approx(stats.pearsonr(ours, theirs)[0])
    flat = group(0, [""] * 2, rewards=[1.0, 1.0], lengths=[1, 2])
    assert math.isnan(reward_by_length([flat]))


def test_equal_rewards_go_with_no_length() -> None:
    # Their mean differs from them in the last digit, which is no variation.
    assert np.mean([0.1] * 3) != 0.1
    tied = [
        group(n, [""] * 3, rewards=[0.1] * 3, lengths=[1, 3_000, 9_000 + n])
        for n in range(20)
    ]

    assert math.isnan(reward_by_length(tied))


def test_huge_rewards_go_with_length_as_small_ones_do() -> None:
    lengths = [10, 30, 20]
    small = group(0, [""] * 3, rewards=[1.0, 2.0, 4.0], lengths=lengths)
    huge = group(0, [""] * 3, rewards=[1e300, 2e300, 4e300], lengths=lengths)

    assert reward_by_length([huge]) == pytest.approx(reward_by_length([small]))


def test_all_pairs_of_eight_rules_are_compared() -> None:
    assert pairs_of(["a", "b", "c"]) == [("a", "b"), ("a", "c"), ("b", "c")]
    assert len(pairs_of([str(n) for n in range(20)])) == 28
    assert pairs_of(["a"]) == []
