"""What settings weigh: against known formulas, all orders, and simulated truth."""

import itertools
from math import factorial

import numpy as np
import pytest

from dashboard.analysis.sweeps.importance import Numbers, degrees, weigh


def grid(*levels: int, seeds: int = 1) -> np.ndarray:
    points = itertools.product(*map(range, levels))
    return np.array([point for point in points for _ in range(seeds)])


def dummies(places: Numbers) -> Numbers:
    others = np.unique(places)[1:]
    found: Numbers = np.array(places[:, None] == others, dtype=np.float64)
    return found


def columns(points: np.ndarray) -> list[Numbers]:
    return [dummies(points[:, j]) for j in range(points.shape[1])]


def draw_outcome(points: np.ndarray, *effects: list[float], noise: float) -> Numbers:
    rng = np.random.default_rng(1)
    effect = sum(np.array(e)[points[:, j]] for j, e in enumerate(effects))
    return effect + noise * rng.standard_normal(len(points))


def test_one_setting_has_hays_omega_squared():
    points = grid(4, seeds=5)
    y = draw_outcome(points, [0, 1, 2, 1], noise=1.0)
    by_level = y.reshape(4, 5)
    between = 5 * ((by_level.mean(axis=1) - y.mean()) ** 2).sum()
    within = ((by_level - by_level.mean(axis=1, keepdims=True)) ** 2).sum()
    mse = within / 16

    found = weigh(columns(points), y)

    omega = (between - 3 * mse) / (between + within + mse)
    assert found.shares[0].value == pytest.approx(omega)
    assert found.rest.value == pytest.approx(1 - omega)


def test_a_part_is_the_mean_over_all_orders():
    """Of settings that go together, as Lindeman, Merenda and Gold define it."""
    rng = np.random.default_rng(2)
    first = rng.standard_normal((20, 2))
    second = first[:, :1] + 0.5 * rng.standard_normal((20, 1))
    third = rng.standard_normal((20, 3))
    settings = [first, second, third]
    y = first[:, 0] + second[:, 0] + rng.standard_normal(20)

    def explained(chosen: tuple[int, ...]) -> float:
        parts = [settings[j] for j in chosen]
        matrix = np.concatenate([np.ones((20, 1)), *parts], axis=1)
        fit = matrix @ np.linalg.lstsq(matrix, y, rcond=None)[0]
        return float(((fit - y.mean()) ** 2).sum())

    mse = (((y - y.mean()) ** 2).sum() - explained((0, 1, 2))) / (20 - 7)
    total = ((y - y.mean()) ** 2).sum() + mse
    wanted = np.zeros(3)
    for order in itertools.permutations(range(3)):
        for place, j in enumerate(order):
            gain = explained(order[: place + 1]) - explained(order[:place])
            wanted[j] += (gain - settings[j].shape[1] * mse) / factorial(3) / total

    found = weigh(settings, y)

    assert [share.value for share in found.shares] == pytest.approx(wanted)
    assert sum(wanted) + found.rest.value == pytest.approx(1)


def test_equal_columns_share_what_either_explains():
    points = grid(3, 2, seeds=3)
    first, other = columns(points)
    y = draw_outcome(points, [0, 1, 3], [0, 0], noise=0.5)

    found = weigh([first, first, other], y)

    assert found.shares[0] == found.shares[1]
    assert found.shares[0].value == pytest.approx(
        weigh([first, other], y).shares[0].value / 2
    )


def test_the_same_runs_give_the_same_result():
    points = grid(3, 2, seeds=2)
    y = draw_outcome(points, [0, 1, 3], [0, 0], noise=0.5)

    assert weigh(columns(points), y) == weigh(columns(points), y)


def test_a_larger_unit_changes_nothing():
    points = grid(3, 2, seeds=2)
    y = draw_outcome(points, [0, 1, 3], [0, 1], noise=0.5)

    found = [weigh(columns(points), y), weigh(columns(points), 1e6 * y - 4e6)]

    for one, other in zip(found[0].shares, found[1].shares, strict=True):
        assert (one.value, one.low, one.high) == pytest.approx(
            (other.value, other.low, other.high)
        )


def test_without_noise_nothing_is_left_for_the_rest():
    points = grid(3, 2, seeds=2)

    found = weigh(columns(points), draw_outcome(points, [0, 1, 3], [0, 1], noise=0.0))

    assert found.rest.value == pytest.approx(0, abs=1e-9)
    assert found.shares[0].low == pytest.approx(found.shares[0].value)


def test_too_few_runs_are_refused():
    points = grid(3, 2)

    with pytest.raises(ValueError, match="6 runs leave 2"):
        weigh([*columns(points)], np.arange(6.0))


def test_equal_outcomes_are_refused():
    points = grid(3, 2, seeds=2)

    with pytest.raises(ValueError, match="outcomes"):
        weigh(columns(points), np.full(12, 0.3))


def test_degrees_are_the_rank():
    first, second = columns(grid(3, 2))

    assert degrees([first, second, first[:, :1]]) == 3


@pytest.mark.parametrize(
    ("points", "effects", "noise"),
    [
        (grid(3, 3, seeds=3), [[0, 0.1, 0.3], [0, 0.05, 0]], 0.1),
        (grid(4, 2, seeds=2), [[0, 0.1, 0.3, 0.2], [0, 0.1]], 0.1),
        (grid(3, 3, 3), [[0, 0.1, 0.3], [0, 0.05, 0], [0, 0, 0]], 0.1),
    ],
)
def test_intervals_contain_the_true_share(points, effects, noise):
    """95% are meant; of 120 draws fewer than 105 hold it once in 10,000 times."""
    rng = np.random.default_rng(3)
    by_setting = [np.array(e)[points[:, j]] for j, e in enumerate(effects)]
    variances = np.array([values.var() for values in by_setting])
    truth = variances / (variances.sum() + noise**2)
    settings = columns(points)
    held = np.zeros(len(truth), dtype=int)
    estimates = []
    for _ in range(120):
        y = sum(by_setting) + noise * rng.standard_normal(len(points))
        found = weigh(settings, y)
        estimates.append([share.value for share in found.shares])
        held += [s.low <= t <= s.high for s, t in zip(found.shares, truth, strict=True)]

    assert (held >= 105).all(), held
    assert np.abs(np.mean(estimates, axis=0) - truth).max() < 0.05
