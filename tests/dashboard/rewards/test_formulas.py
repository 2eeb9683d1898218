"""A recipe's composition as a line of text, and schedules read again."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.rewards.recipe_editor import RecipeDraft
from dashboard.rewards.recipe_text import read_schedule, write_formula, write_schedule
from trainer.rewards.spec import Recipe
from trainer.rewards.terms import Schedule, Turn

NAMES = ("format", "answer")


def recipe(*changes: dict[str, Any], **others: Any) -> Recipe:
    rules = [
        {"name": name, "kind": "length"} | change
        for name, change in zip(NAMES, changes, strict=False)
    ]
    return Recipe.model_validate({"rules": rules, **others})


GATE = {"rule": "format", "at_least": 1.0}
FADING = [{"step": 101, "weight": 0.1}, {"step": 201, "weight": -2.0}]


def test_each_composition_is_one_line():
    unless = GATE | {"otherwise": "not_applicable"}
    for made, text in (
        (recipe({}), "1·format"),
        (recipe({"weight": -1}, {"weight": -0.25}), "−1·format − 0.25·answer"),
        (recipe({}, {"only_if": GATE}), "1·format + 1·answer if format ≥ 1"),
        (
            recipe({}, {"only_if": unless}),
            "1·format + 1·answer if format ≥ 1 else n/a",
        ),
        (
            recipe({"clip": {"low": 0, "high": 1}}, {}, clip={"high": 1.5}),
            "1·format clipped to [0, 1] + 1·answer, clipped to [−∞, 1.5]",
        ),
        (
            recipe({"weight": 0.5, "schedule": {"points": FADING}}),
            "(0.5 to 0.1 at step 101 to −2 at step 201)·format",
        ),
        (
            recipe({"schedule": {"shape": "steps", "points": FADING[:1]}}),
            "(1 then 0.1 at step 101)·format",
        ),
        (
            recipe({}, {"weight": -2}, combine="product"),
            "product(1·format, −2·answer)",
        ),
        (recipe({}, combine="minimum"), "minimum(1·format)"),
        (
            recipe({}, {}, combine="normalize_then_sum"),
            "normalised(1·format, 1·answer)",
        ),
    ):
        assert write_formula(made) == text
        plain = recipe(*({} for _ in made.rules))
        draft = RecipeDraft.of(plain)
        draft.apply_formula(text)
        assert draft.validate() == made, text


NUMBERS = st.floats(-1_000, 1_000).map(lambda x: x + 0.0)
SCHEDULES = st.builds(
    lambda shape, steps, weights: Schedule(
        shape=shape,
        points=[
            Turn(step=step, weight=weight)
            for step, weight in zip(sorted(steps), weights, strict=False)
        ],
    ),
    st.sampled_from(["linear", "steps"]),
    st.sets(st.integers(2, 10**9), min_size=1, max_size=3),
    st.lists(NUMBERS, min_size=3, max_size=3),
)


@given(made=SCHEDULES)
def test_any_schedule_is_read_as_it_was_written(made):
    assert Schedule.model_validate(read_schedule(write_schedule(made))) == made


def test_a_schedule_accepts_ascii_minus_and_spaces():
    point = {"step": 9, "weight": -0.5}

    assert read_schedule(" then  -.5 at step 9 ") == {
        "shape": "steps",
        "points": [point],
    }


def test_an_invalid_schedule_is_quoted():
    for text, quoted in (
        ("", '""'),
        ("0.1 at step 2", '"0.1 at step 2"'),
        ("to 1 at stop 3", '"to 1 at stop 3"'),
        ("to 1 at step 3 to x", '"to x"'),
        ("to 1 at step 3 then 2 at step 4", '"then 2 at step 4"'),
        ("to 1 at step 1.5", '"to 1 at step 1.5"'),
        ("to 1 at step 3to 2 at step 4", '"to 1 at step 3to 2 a"'),
    ):
        with pytest.raises(ValueError, match=re.escape(f"at {quoted}.")):
            read_schedule(text)
