"""Settings changed while a run trains: heard between steps, and the same on resume."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.run.test_resume import story
from tests.trainer.tiny import (
    config_tree,
    only,
    read_events,
    run_trainer,
    write_config,
)
from trainer.config import RunConfig, change_settings
from trainer.run.state import read_changes

PHASES = [
    {"name": "one", "num_steps": 2, "changes": {}},
    {"name": "two", "num_steps": 4, "changes": {}},
]


def ask(out: Path, *changes: dict[str, Any]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "changes.json").write_text(json.dumps({"changes": changes}))


def change(number: int, after_step: int | None, **settings: int) -> dict[str, Any]:
    named = {path.replace("__", "."): value for path, value in settings.items()}
    return {"number": number, "after_step": after_step, "settings": named}


def train(config: Path, out: Path, *more: object) -> list[dict[str, Any]]:
    done = run_trainer("run", config, "--out", out, *more)
    assert done.returncode == 0, done.stderr
    return read_events(out / "events.jsonl")


def steps_of(events: list[dict[str, Any]], kind: str) -> list[int]:
    return [event["step"] for event in only(events, kind)]


@pytest.fixture
def tree(model_folder, rows_path) -> dict[str, Any]:
    optim = {"num_steps": 6, "schedule": "linear"}
    return config_tree(model_folder, rows_path, optim=optim)


def test_intervals_change_behind_the_step_that_is_named(tree, tmp_path):
    ask(
        tmp_path / "out",
        change(1, 3, evaluation__every_steps=1, checkpoint__every_steps=5),
        change(2, 4, checkpoint__keep_last=1, logging__groups_every_steps=3),
    )

    events = train(write_config(tmp_path, tree), tmp_path / "out")

    assert steps_of(events, "settings_changed") == [3, 4]
    assert steps_of(events, "evaluated") == [0, 3, 4, 5, 6]
    assert steps_of(events, "checkpoint_saved") == [2, 5, 6]
    assert set(steps_of(events, "group_scored")) == {1, 2, 3, 4, 6}
    kept = (tmp_path / "out" / "checkpoints").iterdir()
    assert [path.name for path in kept] == ["step-000006-attempt-1"]


@pytest.mark.slow
def test_a_run_that_gets_more_steps_at_its_end_continues(tree, tmp_path):
    ask(tmp_path / "out", change(1, 6, optim__num_steps=7))

    events = train(write_config(tmp_path, tree | {"phases": PHASES}), tmp_path / "out")

    assert steps_of(events, "step_finished") == list(range(1, 8))
    assert steps_of(events, "run_finished") == [7]
    assert steps_of(events, "settings_changed") == [6]


def test_a_finished_run_is_extended_from_its_last_checkpoint(tree, tmp_path):
    tree["optim"]["num_steps"] = 3
    config = write_config(tmp_path, tree)
    train(config, tmp_path / "out")
    ask(tmp_path / "out", change(1, None, optim__num_steps=5))

    events = train(config, tmp_path / "out", "--resume")

    assert steps_of(events, "settings_changed") == [3]
    assert steps_of(events, "step_finished") == [4, 5]
    assert steps_of(events, "run_finished") == [5]


@pytest.mark.slow
def test_the_schedule_runs_over_the_new_steps_from_the_change_on(tree, tmp_path):
    ask(tmp_path / "out", change(1, 2, optim__num_steps=11))

    events = train(write_config(tmp_path, tree), tmp_path / "out")

    rates = [e["metrics"]["lr"] for e in only(events, "step_finished")]
    assert rates[:4] == pytest.approx([1e-2, 0.8e-2, 0.8e-2, 0.7e-2])
    assert len(rates) == 11


def test_a_resumed_run_repeats_a_change_at_its_step(tree, tmp_path):
    config, whole = write_config(tmp_path, tree), tmp_path / "whole"
    changes = [change(1, 3, optim__num_steps=7, evaluation__every_steps=2)]
    ask(whole, *changes)
    train(config, whole)

    for step, repeated in ((2, [3]), (4, [])):
        out = tmp_path / f"from-{step}"
        ask(out, *changes)
        source = whole / "checkpoints" / f"step-{step:06d}-attempt-1"
        events = train(config, out, "--resume-from", source, "--attempt", 2)

        expected = story(whole / "events.jsonl", after=step)
        assert story(out / "events.jsonl") == expected
        assert steps_of(events, "settings_changed") == repeated


def test_a_file_that_cannot_be_read_is_reported_once_and_changes_nothing(
    tree, tmp_path
):
    ask(tmp_path / "out", change(1, None, rollout__group_size=2))

    events = train(write_config(tmp_path, tree), tmp_path / "out")

    values = [e for e in only(events, "warned") if e["code"] == "changes"]
    assert len(values) == 1
    assert "rollout.group_size" in values[0]["message"]
    assert steps_of(events, "step_finished") == list(range(1, 7))


def test_without_the_file_nothing_changes(tmp_path):
    assert read_changes(tmp_path / "changes.json") == ()


def test_more_steps_are_steps_of_the_last_phase(tree):
    config = RunConfig.model_validate(tree | {"phases": PHASES})

    longer = change_settings(config, {"optim.num_steps": 10})

    assert [phase.num_steps for phase in longer.phases] == [2, 8]
    back = change_settings(longer, {"optim.num_steps": 6})
    assert back == config
