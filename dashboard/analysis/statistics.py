"""Statistics of a few seeds: intervals, differences, the number of seeds needed.

Values are arrays [S, P]: S seeds at P positions (steps, or values of another axis); NaN
if a seed has no value. All intervals are two-sided, 95%. SciPy (140 MB installed)
would be needed for one function only; the tests compare with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

CONFIDENCE = 0.95
POWER = 0.8
TRIMMED = 0.25  # from each end, of an interquartile mean
NUM_RESAMPLES = 2_000
ROUNDING = 1e-12  # of a number, that sums in another order may differ by
MOST_SEEDS = 1_000  # above it: "more than 1,000"
NORMAL = NormalDist()
NODES, WEIGHTS = np.polynomial.legendre.leggauss(64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A statistic and its interval at each of P positions, and of how many seeds.

    NaN: no value, or no interval, as of one seed.
    """

    value: Array
    low: Array
    high: Array
    num: Indices

    @property
    def interval(self) -> tuple[float, float] | None:
        """At the first position; None without an interval."""
        low, high = float(self.low[0]), float(self.high[0])
        return None if math.isnan(low) else (low, high)


def t_quantile(p: float, df: Array) -> Array:
    """Return the p-quantile of Student's t with df degrees of freedom, 0.5 <= p < 1, df
    >= 1.

    With t = √df·tan θ the distribution function is 1/2 + c·∫₀^θ cos^(df-1), where
    c = Γ((df+1)/2) / (√π·Γ(df/2)). The integral is taken by 64 Gauss-Legendre nodes;
    it is concave in θ, so Newton's steps from the normal quantile rise to the root.
    """
    nu = np.clip(np.asarray(df, dtype=np.float64), 1.0, 1e6)
    gamma = np.vectorize(math.lgamma, otypes=[float])
    c = np.exp(gamma((nu + 1) / 2) - gamma(nu / 2)) / math.sqrt(math.pi)
    theta = np.arctan(NORMAL.inv_cdf(p) / np.sqrt(nu))
    for _ in range(30):
        at = theta[..., None] * (NODES + 1) / 2
        power = np.exp((nu[..., None] - 1) * np.log(np.cos(at)))
        below = 0.5 + c * (power @ WEIGHTS) * theta / 2
        slope = c * np.exp((nu - 1) * np.log(np.cos(theta)))
        move = (p - below) / slope
        theta = np.minimum(theta + move, math.pi / 2 * (1 - 1e-15))
        if not (np.abs(move) > 1e-13 * theta).any():
            break
    return np.where(np.isnan(df), np.nan, np.sqrt(nu) * np.tan(theta))


def subtract(ours: Array, theirs: Array) -> Array:
    """ours - theirs; 0 if the difference is within rounding error."""
    difference = ours - theirs
    lost = ROUNDING * np.maximum(np.abs(ours), np.abs(theirs))
    return np.where(np.abs(difference) <= lost, 0.0, difference)


def mean_interval(values: Array) -> Estimate:
    """mean ± t(0.975, n-1)·s/√n, with s of n-1; n = 1: no interval."""
    num, mean, variance = moments(values)
    reach = _t_upper(num.astype(np.float64) - 1) * np.sqrt(
        variance / np.maximum(num, 1)
    )
    return Estimate(value=mean, low=mean - reach, high=mean + reach, num=num)


def moments(values: Array) -> tuple[Indices, Array, Array]:
    """n, mean and variance (of n-1; NaN below 2 seeds) at each position."""
    there = np.isfinite(values)
    num = there.sum(axis=0)
    safe = np.where(there, values, 0.0)
    mean = np.where(num > 0, safe.sum(axis=0) / np.maximum(num, 1), np.nan)
    squares = np.where(there, (values - mean) ** 2, 0.0).sum(axis=0)
    variance = np.where(num > 1, squares / np.maximum(num - 1, 1), np.nan)
    # Equal seeds have no spread, despite rounding of their mean.
    variance = np.where(variance <= (ROUNDING * mean) ** 2, 0.0, variance)
    return num, mean, variance


