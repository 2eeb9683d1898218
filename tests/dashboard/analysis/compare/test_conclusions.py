"""What a comparison concludes: which run is best, by how much, how surely."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dashboard.analysis.compare.seeds import arrange
from dashboard.analysis.compare.verdicts import Conclusion, conclude
from dashboard.runs.models import Run
from tests.dashboard.analysis.compare.seeds import make_seeds
from tests.dashboard.completions.factories import (
    RULES,
    make_config,
    make_evaluation,
    make_recipe,
    make_run,
    make_steps,
)

MEAN = "eval/heldout/mean"


def evaluate(run: Run, step: int, mean: float, margin: float = 0.03) -> None:
    make_evaluation(
        run,
        step,
        {
            MEAN: mean,
            f"{MEAN}/low": mean - margin,
            f"{MEAN}/high": mean + margin,
        },
    )


def like(base: Run, name: str, **fields: Any) -> Run:
    same = {
        "dataset_version": base.dataset_version,
        "recipe_version": base.recipe_version,
    }
    return make_run(base.team, name, **{**same, **fields})


def conclusion(*runs: Run, by: str = "none") -> Conclusion:
    return conclude(arrange(runs, by))


@pytest.fixture(scope="module")
def base(shared_team) -> Run:
    return make_run(shared_team, "base")


def test_held_out_rewards_decide_at_the_last_step_that_all_have(base):
    other = like(base, "other")
    for step, mean in ((0, 0.1), (10, 0.6), (20, 0.9)):
        evaluate(base, step, mean)
    for step, mean in ((0, 0.1), (10, 0.55)):
        evaluate(other, step, mean, margin=0.04)

    found = conclusion(base, other)

    assert (found.kind, found.metric, found.step) == ("one", MEAN, 10)
    assert found.difference == pytest.approx(-0.05)
    # Of the difference of two means, 0.03 and 0.04 either side.
    assert found.interval == pytest.approx((-0.1, 0.0))
    assert found.best is not None
    assert found.best.run == base
    assert "base" in found.text
    assert "0.05" in found.text


def test_scores_before_the_first_step_decide_nothing(base):
    other = like(base, "other")
    for run, last in ((base, 10), (other, 12)):
        evaluate(run, 0, 0.1)
        evaluate(run, last, 0.5)
        make_steps(run, {"reward/mean": [0.4] * 10})

    assert conclusion(base, other).metric == "reward/mean"


def test_without_held_out_prompts_the_reward_decides(base):
    other = like(base, "other")
    noise = np.random.default_rng(1).normal(0, 0.02, (2, 200))
    make_steps(base, {"reward/mean": (0.5 + noise[0]).tolist()})
    make_steps(other, {"reward/mean": (0.6 + noise[1]).tolist()})

    found = conclusion(base, other)

    assert (found.metric, found.step) == ("reward/mean", 200)
    differences = (0.1 + noise[1] - noise[0])[180:]
    assert found.difference == pytest.approx(differences.mean())
    low, high = found.interval or (math.nan, math.nan)
    assert low < found.difference < high
    # At least as wide as if the steps were independent.
    half = stats.t.ppf(0.975, 19) * differences.std(ddof=1) / math.sqrt(20)
    assert (high - low) / 2 >= half * (1 - 1e-9)


@pytest.mark.parametrize("num_others", [3, 4])
def test_equal_seeds_are_paired_and_others_are_compared_by_welch(team, num_others):
    base = make_seeds(team, "base", 3, level=0.5, num_steps=60)
    other = make_seeds(
        team,
        "kl",
        num_others,
        level=0.9,
        like=base[0],
        num_steps=60,
        loss={"kl_coef": 0.04},
    )

    found = conclusion(*base, *other, by="seeds")

    steps = (36, 40) if num_others == 3 else (26, 30)
    means = [
        np.mean(run.steps.filter(step__range=steps).values_list("values__0"))
        for run in [*base, *other]
    ]
    if num_others == 3:
        test = stats.ttest_rel(means[3:], means[:3])
    else:
        test = stats.ttest_ind(means[3:], means[:3], equal_var=False)
    low, high = test.confidence_interval(0.95)
    assert found.kind == "better"
    assert found.difference == pytest.approx(np.mean(means[3:]) - np.mean(means[:3]))
    assert found.interval == pytest.approx((low, high), rel=1e-4)


def test_more_seeds_are_offered_for_sets_that_are_too_small(team):
    base = make_seeds(team, "base", 2, num_steps=40)
    other = make_seeds(team, "kl", 2, like=base[0], num_steps=40, loss={"kl_coef": 1})
    many = make_seeds(team, "lr", 4, like=base[0], optim={"learning_rate": 1e-3})

    found = conclusion(*base, *other, by="seeds")

    assert found.kind == "open"
    assert [run_set.next_seeds for run_set in found.few] == ["2..4", "2..4"]
    assert "1,000" not in found.text
    assert [s.has_band for s in arrange([*base, *many], "seeds").sets] == [False, True]


def test_the_best_of_several_is_compared_with_the_baseline(base):
    runs = [base, like(base, "low"), like(base, "top")]
    for run, mean in zip(runs, (0.4, 0.3, 0.7), strict=True):
        evaluate(run, 5, mean)

    found = conclusion(*runs)
    first = conclusion(runs[2], base, runs[1])

    assert found.best is not None
    assert found.best.run == runs[2]
    assert found.difference == pytest.approx(0.3)
    assert first.best is not None
    assert first.best.run == runs[2]
    assert first.difference == pytest.approx(-0.3)  # of the next one


def test_scores_of_other_rewards_have_no_winner(base):
    rules = [{**RULES[0], "weight": 2.0}, {**RULES[1], "kind": "tag_count"}]
    version = make_recipe(base.team, "other", rules)
    config = make_config(rules=rules)
    other = like(base, "other", config=config, recipe_version=version)
    alike = like(base, "alike")
    for run, mean in ((base, 0.5), (other, 0.9), (alike, 0.5)):
        evaluate(run, 5, mean)

    found = conclusion(base, other)

    assert (found.kind, found.best, found.difference) == ("incomparable", None, None)
    assert str(base.recipe_version) in found.text
    assert str(version) in found.text
    assert (found.rescored, found.recipe) == ([other], base.recipe_version)
    assert found.common_rules == ["answer"]
    assert conclusion(base, alike).kind == "one"


def test_a_run_that_shares_no_steps_is_left_out(base):
    other = like(base, "other")
    point = {"fork_step": 116, "fork_checkpoint": "c", "fork_sha256": "0" * 64}
    fork = like(base, "fork", forked_from=base, **point)
    make_steps(base, {"reward/mean": [0.5] * 60})
    make_steps(other, {"reward/mean": [0.7] * 80})
    make_steps(fork, {"reward/mean": [None] * 116 + [0.9] * 20})

    found = conclusion(base, other, fork)

    assert found.best is not None
    assert (found.best.run, found.step) == (other, 60)
    assert found.difference == pytest.approx(0.2)
    (left_out,) = found.caveats
    assert "117" in left_out
    assert "fork" in left_out
    assert "base" in left_out


def test_runs_that_share_no_steps_conclude_nothing(base):
    other = like(base, "other")
    make_steps(base, {"reward/mean": [0.5] * 20})
    make_steps(other, {"reward/mean": [None] * 20 + [0.9] * 20})

    found = conclusion(base, other)

    assert (found.kind, found.best) == ("none", None)


def test_runs_without_rewards_conclude_nothing(base):
    assert conclusion(base).text == ""
    found = conclusion(base, like(base, "other"))
    assert (found.kind, found.difference) == ("none", None)
