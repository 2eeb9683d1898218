"""Corrections beside each other: equal to a slow loop over tokens."""

import math

import numpy as np
import pytest

from dashboard.analysis.mismatch.counterfactuals import (
    CANDIDATES,
    Candidate,
    compare,
    tabulate,
    weigh_completions,
)
from dashboard.completions.mismatch import read_newest
from dashboard.completions.tokens import pack_tokens
from tests.dashboard.analysis.mismatch.seeded import measured, sampled, store_gaps
from tests.dashboard.completions.factories import make_run
from trainer.config import LossConfig

LENGTHS = [3, 5, 8, 13, 21, 34, 40, 2]
ADVANTAGES = [1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 0.0, 2.0]


def batch(scale, seed=0):
    """d, ln π - ln π_old, ln μ and coefficients of completions, a list each."""
    rng = np.random.default_rng(seed)
    sampling = sampled(rng, len(LENGTHS), max(LENGTHS))
    gaps, moved = rng.normal(0, scale, (2, *sampling.shape))
    # no probability is above 1
    gaps, moved = (np.where(sampling > -3 * scale, -abs(d), d) for d in (gaps, moved))
    coefficients = np.array(ADVANTAGES)[:, None] * rng.uniform(0.5, 1, sampling.shape)
    return [
        [values[row, :length] for row, length in enumerate(LENGTHS)]
        for values in (gaps, 0.1 * moved, sampling, coefficients)
    ]


def pack(gaps, moved, sampling, coefficients):
    return pack_tokens(
        [
            measured(gap=d, sampling=mu, now=m, coefficient=c.tolist(), advantage=a)
            for d, mu, m, c, a in zip(
                gaps, sampling, moved, coefficients, ADVANTAGES, strict=True
            )
        ]
    )


def slow_weights(loss, gap, now, sampling, advantage):
    """The weights of one completion's tokens, in plain Python."""
    weights = []
    for d, d_now, mu in zip(gap, now, sampling, strict=True):
        weight = 1.0
        if loss.is_dppo:
            mu, pi = math.exp(mu), math.exp(mu + d_now)
            far = abs(pi - mu)
            if loss.surrogate == "dppo_kl":
                far = mu * math.log(mu / pi) + (1 - mu) * math.log(
                    (1 - mu + 1e-8) / (1 - pi + 1e-8)
                )
            weight = min(math.exp(d_now), loss.importance_cap)
            if (advantage > 0 and pi > mu and far > loss.clip_high) or (
                advantage < 0 and pi < mu and far > loss.clip_low
            ):
                weight = 0.0
        elif loss.importance_correction is not None:
            level, action = loss.importance_correction.split("_")
            weight = math.exp(sum(gap) if level == "sequence" else d)
            floor, cap = loss.importance_floor or 0, loss.importance_cap
            if action == "truncate":
                weight = max(floor, min(cap, weight))
            elif not floor <= weight <= cap:
                weight = 0.0
        mean = sum(gap) / len(gap)
        if loss.geometric_mask is not None and abs(mean) > loss.geometric_mask:
            weight = 0.0
        fall = -sum(now) / len(now)
        if loss.off_policy_mask is not None and advantage < 0:
            weight *= fall <= loss.off_policy_mask
        weights.append(weight)
    return weights


def slow_shares(weights, chosen):
    own = [weights[row] for row in chosen]
    flat = [w for row in own for w in row]
    if not flat:
        return None
    return (
        sum(abs(w - 1) > 2e-3 for w in flat) / len(flat),
        sum(w == 0 for w in flat) / len(flat),
        sum(not any(row) for row in own) / len(own),
    )


def slow_effective(weights):
    squares = sum(w * w for w in weights)
    return sum(weights) ** 2 / (len(weights) * squares) if squares else 0.0


def numbers_of(shares):
    return (shares.changed, shares.masked, shares.masked_sequences)


@pytest.fixture
def run(team):
    return make_run(team)


