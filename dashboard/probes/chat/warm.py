"""The process that holds two models, kept for some minutes after their last answer."""

from __future__ import annotations

import os
import time
from pathlib import Path

from dashboard.accounts.templatetags.numbers import num_bytes
from dashboard.environment import hub_variables
from trainer.rewards.child import Child

KEPT_SECONDS = 180.0
# Weights in float32 at twice the size of what is saved in 16 bits, and room to sample.
BYTES_PER_SAVED = 2.2


class CannotAnswer(ValueError):
    """The text is for the user."""


class Models:
    """A child with a checkpoint's model and its base."""

    def __init__(
        self, paths: tuple[str, str], *, revision: str | None, device: str
    ) -> None:
        """
        Raises:
            CannotAnswer: they would not leave enough to others.
        """
        self.paths, self.revision = paths, revision
        self.device = device
        if device == "cpu":
            check_memory(paths)
        self.is_loaded = False
        self.used_at = time.monotonic()
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
        threads = str(max(1, len(os.sched_getaffinity(0)) // 2))
        self.child = Child(
            *("trainer", "chat", "--device", device),
            *(("--revision", revision) if revision else ()),
            *(part for path in paths for part in ("--model", path)),
            environment=hub_variables() | hidden | {"OMP_NUM_THREADS": threads},
        )
        # What is trained comes first.
        os.setpriority(os.PRIO_PROCESS, self.child.pid, 10)

    @property
    def is_stale(self) -> bool:
        idle = time.monotonic() - self.used_at > KEPT_SECONDS
        return idle or not self.child.is_alive()

    def end(self) -> None:
        self.child.end()


def check_memory(paths: tuple[str, str]) -> None:
    needed = int(sum(map(_saved_bytes, paths)) * BYTES_PER_SAVED)
    free = _available_bytes()
    if needed > free:
        raise CannotAnswer(
            f"Both models need about {num_bytes(needed)} of memory, and the "
            f"worker has {num_bytes(free)} left. Wait until it trains nothing "
            "else, or download the model."
        )


def _saved_bytes(path: str) -> int:
    folder = Path(path)
    if not path.startswith("/") or not folder.is_dir():
        return 0  # a hub's: nobody knows before it is fetched
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