def interquartile_mean(values: Array) -> Array:
    """Average without the lowest and the highest ⌊n/4⌋ of the seeds at each position.

    scipy.stats.trim_mean(x, 0.25), as in Agarwal et al. 2021, arXiv:2108.13264. Below 4
    seeds it is the mean.
    """
    means = np.full(values.shape[1], np.nan)
    for num, positions, ranked in _by_count(values):
        cut = int(TRIMMED * num)
        means[positions] = ranked[cut : num - cut].mean(axis=0)
    return means


def iqm_interval(values: Array) -> Estimate:
    """Return the IQM with the percentile interval of its bootstrap; n = 1: no
    interval.
    """
    low, high = np.full((2, values.shape[1]), np.nan)
    for positions, iqms, of in resample_iqm(values, seed=0):
        low[positions], high[positions] = _percentiles(iqms, of)
    num = np.isfinite(values).sum(axis=0)
    return Estimate(value=interquartile_mean(values), low=low, high=high, num=num)


def resample_iqm(
    values: Array, *, seed: int
) -> Iterator[tuple[Indices, Array, Indices]]:
    """IQMs of R = 2,000 samples of n seeds, drawn with replacement, where n > 1.

    Positions with equally many seeds, IQMs [K, P], and which of the K each of R has.
    rliable's stratified bootstrap with one task: each set of seeds is a stratum. The
    seeds of a position are sorted once and ranks are drawn, so that the IQM of a
    resample is a weighted sum of the sorted values.
    """
    for num, positions, ranked in _by_count(values):
        if num > 1:
            shares, of = _draw(num, seed=seed)
            yield positions, shares @ ranked, of


@lru_cache(maxsize=32)  # ranks do not depend on the values
def _draw(num: int, *, seed: int) -> tuple[Array, Indices]:
    """[K, n] shares of ranks in an IQM, each once, and which of them each resample has.

    Few seeds leave few: 35 of five, 228 of eight, 1,096 of ten.
    """
    random = np.random.default_rng([seed, num])
    drawn = np.sort(random.integers(num, size=(NUM_RESAMPLES, num)), axis=1)
    cut = int(TRIMMED * num)
    ranks, of = np.unique(drawn[:, cut : num - cut], axis=0, return_inverse=True)
    return (ranks[:, :, None] == np.arange(num)).mean(axis=1), of.reshape(-1)


def welch_difference(base: Array, other: Array) -> Estimate:
    """mean(other) - mean(base) ± t(0.975, ν)·√(s²/n + s²/n), Welch-Satterthwaite's ν.

    `num` is the smaller of the two; there is no interval if it is 1.
    """
    num_a, mean_a, variance_a = moments(base)
    num_b, mean_b, variance_b = moments(other)
    share_a = variance_a / np.maximum(num_a, 1)
    share_b = variance_b / np.maximum(num_b, 1)
    error = share_a + share_b
    bottom = share_a**2 / np.maximum(num_a - 1, 1)
    bottom = bottom + share_b**2 / np.maximum(num_b - 1, 1)
    # Without any spread every ν gives the same interval, of width 0.
    df = np.where(bottom > 0, error**2 / np.where(bottom > 0, bottom, 1), 1.0)
    num = np.minimum(num_a, num_b)
    reach = _t_upper(np.where(num > 1, df, np.nan)) * np.sqrt(error)
    value = subtract(mean_b, mean_a)
    return Estimate(value=value, low=value - reach, high=value + reach, num=num)


def iqm_difference(base: Array, other: Array) -> Estimate:
    """IQM(other) - IQM(base), with the percentile interval of both sets' bootstraps."""
    low, high = np.full((2, base.shape[1]), np.nan)
    for (ours, iqms, of), (theirs, base_iqms, of_base) in product(
        list(resample_iqm(other, seed=1)), list(resample_iqm(base, seed=2))
    ):
        both, here, there = np.intersect1d(ours, theirs, True, return_indices=True)
        # Few seeds leave few pairs: 726 of two sets of five.
        pairs, of_pair = np.unique(of * len(base_iqms) + of_base, return_inverse=True)
        one, other_one = np.divmod(pairs, len(base_iqms))
        low[both], high[both] = _percentiles(
            subtract(iqms[:, here][one], base_iqms[:, there][other_one]), of_pair
        )
    num = np.minimum(np.isfinite(base).sum(axis=0), np.isfinite(other).sum(axis=0))
    return Estimate(
        value=subtract(interquartile_mean(other), interquartile_mean(base)),
        low=low,
        high=high,
        num=num,
    )


