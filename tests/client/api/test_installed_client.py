"""The installed client, with nothing but Python."""

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.api.asking import make_token

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]
CLIENT = Path(__file__).parents[3] / "cohort"
IMPORT_ALL = """
import importlib, json, pkgutil, sys, cohort
for one in pkgutil.walk_packages(cohort.__path__, "cohort."):
    if one.name != "cohort.mismatch":  # whose calls ask for numpy
        importlib.import_module(one.name)
print(json.dumps([one.partition(".")[0] for one in sys.modules]))
import trainer.client, trainer.client.trl
from trainer.client.api.run import RunDetail
assert trainer.client.trl.watch is cohort.trl.watch
assert RunDetail is cohort.RunDetail
"""
USER = """
from datetime import datetime
from cohort import Client

run = Client().runs.launch("dr-grpo", dataset="sums", settings={"optim.num_steps": 7})
reveal_type(run.created_at)
reveal_type([point.values for point in run.watch()])
run.pause(1)
"""


@pytest.fixture
def installed(tmp_path) -> Path:
    """The bin folder of a virtual environment with only the client."""
    copy = shutil.copytree(CLIENT, tmp_path / "client")
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path / "wheel"]
    subprocess.run([*pip, "wheel", *options, copy], check=True)
    wheels = list((tmp_path / "wheel").iterdir())
    install = [*pip, "--python", python, "install", "--no-index", *wheels]
    subprocess.run(install, check=True)
    return tmp_path / "env" / "bin"


def call(*command: Any, stdin: str = "") -> subprocess.CompletedProcess[str]:
    clean = {"PATH": os.environ["PATH"], "HOME": str(Path(command[0]).parent)}
    return subprocess.run(
        [str(part) for part in command],
        env=clean,
        input=stdin,
        cwd=clean["HOME"],
        text=True,
        capture_output=True,
    )


def test_it_needs_only_the_standard_library(installed, live_app, alice):
    imported = call(installed / "python", "-c", IMPORT_ALL)
    token = make_token(alice, "read")
    login = call(installed / "cohort", "login", live_app, stdin=f"{token}\n")
    presets = call(installed / "cohort", "presets", "list", "--json")

    assert imported.returncode == 0, imported.stderr
    known = {*sys.stdlib_module_names, "cohort", "__main__", "_virtualenv"}
    assert set(json.loads(imported.stdout)) - known == set()
    assert "Alpha" in login.stdout
    assert token not in login.stdout + login.stderr
    keys = [json.loads(line)["key"] for line in presets.stdout.splitlines()]
    assert "dr-grpo" in keys, presets.stderr


def test_type_checkers_see_its_types(installed, tmp_path):
    (tmp_path / "mine.py").write_text(USER)

    mypy = [sys.executable, "-m", "mypy", "--strict", "--config-file="]
    mypy += ["--cache-dir", os.devnull]
    checked = call(
        *mypy, "--python-executable", installed / "python", tmp_path / "mine.py"
    )

    assert '"datetime.datetime"' in checked.stdout
    assert "list[dict[str, float]]" in checked.stdout
    errors = [line for line in checked.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 1, checked.stdout
    assert "Too many arguments" in errors[0]
