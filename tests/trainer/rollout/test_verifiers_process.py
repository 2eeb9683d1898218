"""The process of verifiers, with a library that fails."""

import sys

import pytest

from trainer.config import EnvironmentConfig
from trainer.rollout import verifiers
from trainer.rollout.verifiers import Taskset, list_tasks

# Modules of which the process reads names only, until it is asked.
LIBRARY = """
import sys
from contextlib import asynccontextmanager
from unittest.mock import MagicMock

for name in ("", ".dialects.chat", ".harnesses.utils.mcp", ".interception", ".utils"):
    sys.modules["verifiers.v1" + name] = MagicMock()
sys.modules["openai"] = MagicMock()
v1 = sys.modules["verifiers.v1"]
v1.Harness, v1.HarnessConfig, v1.Client, v1.AgentConfig = list, int, object, str

@asynccontextmanager
async def serving():
    yield

def take(limit):
    raise ValueError("no words\\nin the file")

environment = MagicMock()
environment.serving, environment.taskset.take = serving, take
loaders = sys.modules["verifiers.v1.utils"].loaders
loaders.load_environment.return_value = environment
"""


def test_the_reason_of_a_failed_taskset_is_one_line(tmp_path, monkeypatch):
    package = tmp_path / "verifiers"
    package.mkdir()
    (package / "__init__.py").write_text(LIBRARY)
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nexport PYTHONPATH="{tmp_path}:$PYTHONPATH"\n'
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    monkeypatch.setenv(verifiers.PYTHON, str(python))
    taskset = Taskset(EnvironmentConfig(kind="verifiers", taskset="words"))

    with pytest.raises(verifiers.EnvironmentFailed) as failed:
        list(list_tasks(taskset, 1))

    words = str(failed.value)
    assert words.endswith("exit code 1. ValueError: no words in the file")
