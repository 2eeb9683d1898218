import json
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.completions.signals.composition import read_compositions
from dashboard.completions.signals.rule_shares import Shares, share
from tests.dashboard.completions.factories import make_config
from tests.dashboard.completions.step_groups import (
    NAMES,
    drawn_groups,
    make_composition,
    make_group,
    make_recipe,
    score,
)
from trainer.rewards.scoring import parts_of
from trainer.rewards.spec import Recipe

WEIGHTS = {"answer": 1.0, "format": 0.5, "length": -0.25}
SUM = make_recipe(WEIGHTS)
PRODUCT = make_recipe(WEIGHTS, combine="product")
NORMALIZED = make_recipe(WEIGHTS, combine="normalize_then_sum")


def variance_shares(shares: Shares) -> list[float]:
    return (shares.share_sum / shares.weight).tolist()


def test_two_rules_share_the_variance_by_hand():
    # Parts (1, ½), (1, 0), (0, ½), (0, 0): rewards 1.5, 1, 0.5, 0 of mean 0.75.
    group = score(
        SUM,
        {"answer": 1.0, "format": 1.0},
        {"answer": 1.0, "format": 0.0},
        {"answer": 0.0, "format": 1.0},
        {"answer": 0.0, "format": 0.0},
    )

    shares = share([group], ["answer", "format"], make_composition(SUM), 1)

    # Var(R) · 4 = 1.25; Cov · 4 is ½·(0.75 + 0.25 + 0.25 + 0.75) = 1, and 0.25.
    assert variance_shares(shares) == pytest.approx([0.8, 0.2])
    assert shares.part_sum.tolist() == [2.0, 1.0]
    assert (shares.reward_sum, shares.num_scored) == (3.0, 4)


def test_a_group_counts_by_the_variance_of_its_advantages():
    answer = score(SUM, {"answer": 1.0, "format": 0}, {"answer": 0.0, "format": 0})
    form = score(
        SUM,
        {"answer": 0, "format": 1.0},
        {"answer": 0, "format": 0.0},
        # Scaled by its group's deviation, ½ teaches no less than 1 does.
        advantages=[0.5, -0.5],
    )
    names = ["answer", "format"]

    equal = share([answer, form], names, make_composition(SUM), 1)

    assert variance_shares(equal) == pytest.approx([0.5, 0.5])
    assert equal.num_varied.tolist() == [1, 1]


def test_dropped_groups_have_no_share():
    completions = ({"answer": 1.0}, {"answer": 0.0})
    group = score(SUM, *completions, is_trained=False)

    shares = share([group], ["answer"], make_composition(SUM), 1)

    assert (shares.weight, shares.num_scored) == (0.0, 2)


def test_a_rule_that_never_differs_has_no_share():
    # 0.1 three times has a rounded mean that is not 0.1.
    group = score(
        SUM,
        {"answer": 1.0, "format": 0.1},
        {"answer": 0.0, "format": 0.1},
        {"answer": 0.0, "format": 0.1},
    )

    shares = share([group], ["answer", "format"], make_composition(SUM), 1)

    assert shares.num_varied.tolist() == [1, 0]
    assert variance_shares(shares) == pytest.approx([1.0, 0.0])


def test_the_rest_is_the_part_without_a_rule():
    # Something else took ½ off the better one's reward.
    rules = [{"answer": 1.0}, {"answer": 0.0}]
    group = make_group([0.5, 0.0], rules=rules)

    shares = share([group], ["answer"], make_composition(SUM), 1)

    assert variance_shares(shares) == pytest.approx([2.0])


def test_completions_without_a_reward_do_not_count():
    rules = [{"answer": 1.0}, {"answer": 0.0}, {"answer": None}]
    group = make_group([1.0, 0.0, None], rules=rules)

    shares = share([group], ["answer"], make_composition(SUM), 1)

    assert (shares.num_scored, shares.part_sum.tolist()) == (2, [1.0])
    assert variance_shares(shares) == pytest.approx([1.0])


