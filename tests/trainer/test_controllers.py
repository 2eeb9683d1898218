"""A KL weight that follows its target, step by step as in arXiv:1909.08593."""

from __future__ import annotations

import math

import pytest

from trainer.algorithm.kl import AdaptiveKL


@pytest.mark.parametrize(
    ("kl", "num_completions", "coef"),
    [
        (6.6, 100, 0.2 * 1.001),  # error 0.1, a hundredth of the horizon
        (5.4, 100, 0.2 * 0.999),
        (6.0, 100, 0.2),
        (60.0, 1_000, 0.2 * 1.02),  # the error counts as 0.2 at most
        (0.0, 1_000, 0.2 * 0.98),
        (-3.0, 1_000, 0.2 * 0.98),  # an estimate by k1 may be below 0
    ],
)
def test_one_update(kl: float, num_completions: int, coef: float) -> None:
    controller = AdaptiveKL(coef=0.2, target=6.0, horizon=10_000)

    controller.update(kl, num_completions)

    assert controller.coef == pytest.approx(coef)


def test_it_brings_the_kl_to_its_target() -> None:
    controller = AdaptiveKL(coef=0.001, target=6.0, horizon=500)

    for _ in range(500):
        kl = 0.6 / controller.coef  # a stronger weight holds the policy closer
        controller.update(kl, 64)

    assert kl == pytest.approx(6.0, rel=0.01)
    assert controller.coef == pytest.approx(0.1, rel=0.01)


def test_the_weight_stays_positive_whatever_the_batch() -> None:
    controller = AdaptiveKL(coef=0.2, target=6.0, horizon=10)

    controller.update(0.0, 100_000)

    assert controller.coef == pytest.approx(0.2 * 0.8)


@pytest.mark.parametrize("kl", [math.nan, math.inf, -math.inf])
def test_a_kl_that_is_no_number_leaves_a_weight_that_is_one(kl: float) -> None:
    controller = AdaptiveKL(coef=0.2, target=6.0, horizon=10_000)

    controller.update(kl, 10)

    assert controller.coef == pytest.approx(0.2, rel=1e-3)


def test_it_goes_on_from_its_state() -> None:
    first, second = (AdaptiveKL(coef=0.2, target=6.0, horizon=100) for _ in range(2))
    first.update(9.0, 32)

    second.load_state(first.state())
    for controller in (first, second):
        controller.update(7.0, 16)

    assert first.coef == second.coef != 0.2


@pytest.mark.parametrize(
    ("coef", "target", "horizon"), [(0.0, 6.0, 10), (0.1, 0.0, 10), (0.1, 6.0, 0)]
)
def test_a_controller_that_cannot_adapt_is_refused(
    coef: float, target: float, horizon: int
) -> None:
    with pytest.raises(ValueError, match="above 0"):
        AdaptiveKL(coef=coef, target=target, horizon=horizon)
