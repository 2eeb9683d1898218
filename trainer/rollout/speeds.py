"""Tokens a second that finished runs sampled on this machine, by engine.

A run on a GPU adds a line to `~/.cache/cohort/sampling.jsonl` when it finishes, so that
`rollout.engine = "auto"` need not go by a rule where both engines were used before.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from trainer.config import RunConfig
from trainer.model.policy import Policy

_LAST = 5  # runs that count of each engine: older ones had an older Cohort


class Speed(NamedTuple):
    """Medians of some runs."""

    rate: float  # sampled tokens a second
    step_tokens: float  # that a step sampled


def work_of(config: RunConfig, policy: Policy) -> list[Any]:
    """Describe the sampling of a run: the same machine, and sizes to a factor of 2."""
    sizes = (
        policy.num_parameters,
        config.longest_completion,
        config.completions_per_step,
    )
    return [
        torch.cuda.get_device_name(policy.device),
        str(policy.model.dtype),
        torch.__version__,
        *(round(math.log2(size)) for size in sizes),
    ]


def note_speed(
    work: list[Any], engine: str, *, num_tokens: float, seconds: float, num_steps: int
) -> None:
    """Add what a run measured; a folder that cannot be written is left alone."""
    speed = Speed(num_tokens / seconds, num_tokens / num_steps)
    path = _path()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            line = {"work": work, "engine": engine} | speed._asdict()
            file.write(json.dumps(line) + "\n")


def read_speeds(work: list[Any]) -> dict[str, Speed]:
    """Return the engines' speeds at such work; those of other work tell nothing."""
    runs: dict[str, list[Speed]] = {}
    path = _path()
    lines = path.read_text(encoding="utf-8") if path.is_file() else ""
    for text in lines.splitlines():
        with suppress(ValueError, KeyError):  # of a line that was not written out
            line = json.loads(text)
            if line["work"] == work:
                speed = Speed(line["rate"], line["step_tokens"])
                runs.setdefault(line["engine"], []).append(speed)
    return {
        engine: Speed(*map(statistics.median, zip(*speeds[-_LAST:], strict=True)))
        for engine, speeds in runs.items()
    }


def _path() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "cohort" / "sampling.jsonl"
