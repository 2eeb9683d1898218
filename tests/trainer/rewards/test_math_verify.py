from __future__ import annotations

import threading

import pytest

from tests.trainer.rewards.scores import score, scored
from trainer.rewards.judge import JudgeFailed, ask


def grade(completion: str, answer: str | None, **params) -> float | None:
    return score("math_verify", completion, answer, source="whole", **params)


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [
        (r"so \boxed{\frac{1}{2}}", "1/2", 1.0),
        ("The answer is 0.5.", r"\frac{1}{2}", 1.0),
        ("$x^2+2x+1$", "(x+1)^2", 1.0),
        ("$x^2+1$", "(x+1)^2", 0.0),
        ("it is 41", "42", 0.0),
        ("no idea", "42", 0.0),
        ("", "42", 0.0),
    ],
)
def test_answers_are_compared_as_mathematics(completion, answer, expected):
    assert grade(completion, answer) == expected


def test_a_bare_formula_inside_the_tags_is_read_whole():
    completion = "<answer>1+x^2</answer>"

    assert score("math_verify", completion, "x^2+1") == 1.0
    assert score("math_verify", completion, "1") == 0.0


@pytest.mark.parametrize("answer", [None, "", "Paris", "the second one"])
def test_an_answer_column_without_mathematics_gives_no_score(answer):
    result = scored("math_verify", "<answer>42</answer>", answer)

    assert result.total is None
    assert result.errors["it"]


def test_it_works_outside_the_main_thread():
    found: list[float | None] = []
    threads = [
        threading.Thread(target=lambda: found.append(grade("it is 42", "42")))
        for _ in range(4)
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == [1.0] * 4


def test_an_answer_that_takes_too_long_gets_no_score_and_the_next_one_does():
    hanging = r"$\frac{9^{9^{9^{9}}}}{7}!$"

    result = scored("math_verify", hanging, "42", source="whole", timeout_seconds=0.3)

    assert result.total in {None, 0.0}
    assert grade("it is 42", "42") == 1.0


def test_the_judge_is_ended_when_its_time_is_up():
    question = {"reference": "42", "text": "42", "is_bare": True}
    ask("math_verify", question, timeout_seconds=60)

    with pytest.raises(JudgeFailed, match=r"exceeded 1e-06 s"):
        ask("math_verify", question, timeout_seconds=1e-6)

    assert ask("math_verify", question, timeout_seconds=60)["is_right"]


def test_only_the_end_of_a_very_long_completion_is_read():
    assert grade("so " * 40_000 + "the answer is 42", "42") == 1.0
