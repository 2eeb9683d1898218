import numpy as np
import pytest

from dashboard.completions.signals.signal_map import MAX_CELLS, read_distribution
from tests.dashboard.completions.rollups import make_rollup
from tests.dashboard.completions.step_groups import make_group


def test_a_steps_rewards_are_counted_and_summed_up(run):
    make_rollup(run, 1, [make_group([0.0, 0.0, 0.5, 1.0]), make_group([1.2, None])])

    answer = read_distribution(run, "reward")

    (column,) = answer["columns"]
    assert (column["first"], column["last"], column["num"]) == (1, 1, 5)
    # 0, 0, 0.5, 1, 1.2, between two of them on the line between them
    assert column["quantiles"] == pytest.approx([0, 0, 0, 0.5, 1, 1.16, 1.2])
    found = dict(zip(answer["edges"], answer["counts"][0], strict=False))
    assert {edge: n for edge, n in found.items() if n} == {
        0.0: 2,
        0.475: 1,
        1.0: 1,
        1.18: 1,
    }


def test_cells_are_high_enough_to_be_seen(run):
    rewards = np.random.default_rng(3).uniform(-2, 7, 500).tolist()
    make_rollup(run, 1, [make_group(rewards)])

    answer = read_distribution(run, "reward")

    edges = answer["edges"]
    heights = np.diff(edges)
    assert len(heights) <= MAX_CELLS
    assert heights[:-1].min() >= (edges[-1] - edges[0]) / MAX_CELLS
    assert edges[0] <= -1.9
    assert edges[-1] >= 6.9
    expected, _ = np.histogram(rewards, edges)
    assert answer["counts"][0] == expected.tolist()


def test_steps_of_a_column_add_up(run):
    for step in range(1, 162):
        make_rollup(run, step, [make_group([0.0, float(step % 2)])])

    answer = read_distribution(run, "reward")

    assert len(answer["columns"]) == 81
    first = answer["columns"][0]
    assert (first["first"], first["last"], first["num"]) == (1, 2, 4)
    # Medians ½ and 0; the ends are those of all four values.
    assert first["quantiles"][::3] == [0.0, 0.25, 1.0]
    assert sum(answer["counts"][0]) == 4


def test_only_the_batchs_advantages_count(run):
    left_out = make_group([1.0, 0.0], is_trained=False)
    make_rollup(run, 1, [make_group([1.0, 0.0]), left_out])

    (column,) = read_distribution(run, "advantage")["columns"]

    assert (column["num"], column["quantiles"][::6]) == (2, [-0.5, 0.5])


@pytest.mark.parametrize("reward", [0.0, 1.0, -3.0, 5_000.0, -5_000.0])
def test_a_single_value_is_a_cell(run, reward):
    make_rollup(run, 1, [make_group([reward] * 3)])

    answer = read_distribution(run, "reward")

    assert answer["counts"] == [[3]]
    low, high = answer["edges"]
    assert low < high
    assert low <= reward <= high


def test_no_scores_no_columns(run):
    make_rollup(run, 1, [make_group([None, None], signal="unscorable")])

    answer = read_distribution(run, "reward")

    assert (answer["columns"], answer["counts"]) == ([], [])
