"""Right and short beside the others, as Kimi k1.5 and Open R1 reward it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.trainer.rewards.scores import recipe_of
from trainer.rewards.sample import Sample
from trainer.rewards.scoring import score_all

NUMBERS = {"answer_kind": "numeric_answer"}
PUBLISHED = {"mode": "as_published"}
RIGHT, WRONG = r"$\boxed{7}$", r"$\boxed{8}$"


def ranked(
    *completions: str, answer: str | None = "7", **params: Any
) -> list[float | None]:
    samples = [Sample("p", text, answer) for text in completions]
    scores = score_all(recipe_of("length_rank", **params), samples)
    return [score.total for score in scores]


# What Open R1's len_reward gives for completions of these lengths, by its definition.
@pytest.mark.parametrize(
    ("right", "lengths", "expected"),
    [
        ((True, True, True), (20, 30, 40), (0.5, 0.0, -0.5)),
        ((True, True, True), (20, 25, 40), (0.5, 0.25, -0.5)),
        ((False, False, False), (20, 25, 40), (0.0, 0.0, -0.5)),
        ((False, True, False), (20, 40, 35), (0.0, -0.5, -0.25)),
        ((True, False), (20, 20), (0.0, 0.0)),
        ((True,), (20,), (0.0,)),
    ],
)
def test_open_r1s_len_reward(right, lengths, expected):
    texts = [
        (RIGHT if each else WRONG).ljust(n)
        for each, n in zip(right, lengths, strict=True)
    ]

    assert ranked(*texts, answer="$7$", **PUBLISHED) == pytest.approx(expected)


def test_a_row_whose_answer_is_no_mathematics_counts_as_right_as_published():
    texts = RIGHT, WRONG.ljust(40)

    assert ranked(*texts, answer="", **PUBLISHED) == [0.5, -0.5]
    assert ranked(*texts, answer="") == [None, None]


def test_lengths_are_counted_in_words_where_asked():
    found = ranked("7", "wwwwwwwwwwwwwwwwwww 7", "no, it is 7", unit="words", **NUMBERS)

    assert found == pytest.approx([0.5, 0.5 - 1 / 3, -0.5])


def test_one_that_cannot_be_judged_leaves_the_others_their_scores(monkeypatch):
    from trainer.rewards.rules.rightness import ANSWER_RULES
    from trainer.rewards.sample import Unscorable

    rule = ANSWER_RULES["numeric_answer"]
    judge = type(rule).judge

    def fail_at_first(self, samples, params):
        return [Unscorable("The grader was lost."), *judge(self, samples, params)[1:]]

    monkeypatch.setattr(type(rule), "judge", fail_at_first)
    samples = [Sample("p", text, "7") for text in ("7", "so 7", "it is 7")]
    spec = recipe_of("length_rank", **NUMBERS).rules[0]

    from trainer.rewards.rules.length import score_lengths

    first, *others = score_lengths(samples, spec.checked_params())

    assert isinstance(first, Unscorable)
    assert others == [0.0, -0.5]