@pytest.mark.parametrize("today", [{}, {"importance_correction": "token_mask"}])
@pytest.mark.parametrize("scale", [0.05, 0.6])
def test_each_candidate_equals_a_slow_loop(run, scale, today):
    gaps, moved, sampling, coefficients = batch(scale)
    width = max(LENGTHS)
    padded = np.array([np.pad(d, (0, width - len(d))) for d in gaps])
    store_gaps(run, 1, padded, lengths=LENGTHS, advantages=ADVANTAGES)
    step = read_newest(run, 1)
    table = tabulate([pack(gaps, moved, sampling, coefficients)])
    loss_now = LossConfig(**today)
    # stored numbers have 7 digits, and a step's sums 4
    stored = [d.astype(float) for d in gaps]
    now_weights = [
        slow_weights(loss_now, d, d + m, mu, a)
        for d, m, mu, a in zip(stored, moved, sampling, ADVANTAGES, strict=True)
    ]

    rows = compare(CANDIDATES, step, table, loss_now)

    assert rows[0].key == "today"
    assert rows[0].cosine == pytest.approx(1)
    for candidate, row in zip(CANDIDATES, rows[1:], strict=True):
        loss = candidate.loss
        weights = [
            slow_weights(loss, d, d if row.is_of_all else d + m, mu, a)
            for d, m, mu, a in zip(stored, moved, sampling, ADVANTAGES, strict=True)
        ]
        everything = range(len(LENGTHS))
        assert numbers_of(row.shares) == pytest.approx(slow_shares(weights, everything))
        quartiles = np.quantile(LENGTHS, [0.25, 0.5, 0.75])
        for index, shares in enumerate(row.by_length):
            chosen = [
                r for r in everything if sum(LENGTHS[r] > q for q in quartiles) == index
            ]
            assert numbers_of(shares) == pytest.approx(slow_shares(weights, chosen))
        for sign, shares in zip((-1, 1), row.by_sign, strict=True):
            chosen = [r for r in everything if ADVANTAGES[r] * sign > 0]
            assert numbers_of(shares) == pytest.approx(slow_shares(weights, chosen))
        flat = [w for each in weights for w in each]
        means = [sum(each) / len(each) for each in weights]
        assert row.effective_tokens == pytest.approx(slow_effective(flat), rel=2e-3)
        assert row.effective_sequences == pytest.approx(slow_effective(means), rel=2e-3)

        of_update = [
            slow_weights(loss, d, d + m, mu, a)
            for d, m, mu, a in zip(stored, moved, sampling, ADVANTAGES, strict=True)
        ]
        before, after, stuck = [], [], 0
        for r in everything:
            for c, w, w_now in zip(
                coefficients[r], of_update[r], now_weights[r], strict=True
            ):
                stuck += w_now == 0 and w != 0
                before.append((c, ADVANTAGES[r]))
                after.append((c * w / w_now if w_now else c, ADVANTAGES[r]))
        assert row.num_stuck == stuck
        for sign, kept in ((1, row.kept_positive), (-1, row.kept_negative)):
            sizes = [
                sum(abs(c) for c, a in part if a * sign > 0) for part in (after, before)
            ]
            assert kept == pytest.approx(sizes[0] / sizes[1], rel=1e-4)
        one, other = (np.array([c for c, _ in part]) for part in (before, after))
        norm = np.linalg.norm(one) * np.linalg.norm(other)
        if norm:
            assert row.cosine == pytest.approx(one @ other / norm, rel=1e-4)
        else:
            assert row.cosine is None


def test_no_gap_leaves_each_candidate_as_it_is(run):
    zeros = np.zeros((8, 40))
    store_gaps(run, 1, zeros, lengths=LENGTHS, advantages=ADVANTAGES)
    gaps, moved, sampling, coefficients = batch(0.0)
    table = tabulate([pack(gaps, moved, sampling, coefficients)])

    rows = compare(CANDIDATES, read_newest(run, 1), table, LossConfig())

    for row in rows:
        assert numbers_of(row.shares) == (0.0, 0.0, 0.0)
        assert row.cosine == pytest.approx(1)
        assert row.kept_positive == row.kept_negative == 1
        assert row.outside in (None, (0.0, 0.0))


