"""Where the time of a step goes, with the engine's own passes and without them.

    python -m tests.bench.profile_step --model FOLDER --prompts 16 --group 8

For each of the two it runs a step as it is, and one in which the model is left to
transformers' passes, and adds up torch's operations by what they do. What remains of
the wall time is Python, and threads that wait.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from tests.bench import machine, ours
from tests.bench.work import Work, write_rows

# What torch's own operations are about, by the beginnings of their names.
KINDS = {
    "products of matrices": ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"),
    "attention": ("aten::_scaled_dot_product",),
    "copies": ("aten::cat", "aten::copy_", "aten::index", "aten::clone", "aten::fill_"),
}
REST = "other arithmetic"
PYTHON = "Python, waiting"
# Steps before the one that is looked at.
_WARM_UP = 3


class _EnoughError(Exception):
    """All that was wanted was seen."""


def shares(events: Any, seconds: float) -> dict[str, float]:
    """Seconds by kind of operation, and what is left of the wall time."""
    found: dict[str, float] = defaultdict(float)
    for event in events:
        if not event.key.startswith("aten::") and "Backward" not in event.key:
            continue
        kind = next(
            (k for k, names in KINDS.items() if event.key.startswith(names)), REST
        )
        found[kind] += event.self_cpu_time_total / 1e6
    found[PYTHON] = max(0.0, seconds - sum(found.values()))
    return found


@contextmanager
def _without_own_passes() -> Iterator[None]:
    with (
        mock.patch("trainer.model.policy.is_built_like_llama", return_value=False),
        mock.patch("trainer.rollout.decoder.is_built_like_llama", return_value=False),
    ):
        yield


def look(work: Work, part: str) -> tuple[float, dict[str, float]]:
    """Seconds of a part of a step, and where they go by the profiler."""
    from torch.profiler import ProfilerActivity, profile

    from trainer import grpo as step
    from trainer.rollout.builtin import TransformersEngine

    owner: Any = TransformersEngine if part == "sample" else step
    name = "sample" if part == "sample" else "run_update"
    original: Callable[..., Any] = getattr(owner, name)
    plain: list[float] = []
    seen: list[dict[str, float]] = []

    def timed(*args: Any, **options: Any) -> Any:
        begin = time.perf_counter()
        if len(plain) < 2 * _WARM_UP:
            found = original(*args, **options)
            plain.append(time.perf_counter() - begin)
            return found
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            found = original(*args, **options)
        seconds = min(plain[_WARM_UP:])
        seen.append(shares(profiler.key_averages(), seconds))
        return found

    def give(_: Any) -> None:
        if seen:
            raise _EnoughError

    with mock.patch.object(owner, name, timed):
        try:
            ours.our_steps(give, work)
        except _EnoughError:
            return min(plain[_WARM_UP:]), seen[0]
    raise AssertionError("steps go on until they are told to end")


def main() -> None:
    """Look at a step of one model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--lora-rank", type=int, default=0)
    parser.add_argument(
        "--recompute", action="store_true", help="activations, in the backward pass"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        work = Work(
            model=args.model,
            rows=write_rows(args.model, Path(name)),
            num_prompts=args.prompts,
            group_size=args.group,
            max_new_tokens=args.new,
            lora_rank=args.lora_rank,
            recomputes=args.recompute,
        )
        report(work)


def report(work: Work) -> None:
    """Print the table."""
    kinds = [*KINDS, REST, PYTHON]
    lines = [
        machine.heading(__spec__.name, packages=("torch", "transformers")),
        "| part | passes | seconds | " + " | ".join(kinds) + " |",
        "| --- | --- | --: |" + " --: |" * len(kinds),
    ]
    for part in ("sample", "update"):
        with _without_own_passes():
            before = look(work, part)
        for name, (seconds, found) in (
            ("transformers'", before),
            ("the engine's own", look(work, part)),
        ):
            cells = " | ".join(f"{found.get(kind, 0.0):.3f}" for kind in kinds)
            lines.append(f"| {part} | {name} | {seconds:.3f} | {cells} |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
