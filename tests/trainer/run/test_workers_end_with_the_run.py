"""However a run ends, nothing that scored for it goes on, and it says why."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.rewards.test_judge import wait_until_gone
from tests.trainer.tiny import (
    config_tree,
    only,
    read_events,
    run_trainer,
    start_trainer,
    write_config,
)
from tests.trainer.waiting import wait_until
from trainer.rewards import workers
from trainer.rewards.child import Child, NoReply

MATH = {
    "recipe": {
        "rules": [
            {"name": "m", "kind": "math_verify", "params": {"source": "whole"}},
            {"name": "short", "kind": "length"},
        ]
    },
    "num_workers": 1,
}


@pytest.fixture
def trainer(model_folder, rows_path, tmp_path) -> Iterator[subprocess.Popen[str]]:
    """A long run that has a worker and a grader behind it."""
    tree = config_tree(
        model_folder,
        rows_path,
        reward=MATH,
        optim={"num_steps": 100_000},
        evaluation={"every_steps": 0},
        checkpoint={"every_steps": 0},
    )
    process = start_trainer(
        "run",
        write_config(tmp_path, tree),
        "--out",
        tmp_path / "out",
        start_new_session=True,
    )
    log = tmp_path / "out" / "events.jsonl"
    wait_until(lambda: log.exists() and "step_finished" in log.read_text())
    yield process
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def descendants(pid: int) -> list[int]:
    """A process's children and theirs; each thread has its own."""
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            found += [child, *descendants(child)]
    return found


@pytest.mark.slow
def test_a_killed_trainer_leaves_no_worker_and_no_grader(trainer):
    left = descendants(trainer.pid)
    assert len(left) == 2

    trainer.kill()

    assert all(wait_until_gone(pid) for pid in left)


@pytest.mark.slow
def test_a_signal_to_all_of_the_trainers_group_stops_it_in_order(trainer):
    left = descendants(trainer.pid)

    os.killpg(trainer.pid, signal.SIGTERM)
    output, _ = trainer.communicate(timeout=90)

    assert trainer.returncode == 3
    assert "stopped after step" in output
    assert "Traceback" not in output
    assert all(wait_until_gone(pid) for pid in left)


def test_a_run_says_which_rule_and_completion_ended_it(
    model_folder, rows_path, tmp_path, monkeypatch
):
    class Lost(Child):
        def read(self, *, timeout_seconds: float) -> dict[str, Any]:
            message = super().read(timeout_seconds=timeout_seconds)
            if message:  # behind its first one, which says that it is ready
                raise NoReply("it was killed by SIGKILL")
            return message

    monkeypatch.setattr(workers, "Child", Lost)
    tree = config_tree(
        model_folder,
        rows_path,
        reward={"num_workers": 1},
        evaluation={"every_steps": 0},
    )

    done = run_trainer("run", write_config(tmp_path, tree), "--out", tmp_path / "out")

    assert done.returncode == 1
    (failed,) = only(read_events(tmp_path / "out" / "events.jsonl"), "run_failed")
    assert 'Rule "short"' in failed["error"]
    assert "completion 1 of row" in failed["error"]
    assert "SIGKILL" in failed["error"]
