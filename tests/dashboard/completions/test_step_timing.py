import pytest

from dashboard.completions.signals.signal_map import read_step_timing
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
