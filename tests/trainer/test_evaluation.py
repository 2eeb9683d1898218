"""pass@k and maj@k."""

from __future__ import annotations

import itertools

import pytest

from trainer.answers import answer_reader
from trainer.evaluation import (
    evaluation_metrics,
    majority,
    pass_at_k,
    powers_of_two,
)
from trainer.groups import Completion, Group
from trainer.prompts import Prompt, Row
from trainer.rewards.scoring import Score
from trainer.rewards.spec import Recipe


def test_pass_at_k_is_the_share_of_draws_with_a_right_one() -> None:
    outcomes = [True, True, False, False, False]
    for k in range(1, 6):
        draws = list(itertools.combinations(outcomes, k))
        share = sum(any(draw) for draw in draws) / len(draws)
        assert pass_at_k(5, 2, k) == pytest.approx(share)


def test_pass_at_k_of_many_samples_does_not_overflow() -> None:
    assert pass_at_k(1024, 1, 512) == pytest.approx(0.5)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 5, 1), (4, 1, 0)])
def test_pass_at_k_refuses_what_makes_no_sense(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match=r"pass@k"):
        pass_at_k(n, c, k)


def test_ks_are_powers_of_two_and_the_number_of_samples() -> None:
    assert powers_of_two(1) == [1]
    assert powers_of_two(8) == [1, 2, 4, 8]
    assert powers_of_two(6) == [1, 2, 4, 6]


def test_the_first_of_equally_frequent_answers_wins() -> None:
    assert majority(["b", None, "a", "a", "b"]) == "b"
    assert majority([None, None]) is None


def group(*texts: str, right: str) -> Group:
    row = Row(index=0, prompt="?", answer=right, columns={})
    scores = [float(text == right) for text in texts]
    return Group(
        prompt=Prompt(row=row, text="?", token_ids=(3,)),
        completions=tuple(
            Completion(text=t, token_ids=(3, 1), logprobs=(0, 0), end_reason="stop")
            for t in texts
        ),
        scores=tuple(Score(s, {"answer": s}, {}) for s in scores),
    )


def recipe(kind: str, **params: object) -> Recipe:
    return Recipe.model_validate(
        {"rules": [{"name": "answer", "kind": kind, "params": params}]}
    )


def test_metrics_of_held_out_groups() -> None:
    groups = [
        group("4", "5", "4", "4", right="4"),
        group("7", "8", "8", "9", right="7"),
    ]
    reader = answer_reader(recipe("numeric_answer"))

    metrics = evaluation_metrics(groups, highest=1.0, read_answer=reader)

    assert metrics["mean"] == pytest.approx(4 / 8)
    assert metrics["pass@1"] == pytest.approx(4 / 8)
    assert metrics["pass@4"] == 1.0
    assert metrics["maj@4"] == 0.5
    assert metrics["frac_truncated"] == 0.0
    assert metrics["mean_length"] == 2.0


def test_numbers_written_differently_are_one_answer() -> None:
    read = answer_reader(recipe("numeric_answer"))
    assert read is not None

    assert read("so 0.5") == read("it is 1/2")
    assert read("none") is None


def test_texts_between_tags_can_be_compared() -> None:
    read = answer_reader(recipe("exact_answer"))
    assert read is not None

    assert read("<answer> 4 </answer>") == "4"


def test_rules_without_an_answer_have_no_majority() -> None:
    assert answer_reader(recipe("length")) is None
