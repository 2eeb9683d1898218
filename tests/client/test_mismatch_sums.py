import math

import numpy as np
import pytest

from cohort.mismatch import (
    DIFFERENCE_EDGES,
    GAP_EDGES,
    SUMS,
    GapMeasure,
    measure_gaps,
)
from trainer.events import MismatchMeasured

LN2 = math.log(2)


def batch(seed=0, *, rows=6, width=70):
    rng = np.random.default_rng(seed)
    sampling = np.log(rng.uniform(0.001, 1.0, (rows, width)))
    logprobs = sampling + rng.normal(0.0, 0.1, (rows, width))
    mask = rng.random((rows, width)) < 0.8
    return logprobs, sampling, mask, rng.choice([-1.0, 0.0, 2.0], rows)


def test_a_completion_has_its_sums():
    sampling = np.log([[0.5, 0.25, 0.5]])
    logprobs = sampling + np.array([[LN2, -LN2, 5.0]])
    measured = measure_gaps(logprobs, sampling, [[1, 1, 0]])

    sums = dict(zip(SUMS, measured.sums[0], strict=True))
    assert sums["num_tokens"] == 2
    assert sums["sum"] == pytest.approx(0)
    assert sums["absolute"] == pytest.approx(2 * LN2)
    assert (sums["min"], sums["max"]) == pytest.approx((-LN2, LN2))
    assert sums["k3"] == pytest.approx(2 + 0.5 - 2)


def test_bins_equal_a_loop_over_tokens():
    logprobs, sampling, mask, advantages = batch()
    measured = measure_gaps(logprobs, sampling, mask, advantages)

    positions, probabilities = np.zeros((12, 6)), np.zeros((11, 6))
    gaps, differences = np.zeros(24), np.zeros((3, 21))
    for row in range(len(mask)):
        for t, place in enumerate(np.flatnonzero(mask[row])):
            d = logprobs[row, place] - sampling[row, place]
            mu = math.exp(sampling[row, place])
            tenth = 10 if mu >= 0.95 else int(mu * 10)
            for bins, at in (
                (positions, int(math.log2(t + 1))),
                (probabilities, tenth),
            ):
                k3 = math.exp(d) - 1 - d
                bins[at, :5] += [1, d, abs(d), d * d, k3]
                bins[at, 5] = max(bins[at, 5], abs(d))
            gaps[sum(edge <= d for edge in GAP_EDGES)] += 1
            difference = mu * math.exp(d) - mu
            sign = int(np.sign(advantages[row])) + 1
            differences[sign, sum(e <= difference for e in DIFFERENCE_EDGES)] += 1
    assert measured.positions == pytest.approx(positions)
    assert measured.probabilities == pytest.approx(probabilities)
    assert measured.gaps.tolist() == gaps.tolist()
    assert measured.differences.tolist() == differences.tolist()


def test_any_split_gives_the_same_sums():
    logprobs, sampling, mask, advantages = batch()
    whole = measure_gaps(logprobs, sampling, mask, advantages)
    parts = [
        measure_gaps(logprobs[at], sampling[at], mask[at], advantages[at])
        for at in (slice(0, 1), slice(1, 4), slice(4, 6))
    ]

    joined = GapMeasure.joined(parts)

    assert joined.sums == pytest.approx(whole.sums)
    assert joined.positions == pytest.approx(whole.positions)
    assert joined.probabilities == pytest.approx(whole.probabilities)
    assert joined.gaps.tolist() == whole.gaps.tolist()
    assert joined.differences.tolist() == whole.differences.tolist()


def test_tokens_that_are_masked_or_have_no_number_do_not_count():
    logprobs, sampling, mask, advantages = batch()
    expected = measure_gaps(logprobs, sampling, mask, advantages)
    logprobs = np.where(mask, logprobs, np.nan)
    sampling = np.where(mask, sampling, -np.inf)

    assert measure_gaps(logprobs, sampling, mask, advantages).sums == pytest.approx(
        expected.sums
    )
    sampling[0] = np.nan
    unknown = measure_gaps(logprobs, sampling, mask, advantages)
    assert unknown.sums[0, :3].tolist() == [0, 0, 0]
    assert np.isnan(unknown.sums[0, 3:5]).all()
    assert unknown.gaps.sum() == mask[1:].sum()


def test_no_gap_is_zero_everywhere():
    _, sampling, mask, advantages = batch()

    measured = measure_gaps(sampling, sampling, mask, advantages)

    assert not measured.sums[:, 1:].any()
    assert not measured.positions[:, 1:].any()
    assert measured.gaps[12] == mask.sum()  # from 0 on


def test_an_event_has_them_to_four_digits_in_little_room():
    rng = np.random.default_rng(0)
    sampling = np.log(rng.uniform(0.001, 1.0, (256, 500)))
    logprobs = sampling + rng.normal(0.0, 0.02, sampling.shape)
    advantages = rng.normal(size=256)
    measured = measure_gaps(logprobs, sampling, np.ones_like(sampling), advantages)

    event = MismatchMeasured(
        line=1, attempt=1, time=0.0, step=1, advantages=advantages, **measured.tree()
    )

    assert event.sums.sum == pytest.approx(measured.sums[:, 1], rel=1e-3)
    assert event.sums.num_tokens == [500] * 256
    # 45 bytes a completion and 1.7 kB a step, by the plan
    sums = len(event.sums.model_dump_json())
    assert sums / 256 < 45 * 1.2
    assert len(event.model_dump_json(exclude={"sums", "advantages"})) < 1_700 * 1.2


@pytest.mark.parametrize(
    "change",
    [
        {"sizes": [1], "prompts": [3]},
        {"prompts": [3]},
        {"advantages": [1.0]},
        {"gaps": [0]},
        {"differences": [[0] * 21] * 2},
    ],
)
def test_an_event_whose_parts_disagree_is_refused(change):
    logprobs, sampling, mask, _ = batch()
    tree = measure_gaps(logprobs, sampling, mask).tree()
    place = {"line": 1, "attempt": 1, "time": 0.0, "step": 1}
    MismatchMeasured(**place, **tree)

    with pytest.raises(ValueError, match="Got"):
        MismatchMeasured(**place, **tree | change)


def test_log_probs_of_different_shapes_are_refused():
    with pytest.raises(ValueError, match=r"\[2, 3\]"):
        measure_gaps(np.zeros((2, 3)), np.zeros((2, 2)), np.ones((2, 3)))
