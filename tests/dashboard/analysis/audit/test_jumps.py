"""Where a reward jumps, and what is said to have changed around a step."""

import math
import random
import re
from typing import Any

import numpy as np
import pytest

from dashboard.accounts.models import Team
from dashboard.analysis.audit.jumps import explain, find_jump, locate_jump
from dashboard.runs.charts.series import Curve, Series
from dashboard.runs.models import Run, RunAttempt, SettingChange, Step
from tests.dashboard.completions.factories import (
    RULES,
    START,
    make_config,
    make_evaluation,
    make_group,
    make_run,
    make_steps,
)
from tests.dashboard.completions.rollups import WEIGHTED, make_rollup
from tests.dashboard.completions.step_groups import make_group as make_step_group

JUMP = 41  # of 80 steps
CHANCE = random.Random(3)
NOISE = [CHANCE.gauss(0, 0.03) for _ in range(200)]


def series(values: list[float]) -> Series:
    return Series(steps=np.arange(1, len(values) + 1), values=np.array(values))


def jumping(before: float, after: float, num: int = 80) -> list[float]:
    return [before if step < JUMP else after for step in range(1, num + 1)]


def make_jumping(team: Team, **fields: Any) -> Run:
    """The format's score jumps from 0.1 to 0.9, of a weight of 0.2; answers do not."""
    run = make_run(team, num_steps=80, **fields)
    form = jumping(0.1, 0.9)
    make_steps(
        run,
        {
            "reward/mean": [0.5 + 0.2 * f + NOISE[i] / 10 for i, f in enumerate(form)],
            "reward/answer/mean": [0.5] * 80,
            "reward/format/mean": list(form),
            "completion/mean_length": list(jumping(40, 90)),
            "entropy": [1 - 0.005 * step for step in range(80)],
        },
    )
    for step, score in enumerate(form, 1):
        rules: list[dict[str, float | None]] = [{"answer": 0.5, "format": score}]
        group = make_step_group([0.5 + 0.2 * score], rules=rules)
        make_rollup(run, step, [group], composition=WEIGHTED)
    return run


@pytest.mark.parametrize(
    ("values", "step"),
    [
        ([v + NOISE[i] for i, v in enumerate(jumping(0.3, 0.8))], JUMP),
        ([v + NOISE[i] for i, v in enumerate(jumping(0.8, 0.3))], JUMP),
        ([0.3 + 0.005 * i + NOISE[i] for i in range(100)], None),  # an even rise
        ([0.3 + NOISE[i] for i in range(100)], None),
        ([1 - math.exp(-i / 30) + NOISE[i] for i in range(200)], None),
        ([0.5] * 50, None),
        ([0.1] * 6, None),
        ([0.1] * 40 + [1e300] * 40, JUMP),
    ],
)
def test_a_jump_is_steeper_than_a_trend_and_larger_than_noise(values, step):
    assert find_jump(series(values)) == step


def test_a_jump_of_a_long_run_is_found_to_the_step(team):
    run = make_run(team, num_steps=6_000, metric_names=["reward/mean"])
    run.last_step = 6_000
    Step.objects.bulk_create(
        Step(
            run=run,
            step=step,
            attempt=1,
            seq=step,
            time=START,
            values=[(0.3 if step < 2_345 else 0.8) + NOISE[step % 200]],
        )
        for step in range(1, 6_001)
    )

    assert locate_jump(run, Curve()) == 2_345


def test_the_parts_of_the_rules_add_up_to_the_reward(team):
    found = explain(make_jumping(team), JUMP)

    assert found
    change = found.change
    assert (change.before.first, change.before.last) == (33, 40)
    assert (change.after.first, change.after.last) == (41, 48)
    assert change.difference == pytest.approx(0.16, abs=0.01)
    assert found.reward.is_jump
    first, second = found.rules
    assert (first.rule, first.before, first.after) == (
        "format",
        pytest.approx(0.1),
        pytest.approx(0.9),
    )
    assert first.part == pytest.approx(0.16)
    assert (second.rule, second.part) == ("answer", pytest.approx(0))
    assert [rule.rule for rule in found.causes] == ["format"]
    assert found.rest is None


