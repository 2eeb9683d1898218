"""A recipe as one line of words: its numbers, its parts and how they are combined."""

from dashboard.rewards.recipe_text import recipe_sentence
from trainer.rewards.rules import RULES
from trainer.rewards.spec import Recipe

RIGHT = {"name": "right", "kind": "exact_answer", "weight": 2.0}
SHORT = {"name": "short", "kind": "length", "params": {"maximum": 2_000}}


def said(*rules: dict[str, object], **others: object) -> str:
    return recipe_sentence(Recipe.model_validate({"rules": list(rules), **others}))


def test_every_rule_can_be_said():
    for kind, rule in RULES.items():
        params = dict(rule.example_pass.params)

        assert said({"name": "x", "kind": kind, "params": params}).startswith("1 × ")


def test_weights_carry_their_signs():
    less, more = {**SHORT, "weight": -0.5}, {**SHORT, "weight": 0.2}

    assert said(RIGHT, less) == f"{said(RIGHT)} − {said(less).removeprefix('− ')}"
    assert said(RIGHT, more) == f"{said(RIGHT)} + {said(more)}"
    assert said(less).startswith("− 0.5 × ")


def test_parameters_stand_in_the_phrase():
    tags = {"think_tag": "", "answer_tag": "final"}
    pattern = {"pattern": "a{2}"}

    assert "2,000" in said(SHORT)
    assert "final tag" in said({"name": "x", "kind": "format_tags", "params": tags})
    assert "/a{2}/" in said({"name": "x", "kind": "regex", "params": pattern})


def test_each_way_to_match_reads_otherwise():
    several = {"regex": ("contains", "whole", "absent"), "contains": ("all", "none")}
    given = {"regex": {"pattern": "a"}, "contains": {"phrases": ["a", "b"]}}
    for kind, matches in several.items():
        rules = [
            {"name": "x", "kind": kind, "params": {**given[kind], "match": match}}
            for match in matches
        ]

        assert len({said(rule) for rule in rules}) == len(matches)


def test_gates_clips_and_schedules_are_said():
    gate = {"rule": "short", "at_least": 0.25}
    clipped = said({**RIGHT, "clip": {"high": 0.5}}, clip={"low": 0})
    gated = said(SHORT, {**RIGHT, "only_if": gate})
    left_out = said(
        SHORT, {**RIGHT, "only_if": {**gate, "otherwise": "not_applicable"}}
    )

    assert "[−∞, 0.5]" in clipped
    assert clipped.endswith("[0, ∞]")
    assert "short ≥ 0.25" in gated
    assert left_out.startswith(gated)
    assert left_out != gated


def test_a_weight_that_jumps_reads_otherwise_than_one_that_slides():
    points = [{"step": 9, "weight": 0.5}]
    linear, steps = (
        said({**RIGHT, "schedule": {"shape": shape, "points": points}})
        for shape in ("linear", "steps")
    )

    assert linear.startswith("(2 to 0.5 at step 9) × ")
    assert steps.startswith("(2 then 0.5 at step 9) × ")


def test_each_way_to_combine_is_said():
    combines = ("sum", "product", "minimum", "normalize_then_sum")

    found = [said(RIGHT, SHORT, combine=combine) for combine in combines]

    assert len(set(found)) == 4
    for sentence in found[1:]:
        assert sentence.endswith(f"{said(RIGHT)}; {said(SHORT)}")
