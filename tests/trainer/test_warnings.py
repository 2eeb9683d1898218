"""Alarms and failures speak once, with value and remedy."""

from __future__ import annotations

import errno

import pytest
import torch

from trainer.alarms import AlarmBoard
from trainer.failures import explain


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
