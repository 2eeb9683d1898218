"""Each condition by hand, and any course of readings against a slow reading of it."""

import math
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.alerts.conditions import FEWEST, FIRST, USUAL, Condition, Kind, Track

Readings = list[float | None]
READ_BY_STEP = [k for k in Kind if k not in (Kind.OVERFITS, Kind.WARNED)]


def fires_at(condition: Condition, readings: Readings) -> list[int]:
    """The places after which it holds."""
    track = Track(condition)
    places = []
    for index, value in enumerate(readings):
        track.read(value)
        if track.fires:
            places.append(index)
    return places


@pytest.mark.parametrize(
    ("condition", "readings", "places"),
    [
        (Condition(kind=Kind.ABOVE, threshold=1.0), [1.0, 1.1, 0.9, 2], [1, 3]),
        (
            Condition(kind=Kind.ABOVE, threshold=1.0, for_steps=3),
            [2, 2, 0, 2, 2, 2, 2],
            [5, 6],
        ),
        (
            Condition(kind=Kind.ABOVE, threshold=1.0, for_steps=2),
            [2, None, 2, None, 0, 2],
            [2, 3],
        ),
        (
            Condition(kind=Kind.CHANGES, threshold=50, lookback=2),
            [1, None, 1, None, 1.6],
            [4],
        ),
        (Condition(kind=Kind.BELOW, threshold=0.0), [0.0, -0.1], [1]),
        (Condition(kind=Kind.MISSING, for_steps=2), [None, 1, None, None], [3]),
        (Condition(kind=Kind.CONSTANT, for_steps=2), [1, 1, 1, 1, 2, 2], [2, 3]),
        (
            Condition(kind=Kind.CHANGES, threshold=50, lookback=2),
            [1, 1, 1.5, 1.6, 0.7],
            [3, 4],
        ),
        # of 0 there is no per cent
        (Condition(kind=Kind.CHANGES, threshold=50, lookback=1), [0, 5, 5], []),
        (
            Condition(kind=Kind.SHARE_OF_FIRST, threshold=0.5),
            [2, 2, 2, 2, 100, 1.1, 0.9],
            [6],
        ),
        (
            Condition(kind=Kind.TIMES_FIRST, threshold=3, also_above=5.0),
            [*([1.0] * FIRST), 4, 5.1],
            [FIRST + 1],
        ),
        (
            Condition(kind=Kind.TIMES_USUAL, threshold=10),
            [*([1.0] * FEWEST), 10, 10.1],
            [FEWEST + 1],
        ),
        (
            Condition(kind=Kind.TIMES_USUAL, threshold=10, also_above=1.0),
            [*([0.01] * FEWEST), 0.9, 0.01, 1.1],
            [FEWEST + 2],
        ),
        (
            Condition(kind=Kind.SHARE_OF_USUAL, threshold=0.5),
            [*([100.0] * FEWEST), 60, 49],
            [FEWEST + 1],
        ),
    ],
)
def test_a_condition_holds_where_it_says(condition, readings, places):
    assert fires_at(condition, readings) == places


def test_the_bound_of_an_open_alert_stays():
    track = Track(Condition(kind=Kind.SHARE_OF_USUAL, threshold=0.5))
    for value in [100.0] * FEWEST:
        track.read(value)
    track.read(40)
    assert track.fires
    track.hold(track.bound)

    for _ in range(3 * USUAL):
        track.read(40)

    assert track.fires  # 40 is usual by now, but it is not what it was


def test_an_alert_recovers_after_the_steps_it_took():
    track = Track(Condition(kind=Kind.ABOVE, threshold=1, for_steps=3))
    for value in [2, 2, 2, 0, 0]:
        track.read(value)
    assert not track.has_recovered

    track.read(0)

    assert track.has_recovered


