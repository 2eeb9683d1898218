from __future__ import annotations

from typing import Any

import pytest

from tests.trainer.rewards.scores import recipe_of
from trainer.rewards.sample import Sample
from trainer.rewards.scoring import score_all


def agreeing(*completions: str, **params: Any) -> list[float | None]:
    samples = [Sample("p", text) for text in completions]
    return [
        score.total for score in score_all(recipe_of("majority", **params), samples)
    ]


def test_the_most_frequent_answer_scores_however_it_is_written():
    found = agreeing("It is 0.5", "so 1/2", "no, 3", "$0.50", "I do not know")

    assert found == [1.0, 1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("kind", "settings", "completions"),
    [
        ("numeric_answer", {"source": "boxed"}, [r"\boxed{4}", r"\boxed{4.0} or 5"]),
        ("numeric_answer", {"source": "marker"}, ["#### 4\n5", "so #### $4"]),
        ("multiple_choice", {}, ["<answer>(B)</answer>", "<answer>b.</answer>"]),
        ("exact_answer", {"source": "boxed"}, [r"\boxed{Paris}", r"\boxed{ paris.}"]),
        ("marker_answer", {}, ["#### 1,000", "#### 1000"]),
    ],
)
def test_answers_are_read_as_their_rule_reads_them(kind, settings, completions):
    found = agreeing(*completions, "C", answer_kind=kind, answer_params=settings)

    assert found == [1.0, 1.0, 0.0]


@pytest.mark.parametrize(("ties", "expected"), [("none", 0.0), ("all", 1.0)])
def test_a_tie_is_nobodys_or_everybodys(ties, expected):
    assert agreeing("1", "2", "1", "2", "3", ties=ties) == [*[expected] * 4, 0.0]


def test_an_answer_that_nobody_shares_is_no_majority():
    assert agreeing("1", "none", ties="all") == [0.0, 0.0]
    assert agreeing("none", "neither") == [0.0, 0.0]


def test_a_share_may_be_asked_for():
    assert agreeing("1", "1", "2", "3", minimum_share=0.5) == [1.0, 1.0, 0.0, 0.0]
    assert agreeing("1", "1", "2", "3", minimum_share=0.51) == [0.0] * 4


def test_one_alone_cannot_be_judged_and_that_is_no_error():
    (score,) = score_all(recipe_of("majority"), [Sample("p", "4")])

    assert score.total is None
    assert score.not_applicable == ["it"]
