"""The GPU's bench, tried on a CPU: nothing but the device is left to be proven."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

from tests.bench import bench_gpu, ours
from trainer import loop

ROOT = Path(__file__).parents[2]
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
def test_nothing_is_imported_that_a_gpu_machine_may_lack(tmp_path: Path) -> None:
    modules = (
        "tests.bench.bench_gpu, tests.bench.bench_generation, tests.bench.comparison, "
        "tests.bench.random_models, trainer.loop, trainer.setup, "
        "trainer.rollout.builtin"
    )

    done = run("-c", f"import {modules}", env=bare_environment(tmp_path))

    assert done.returncode == 0, done.stderr


@pytest.mark.slow(minutes=1)
def test_all_is_measured_with_nothing_but_torch_and_transformers(
    tmp_path: Path,
) -> None:
    out = tmp_path / "figures" / "gpu.json"
    places = ("--folder", tmp_path, "--out", out)

    done = run(
        *("-m", "tests.bench.bench_gpu", *SMALL, *places),
        env=bare_environment(tmp_path),
    )

    assert done.returncode == 0, done.stderr
    assert "this Python has no trl, datasets, accelerate" in done.stderr
    assert "tiny, generation" in done.stdout
    found = json.loads(out.read_text())
    step, generation = found["parts"]
    assert step["theirs"] == []
    assert step["ours"][0]["peak_bytes"] > 2**26
    for steps in (step["ours"], generation["ours"], generation["theirs"]):
        assert [each["lengths"]["groups"] for each in steps] == [[[8, 8]] * 2]


@pytest.mark.soak
@pytest.mark.slow
def test_trls_completions_are_as_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    places = ["--folder", "models", "--out", "gpu.json", "--part", "step"]

    assert bench_gpu.main([*SMALL, *places]) == 0

    (step,) = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    for steps in (step["ours"], step["theirs"]):
        assert [each["lengths"]["groups"] for each in steps] == [[[8, 8]] * 2]
    assert step["theirs"][0]["phases"]["generate"] > 0
    assert step["table"][0][3] != "–"


def test_without_a_gpu_it_says_how_to_try_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    assert bench_gpu.main([]) == 2

    assert "no CUDA device here" in capsys.readouterr().err


def test_a_package_that_is_missing_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(bench_gpu._NEEDED, "no_such_module", "no-such-package")

    assert bench_gpu.main(SMALL) == 2

    assert "-m pip install no-such-package" in capsys.readouterr().err


def test_a_phase_on_a_gpu_ends_when_its_kernels_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: done.append("waited"))
    monkeypatch.setattr(loop, "Stopwatch", loop.Stopwatch)  # put back afterwards

    ours._time_kernels_where_they_were_started()
    watch = loop.Stopwatch()
    with watch.phase("update"):
        done.append("started")

    assert done == ["started", "waited"]
    assert watch.metrics(num_tokens=1)["time/update"] is not None