def slow_passes(condition: Condition, readings: Readings) -> bool:
    """Whether the last of those that count passes, from the whole history."""
    *before, value = readings
    if condition.kind is Kind.MISSING:
        return value is None
    assert value is not None
    if condition.kind is Kind.ABOVE:
        return value > condition.threshold
    if condition.kind is Kind.BELOW:
        return value < condition.threshold
    if condition.kind is Kind.CONSTANT:
        last = before[-1] if before else None
        return last is not None and math.isclose(
            value, last, rel_tol=1e-9, abs_tol=1e-12
        )
    if condition.kind is Kind.CHANGES:
        if len(before) < condition.lookback or not before[-condition.lookback]:
            return False
        old = before[-condition.lookback]
        return abs(value - old) > condition.threshold / 100 * abs(old)
    if condition.kind is Kind.SHARE_OF_FIRST:
        if len(before) < FIRST:
            return False
        return value < condition.threshold * median(before[:FIRST])
    if condition.kind is Kind.TIMES_FIRST:
        if len(before) < FIRST:
            return False
        bound = condition.threshold * median(before[:FIRST])
        return value > max(bound, condition.also_above or bound)
    recent = before[-USUAL:]
    if len(recent) < FEWEST:
        return False
    bound = condition.threshold * median(recent)
    if condition.kind is Kind.SHARE_OF_USUAL:
        return value < bound
    return value > max(bound, condition.also_above or bound)


def slow_fires(condition: Condition, readings: Readings) -> bool:
    if condition.kind is not Kind.MISSING:
        readings = [value for value in readings if value is not None]
    n = condition.for_steps
    ends = range(len(readings) - n + 1, len(readings) + 1)
    return len(readings) >= n and all(
        slow_passes(condition, readings[:end]) for end in ends
    )


TIMES = [Kind.TIMES_FIRST, Kind.TIMES_USUAL]
NUMBERS: dict[str, Any] = {
    "threshold": st.sampled_from([0.0, 0.5, 1.0, 2.0, 50.0]),
    "for_steps": st.integers(1, 4),
    "lookback": st.integers(1, 5),
}
CONDITIONS = st.builds(
    Condition, kind=st.sampled_from(READ_BY_STEP), **NUMBERS
) | st.builds(
    Condition, kind=st.sampled_from(TIMES), also_above=st.just(0.4), **NUMBERS
)
VALUES = st.none() | st.sampled_from([0.0, 0.4, 0.5, 1.0, 1.0, 1.0, 3.0, -2.0])


@given(condition=CONDITIONS, readings=st.lists(VALUES, max_size=2 * USUAL))
def test_any_readings_are_judged_as_the_whole_history_says(condition, readings):
    expected = [
        index
        for index in range(len(readings))
        if slow_fires(condition, readings[: index + 1])
    ]

    assert fires_at(condition, readings) == expected


def overfits_at(pairs: list[tuple[float, float]], for_steps: int = 2) -> list[int]:
    condition = Condition(kind=Kind.OVERFITS, threshold=0.05, for_steps=for_steps)
    track = Track(condition)
    places = []
    for index, (value, reward) in enumerate(pairs):
        track.read(value, reward=reward)
        if track.fires:
            places.append(index)
    return places


def test_an_evaluation_that_falls_while_reward_rises_is_found():
    falls = [(0.5, 0.5), (0.6, 0.6), (0.5, 0.7), (0.4, 0.8), (0.4, 0.9)]

    assert overfits_at(falls) == [3, 4]


@pytest.mark.parametrize(
    "pairs",
    [
        [(0.6, 0.6), (0.5, 0.5), (0.4, 0.4)],  # both fall: it forgets, but not by that
        [(0.6, 0.6), (0.56, 0.7), (0.56, 0.8)],  # within the threshold
        [(0.6, 0.6), (0.5, 0.7), (0.6, 0.8), (0.5, 0.9)],  # not twice in a row
    ],
)
def test_other_evaluations_are_left_alone(pairs):
    assert overfits_at(pairs) == []
