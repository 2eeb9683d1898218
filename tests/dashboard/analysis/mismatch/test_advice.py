"""Advice names the cause of a seeded gap, and nothing else."""

import math

import numpy as np
import pytest

from dashboard.analysis.mismatch.advice import (
    LEAST_ROUNDING,
    MOST_ROUNDING,
    advise,
    find_doubling,
    gather,
    read_lab,
    total,
)
from dashboard.analysis.mismatch.counterfactuals import CANDIDATES, compare
from dashboard.completions.mismatch import read_mismatch, read_newest
from dashboard.runs.charts.series import Series
from tests.dashboard.analysis.mismatch.seeded import sampled, store_gaps
from tests.dashboard.completions.factories import make_run

BF16 = 0.03
ROWS = 32


@pytest.fixture
def run(team):
    return make_run(team)


def noise(sd, *, width, steps=4, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(0, sd, (ROWS, width)) for _ in range(steps)]


def advice_of(run, *, least=None, most=BF16):
    recent = read_newest(run, 10)
    evidence = gather(recent, (most if least is None else least, most))
    return advise(evidence, total(read_mismatch(run)).mean)


def store_all(run, steps, **fields):
    for step, gaps in enumerate(steps, 1):
        store_gaps(run, step, gaps, **fields)


def test_an_exact_engine_needs_no_correction(run):
    store_all(run, [np.zeros((ROWS, 40))] * 3)

    advice = advice_of(run, most=1e-4)

    assert advice.kind == "rounding"
    assert advice.candidate is None
    assert [number.value for number in advice.numbers] == [0.0, 0.0]
    rows = compare(CANDIDATES, read_newest(run, 1), None, None)
    assert {row.shares.masked for row in rows if row.is_of_all} == {0.0}


@pytest.mark.parametrize(
    ("sd", "width", "kind", "candidate"),
    [
        (0.005, 100, "rounding", None),
        (0.02, 200, "sequence", "sequence"),
        (0.02, 2_000, "token", "tis-2"),
        (0.1, 50, "fault", None),
    ],
)
def test_noise_is_judged_by_its_size_and_the_length(run, sd, width, kind, candidate):
    store_all(run, noise(sd, width=width))

    advice = advice_of(run)

    assert advice.kind == kind
    assert (advice.candidate and advice.candidate.key) == candidate
    assert "position" not in str(advice.numbers)
    assert advice.alarm is None


@pytest.mark.parametrize(
    ("sd", "width", "kind"),
    [(1e-5, 60, "rounding"), (0.005, 60, "format"), (0.1, 60, "fault")],
)
def test_an_unknown_number_format_leaves_open_what_only_some_explain(
    run, sd, width, kind
):
    store_all(run, noise(sd, width=width), age=None)

    advice = advice_of(run, least=LEAST_ROUNDING, most=MOST_ROUNDING)

    assert advice.kind == kind
    assert advice.needs_action == {"rounding": "no", "format": "unknown"}.get(
        kind, "likely"
    )


def test_stale_samples_need_no_number_format(run):
    store_all(run, noise(0.02, width=200), age=1)

    advice = advice_of(run, least=LEAST_ROUNDING, most=MOST_ROUNDING)

    assert advice.kind == "sequence"


@pytest.mark.parametrize(
    ("dtype", "rounding"),
    [("", (1e-4, 0.03)), ("bfloat16", (0.03, 0.03)), ("float32", (5e-3, 5e-3))],
)
def test_another_trainer_tells_its_number_format(team, dtype, rounding):
    run = make_run(team, source={"kind": "sdk", "tools": ["own loop"]})
    store_all(run, noise(0.002, width=60), dtype=dtype or None)

    evidence = read_lab(run).evidence

    assert (evidence.least_rounding, evidence.rounding) == rounding


def test_a_shift_on_rare_tokens_is_named(run):
    rng = np.random.default_rng(1)
    for step in range(1, 4):
        sampling = sampled(rng, ROWS, 300)
        gaps = np.where(sampling < math.log(0.1), 0.7, 0.001)
        store_gaps(run, step, gaps, sampling=sampling, age=1)

    advice = advice_of(run)

    assert advice.kind == "rare"
    assert advice.candidate.key == "dppo-tv"
    assert [number.value > number.bound for number in advice.numbers] == [True] * 3


def test_a_drift_with_position_is_named(run):
    slope = 0.002 * np.arange(200)
    store_all(run, [gaps + slope for gaps in noise(0.001, width=200)])

    advice = advice_of(run)

    assert advice.kind == "fault"
    assert advice.numbers[-1].value > advice.numbers[-1].bound == 3


def test_stale_samples_are_named_by_age_and_kl(run):
    rng = np.random.default_rng(2)
    gaps = [rng.normal(-0.05, 0.2, (ROWS, 60)) for _ in range(4)]
    store_all(run, gaps, age=3)

    advice = advice_of(run)

    assert advice.kind == "stale"
    drift = [-own[::2].mean(axis=1) for own in gaps]
    bound = advice.candidate.changes["off_policy_mask"]
    assert bound == pytest.approx(np.quantile(np.concatenate(drift), 0.95), rel=0.05)


def test_stale_samples_without_a_drift_get_no_mask(run):
    store_all(run, [abs(gaps) for gaps in noise(0.2, width=60)], age=3)

    advice = advice_of(run)

    assert advice.kind == "stale"
    assert advice.candidate is None


@pytest.mark.parametrize("reason", ["restricted", "temperature"])
def test_what_is_not_comparable_gets_no_advice(run, reason):
    store_all(run, noise(0.5, width=60), incomparable=reason)

    assert advice_of(run).kind == "incomparable"


def test_few_tokens_are_not_enough(run):
    store_gaps(run, 1, np.full((4, 10), 0.5))

    advice = advice_of(run)

    assert advice.kind == "few"
    assert "40 of 1,000" in advice.verdict


def test_numbers_are_of_the_newest_steps_up_to_the_one_shown(run):
    store_all(run, [*noise(0.002, width=60, steps=12), *noise(0.5, width=60, steps=2)])

    lab = read_lab(run, 12)

    assert lab.advice.kind == "rounding"
    assert lab.evidence.steps == (3, 12)
    assert lab.evidence.num_tokens == 10 * ROWS * 60
    assert read_lab(run).advice.kind == "fault"


def test_a_gap_that_doubles_raises_an_alarm(run):
    rng = np.random.default_rng(3)
    for step in range(1, 81):
        sd = 0.02 if step <= 60 else 0.08
        store_gaps(run, step, rng.normal(0, sd, (8, 40)), age=1)

    alarm = advice_of(run).alarm

    assert 61 <= alarm.step <= 66
    assert alarm.after > 2 * alarm.before


def test_a_steady_or_falling_gap_raises_none():
    steps = np.arange(1, 81)
    values = 0.02 + 0.001 * np.random.default_rng(4).normal(size=80)

    assert find_doubling(Series(steps=steps, values=values)) is None
    falling = np.where(steps <= 60, 4 * values, values)
    assert find_doubling(Series(steps=steps, values=falling)) is None
