"""`python -m trainer run`: here, in several processes, or on a Ray cluster.

The launcher of several processes does not import torch, to save memory.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Self

from trainer.config import RunConfig, read_config
from trainer.console import log_descriptors, open_json_log, print_line
from trainer.host import load_module, num_cores
from trainer.stopping import PIPE, Stopped, StopSwitch, watch_parent

STDERR = 2  # whatever sys.stderr is by now
EXIT_FINISHED, EXIT_FAILED, EXIT_BAD_CONFIG, EXIT_STOPPED, EXIT_PAUSED = range(5)
ORDERLY = (EXIT_FINISHED, EXIT_STOPPED, EXIT_PAUSED)
# What the others have, once one has ended, to say their last word.
GRACE_SECONDS = 20.0
_POLL_SECONDS = 0.05


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, help="run configuration, TOML or JSON")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for events.jsonl"
    )
    parser.add_argument(
        "--attempt",
        type=int,
        help="number of this attempt of the run (default: the next one)",
    )
    parser.add_argument(
        "--checkpoints", type=Path, help="folder of checkpoints (default: in --out)"
    )
    parser.add_argument(
        "--attempts",
        "--lives",  # from a worker of an older version
        type=Path,
        help="folder with the --out of every attempt, each named after its --attempt. "
        "Attempts share the replies of judges, and an attempt that was replaced "
        "deletes no checkpoints (default: --out is for all attempts)",
    )
    resume = parser.add_mutually_exclusive_group()
    resume.add_argument(
        "--resume", action="store_true", help="resume from the newest checkpoint"
    )
    resume.add_argument(
        "--resume-from",
        type=Path,
        metavar="CHECKPOINT",
        help=("resume from this checkpoint"),
    )
    parser.add_argument(
        "--passed-over",
        action="append",
        default=[],
        metavar="REASON",
        help="why a newer checkpoint was skipped, for the log",
    )


def main(args: argparse.Namespace) -> int:
    """Run to the end, a stop, a pause or a failure; the exit code says which."""
    # With this signal a supervisor gets the stacks of a run that seems to hang.
    faulthandler.register(signal.SIGUSR1, file=STDERR, all_threads=True)
    try:
        open_json_log()
        config = read_config(args.config)
        if is_alone(config, os.environ):
            return _run(args, config)
        watch_parent()
        if config.distributed.where == "ray":
            driver = load_module("trainer.parallel.ray_driver")
            return int(driver.run_on_cluster(args, config))
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_BAD_CONFIG
    with Family(command_of(args), count=config.distributed.num_processes) as family:
        end = family.wait()
    return end if end >= 0 else end_by(signal.Signals(-end))


def _run(args: argparse.Namespace, config: RunConfig) -> int:
    stop = StopSwitch(exit_code=EXIT_STOPPED)
    try:
        with stop.at_once():
            run = load_module("trainer.run.run")
        return int(run.main(args, config, stop))
    except Stopped:
        print_line("stopped while loading")
        return EXIT_STOPPED


def is_alone(config: RunConfig, environment: Mapping[str, str]) -> bool:
    """Return whether this process itself trains; torchrun has started the others by
    then.
    """
    distributed = config.distributed
    is_one = distributed.where == "machine" and distributed.num_processes == 1
    return is_one or "LOCAL_RANK" in environment


def command_of(args: argparse.Namespace) -> list[str]:
    command = [sys.executable, "-m", "trainer", "run", str(args.config)]
    for name in ("out", "attempt", "checkpoints", "attempts", "resume_from"):
        value = getattr(args, name)
        if value is not None:
            command += [f"--{name.replace('_', '-')}", str(value)]
    for reason in args.passed_over:
        command += ["--passed-over", reason]
    return [*command, "--resume"] if args.resume else command


class Family:
    """Processes of one run on this machine, which end together.

    They are in our process group, so killing the group leaves none behind, and each
    holds the read end of a pipe whose write end only we have.
    """

    def __init__(self, command: list[str], *, count: int) -> None:
        self._killed: set[int] = set()  # ranks that we ended ourselves
        self._is_stop_requested = False  # to stop
        read_end, self._write_end = os.pipe()
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
        threads = max(1, num_cores() // count)
        environment = {
            "OMP_NUM_THREADS": str(threads),
            **os.environ,
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            PIPE: str(read_end),
        }
        self._members = [
            subprocess.Popen(
                command,
                env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                pass_fds=(read_end, *log_descriptors()),
            )
            for rank in range(count)
        ]
        os.close(read_end)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._request_stop)
        signal.signal(signal.SIGUSR1, self._dump_stacks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._kill()
        for member in self._members:
            member.wait()
        os.close(self._write_end)

    def _request_stop(self, number: int, frame: FrameType | None) -> None:
        self._is_stop_requested = True
        # A terminal's Ctrl-C has reached them too; that and this are one request.
        for member in self._members:
            member.terminate()
        signal.signal(number, signal.SIG_DFL)  # a second one ends us, and them with us

    def _dump_stacks(self, number: int, frame: FrameType | None) -> None:
        for member in self._members:
            member.send_signal(number)

    def wait(self) -> int:
        """Return the exit code that all have in common; without one, the run has
        failed.

        Negative: the signal that ended one before any had failed.
        """
        first_end: float | None = None
        fault: int | None = None
        # each is asked, so that one that has ended is reaped and known to be gone
        while None in (codes := [member.poll() for member in self._members]):
            fault = fault or self._fault_in(codes)
            if first_end is None and any(code is not None for code in codes):
                first_end = time.monotonic()
            if first_end is not None and time.monotonic() > first_end + GRACE_SECONDS:
                self._kill()
            time.sleep(_POLL_SECONDS)
        ends = [member.returncode for member in self._members]
        # one that had only begun knew no other end than the signal's
        stopped = {EXIT_STOPPED, -signal.SIGTERM, -signal.SIGINT}
        if self._is_stop_requested and {*ends} <= stopped:
            return EXIT_STOPPED
        self._tell(ends)
        fault = fault or self._fault_in(ends)
        if fault is not None and fault < 0:
            return fault
        return ends[0] if len(set(ends)) == 1 else EXIT_FAILED

    def _fault_in(self, codes: Sequence[int | None]) -> int | None:
        """Choose from those that ended at once: others fail when one is killed."""
        faults = [
            code
            for rank, code in enumerate(codes)
            if code is not None and code not in ORDERLY and rank not in self._killed
        ]
        return min(faults, default=None)

    def _kill(self) -> None:
        for rank, member in enumerate(self._members):
            if member.poll() is None:
                self._killed.add(rank)
                member.kill()

    def _tell(self, codes: Sequence[int]) -> None:
        """Name each process that could not report what ended it."""
        for rank, code in enumerate(codes):
            if code >= 0:
                continue
            if rank in self._killed:
                why = "it was killed because another process had ended"
            else:
                why = why_killed(signal.Signals(-code))
            sys.stderr.write(f"Process {rank} of {len(codes)} ended: {why}.\n")


def end_by(number: signal.Signals) -> int:
    """End as one of the run's processes did, so a supervisor sees the same exit."""
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return EXIT_FAILED


def why_killed(number: signal.Signals) -> str:
    if number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        who = "by a person, or by the kernel when memory ran out"
        return f"it was killed with {number.name} ({who})"
    # such as NCCL's own watchdog, when its patience is over
    return f"it crashed ({number.name}); its last output is above"