def test_only_what_leaves_its_trend_jumps(team):
    found = explain(make_jumping(team), JUMP)

    assert found
    assert [one.metric for one in found.jumping] == ["completion/mean_length"]
    entropy = next(one for one in found.metrics if one.metric == "entropy")
    assert (entropy.is_clear, entropy.is_jump) == (True, False)


def test_a_metric_of_every_tenth_step_is_judged_by_its_own_values(team):
    run = make_run(team, num_steps=600)
    at = 301
    reward = [float(step >= at) + NOISE[step % 200] for step in range(1, 601)]
    kl = [v if step % 10 == 1 else None for step, v in enumerate(reward, 1)]
    make_steps(run, {"reward/mean": list(reward), "kl/mean": kl})

    found = explain(run, at)

    assert found is not None
    assert [one.metric for one in found.metrics if one.is_clear] == ["kl/mean"]


def test_a_step_without_a_jump_is_unclear(team):
    found = explain(make_jumping(team), 20)

    assert found
    assert not found.reward.is_clear
    assert not found.reward.is_jump


@pytest.mark.parametrize("step", [2, 80, 500])
def test_there_is_nothing_to_compare_at_an_end(team, step):
    assert explain(make_jumping(team), step) is None


def test_a_run_without_rewards_is_not_explained(team):
    run = make_run(team)
    assert explain(run, 5) is None
    make_steps(run, {"loss": [0.1] * 40})
    assert explain(run, 20) is None


def test_parts_of_a_product_are_unknown(team):
    recipe = {"rules": RULES, "combine": "product"}
    config = make_config(reward={"recipe": recipe})

    found = explain(make_jumping(team, config=config), JUMP)

    assert found
    assert [rule.part for rule in found.rules] == [None, None]
    assert found.causes == []
    assert found.rest is None


def test_a_phase_is_named_with_the_settings_that_it_changes(team):
    rules = [{**RULES[0]}, {**RULES[1], "weight": 0.5}]
    changes = {"rollout": {"temperature": 0.6}, "reward": {"recipe": {"rules": rules}}}
    config = make_config(
        phases=[
            {"name": "explore", "num_steps": 42},
            {"name": "sharpen", "num_steps": 38, "changes": changes},
        ],
        optim={"num_steps": 80},
    )

    found = explain(make_jumping(team, config=config), JUMP)
    early = explain(make_jumping(team, config=config, name="b"), 20)

    assert found
    assert early
    [moment] = found.moments
    assert moment.step == 43
    assert set(moment.settings) == {
        ("Temperature", "1", "0.6"),
        ("Weight of format", "0.2", "0.5"),
    }
    assert early.moments == []


def test_the_overview_lists_what_each_phase_changes(alice_client, team):
    phases = [
        {"name": "explore", "num_steps": 50},
        {"name": "sharpen", "num_steps": 50, "changes": {"loss": {"kl_coef": 0.05}}},
    ]
    config = make_config(phases=phases, optim={"num_steps": 100})
    run = make_run(team, config=config)

    page = alice_client.get(f"/alpha/runs/{run.pk}/").text

    assert re.findall("data-setting-changed>([^<]*)<", page) == ["KL weight 0 → 0.05"]


def test_a_scheduled_weight_is_named(team):
    schedule = {"points": [{"step": 50, "weight": 1.0}]}
    rules = [RULES[0], {**RULES[1], "schedule": schedule}]

    found = explain(make_jumping(team, config=make_config(rules)), JUMP)

    assert found
    [moment] = found.moments
    [(title, old, new)] = moment.settings
    assert title == "Weight of format"
    assert 0.2 <= float(old) < float(new) <= 1.0


def test_changed_settings_and_attempts_are_named_in_order(team):
    run = make_jumping(team)
    for applied, every in ((39, 5), (60, 7), (None, 9)):
        SettingChange.objects.create(
            run=run,
            number=every,
            before={"evaluation.every_steps": 20},
            after={"evaluation.every_steps": every},
            applied_step=applied,
        )
    for number, from_step in ((1, 0), (2, 36), (3, 70)):
        RunAttempt.objects.create(
            run=run, number=number, from_step=from_step, claimed_at=START
        )

    found = explain(run, JUMP)

    assert found
    assert [moment.step for moment in found.moments] == [37, 40]
    assert found.moments[1].settings == [("Evaluate every", "20", "5")]


