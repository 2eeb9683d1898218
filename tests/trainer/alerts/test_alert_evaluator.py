"""Rules over a run: once each, of the phase at hand, and the same after a resume."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.tiny import config_tree
from trainer.alerts.conditions import FEWEST, FIRST, Condition, Kind
from trainer.alerts.evaluator import RuleEvaluator, Triggered
from trainer.alerts.rules import BY_CODE, RULES, AlertRule, meaningless_rules
from trainer.config import RunConfig

Readings = list[float | None]


def triggered(
    evaluator: RuleEvaluator[str],
    metric: str,
    values: Readings,
    **given: Any,
) -> list[int]:
    """The places in a series at which a rule triggers."""
    return [
        index
        for index, value in enumerate(values)
        if any(
            isinstance(found, Triggered)
            for found in evaluator.step(index, {metric: value}, **given)
        )
    ]


def one_rule(**fields: Any) -> RuleEvaluator[str]:
    rule = AlertRule(
        code="a", name="", why="", metric="m", condition=Condition(**fields)
    )
    return RuleEvaluator({"a": rule})


def test_a_rule_triggers_again_only_once_it_has_recovered():
    evaluator = one_rule(kind=Kind.ABOVE, threshold=1.0, for_steps=2)

    found = [
        (type(each).__name__, each.step)
        for step, value in enumerate([2, 2, 2, 0, 2, 0, 0, 2, 2])
        for each in evaluator.step(step, {"m": value})
    ]

    assert found == [("Triggered", 1), ("Recovered", 6), ("Triggered", 8)]


def test_a_triggered_alert_has_value_and_bound():
    evaluator = RuleEvaluator(BY_CODE)
    list(evaluator.step(1, {"grad_norm": 99.0}))
    for step in range(2, 2 + FEWEST):
        assert not list(evaluator.step(step, {"grad_norm": 2.0}))

    [found] = evaluator.step(20, {"grad_norm": 30.0})

    assert isinstance(found, Triggered)
    assert found.key == ("grad_norm", "")
    assert (found.metric, found.value, found.bound) == ("grad_norm", 30.0, 20.0)


def test_a_slow_rise_triggers_no_alert():
    rising: Readings = [1.05**n for n in range(100)]

    assert triggered(RuleEvaluator(BY_CODE), "grad_norm", rising) == []


def test_an_open_alert_keeps_its_bound_until_it_recovers():
    evaluator = RuleEvaluator(BY_CODE)
    jump: Readings = [1.0] * FEWEST + [50.0] * 60 + [1.0]

    found = [
        (type(each).__name__, each.step)
        for step, value in enumerate(jump)
        for each in evaluator.step(step, {"grad_norm": value})
    ]

    assert found == [("Triggered", FEWEST), ("Recovered", FEWEST + 60)]


def test_numbers_that_are_not_finite_say_nothing_of_the_usual():
    series: Readings = [math.nan, math.inf, *[1.0] * FEWEST, math.inf, 1.0, 10.5]

    assert triggered(RuleEvaluator(BY_CODE), "grad_norm", series) == [FEWEST + 4]


def test_each_phase_finds_its_own_usual_values():
    evaluator = RuleEvaluator(BY_CODE)
    triggered(evaluator, "grad_norm", [1.0] * FEWEST)

    evaluator.begin_phase()

    assert triggered(evaluator, "grad_norm", [99.0] * FEWEST) == []


def test_a_rule_that_says_nothing_of_a_phase_is_closed_in_it():
    evaluator = RuleEvaluator(BY_CODE)
    metrics = {"group/frac_zero_std": 1.0}
    for step in range(20):
        found = list(evaluator.step(step, metrics))
    assert [each.key[0] for each in found] == ["no_signal"]

    [over] = evaluator.step(20, metrics, without={"no_signal"})

    assert not isinstance(over, Triggered)
    assert triggered(evaluator, *metrics, [1.0] * 30, without={"no_signal"}) == []


@pytest.mark.parametrize(
    ("advantage", "codes"),
    [
        ({"credit": "outcome"}, []),
        ({"credit": "pass_at_k"}, []),
        ({"credit": "ones"}, ["no_signal"]),
        ({"weight": 0}, ["no_signal"]),
    ],
)
def test_equal_rewards_say_nothing_where_none_are_compared(advantage, codes):
    loss = {"kl_coef": 0.1}
    config = RunConfig.model_validate(
        config_tree(Path("model"), Path("rows"), advantage=advantage, loss=loss)
    )

    assert sorted(meaningless_rules(config) - MISMATCH) == codes


def test_a_run_with_a_teacher_may_be_far_from_it():
    config = RunConfig.model_validate(
        config_tree(Path("model"), Path("rows"), reference={"model": "teacher"})
    )

    assert {"kl", "kl_max", "kl_tail"} <= meaningless_rules(config)


MISMATCH = {"mismatch_high", "mismatch_float32"}


@pytest.mark.parametrize(
    ("model", "limit"),
    [
        ({"dtype": "float32"}, 0.01),
        ({"dtype": "bfloat16", "device": "cpu"}, 0.1),
        ({"device": "cpu"}, 0.01),
        ({}, 0.1),
    ],
)
def test_the_first_steps_mismatch_has_the_limit_of_its_number_format(model, limit):
    config = RunConfig.model_validate(
        config_tree(Path("model"), Path("rows"), model=model)
    )
    without = meaningless_rules(config)

    for value, count in [(0.99 * limit, 0), (1.01 * limit, 1)]:
        evaluator = RuleEvaluator(BY_CODE)
        found = [*evaluator.step(1, {"mismatch/mean": value}, without=without)]
        assert [each.step for each in found] == [1] * count


def test_a_metric_that_a_run_never_had_is_not_missing():
    assert triggered(RuleEvaluator(BY_CODE), "kl/mean", [0.0, 0.0]) == []
    assert triggered(RuleEvaluator(BY_CODE), "loss", [0.1, None, None, 0.1]) == [1]


def test_a_loss_that_is_not_logged_at_a_step_is_not_missing():
    evaluator = RuleEvaluator(BY_CODE)
    logged = [{"loss": 0.1}, {"reward/mean": 0.5}, {"loss": None}, {}]

    found = [
        each.step
        for step, metrics in enumerate(logged, start=1)
        for each in evaluator.step(step, metrics)
    ]

    assert found == [3]


COURSE: list[dict[str, float | None]] = [
    {
        "grad_norm": 90.0 if index in (14, 15, 20) else 1.0,
        "kl/max": 30.0 if 3 <= index < 9 else 0.1,
        "entropy": 2.0 if index < FIRST + 2 else 0.1,
        "reward/mean": 0.1 * index,
        "loss": None if index == 11 else 0.5,
    }
    for index in range(24)
]
HELD_OUT = [0.5, 0.6, 0.5, 0.4, 0.4, 0.4, 0.7, 0.7]  # of each third step


def test_an_evaluator_restored_anywhere_finds_what_one_that_never_left_finds():
    whole = RuleEvaluator(BY_CODE)
    expected = [take(whole, index) for index in range(len(COURSE))]
    codes = {key[0] for found in expected for _, key, _ in found}
    assert codes == {"grad_norm", "kl_max", "entropy", "not_finite", "overfits"}

    for cut in range(len(COURSE)):
        left = RuleEvaluator(BY_CODE)
        for index in range(cut):
            take(left, index)
        restored = RuleEvaluator(BY_CODE)
        restored.load_state_dict(json.loads(json.dumps(left.state_dict())))
        found = [take(restored, index) for index in range(cut, len(COURSE))]
        assert found == expected[cut:]


def take(evaluator: RuleEvaluator[str], index: int) -> list[tuple[Any, ...]]:
    found = list(evaluator.step(index, COURSE[index]))
    if index % 3 == 0:
        found += evaluator.evaluation(index, {"eval/a/mean": HELD_OUT[index // 3]})
    return [(type(each), each.key, getattr(each, "bound", None)) for each in found]


def test_speeds_are_in_no_checkpoint():
    """Else equal runs would have unequal ones."""
    first, second = RuleEvaluator(BY_CODE), RuleEvaluator(BY_CODE)

    list(first.step(1, {"loss": 1.0, "tokens_per_second": 100.0}))
    list(second.step(1, {"loss": 1.0, "tokens_per_second": 90.0}))

    assert first.state_dict() == second.state_dict()


def test_a_state_with_other_rules_is_read_as_far_as_it_goes():
    state = RuleEvaluator(BY_CODE).state_dict()
    state["tracks"].append(["later", "", state["tracks"][0][2]])
    state["open"] = [["later", "", 1.0], ["kl", "", 1.0]]

    evaluator = RuleEvaluator(BY_CODE)
    evaluator.load_state_dict(state)

    assert evaluator.open == {("kl", ""): 1.0}


def test_every_rule_has_its_own_code():
    assert len(BY_CODE) == len(RULES) == 22
