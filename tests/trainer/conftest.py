"""Fixtures that the engine's tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# As the trainer's own command does, before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from tests.environment import hide_gpus
from tests.trainer.tiny import write_model, write_rows
from trainer.config import ModelConfig
from trainer.model.policy import Policy, load_policy

hide_gpus()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def rows_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("data") / "rows.jsonl")


@pytest.fixture
def policy(model_folder: Path) -> Policy:
    return load_policy(ModelConfig(path=str(model_folder), device="cpu"))
