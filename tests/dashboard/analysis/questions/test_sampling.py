"""Which completions are asked about."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from dashboard.analysis.questions.sampling import (
    draw_sample,
    hash_keys,
    matching,
    order_for_people,
)
from tests.dashboard.analysis.questions.factories import make_hedging_run


@pytest.fixture(params=["from the table", "from blocks"])
def run(team, request):
    return make_hedging_run(team, is_stored=request.param == "from blocks")


def draw(run, size, *, seed=0, query=""):
    return draw_sample(matching(run, query, None), size=size, seed=seed)


def places(sample):
    return [(each.group, each.position) for each in sample]


def test_each_window_has_equally_many_of_different_groups(run):
    sample, num_found = draw(run, 30)

    assert num_found == 160
    assert Counter(each.window for each in sample) == dict.fromkeys(range(10), 3)
    assert len({each.group for each in sample}) == 30
    # ten windows of a step: 4 groups, of which 3 are drawn, one of four of each
    assert {each.weight for each in sample} == {4 / 3 * 4}


def test_groups_give_further_completions_only_when_they_run_out(run):
    sample, _ = draw(run, 100)

    by_group = Counter(each.group for each in sample)
    assert Counter(by_group.values()) == {2: 20, 3: 20}
    weights = {by_group[each.group]: each.weight for each in sample}
    assert weights == {2: 2.0, 3: pytest.approx(4 / 3)}


def test_a_larger_sample_contains_a_smaller_one(run):
    sizes = [draw(run, size)[0] for size in (10, 30, 70, 160)]

    for smaller, larger in pairwise(sizes):
        assert set(places(smaller)) < set(places(larger))
    assert {each.weight for each in sizes[-1]} == {1.0}


def test_the_weights_sum_to_what_matches(run):
    for size in (10, 30, 70):
        sample, num_found = draw(run, size)
        assert sum(each.weight for each in sample) == pytest.approx(num_found)


def test_the_order_is_by_chance_and_repeatable(run):
    sample, _ = draw(run, 100)
    again, _ = draw(run, 100)
    other, _ = draw(run, 100, seed=1)

    assert sample == again
    assert places(sample) != places(other)
    steps = [each.step for each in sample]
    assert abs(np.corrcoef(steps, np.arange(len(steps)))[0, 1]) < 0.3


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("first_step=3&last_step=4", 32),
        ("text=maybe", 10 * 4),
        ("min_reward=1", 80),
        ("text=nothing", 0),
    ],
)
def test_a_filter_is_that_of_the_search(run, query, expected):
    sample, num_found = draw(run, 10, query=query)

    if query == "text=maybe":  # shares of steps 3 to 10: 1/4, 1/4, 1/4, 2/4, …, 3/4
        expected = sum(step // 3 for step in range(1, 11)) * 4
    assert num_found == expected
    assert bool(sample) == bool(expected)
    assert sum(each.weight for each in sample) == pytest.approx(expected)


def test_steps_make_at_most_twenty_windows(team):
    run = make_hedging_run(team, num_steps=45, num_prompts=1)

    sample, _ = draw(run, 20)

    assert sorted(each.window for each in sample) == list(range(20))
    for each in sample:
        assert each.window == (each.step - 1) * 20 // 45


def test_hashes_are_spread_evenly():
    keys = hash_keys(3, np.arange(100_000))

    assert len(np.unique(keys)) == 100_000
    counts = np.bincount((keys >> np.uint64(60)).astype(int), minlength=16)
    assert counts.min() > 5_900


def test_people_are_given_completions_in_proportion_to_their_weights():
    positions = np.arange(20_000)
    weights = np.where(positions % 2, 3.0, 1.0)

    keys = order_for_people(0, np.zeros_like(positions), positions, weights)

    first = np.argsort(keys)[:1_000]
    assert np.mean(weights[first] == 3) == pytest.approx(0.75, abs=0.04)
