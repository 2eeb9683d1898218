"""kill -9 of everything that `manage.py up` started, at once; then `up` again."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dashboard.local.data_folder import embedded_addresses
from tests.faults.tiny import ROOT, Groups, Series, untimed
from tests.faults.workers import wait_for
from tests.load.stack import Stack, command_of, descendants, parents_of_all

pytestmark = pytest.mark.faults
NUM_STEPS = 60


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: a unix socket's path holds 107 characters."""
    folder = Path(tempfile.mkdtemp(prefix="cohort-cut-", dir="/tmp"))
    (folder / "data").mkdir()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def stacks(folder) -> Iterator[list[Stack]]:
    """Stacks started one after the other on one folder."""
    stacks: list[Stack] = []
    yield stacks
    for stack in stacks:
        stack.stop()


def ask(folder: Path, sql: str, *values: object) -> list[tuple[Any, ...]]:
    at = embedded_addresses(folder / "data").postgres_folder
    with psycopg.connect(f"postgresql://cohort@/cohort?host={at}") as connection:
        return connection.execute(sql, values).fetchall()


def launch(stack: Stack, model: Path, *, count: int) -> list[int]:
    output = _ask_python(stack, "launch_run.py", str(model), str(NUM_STEPS), str(count))
    return [int(line) for line in output.split()]


def _ask_python(stack: Stack, script: str, *arguments: str) -> str:
    """Output of a script with the stack's database."""
    command = [sys.executable, f"tests/faults/{script}", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=stack.env, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def cut_power(stack: Stack) -> list[str]:
    """Kills everything; returns the command lines."""
    pids = stop_all(stack.pid)
    commands = [command_of(pid) for pid in pids]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    # After a power cut there are no zombies either: PostgreSQL would take one's process
    # id in its lock file for a running server.
    others = [pid for pid in pids if pid != stack.pid]
    wait_for(lambda: not any(map(exists, others)), what="the end of all", seconds=30)
    return commands


def stop_all(parent: int) -> list[int]:
    """Suspend all, so that none notices that another has ended."""
    stopped: list[int] = []
    while new := set(descendants(parent, parents_of_all())) - set(stopped):
        for pid in new:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        stopped += new
    return [pid for pid in stopped if exists(pid)]


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_power_cut_loses_only_the_steps_after_the_last_checkpoint(
    folder, stacks, tiny_model, undisturbed
):
    stacks.append(Stack(folder))
    stacks[0].wait_until_it_is_up()
    run_id, next_id = launch(stacks[0], tiny_model, count=2)
    wait_for(lambda: _run(folder, run_id)[1] >= 30, what="step 30")

    killed = cut_power(stacks[0])
    stacks.append(Stack(folder))
    stacks[1].wait_until_it_is_up()
    for each in (run_id, next_id):
        wait_for(lambda each=each: _run(folder, each)[0] == "finished", what="its end")

    parts = ["manage.py up", "uvicorn", "celery", "beat", "postgres", "valkey-server"]
    parts.append("-m trainer run")
    assert [part for part in parts if not any(part in one for one in killed)] == []
    assert _run(folder, run_id) == ("finished", NUM_STEPS, 2)
    assert _resumed_from(folder, run_id) >= 20
    # It was queued, and still is after the restart.
    assert _run(folder, next_id) == ("finished", NUM_STEPS, 1)
    steps = range(1, NUM_STEPS + 1)
    for each in (run_id, next_id):
        assert _stored(folder, each) == {s: undisturbed.series[s] for s in steps}
        assert _stored_groups(stacks[1], each) == {
            place: group
            for place, group in undisturbed.groups.items()
            if place[0] in steps
        }


def _run(folder: Path, run_id: int) -> tuple[str, int, int]:
    (row,) = ask(
        folder,
        "SELECT state, last_step, epoch, fail_reason FROM runs_run WHERE id = %s",
        run_id,
    )
    assert row[0] != "failed", row[3]
    return row[0], row[1], row[2]


def _resumed_from(folder: Path, run_id: int) -> int:
    ((step,),) = ask(
        folder,
        "SELECT from_step FROM runs_epoch WHERE run_id = %s AND number = 2",
        run_id,
    )
    return int(step)


def _stored_groups(stack: Stack, run_id: int) -> Groups:
    body = json.loads(_ask_python(stack, "stored_run.py", str(run_id)))
    return {
        (step, place): [(text, reward, advantage) for text, reward, advantage in group]
        for step, place, group in body
    }


def _stored(folder: Path, run_id: int) -> Series:
    ((names,),) = ask(folder, "SELECT metric_names FROM runs_run WHERE id = %s", run_id)
    steps = "SELECT step, values FROM runs_step WHERE run_id = %s"
    rows = ask(folder, f"{steps} AND superseded_by IS NULL ORDER BY step", run_id)
    stored = {
        step: untimed(dict(zip(names, values, strict=False))) for step, values in rows
    }
    assert len(rows) == len(stored)
    return stored
