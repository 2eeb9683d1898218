"""A model's path is beside the file that names it, as the rows' is."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.tiny import (
    config_tree,
    read_events,
    run_trainer,
    write_config,
    write_model,
    write_rows,
)
from trainer.config import RunConfig, read_config
from trainer.rewards.command import _recipe_of


def reads(folder: Path, path: str, **parts: Any) -> RunConfig:
    tree = config_tree(Path(path), Path("rows.jsonl"), **parts)
    tree["model"]["path"] = path  # as it is written, be it no tidy path
    return read_config(write_config(folder, tree))


@pytest.mark.parametrize("path", ["model", "org/model", "./model", "../here/model"])
def test_a_folder_next_to_the_configuration_is_the_model(path, tmp_path):
    folder = tmp_path / "here"
    (folder / path).mkdir(parents=True)

    found = reads(folder, path).model.path

    assert Path(found) == (folder / path).resolve()


@pytest.mark.parametrize("path", ["gpt2", "org/model-0.5B", "tests/trainer"])
def test_a_path_without_folder_stays_a_hub_id(path, tmp_path):
    assert reads(tmp_path, path).model.path == path


@pytest.mark.parametrize(
    "path",
    ["./model", "../model", "a/b/c", "model/", "/nowhere/model", "~no-such-person/m"],
)
def test_an_unusable_model_path_ends_the_run_before_asking_the_hub(
    path, tmp_path, monkeypatch
):
    def ask(*_: object) -> None:
        raise AssertionError("a hub was asked")

    monkeypatch.setattr("trainer.hub._ask", ask)
    tree = config_tree(tmp_path, write_rows(tmp_path / "rows.jsonl"))
    tree["model"]["path"] = path

    done = run_trainer("run", write_config(tmp_path, tree), "--out", tmp_path / "out")

    (event,) = read_events(tmp_path / "out" / "events.jsonl")
    assert (done.returncode, event["type"]) == (1, "run_failed")
    assert path.strip("./") in event["error"]
    assert "Traceback" not in done.stderr


def test_a_home_folder_is_the_persons(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))

    assert reads(tmp_path / "here", "~/model").model.path == f"{tmp_path}/model"


def reward_of(path: str) -> dict[str, Any]:
    rule = {"name": "judge", "kind": "reward_model", "params": {"path": path}}
    return {"recipe": {"rules": [rule]}}


def test_reward_models_of_any_phase_are_next_to_it_too(tmp_path):
    (tmp_path / "judge").mkdir()
    phases = [
        {"name": "first", "num_steps": 4},
        {"name": "then", "num_steps": 2, "changes": {"reward": reward_of("judge")}},
    ]
    tree = config_tree(tmp_path, tmp_path / "rows.jsonl", reward=reward_of("./judge"))

    config = read_config(write_config(tmp_path, tree | {"phases": phases}))

    paths = [
        phase.config.reward.recipe.rules[0].params["path"]
        for phase in config.phase_configs
    ]
    assert paths == [str(tmp_path / "judge")] * 2


def test_a_run_and_its_memory_read_the_model_from_any_working_folder(
    tmp_path, capsys, monkeypatch
):
    write_model(tmp_path / "run" / "model")
    write_rows(tmp_path / "run" / "rows.jsonl")
    tree = config_tree(
        Path("model"),
        Path("rows.jsonl"),
        loss={"kl_coef": 0.1},  # with a reference, which is that model as well
        optim={"num_steps": 1},
        evaluation={"every_steps": 0},
    )
    config = write_config(tmp_path / "run", tree)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    done = run_trainer("run", config, "--out", "out")
    memory = run_trainer("memory", config)

    assert (done.returncode, memory.returncode) == (0, 0), done.stderr + memory.stderr
    assert str(tmp_path / "run" / "model") in capsys.readouterr().out


def test_a_recipes_reward_model_is_next_to_its_file(tmp_path):
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps(reward_of("./judge")["recipe"]))

    found = _recipe_of(recipe)

    assert found.rules[0].params["path"] == str(tmp_path / "judge")
