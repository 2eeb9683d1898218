"""Verdicts on two sets of seeds."""

import math
import re

import numpy as np
import pytest

from dashboard.analysis.compare.series import Better, declare
from dashboard.analysis.compare.verdicts import Verdict, judge


def verdict(
    base: list[float],
    other: list[float],
    *,
    better: Better = "higher",
    is_paired: bool = False,
    statistic: str = "mean",
) -> Verdict:
    return judge(
        np.array(base)[:, None],
        np.array(other)[:, None],
        statistic=statistic,
        better=better,
        is_paired=is_paired,
    )


def numbers(found: Verdict) -> list[str]:
    return re.findall(r"[\d,]+", found.needed)


def test_distinguishable_sets_are_better_or_worse_by_the_direction():
    sets = [0.1, 0.2, 0.15], [0.8, 0.9, 0.85]
    kinds: dict[Better, str] = {"higher": "better", "lower": "worse"}
    kinds["neither"] = "differs"

    for better, kind in kinds.items():
        found = verdict(*sets, better=better)

        assert found.kind == kind
        assert found.difference == pytest.approx(0.7)
    assert "higher" in verdict(*sets, better="neither").text


def test_indistinguishable_sets_need_more_seeds():
    # s² = 0.04 each, a difference of 0.2: n = 17 by the noncentral t, see
    # test_statistics_of_seeds.py; three are there.
    more = verdict([0.1, 0.5, 0.3], [0.3, 0.7, 0.5])
    of_unequal_size = verdict([0.1, 0.5, 0.3], [0.3, 0.7, 0.5, 0.5])
    next_to_none = verdict([0.1, 0.5, 0.3], [0.1, 0.5, 0.3001])

    assert (more.kind, numbers(more)) == ("open", ["14"])
    assert "more" in more.needed
    assert "more" not in of_unequal_size.needed  # in all
    assert int(numbers(of_unequal_size)[0]) > 4
    assert numbers(next_to_none) == ["1,000"]


def test_pairs_are_distinguishable_where_sets_are_not():
    base, other = [0.1, 0.5, 0.9], [0.2, 0.61, 0.99]

    assert verdict(base, other).kind == "open"
    paired = verdict(base, other, is_paired=True)
    assert (paired.kind, paired.is_paired) == ("better", True)


def test_a_pair_that_lacks_a_value_is_left_out():
    found = verdict([0.1, 0.5, math.nan], [0.2, 0.61, 0.99], is_paired=True)

    assert found.difference == pytest.approx(0.105)


def test_equal_seeds_have_the_verdict_same():
    for statistic in ("mean", "iqm"):
        assert verdict([0.1145] * 3, [0.1145] * 5, statistic=statistic).kind == "same"


def test_one_seed_or_no_value_has_no_test():
    assert verdict([0.1], [0.2]).kind == verdict([0.1, 0.2], [0.2]).kind == "one"
    assert verdict([0.1], [0.2]).interval is None
    assert verdict([0.1], [math.nan]).kind == "none"


def test_directions_are_declared():
    rules = [{"name": "answer", "weight": 1.0}, {"name": "too_long", "weight": -0.5}]
    config = {"reward": {"recipe": {"rules": rules}}}
    expected = {
        "reward/mean": "higher",
        "reward/answer/mean": "higher",
        "reward/too_long/mean": "lower",  # its weight is below 0
        "eval/heldout/pass@8": "higher",
        "eval/heldout/frac_truncated": "lower",
        "time/step": "lower",
        "tokens_per_second": "higher",
        "kl/mean": "neither",
        "loss": "neither",
        "completion/mean_length": "neither",
    }

    assert {name: declare(name, config) for name in expected} == expected
