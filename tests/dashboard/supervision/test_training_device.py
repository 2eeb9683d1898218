"""Which device runs train on, and why."""

import os
import sys
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command

from dashboard.supervision import workers
from dashboard.supervision.workers import training_device

H100 = "NVIDIA H100 80GB HBM3, 81559"


@pytest.fixture
def gpu(tmp_path, monkeypatch) -> None:
    """A machine whose nvidia-smi lists an H100."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{H100}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def torch_of(folder: Path, *, cuda: str | None, says: str) -> str:
    """A Python whose torch was built with this CUDA and finds no device."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(
        "import types, warnings\n"
        f"version = types.SimpleNamespace(cuda={cuda!r})\n"
        "__version__ = '2.13.0'\n"
        "class cuda:\n"
        "    @staticmethod\n"
        "    def is_available():\n"
        f"        warnings.warn({says!r})\n"
        "        return False\n"
    )
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return str(python)


def test_a_machine_without_a_gpu(monkeypatch):
    monkeypatch.setattr(workers, "read_gpus", list)

    assert "CPU: nvidia-smi" in training_device()


@pytest.mark.usefixtures("gpu")
def test_a_gpu_that_torch_uses(monkeypatch) -> None:
    monkeypatch.setattr(workers, "_refusal_of_torch", str)

    out = StringIO()
    call_command("device", stdout=out)

    assert "GPU: NVIDIA H100" in out.getvalue()
    assert "79.6 GiB" in out.getvalue()


@pytest.mark.usefixtures("gpu")
def test_a_torch_that_is_built_without_cuda(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "executable", torch_of(tmp_path, cuda=None, says="x"))

    reported = training_device()

    assert "CPU: PyTorch 2.13.0" in reported
    assert "torch==2.13.0" in reported


@pytest.mark.usefixtures("gpu")
def test_a_driver_that_is_too_old(tmp_path, monkeypatch) -> None:
    python = torch_of(tmp_path, cuda="13.0", says="The NVIDIA driver is too old\nMore")
    monkeypatch.setattr(sys, "executable", python)

    reported = training_device()

    assert "CPU: PyTorch 2.13.0" in reported
    assert "driver" in reported


@pytest.mark.usefixtures("gpu")
def test_a_gpu_that_is_hidden(monkeypatch, settings) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert "CUDA_VISIBLE_DEVICES=-1" in training_device()

    settings.COHORT_WORKER_CLASS = "cpu"
    assert "COHORT_WORKER_CLASS" in training_device()
