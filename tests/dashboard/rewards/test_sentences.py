import pytest

from dashboard.rewards.sentences import recipe_sentence
from trainer.rewards.rules import RULES
from trainer.rewards.spec import Recipe


def sentence(*rules: tuple[str, float, dict[str, object]]) -> str:
    specs = [
        {"name": f"rule_{number}", "kind": kind, "weight": weight, "params": params}
        for number, (kind, weight, params) in enumerate(rules)
    ]
    return recipe_sentence(Recipe.model_validate({"rules": specs}))


def test_weights_and_rules_read_as_a_sum():
    text = sentence(("numeric_answer", 1, {}), ("format_tags", 0.2, {}))

    assert text == "1 × answer is numerically right + 0.2 × uses think and answer tags"


def test_a_negative_weight_is_taken_away():
    text = sentence(
        ("exact_answer", 2, {}),
        ("length", -0.5, {"minimum": 10, "maximum": 2_000, "unit": "words"}),
    )

    assert text == "2 × answer is exactly right − 0.5 × is 10 to 2,000 words long"


def test_a_first_negative_weight_keeps_its_sign():
    assert sentence(("exact_answer", -1, {})) == "− 1 × answer is exactly right"


@pytest.mark.parametrize(
    ("match", "said"), [("contains", "contains"), ("whole", "is"), ("absent", "avoids")]
)
def test_a_pattern_is_quoted_braces_and_all(match: str, said: str):
    text = sentence(("regex", 1, {"pattern": "a{2}", "match": match}))

    assert text == f"1 × {said} /a{{2}}/"


@pytest.mark.parametrize(
    ("match", "said"),
    [
        ("all", "contains all of the phrases"),
        ("none", "contains none of the phrases"),
        ("share", "contains a share of the phrases"),
    ],
)
def test_phrases_are_contained_or_not(match: str, said: str):
    text = sentence(("contains", 1, {"phrases": ["a", "b"], "match": match}))

    assert text == f"1 × {said}"


def test_one_tag_is_one_tag():
    text = sentence(("format_tags", 1, {"think_tag": "", "answer_tag": "final"}))

    assert text == "1 × uses final tag"


@pytest.mark.parametrize("kind", RULES)
def test_every_rule_can_be_said(kind: str):
    params = RULES[kind].example_pass.params

    assert sentence((kind, 1, dict(params))).startswith("1 × ")


def test_gates_clips_and_schedules_are_said():
    rules = [
        {"name": "shape", "kind": "format_tags", "weight": -0.5},
        {
            "name": "right",
            "kind": "exact_answer",
            "clip": {"high": 0.5},
            "only_if": {
                "rule": "shape",
                "at_least": 1,
                "otherwise": "not_applicable",
            },
            "schedule": {"points": [{"step": 9, "weight": 2}]},
        },
    ]
    shape = "0.5 × uses think and answer tags"
    right = (
        "(1 to 2 at step 9) × answer is exactly right (clipped to [−∞, 0.5]), only if "
        "shape ≥ 1 (left out otherwise)"
    )

    def said(**others: object) -> str:
        return recipe_sentence(Recipe.model_validate({"rules": rules, **others}))

    assert said() == f"− {shape} + {right}"
    assert said(combine="product", clip={"low": 0}) == (
        f"the product of −{shape}; {right}, clipped to [0, ∞]"
    )


@pytest.mark.parametrize(
    ("combine", "said"),
    [
        ("product", "the product of "),
        ("minimum", "the smallest of "),
        ("normalize_then_sum", "the sum, each normalised within its group, of "),
    ],
)
def test_each_way_to_combine_is_said(combine: str, said: str):
    rules = [
        {"name": "right", "kind": "exact_answer", "weight": 2},
        {"name": "short", "kind": "length", "params": {"maximum": 9}},
    ]

    recipe = Recipe.model_validate({"rules": rules, "combine": combine})

    assert recipe_sentence(recipe) == (
        f"{said}2 × answer is exactly right; 1 × is 0 to 9 characters long"
    )


def test_a_weight_that_jumps_reads_otherwise_than_one_that_slides():
    def said(shape: str) -> str:
        points = [{"step": 9, "weight": 0.5}]
        rule = {
            "name": "right",
            "kind": "exact_answer",
            "schedule": {"shape": shape, "points": points},
        }
        return recipe_sentence(Recipe.model_validate({"rules": [rule]}))

    assert said("linear") == "(1 to 0.5 at step 9) × answer is exactly right"
    assert said("steps") == "(1 then 0.5 at step 9) × answer is exactly right"
