"""Held against SciPy, against rliable 1.2.0's answers, and against a slow version."""

import math

import numpy as np
import pytest
from scipy import stats

from dashboard.analysis.statistics import (
    MOST_SEEDS,
    NUM_RESAMPLES,
    Array,
    interquartile_mean,
    iqm_difference,
    iqm_interval,
    mean_interval,
    resample_iqm,
    seeds_needed,
    t_quantile,
    welch_difference,
    win_rate,
)

TEN = [0.12, 0.35, 0.47, 0.52, 0.58, 0.61, 0.66, 0.70, 0.83, 1.40]
FIVE = [0.20, 0.41, 0.55, 0.63, 0.69]
NAN = math.nan


def column(*values: float) -> np.ndarray:
    return np.array(values)[:, None]


def test_quantiles_of_t_are_scipys():
    for p in [0.8, 0.975, 0.995]:
        df = np.array([1, 1.01, 1.7, 2, 3, 4.4, 9, 19, 38.5, 200, 1e4, 1e6])

        assert t_quantile(p, df) == pytest.approx(stats.t.ppf(p, df), rel=1e-8), p


def test_the_interval_of_a_mean_is_scipys():
    found = mean_interval(column(*FIVE))

    expected = stats.ttest_1samp(FIVE, 0).confidence_interval(0.95)
    assert found.value[0] == pytest.approx(np.mean(FIVE))
    assert [found.low[0], found.high[0]] == pytest.approx(list(expected))


def test_seeds_without_a_value_at_a_step_are_not_counted_there():
    values = np.array([[1.0, 1.0, NAN], [3.0, NAN, NAN], [5.0, 2.0, NAN]])

    found = mean_interval(values)

    assert found.num.tolist() == [3, 2, 0]
    assert found.value[:2].tolist() == [3.0, 1.5]
    assert np.isnan(found.value[2])
    assert found.high[1] == pytest.approx(1.5 + 12.7062047 * 0.5)


def test_one_seed_has_no_interval():
    for interval in (mean_interval, iqm_interval):
        found = interval(column(0.5))

        assert found.value[0] == 0.5
        assert np.isnan([found.low[0], found.high[0]]).all()


def test_an_interquartile_mean_is_scipys_mean_trimmed_by_a_quarter():
    for num in range(1, 21):
        values = np.random.default_rng(num).lognormal(size=(num, 3))

        expected = stats.trim_mean(values, 0.25, axis=0)
        assert interquartile_mean(values) == pytest.approx(expected), num


def test_the_bootstrap_gives_what_rliable_gives():
    for scores, iqm, interval in [
        (TEN, 0.59, (0.435, 0.79833)),
        (FIVE, 0.53, (0.27, 0.67)),
    ]:
        found = iqm_interval(column(*scores))

        assert found.value[0] == pytest.approx(iqm), scores
        # Of 2,000 resamples: where few are near, the next one may be it.
        assert [found.low[0], found.high[0]] == pytest.approx(
            list(interval), abs=0.015
        ), scores


def all_resamples(values: Array, *, seed: int) -> Array:
    """[R, P]; NaN where there are fewer than two seeds."""
    found = np.full((NUM_RESAMPLES, values.shape[1]), NAN)
    for positions, iqms, of in resample_iqm(values, seed=seed):
        found[:, positions] = iqms[of]
    return found


def test_ranks_drawn_are_as_good_as_seeds_drawn():
    random = np.random.default_rng(5)
    drawn = random.choice(TEN, size=(20_000, 10))
    slow = stats.trim_mean(drawn, 0.25, axis=1)

    fast = all_resamples(column(*TEN), seed=0)[:, 0]

    assert stats.ks_2samp(slow, fast).pvalue > 0.01
    assert fast.mean() == pytest.approx(slow.mean(), abs=0.01)
    assert fast.std() == pytest.approx(slow.std(), rel=0.06)


def test_the_ends_are_the_percentiles_of_all_resamples():
    for num in [2, 3, 5, 8, 12]:
        values = np.random.default_rng(num).lognormal(size=(num, 40)).round(1)
        values[0, ::3] = NAN

        found = iqm_interval(values)

        ends = np.percentile(all_resamples(values, seed=0), [2.5, 97.5], axis=0)
        assert np.array([found.low, found.high]) == pytest.approx(ends, nan_ok=True), (
            num
        )