def seeds_needed(
    difference: float, variances: tuple[float, float], *, is_paired: bool = False
) -> int | None:
    """Seeds per set that detect the difference with a power of 80%.

    The least n with n >= (t(0.975, ν) + t(0.8, ν))²·(s²_A + s²_B) / difference², where
    ν = 2(n-1). Paired: s² of the pairs' differences (their variances' sum) and ν = n-1.
    None: more than 1,000.
    """
    spread = sum(variances)
    if difference == 0 or not math.isfinite(spread):
        return None
    # The square of a difference below 1e-162 is 0.
    in_differences = math.sqrt(spread) / abs(difference)
    ratio = in_differences * in_differences
    normal = (NORMAL.inv_cdf((1 + CONFIDENCE) / 2) + NORMAL.inv_cdf(POWER)) ** 2 * ratio
    for num in range(max(2, math.floor(min(normal, MOST_SEEDS))), MOST_SEEDS + 1):
        df = np.array([float(num - 1 if is_paired else 2 * (num - 1))])
        reach = _t_upper(df)[0] + t_quantile(POWER, df)[0]
        if num >= reach**2 * ratio:
            return num
    return None


def win_rate(ours: Array, theirs: Array) -> float | None:
    """P(ours > theirs) + P(equal)/2 over all pairs: Mann-Whitney's U / (n_A·n_B).

    None: one of them has no rewards.

    >>> win_rate(np.array([1.0, 0.0]), np.array([0.0]))
    0.75
    """
    ours, theirs = ours[np.isfinite(ours)], theirs[np.isfinite(theirs)]
    if not (len(ours) and len(theirs)):
        return None
    ranked = np.sort(theirs)
    beaten = np.searchsorted(ranked, ours, side="left")
    reached = np.searchsorted(ranked, ours, side="right")
    return float((beaten + reached).mean() / (2 * len(theirs)))


def _by_count(values: Array) -> list[tuple[int, Indices, Array]]:
    """Positions with equally many seeds: how many, which, values sorted [n, P]."""
    num = np.isfinite(values).sum(axis=0)
    ranked = np.sort(np.where(np.isfinite(values), values, np.nan), axis=0)
    counted = []
    for count in np.unique(num[num > 0]).tolist():
        positions = np.flatnonzero(num == count)
        counted.append((count, positions, ranked[:count, positions]))
    return counted


def _t_upper(df: Array) -> Array:
    """Return the 0.975 quantile of each; NaN below 1 degree of freedom. Each value
    once.
    """
    distinct, back = np.unique(np.where(df >= 1, df, np.nan), return_inverse=True)
    return t_quantile((1 + CONFIDENCE) / 2, distinct)[back]


def _percentiles(found: Array, of: Indices) -> tuple[Array, Array]:
    """Return the 2.5th and the 97.5th of found[of], [R, P], as np.percentile
    has them.
    """
    positions = (len(of) - 1) * np.array([1 - CONFIDENCE, 1 + CONFIDENCE]) / 2
    below = positions.astype(np.int64)
    rank = _rank_few if 2 * len(found) < len(of) else _rank_many
    lower, upper = np.split(rank(found, of, np.concatenate([below, below + 1])), 2)
    low, high = lower + (upper - lower) * (positions - below)[:, None]
    return low, high


def _rank_few(found: Array, of: Indices, ranks: Indices) -> Array:
    """[ranks, P] of found[of] sorted, without expanding repeated values."""
    order = np.argsort(found, axis=0)
    upto = np.cumsum(np.bincount(of, minlength=len(found))[order], axis=0)
    at = np.array([(upto <= rank).sum(axis=0) for rank in ranks])
    return np.take_along_axis(found, np.take_along_axis(order, at, axis=0), axis=0)


def _rank_many(found: Array, of: Indices, ranks: Indices) -> Array:
    return np.partition(np.ascontiguousarray(found[of].T), ranks, axis=1)[:, ranks].T
