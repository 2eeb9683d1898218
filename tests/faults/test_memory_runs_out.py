"""The kernel's OOM killer ends a trainer: the run reports it and is resumed."""

import os
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL

import pytest

from dashboard.runs.models import RunState
from dashboard.runs.progress import describe_progress
from tests.faults.attempts import Once, run_attempt, supervisor_log, trainer_log
from tests.faults.histories import assert_whole, stored_series
from tests.faults.workers import children

pytestmark = pytest.mark.faults

CGROUPS = Path("/sys/fs/cgroup")
V1, V2 = CGROUPS / "memory", CGROUPS
ROOM_BYTES = 64 * 1024
NEEDED = (
    "Needs root and a control group with a memory limit beneath /sys/fs/cgroup, so "
    "that the kernel's own OOM killer strikes."
)
TAKE_ALL = """
import os, sys
with open(sys.argv[1], "w") as door:
    door.write(str(os.getpid()))
held = []
while True:
    held.append(bytearray(1 << 20))
"""


@contextmanager
def group_without_memory() -> Iterator[Path]:
    """Its cgroup.procs; a process that joins is killed at its next page."""
    is_v1 = V1.is_dir()
    folder = (V1 if is_v1 else V2) / f"cohort-fault-{secrets.token_hex(4)}"
    limit = folder / ("memory.limit_in_bytes" if is_v1 else "memory.max")
    try:
        folder.mkdir()
        if not is_v1:
            (V2 / "cgroup.subtree_control").write_text("+memory")
        limit.write_text(str(ROOM_BYTES))
    except OSError as error:
        if folder.is_dir():
            folder.rmdir()
        pytest.skip(f"{NEEDED} Here: {error}.")
    try:
        yield folder / "cgroup.procs"
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    """Its last process may still be ending."""
    deadline = time.monotonic() + 10
    while True:
        try:
            os.rmdir(folder)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def test_an_oom_killed_trainer_is_resumed_and_the_page_says_why(
    launch_tiny, data_folder, undisturbed
):
    run = launch_tiny(num_steps=40)
    with group_without_memory() as door:
        strike = Once(
            run, data_folder, step=22, act=lambda pid: door.write_text(str(pid))
        )

        lost = run_attempt(run, act=strike)

    assert strike.pid
    assert (lost.state, lost.num_losses) == (RunState.QUEUED, 1)
    assert "out of memory" in describe_progress(lost).notice
    assert "out of memory" in supervisor_log(data_folder, run, attempt=1)

    ended = run_attempt(run)

    assert ended.state == RunState.FINISHED
    assert ended.attempts.get(number=2).from_step >= 20
    assert_whole(ended, undisturbed, num_steps=40)


def test_an_oom_killed_process_costs_one_attempt(launch_tiny, data_folder):
    two = {"num_processes": 2, "num_threads": 1}
    run = launch_tiny(num_steps=8, distributed=two, checkpoint={"every_steps": 4})
    strike = Once(
        run, data_folder, step=5, act=lambda pid: os.kill(children(pid)[1], SIGKILL)
    )

    lost = run_attempt(run, act=strike)

    assert (lost.state, lost.num_losses) == (RunState.QUEUED, 1), lost.fail_reason
    assert "killed by SIGKILL" in describe_progress(lost).notice
    assert "Process 1 of 2" in trainer_log(data_folder, run, attempt=1)

    ended = run_attempt(run)

    assert ended.state == RunState.FINISHED, ended.fail_reason
    assert ended.attempts.get(number=2).from_step >= 4
    assert list(stored_series(ended)) == list(range(1, 9))


def test_a_run_that_never_fits_fails_after_three_resumes(launch_tiny):
    run = launch_tiny()
    with group_without_memory() as door:

        def command(*_: object, **__: object) -> list[str]:
            return [sys.executable, "-c", TAKE_ALL, str(door)]

        states = [run_attempt(run, command=command).state for _ in range(4)]

    run.refresh_from_db()
    assert states == [RunState.QUEUED] * 3 + [RunState.FAILED]
    assert "lost 4 times" in run.fail_reason
    assert "out of memory" in run.fail_reason


def test_a_trainer_killed_by_a_person_is_not_called_out_of_memory(launch_tiny):
    run = launch_tiny()
    kill_itself = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"

    lost = run_attempt(
        run, command=lambda *_, **__: [sys.executable, "-c", kill_itself]
    )

    assert lost.state == RunState.QUEUED
    assert "killed by SIGKILL" in describe_progress(lost).notice
