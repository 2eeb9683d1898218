"""What this process, as a training worker, takes and sees."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from django.conf import settings

from dashboard.environment import visible_gpus


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
