"""Attempts of runs, each in a process forked from one with everything loaded.

`python -m tests.faults.struck_attempts HOST` reads one run id per line, claims the run
and supervises it over HOST, a folder with PostgreSQL's socket, and prints the exit code
of its process; below 0: a signal.
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import django

if TYPE_CHECKING:
    from dashboard.runs.queries import RunDirectory
    from tests.dashboard.supervision.logs import LogBuilder

NUM_STEPS, SAVED_STEP = 4, 2
# A trainer with prepared output: it saves in between, as the real one does.
SCRIPT = 'cat "$1" >> "$5"; test -e "$3" || cp -r "$2" "$3"; cat "$4" >> "$5"'


def command(
    directory: RunDirectory, *, attempt: int, resume_from: Path | None
) -> list[str]:
    from tests.dashboard.supervision.checkpoints import save
    from tests.dashboard.supervision.logs import LogBuilder

    files = directory.attempt(attempt)
    files.path.mkdir(parents=True, exist_ok=True)
    directory.checkpoints.mkdir(exist_ok=True)
    log = LogBuilder(attempt=attempt)
    if resume_from is None:
        _begin(log)
        prepared = save(
            type(directory)(files.path / "ready"), SAVED_STEP, attempt=attempt
        )
    else:
        _resume(log, resume_from)
        prepared = resume_from  # which exists already
    num_before = len(log.events)
    if resume_from is None:
        log.saved(SAVED_STEP)
    for step in range(SAVED_STEP + 1, NUM_STEPS + 1):
        log.stepped(step)
    log.finished(NUM_STEPS)
    before, after = files.path / "before.jsonl", files.path / "after.jsonl"
    before.write_bytes(b"".join(log.lines[:num_before]))
    after.write_bytes(b"".join(log.lines[num_before:]))
    target = directory.checkpoints / prepared.name
    words = [before, prepared, target, after, files.events]
    return ["sh", "-c", SCRIPT, "sh", *map(str, words)]


def _begin(log: LogBuilder) -> None:
    log.started(num_steps=NUM_STEPS)
    for step in range(1, SAVED_STEP + 1):
        log.stepped(step)


def _resume(log: LogBuilder, checkpoint: Path) -> None:
    from trainer.events import RunResumed

    log.add(
        RunResumed,
        step=SAVED_STEP,
        checkpoint=checkpoint.name,
        num_steps=NUM_STEPS,
        num_parameters=1_000,
        num_train_rows=8,
        num_eval_rows=0,
        device="cpu",
        versions={},
    )


def run_attempt(run_id: int) -> None:
    from dashboard.jobs import shutdown
    from dashboard.supervision.lease import claim_run
    from dashboard.supervision.supervisor import Timing, supervise

    claim = claim_run(run_id, "struck")
    assert claim is not None, f"run {run_id} cannot be claimed"
    supervise(
        claim,
        is_shutting_down=shutdown.is_announced,
        command=command,
        timing=Timing(poll_seconds=0.005, check_seconds=0.01),
    )


def shorten_waits() -> None:
    """And no sampler: its statements would come at random positions."""
    from channels.layers import get_channel_layer
    from django.urls import get_resolver

    from dashboard.supervision import database_retry, supervisor

    assert get_resolver().url_patterns  # loaded once; each child would need a second
    assert get_channel_layer()
    database_retry.FIRST_WAIT_SECONDS = 0.01
    supervisor.SystemSampler = lambda *_, **__: nullcontext()  # type: ignore[assignment,misc]  # no samples


def main(host: str) -> None:
    django.setup()
    from billiard.common import reset_signals
    from django.db import connection

    from dashboard.jobs import shutdown

    shorten_waits()
    connection.settings_dict["HOST"] = host
    connection.settings_dict["PORT"] = ""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            reset_signals()  # as in a process of a Celery worker's pool
            status = 1
            shutdown.begin_task()
            try:
                run_attempt(int(line))
                shutdown.end_task()
                status = 0
            except BaseException:  # noqa: BLE001 - SystemExit too, which SIGTERM raises
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        _, wait_status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(wait_status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
