"""How rules' scores become a reward: gates, clips, schedules, sums and their like."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.trainer.rewards.scores import score_completion
from trainer.rewards.rule import Sample
from trainer.rewards.scoring import parts_of, reward_of
from trainer.rewards.spec import Recipe, recipe_bounds
from trainer.rewards.terms import AT_THE_END, Schedule

# Scores of these rules are given by the tests; the rules themselves are not asked.
A = {"name": "a", "kind": "length"}
B = {"name": "b", "kind": "length"}
PENALTY = {"name": "p", "kind": "repetition"}  # from -1 to 0


def recipe(*rules: dict[str, Any], **others: Any) -> Recipe:
    return Recipe.model_validate({"rules": rules, **others})


def reward(
    made: Recipe,
    *,
    step: int = 1,
    failed: tuple[str, ...] = (),
    **scores: float | None,
) -> float | None:
    return reward_of(made, parts_of(made, scores, step=step), failed=failed)


def complaint(*rules: dict[str, Any], **others: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        recipe(*rules, **others)
    return str(caught.value)


def only_if(rule: str, at_least: float, otherwise: str = "zero") -> dict[str, Any]:
    return {"only_if": {"rule": rule, "at_least": at_least, "otherwise": otherwise}}


OLD = (
    '{"rules": [{"name": "a", "kind": "length", "weight": 1.0, "params": {"unit": '
    '"characters", "minimum": 0, "maximum": 1000, "soft_edge": 0}}]}'
)


def test_a_recipe_of_weights_alone_is_written_as_it_always_was():
    made = Recipe.model_validate_json(OLD)

    assert json.dumps(made.model_dump(mode="json")) == OLD
    assert Recipe.model_validate(made.model_dump()) == made


def test_a_recipe_survives_writing_and_reading():
    made = recipe(
        A | {"schedule": {"points": [{"step": 9, "weight": 0.5}]}, "clip": {"low": 0}},
        B | only_if("a", 0.5),
        combine="product",
        clip={"high": 2},
    )

    tree = json.loads(made.model_dump_json())

    assert tree["rules"][0]["clip"] == {"low": 0.0}
    assert tree["clip"] == {"high": 2.0}
    assert Recipe.model_validate(tree) == made


@pytest.mark.parametrize(
    ("combine", "scores", "expected"),
    [
        ("sum", {"a": 1.0, "b": 0.5}, 2.25),
        ("normalize_then_sum", {"a": 1.0, "b": 0.5}, 2.25),
        ("product", {"a": 1.0, "b": 0.5}, 0.5),
        ("minimum", {"a": 1.0, "b": 0.5}, 0.25),
        ("sum", {"a": 1.0, "b": None}, 2.0),
        ("product", {"a": 1.0, "b": None}, 2.0),
        ("minimum", {"a": None, "b": 1.0}, 0.5),
        ("sum", {"a": None, "b": None}, None),
        ("product", {"a": None, "b": None}, None),
    ],
)
def test_parts_are_joined_and_what_does_not_apply_is_left_out(
    combine, scores, expected
):
    made = recipe(A | {"weight": 2}, B | {"weight": 0.5}, combine=combine)

    assert reward(made, **scores) == expected


@pytest.mark.parametrize("combine", ["product", "minimum"])
def test_a_failed_rule_raises_no_product_and_no_minimum(combine):
    made = recipe(A, B, combine=combine)

    assert reward(made, a=1.0, b=None, failed=("b",)) is None
    assert reward(made, a=1.0, b=None) == 1.0
    assert reward(recipe(A, B), a=1.0, b=None, failed=("b",)) == 1.0


def test_a_failed_gate_raises_no_product():
    made = recipe(A, B | only_if("c", 1), A | {"name": "c", "weight": 0})
    product = made.model_copy(update={"combine": "product"})

    assert reward(product, a=1.0, b=0.5, c=None, failed=("c",)) is None
    assert reward(made, a=1.0, b=0.5, c=None, failed=("c",)) == 1.0


@pytest.mark.parametrize("combine", ["product", "minimum"])
def test_a_rule_of_weight_0_does_not_affect_a_product_or_minimum(combine):
    made = recipe(A, B | {"weight": 0}, combine=combine)

    assert reward(made, a=0.5, b=0.25) == 0.5
    assert reward(made, a=0.5, b=None, failed=("b",)) == 0.5
    assert recipe_bounds(made) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("otherwise", "format", "expected"),
    [
        ("zero", 1.0, 1.5),
        ("zero", 0.99, 0.495),
        ("not_applicable", 1.0, 1.5),
        ("not_applicable", 0.5, 0.25),
        ("zero", None, None),  # no one can say, so neither has a score
    ],
)
def test_a_gate_lets_a_rule_count_from_its_threshold_on(otherwise, format, expected):
    made = recipe(A | {"weight": 0.5}, B | only_if("a", 1, otherwise))

    assert reward(made, a=format, b=1.0) == expected


def test_behind_a_shut_gate_zero_and_nothing_differ_in_a_product():
    rules = A, B | only_if("a", 1)
    gated = A, B | only_if("a", 1, "not_applicable")

    assert reward(recipe(*rules, combine="product"), a=0.5, b=1.0) == 0.0
    assert reward(recipe(*gated, combine="product"), a=0.5, b=1.0) == 0.5


def test_a_gate_looks_at_the_other_rules_own_score():
    shut = A | {"weight": 0, "clip": {"high": 0.5}} | only_if("b", 1)
    made = recipe(shut, B | only_if("a", 1))

    parts = parts_of(made, {"a": 1.0, "b": 0.75}, step=1)

    assert parts["a"].score == 0.0
    assert parts["b"].value == 0.75


def test_a_shut_gate_takes_a_penalty_away():
    made = recipe(A, PENALTY | only_if("a", 1))

    assert reward(made, a=0.0, p=-1.0) == 0.0
    assert reward(made, a=1.0, p=-1.0) == 0.0
    assert recipe_bounds(made) == (-1.0, 1.0)


def test_a_score_is_clipped_before_its_weight_and_the_reward_at_last():
    made = recipe(A | {"weight": 4, "clip": {"low": 0.25, "high": 0.5}}, B)

    assert reward(made, a=1.0, b=1.0) == 3.0
    assert reward(made, a=0.0, b=1.0) == 2.0
    clipped = recipe(A | {"weight": 4}, B, clip={"high": 2.5})
    assert reward(clipped, a=1.0, b=1.0) == 2.5
    assert recipe_bounds(clipped) == (0.0, 2.5)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("linear", {0: 1, 1: 1, 6: 0.75, 11: 0.5, 16: 1.25, 21: 2, 22: 2}),
        ("steps", {0: 1, 1: 1, 10: 1, 11: 0.5, 20: 0.5, 21: 2, 22: 2}),
    ],
)
def test_a_weight_follows_its_schedule(shape, expected):
    points = [{"step": 11, "weight": 0.5}, {"step": 21, "weight": 2.0}]
    made = recipe(A | {"schedule": {"shape": shape, "points": points}})

    for step, weight in (expected | {AT_THE_END: 2}).items():
        assert made.rules[0].weight_at(step) == weight
        assert reward(made, step=step, a=1.0) == weight


def test_bounds_are_those_of_a_step_or_of_any():
    made = recipe(A | {"schedule": {"points": [{"step": 11, "weight": -1}]}}, B)

    assert recipe_bounds(made, step=1) == (0.0, 2.0)
    assert recipe_bounds(made, step=6) == (0.0, 1.0)
    assert recipe_bounds(made, step=AT_THE_END) == (-1.0, 1.0)
    assert recipe_bounds(made) == (-1.0, 2.0)


@pytest.mark.parametrize(
    ("combine", "expected"),
    [("sum", (0.0, 1.5)), ("product", (0.0, 1.0)), ("minimum", (0.0, 1.0))],
)
def test_bounds_allow_for_a_rule_that_is_left_out(combine, expected):
    half = B | {"weight": 0.5, "clip": {"low": 0.5}}
    made = recipe(A, half | only_if("a", 1, "not_applicable"), combine=combine)

    assert recipe_bounds(made) == expected


SCORES = st.none() | st.floats(0, 1)
WEIGHTS = st.floats(-5, 5).filter(lambda weight: weight == 0 or abs(weight) > 1e-3)
GATES = st.none() | st.builds(
    dict,
    rule=st.sampled_from("abc"),
    at_least=st.floats(0, 1),
    otherwise=st.sampled_from(["zero", "not_applicable"]),
)
CLIPS = st.none() | st.builds(
    lambda low, width: {"low": low, "high": low + width},
    st.floats(-1, 1),
    st.floats(0.1, 1),
)
SCHEDULES = st.none() | st.builds(
    lambda shape, weight: {"shape": shape, "points": [{"step": 5, "weight": weight}]},
    st.sampled_from(["linear", "steps"]),
    WEIGHTS,
)


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    rules = []
    for name in "abc":
        gate = draw(GATES)
        rules.append(
            {
                "name": name,
                "kind": "length",
                "weight": draw(WEIGHTS),
                "clip": draw(CLIPS),
                "schedule": draw(SCHEDULES),
                "only_if": None if gate and gate["rule"] == name else gate,
            }
        )
    rules[0]["weight"] = rules[0]["weight"] or 1.0
    combine = draw(st.sampled_from(["sum", "product", "minimum"]))
    return recipe(*rules, combine=combine, clip=draw(CLIPS))


@given(
    made=recipes(),
    a=st.floats(0, 1),
    b=st.floats(0, 1),
    c=st.floats(0, 1),
    step=st.integers(0, 7),
)
def test_no_reward_is_out_of_bounds_where_all_rules_score(made, a, b, c, step):
    found = reward(made, step=step, a=a, b=b, c=c)

    for low, high in (recipe_bounds(made, step=step), recipe_bounds(made)):
        if found is not None:
            assert low - 1e-9 <= found <= high + 1e-9


@given(made=recipes(), a=SCORES, b=SCORES, c=SCORES)
def test_a_sum_is_made_of_its_parts(made, a, b, c):
    made = made.model_copy(update={"combine": "sum", "clip": None})
    parts = parts_of(made, {"a": a, "b": b, "c": c}, step=3)

    known = [part.value for part in parts.values() if part.value is not None]

    found = reward_of(made, parts)
    assert found == (pytest.approx(math.fsum(known)) if known else None)


@pytest.mark.parametrize(
    ("rules", "others", "message"),
    [
        ([A, B | only_if("c", 1)], {}, 'depends on "c"'),
        ([A | only_if("a", 1)], {}, "not another rule"),
        ([A, B | only_if("a", 1.5)], {}, "highest score is 1"),
        ([A | {"clip": {"low": 1, "high": 0}}], {}, "got 1 and 0"),
        ([A | {"clip": {}}], {}, "low or a high"),
        ([A], {"clip": {"low": 1, "high": 1}}, "got 1 and 1"),
        ([A], {"combine": "normalize_then_sum", "clip": {"low": 0}}, "no effect"),
        ([A], {"combine": "mean"}, "'product' or 'minimum'"),
        (
            [A | {"schedule": {"points": [{"step": 1, "weight": 1}]}}],
            {},
            "greater than or equal to 2",
        ),
        (
            [A | {"schedule": {"points": [{"step": s, "weight": 1} for s in (9, 9)]}}],
            {},
            "got 9 after 9",
        ),
        (
            [
                A | {"weight": 0, "schedule": {"points": [{"step": 2, "weight": 0}]}},
            ],
            {},
            "weight 0",
        ),
    ],
)
def test_contradictory_recipes_are_refused_with_the_value(rules, others, message):
    assert message in complaint(*rules, **others)


def test_a_weight_that_begins_at_0_may_rise():
    made = recipe(A | {"weight": 0, "schedule": {"points": [{"step": 3, "weight": 1}]}})

    assert [reward(made, step=step, a=1.0) for step in (1, 2, 3)] == [0.0, 0.5, 1.0]


def test_a_row_without_an_answer_is_nobodys_fault():
    made = Recipe.model_validate(
        {"rules": [{"name": "right", "kind": "exact_answer"}, A]}
    )

    found = score_completion(made, Sample("p", "so"))

    assert found.rules == {"right": None, "a": 1.0}
    assert found.not_applicable == ["right"]
    assert found.failed == []
    assert "no answer" in found.errors["right"]
    assert found.total == 1.0


def test_a_schedule_says_its_weight_without_a_recipe():
    schedule = Schedule.model_validate({"points": [{"step": 101, "weight": 0}]})

    assert schedule.weight_at(51, start=0.5) == 0.25
