"""What one call may take."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

MEBIBYTE = 1024**2
MAX_WALL_SECONDS = 60.0
MAX_MEMORY_MB = 1_024
OUTPUT_BYTES = 64 * 1024
# Of one call's replies together: values that are compared, not texts that are read.
REPLY_BYTES = MEBIBYTE


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Seconds by the clock, of a processor, and MiB of address space.

    Besides: 16 threads, 64 descriptors, files of 8 MiB, no other process.
    """

    wall_seconds: float = 5.0
    memory_mb: int = 512
    output_bytes: int = OUTPUT_BYTES  # kept of each of its two outputs

    def __post_init__(self) -> None:
        assert 0 < self.wall_seconds <= MAX_WALL_SECONDS
        assert 64 <= self.memory_mb <= MAX_MEMORY_MB

    def as_header(self) -> dict[str, Any]:
        return {
            "wall_seconds": self.wall_seconds,
            "max_output_bytes": self.output_bytes,
            "max_reply_bytes": REPLY_BYTES,
            "limits": {
                "memory_bytes": self.memory_mb * MEBIBYTE,
                "cpu_seconds": math.ceil(self.wall_seconds),
            },
        }
