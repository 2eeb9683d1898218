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
    if not (num_tokens > 0 and seconds > 0):
        return
    speed = Speed(num_tokens / seconds, num_tokens / num_steps)
    with suppress(OSError, RuntimeError):  # there may be no home, too
        path = _path()
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            line = {"work": work, "engine": engine} | speed._asdict()
            file.write(json.dumps(line) + "\n")


def read_speeds(work: list[Any]) -> dict[str, Speed]:
    """Return the engines' speeds at such work; those of other work tell nothing."""
    runs: dict[str, list[Speed]] = {}
    lines = ""
    with suppress(OSError, RuntimeError):
        lines = _path().read_text(encoding="utf-8", errors="replace")
    for text in lines.splitlines():
        with suppress(ValueError, KeyError, TypeError):  # a line that is damaged
            line = json.loads(text)
            speed = Speed(float(line["rate"]), float(line["step_tokens"]))
            if line["work"] == work and 0 < speed.rate < math.inf:
                runs.setdefault(str(line["engine"]), []).append(speed)
    return {
        engine: Speed(*map(statistics.median, zip(*speeds[-_LAST:], strict=True)))
        for engine, speeds in runs.items()
    }


def _path() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "cohort" / "sampling.jsonl"
