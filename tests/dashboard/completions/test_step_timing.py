import pytest

from dashboard.completions.signals.figures import signal_charts
from dashboard.completions.signals.signal_map import IDLE, read_step_timing
from tests.dashboard.completions.factories import make_steps
from tests.dashboard.completions.rollups import make_rollup
from tests.dashboard.completions.step_groups import make_group

pytestmark = pytest.mark.django_db
SECONDS = {"generate": 6.0, "score": 1.0, "logprobs": 2.0, "update": 4.0, "sync": 0.5}


def test_dead_groups_bear_their_share_of_each_phase(run):
    groups = [
        make_group([1.0, 0.0], num_tokens=[10, 10]),
        make_group([0.0, 0.0], num_tokens=[15, 5]),  # dead, in the batch
        make_group([1.0, 1.0], num_tokens=[30, 30], is_trained=False),
    ]
    make_rollup(run, 1, groups, seconds={**SECONDS, "step": 14.0})

    answer = read_step_timing(run)

    # Tokens: 80 of 100 sampled, 20 of 40 in the batch; completions: 4 of 6.
    assert {name: answer["dead_of"][name] for name in answer["dead_of"]} == {
        "generate": [4.8],
        "score": [pytest.approx(2 / 3, abs=1e-4)],
        "logprobs": [1.0],
        "update": [2.0],
    }
    assert answer["dead"] == [pytest.approx(7.8 + 2 / 3, abs=1e-3)]
    assert answer["seconds"]["step"] == [14.0]
    assert answer["seconds"]["other"] == [0.5]


def test_phases_and_the_rest_make_the_step(run):
    make_rollup(run, 1, seconds={**SECONDS, "step": 15.0})

    seconds = read_step_timing(run)["seconds"]

    whole = sum(values[0] for name, values in seconds.items() if name != "step")
    assert whole == seconds["step"][0] == 15.0


def test_steps_of_a_column_are_averaged(run):
    for step in range(1, 162):
        seconds = {"generate": 2.0 * (step % 2), "step": 3.0}
        make_rollup(run, step, [make_group([0.0, 0.0])], seconds=seconds)

    answer = read_step_timing(run)

    assert answer["columns"][0] == {"first": 1, "last": 2}
    assert answer["seconds"]["generate"][0] == 1.0
    assert answer["dead"][0] == 1.0


def test_steps_without_groups_have_unknown_lost_time(run):
    make_rollup(run, 1, seconds={"generate": 2.0, "step": 3.0})

    answer = read_step_timing(run)

    assert (answer["dead"], answer["dead_of"]["generate"]) == ([None], [None])


def test_steps_that_were_not_timed_are_not_drawn(run):
    make_rollup(run, 1, [make_group([1.0, 0.0])])

    assert read_step_timing(run)["columns"] == []


def test_groups_without_lengths_have_unknown_lost_time(run):
    groups = [
        make_group([1.0, 0.0], num_tokens=[10, 10]),
        make_group([0.0, 0.0], num_tokens=[None, None]),
    ]
    make_rollup(run, 1, groups, seconds={**SECONDS, "step": 14.0})

    assert read_step_timing(run)["dead"] == [None]


def test_without_advantages_equal_rewards_mean_no_signal():
    unknown = [None, None]

    mixed = make_group([1.0, 0.0], advantages=unknown)
    tied = make_group([1.0, 1.0], advantages=unknown)

    assert not mixed.is_dead
    assert tied.is_dead


def test_waits_for_an_environment_are_a_phase_of_their_own(run):
    make_steps(run, {IDLE: [1.5, 9.0]})
    groups = [
        make_group([1.0, 0.0], num_tokens=[10, 10]),
        make_group([1.0, 1.0], num_tokens=[30, 30]),
    ]
    for step in (1, 2):
        make_rollup(run, step, groups, seconds={**SECONDS, "step": 15.0})

    answer = read_step_timing(run)

    assert answer["phases"][:3] == ["generate", "environment", "score"]
    # The second wait was for a batch that was sampled ahead.
    assert answer["seconds"]["generate"] == [4.5, 0.0]
    assert answer["seconds"]["environment"] == [1.5, 6.0]
    assert answer["dead_of"]["generate"] == [3.375, 0.0]
    assert answer["dead_of"]["environment"] == [1.125, 4.5]
    assert sum(answer["seconds"][name][0] for name in answer["phases"]) == 15.0


def test_only_runs_with_an_environment_have_its_phase(run):
    make_rollup(run, 1, seconds={**SECONDS, "step": 15.0})

    def phases(**options):
        (chart,) = (c for c in signal_charts(**options) if c.id == "anatomy")
        return [trace.get("meta", {}).get("phase") for trace in chart.figure["data"]]

    assert "environment" not in read_step_timing(run)["seconds"]
    assert "environment" not in phases()
    assert phases(has_environment=True)[1] == "environment"
