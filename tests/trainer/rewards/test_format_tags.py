from __future__ import annotations

import pytest

from tests.trainer.rewards.scores import score

RIGHT = "<think>two twos</think>\n<answer>4</answer>"


@pytest.mark.parametrize(
    "completion",
    [
        RIGHT,
        "<think></think><answer></answer>",
        f"  {RIGHT}\n",
        "<think>a < b\n\nand c</think>   <answer>\n4\n</answer>",
    ],
)
def test_think_then_answer_scores_one(completion):
    assert score("format_tags", completion) == 1.0


@pytest.mark.parametrize(
    "completion",
    [
        "",
        "4",
        "<answer>4</answer>",
        "<think>two twos</think>",
        "<answer>4</answer><think>two twos</think>",
        f"Sure! {RIGHT}",
        f"{RIGHT} That is all.",
        "<think>two twos</think> so <answer>4</answer>",
        "<think>two twos<answer>4</answer></think>",
        f"{RIGHT}{RIGHT}",
        "<think>a <think>b</think>\n<answer>4</answer>",
        "<think>a</think>\n<answer>4</answer></answer>",
        "<THINK>two twos</THINK><answer>4</answer>",
    ],
)
def test_anything_else_scores_zero(completion):
    assert score("format_tags", completion) == 0.0


def test_the_prefix_counts_as_part_of_the_completion():
    completion = "two twos</think><answer>4</answer>"

    assert score("format_tags", completion) == 0.0
    assert score("format_tags", completion, completion_prefix="<think>") == 1.0


def test_other_tags_can_be_asked_for():
    completion = "<reasoning>so</reasoning><final>4</final>"

    assert (
        score("format_tags", completion, think_tag="reasoning", answer_tag="final")
        == 1.0
    )


def test_an_empty_think_tag_asks_for_an_answer_block_alone():
    assert score("format_tags", "<answer>4</answer>", think_tag="") == 1.0
    assert score("format_tags", RIGHT, think_tag="") == 0.0


@pytest.mark.parametrize(
    ("separator", "between", "expected"),
    [
        ("newline", "\n", 1.0),
        ("newline", "", 0.0),
        ("newline", "\n\n", 0.0),
        ("nothing", "", 1.0),
        ("nothing", "\n", 0.0),
        ("space", " \n\t", 1.0),
    ],
)
def test_the_separator_is_as_asked(separator, between, expected):
    completion = f"<think>so</think>{between}<answer>4</answer>"

    assert score("format_tags", completion, separator=separator) == expected


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("<think>so</think> it is 4", 0.1),
        ("it is <answer>4</answer>", 0.5),
        ("<think>so</think> it is <answer>4</answer>", 0.6),
        ("</think> it is <answer>4", 0.0),
    ],
)
def test_partial_credit_is_given_for_blocks_when_asked(completion, expected):
    credit = {"think_credit": 0.1, "answer_credit": 0.5}

    assert score("format_tags", completion, **credit) == pytest.approx(expected)


def test_the_answer_can_be_held_to_a_pattern():
    wanted = {"answer_pattern": r"[0-9]+", "other_answer_score": 0.5}

    assert score("format_tags", RIGHT, **wanted) == 1.0
    assert score("format_tags", RIGHT.replace("4", "four"), **wanted) == 0.5


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("<think>so</think> It is 4.", 1.0),
        ("<think>so</think>", 1.0),
        ("<think>so It is 4.", 0.0),
        ("Well, <think>so</think> 4", 0.0),
        ("<think>so</think> 4 <think>or</think>", 0.0),
    ],
)
def test_any_text_may_follow_the_thinking(completion, expected):
    assert score("format_tags", completion, answer_tag="") == expected


def test_a_format_without_any_tag_is_refused():
    with pytest.raises(ValueError, match="_tag"):
        score("format_tags", "", answer_tag="", think_tag="")
