"""`python -m trainer probe`: what a run would have to learn from, before it is started.

It appends lines of JSON to a file, each with a `type`:

    {"type": "phase", "name": "loading" | "sampling" | "updating"}
    {"type": "progress", "done": 12, "total": 32}      prompts sampled
    {"type": "group", "row": 3, "completions": [{"text", "num_tokens", "end_reason",
        "reward", "rules", "errors"}, …]}               row: line of data.rows, from 0
    {"type": "measured", "metrics": {…}}                see `Probing.metrics`
    {"type": "failed", "error": "…"}
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
import traceback
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any, Self

from trainer.commands.probing import Probing, config_of_probe, load_probing
from trainer.config import read_config
from trainer.errors import explain
from trainer.parallel.launch import (
    EXIT_BAD_CONFIG,
    EXIT_FAILED,
    EXIT_FINISHED,
    EXIT_STOPPED,
)
from trainer.parent import watch_parent
from trainer.scoring import Scorer


class Stopped(BaseException):
    """SIGTERM or SIGINT; nothing on the way may take it for an error of its own."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, help="run configuration, TOML or JSON")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="where lines are added"
    )
    parser.add_argument(
        "--prompts",
        type=int,
        metavar="N",
        help="the first N rows of data.rows (default: all)",
    )
    parser.add_argument(
        "--samples",
        type=int,
        metavar="K",
        help="completions of each prompt (default: rollout.group_size)",
    )
    parser.add_argument(
        "--sample-only",
        action="store_true",
        help="leave out the update that tells how long a step takes",
    )


def main(args: argparse.Namespace) -> int:
    """Sample, score and measure; the exit code is one of `run`'s."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    try:
        opened = _Lines(args.out)
    except OSError as error:
        sys.stderr.write(f"--out {args.out} cannot be written: {error.strerror}.\n")
        return EXIT_BAD_CONFIG
    with opened as lines:
        try:
            return _probe(args, lines)
        except Stopped:
            return EXIT_STOPPED
        except ValueError as error:
            sys.stderr.write(f"{error}\n")
            lines.add("failed", error=str(error))
            return EXIT_BAD_CONFIG
        except Exception as error:  # noqa: BLE001 - whatever it is, the file must say it
            traceback.print_exc()
            lines.add("failed", error=explain(error))
            return EXIT_FAILED


def _probe(args: argparse.Namespace, lines: _Lines) -> int:
    watch_parent()
    config = read_config(args.config)
    samples = args.samples or config.rollout.group_size
    begin = time.perf_counter()
    lines.add("phase", name="loading")
    with closing(Scorer(config.reward.num_workers)) as scorer:
        probing = load_probing(
            config_of_probe(config),
            folder=args.config.parent,
            num_prompts=args.prompts,
            num_samples=samples,
            scorer=scorer,
        )
        with closing(probing):
            probing.load_seconds = time.perf_counter() - begin
            try:
                _sample(probing, lines)
                if not args.sample_only:
                    lines.add("phase", name="updating")
                    probing.time_update()
            except Stopped:
                # What was sampled until now is worth as much as it was.
                lines.add("measured", metrics=probing.metrics())
                raise
            lines.add("measured", metrics=probing.metrics())
    return EXIT_FINISHED


def _sample(probing: Probing, lines: _Lines) -> None:
    lines.add("phase", name="sampling")
    total, done = len(probing.prompts), 0

    def tell(place: int) -> None:
        nonlocal done
        done += 1
        lines.add("progress", done=done, total=total)

    for groups in probing.sample(on_prompt=tell):
        for group in groups:
            lines.add(
                "group",
                row=group.prompt.index,
                completions=[
                    {
                        "text": completion.text,
                        "num_tokens": completion.num_tokens,
                        "end_reason": completion.end_reason,
                        "reward": score.total,
                        "rules": score.rules,
                        "errors": score.errors,
                    }
                    for completion, score in zip(
                        group.completions, group.scores, strict=True
                    )
                ],
            )


class _Lines:
    """A file that lines are added to, each at once: somebody is following it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._file.close()

    def add(self, kind: str, **fields: Any) -> None:
        self._file.write(json.dumps({"type": kind, **fields}, allow_nan=False) + "\n")
        self._file.flush()


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # a second one ends the process
    raise Stopped
