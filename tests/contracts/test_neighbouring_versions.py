"""What an older or newer trainer writes is read: dashboard/decisions/0023."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from dashboard.runs.checkpoints.manifest import read_manifest
from dashboard.training.checkpoints import verify
from dashboard.training.follow import Lines
from dashboard.training.reading import read_events
from trainer.config import ChangeList, RunConfig
from trainer.events import (
    AnyEvent,
    Event,
    MeasuredCompletion,
    ScoredCompletion,
    ScoreFault,
    StepFinished,
    Warned,
    parse_event,
)

VERSIONS = Path(__file__).parent / "versions"
FOLDERS = sorted(path for path in VERSIONS.iterdir() if path.is_dir())
KINDS: tuple[type[Event], ...] = get_args(get_args(AnyEvent)[0])
PARTS: tuple[type[BaseModel], ...] = (ScoredCompletion, MeasuredCompletion, ScoreFault)


def golden_lines() -> list[bytes]:
    logs = sorted(VERSIONS.rglob("*.jsonl"))
    texts = [path.read_bytes() for path in logs if path.name != "rows.jsonl"]
    return [line for text in texts for line in text.split(b"\n")[:-1]]


LINES = golden_lines()


def objects_in(tree: Any) -> Iterator[dict[str, Any]]:
    """A tree's objects, the outermost first."""
    if isinstance(tree, dict):
        yield tree
    for value in tree.values() if isinstance(tree, dict) else tree:
        if isinstance(value, dict | list):
            yield from objects_in(value)


def read(*texts: bytes) -> list[Event]:
    return read_events(Lines(first=1, texts=texts, end=0), epoch=1)


def as_line(tree: dict[str, Any], number: int = 1) -> bytes:
    return json.dumps({**tree, "line": number, "epoch": 1}).encode()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_what_a_version_left_behind_is_as_it_was(folder: Path) -> None:
    listed = (folder / "SHA256SUMS").read_text().split("\n")[:-1]
    expected = {name: digest for digest, name in (line.split("  ") for line in listed)}

    found = {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "SHA256SUMS"
    }

    assert found == expected


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_every_line_of_every_version_is_read_as_it_was_meant(line: bytes) -> None:
    tree = json.loads(line)

    [event] = read(as_line(tree))

    told = event.model_dump(mode="json")
    assert {name: told[name] for name in tree} == {**tree, "line": 1, "epoch": 1}


def test_every_event_and_field_is_in_what_a_version_left_behind() -> None:
    trees = [json.loads(line) for line in LINES]
    told: dict[str, set[str]] = {}
    for tree in trees:
        told.setdefault(tree["type"], set()).update(tree)
    parts = {frozenset(each) for tree in trees for each in objects_in(tree)}

    for kind in KINDS:
        assert told.get(kind.model_fields["type"].default) == set(kind.model_fields)
    for part in PARTS:
        assert frozenset(part.model_fields) in parts, part.__name__


def test_what_an_older_trainer_does_not_tell_has_its_default() -> None:
    num_left_out = 0
    for line in LINES:
        event = parse_event(line)
        for name, field in type(event).model_fields.items():
            if field.is_required() or name == "type":
                continue
            tree = json.loads(line)
            del tree[name]

            [found] = read(as_line(tree))

            assert getattr(found, name) == field.get_default(call_default_factory=True)
            num_left_out += 1
    assert num_left_out


def test_what_a_newer_trainer_tells_beside_is_passed_over() -> None:
    for line in LINES:
        tree = json.loads(line)
        for each in objects_in(tree):
            # Their keys are names of metrics and rules, which are free.
            if each is tree or {"text", "ids", "rule"} & each.keys():
                each["of_a_later_version"] = {"depth": [1, 2]}

        assert parse_event(json.dumps(tree)) == parse_event(line)


def test_an_event_that_only_a_newer_trainer_knows_becomes_a_note() -> None:
    step = {"type": "step_finished", "time": 5.0, "step": 2, "metrics": {}}
    later = {"type": "weather_changed", "time": 6.0, "step": 2, "rain": [1, 2]}

    events = read(as_line(step, 1), as_line(later, 2), as_line({**step, "step": 3}, 3))

    assert [event.line for event in events] == [1, 2, 3]
    note = events[1]
    assert isinstance(note, Warned)
    assert (note.code, note.step, note.time) == ("unknown_event", 2, 6.0)
    assert "'weather_changed' are unknown to this version" in note.message
    assert "Update Cohort" in note.message


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


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_configurations_of_every_version_are_read(folder: Path) -> None:
    text = (folder / "run" / "run.json").read_text()

    config = RunConfig.model_validate_json(text)

    assert config.optim.num_steps == 4
    for path in folder.rglob("changes.json"):
        assert ChangeList.model_validate_json(path.read_text()).changes


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_checkpoints_of_every_version_are_whole(folder: Path) -> None:
    for path in (folder / "run" / "checkpoints").iterdir():
        saved = verify(path, on_progress=lambda: None)

        assert saved.sha256 == read_manifest(path)[1]
        assert saved.num_bytes > 0


def test_a_manifest_of_a_later_version_is_read(tmp_path: Path) -> None:
    file = {"sha256": "0" * 64, "bytes": 3, "compressed": True}
    text = json.dumps({"files": {"a": file}, "format": 2})
    (tmp_path / "manifest.json").write_text(text)

    manifest, _ = read_manifest(tmp_path)

    assert manifest.files["a"].bytes == 3
