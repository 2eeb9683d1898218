"""A recipe's composition as a line of text: written, read again, wrong at a place."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.rewards.formulas import FormulaError, read_formula, write_formula
from trainer.rewards.spec import Recipe

NAMES = ("format", "answer", "if", "product", "step")


def recipe(*changes: dict[str, Any], **others: Any) -> Recipe:
    rules = [
        {"name": name, "kind": "length"} | change
        for name, change in zip(NAMES, changes, strict=False)
    ]
    return Recipe.model_validate({"rules": rules, **others})


def read(text: str, rules: Recipe | None = None) -> Recipe:
    known = rules or recipe(*[{}] * len(NAMES))
    return Recipe.model_validate(read_formula(text, known.rules))


GATE = {"rule": "format", "at_least": 1.0}
FADING = [{"step": 101, "weight": 0.1}, {"step": 201, "weight": -2.0}]


def test_each_composition_is_one_line_and_back():
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
        assert read(text) == made


def test_what_a_keyboard_has_is_read_too():
    assert read("2*format -1 * answer if format>=.5") == recipe(
        {"weight": 2},
        {"weight": -1, "only_if": {"rule": "format", "at_least": 0.5}},
    )


def test_rules_keep_their_settings_go_and_come():
    known = recipe({"params": {"maximum": 7}}, {})

    found = read("1·tag_count + 2·format", known)

    assert [rule.kind for rule in found.rules] == ["tag_count", "length"]
    assert found.rules[1].params["maximum"] == 7


NUMBERS = st.floats(-1_000, 1_000).map(lambda x: x + 0.0)
LIMITS = st.floats(-10, 10, allow_subnormal=False).map(lambda x: x + 0.0)
CLIPS = st.one_of(
    st.none(),
    st.builds(lambda low: {"low": low}, LIMITS),
    st.builds(lambda high: {"high": high}, LIMITS),
    st.builds(lambda low: {"low": low, "high": low + 1}, LIMITS),
)
SCHEDULES = st.none() | st.builds(
    lambda shape, steps, weights: {
        "shape": shape,
        "points": [
            {"step": step, "weight": weight}
            for step, weight in zip(sorted(steps), weights, strict=False)
        ],
    },
    st.sampled_from(["linear", "steps"]),
    st.sets(st.integers(2, 10**9), min_size=1, max_size=3),
    st.lists(NUMBERS, min_size=3, max_size=3),
)


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    names = NAMES[: draw(st.integers(1, len(NAMES)))]
    rules = []
    for name in names:
        others = [other for other in names if other != name]
        gate = st.none()
        if others:
            gate |= st.builds(
                dict,
                rule=st.sampled_from(others),
                at_least=st.floats(-10, 1).map(lambda x: x + 0.0),
                otherwise=st.sampled_from(["zero", "not_applicable"]),
            )
        rules.append(
            {
                "name": name,
                "kind": "length",
                "weight": draw(NUMBERS),
                "schedule": draw(SCHEDULES),
                "clip": draw(CLIPS),
                "only_if": draw(gate),
            }
        )
    rules[0]["weight"] = rules[0]["weight"] or 1.0
    combine = draw(st.sampled_from(["sum", "product", "minimum", "normalize_then_sum"]))
    clip = None if combine == "normalize_then_sum" else draw(CLIPS)
    return Recipe.model_validate({"rules": rules, "combine": combine, "clip": clip})


@given(made=recipes())
def test_any_recipe_survives_its_formula(made):
    assert read(write_formula(made), made) == made


def test_a_wrong_formula_is_told_where():
    for text, at, said in (
        ("", 0, "a number"),
        ("format", 0, "1·"),
        ("1·format + ", 10, "a number"),
        ("1·fromat", 2, '"fromat"'),
        ("1·format + 1·answer if format > 1", 30, "nothing here"),
        ("1·format + 1·answer if size ≥ 1", 23, '"size"'),
        ("1·format if format ≥ 1", 12, '"format"'),
        ("1·format + 1·format", 13, "second time"),
        ("1·format clipped to [0; 1]", 22, "nothing here"),
        ("1·format clipped [0, 1]", 17, "expected to"),
        ("(1 to 0.5)·format", 9, "expected at"),
        ("(1 to 0.5 at step 1.5)·format", 18, "whole number"),
        ("(1)·format", 2, '"to" or "then"'),
        ("product(1·format", 16, "expected )"),
        ("1·format 1·answer", 9, "expected + or −"),
        ("1e999·format", 0, "too large"),
        ("1·format, 1·answer", 10, "expected clipped"),
        ("1·format + 2·é", 13, "nothing here"),
    ):
        with pytest.raises(FormulaError) as wrong:
            read(text)

        assert said in str(wrong.value), text
        assert wrong.value.position == at, text
        assert f"Character {at + 1}" in str(wrong.value)


@given(text=st.text("1.·*+−-()[],∞≥>= productifclipedaswn/0", max_size=60))
def test_whatever_is_typed_is_read_or_refused_at_a_place(text):
    with contextlib.suppress(FormulaError):
        assert read_formula(text, recipe(*[{}] * len(NAMES)).rules)["rules"]
