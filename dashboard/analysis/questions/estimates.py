"""Shares of labels, as a judge gives them and corrected by labels of people.

n completions are judged, each with a weight w, in groups that share a prompt; people
label some of each label of the judge's, too. With p̂ [K] the weighted shares of the
judge's labels, and R[j, k] the weighted share of its label j that people call k, the
truth has the shares θ̂ = p̂ R (post-stratification). Intervals hold 95% of the draws from
p ~ Dirichlet(p̂·n_eff + ½) and R[j] ~ Dirichlet(counts + ½).

Source: post-stratified prediction-powered inference (Angelopoulos et al. 2023,
arXiv:2301.09633; Fisch et al. 2024, arXiv:2406.04291); weights of what people label by
Cohen and Kaplan (2007, bottom-k sketches); windows by Rogan and Gladen (1978).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dashboard.analysis.statistics import CONFIDENCE, NORMAL, Array

Indices = NDArray[np.int64]
NUM_DRAWS = 4_000
PRIOR = 0.5  # of Jeffreys, for shares
LEAST_YOUDEN = 0.05  # of Se + Sp - 1: below it a judge cannot tell them apart


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """n judged completions; `label` and `hand` count from 0, `hand` is -1 without a
    label of a person. People label the lowest keys -ln(u)/w of each label.
    """

    label: Indices
    hand: Indices
    group: Indices
    window: Indices
    weight: Array
    key: Array
    num_labels: int

    def __len__(self) -> int:
        return len(self.label)

    def within(self, is_so: NDArray[np.bool_]) -> Judged:
        return Judged(
            label=self.label[is_so],
            hand=self.hand[is_so],
            group=self.group[is_so],
            window=self.window[is_so],
            weight=self.weight[is_so],
            key=self.key[is_so],
            num_labels=self.num_labels,
        )

    @property
    def shares(self) -> Array:
        """p̂ [K], weighted."""
        sums = np.bincount(self.label, self.weight, minlength=self.num_labels)
        shares: Array = sums / self.weight.sum()
        return shares

    @property
    def counts(self) -> Array:
        """Labels of people by the judge's, [K, K], each with the weight w / π.

        With τ the lowest key beyond those that people labelled, a completion is among
        them with π = 1 - exp(-wτ): in proportion to w while few are drawn, 1 where all
        are. A row sums to (Σ w/π)² / Σ (w/π)².
        """
        counts = np.zeros((self.num_labels, self.num_labels))
        for name in np.unique(self.label[self.hand >= 0]):
            is_given = self.label == name
            is_drawn = is_given & (self.hand >= 0)
            beyond = self.key[is_given & (self.key > self.key[is_drawn].max())]
            weight = self.weight[is_drawn]
            if len(beyond):
                weight = weight / -np.expm1(-weight * beyond.min())
            weight = weight * weight.sum() / (weight**2).sum()
            np.add.at(counts[name], self.hand[is_drawn], weight)
        return counts


def effective_size(judged: Judged) -> float:
    """n / max(1, V / [Σ p̂(1 - p̂) / n]), where a group is drawn as one.

    V = G/(G - 1) · Σ_k Σ_groups (Σ w(y - p̂))² / (Σ w)² over G groups, summed over the
    K labels. (Σ w)² / Σ w² where all have one label, or are of one group.
    """
    shares, weight = judged.shares, judged.weight
    total = weight.sum()
    spread = float((shares * (1 - shares)).sum())
    names, group = np.unique(judged.group, return_inverse=True)
    num = len(names)
    if spread <= 0 or num < 2:
        return float(total**2 / (weight**2).sum())
    is_label = judged.label[:, None] == np.arange(judged.num_labels)
    residuals = np.zeros((num, judged.num_labels))
    np.add.at(residuals, group, weight[:, None] * (is_label - shares))
    variance = num / (num - 1) * float((residuals**2).sum()) / total**2
    return float(len(judged) / max(1.0, variance * len(judged) / spread))


def wilson_interval(share: float, num: float) -> Share:
    """Return Wilson's score interval of a share of `num` (which need not be whole)."""
    z = NORMAL.inv_cdf((1 + CONFIDENCE) / 2)
    middle = (share + z**2 / (2 * num)) / (1 + z**2 / num)
    reach = z * math.sqrt(share * (1 - share) / num + z**2 / (4 * num**2))
    reach /= 1 + z**2 / num
    return Share(
        value=share,
        low=max(0.0, middle - reach) if share > 0 else 0.0,  # but for rounding
        high=min(1.0, middle + reach) if share < 1 else 1.0,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Draws:
    """D draws of the judge's shares [D + 1, K] and of its errors [D + 1, K, K]; the
    estimates stand last.
    """

    shares: Array
    errors: Array

    @property
    def truth(self) -> Array:
        """θ [D + 1, K]."""
        truth: Array = np.einsum("dj,djk->dk", self.shares, self.errors)
        return truth

    @property
    def agreed(self) -> Array:
        """Shares of each label on which people agree, [D + 1, K]."""
        agreed: Array = self.shares * np.diagonal(self.errors, axis1=1, axis2=2)
        return agreed

    @property
    def rates(self) -> tuple[Array, Array]:
        """Sensitivity and specificity of yes (label 0), [D + 1] each.

        Se = p r₁ / θ, Sp = (1 - p)(1 - r₀) / (1 - θ).
        """
        agreed, truth = self.agreed, self.truth
        found = np.divide(agreed, truth, out=np.ones_like(agreed), where=truth > 0)
        return found[:, 0], found[:, 1]


def draw(judged: Judged, *, seed: int) -> Draws | None:
    """Return draws; None if people labelled none of a label that the judge gave."""
    counts, share = judged.counts, judged.shares
    of_judge = counts.sum(axis=1, keepdims=True)
    if ((share > 0) & (of_judge[:, 0] == 0)).any():
        return None
    rng = np.random.default_rng(seed)
    even = np.full_like(counts, 1 / judged.num_labels)
    error = np.divide(counts, of_judge, out=even, where=of_judge > 0)
    errors = [rng.dirichlet(row + PRIOR, NUM_DRAWS) for row in counts]
    shares = rng.dirichlet(share * effective_size(judged) + PRIOR, NUM_DRAWS)
    return Draws(
        shares=np.vstack([shares, share]),
        errors=np.concatenate([np.stack(errors, axis=1), error[None]]),
    )


def of_draws(draws: Array) -> Share:
    """Return the estimate, which stands last, with the interval of the draws."""
    ends = 50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE)
    low, high = np.percentile(draws[:-1], ends)
    return Share(value=float(draws[-1]), low=float(low), high=float(high))


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """Shares of each label; `windows` of the first label, by window. None: unknown."""

    judge: list[Share]
    truth: list[Share] | None
    kappa: Share | None
    sensitivity: Share | None
    specificity: Share | None
    windows: dict[int, tuple[Share, Share | None]]  # of the judge, corrected
    trend: Share | None  # of the last third of windows less the first
    parts: bool  # early and late labels of people disagree on the judge's errors
    draws: Array  # of the first label's corrected share, if there is one


