"""`make check-gpu` in its form for a CPU, so that it works where there is a GPU."""

import importlib.util
import json
import subprocess
import sys

import pytest

from tests.environment import ROOT, child_environment
from tests.gpu import check

WITHOUT_GPU = set(check.STAGES) - {*check.GPU_ONLY, *check.LONG}
FIRST = {"environment", "sampling"}
MODELS = {"attention", "architectures", "sharded", "two_gpus"}
COMPARED = {"trl", "vllm"}  # where they are installed


@pytest.mark.slow  # each stage is a process that loads torch, and one trains
@pytest.mark.parametrize(
    "stages",
    [FIRST, MODELS, COMPARED, WITHOUT_GPU - FIRST - MODELS - COMPARED],
    ids=["first", "models", "compared", "others"],
)
def test_each_stage_that_needs_no_gpu_passes(stages, tmp_path):
    out = tmp_path / "check.json"
    environment = child_environment()
    environment.pop("PIP_FIND_LINKS", None)
    options = ["--device", "cpu", "--tiny", "--out", str(out), "--seconds", "2400"]

    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.check", *options, "--only", *stages],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    results = {each["stage"]: each for each in json.loads(out.read_text())["results"]}
    assert set(results) == stages
    absent = {n for n in COMPARED if importlib.util.find_spec(n) is None}
    assert {name: each["status"] for name, each in results.items()} == {
        name: "SKIP" if name in absent else "PASS" for name in stages
    }
    if "sampling" in stages:
        assert results["sampling"]["figures"]["same tokens again"] == "100%"
    elif "runs" in stages:
        assert results["runs"]["figures"].keys() == {"distilled", "resumed"}


def test_a_stage_that_fails_hangs_or_comes_too_late_ends_nothing(
    tmp_path, monkeypatch, capsys
):
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\nread line\n"
        'case "$3" in\n'
        "  environment) echo trouble >&2; exit 3;;\n"
        "  sampling) sleep 60;;\n"
        '  *) echo \'{"status": "PASS", "reason": "", "figures": {"ms": 3}}\';;\n'
        "esac\n"
    )
    python.chmod(0o755)
    monkeypatch.setattr(check, "make_environment", lambda _folder: str(python))
    monkeypatch.setitem(check.STAGES, "sampling", 1)
    monkeypatch.setattr(check, "LEAST_SECONDS", 0)
    out = tmp_path / "check.json"
    stages = ["environment", "sampling", "runs"]

    options = ["--out", str(out), "--starter", str(tmp_path), "--seconds", "30"]
    code = check.main([*options, "--only", *stages])

    assert code == 1
    assert "1 PASS, 2 FAIL, 0 SKIP" in capsys.readouterr().out
    found = json.loads(out.read_text())["results"]
    assert [each["status"] for each in found] == ["FAIL", "FAIL", "PASS"]
    assert "trouble" in found[0]["reason"]
    assert found[2]["figures"] == {"ms": 3}

    assert check.main([*options[:-1], "-1", "--only", "runs"]) == 0
    assert json.loads(out.read_text())["results"][0]["status"] == "SKIP"