def test_a_difference_of_means_is_welchs():
    found = welch_difference(column(*TEN), column(*FIVE))

    expected = stats.ttest_ind(FIVE, TEN, equal_var=False).confidence_interval(0.95)
    assert found.value[0] == pytest.approx(np.mean(FIVE) - np.mean(TEN))
    assert [found.low[0], found.high[0]] == pytest.approx(list(expected))


def test_a_difference_from_one_seed_has_no_interval():
    for difference in (welch_difference, iqm_difference):
        found = difference(column(0.5), column(*FIVE))

        assert found.num.tolist() == [1]
        assert abs(found.value[0]) < 0.04
        assert np.isnan([found.low[0], found.high[0]]).all()


def test_sets_without_spread_differ_by_exactly_their_difference():
    found = welch_difference(column(1.0, 1.0), column(3.0, 3.0))

    assert (found.low[0], found.value[0], found.high[0]) == (2.0, 2.0, 2.0)


def test_the_interval_of_a_difference_of_iqms_is_that_of_drawing_both():
    random = np.random.default_rng(6)
    other = stats.trim_mean(random.choice(FIVE, size=(20_000, 5)), 0.25, axis=1)
    base = stats.trim_mean(random.choice(TEN, size=(20_000, 10)), 0.25, axis=1)

    found = iqm_difference(column(*TEN), column(*FIVE))

    expected = np.percentile(other - base, [2.5, 97.5])
    assert found.value[0] == pytest.approx(0.53 - 0.59)
    assert [found.low[0], found.high[0]] == pytest.approx(list(expected), abs=0.02)


def test_the_ends_of_a_difference_are_the_percentiles_of_all_resamples():
    for nums in [(2, 3), (5, 5), (8, 5), (10, 12)]:
        random = np.random.default_rng(nums)
        base, other = (random.lognormal(size=(num, 40)).round(1) for num in nums)
        base[0, ::3] = other[0, ::5] = other[:, 7] = NAN

        found = iqm_difference(base, other)

        drawn = all_resamples(other, seed=1) - all_resamples(base, seed=2)
        ends = np.percentile(drawn, [2.5, 97.5], axis=0)
        assert np.array([found.low, found.high]) == pytest.approx(
            ends, abs=1e-12, nan_ok=True
        ), nums


def test_rounding_errors_are_not_a_difference():
    seven, nine = column(*[0.1145] * 7), column(*[0.1145] * 9)

    for difference in (welch_difference, iqm_difference):
        found = difference(seven, nine)

        assert (found.low[0], found.value[0], found.high[0]) == (0.0, 0.0, 0.0)


def test_the_seeds_needed_have_a_power_of_80_percent():
    for effect in [0.35, 0.5, 0.8, 1.2, 2.0]:
        num = seeds_needed(effect, (1.0, 1.0))

        assert num is not None, effect
        assert _power(effect, num) >= 0.79, effect
        assert _power(effect, num - 1) < 0.81, effect


def _power(effect: float, num: int) -> float:
    """Of Student's test of two sets of `num`, by the noncentral t."""
    df, shift = 2 * num - 2, effect * math.sqrt(num / 2)
    reach = stats.t.ppf(0.975, df)
    return float(stats.nct.sf(reach, df, shift) + stats.nct.cdf(-reach, df, shift))


def test_pairs_need_the_seeds_of_a_test_of_their_differences():
    num = seeds_needed(0.5, (1.0, 0.0), is_paired=True)

    assert num is not None
    df, shift = num - 1, 0.5 * math.sqrt(num)
    assert stats.nct.sf(stats.t.ppf(0.975, df), df, shift) == pytest.approx(
        0.8, abs=0.02
    )


def test_a_tiny_difference_needs_more_than_a_thousand_seeds():
    for difference in [0.0, 1e-9, 0.01]:
        assert seeds_needed(difference, (1.0, 1.0)) is None, difference
        assert MOST_SEEDS == 1_000, difference


def test_a_win_rate_is_mann_whitneys_u_over_all_pairs():
    ours, theirs = np.array([1.2, 0.2, 0.2, NAN]), np.array([0.2, 0.0, 1.2])

    found = win_rate(ours, theirs)

    u = stats.mannwhitneyu(ours[:3], theirs).statistic
    assert found == pytest.approx(u / 9)
    assert win_rate(np.array([NAN]), theirs) is None
