"""A trainer's log as it is read: whole lines, once each, of a newer trainer too."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dashboard.runs.checkpoints.files import read_manifest
from dashboard.supervision.event_log import Lines, LogTailer, read_events
from tests.dashboard.supervision.logs import LogBuilder
from trainer.events import Event, StepFinished, Warned


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "events.jsonl"


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_a_log_that_does_not_exist_yet_has_no_lines(path):
    assert not LogTailer(path).read()


def test_only_whole_lines_are_read(path):
    tailer = LogTailer(path)
    append(path, b"one\ntw")

    first = tailer.read()
    tailer.advance(first)
    nothing = tailer.read()
    append(path, b"o\nthree\n")
    rest = tailer.read()

    assert first.texts == (b"one",)
    assert not nothing
    assert (rest.first, rest.texts) == (2, (b"two", b"three"))


def test_lines_that_were_not_stored_are_read_again(path):
    tailer = LogTailer(path)
    append(path, b"one\n")

    assert tailer.read() == tailer.read()


def test_a_line_longer_than_a_batch_is_read_whole(path):
    append(path, b"x" * 1_000 + b"\nshort\n")
    tailer = LogTailer(path)

    long = tailer.read(max_bytes=64)
    tailer.advance(long)

    assert long.texts[0] == b"x" * 1_000
    assert tailer.read().last == 2


def test_a_long_line_still_being_written_is_waited_for(path):
    append(path, b"x" * 1_000)

    assert not LogTailer(path).read(max_bytes=64)


def test_separators_inside_json_text_end_no_line(path):
    append(path, '{"a":"\u2028\x85\x0b"}\r\n'.encode())

    assert len(LogTailer(path).read().texts) == 1


def test_batches_cover_the_log_once(path):
    lines = [b"%d" % n * (n % 50 + 1) for n in range(500)]
    append(path, b"\n".join(lines) + b"\n")
    tailer, seen = LogTailer(path), []

    while batch := tailer.read(max_bytes=100):
        assert batch.first == len(seen) + 1
        seen += batch.texts
        tailer.advance(batch)

    assert seen == lines


def test_a_line_without_an_event_becomes_a_warning(path):
    log = LogBuilder().started().stepped(1)
    path.write_bytes(log.lines[0] + b"{not json\n" + b"".join(log.lines[2:]))

    events = read_events(LogTailer(path).read(), attempt=1)

    assert [event.line for event in events] == [1, 2, 3, 4]
    assert isinstance(events[1], Warned)
    assert "line 2" in events[1].message
    assert "{not json" in events[1].message


def test_a_line_of_another_attempt_is_not_taken_for_ours(path):
    LogBuilder(attempt=3).started().write(path)

    (event,) = read_events(LogTailer(path).read(), attempt=1)

    assert isinstance(event, Warned)
    assert "attempt 3" in event.message


# dashboard/DECISIONS.md, 23: what a newer trainer writes is read.


def read(*texts: bytes) -> list[Event]:
    return read_events(Lines(first=1, texts=texts, end=0), attempt=1)


def as_line(tree: dict[str, Any], number: int = 1) -> bytes:
    return json.dumps({**tree, "line": number, "attempt": 1}).encode()


def test_an_event_that_only_a_newer_trainer_knows_becomes_a_note():
    step = {"type": "step_finished", "time": 5.0, "step": 2, "metrics": {}}
    later = {"type": "weather_changed", "time": 6.0, "step": 2, "rain": [1, 2]}

    events = read(as_line(step, 1), as_line(later, 2), as_line({**step, "step": 3}, 3))

    assert [event.line for event in events] == [1, 2, 3]
    note = events[1]
    assert isinstance(note, Warned)
    assert (note.code, note.step, note.time) == ("unknown_event", 2, 6.0)
    assert "weather_changed" in note.message


def test_a_note_of_an_unknown_event_has_a_time_that_can_be_stored():
    [note] = read(as_line({"type": "later", "time": 1e300, "step": 2}))

    assert isinstance(note, Warned)
    assert note.time < 1e11


def test_a_line_without_an_event_is_unreadable():
    [note] = read(b'{"type": "weather_changed"}')

    assert isinstance(note, Warned)
    assert note.code == "unreadable_line"


def test_our_own_trainer_writes_no_field_that_is_not_in_the_contract():
    with pytest.raises(ValidationError, match="Extra inputs"):
        StepFinished.model_validate(
            {"line": 1, "attempt": 1, "time": 1.0, "step": 1, "metrics": {}, "rain": 1}
        )


def test_a_manifest_of_a_later_version_is_read(tmp_path):
    file = {"sha256": "0" * 64, "bytes": 3, "compressed": True}
    text = json.dumps({"files": {"a": file}, "format": 2})
    (tmp_path / "manifest.json").write_text(text)

    manifest, _ = read_manifest(tmp_path)

    assert manifest.files["a"].bytes == 3


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, {"prompt_index", "prompt", "answer", "reward_mean", "reward_std", "more"}),
        ({"prompt_index": 0, "prompt": "1+1=", "signal": "mixed"}, {"completions"}),
        ({"prompt_index": -1, "prompt": 7}, {"prompt_index", "prompt", "answer"}),
    ],
)
def test_a_warning_names_all_invalid_fields(path, given, named):
    place = {"line": 1, "attempt": 1, "time": 5.0, "step": 1}
    text = json.dumps({"type": "group_scored", **place, **given})
    append(path, f"{text}\n".encode())

    (event,) = read_events(LogTailer(path).read(), attempt=1)

    assert isinstance(event, Warned)
    assert named <= set(
        re.findall(r"\w+", event.message.partition("The line begins")[0])
    )
