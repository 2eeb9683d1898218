"""What a newer trainer writes is read: dashboard/DECISIONS.md, 23."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dashboard.runs.checkpoints.manifest import read_manifest
from dashboard.training.follow import Lines
from dashboard.training.reading import read_events
from trainer.events import Event, StepFinished, Warned


def read(*texts: bytes) -> list[Event]:
    return read_events(Lines(first=1, texts=texts, end=0), epoch=1)


def as_line(tree: dict[str, Any], number: int = 1) -> bytes:
    return json.dumps({**tree, "line": number, "epoch": 1}).encode()


def test_an_event_that_only_a_newer_trainer_knows_becomes_a_note() -> None:
    step = {"type": "step_finished", "time": 5.0, "step": 2, "metrics": {}}
    later = {"type": "weather_changed", "time": 6.0, "step": 2, "rain": [1, 2]}

    events = read(as_line(step, 1), as_line(later, 2), as_line({**step, "step": 3}, 3))

    assert [event.line for event in events] == [1, 2, 3]
    note = events[1]
    assert isinstance(note, Warned)
    assert (note.code, note.step, note.time) == ("unknown_event", 2, 6.0)
    assert "weather_changed" in note.message


def test_a_note_of_an_unknown_event_has_a_time_that_can_be_stored() -> None:
    [note] = read(as_line({"type": "later", "time": 1e300, "step": 2}))

    assert isinstance(note, Warned)
    assert note.time < 1e11


def test_what_is_no_event_is_still_unreadable() -> None:
    [note] = read(b'{"type": "weather_changed"}')

    assert isinstance(note, Warned)
    assert note.code == "unreadable_line"


def test_our_own_trainer_writes_no_field_that_is_not_in_the_contract() -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        StepFinished.model_validate(
            {"line": 1, "epoch": 1, "time": 1.0, "step": 1, "metrics": {}, "rain": 1}
        )


def test_a_manifest_of_a_later_version_is_read(tmp_path: Path) -> None:
    file = {"sha256": "0" * 64, "bytes": 3, "compressed": True}
    text = json.dumps({"files": {"a": file}, "format": 2})
    (tmp_path / "manifest.json").write_text(text)

    manifest, _ = read_manifest(tmp_path)

    assert manifest.files["a"].bytes == 3