def test_the_evaluations_on_both_sides_are_compared(team):
    run = make_jumping(team)
    for step, mean in ((20, 0.2), (40, 0.3), (60, 0.9), (80, 1.0)):
        for name, off in (("other", 5.0), ("heldout", 0.0)):
            make_evaluation(
                run, step, {f"eval/{name}/mean": mean + off}, name=name, seq=step
            )

    found = explain(run, JUMP)

    assert found
    assert found.held_out
    assert found.held_out.metric == "eval/heldout/mean"
    assert found.held_out.steps == (40, 60)
    assert found.held_out.scores == (0.3, 0.9)


def test_pages_show_the_jump_and_lead_to_both_sides(
    alice_client, team, django_assert_max_num_queries
):
    run = make_jumping(team)
    for step in (40, 42):
        make_group(run, step)
    address = f"/alpha/runs/{run.pk}/"
    with django_assert_max_num_queries(9):
        explain(run, JUMP)

    overview = alice_client.get(f"{address}headline/").text
    panel = alice_client.get(f"{address}samples/?step={JUMP}").text
    both = alice_client.get(f"{address}health/reward/?at={JUMP}").text
    found = alice_client.get(f"{address}health/reward/").text
    health = alice_client.get(f"{address}health/").text

    for page in (overview, health):
        assert f'data-jump="{JUMP}"' in page
        assert 'data-cause="format"' in page
        assert 'data-jumping="completion/mean_length"' in page
    assert f"{address}?step={JUMP}" in overview
    assert f"{address}health/reward/?at={JUMP}" in health
    assert f"{address}health/reward/?at={JUMP}" in panel
    rows = re.findall(r"data-around-rule=\"(\w+)\"", panel)
    assert rows == ["format", "answer"]
    assert "data-around-part>+0.16<" in panel
    for page in (both, found):
        assert f'data-around="{JUMP}"' in page
        assert 'data-around-row="entropy"' in page
        assert "steps 33–40" in page
        assert len(re.findall('class="[^"]*found[" ]', page)) >= 8
    assert alice_client.get(f"{address}samples/").text.count("data-around") == 0


def test_an_even_run_has_no_jump(alice_client, team):
    run = make_run(team)
    make_steps(run, {"reward/mean": [0.3 + 0.005 * i + NOISE[i] for i in range(80)]})
    address = f"/alpha/runs/{run.pk}/"

    assert "data-jump" not in alice_client.get(f"{address}headline/").text
    assert "data-jump" not in alice_client.get(f"{address}health/").text
    assert alice_client.get(f"{address}health/reward/").status_code == 404
    assert "data-around" in alice_client.get(f"{address}health/reward/?at=40").text
    # A link of any step leads here, and there is nothing before the first one.
    first = alice_client.get(f"{address}health/reward/?at=1")
    assert first.status_code == 200
    assert "data-around" not in first.text


@pytest.mark.parametrize("weight", [1.0, 2.0])
def test_a_run_of_another_trainer_is_explained_by_what_it_reported(team, weight):
    run = make_run(
        team,
        num_steps=600,
        source={"kind": "trl", "external": True},
        config={
            "reward": {
                "recipe": {"rules": [{"name": "format", "weight": weight}]},
                "right_from": None,
            }
        },
    )
    steps = [10 * number for number in range(1, 61)]
    run.metric_names = ["reward/mean", "reward/format/mean"]
    run.last_step = 600
    run.save()
    for step in steps:
        score = 0.1 if step <= 300 else 0.9
        Step.objects.create(
            run=run,
            step=step,
            attempt=1,
            seq=step,
            time=START,
            values=[score + NOISE[step // 10] / 10, score],
        )
    values = [value for step in run.steps.order_by("step") for value in step.values[:1]]

    at = locate_jump(run, Curve(steps=steps, values=values))
    found = explain(run, 310)

    assert at == 310
    assert found
    [rule] = found.rules
    # Scores that do not make up the reward by their weights have no parts in it.
    assert rule.part == (pytest.approx(0.8) if weight == 1 else None)
    assert (rule.before, rule.after) == (pytest.approx(0.1), pytest.approx(0.9))
    assert found.reward.is_jump
    assert found.moments == []
