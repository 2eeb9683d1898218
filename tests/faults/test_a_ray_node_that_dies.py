"""kill -9 of a node of a Ray cluster during a run of two nodes."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from dashboard.runs.models import Run, RunState
from tests.dashboard.training.factories import ROWS
from tests.environment import ROOT, child_environment
from tests.faults.attempts import Once, run_attempt
from tests.faults.histories import assert_whole
from tests.faults.tiny import History, config_tree, groups, read_log, series
from tests.trainer.ray_clusters import TwoNodes, two_nodes
from tests.trainer.tiny import write_config

NUM_STEPS = 16
SAVES = {"every_steps": 5}
RAY = {"where": "ray", "num_nodes": 2, "num_threads": 1}


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> Iterator[TwoNodes]:
    folder = Path(tempfile.mkdtemp(prefix="cohort-ray-", dir="/tmp"))
    with two_nodes(folder) as found:
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        settings.COHORT_RAY_ADDRESS = found.address
        yield found
    shutil.rmtree(folder, ignore_errors=True)


def undisturbed(model: Path, folder: Path) -> History:
    """Of two processes of this machine."""
    tree = config_tree(model, num_steps=NUM_STEPS)
    tree["checkpoint"] = SAVES
    tree["distributed"] = {"num_processes": 2, "num_threads": 1}
    config = write_config(folder, tree)
    (folder / "rows.jsonl").write_text("".join(f"{r.canonical()}\n" for r in ROWS))
    command = [sys.executable, "-m", "trainer", "run", str(config)]
    subprocess.run(
        [*command, "--out", str(folder / "out")],
        cwd=ROOT,
        env=child_environment(),
        check=True,
        capture_output=True,
    )
    events = read_log(folder / "out" / "events.jsonl")
    return History(series=series(events), groups=groups(events))


@pytest.mark.faults
def test_a_run_resumes_after_one_of_its_nodes_has_died(
    nodes: TwoNodes,
    launch_tiny: Callable[..., Run],
    tiny_model: Path,
    data_folder: Path,
    tmp_path: Path,
) -> None:
    run = launch_tiny(num_steps=NUM_STEPS, checkpoint=SAVES, distributed=RAY)
    expected = undisturbed(tiny_model, tmp_path)

    strike = Once(run, data_folder, step=8, act=lambda _pid: nodes.kill_second())
    run = run_attempt(run, act=strike)
    assert run.state == RunState.QUEUED
    assert not nodes.ranks()
    nodes.add_second()
    run = run_attempt(run)

    assert run.state == RunState.FINISHED
    assert run.attempts.get(number=2).from_step >= 5
    assert_whole(run, expected, num_steps=NUM_STEPS)
