"""What this process, as a training worker, takes and sees."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from django.conf import settings

from dashboard.accounts.templatetags.numbers import num_bytes
from dashboard.project.environment import visible_gpus


def takes_here() -> str:
    """COHORT_WORKER_CLASS, as it is kept beside the hardware."""
    takes: str = settings.COHORT_WORKER_CLASS
    return takes


def keep_visible(gpus: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that CUDA shows to this process; nvidia-smi lists the whole machine's.

    As in CUDA the list ends at the first that is not there, such as -1. One named by
    its UUID is counted, and taken for the machine's first.
    """
    shown = visible_gpus()
    if takes_here() == "cpu":
        return []
    if shown is None:
        return list(gpus)
    names = [name.strip() for name in shown.split(",")]
    if names[0].startswith(("GPU-", "MIG-")):
        return list(gpus)[: len(names)]
    there = {str(number): gpu for number, gpu in enumerate(gpus)}
    return [there[name] for name in takewhile(there.__contains__, names)]


def trainer_variables() -> dict[str, str]:
    """What a trainer needs to keep to its worker's class."""
    return {"CUDA_VISIBLE_DEVICES": ""} if takes_here() == "cpu" else {}


def training_device() -> str:
    """Which device runs train on here, and why: a sentence."""
    machine = read_gpus()
    if takes_here() == "cpu":
        return _on_the_cpu("COHORT_WORKER_CLASS is cpu")
    if not machine:
        return _on_the_cpu("nvidia-smi finds no GPU")
    gpus = keep_visible(machine)
    if not gpus:
        return _on_the_cpu(f"CUDA_VISIBLE_DEVICES={visible_gpus()} shows no GPU")
    if refusal := _refusal_of_torch():
        return _on_the_cpu(refusal)
    names = [f"{gpu['name']} ({num_bytes(gpu['memory_bytes'])})" for gpu in gpus]
    return f"Runs train on the GPU: {', '.join(names)}."


def _on_the_cpu(reason: str) -> str:
    return f"Runs train on the CPU: {reason}."


ASK_SECONDS = 60
_ASK_TORCH = """
import json, warnings, torch
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    found = torch.cuda.is_available()
said = [str(each.message).strip() for each in caught]
print(json.dumps([torch.__version__, torch.version.cuda, found, said]))
"""


def _refusal_of_torch() -> str:
    """Why PyTorch cannot use this machine's GPU; empty where it can.

    It is asked in another process: what serves pages never loads it.
    """
    command = [sys.executable, "-c", _ASK_TORCH]
    try:
        asked = subprocess.run(
            command, capture_output=True, text=True, timeout=ASK_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return f"PyTorch gave no answer within {ASK_SECONDS} s"
    if asked.returncode or not asked.stdout.strip():
        return "PyTorch cannot be imported"
    version, cuda, found, said = json.loads(asked.stdout.splitlines()[-1])
    if found:
        return ""
    if cuda is None:
        wanted = f"torch=={version.split('+')[0]}"
        return (
            f"PyTorch {version} is built without CUDA. Install the other build: "
            f".venv/bin/pip install --force-reinstall {wanted}"
        )
    reason = said[0].splitlines()[0].rstrip(".") if said else "it finds no device"
    return f"PyTorch {version} cannot use the GPU: {reason}"


def read_gpus() -> list[dict[str, Any]]:
    """The whole machine's, as nvidia-smi lists them."""
    query = [
        "nvidia-smi",
        "--query-gpu=name,memory.total",
        "--format=csv,noheader,nounits",
    ]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []  # no GPU here that nvidia-smi knows
    if answer.returncode:
        return []
    rows = [line.rsplit(",", 1) for line in answer.stdout.strip().split("\n") if line]
    return [
        {"name": name.strip(), "memory_bytes": int(mib) * 2**20}
        for name, mib in rows
        if mib.strip().isdigit()
    ]
