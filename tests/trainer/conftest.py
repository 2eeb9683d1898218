"""Fixtures that the engine's tests share."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# As the trainer's own command does, before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from tests.environment import hide_gpus
from tests.trainer.tiny import (
    config_tree,
    run_trainer,
    write_config,
    write_model,
    write_rows,
)
from trainer.config import ModelConfig
from trainer.model.policy import Policy, load_policy
from trainer.serving import client

hide_gpus()


@pytest.fixture(autouse=True)
def _no_server_of_another_test(monkeypatch):
    """A run would report the hours of every server that its process holds."""
    monkeypatch.setattr(client, "_servers", {})


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def rows_path(tmp_path_factory) -> Path:
    return write_rows(tmp_path_factory.mktemp("data") / "rows.jsonl")


@pytest.fixture(scope="session")
def trained(model_folder, rows_path, tmp_path_factory) -> Callable[..., Path]:
    """The folder of a finished run: of each configuration one, for all to read."""
    folders: dict[str, Path] = {}

    def train(**parts: Any) -> Path:
        tree = config_tree(model_folder, rows_path, **parts)
        key = json.dumps(tree, sort_keys=True)
        if key not in folders:
            folder = tmp_path_factory.mktemp("trained")
            config = write_config(folder, tree)
            done = run_trainer("run", config, "--out", folder / "out")
            assert done.returncode == 0, done.stderr
            folders[key] = folder / "out"
        return folders[key]

    return train


@pytest.fixture
def policy(model_folder) -> Policy:
    return load_policy(ModelConfig(path=str(model_folder), device="cpu"))
