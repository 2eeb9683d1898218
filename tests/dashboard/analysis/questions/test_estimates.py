"""Shares of labels with the errors of the judge in their intervals."""

import math

import numpy as np
import pytest

from dashboard.analysis.questions.estimates import (
    Judged,
    difference,
    draw,
    effective_size,
    estimate,
    kappa,
    wilson_interval,
)

YES, NO = 0, 1


def make(
    label, hand=None, *, group=None, window=None, weight=None, key=None, num_labels=2
):
    label = np.asarray(label)
    size = len(label)
    return Judged(
        label=label,
        hand=np.full(size, -1) if hand is None else np.asarray(hand),
        group=np.arange(size) if group is None else np.asarray(group),
        window=np.zeros(size, int) if window is None else np.asarray(window),
        weight=np.ones(size) if weight is None else np.asarray(weight, float),
        key=np.arange(1.0, size + 1) if key is None else np.asarray(key, float),
        num_labels=num_labels,
    )


def ends(share):
    return share.low, share.high


@pytest.fixture
def known():
    """400 judged, 64 yes; of ten yes people call 8 so, of ten no 1."""
    label, hand = np.full(400, NO), np.full(400, -1)
    label[:64] = YES
    hand[:8], hand[8:10], hand[64], hand[65:74] = YES, NO, YES, NO
    return make(label, hand)


def test_the_known_case_has_the_shares_computed_by_hand(known):
    found = estimate(known, seed=0)

    judge, truth = found.judge[YES], found.truth[YES]
    assert judge.value == 0.16
    assert ends(judge) == pytest.approx((0.1273, 0.1991), abs=1e-4)
    assert truth.value == pytest.approx(0.16 * 0.8 + 0.84 * 0.1)
    assert ends(truth) == pytest.approx((0.117, 0.444), abs=0.01)
    assert found.sensitivity.value == pytest.approx(0.16 * 0.8 / 0.212)
    assert found.specificity.value == pytest.approx(0.84 * 0.9 / 0.788)
    assert found.kappa.value == pytest.approx(0.619, abs=5e-4)
    assert ends(found.kappa) == pytest.approx((0.20, 0.88), abs=0.02)


def test_the_draws_have_the_standard_error_of_the_formula(known):
    p, r1, r0, n, m = 0.16, 0.8, 0.1, 400, 10
    variance = p**2 * r1 * (1 - r1) / (m - 1) + (1 - p) ** 2 * r0 * (1 - r0) / (m - 1)
    variance += (r1 - r0) ** 2 * p * (1 - p) / n
    assert math.sqrt(variance) == pytest.approx(0.0876, abs=5e-5)

    spread = draw(known, seed=0).truth[:, YES].std()

    # the prior ½ moves the draws of ten labels a little
    assert spread == pytest.approx(math.sqrt(variance), rel=0.1)


@pytest.mark.parametrize(("share", "corrected"), [(0.10, 0.105), (0.30, 0.461)])
def test_a_window_is_corrected_by_sensitivity_and_specificity(known, share, corrected):
    label = known.label.copy()
    window = np.zeros(400, int)
    # a window of 40 unlabelled completions with this share of yes
    unlabelled = np.flatnonzero(known.hand < 0)
    is_yes = known.label[unlabelled] == YES
    num = round(40 * share)
    window[unlabelled[is_yes][:num]] = 1
    window[unlabelled[~is_yes][: 40 - num]] = 1
    judged = make(label, known.hand, window=window)

    raw, found = estimate(judged, seed=0).windows[1]

    assert raw.value == share
    assert found.value == pytest.approx(corrected, abs=1e-3)
    assert found.low < found.value < found.high


def test_a_judge_without_errors_and_many_labels_changes_nothing():
    label = np.repeat([YES, NO], [3_000, 7_000])

    found = estimate(make(label, label), seed=0)

    assert found.truth[YES].value == 0.3
    assert ends(found.truth[YES]) == pytest.approx(ends(found.judge[YES]), abs=2e-3)
    assert found.kappa.value == pytest.approx(1)
    assert (found.sensitivity.value, found.specificity.value) == (1, 1)


def test_a_judge_that_guesses_has_no_kappa_and_no_windows():
    rng = np.random.default_rng(0)
    label, truth = rng.integers(0, 2, (2, 2_000))
    window = np.repeat([0, 1], 1_000)

    found = estimate(make(label, truth, window=window), seed=0)

    assert found.kappa.low < 0 < found.kappa.high
    assert [corrected for _, corrected in found.windows.values()] == [None, None]
    assert found.trend is None


