"""What the engine makes of gates and schedules: scores, credit, metrics."""

import pytest

from tests.trainer.rewards.scores import score_completion
from tests.trainer.scored import make_completion, make_group, make_prompt, run_config
from trainer.algorithm.credit import credit_groups, rule_rewards, rule_weights
from trainer.config import RunConfig
from trainer.gathering import differs
from trainer.output.metrics import weight_metrics
from trainer.rewards.rule import Sample
from trainer.scoring import HERE

FADING = {"shape": "linear", "points": [{"step": 11, "weight": 0.0}]}


def composed(*changes: dict, combine: str = "sum", **parts: object) -> RunConfig:
    """Rules a, b … with these changes."""
    rules = [
        {"name": name, "kind": "length"} | change
        for name, change in zip("abc", changes, strict=False)
    ]
    recipe = {"rules": rules, "combine": combine}
    tree = {"model": {"path": "-"}, "data": {"rows": "-"}, "reward": {"recipe": recipe}}
    return RunConfig.model_validate(tree | parts)


def test_a_recipe_that_normalises_is_the_advantages_own_setting():
    parts = {"advantage": {"ddof": 0, "eps": 0.0}}
    rules = [{"a": 1.0, "b": 100.0}, {"a": 0.0, "b": 300.0}, {"a": 0.0, "b": 200.0}]
    group = make_group(101.0, 300.0, 200.0, rules=rules)

    by_recipe = composed({}, {}, combine="normalize_then_sum", **parts)
    by_setting = run_config(
        "a", "b", advantage={"combine": "normalize_then_sum", **parts["advantage"]}
    )

    found, expected = (credit_groups([group], c) for c in (by_recipe, by_setting))
    assert found.advantages.tolist() == expected.advantages.tolist()
    summed = credit_groups([group], run_config("a", "b", **parts))
    assert found.advantages.tolist() != summed.advantages.tolist()


def test_a_gate_stands_before_the_normalisation():
    config = composed(
        {},
        {"only_if": {"rule": "a", "at_least": 1.0}, "clip": {"high": 0.5}},
        {"only_if": {"rule": "a", "at_least": 1.0, "otherwise": "not_applicable"}},
        combine="normalize_then_sum",
    )
    rules = [{"a": 1.0, "b": 1.0, "c": 0.25}, {"a": 0.0, "b": 1.0, "c": 1.0}]

    (first, second) = rule_rewards(make_group(1.0, 1.0, rules=rules), config.reward)

    assert first == [1.0, 0.5, 0.25]
    assert second[:2] == [0.0, 0.0]
    assert second[2] != second[2]  # no number: it does not apply


def test_rules_compared_by_themselves_have_the_weights_of_the_step():
    config = composed({}, {"schedule": FADING}, combine="normalize_then_sum")
    rules = [{"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 0.0}]
    group = make_group(2.0, 1.0, rules=rules)

    assert rule_weights(config.reward, step=6) == [1.0, 0.5]
    halves = [credit_groups([group], config, step=s).advantages for s in (1, 6, 11)]
    assert halves[1].tolist() == [[x / 2 for x in halves[0].tolist()[0]]]
    assert halves[2].tolist() == [[0.0, 0.0]]
    assert differs(group, config, step=10)
    assert not differs(group, config, step=11)


@pytest.mark.parametrize(("step", "expected"), [(1, 2.0), (6, 1.5), (11, 1.0)])
def test_completions_are_scored_by_the_weights_of_their_step(step, expected):
    config = composed({}, {"schedule": FADING})

    scoring = HERE.begin([make_prompt()], config.reward, step=step)
    (group,) = scoring.finish([(make_completion(),)])

    assert group.scores[0].total == expected
    one = score_completion(config.reward.recipe, Sample("?", "aa"), step=step)
    assert one.total == expected


def test_a_weight_that_moves_is_logged():
    recipe = composed({}, {"schedule": FADING}).reward.recipe

    assert weight_metrics(recipe, step=6) == {"reward/b/weight": 0.5}


@pytest.mark.parametrize(
    ("combine", "parts", "message"),
    [
        (
            "normalize_then_sum",
            {"loss": {"kl_coef": 0.1, "kl_in": "reward"}},
            "never sums rewards",
        ),
        ("product", {"advantage": {"combine": "normalize_then_sum"}}, "by product"),
    ],
)
def test_a_run_that_contradicts_its_recipe_is_refused(combine, parts, message):
    with pytest.raises(ValueError, match=message):
        composed({}, {}, combine=combine, **parts)


def test_a_step_recipe_compares_no_completions():
    rules = [{"name": "most", "kind": "majority"}]
    reward = {
        "recipe": {"rules": [{"name": "a", "kind": "length"}]},
        "step_recipe": {"rules": rules},
    }
    tree = {"model": {"path": "-"}, "data": {"rows": "-"}, "reward": reward}

    with pytest.raises(ValueError, match="steps"):
        RunConfig.model_validate(tree | {"advantage": {"credit": "process"}})
