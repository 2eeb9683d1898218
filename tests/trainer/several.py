"""A run of several real processes, over gloo on this machine's loopback."""

import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.__main__ import main

# Importing torch takes longer than a whole run of the tiny model, so one process does
# it and each that is needed is forked from that.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["trainer.run.run", "tests.trainer.several"])


def run_several(
    count: int,
    *arguments: object,
    output: Path,
    before: Callable[[int], None] | None = None,
    per_node: int | None = None,
    patience_seconds: float = 240,
) -> tuple[list[int | None], str]:
    """Exit codes of a command's processes, as torchrun would start them, and output.

    `before` is called with the rank in each of them. `per_node` of them take this
    machine for one of several nodes; None: all.
    """
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    members = [
        _CONTEXT.Process(
            target=_member,
            args=(
                *(rank, count, per_node or count, port),
                *([str(each) for each in arguments], output, before),
            ),
        )
        for rank in range(count)
    ]
    for member in members:
        member.start()
    deadline = time.monotonic() + patience_seconds
    for member in members:
        member.join(max(0.0, deadline - time.monotonic()))
        member.kill()
        member.join()
    return [member.exitcode for member in members], output.read_text()


def run_two(config: Path, **options: Any) -> tuple[list[int | None], str]:
    """Train in two processes, into the folder `two` beside the configuration."""
    arguments = ("run", config, "--out", config.parent / "two")
    return run_several(2, *arguments, output=config.parent / "log", **options)


def _member(
    rank: int,
    count: int,
    per_node: int,
    port: int,
    arguments: list[str],
    output: Path,
    before: Callable[[int], None] | None,
) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % per_node),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(per_node),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    if before is not None:
        before(rank)
    sys.exit(main(arguments))