def test_without_labels_of_a_stratum_nothing_is_corrected():
    found = estimate(make([YES, YES, NO, NO], [YES, -1, -1, -1]), seed=0)

    assert (found.truth, found.kappa, found.sensitivity) == (None, None, None)
    assert found.judge[YES].value == 0.5


def test_a_label_that_the_judge_never_gave_needs_no_labels():
    found = estimate(make([NO] * 50, [NO] * 9 + [YES] + [-1] * 40), seed=0)

    assert found.truth[YES].value == pytest.approx(0.1)
    assert found.truth[YES].low > 0


def test_weights_move_the_share():
    judged = make([YES, NO, NO, NO], weight=[3, 1, 1, 1])

    assert judged.shares.tolist() == [0.5, 0.5]


def test_groups_of_equal_answers_count_once():
    group = np.repeat(np.arange(100), 8)
    label = np.repeat(np.random.default_rng(0).integers(0, 2, 100), 8)

    assert effective_size(make(label, group=group)) == pytest.approx(100, rel=0.02)
    # the groups of 8 are divided by 99, not by 100
    assert effective_size(make(label)) == pytest.approx(800, rel=0.01)


def test_the_effective_size_equals_a_slow_sum():
    rng = np.random.default_rng(1)
    group, weight = rng.integers(0, 60, 300), rng.uniform(0.2, 5, 300)
    label = ((group + rng.integers(0, 3, 300)) % 3 == 0).astype(int)
    total, shares = weight.sum(), np.bincount(label, weight) / weight.sum()
    names = sorted(set(group.tolist()))
    variance = 0.0
    for name in names:
        residual = 0.0
        for at in range(300):
            if group[at] == name:
                residual += weight[at] * ((label[at] == 0) - shares[0])
        variance += residual**2
    variance *= len(names) / (len(names) - 1) / total**2
    expected = 300 / max(1, variance / (shares[0] * shares[1] / 300))

    found = effective_size(make(label, group=group, weight=weight))

    assert found == pytest.approx(expected)


@pytest.mark.parametrize("label", [YES, NO])
def test_equal_labels_have_the_size_that_their_weights_leave(label):
    judged = make([label] * 4, weight=[1, 1, 1, 3])

    assert effective_size(judged) == pytest.approx(36 / 12)


def test_twelve_labels_are_corrected_by_their_confusions():
    rng = np.random.default_rng(0)
    truth = rng.choice(4, 5_000, p=[0.5, 0.3, 0.15, 0.05])
    # the judge calls a third of 0 by the name of 1
    label = np.where((truth == 0) & (rng.random(5_000) < 1 / 3), 1, truth)
    hand = np.where(rng.random(5_000) < 0.2, truth, -1)

    found = estimate(make(label, hand, num_labels=4), seed=0)

    assert found.judge[0].value == pytest.approx(1 / 3, abs=0.03)
    for name, share in enumerate([0.5, 0.3, 0.15, 0.05]):
        assert found.truth[name].low < share < found.truth[name].high
    assert found.sensitivity is None


def test_a_trend_is_the_corrected_difference_of_late_and_early():
    rng = np.random.default_rng(0)
    window = np.repeat(np.arange(9), 400)
    truth = (rng.random(3_600) > np.where(window < 3, 0.1, 0.4)).astype(int)
    wrong = rng.random(3_600) < 0.1
    hand = np.where(rng.random(3_600) < 0.2, truth, -1)

    found = estimate(make(truth ^ wrong, hand, window=window), seed=0)

    assert found.trend.value == pytest.approx(0.3, abs=0.06)
    assert found.trend.low > 0.2
    assert not found.parts


def test_a_judge_that_changes_over_the_steps_is_reported():
    window = np.repeat([0, 1], 200)
    label = np.tile([YES, NO], 200)
    hand = np.where((window == 1) & (label == YES), NO, label)

    assert estimate(make(label, hand, window=window), seed=0).parts


def test_two_runs_are_compared_by_joint_draws():
    label = np.repeat([YES, NO], [600, 400])
    fewer = np.repeat([YES, NO], [200, 800])
    ours, theirs = (
        estimate(make(each, each), seed=seed)
        for seed, each in enumerate([label, fewer])
    )

    found = difference(ours, theirs)

    assert found.value == pytest.approx(0.4)
    assert 0.35 < found.low < 0.4 < found.high < 0.45
    assert difference(ours, estimate(make(fewer), seed=1)) is None


