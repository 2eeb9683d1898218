"""A run of two nodes of a Ray cluster: paused, hung, and one of its nodes killed."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dashboard.runs.control import request_pause, resume_run
from dashboard.runs.models import Run, RunState
from dashboard.runs.progress import describe_progress
from dashboard.runs.queries import run_directory
from dashboard.supervision.supervisor import Timing
from tests.dashboard.supervision.factories import ROWS
from tests.environment import python_path
from tests.faults.attempts import Once, run_attempt, trainer_log
from tests.faults.histories import assert_whole
from tests.faults.tiny import (
    History,
    config_tree,
    groups,
    series,
    undisturbed_log,
)
from tests.trainer.ray_clusters import TwoNodes, two_nodes
from tests.trainer.waiting import wait_until

pytestmark = pytest.mark.faults
NUM_STEPS = 16
SAVES = {"every_steps": 5}
RAY = {"where": "ray", "num_nodes": 2, "num_threads": 1}
# Python loads it in each process of the cluster. In rank 1 a thread takes the GIL for
# good when it finds a file, as native code that never returns.
HANGING = """
import ctypes, os, sys, threading, time

def hang_when_asked():
    while not os.path.exists(os.environ["TEST_HANGS"]):
        time.sleep(0.02)
    ctypes.PyDLL(None).sleep(100_000)

if sys.orig_argv[1:4] == ["-m", "trainer", "run"] and os.environ.get("RANK") == "1":
    threading.Thread(target=hang_when_asked, daemon=True).start()
"""


@pytest.fixture(scope="module")
def hangs() -> Iterator[Path]:
    """While this file exists, rank 1 of a run hangs."""
    folder = Path(tempfile.mkdtemp(prefix="cohort-ray-", dir="/tmp"))
    (folder / "sitecustomize.py").write_text(HANGING)
    yield folder / "hangs"
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster(hangs) -> Iterator[TwoNodes]:
    variables = {
        "PYTHONPATH": os.pathsep.join([str(hangs.parent), python_path()]),
        "TEST_HANGS": str(hangs),
    }
    with two_nodes(hangs.parent, **variables) as found:
        yield found


@pytest.fixture
def nodes(cluster, monkeypatch, settings) -> TwoNodes:
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    settings.COHORT_RAY_ADDRESS = cluster.address
    return cluster


@pytest.fixture(scope="module")
def undisturbed(tiny_model) -> History:
    """Of two processes of this machine."""
    tree = config_tree(tiny_model, num_steps=NUM_STEPS) | {"checkpoint": SAVES}
    tree["distributed"] = {"num_processes": 2, "num_threads": 1}
    rows = "".join(f"{row.canonical()}\n" for row in ROWS)
    events = undisturbed_log(tree, rows, name="undisturbed-pair")
    return History(series=series(events), groups=groups(events))


@pytest.fixture
def run(launch_tiny) -> Run:
    return launch_tiny(num_steps=NUM_STEPS, checkpoint=SAVES, distributed=RAY)


@pytest.fixture
def storage(settings, tmp_path) -> Path:
    """Nodes do not share the run's folder: all passes through relay and storage."""
    settings.COHORT_RAY_STORAGE = f"file://{tmp_path}/storage"
    return tmp_path / "storage"


def test_a_pause_and_a_hang_reach_all_ranks_and_the_run_stays_whole(
    run, nodes, storage, hangs, data_folder, undisturbed, alice
):
    def pause(_pid: int) -> None:
        assert request_pause(run=Run.objects.get(pk=run.pk), user=alice)

    paused = run_attempt(
        run,
        act=Once(run, data_folder, step=3, act=pause),
        timing=Timing(check_seconds=0.1),
    )

    assert (paused.state, paused.num_losses) == (RunState.PAUSED, 0)
    newest = run.checkpoints.latest("step")
    assert 3 <= newest.step == paused.last_step < NUM_STEPS
    assert [*storage.glob(f"run-*/checkpoints/{newest.name}")]
    assert (run_directory(run.pk).checkpoints / newest.name).is_dir()
    assert not nodes.ranks()

    assert resume_run(run=paused, user=alice)
    at = paused.last_step + 3
    lost = run_attempt(
        run,
        act=Once(run, data_folder, step=at, act=lambda _pid: hangs.touch()),
        timing=Timing(hang_seconds=4, hang_patience_seconds=1),
    )
    hangs.unlink()

    assert (lost.state, lost.num_losses) == (RunState.QUEUED, 1)
    assert "hung" in describe_progress(lost).notice
    assert lost.attempts.get(number=2).from_step == paused.last_step
    logs = run_directory(run.pk).attempt(2).rank_logs
    stacks = {rank: path.read_text() for rank, path in logs.items()}
    assert ["(most recent call" in stacks[rank] for rank in (0, 1)] == [True, True]
    assert ["hang_when_asked" in stacks[rank] for rank in (0, 1)] == [False, True]
    assert "(most recent call" in trainer_log(data_folder, run, attempt=2)
    wait_until(lambda: not nodes.workers())
    assert not nodes.ranks()

    newest = run.checkpoints.latest("step")
    ended = run_attempt(run)

    assert ended.state == RunState.FINISHED
    assert ended.attempts.get(number=3).from_step == newest.step
    assert_whole(ended, undisturbed, num_steps=NUM_STEPS)


def test_a_run_resumes_after_one_of_its_nodes_has_died(
    run, nodes, data_folder, undisturbed
):
    strike = Once(run, data_folder, step=8, act=lambda _pid: nodes.kill_second())
    lost = run_attempt(run, act=strike)
    assert lost.state == RunState.QUEUED
    assert not nodes.ranks()
    nodes.add_second()
    ended = run_attempt(run)

    assert ended.state == RunState.FINISHED
    assert ended.attempts.get(number=2).from_step >= 5
    assert_whole(ended, undisturbed, num_steps=NUM_STEPS)
