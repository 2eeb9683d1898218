"""A package that only some runs need is asked for before anything is loaded."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.tiny import config_tree, read_events, run_trainer, write_config
from trainer.config import RunConfig, needed_packages
from trainer.config.reading import OPTIONAL_PACKAGES

EIGHT_BIT = {"optim": {"optimizer": "adamw_8bit"}}
ADAPTERS = {"model": {"lora_rank": 8}}
FOUR_BIT = {"model": {"lora_rank": 8, "quantization": "4bit"}}
VLLM = {"rollout": {"engine": "vllm"}}


@pytest.fixture
def only_here(monkeypatch) -> Any:
    """Of the optional packages, those named are installed."""
    find = importlib.util.find_spec

    def install(*names: str) -> None:
        def find_spec(name: str, package: str | None = None) -> Any:
            lacks = name in OPTIONAL_PACKAGES and name not in names
            return None if lacks else find(name, package)

        monkeypatch.setattr(importlib.util, "find_spec", find_spec)

    return install


@pytest.mark.parametrize(
    ("parts", "packages"),
    [
        ({}, []),
        (EIGHT_BIT, ["bitsandbytes"]),
        (ADAPTERS, ["peft"]),
        (FOUR_BIT, ["bitsandbytes", "peft"]),
        (VLLM, ["vllm"]),
    ],
)
def test_settings_name_what_they_need(parts, packages):
    config = RunConfig.model_validate(config_tree(Path("m"), Path("r"), **parts))

    assert [need.package for need in needed_packages(config)] == packages


def test_a_later_phase_needs_it_too():
    tree = config_tree(Path("m"), Path("r"))
    phases = [
        {"name": "first", "num_steps": 4},
        {"name": "then", "num_steps": 2, "changes": EIGHT_BIT},
    ]
    config = RunConfig.model_validate(tree | {"phases": phases})

    assert [need.package for need in needed_packages(config)] == ["bitsandbytes"]


@pytest.mark.parametrize(
    ("parts", "here", "package", "setting"),
    [
        (EIGHT_BIT, (), "bitsandbytes", "optim.optimizer"),
        (FOUR_BIT, ("peft",), "bitsandbytes", "model.quantization"),
        (ADAPTERS, (), "peft", "model.lora_rank"),
        (VLLM, (), "vllm", "rollout.engine"),
    ],
)
def test_a_run_that_lacks_one_reports_it_in_its_log(
    parts, here, package, setting, only_here, model_folder, rows_path, tmp_path
):
    only_here(*here)
    config = write_config(tmp_path, config_tree(model_folder, rows_path, **parts))

    done = run_trainer("run", config, "--out", tmp_path / "out")

    (event,) = read_events(tmp_path / "out" / "events.jsonl")
    assert (done.returncode, event["type"]) == (1, "run_failed")
    assert f"pip install {package}" in event["error"]
    assert setting in event["error"]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["drift", "probe"])
def test_other_commands_that_load_a_run_say_so_as_well(
    command, only_here, model_folder, rows_path, tmp_path
):
    only_here()
    tree = config_tree(model_folder, rows_path, **ADAPTERS)
    out = ("--out", tmp_path / "out") if command == "probe" else ()

    done = run_trainer(command, write_config(tmp_path, tree), *out)

    assert done.returncode == 2
    assert "pip install peft" in done.stderr