def simulate(rng, weight, share, num_hand, *, sensitivity=0.9, specificity=0.95):
    """Groups of two with these weights and shares, in ten windows, of which people
    label equally many of each label of the judge's.
    """
    num = len(weight)
    groups = np.repeat(np.arange(num), 2)
    by_group = rng.beta(share * 8, (1 - share) * 8)
    truth = np.where(rng.random(2 * num) < by_group[groups], YES, NO)
    right = rng.random(2 * num) < np.where(truth == YES, sensitivity, specificity)
    label = np.where(right, truth, 1 - truth)
    weight = weight[groups]
    key = -np.log(rng.random(2 * num)) / weight
    hand = np.full(2 * num, -1)
    for name in (YES, NO):
        chosen = np.flatnonzero(label == name)
        chosen = chosen[np.argsort(key[chosen])][: num_hand // 2]
        hand[chosen] = truth[chosen]
    return make(label, hand, group=groups, window=groups % 10, weight=weight, key=key)


def simulate_even(rng, share, num_hand):
    """300 judged, whose weights tell nothing of their shares."""
    return simulate(rng, rng.uniform(0.5, 2, 150), np.full(150, share), num_hand)


@pytest.mark.parametrize("num_hand", [20, 50])
def test_the_corrected_interval_holds_the_truth(num_hand):
    rng = np.random.default_rng(num_hand)
    held = []
    for run in range(400):
        share = (0.05, 0.1, 0.2, 0.35)[run % 4]
        draws = draw(simulate_even(rng, share, num_hand), seed=run)
        if draws is not None:
            low, high = np.percentile(draws.truth[:, YES], [2.5, 97.5])
            held.append(low <= share <= high)

    assert len(held) > 390
    assert np.mean(held) >= 0.92


def filtered(rng, share, size):
    """Weights of groups that a filter leaves, and shares that rise with them."""
    log_weight = rng.normal(0, 0.5, size)
    return np.exp(log_weight), np.clip(share * np.exp(0.6 * log_weight), 0.005, 0.95)


def test_fifty_labels_of_sixty_hold_the_truth_under_a_filter():
    rng = np.random.default_rng(0)
    shares = (0.05, 0.1, 0.2, 0.35)
    weights, rates = zip(
        *(filtered(rng, share, 10**6) for share in shares), strict=True
    )
    truths = [(w * r).sum() / w.sum() for w, r in zip(weights, rates, strict=True)]
    held, errors = [], []
    for run in range(400):
        groups = filtered(rng, shares[run % 4], 30)
        some, whole = (
            simulate(np.random.default_rng([1, run]), *groups, num) for num in (50, 120)
        )
        if (draws := draw(some, seed=run)) is not None:
            low, high = np.percentile(draws.truth[:, YES], [2.5, 97.5])
            held.append(low <= truths[run % 4] <= high)
            truth = np.average(whole.hand == YES, weights=whole.weight)
            errors.append(draws.truth[-1, YES] - truth)

    assert len(held) > 390  # in some the judge says no to all
    assert np.mean(held) >= 0.92  # 0.942 in 4,000 runs, 0.926 of them with 0.35
    assert abs(np.mean(errors)) < 0.0015  # -0.008 without weights


def test_all_labels_of_people_have_the_weights_of_the_sample():
    judged = make([YES] * 3 + [NO], [YES, NO, NO, NO], weight=[3, 1, 1, 1])

    assert draw(judged, seed=0).errors[-1].tolist() == [[0.6, 0.4], [0, 1]]
    assert judged.counts.sum(axis=1).tolist() == pytest.approx([25 / 11, 1])


def test_few_labels_of_many_count_alike_whatever_their_weights():
    # the draw preferred the heavy ones already
    key = [1e-6, 2e-6, *np.linspace(1, 2, 98)]
    judged = make([YES] * 100, [YES, NO] + [-1] * 98, weight=[9] + [1] * 99, key=key)
    judged.key[2] = 3e-6

    assert judged.counts[YES].tolist() == pytest.approx([1, 1], rel=1e-4)


def test_the_judge_alone_would_be_wrong():
    rng = np.random.default_rng(0)
    held = []
    for _ in range(200):
        judged = simulate_even(rng, 0.05, 20)
        low, high = ends(wilson_interval(judged.shares[YES], effective_size(judged)))
        held.append(low <= 0.05 <= high)

    assert np.mean(held) < 0.6


def test_one_label_alone_has_kappa_zero():
    assert kappa(draw(make([YES] * 40, [YES] * 40), seed=0)).value == 0
