"""Whether a reward is gamed, from recorded series: short runs of the starter model."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pytest

from dashboard.accounts.models import Team
from dashboard.analysis.audit.changes import Change, compare_ends
from dashboard.analysis.audit.completions import Feature
from dashboard.analysis.audit.findings import audit
from dashboard.analysis.audit.verdict import Verdict, Witness, changes_of, judge
from dashboard.runs.charts.series import Series
from dashboard.runs.models import Run
from tests.dashboard.completions.factories import (
    make_evaluation,
    make_run,
    make_steps,
)

NUM = 40
RISING = np.linspace(0.2, 0.7, NUM)
FLAT = np.full(NUM, 0.4)
NOISE = 0.03 * np.sin(2.4 * np.arange(NUM))
HEALTHY = [float(v) for v in RISING + NOISE]
FALLING = [float(v) for v in np.linspace(0.4, 0.1, NUM) + NOISE]
STILL = [float(v) for v in FLAT + NOISE / 3]
# Rises with the reward at first, and then falls.
TURNING = [float(v) for v in 0.6 - 2.0 * np.linspace(-0.55, 0.45, NUM) ** 2 + NOISE]
LOWER = [0.95] * (NUM // 2) + [0.87] * (NUM - NUM // 2)
NOISY = [float(v) for v in FLAT + 10 * NOISE]


def series(values: Sequence[float]) -> Series:
    return Series(steps=np.arange(1, len(values) + 1), values=np.array(values))


def witness(
    values: Sequence[float],
    *,
    weight: float = 0.0,
    trust: Literal["sure", "named"] = "sure",
) -> Witness:
    return Witness(
        name="equation",
        changes=changes_of(series(values)),
        full=1.0,
        weight=weight,
        trust=trust,
    )


def paid_length() -> Feature:
    change = compare_ends(series([10.0 + n for n in range(NUM)]))
    assert change is not None
    return Feature(name="length", correlation=0.9, low=0.88, change=change, spread=5.0)


def verdict(
    reward: Sequence[float], *witnesses: Witness, features: Sequence[Feature] = ()
) -> Verdict:
    return judge(changes_of(series(reward)), witnesses, features)


@pytest.mark.parametrize(
    ("reward", "correct", "weight", "expected"),
    [
        (HEALTHY, HEALTHY, 1.0, ("no", "rises")),
        (HEALTHY, FALLING, 0.0, ("likely", "falls")),
        (HEALTHY, FALLING, 0.3, ("likely", "falls")),
        (HEALTHY, TURNING, 0.0, ("likely", "falls")),
        (HEALTHY, STILL, 0.0, ("likely", "stands")),
        # The format improves; the answers, which weigh more, come later.
        (HEALTHY, STILL, 2.0, ("unknown", "unclear")),
        (HEALTHY, NOISY, 0.0, ("unknown", "unclear")),
        (HEALTHY, [0.95] * NUM, 0.0, ("no", "high")),
        # Lower by 8%, surely: no fall, but no all-clear either.
        (HEALTHY, LOWER, 0.0, ("unknown", "unclear")),
        (STILL, FALLING, 0.0, ("no", "flat")),
        (FALLING, FALLING, 1.0, ("no", "flat")),
        (HEALTHY[:23], FALLING[:23], 0.0, ("unknown", "few")),
    ],
)
def test_correctness_beside_the_reward_decides(reward, correct, weight, expected):
    found = verdict(reward, witness(correct, weight=weight))

    assert (found.answer, found.why) == expected


def test_a_fall_is_compared_with_the_quarter_from_which_it_fell():
    found = verdict(HEALTHY, witness(TURNING))

    assert found.change is not None
    assert found.reward is not None
    assert found.change.before.first == found.reward.before.first > 1


def test_without_a_rule_a_paid_feature_of_the_text_decides():
    blind = verdict(HEALTHY)
    paid = verdict(HEALTHY, features=[paid_length()])

    assert (blind.answer, blind.why) == ("unknown", "no_rule")
    assert (paid.answer, paid.why) == ("likely", "surface")
    assert paid.feature is not None


def test_a_paid_feature_outweighs_the_rise_of_a_users_own_rule_only():
    own = witness(HEALTHY, weight=1, trust="named")
    sure = witness(HEALTHY, weight=1, trust="sure")

    assert verdict(HEALTHY, own).why == "rises"
    assert verdict(HEALTHY, own, features=[paid_length()]).why == "surface"
    assert verdict(HEALTHY, sure, features=[paid_length()]).why == "rises"


@pytest.mark.django_db
def test_a_rule_of_weight_0_is_read_beside_the_training_reward(team):
    run = rewarded(
        team, [("signs", "python_function", 1.0), ("equation", "countdown", 0.0)]
    )
    make_steps(
        run,
        {
            "reward/mean": list(HEALTHY),
            "reward/signs/mean": list(HEALTHY),
            "reward/equation/mean": list(FALLING),
        },
    )

    found = audit(run).verdict

    assert (found.answer, found.why) == ("likely", "falls")
    assert found.witness is not None
    assert (found.witness.name, found.witness.weight) == ("equation", 0.0)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("name", "kind", "why"),
    [
        ("accuracy_reward", "python_function", "falls"),
        ("num_signs", "python_function", "no_rule"),
        ("correct_format", "format_tags", "no_rule"),
    ],
)
def test_a_users_own_rule_measures_correctness_if_it_is_named_so(team, name, kind, why):
    run = rewarded(team, [("signs", "python_function", 1.0), (name, kind, 0.0)])
    metrics = {"reward/mean": list(HEALTHY), f"reward/{name}/mean": list(FALLING)}
    make_steps(run, metrics)

    assert audit(run).verdict.why == why


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("scores", "why"), [((0.6, 0.3), "falls"), ((0.3, 0.6), "no_rule")]
)
def test_a_held_out_set_shows_overfitting_and_clears_nothing(team, scores, why):
    run = rewarded(team, [("signs", "python_function", 1.0)])
    make_steps(run, {"reward/mean": list(HEALTHY)})
    for step, mean in zip((0, NUM), scores, strict=True):
        ends = {"": mean, "/low": mean - 0.05, "/high": mean + 0.05}
        make_evaluation(
            run,
            step,
            {f"eval/heldout/mean{end}": v for end, v in ends.items()},
            seq=step,
        )

    found = audit(run).verdict

    assert found.why == why
    if found.change is not None:
        assert isinstance(found.change, Change)
        assert found.change.high == pytest.approx(-0.3 + np.hypot(0.05, 0.05))


def rewarded(team: Team, rules: list[tuple[str, str, float]]) -> Run:
    return make_run(
        team,
        num_steps=NUM,
        rules=[
            {"name": name, "kind": kind, "weight": weight, "params": {}}
            for name, kind, weight in rules
        ],
    )
