from __future__ import annotations

import pytest

from tests.trainer.rewards.scores import score


@pytest.mark.parametrize(
    ("completion", "num_found"),
    [
        ("It is 6.", 0),
        ("Step 1: add.", 1),
        ("1. add\n2. add\n", 2),
        ("- add\n* add", 2),
        ("First, add. Next, add. Finally, 6.", 3),
        ("First of all", 0),
        ("it is 2. or 3.", 0),  # not at a line's beginning
        ("1. 2. 3.", 1),
        ("Step 1: a\nStep 2: b\nStep 3: c\nStep 4: d", 3),
    ],
)
def test_each_marker_gives_its_share_up_to_all(completion, num_found):
    assert score("reasoning_steps", completion) == num_found / 3


def test_fewer_steps_may_be_asked_for():
    assert score("reasoning_steps", "Step 1: add.", num_steps=1) == 1.0


def test_markers_may_be_ones_own():
    completion = "So a. So b."

    assert score("reasoning_steps", completion, pattern="So", num_steps=2) == 1.0
    assert score("reasoning_steps", "1. add", pattern="So") == 0.0


def test_a_pattern_that_is_none_is_refused():
    with pytest.raises(ValueError, match="parameter pattern"):
        score("reasoning_steps", "", pattern="(?=a)")
