"""`python -m trainer memory`: memory estimate of a run."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from trainer.config import RunConfig, read_config
from trainer.sizes.memory import MemoryEstimate, estimate

EXIT_BAD_CONFIG = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, help="run configuration, TOML or JSON")
    parser.add_argument(
        "--gpu-gib",
        type=float,
        help="free GPU memory in GiB, for micro-batches (default: smallest sizes)",
    )


def main(args: argparse.Namespace) -> int:
    try:
        config = read_config(args.config)
        # what "auto" means where the run would be started
        estimated = estimate(
            config,
            on_gpu=args.gpu_gib is not None or shutil.which("nvidia-smi") is not None,
            gpu_bytes=None if args.gpu_gib is None else round(args.gpu_gib * 2**30),
            largest_set=_largest_set(config, args.config.parent),
        )
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_BAD_CONFIG
    sys.stdout.write(table(config, estimated))
    return 0


def _largest_set(config: RunConfig, folder: Path) -> int:
    """Return rows of the largest file that the run is evaluated on; ValueError where
    none.
    """
    names = {
        n
        for phase in config.phase_configs
        for n in phase.config.evaluation.sets.values()
    }
    largest = 0
    try:
        for name in names:
            with (folder / name).open("rb") as file:
                largest = max(largest, sum(1 for line in file if line.strip()))
    except OSError as error:
        raise ValueError(
            f"evaluation.sets names {error.filename}, which cannot be read: "
            f"{error.strerror}."
        ) from None
    return largest


def table(config: RunConfig, estimated: MemoryEstimate) -> str:
    """Return the parts, a line each, and the total."""
    lines = [f"{config.model.path}, with every text at its full length:"]
    for title, value, parts in (
        (
            "always",
            estimated.always,
            (
                "weights",
                "master_weights",
                "optimizer",
                "reference",
                "engine",
                "snapshot",
                "reward_models",
            ),
        ),
        (
            "while sampling",
            estimated.while_sampling,
            ("kv_cache", "sampling", "sleeping_engine"),
        ),
        ("while measuring KL", estimated.measuring, ()),
        (
            "while updating",
            estimated.while_updating,
            ("gradients", "activations", "logits"),
        ),
    ):
        lines.append(_line(title, value))
        lines.extend(
            _line(f"  {part.replace('_', ' ')}", getattr(estimated, part))
            for part in parts
        )
    lines += [
        _line("at the peak", estimated.total),
        _line("parked in main memory", estimated.parked),
        _line("a PPO critic adds", estimated.ppo_critic),
    ]
    if estimated.sizes is not None:
        kind = "with" if estimated.sizes.checkpointing else "without"
        least = "at least " if estimated.is_least else ""
        lines.append(
            f"  micro-batches of {least}{estimated.sizes.tokens:,} tokens {kind} "
            "gradient checkpointing"
        )
    if estimated.reward_models_elsewhere:
        lines.append(_line("rewards, other device", estimated.reward_models_elsewhere))
    lines += [
        f"  not counted, because it is not on this machine: the reward model {path}"
        for path in estimated.unknown_reward_models
    ]
    return "\n".join(lines) + "\n"


def _line(title: str, num_bytes: int) -> str:
    return f"  {title:<24}{_shown(num_bytes):>12}"


def _shown(num_bytes: int) -> str:
    """Return a size in the unit that leaves it at least 1.

    >>> _shown(3 * 2**20 // 2)
    '1.5 MiB'
    """
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if num_bytes >= 2**power:
            return f"{num_bytes / 2**power:,.1f} {unit}"
    return f"{num_bytes} B"
