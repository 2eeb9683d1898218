"""The page's advantages are the engine's."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from dashboard.rewards.advantages import group_advantages, rule_advantages, whiten
from trainer import advantages as engine
from trainer.advantages import group_advantages as engine_advantages
from trainer.config import AdvantageConfig

REWARDS = st.one_of(
    st.none(), st.sampled_from([0.0, 0.1, 0.5, 1.0, 1.2]), st.floats(0, 5)
)
CONFIGS = st.builds(
    AdvantageConfig,
    baseline=st.sampled_from(["mean", "leave_one_out", "none"]),
    scale=st.sampled_from(["group_std", "batch_std", "mean", "none"]),
    ddof=st.sampled_from([0, 1]),
    eps=st.sampled_from([0.0, 1e-4, 0.01]),
    singleton=st.sampled_from(["zero", "raw"]),
    credit=st.sampled_from(["outcome", "outcome", "outcome", "indicator", "ones"]),
)
BATCHES = st.integers(1, 5).flatmap(
    lambda size: st.lists(
        st.lists(REWARDS, min_size=size, max_size=size), min_size=1, max_size=4
    )
)


def as_numbers(group: list[float | None]) -> list[float]:
    return [math.nan if reward is None else reward for reward in group]


def of_engine(
    groups: list[list[float | None]], config: AdvantageConfig
) -> list[list[float]]:
    rows = [as_numbers(group) for group in groups]
    return engine_advantages(torch.tensor(rows, dtype=torch.float64), config).tolist()


TINY = [0.0, 1.5e-285]  # the square of what is between them is 0


@given(BATCHES, CONFIGS)
@example([TINY], AdvantageConfig(scale="group_std", ddof=0, eps=0.0))
def test_they_equal_the_engines(
    groups: list[list[float | None]], config: AdvantageConfig
) -> None:
    found = group_advantages(groups, config)

    for own, theirs in zip(found, of_engine(groups, config), strict=True):
        assert own == pytest.approx(theirs, rel=1e-6, abs=1e-9)


@given(BATCHES, CONFIGS, st.tuples(st.floats(-1, 2), st.floats(-1, 2)))
def test_rules_compared_one_by_one_equal_the_engines(
    groups: list[list[float | None]],
    config: AdvantageConfig,
    weights: tuple[float, float],
) -> None:
    turned = [list(reversed(group)) for group in groups]

    found = rule_advantages([groups, turned], weights, config)

    both = [
        [as_numbers(one), as_numbers(two)]
        for one, two in zip(groups, turned, strict=True)
    ]
    rewards = torch.tensor(both, dtype=torch.float64).transpose(1, 2)
    theirs = engine.rule_advantages(rewards, weights, config).tolist()
    for own, other in zip(found, theirs, strict=True):
        assert own == pytest.approx(other, rel=1e-6, abs=1e-9)


@given(BATCHES, CONFIGS)
def test_whitened_ones_equal_the_engines(
    groups: list[list[float | None]], config: AdvantageConfig
) -> None:
    # Values that the engine rounds to a mean of nearly 0 are the tests' of rounding.
    raw = [[0.0 if r is None else round(r, 3) for r in group] for group in groups]

    found = whiten(raw, groups, config)

    scored = ~torch.tensor([as_numbers(group) for group in groups]).isnan()
    values = torch.tensor(raw, dtype=torch.float64)
    theirs = engine.whiten(values, scored, config).tolist()
    for own, other in zip(found, theirs, strict=True):
        assert own == pytest.approx(other, rel=1e-6, abs=1e-9)


def test_the_usual_one_of_one_right_of_two() -> None:
    # mean 0.5, deviation 0.7071 with n - 1
    (found,) = group_advantages([[1.0, 0.0]], AdvantageConfig())

    assert found == pytest.approx([0.5 / (0.5**0.5 + 1e-4), -0.5 / (0.5**0.5 + 1e-4)])


def test_a_mean_to_divide_by_cannot_be_of_penalties() -> None:
    with pytest.raises(ValueError, match="rewards of 0 or more; got -1"):
        group_advantages([[1.0, -1.0]], AdvantageConfig(scale="mean"))