def test_a_closed_gate_removes_a_rules_part():
    gate = {"rule": "answer", "at_least": 1.0}
    recipe = Recipe.model_validate(
        {
            "rules": [
                {"name": "answer", "kind": "exact_answer"},
                {"name": "format", "kind": "exact_answer", "only_if": gate},
            ]
        }
    )
    group = score(
        recipe, {"answer": 1.0, "format": 1.0}, {"answer": 0.0, "format": 1.0}
    )

    shares = share([group], ["answer", "format"], make_composition(recipe), 1)

    assert shares.part_sum.tolist() == [1.0, 1.0]
    assert variance_shares(shares) == pytest.approx([0.5, 0.5])


def test_rules_compared_by_themselves_share_by_their_weights():
    # However small the format's spread, normalised it is as wide as the answer's.
    group = score(
        NORMALIZED,
        {"answer": 1.0, "format": 0.01},
        {"answer": 1.0, "format": 0.0},
        {"answer": 0.0, "format": 0.01},
        {"answer": 0.0, "format": 0.0},
    )
    composition = make_composition(NORMALIZED, "normalized")

    shares = share([group], ["answer", "format"], composition, 1)

    # Uncorrelated, of deviation 1 and ½: 1 / 1.25 and 0.25 / 1.25.
    assert variance_shares(shares) == pytest.approx([0.8, 0.2])


def test_factors_share_by_their_correlation_with_the_product():
    two = make_recipe({"answer": 1.0, "format": 1.0}, combine="product")
    group = score(two, {"answer": 1.0, "format": 1.0}, {"answer": 0.0, "format": 1.0})

    shares = share([group], ["answer", "format"], make_composition(two, "product"), 1)

    assert variance_shares(shares) == pytest.approx([1.0, 0.0])


CASES = {
    "sum": (SUM, "sum"),
    "normalized": (NORMALIZED, "normalized"),
    "product": (PRODUCT, "product"),
}


@pytest.mark.parametrize("case", CASES)
@given(data=st.data())
def test_shares_add_up_to_one(case, data):
    recipe, kind = CASES[case]
    groups = data.draw(drawn_groups(recipe))

    shares = share(groups, NAMES, make_composition(recipe, kind), 1)

    assert shares.share_sum.sum() == pytest.approx(shares.weight)


@given(groups=drawn_groups(SUM))
def test_the_sums_equal_a_slow_version(groups):
    shares = share(groups, NAMES, make_composition(SUM), 1)

    weight, share_sum = 0.0, dict.fromkeys(NAMES, 0.0)
    for group in groups:
        size = len(group.rewards)
        variance = covariance(group.rewards, group.rewards)
        if variance == 0:
            continue
        taught = size * covariance(group.advantages, group.advantages)
        weight += taught
        for name in NAMES:
            parts = [parts_of(SUM, c, step=1)[name].value or 0 for c in group.rules]
            share_sum[name] += taught * covariance(parts, group.rewards) / variance
    assert shares.weight == pytest.approx(weight)
    assert shares.share_sum == pytest.approx(np.array(list(share_sum.values())))


def covariance(a, b):  # type: ignore[no-untyped-def]  # lists of numbers
    return fmean((x - fmean(a)) * (y - fmean(b)) for x, y in zip(a, b, strict=True))


def test_each_phase_weighs_by_its_own_recipe():
    changed = {"rules": [{"name": "answer", "kind": "exact_answer", "weight": 3.0}]}
    phases = [
        {"name": "one", "num_steps": 2, "changes": {}},
        {"name": "two", "num_steps": 3, "changes": {"reward": {"recipe": changed}}},
    ]
    optim = {"num_steps": 5}
    config = json.dumps(make_config(phases=phases, optim=optim))

    compositions = read_compositions(config)

    weights = [compositions.at(n).weights_at(n, ["answer"])[0] for n in (1, 2, 3, 9)]
    assert weights == [1.0, 1.0, 3.0, 3.0]


def test_a_removed_rule_keeps_its_weight():
    config = make_config()
    config["reward"]["recipe"]["rules"][1] |= {"kind": "forgotten", "weight": 0.2}

    composition = read_compositions(json.dumps(config)).at(1)

    parts = composition.parts(
        [{"answer": 1.0, "format": None}], ["answer", "format"], 1
    )
    assert parts[0, 0] == 1.0
    assert np.isnan(parts[0, 1])
    assert composition.weights_at(1, ["format"]).tolist() == [0.2]
