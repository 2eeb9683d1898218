from __future__ import annotations

import pytest

from tests.trainer.rewards.scores import score
from tests.trainer.rewards.test_published_rewards import said

NUMBERS = {"answer_kind": "numeric_answer"}


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("<think>5</think>4", 1.0),
        ("<think>4</think>5", 0.0),
        ("<think>4", 0.0),
        ("4</think>5</think>4", 1.0),
        ("<think>4</think>", 0.0),
    ],
)
def test_what_follows_the_reasoning_is_judged(completion, expected):
    assert score("reasoning_answer", completion, "4", **NUMBERS) == expected


def test_the_first_delimiter_that_occurs_says_where():
    both = {"delimiters": ["</a>", "</b>"], **NUMBERS}

    assert score("reasoning_answer", "5</a>4</b>5", "4", **both) == 0.0
    assert score("reasoning_answer", "5</b>4", "4", **both) == 1.0


def test_a_row_without_an_answer_is_not_judged_once_the_reasoning_ends():
    assert score("reasoning_answer", "</think>4", None, **NUMBERS) is None


@pytest.mark.parametrize(
    "completion",
    [
        r"<think> a </think> The answer is $\boxed{\frac{1}{3}}$",
        r"<think> a </think> The answer is $\boxed{\frac{1}{2}}$",
        r"<think> $\boxed{\frac{1}{3}}$ but no final answer",
        r"</think> $\boxed{\frac{1}{2}}$ </think> $\boxed{\frac{2}{6}}$",
        r"<think></think> 1/3",
        r"<think> $\boxed{\frac{1}{3}}$ </think> so be it",
    ],
)
@pytest.mark.parametrize("delimiters", [["</think>"], ["<answer>", "</think>"]])
def test_trls_reasoning_accuracy_reward(completion, delimiters):
    from trl.rewards import reasoning_accuracy_reward

    gold = r"\frac{1}{3}"
    (expected,) = reasoning_accuracy_reward(
        said(completion), [gold], reasoning_delimiters=delimiters
    )

    found = score(
        "reasoning_answer",
        completion,
        gold,
        delimiters=delimiters,
        mode="as_published",
    )

    assert found == expected