def estimate(judged: Judged, *, seed: int) -> Estimate:
    num = effective_size(judged)
    draws = draw(judged, seed=seed)
    is_binary = judged.num_labels == 2
    rates = draws.rates if draws and is_binary else None
    return Estimate(
        judge=[wilson_interval(float(share), num) for share in judged.shares],
        truth=[of_draws(each) for each in draws.truth.T] if draws else None,
        kappa=kappa(draws) if draws else None,
        sensitivity=of_draws(rates[0]) if rates else None,
        specificity=of_draws(rates[1]) if rates else None,
        windows=_windows(judged, rates, seed=seed),
        trend=_trend(judged, rates, seed=seed),
        parts=_parts(judged),
        draws=draws.truth[:, 0] if draws else np.empty(0),
    )


def kappa(draws: Draws) -> Share:
    """κ = (p_o - p_e) / (1 - p_e) in the sample: weighted back from the strata.

    p_o = Σ p̂ R[k, k], p_e = Σ p̂ θ̂. 0 where one label is all.
    """
    observed = draws.agreed.sum(axis=1)
    expected = (draws.shares * draws.truth).sum(axis=1)
    left = 1 - expected
    found = np.divide(
        observed - expected, left, out=np.zeros_like(left), where=left > 1e-12
    )
    return of_draws(found)


def _corrected(judged: Judged, rates: tuple[Array, Array], *, seed: int) -> Array:
    """Return draws of θ = clip((p + Sp - 1) / (Se + Sp - 1), 0, 1) of some completions,
    the estimate last.
    """
    rng = np.random.default_rng(seed)
    share, num = float(judged.shares[0]), effective_size(judged)
    shares = rng.beta(share * num + PRIOR, (1 - share) * num + PRIOR, NUM_DRAWS)
    sensitivity, specificity = rates
    youden = sensitivity + specificity - 1
    found = (np.append(shares, share) + specificity - 1) / np.where(
        youden > 0, youden, np.nan
    )
    # a judge that is worse than chance in a draw says nothing there
    corrected: Array = np.clip(np.nan_to_num(found, nan=share), 0, 1)
    return corrected


def _can_tell(rates: tuple[Array, Array] | None) -> bool:
    if rates is None:
        return False
    return of_draws(rates[0] + rates[1] - 1).low >= LEAST_YOUDEN


def _windows(
    judged: Judged, rates: tuple[Array, Array] | None, *, seed: int
) -> dict[int, tuple[Share, Share | None]]:
    can_tell, found = _can_tell(rates), {}
    for window in np.unique(judged.window).tolist():
        here = judged.within(judged.window == window)
        raw = wilson_interval(float(here.shares[0]), effective_size(here))
        corrected = None
        if rates is not None and can_tell:
            corrected = of_draws(_corrected(here, rates, seed=seed + window + 1))
        found[window] = raw, corrected
    return found


def _trend(
    judged: Judged, rates: tuple[Array, Array] | None, *, seed: int
) -> Share | None:
    windows = np.unique(judged.window)
    third = len(windows) // 3
    if rates is None or not third or not _can_tell(rates):
        return None
    first, last = (
        _corrected(judged.within(np.isin(judged.window, part)), rates, seed=seed + n)
        for n, part in enumerate((windows[:third], windows[-third:]))
    )
    return of_draws(last - first)


def _parts(judged: Judged) -> bool:
    """Tell whether people call a label of the judge's otherwise late than early: the
    intervals (Wilson) part.
    """
    is_labelled = judged.hand >= 0
    if not is_labelled.any():
        return False
    is_late = judged.window > np.median(judged.window[is_labelled])
    for label in range(judged.num_labels):
        is_given = is_labelled & (judged.label == label)
        halves = judged.hand[is_given & ~is_late], judged.hand[is_given & is_late]
        if min(map(len, halves)):
            early, late = (
                wilson_interval(float((half == label).mean()), len(half))
                for half in halves
            )
            if early.high < late.low or late.high < early.low:
                return True
    return False


def difference(ours: Estimate, theirs: Estimate) -> Share | None:
    """Return the difference of the first label's corrected share, by draws of both."""
    if ours.truth is None or theirs.truth is None:
        return None
    return of_draws(ours.draws - theirs.draws)
