"""Where a series changes, by how much, and how often noise would show as much."""

import math

import numpy as np
import pytest
from scipy import stats

from dashboard.analysis.audit.changes import (
    FEWEST,
    FEWEST_OF_RUN,
    Noise,
    compare_ends,
    find_change,
    measure_noise,
    reached,
)
from dashboard.analysis.statistics import Array
from dashboard.runs.charts.series import Series


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


def test_the_ends_of_a_series_are_compared():
    values = 0.1 * noise(100, 0.0, seed=1) + np.linspace(0, 4, 100)

    change = compare_ends(series(values))

    assert change is not None
    before, after = change.before, change.after
    assert (before.first, before.last, before.num) == (10, 250, 25)
    assert (after.first, after.last, after.num) == (760, 1000, 25)
    assert change.difference == pytest.approx(values[75:].mean() - values[:25].mean())
    assert change.low < 3.03 < change.high


def test_a_later_quarter_is_compared_with_the_last():
    values = [0.0] * 10 + [1.0] * 10 + [0.5] * 20

    changes = [compare_ends(series(values), first=part) for part in range(3)]

    assert [change and change.difference for change in changes] == [0.5, -0.5, 0.0]


def test_up_to_fifty_points_of_an_end_count():
    change = compare_ends(series(noise(1_000, 0.0, seed=2)))

    assert change is not None
    assert (change.before.first, change.before.last) == (10, 500)
    assert (change.after.first, change.after.num) == (9510, 50)


def test_early_learning_does_not_count_as_noise():
    """A policy that learns fast: the mean falls within the first quarter."""
    falling = [0.4 * 0.5**n for n in range(12)] + [0.0] * 24

    change = compare_ends(series(falling))

    assert change is not None
    steps = np.diff(np.array(falling[:9]))
    spread = math.sqrt(float(steps @ steps) / 32)
    reach = stats.t.ppf(0.975, 32 // 3) * spread * math.sqrt(2 / 9)
    assert change.high == pytest.approx(-np.mean(falling[:9]) + reach)
    assert change.high < 0


def test_most_of_a_change_has_happened_by_a_step():
    sudden = series([0.0] * 20 + [1.0] * 20)
    change = compare_ends(sudden)

    assert change is not None
    # The first five points of which four are behind it.
    assert reached(sudden, change) == 240


def test_spread_and_interval_are_those_of_a_fit_of_two_lines():
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


@pytest.mark.parametrize("num", [24, 60, 200])
def test_noise_is_rarely_called_a_change(num):
    """The level is 0.05; three errors of 300 draws above it."""
    found = [compare_ends(series(noise(num, 0.0, seed=s))) for s in range(300)]

    assert np.mean([each is not None and each.is_clear for each in found]) <= 0.09


@pytest.mark.parametrize("correlated", [0.0, 0.5])
def test_the_interval_contains_the_difference_in_95_percent(correlated):
    held, widths = 0, []
    for seed in range(300):
        values = noise(60, correlated, seed=seed)
        values[36:] += 2.0
        change = find_change(series(values), at=370, width=6)
        assert change is not None
        held += change.low <= 2.0 <= change.high
        widths.append(change.high - change.low)

    assert held / 300 >= 0.92
    assert np.median(widths) < 5


def test_a_slow_drift_is_a_change():
    change = compare_ends(series(noise(60, 0.0, seed=4) + np.linspace(0, 6, 60)))

    assert change is not None
    assert change.low > 0


def test_a_step_without_noise_has_no_effect_size_and_no_doubt():
    change = find_change(series([0.0] * 10 + [0.5] * 10), at=110, width=5)

    assert change is not None
    assert (change.difference, change.low, change.high) == (0.5, 0.5, 0.5)
    assert change.effect is None


def test_a_constant_series_does_not_change():
    change = compare_ends(series([0.1] * 30))

    assert change is not None
    assert change.difference == 0
    assert not change.is_clear


def test_too_few_points_have_no_change():
    few = series(list(range(FEWEST - 1)))
    assert find_change(few, at=60, width=5) is None
    assert find_change(series(list(range(FEWEST))), at=60, width=5) is not None
    assert compare_ends(series(list(range(FEWEST_OF_RUN - 1)))) is None
    assert compare_ends(series(list(range(FEWEST_OF_RUN)))) is not None


def test_a_step_with_nothing_before_it_has_no_windows():
    values = noise(30, 0.0, seed=5)

    assert find_change(series(values), at=20, width=5) is None
    assert find_change(series(values), at=300, width=5) is None
    at = find_change(series(values), at=31, width=100)
    assert at is not None
    assert (at.step, at.before.num, at.after.num) == (40, 3, 27)


def test_the_size_of_the_values_changes_nothing_else():
    for size in [1e-200, 1e-9, 1e150, 1e300]:
        values = noise(40, 0.3, seed=6)
        values[25:] += 3.0
        plain = find_change(series(values), at=260, width=10)

        change = find_change(series(size * values), at=260, width=10)

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


def test_one_huge_value_raises_no_error():
    huge = series([1.0] * 20 + [1e300] + [1.0] * 9)

    change = find_change(huge, at=210, width=5)

    assert change is not None
    assert change.after.mean <= 2.1e299
