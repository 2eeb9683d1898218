"""A recipe as one line of words: its numbers, its parts and how they are combined."""

from dashboard.rewards.recipe_text import recipe_sentence
from trainer.rewards.rules import RULES
from trainer.rewards.spec import Recipe

RIGHT = {"name": "right", "kind": "exact_answer", "weight": 2.0}
SHORT = {"name": "short", "kind": "length", "params": {"maximum": 2_000}}


def sentence_of(*rules: dict[str, object], **others: object) -> str:
    return recipe_sentence(Recipe.model_validate({"rules": list(rules), **others}))


def test_every_rule_has_a_phrase():
    for kind, rule in RULES.items():
        params = dict(rule.example_pass.params)

        assert sentence_of({"name": "x", "kind": kind, "params": params}).startswith(
            "1 × "
        )


def test_weights_carry_their_signs():
    less, more = {**SHORT, "weight": -0.5}, {**SHORT, "weight": 0.2}

    assert (
        sentence_of(RIGHT, less)
        == f"{sentence_of(RIGHT)} − {sentence_of(less).removeprefix('− ')}"
    )
    assert sentence_of(RIGHT, more) == f"{sentence_of(RIGHT)} + {sentence_of(more)}"
    assert sentence_of(less).startswith("− 0.5 × ")


def test_phrases_contain_parameters():
    tags = {"think_tag": "", "answer_tag": "final"}
    pattern = {"pattern": "a{2}"}

    assert "2,000" in sentence_of(SHORT)
    assert "final tag" in sentence_of(
        {"name": "x", "kind": "format_tags", "params": tags}
    )
    assert "/a{2}/" in sentence_of({"name": "x", "kind": "regex", "params": pattern})


def test_each_match_mode_has_its_own_phrase():
    several = {"regex": ("contains", "whole", "absent"), "contains": ("all", "none")}
    given = {"regex": {"pattern": "a"}, "contains": {"phrases": ["a", "b"]}}
    for kind, matches in several.items():
        rules = [
            {"name": "x", "kind": kind, "params": {**given[kind], "match": match}}
            for match in matches
        ]

        assert len({sentence_of(rule) for rule in rules}) == len(matches)


def test_gates_clips_and_schedules_are_described():
    gate = {"rule": "short", "at_least": 0.25}
    clipped = sentence_of({**RIGHT, "clip": {"high": 0.5}}, clip={"low": 0})
    gated = sentence_of(SHORT, {**RIGHT, "only_if": gate})
    left_out = sentence_of(
        SHORT, {**RIGHT, "only_if": {**gate, "otherwise": "not_applicable"}}
    )

    assert "[−∞, 0.5]" in clipped
    assert clipped.endswith("[0, ∞]")
    assert "short ≥ 0.25" in gated
    assert left_out.startswith(gated)
    assert left_out != gated


def test_schedules_are_described_by_shape():
    points = [{"step": 9, "weight": 0.5}]
    linear, steps = (
        sentence_of({**RIGHT, "schedule": {"shape": shape, "points": points}})
        for shape in ("linear", "steps")
    )

    assert linear.startswith("(2 to 0.5 at step 9) × ")
    assert steps.startswith("(2 then 0.5 at step 9) × ")


def test_each_combination_is_described():
    combines = ("sum", "product", "minimum", "normalize_then_sum")

    found = [sentence_of(RIGHT, SHORT, combine=combine) for combine in combines]

    assert len(set(found)) == 4
    for sentence in found[1:]:
        assert sentence.endswith(f"{sentence_of(RIGHT)}; {sentence_of(SHORT)}")
