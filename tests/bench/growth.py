"""Does the time of a completion token stay the same as a step grows?"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Sequence

from tests.bench.apart import Apart, take_turns
from tests.bench.machine import mebibytes, spread
from tests.bench.ours import our_steps
from tests.bench.work import Step, Work

# 128 to 2,048 completions a step.
SIZES = ((16, 8), (32, 16), (64, 16), (128, 16))
HEADER = (
    "prompts × G, new tokens, β",
    "completions",
    "µs a completion token",
    "generate",
    "update",
    "ratio to the first",
    "peak MiB",
)


def measure_growth(
    works: Sequence[Work], *, num_steps: int, warmup: int = 1
) -> list[list[Step]]:
    """Steps of each work, all of them taking turns."""
    with contextlib.ExitStack() as stack:
        sides = [stack.enter_context(Apart(our_steps, work)) for work in works]
        for side in sides:
            side.wait_until_ready()
        return take_turns(sides, name="growth", num_steps=num_steps, warmup=warmup)


def rows(works: Sequence[Work], taken: Sequence[Sequence[Step]]) -> list[list[str]]:
    """Medians with their ranges; ratios are of steps taken in the same turn."""
    first = [_token_seconds(step) for step in taken[0]]
    found = []
    for work, steps in zip(works, taken, strict=True):
        seconds = [_token_seconds(step) for step in steps]
        ratios = [own / base for own, base in zip(seconds, first, strict=True)]
        found.append(
            [
                work.name,
                f"{work.completions:,}",
                spread([1e6 * s for s in seconds], ".1f"),
                *(
                    f"{_median_part(steps, part):.1f}"
                    for part in ("generate", "update")
                ),
                spread(ratios, ".2f"),
                mebibytes(max(step.peak_bytes for step in steps)),
            ]
        )
    return found


def _token_seconds(step: Step) -> float:
    return step.seconds / step.lengths.num_tokens


def _median_part(steps: Sequence[Step], part: str) -> float:
    """Microseconds a completion token."""
    return 1e6 * statistics.median(
        step.phases[part] / step.lengths.num_tokens for step in steps
    )
