"""The log of a run, and a disk that has no room for it."""

import errno
import math
import os
import shutil

import pytest

from trainer.disk import (
    MEBIBYTE,
    RESERVED_BYTES,
    DiskFull,
    full_disk,
    raise_disk_full,
)
from trainer.events import RunFinished, StepFinished, Warned, parse_event
from trainer.output.log import EventLog, archive_log, newest_attempt


def test_nothing_is_written_before_a_flush(tmp_path):
    path = tmp_path / "events.jsonl"
    with EventLog(path, attempt=3) as log:
        log.add(StepFinished, step=1, metrics={"a": 1.0})
        assert path.read_bytes() == b""
        log.flush()
        assert parse_event(path.read_bytes()).attempt == 3


def test_leaving_writes_what_waits(tmp_path):
    path = tmp_path / "events.jsonl"
    with EventLog(path, attempt=1) as log:
        log.add(StepFinished, step=1, metrics={})
        log.add(RunFinished, step=1)

    events = [parse_event(line) for line in path.read_bytes().splitlines()]
    assert [event.line for event in events] == [1, 2]


def test_numbers_that_are_not_finite_become_null(tmp_path):
    path = tmp_path / "events.jsonl"
    with EventLog(path, attempt=1) as log:
        log.add(StepFinished, step=1, metrics={"a": math.nan, "b": -math.inf})

    assert b'"metrics":{"a":null,"b":null}' in path.read_bytes()


def test_half_a_character_in_any_text_is_replaced(tmp_path):
    path = tmp_path / "events.jsonl"
    with EventLog(path, attempt=1) as log:
        log.add(Warned, step=1, code="a", message="\ud83d, é")
        log.add(StepFinished, step=1, metrics={"a": 1.0, "b": math.nan})

    warned, finished = map(parse_event, path.read_bytes().splitlines())
    assert isinstance(warned, Warned)
    assert warned.message == "\ufffd, é"
    assert isinstance(finished, StepFinished)
    assert finished.metrics == {"a": 1.0, "b": None}


def test_a_log_is_never_overwritten(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text("old")

    with pytest.raises(FileExistsError):
        EventLog(path, attempt=1)


def test_attempts_are_archived_under_their_number(tmp_path):
    for attempt in (1, 4):
        assert newest_attempt(tmp_path) == (0 if attempt == 1 else 1)
        with EventLog(tmp_path / "events.jsonl", attempt=attempt) as log:
            log.add(RunFinished, step=0)
        archive_log(tmp_path)

    assert newest_attempt(tmp_path) == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "events-1.jsonl",
        "events-4.jsonl",
    ]


def test_logs_that_were_cut_in_their_first_line_are_all_kept(tmp_path):
    for _ in range(2):
        (tmp_path / "events.jsonl").write_bytes(b'{"line":1,"epo')
        archive_log(tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "events-1.jsonl",
        "events-2.jsonl",
    ]


class FullDisk:
    """In place of the file, until there is room."""

    def write(self, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("defers_errors", [False, True])
def test_events_lost_to_a_full_disk_are_written_later(tmp_path, *, defers_errors):
    path = tmp_path / "events.jsonl"
    with EventLog(path, attempt=1, defers_errors=defers_errors) as log:
        file, log._file = log._file, FullDisk()  # type: ignore[assignment]
        log.add(StepFinished, step=1, metrics={})
        if defers_errors:
            log.flush()
            with pytest.raises(DiskFull, match="the run"):
                log.require_disk_space()
        else:
            with pytest.raises(OSError, match="No space left"):
                log.flush()
        assert not log.is_written()

        log._file = file
        log.add(RunFinished, step=1)
        log.flush()
        log.require_disk_space()
        assert log.is_written()

    events = [parse_event(line) for line in path.read_bytes().splitlines()]
    assert [event.line for event in events] == [1, 2]


def test_a_log_that_has_used_half_of_the_reserve_stops_the_run(tmp_path, monkeypatch):
    free = [RESERVED_BYTES // 2]
    monkeypatch.setattr("trainer.output.log.free_bytes", lambda folder: free[0])
    with EventLog(tmp_path / "events.jsonl", attempt=1) as log:
        log.require_disk_space()
        free[0] -= 1

        with pytest.raises(DiskFull) as lack:
            log.require_disk_space()

    assert lack.value.needs_bytes == RESERVED_BYTES


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/dev/shm/torch_1")


def test_a_disk_without_the_room_names_what_it_needs(tmp_path):
    needs = shutil.disk_usage(tmp_path).total + MEBIBYTE

    lack = full_disk(tmp_path, needs, purpose="the log", error=FULL)

    assert lack.needs_bytes == needs
    assert f"{tmp_path} has " in str(lack)


def test_disk_full_with_room_names_the_other_place(tmp_path):
    """A run that went on by itself would meet the same at once, without an end."""
    with (
        pytest.raises(DiskFull) as caught,
        raise_disk_full(tmp_path, 1, purpose="the checkpoint being saved"),
    ):
        raise FULL

    assert caught.value.needs_bytes is None
    assert "No space left on device: '/dev/shm/torch_1'" in str(caught.value)
