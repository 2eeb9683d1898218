"""Finding out which sandbox this machine can run, and refusing where there is none."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainer.config import RunConfig
from trainer.rewards.sandbox import levels
from trainer.rewards.sandbox import slot as probe
from trainer.rewards.sandbox.slot import (
    SandboxStatus,
    Slot,
    SlotLost,
    find_sandbox,
    try_level,
    try_levels,
)
from trainer.run.run import _require_sandbox
from trainer.run.setup import _sandbox


@pytest.fixture
def forgetful(monkeypatch) -> None:
    monkeypatch.setattr(probe, "_found", None)


def test_a_level_is_found_here():
    assert try_levels().level in levels.LEVELS


def test_each_level_that_can_be_tried_lets_nothing_through():
    tried = [level for level in levels.LEVELS if levels.obstacle(level) is None]

    assert {level: try_level(level).fault for level in tried} == dict.fromkeys(tried)


@pytest.mark.usefixtures("forgetful")
def test_a_level_that_lets_something_through_is_not_taken(monkeypatch) -> None:
    ask = Slot.ask

    def leak(self: Slot, *args: Any) -> Any:
        return replace(
            ask(self, *args), replies=(json.dumps(["read a file"]).encode(),)
        )

    monkeypatch.setattr(Slot, "ask", leak)

    found = find_sandbox()

    assert found.level is None
    assert "read a file" in found.sentence


@pytest.mark.usefixtures("forgetful")
def test_only_a_level_that_was_found_is_remembered_for_good(monkeypatch) -> None:
    monkeypatch.setattr(probe, "obstacle", lambda level: "not now")
    assert find_sandbox().level is None
    monkeypatch.setattr(probe, "obstacle", levels.obstacle)
    monkeypatch.setattr(probe, "_FORGET_SECONDS", 0.0)

    assert find_sandbox().level is not None
    monkeypatch.setattr(probe, "obstacle", lambda level: "never")
    assert find_sandbox().level is not None


@pytest.mark.usefixtures("forgetful")
def test_too_little_time_says_nothing_of_the_machine(monkeypatch) -> None:
    assert find_sandbox(timeout_seconds=0.0).level is None

    assert find_sandbox().level is not None


@pytest.mark.parametrize(
    ("name", "value", "level", "words"),
    [
        ("bubblewrap", lambda: None, "A", "bwrap"),
        ("sys.platform", "darwin", "B", "requires Linux"),
        ("confinement.landlock_version", lambda: 0, "B", "Landlock"),
        ("confinement.is_known_machine", lambda: False, "A", "aarch64"),
    ],
)
def test_the_probe_names_what_a_level_lacks(name, value, level, words, monkeypatch):
    monkeypatch.setattr(f"{levels.__name__}.{name}", value)

    reason = levels.obstacle(level)

    assert reason is not None
    assert words in reason


def test_a_sandbox_that_cannot_start_says_how_it_ended(monkeypatch):
    monkeypatch.setattr(levels, "_BOOT", "raise OSError('no room')")

    with pytest.raises(SlotLost, match="OSError: no room"):
        Slot("B")


@pytest.mark.parametrize("level", levels.LEVELS)
def test_it_ends_when_its_starter_goes_before_all_is_said(level):
    if reason := levels.obstacle(level):
        pytest.skip(reason)
    half = (1_000).to_bytes(4, "little") + b'[["a'

    done = subprocess.run(
        levels.command(level),
        input=half,
        env=levels.environment(),
        capture_output=True,
        timeout=20,
    )

    assert done.returncode == 1
    assert b"is gone" in done.stderr


def config_with(kind: str, **parts: object) -> RunConfig:
    return RunConfig.model_validate(
        {
            "model": {"path": "m"},
            "data": {"rows": "rows.jsonl"},
            "reward": {"recipe": {"rules": [{"name": "it", "kind": kind}]}},
            **parts,
        }
    )


def test_a_run_with_reward_code_does_not_start_without_a_sandbox(monkeypatch):
    nothing = SandboxStatus(level=None, reasons={"A": "no bwrap", "B": "no Landlock"})
    monkeypatch.setattr("trainer.run.run.find_sandbox", lambda: nothing)

    _require_sandbox(config_with("length"))
    with pytest.raises(ValueError, match="no Landlock"):
        _require_sandbox(config_with("python_function"))


def test_a_run_whose_later_phase_runs_code_reports_its_sandbox():
    changes = {"reward": {"recipe": config_with("python_function").reward.recipe}}
    first = {"name": "first", "num_steps": 1, "changes": {}}
    later = {"name": "later", "num_steps": 1, "changes": changes}
    phases = config_with("length", optim={"num_steps": 2}, phases=[first, later])

    assert _sandbox(phases)["sandbox"].startswith("level ")
    assert _sandbox(config_with("length")) == {}


def test_modules_inside_import_only_the_standard_library():
    import ast
    import sys

    folder = Path(levels.__file__).parent / "inside"
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                assert node.module.split(".")[0] in sys.stdlib_module_names or (
                    node.module.startswith("trainer.rewards.sandbox.inside")
                ), (path, node.module)
