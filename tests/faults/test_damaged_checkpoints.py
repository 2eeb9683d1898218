"""A flipped bit and a truncated file are found, reported and skipped."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from dashboard.runs.models import RunState
from dashboard.runs.queries import run_directory
from tests.faults.attempts import Once, run_attempt, supervisor_log, trainer_log
from tests.faults.forks import write_run
from tests.faults.histories import assert_whole
from tests.faults.tiny import config_tree, read_log

pytestmark = pytest.mark.faults
WEIGHTS, OPTIMIZER = "model/model.safetensors", "optimizer.safetensors"


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def test_a_run_skips_damaged_checkpoints_and_reports_them(
    launch_tiny, data_folder, undisturbed
):
    run = launch_tiny(num_steps=30, checkpoint={"every_steps": 8, "keep_last": 5})
    strike = Once(
        run, data_folder, step=25, act=lambda pid: os.kill(pid, signal.SIGKILL)
    )
    run_attempt(run, act=strike)
    # It may have gone on for a while before it was struck.
    saved = sorted(run_directory(run.id).checkpoints.glob("step-*-attempt-1"))
    *_, whole, older, newest = saved
    flip_a_bit(newest / WEIGHTS)
    cut(older / OPTIMIZER)

    ended = run_attempt(run)

    assert ended.state == RunState.FINISHED
    assert f"step-{ended.attempts.get(number=2).from_step:06}-attempt-1" == whole.name
    assert_whole(ended, undisturbed, num_steps=30)
    log = supervisor_log(data_folder, run, attempt=2)
    assert f"{newest.name}: {WEIGHTS} has SHA-256" in log
    assert f"{older.name}: {OPTIMIZER} has SHA-256" in log
    assert "Skipped damaged" in trainer_log(data_folder, run, attempt=2)
    # What the run's page shows as its warnings.
    warned = run.events.get(type="warned", body__code="checkpoint_damaged")
    assert newest.name in warned.body["message"]
    assert older.name in warned.body["message"]
    assert f"resumes from {whole.name}" in warned.body["message"]


@pytest.fixture(scope="module")
def finished(trainers, tiny_model, tmp_path_factory) -> Path:
    tree = config_tree(tiny_model, num_steps=4)
    tree |= {"checkpoint": {"every_steps": 2}, "evaluation": {"every_steps": 0}}
    folder = write_run(tmp_path_factory.mktemp("finished"), tree)
    assert trainers.run(folder) == 0, (folder / "trainer.log").read_text()
    return folder


@pytest.mark.parametrize("damage", [flip_a_bit, cut, os.unlink])
@pytest.mark.parametrize("file", [WEIGHTS, "manifest.json"])
def test_a_trainer_without_a_supervisor_skips_damaged_checkpoints(
    damage, file, trainers, finished, tmp_path
):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    damage(folder / "out" / "checkpoints" / "step-000004-attempt-1" / file)

    assert trainers.run(folder, "--resume") == 0, (folder / "trainer.log").read_text()

    events = read_log(folder / "out" / "events.jsonl")
    assert (events[0]["type"], events[0]["step"]) == ("run_resumed", 2)
    assert events[1]["code"] == "checkpoint_damaged"
    assert "step-000004-attempt-1" in events[1]["message"]
