"""Benches that are run by hand still find and measure what they are to."""

import importlib
import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.bench import bench_gpu, bench_step
from tests.bench.random_models import make_model

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT / "tests/bench", ROOT / "tests/load")
SMALL = [
    *("--device", "cpu", "--dtype", "float32", "--model", "tiny"),
    *("--prompts", "2", "--group", "2", "--new", "8", "--steps", "1", "--rounds", "1"),
    *("--trl-micro-batches", "2", "--micro-batch-tokens", "512"),
]
# What a machine must have; TRL's steps need more.
NEEDED = (
    "torch",
    "transformers",
    "safetensors",
    "tokenizers",
    "pydantic",
    "google-re2",
)
# Python's finder of modules, blind to some: as if they were not installed.
BLIND = """
import sys
from importlib.machinery import PathFinder

class Blind(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if path is None and name in {hidden!r}:
            return None
        return super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Blind
"""


def needed_distributions() -> set[str]:
    """Those that are needed, with all that they need themselves."""
    found: set[str] = set()
    todo = list(NEEDED)
    while todo:
        name = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        if name in found:
            continue
        try:
            wanted = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # for another system
        found.add(name)
        for requirement in map(Requirement, wanted):
            marker = requirement.marker
            if marker is None or marker.evaluate({"extra": ""}):
                todo.append(requirement.name)
    return found


def bare_environment(folder: Path) -> dict[str, str]:
    """The environment of a Python that has only what is needed."""
    needed = needed_distributions()
    hidden = {
        module
        for module, names in metadata.packages_distributions().items()
        if not {re.sub(r"[-_.]+", "-", name).lower() for name in names} & needed
    }
    assert {"django", "celery", "channels", "trl", "datasets", "accelerate"} <= hidden
    (folder / "sitecustomize.py").write_text(BLIND.format(hidden=hidden))
    return os.environ | {"PYTHONPATH": str(folder)}


def run(*arguments: object, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_each_bench_finds_what_it_uses():
    names = [
        f"tests.{folder.name}.{path.stem}"
        for folder in FOLDERS
        for path in folder.glob("*.py")
        if not path.stem.startswith("test_")
    ]

    for name in names:
        importlib.import_module(name)

    assert len(names) > 20


@pytest.mark.soak
@pytest.mark.slow
def test_a_step_is_compared_with_trls(tmp_path, capsys):
    sizes = ["--prompts", "2", "--group", "2", "--new", "8", "--steps", "1"]
    model = str(make_model("tiny", tmp_path))

    bench_step.main(
        ["--model", model, *sizes, "--micro-batches", "1", "--beta", "0.04"]
    )

    rows = [line for line in capsys.readouterr().out.splitlines() if line[:2] == "| "]
    header, _, row, *parts = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in rows
    ]
    assert header[3] == "ratio"
    assert float(row[3].split()[0]) > 0
    trl, ours = (int(cell.replace(",", "")) for cell in row[4:6])
    assert trl > ours > 100  # MiB; TRL's own modules alone are more than Cohort's
    assert len(parts) == 2 + 4 + 2  # the second table: a head, Cohort's parts, TRL's


@pytest.mark.slow(minutes=1)
def test_all_is_measured_with_nothing_but_torch_and_transformers(tmp_path):
    out = tmp_path / "figures" / "gpu.json"
    places = ("--folder", tmp_path, "--out", out)

    done = run(
        *("-m", "tests.bench.bench_gpu", *SMALL, *places),
        env=bare_environment(tmp_path),
    )

    assert done.returncode == 0, done.stderr
    assert "trl, datasets, accelerate" in done.stderr  # what it lacks
    found = json.loads(out.read_text())
    step, generation = found["parts"]
    assert step["theirs"] == []
    assert step["ours"][0]["peak_bytes"] > 2**26
    for steps in (step["ours"], generation["ours"], generation["theirs"]):
        assert [each["lengths"]["groups"] for each in steps] == [[[8, 8]] * 2]


@pytest.mark.soak
@pytest.mark.slow
def test_trls_completions_are_as_long(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    places = ["--folder", "models", "--out", "gpu.json", "--part", "step"]

    assert bench_gpu.main([*SMALL, *places]) == 0

    (step,) = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    for steps in (step["ours"], step["theirs"]):
        assert [each["lengths"]["groups"] for each in steps] == [[[8, 8]] * 2]
    assert step["theirs"][0]["phases"]["generate"] > 0
    assert step["table"][0][3] != "–"
