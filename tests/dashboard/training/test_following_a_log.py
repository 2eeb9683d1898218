from __future__ import annotations

from pathlib import Path

import pytest

from dashboard.training.follow import LogFollower
from dashboard.training.reading import read_events
from tests.dashboard.training.logs import LogBuilder
from trainer.events import Warned


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_a_log_that_does_not_exist_yet_has_no_lines(path: Path) -> None:
    assert not LogFollower(path).read()


def test_only_whole_lines_are_read(path: Path) -> None:
    follower = LogFollower(path)
    append(path, b"one\ntw")

    first = follower.read()
    follower.advance(first)
    nothing = follower.read()
    append(path, b"o\nthree\n")
    rest = follower.read()

    assert first.texts == (b"one",)
    assert not nothing
    assert (rest.first, rest.texts) == (2, (b"two", b"three"))


def test_lines_that_were_not_stored_are_read_again(path: Path) -> None:
    follower = LogFollower(path)
    append(path, b"one\n")

    assert follower.read() == follower.read()


def test_a_line_longer_than_a_batch_is_read_whole(path: Path) -> None:
    append(path, b"x" * 1_000 + b"\nshort\n")
    follower = LogFollower(path)

    long = follower.read(max_bytes=64)
    follower.advance(long)

    assert long.texts[0] == b"x" * 1_000
    assert follower.read().last == 2


def test_a_long_line_still_being_written_is_waited_for(path: Path) -> None:
    append(path, b"x" * 1_000)

    assert not LogFollower(path).read(max_bytes=64)


def test_separators_inside_json_text_end_no_line(path: Path) -> None:
    append(path, '{"a":"\u2028\x85\x0b"}\r\n'.encode())

    assert len(LogFollower(path).read().texts) == 1


def test_batches_cover_the_log_once(path: Path) -> None:
    lines = [b"%d" % n * (n % 50 + 1) for n in range(500)]
    append(path, b"\n".join(lines) + b"\n")
    follower, seen = LogFollower(path), []

    while batch := follower.read(max_bytes=100):
        assert batch.first == len(seen) + 1
        seen += batch.texts
        follower.advance(batch)

    assert seen == lines


def test_a_line_that_is_no_event_becomes_a_warning_in_its_place(path: Path) -> None:
    log = LogBuilder().started().stepped(1)
    path.write_bytes(log.lines[0] + b"{not json\n" + b"".join(log.lines[2:]))

    events = read_events(LogFollower(path).read(), epoch=1)

    assert [event.line for event in events] == [1, 2, 3, 4]
    assert isinstance(events[1], Warned)
    assert "Line 2 of the event log could not be read" in events[1].message
    assert "{not json" in events[1].message


def test_a_line_of_another_epoch_is_not_taken_for_ours(path: Path) -> None:
    LogBuilder(epoch=3).started().write(path)

    (event,) = read_events(LogFollower(path).read(), epoch=1)

    assert isinstance(event, Warned)
    assert "epoch 3" in event.message
