"""Where a series changes, by how much, and how often noise would show as much."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special, stats

from dashboard.analysis.audit.change_points import (
    FEWEST,
    Noise,
    Series,
    chance_of,
    find_change,
    measure_noise,
    rate_of,
    split,
)
from dashboard.analysis.statistics import Array


def series(values: list[float] | Array) -> Series:
    values = np.asarray(values, np.float64)
    return Series(steps=10 * np.arange(1, len(values) + 1), values=values)


def noise(num: int, correlated: float, seed: int) -> Array:
    """A first-order autoregression of standard deviation 1."""
    random = np.random.default_rng(seed)
    values, last = [], 0.0
    for each in random.normal(size=num + 50):
        last = correlated * last + math.sqrt(1 - correlated**2) * each
        values.append(last)
    return np.array(values[50:])


def test_the_step_at_which_a_level_changes_is_found() -> None:
    values = 0.1 * noise(100, 0.0, seed=1)
    values[60:] += 2.0

    change = find_change(series(values))

    assert change is not None
    assert change.step == 610
    assert (change.before.first, change.before.last, change.before.num) == (
        510,
        600,
        10,
    )
    assert (change.after.first, change.after.last, change.after.num) == (610, 700, 10)
    assert change.before.mean == pytest.approx(values[50:60].mean())
    assert change.difference == pytest.approx(
        values[60:70].mean() - values[50:60].mean()
    )
    assert change.low < 2.0 < change.high
    assert change.effect == pytest.approx(20, rel=0.2)
    assert change.chance is not None
    assert change.chance < 1e-6


def test_the_split_is_the_one_that_leaves_least_squares() -> None:
    values = noise(60, 0.3, seed=2)

    def left(place: int) -> float:
        sides = values[:place], values[place:]
        return sum(float(((side - side.mean()) ** 2).sum()) for side in sides)

    assert split(values) == min(range(3, 58), key=left)


def test_spread_and_interval_are_those_of_a_fit_of_two_lines() -> None:
    values = noise(40, 0.0, seed=3)
    values[15:] += 1.0
    left = []
    for side in (values[:15], values[15:]):
        line = np.polynomial.Polynomial.fit(np.arange(len(side)), side, 1)
        left.append(side - line(np.arange(len(side))))
    squares = sum(float(side @ side) for side in left)
    lagged = sum(float(side[1:] @ side[:-1]) for side in left)
    correlated = min(max((40 * lagged / squares + 8) / 32, 0), 0.95)
    spread, factor = math.sqrt(squares / 36), (1 + correlated) / (1 - correlated)

    change = find_change(series(values), at=160, width=8)

    assert measure_noise(values, 15) == Noise(
        spread=pytest.approx(spread), autocorrelation=pytest.approx(correlated), num=40
    )
    reach = stats.t.ppf(0.975, 36 / factor) * spread * math.sqrt(factor * 2 / 8)
    assert change is not None
    assert change.high - change.difference == pytest.approx(reach, rel=1e-6)
    assert change.difference - change.low == pytest.approx(reach, rel=1e-6)
    assert change.effect == pytest.approx(change.difference / spread)
    assert change.chance is None


def test_the_p_value_is_kolmogorovs() -> None:
    for size in [0.1, 0.5, 1.0, 2.0]:
        values = np.tile([1.0, -1.0], 50)
        values[:50] += 0.1
        strayed = np.abs(np.cumsum(values - values.mean())).max()
        spread = strayed / (size * math.sqrt(100))

        found = chance_of(values, Noise(spread=spread, autocorrelation=0.0, num=100))

        assert found == pytest.approx(special.kolmogorov(size), abs=1e-9), size


def test_autocorrelated_noise_makes_a_change_less_clear() -> None:
    values = np.append(np.zeros(50), np.ones(50))
    independent = chance_of(values, Noise(spread=2.0, autocorrelation=0.0, num=100))
    correlated = chance_of(values, Noise(spread=2.0, autocorrelation=0.6, num=100))

    assert independent < 0.1 < correlated


@pytest.mark.parametrize(
    ("num", "correlated", "most"),
    [(20, 0.0, 0.02), (60, 0.5, 0.05), (200, 0.5, 0.03), (40, 0.8, 0.14)],
)
def test_noise_is_rarely_called_a_change(
    num: int, correlated: float, most: float
) -> None:
    """The limit is 0.01; the bounds are those in the help and three errors."""
    found = [find_change(series(noise(num, correlated, seed=s))) for s in range(300)]

    share = np.mean([each is not None and each.chance < 0.01 for each in found])  # type: ignore[operator]

    assert share <= most


@pytest.mark.parametrize("correlated", [0.0, 0.5])
def test_the_interval_contains_the_difference_in_95_percent(correlated: float) -> None:
    held, widths = 0, []
    for seed in range(300):
        values = noise(60, correlated, seed=seed)
        values[36:] += 2.0
        change = find_change(series(values), at=370)
        assert change is not None
        held += change.low <= 2.0 <= change.high
        widths.append(change.high - change.low)

    assert held / 300 >= 0.92
    assert np.median(widths) < 5


def test_a_slow_drift_is_a_change() -> None:
    values = noise(60, 0.0, seed=4) + np.linspace(0, 6, 60)

    change = find_change(series(values))

    assert change is not None
    assert change.chance is not None
    assert change.chance < 0.01
    assert change.difference > 0


def test_a_step_without_noise_has_no_effect_size_and_no_doubt() -> None:
    change = find_change(series([0.0] * 10 + [0.5] * 10))

    assert change is not None
    assert (change.difference, change.low, change.high) == (0.5, 0.5, 0.5)
    assert change.effect is None
    assert change.chance == 0.0


def test_a_constant_series_does_not_change() -> None:
    change = find_change(series([0.1] * 30))

    assert change is not None
    assert change.difference == 0
    assert change.chance == 1.0


def test_too_few_points_have_no_change() -> None:
    assert find_change(series(list(range(FEWEST - 1)))) is None
    assert find_change(series(list(range(FEWEST)))) is not None


def test_a_step_with_nothing_before_it_has_no_windows() -> None:
    values = noise(30, 0.0, seed=5)

    assert find_change(series(values), at=20) is None
    assert find_change(series(values), at=300) is None
    at = find_change(series(values), at=31, width=100)
    assert at is not None
    assert (at.step, at.before.num, at.after.num) == (40, 3, 27)


def test_the_size_of_the_values_changes_nothing_else() -> None:
    for size in [1e-200, 1e-9, 1e150, 1e300]:
        values = noise(40, 0.3, seed=6)
        values[25:] += 3.0
        plain = find_change(series(values))

        change = find_change(series(size * values))

        assert plain is not None, size
        assert change is not None, size
        assert change.step == plain.step, size
        for name in ("difference", "low", "high"):
            assert getattr(change, name) / size == pytest.approx(
                getattr(plain, name)
            ), size
        assert change.before.mean / size == pytest.approx(plain.before.mean), size
        assert change.after.mean / size == pytest.approx(plain.after.mean), size
        assert change.effect == pytest.approx(plain.effect), size
        assert change.chance == pytest.approx(plain.chance), size


def test_one_huge_value_raises_no_error() -> None:
    change = find_change(series([1.0] * 20 + [1e300] + [1.0] * 9))

    assert change is not None
    assert change.after.mean <= 2.1e299


def test_a_rate_is_a_slope_by_100_steps() -> None:
    straight = Series(steps=np.arange(1, 301), values=0.02 * np.arange(1, 301))

    rates = rate_of(straight)

    assert len(rates) == 59
    assert rates.steps[:3].tolist() == [6, 11, 16]
    assert rates.values == pytest.approx(np.full(59, 2.0))


def test_a_rate_of_few_points_is_from_one_to_the_next() -> None:
    rates = rate_of(Series(steps=np.array([5, 10, 30]), values=np.array([1.0, 2, 2])))

    assert rates.steps.tolist() == [10, 30]
    assert rates.values.tolist() == [20.0, 0.0]


def test_a_rate_that_is_not_finite_is_left_out() -> None:
    values = np.array([0.0, 1.7e308, -1.7e308, 0.0, 0.5])

    rates = rate_of(Series(steps=np.arange(1, 6), values=values))

    assert rates.steps.tolist() == [5]
    assert rates.values.tolist() == [50.0]
