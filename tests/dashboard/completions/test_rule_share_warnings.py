from collections.abc import Sequence

import pytest

from dashboard.completions.signals.composition import RuleContribution, judge
from dashboard.completions.signals.records import StepGroup
from dashboard.completions.signals.rule_shares import read_rule_shares
from dashboard.runs.models import Run
from tests.dashboard.completions.rollups import WEIGHTED, make_rollup
from tests.dashboard.completions.step_groups import make_group

pytestmark = pytest.mark.django_db


def graded(answers: Sequence[float], formats: Sequence[float]) -> StepGroup:
    rules = [{"answer": a, "format": f} for a, f in zip(answers, formats, strict=True)]
    return make_group([r["answer"] + 0.2 * r["format"] for r in rules], rules=rules)


def tell(run: Run, group: StepGroup, *, first: int = 1, num_steps: int = 20) -> None:
    for step in range(first, first + num_steps):
        make_rollup(run, step, [group], composition=WEIGHTED)


BALANCED = graded([0.3, 0, 0.3, 0], [1, 1, 0, 0])
BY_FORMAT = graded([0.0, 0.02, 0.0, 0.0], [1, 0, 0, 1])
BY_ANSWER_ALONE = graded([1, 0, 0, 0], [1, 1, 1, 1])


def test_each_column_has_the_rules_parts_and_shares(run):
    tell(run, graded([1, 1, 0, 0], [1, 0, 1, 0]), num_steps=1)

    answer = read_rule_shares(run)

    assert answer["rules"] == ["answer", "format"]
    assert answer["reward"] == [0.6]
    assert answer["part"] == {"answer": [0.5], "format": [0.1]}
    assert answer["mean"] == {
        "answer": [pytest.approx(5 / 6, abs=1e-5)],
        "format": [pytest.approx(1 / 6, abs=1e-5)],
    }
    # Variances ¼ and 0.04 / 4 of uncorrelated parts.
    assert answer["variance"] == {
        "answer": [pytest.approx(0.25 / 0.26, abs=1e-5)],
        "format": [pytest.approx(0.01 / 0.26, abs=1e-5)],
    }
    assert answer["rest"] == [pytest.approx(0, abs=1e-9)]
    assert answer["kind"] == "sum"


def test_steps_with_other_rules_share_a_column(run):
    for step in range(1, 321):
        name = "answer" if step % 2 else "format"
        rules = [{name: 1.0}, {name: 0.0}]
        make_rollup(run, step, [make_group([1.0, 0.0], rules=rules)])

    answer = read_rule_shares(run)

    assert len(answer["columns"]) == 160
    assert set(answer["rules"]) == {"answer", "format"}
    assert answer["variance"]["answer"][0] == 0.5
    assert answer["variance"]["format"][0] == 0.5


def test_groups_without_signal_have_no_shares(run):
    tell(run, graded([0, 0], [1, 1]), num_steps=1)

    answer = read_rule_shares(run)

    assert answer["variance"] == {"answer": [None], "format": [None]}
    assert answer["rest"] == [None]
    assert answer["part"] == {"answer": [0.0], "format": [0.2]}


def test_a_rule_that_dominates_is_named(run):
    tell(run, BALANCED, num_steps=100)
    tell(run, BY_FORMAT, first=101)

    (warning,) = read_rule_shares(run)["warnings"]

    assert read_rule_shares(run)["variance"]["format"][-1] > 0.9
    assert warning.startswith("format ")
    assert "20 steps" in warning


def test_old_dominance_is_not_shown(run):
    tell(run, BY_FORMAT)
    tell(run, BALANCED, first=21)

    assert read_rule_shares(run)["warnings"] == read_rule_shares(run)["facts"] == []


def test_the_task_itself_may_dominate(run):
    """It has five times the weight of the format, whose expected share is 4%."""
    tell(run, graded([1, 1, 0, 0], [1, 0, 1, 0]))

    answer = read_rule_shares(run)

    assert answer["warnings"] == []
    (fact,) = answer["facts"]
    assert fact.startswith("answer ")


def test_a_suppressed_rule_is_named(run):
    """The answer has five times the weight, but hardly any share."""
    tell(run, BY_FORMAT)

    answer = read_rule_shares(run)

    (warning,) = answer["warnings"]
    assert warning.startswith("format ")
    assert " answer " in warning
    assert answer["facts"] == []


def test_a_rule_that_pulls_the_other_way_is_named_without_a_share():
    task = RuleContribution(rule="a", weight=1.0, share=1.06, differs=0.8, part=0.5)
    other = RuleContribution(rule="b", weight=0.5, share=-0.07, differs=0.4, part=0.1)

    (warning,) = judge([task, other], num_groups=80, num_steps=20)["warnings"]

    assert "b pulls the other way" in warning
    assert "%" not in warning


def test_a_constant_rule_with_a_score_is_a_fact(run):
    tell(run, BY_ANSWER_ALONE)

    answer = read_rule_shares(run)

    assert answer["warnings"] == []
    dominant, constant = answer["facts"]
    assert dominant.startswith("answer ")
    assert constant.startswith("format gave")


def test_a_rule_that_always_gives_0_is_a_warning(run):
    tell(run, graded([1, 0, 0, 0], [0, 0, 0, 0]))

    answer = read_rule_shares(run)

    (warning,) = answer["warnings"]
    assert warning.startswith("format gave 0")


@pytest.mark.parametrize(
    ("differs", "share", "is_warned"),
    [
        (0.1, 0.0, False),  # hardly ever differs
        (0.4, 0.019, False),  # 0.2² · 0.4 / (0.2² · 0.4 + 0.8) = 0.0196 is expected
        (0.4, 0.009, True),
    ],
)
def test_a_rule_is_suppressed_below_half_of_its_expected_share(
    differs, share, is_warned
):
    task = RuleContribution(
        rule="answer", weight=1.0, share=1 - share, differs=0.8, part=0.5
    )
    other = RuleContribution(
        rule="format", weight=0.2, share=share, differs=differs, part=0.1
    )

    found = judge([task, other], num_groups=80, num_steps=20)

    assert bool(found["warnings"]) is is_warned
    assert len(found["facts"]) == (not is_warned)


def test_a_few_steps_are_too_few_to_warn_of(run):
    tell(run, BY_FORMAT, num_steps=19)

    assert read_rule_shares(run)["warnings"] == []


def test_a_single_rule_has_no_warnings(run):
    for step in range(1, 21):
        make_rollup(run, step, [make_group([1.0, 0.0])])

    assert read_rule_shares(run)["warnings"] == read_rule_shares(run)["facts"] == []
