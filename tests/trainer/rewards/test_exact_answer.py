from __future__ import annotations

import pytest

from tests.trainer.rewards.scores import score, scored


@pytest.mark.parametrize(
    ("completion", "params", "expected"),
    [
        ("<answer>Paris</answer>", {}, 1.0),
        ("<answer> paris. </answer>", {}, 1.0),
        ("Paris", {}, 0.0),
        ("<answer>Lyon</answer><answer>Paris</answer>", {}, 1.0),
        ("<answer>Paris</answer><answer>Lyon</answer>", {}, 0.0),
        ("<answer>Paris", {}, 0.0),
        ("<answer>paris</answer>", {"ignore_case": False}, 0.0),
        ("<answer>Paris.</answer>", {"ignore_final_period": False}, 0.0),
        ("<final>Paris</final>", {"tag": "final"}, 1.0),
        ("Let me see.\n\nParis\n", {"source": "last_line"}, 1.0),
        ("Paris\nI think.", {"source": "last_line"}, 0.0),
        (r"so \boxed{ Paris }, or \boxed{Paris}.", {"source": "boxed"}, 1.0),
        (r"\boxed{Paris}, no, \boxed{Lyon}", {"source": "boxed"}, 0.0),
        ("Paris", {"source": "boxed"}, 0.0),
        (" Paris ", {"source": "whole"}, 1.0),
        ("It is Paris", {"source": "whole"}, 0.0),
    ],
)
def test_the_answer_is_compared_as_text(completion, params, expected):
    assert score("exact_answer", completion, "Paris", **params) == expected


@pytest.mark.parametrize(
    ("white_space", "expected"), [("strip", 0.0), ("collapse", 0.0), ("remove", 1.0)]
)
def test_white_space_inside_an_answer_counts_unless_removed(white_space, expected):
    found = score("exact_answer", "<answer>N Y</answer>", "NY", white_space=white_space)

    assert found == expected


def test_runs_of_white_space_count_as_one_space_when_collapsed():
    completion = "<answer>New \n York</answer>"

    assert score("exact_answer", completion, "New York") == 1.0
    assert score("exact_answer", completion, "New York", white_space="strip") == 0.0


@pytest.mark.parametrize("answer", [None, "", "  "])
def test_a_row_without_an_answer_gives_no_score(answer):
    result = scored("exact_answer", "<answer>Paris</answer>", answer)

    assert result.total is None
    assert "has no answer" in result.errors["it"]