def test_a_bound_between_two_edges_has_the_two_nearest_counts(run):
    gaps = np.full((1, 10), math.log(2.5))
    gaps[0, :3] = math.log(4)
    gaps[0, 3] = -math.log(4)
    store_gaps(run, 1, gaps, advantages=[1.0])
    step = read_newest(run, 1)

    def outside(**changes):
        own = Candidate(key="own", title="Own", changes=changes)
        return compare([own], step, None, None)[0].outside

    tis = {"importance_correction": "token_truncate"}
    assert outside(**tis, importance_cap=3.0) == (0.3, 0.3)
    assert outside(**tis, importance_cap=2.0) == (0.9, 0.9)
    assert outside(**tis, importance_cap=2.2) == (0.3, 0.9)
    mask = {"importance_correction": "token_mask", "importance_cap": 5.0}
    assert outside(**mask, importance_floor=0.5) == (0.1, 0.1)
    assert outside(**mask, importance_floor=0.3) == (0.0, 0.1)


def test_the_region_of_dppo_is_counted_by_sign(run):
    sampling = np.log(np.full((2, 10), 0.5))
    gaps = np.zeros((2, 10))
    gaps[0, :4] = math.log(0.75 / 0.5)  # π - μ = 0.25, where A > 0
    gaps[1, :6] = math.log(0.75 / 0.5)  # and where A < 0, which draws it back
    store_gaps(run, 1, gaps, sampling=sampling, advantages=[1.0, -1.0])

    rows = compare(CANDIDATES, read_newest(run, 1), None, None)

    outside = {row.key: row.outside for row in rows}
    assert outside["dppo-tv"] == (0.2, 0.2)
    assert outside["dppo-kl"] is None


def test_without_token_values_a_candidate_of_tokens_has_no_shares(run):
    store_gaps(run, 1, np.full((2, 5), 0.2))

    rows = compare(CANDIDATES, read_newest(run, 1), None, LossConfig())

    by_key = {row.key: row for row in rows}
    assert by_key["tis-2"].shares.masked is None
    assert by_key["tis-2"].outside == (0.0, 0.0)
    assert by_key["geometric-0.01"].shares.masked_sequences == 1.0
    assert by_key["geometric-0.01"].cosine is None


def test_the_ratio_against_the_sampler_is_todays_weight(run):
    gaps, moved, sampling, coefficients = batch(0.0)
    own = [
        c * np.exp(d) for c, d in zip(coefficients, moved, strict=True)
    ]  # A·r, with r against the sampler
    store_gaps(run, 1, np.zeros((8, 40)), lengths=LENGTHS, advantages=ADVANTAGES)
    packed = pack(gaps, moved, sampling, own)
    table = tabulate([packed], has_old=False)

    none = compare(
        CANDIDATES[:1],
        read_newest(run, 1),
        table,
        LossConfig(old_logprobs="sampling"),
    )[1]

    whole = sum(
        abs(c).sum() for c, a in zip(coefficients, ADVANTAGES, strict=True) if a > 0
    )
    before = sum(abs(c).sum() for c, a in zip(own, ADVANTAGES, strict=True) if a > 0)
    assert none.kept_positive == pytest.approx(whole / before, rel=1e-4)


def test_both_masks_and_a_product_weigh_a_completion_together(run):
    gaps = np.array([[0.3, 0.3], [0.3, -0.3], [-0.4, -0.4]])
    store_gaps(run, 1, gaps, advantages=[1.0, 1.0, -1.0])
    loss = LossConfig(
        importance_correction="sequence_truncate",
        geometric_mask=0.35,
        off_policy_mask=0.1,
    )

    weights = weigh_completions(loss, read_newest(run, 1).completions)

    assert weights == pytest.approx([math.exp(0.6), 1.0, 0.0], rel=1e-3)
