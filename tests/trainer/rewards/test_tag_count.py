from __future__ import annotations

import pytest

from tests.trainer.rewards.scores import score


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("<think>so</think><answer>4</answer>", 1.0),
        ("</answer><answer></think><think>", 1.0),  # their order is not looked at
        ("<think>so</think> 4", 0.5),
        ("<answer>4", 0.25),
        ("4", 0.0),
        ("<think><think>so</think><answer>4</answer>", 0.75),  # once means once
        ("<THINK>so</THINK>", 0.0),
    ],
)
def test_each_tag_that_occurs_once_gives_its_share(completion, expected):
    assert score("tag_count", completion) == expected


def test_a_tag_may_occur_as_often_as_it_likes_when_presence_counts():
    completion = "<reasoning><reasoning></reasoning>"

    found = score("tag_count", completion, names="reasoning,answer", count="present")

    assert found == 0.5


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("<think>\nso\n</think>\n<answer>\n4\n</answer>", 1.0),
        ("<think>\nso\n</think>\n<answer>\n4\n</answer> bye", 1.0),
        ("<think>so</think>\n<answer>4</answer>", 0.0),
        ("<think>\nso</think>\n<answer>\n4</answer>", 0.5),
    ],
)
def test_tags_can_be_held_to_their_line_breaks(completion, expected):
    assert score("tag_count", completion, line_breaks="between") == expected


@pytest.mark.parametrize("names", ["", "a,", "a b", "<a>", ",".join("abcdefghi")])
def test_names_that_are_no_tags_are_refused(names):
    with pytest.raises(ValueError, match="parameter names"):
        score("tag_count", "", names=names)
