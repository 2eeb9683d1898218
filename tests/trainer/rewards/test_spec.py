import pytest
from pydantic import ValidationError

from tests.trainer.rewards.scores import BY_THEMSELVES, score_completion
from trainer.rewards.rule import Sample
from trainer.rewards.rules import RULES, examples_of
from trainer.rewards.scoring import score_all
from trainer.rewards.spec import Recipe, RuleSpec, recipe_bounds

SHORT = {"name": "short", "kind": "length"}


def complaint(*rules: dict) -> str:
    with pytest.raises(ValidationError) as caught:
        Recipe.model_validate({"rules": rules})
    return caught.value.errors()[0]["msg"]


def test_a_recipe_without_rules_is_refused():
    assert "one rule" in complaint()


def test_two_rules_of_one_name_are_refused():
    assert 'named "short"' in complaint(SHORT, SHORT)


def test_an_unknown_kind_is_answered_with_the_known_ones():
    text = complaint({"name": "it", "kind": "lenght"})

    assert '"lenght"' in text
    assert ", ".join(RULES) in text


def test_weights_that_are_all_zero_are_refused():
    assert "weight 0" in complaint(SHORT | {"weight": 0})


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), 1e9])
def test_a_weight_out_of_bounds_is_refused(weight):
    assert complaint(SHORT | {"weight": weight})


@pytest.mark.parametrize("name", ["", "Two Words", "1st", "x" * 41])
def test_a_name_that_cannot_name_a_metric_is_refused(name):
    assert complaint(SHORT | {"name": name})


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (
            SHORT | {"params": {"minimum": -1}},
            ["parameter minimum", "-1", "equal to 0"],
        ),
        (SHORT | {"params": {"maximun": 3}}, ["maximun", "It has: unit, minimum"]),
        (SHORT | {"params": {"minimum": 9, "maximum": 3}}, ["9", "3", "Swap them"]),
        (SHORT | {"params": {"unit": "tokens"}}, ["parameter unit", "'tokens'"]),
        ({"name": "it", "kind": "regex"}, ["parameter pattern", "value is required"]),
        (
            {"name": "it", "kind": "regex", "params": {"pattern": "(?=a)"}},
            ['"(?=a)"', "no look-around"],
        ),
    ],
)
def test_a_bad_parameter_is_named_with_its_value(rule, words):
    text = complaint(rule)

    assert f'Rule "{rule["name"]}"' in text
    for word in words:
        assert word in text


def test_parameters_left_out_are_filled_with_their_defaults():
    spec = RuleSpec(name="short", kind="length", params={"maximum": 3})

    assert spec.params == {
        "unit": "characters",
        "minimum": 0,
        "maximum": 3,
        "soft_edge": 0,
    }


def test_a_recipe_survives_json():
    recipe = Recipe.model_validate({"rules": [SHORT]})

    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe


def test_bounds_follow_the_signs_of_the_weights():
    rules = [SHORT | {"weight": -2}, SHORT | {"name": "other", "weight": 0.5}]

    assert recipe_bounds(Recipe.model_validate({"rules": rules})) == (-2, 0.5)


def test_each_rules_examples_pass_and_fail():
    wrong = []
    for kind in BY_THEMSELVES:
        passing, failing = examples_of(RULES[kind])
        marked = [(each, True) for each in passing] + [(e, False) for e in failing]
        for example, passes in marked:
            spec = RuleSpec(name="it", kind=kind, params=example.params)
            best = recipe_bounds(Recipe(rules=(spec,)))[1]
            score = score_all(Recipe(rules=(spec,)), example.group)[0]
            is_best = score.total == pytest.approx(best, abs=1e-5)
            if score.errors or is_best is not passes:
                wrong.append((kind, example.sample, score))

    assert wrong == []


def test_every_rule_and_parameter_has_a_text():
    lacking = [
        f"{kind}.{name}"
        for kind, rule in RULES.items()
        for name, text in {
            "title": rule.title,
            "summary": rule.summary,
            **{n: f.description for n, f in rule.params_model.model_fields.items()},
        }.items()
        if not text
    ]

    assert lacking == []
    assert all(rule.kind == kind for kind, rule in RULES.items())


def test_the_total_is_the_weighted_sum_of_the_rules_that_scored():
    recipe = Recipe.model_validate(
        {
            "rules": [
                SHORT | {"weight": 0.25},
                {"name": "number", "kind": "numeric_answer", "weight": 2},
                {"name": "text", "kind": "exact_answer", "params": {"source": "whole"}},
            ]
        }
    )

    known = score_completion(recipe, Sample("?", "42", "42"))
    unreadable = score_completion(recipe, Sample("?", "Paris", "Paris"))
    unknown = score_completion(recipe, Sample("?", "42", None))

    assert known.total == 3.25
    assert known.rules == {"short": 1.0, "number": 1.0, "text": 1.0}
    assert unreadable.total == 1.25
    assert unreadable.rules["number"] is None
    assert unknown.total == 0.25
    assert set(unknown.errors) == {"number", "text"}


def test_no_total_when_no_rule_could_score():
    recipe = Recipe(rules=(RuleSpec(name="number", kind="numeric_answer"),))

    assert score_completion(recipe, Sample("?", "42", None)).total is None


def test_more_rules_than_anyone_reads_are_refused():
    with pytest.raises(ValidationError, match="at most 40 items"):
        Recipe.model_validate({"rules": [SHORT] * 100_000})


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("numeric_answer", "marker", "#\x00"),
        ("contains", "phrases", ["a", "b\x00"]),
    ],
)
def test_a_nul_character_which_no_database_keeps_is_refused(kind, name, value):
    rule = {"name": "it", "kind": kind, "params": {name: value}}

    assert f"parameter {name}: it contains a NUL" in complaint(rule)
