"""The environment of tests and of the processes that they start."""

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from threading import Thread
from typing import Any

ROOT = Path(__file__).parents[1]


def hide_gpus() -> None:
    """Unless COHORT_TEST_DEVICE=cuda: most tests set no device and compare bits.

    Call it before torch detects GPUs. Child processes inherit it.
    """
    if os.environ.get("COHORT_TEST_DEVICE", "cpu") == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def python_path() -> str:
    """PYTHONPATH with this repository first."""
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


def child_environment() -> dict[str, str]:
    """Environment of a Python process that imports this repository."""
    return os.environ | {"PYTHONPATH": python_path()}


def run_here(*command: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command in this repository, and return its exit status and output."""
    defaults = {"cwd": ROOT, "capture_output": True, "text": True, "check": False}
    return subprocess.run([str(part) for part in command], **{**defaults, **options})


def run_threads(threads: Iterable[Thread]) -> None:
    """Start all of them, and wait until each has ended."""
    threads = list(threads)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
