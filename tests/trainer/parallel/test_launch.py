"""`trainer run` with several processes: one command, one exit code, no one left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.environment import child_environment, run_here
from tests.trainer.parallel.test_distributed import alone, assert_same_story, tree_of
from tests.trainer.tiny import (
    read_events,
    run_trainer,
    start_trainer,
    write_config,
)

START_SECONDS = 300  # three processes read torch's files at once


@pytest.fixture
def config(model_folder, rows_path, tmp_path) -> Path:
    tree = tree_of(
        model_folder,
        rows_path,
        optim={"num_steps": 400},
        evaluation={"every_steps": 0},
        distributed={"num_processes": 2, "num_threads": 1},
    )
    return write_config(tmp_path, tree)


def children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii")
    return [int(each) for each in listed.split()]


def started(
    config: Path, out: Path, **options: object
) -> tuple[subprocess.Popen[str], list[int]]:
    """A run in its second step, and its processes."""
    child = start_trainer("run", config, "--out", out, **options)
    log, deadline = out / "events.jsonl", time.monotonic() + START_SECONDS
    while not (log.exists() and '"step":2,"type":"step_finished"' in log.read_text()):
        assert child.poll() is None, child.communicate()[0]
        assert time.monotonic() < deadline, "it did not come to its second step"
        time.sleep(0.05)
    members = children(child.pid)
    assert len(members) == 2
    return child, members


def assert_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, pids
        time.sleep(0.05)


@pytest.mark.slow
def test_asked_to_stop_all_stop_behind_the_same_step(config, tmp_path):
    out = tmp_path / "out"
    child, members = started(config, out)

    child.terminate()
    output, _ = child.communicate(timeout=60)

    assert child.returncode == 3, output
    assert_gone(members)
    stopped = read_events(out / "events.jsonl")[-1]
    assert stopped["type"] == "run_stopped"
    assert stopped["checkpoint"] == f"step-{stopped['step']:06d}-attempt-1"


@pytest.mark.slow
def test_a_killed_process_ends_the_run_and_is_named(config, tmp_path):
    out = tmp_path / "out"
    child, members = started(config, out)
    before = time.monotonic()

    os.kill(members[1], signal.SIGKILL)
    output, _ = child.communicate(timeout=60)

    assert time.monotonic() - before < 30
    assert child.returncode == -signal.SIGKILL, output
    assert_gone(members)
    assert "SIGKILL" in output
    failed = read_events(out / "events.jsonl")[-1]
    assert failed["type"] == "run_failed"
    assert failed["error"].startswith("Process 1 of 2")


@pytest.mark.slow
def test_the_first_process_killed_ends_the_run_too(config, tmp_path):
    child, members = started(config, tmp_path / "out")

    os.kill(members[0], signal.SIGKILL)
    output, _ = child.communicate(timeout=60)

    assert child.returncode == -signal.SIGKILL, output
    assert_gone(members)
    assert "Process 0 of 2" in output


@pytest.mark.slow
def test_all_end_when_their_supervisor_is_gone(config, tmp_path):
    read_end, write_end = os.pipe()
    child, members = started(
        config,
        tmp_path / "out",
        env={"COHORT_PARENT_PIPE": str(read_end)},
        pass_fds=(read_end,),
    )
    os.close(read_end)

    os.close(write_end)
    child.communicate(timeout=30)

    assert child.returncode == 75
    assert_gone(members)


@pytest.mark.slow
def test_all_end_with_the_process_that_started_them(config, tmp_path):
    child, members = started(config, tmp_path / "out")

    child.kill()
    child.communicate(timeout=30)

    assert_gone(members)


@pytest.mark.slow
def test_a_run_started_by_torchrun_is_that_of_one_process(
    model_folder, rows_path, tmp_path
):
    config = write_config(tmp_path, tree_of(model_folder, rows_path))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]

    done = run_here(
        *command,
        "-m",
        "trainer",
        "run",
        str(config),
        "--out",
        str(tmp_path / "two"),
        env=child_environment(),
    )

    assert done.returncode == 0, done.stderr
    assert_same_story(tmp_path / "two", alone(config, "one"))


@pytest.mark.slow
def test_a_bad_configuration_starts_no_process(model_folder, rows_path, tmp_path):
    tree = tree_of(
        model_folder,
        rows_path,
        model={"lora_rank": 4, "quantization": "4bit"},
        distributed={"num_processes": 2},
    )

    done = run_trainer("run", write_config(tmp_path, tree), "--out", tmp_path / "out")

    assert done.returncode == 2
    assert "2 processes" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_an_occupied_folder_is_refused_once(config, model_folder, rows_path, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "events.jsonl").write_text("")

    child = start_trainer("run", config, "--out", out)
    output, _ = child.communicate(timeout=120)

    assert child.returncode == 2
    assert output.count("already contains") == 1


@pytest.mark.parametrize(("local_rank", "count"), [(0, 1), (1, 0)])
def test_each_host_says_once_that_it_has_too_few_gpus(
    local_rank, count, model_folder, rows_path, tmp_path, monkeypatch
):
    data = {"RANK": 8 + local_rank, "LOCAL_RANK": local_rank, "WORLD_SIZE": 16}
    data |= {"LOCAL_WORLD_SIZE": 8, "MASTER_ADDR": "host", "MASTER_PORT": 29_500}
    for name, value in data.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    config = write_config(tmp_path, tree_of(model_folder, rows_path))

    done = run_trainer("run", config, "--out", tmp_path / "out")

    assert done.returncode == 2
    assert done.stderr.count("4 GPUs, but 8") == count


def test_a_world_that_cannot_be_met_is_refused(
    model_folder, rows_path, tmp_path, monkeypatch
):
    """Clusters set WORLD_SIZE for a torchrun that was forgotten."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    config = write_config(tmp_path, tree_of(model_folder, rows_path))

    done = run_trainer("run", config, "--out", tmp_path / "out")

    assert done.returncode == 2
    assert "LOCAL_RANK," in done.stderr
