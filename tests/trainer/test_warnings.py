"""Alarms and failures speak once, with value and remedy."""

from __future__ import annotations

import errno
import json
import math
import re

import pytest
import torch

from trainer.alarms import ALARMS, AlarmBoard
from trainer.errors import explain


def codes(board: AlarmBoard, share: float | None) -> list[str]:
    rung = board.check({"group/frac_zero_std": share})
    return [each.alarm.code for each in rung]


def test_an_alarm_rings_when_passed_and_again_only_after_coming_back() -> None:
    board = AlarmBoard()

    rung = [codes(board, share) for share in (0.9, 0.95, 1.0, 0.5, 0.92, None)]

    assert rung == [[], ["dead_groups"], [], [], ["dead_groups"], []]


def test_an_alarm_tells_the_value_seen() -> None:
    (rung,) = AlarmBoard().check({"completion/frac_truncated": 0.75})

    assert (rung.alarm.code, rung.bound, rung.value) == ("truncated", 0.5, 0.75)


def rung_at(board: AlarmBoard, metric: str, values: list[float | None]) -> list[int]:
    """The places in a series at which its alarm goes off."""
    return [place for place, value in enumerate(values) if board.check({metric: value})]


def test_a_gradient_ten_times_the_usual_one_rings() -> None:
    usual: list[float | None] = [1.0, 2.0, 3.0, 2.0, 1.0]

    assert rung_at(AlarmBoard(), "grad_norm", [*usual, 20.0, 20.1, 90.0, 2.0]) == [6]


def test_nothing_is_unusual_before_five_steps() -> None:
    assert rung_at(AlarmBoard(), "grad_norm", [1.0, 1.0, 1.0, 1.0, 99.0]) == []


def test_what_is_usual_follows_a_slow_rise() -> None:
    rising: list[float | None] = [1.1**n for n in range(100)]

    assert rung_at(AlarmBoard(), "grad_norm", rising) == []


def test_a_ringing_alarm_does_not_take_the_new_state_for_usual() -> None:
    series: list[float | None] = [1.0] * 5 + [50.0] * 60 + [1.0] + [50.0]

    assert rung_at(AlarmBoard(), "grad_norm", series) == [5, 66]


def test_numbers_that_are_not_finite_teach_nothing_about_the_usual() -> None:
    series: list[float | None] = [math.nan, math.inf, *[1.0] * 5, math.inf, 1.0, 10.5]

    assert rung_at(AlarmBoard(), "grad_norm", series) == [7, 9]


def test_entropy_rings_below_a_fifth_of_its_first_steps() -> None:
    series: list[float | None] = [2.0] * 5 + [1.0, 0.41, 0.39, 0.1]

    assert rung_at(AlarmBoard(), "entropy", series) == [7]


def test_a_policy_far_from_what_sampled_its_batch_rings() -> None:
    assert rung_at(AlarmBoard(), "staleness/kl", [None, 0.01, 0.09, 0.11, 0.2]) == [3]


def test_the_tail_of_the_kl_may_grow_while_it_is_small() -> None:
    series: list[float | None] = [0.001] * 5 + [0.9, 0.001, 1.1]

    assert rung_at(AlarmBoard(), "kl/p99", series) == [7]


def test_each_phase_finds_its_own_usual_values() -> None:
    board = AlarmBoard()
    rung_at(board, "grad_norm", [1.0] * 5)

    board.begin_phase()

    assert rung_at(board, "grad_norm", [99.0] * 5) == []


def test_an_alarm_may_be_left_out() -> None:
    board = AlarmBoard()

    assert board.check({"group/frac_zero_std": 1.0}, without={"dead_groups"}) == []


def test_a_board_restored_halfway_rings_as_if_it_had_never_left() -> None:
    series = [{"grad_norm": v, "kl/max": k} for v, k in SERIES]
    whole = AlarmBoard()
    expected = [[r.alarm.code for r in whole.check(metrics)] for metrics in series]
    assert sorted({code for codes in expected for code in codes}) == ["grad_norm", "kl"]

    for cut in range(len(series)):
        board = AlarmBoard()
        for metrics in series[:cut]:
            board.check(metrics)
        restored = AlarmBoard()
        restored.load_state_dict(json.loads(json.dumps(board.state_dict())))
        found = [[r.alarm.code for r in restored.check(m)] for m in series[cut:]]
        assert found == expected[cut:]


SERIES = [
    *[(1.0, 0.1)] * 5,
    (20.0, 30.0),
    (20.0, 30.0),
    (1.0, 0.1),
    (11.0, 25.0),
    (9.0, 25.0),
    (30.0, 1.0),
]


def test_every_alarm_says_what_to_try() -> None:
    for alarm in ALARMS:
        assert re.search(r"[a-z]+\.[a-z_]+|Try|Raise", alarm.message), alarm.code
    assert len({alarm.code for alarm in ALARMS}) == len(ALARMS)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (torch.OutOfMemoryError("CUDA out of memory.\nmore"), "micro_batch_tokens"),
        (MemoryError(), "The machine has no memory left"),
        (OSError(errno.ENOSPC, "No space left", "/data/x"), "on the disk of /data/x"),
        (ValueError("Set this to that."), "Set this to that."),
        (KeyError("wo"), "KeyError"),
    ],
)
def test_failures_are_sentences(error: Exception, sentence: str) -> None:
    assert sentence in explain(error)
    assert "\n" not in explain(error)
